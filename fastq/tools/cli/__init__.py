"""Run fastq from the command line."""

import sys

NEEDED = ("click", "rich", "safetensors", "ml_dtypes")  # the extra cli of pyproject.toml

try:
    from fastq.tools.cli.app import benchmark_package, cli
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in NEEDED:
        raise
    sys.stderr.write(f"The command fastq needs {missing}: pip install {' '.join(NEEDED)}\n")
    raise SystemExit(1) from None

__all__ = ["benchmark_package", "cli"]
