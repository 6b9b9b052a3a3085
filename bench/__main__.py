"""`python -m bench`, or `python -m fastq._bench` where fastq is installed."""

from .command import main

main(prog_name=f"python -m {__package__}")
