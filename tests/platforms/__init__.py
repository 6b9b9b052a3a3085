"""The laboratory: what the package does on machines that we do not have, `python -m tests.platforms NAME`."""
