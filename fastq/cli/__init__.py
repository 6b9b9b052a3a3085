"""Run fastq from the command line."""

import sys

try:
    from fastq.cli.app import benchmark_package, cli
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing not in ("click", "rich", "safetensors", "ml_dtypes"):
        raise
    sys.stderr.write(f"The command fastq needs {missing}: pip install 'fastq-kernels[cli]'\n")
    raise SystemExit(1) from None

__all__ = ["benchmark_package", "cli"]
