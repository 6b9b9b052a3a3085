"""The public functions: a docstring, and one call into dispatch."""
