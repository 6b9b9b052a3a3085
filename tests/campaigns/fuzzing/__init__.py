"""Cases drawn from the product of all that a call can be, and oracles for them, which tests.campaigns.fuzz runs."""
