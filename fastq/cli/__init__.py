"""Run fastq from the command line."""

from fastq.cli.app import benchmark_package, cli, main

__all__ = ["benchmark_package", "cli", "main"]
