"""`python -m bench`."""

from .command import main

main(prog_name="python -m bench")
