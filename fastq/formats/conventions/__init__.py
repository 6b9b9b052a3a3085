"""Whose arithmetic to follow: a table of systems, by domain, and its fields."""
