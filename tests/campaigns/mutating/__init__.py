"""Mutation testing: which small changes of the package no test notices. `python -m tests.campaigns.mutants` runs it."""
