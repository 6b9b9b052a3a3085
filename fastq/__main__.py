"""Run the command line: `python -m fastq` is the command `fastq`."""

from fastq_command import main

if __name__ == "__main__":
    main()
