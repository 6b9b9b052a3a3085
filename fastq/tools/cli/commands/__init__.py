"""The commands of fastq: a file for each, of its name."""
