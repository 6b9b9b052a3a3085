"""Run fastq from the command line."""

from fastq.cli.app import benchmark_package, cli

__all__ = ["benchmark_package", "cli"]
