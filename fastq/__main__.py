"""Run the command line: `python -m fastq` is the command `fastq`."""

from fastq.tools.cli.command import main

if __name__ == "__main__":
    main()
