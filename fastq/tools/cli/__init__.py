"""Run fastq from the command line; `command` has the function that the script `fastq` calls."""
