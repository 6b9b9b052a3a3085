"""Cases drawn from the product of all that a call can be, and oracles for them; `python -m tests.fuzz` runs them."""
