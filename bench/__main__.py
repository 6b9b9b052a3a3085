"""`python -m bench`."""

from .checkout import main

main(prog_name=f"python -m {__package__}")
