"""Run fastq from the command line."""

import sys

try:
    from fastq.cli.app import benchmark_package, cli, main
except KeyboardInterrupt:  # Ctrl-C while all that commands need is imported: what `Commands.invoke` does later
    sys.stderr.write("Interrupted\n")
    raise SystemExit(130) from None

__all__ = ["benchmark_package", "cli", "main"]
