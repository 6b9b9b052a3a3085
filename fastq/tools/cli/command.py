"""The command `fastq`, which Ctrl-C ends with one line and exit code 130.

This module and what it imports need only the standard library. Signals are handled before NumPy, click and the rest are
imported, which takes longer than the start of the interpreter.
"""

from __future__ import annotations

import atexit
import signal
import sys

from fastq.tools.cli.interrupts import Ending
from fastq.tools.cli.waits import notice_if_slow

NEEDED = ("click", "rich", "safetensors", "ml_dtypes")  # the extra cli of pyproject.toml


def main() -> None:
    """Run the command line."""
    ending = Ending()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, signal.SIGTERM)  # Windows has no SIGHUP: SIGTERM once more changes nothing
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):  # nohup has it ignored
            signal.signal(number, ending)
    atexit.register(ending.at_exit)  # first, so that it runs last
    import fastq

    if not hasattr(fastq, "__version__"):  # the other project's __init__.py lies in the place of ours
        sys.exit(
            "fastq: PyPI's fastq, which reads FASTQ sequences, is installed in the place of fastq-kernels: run"
            " pip uninstall fastq fastq-kernels and install one of the two"
        )
    try:
        with notice_if_slow("importing its libraries"):
            from fastq.tools.cli import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in NEEDED:
            raise
        sys.exit(f"The command fastq needs {missing}: pip install {' '.join(NEEDED)}")
    try:
        app.main(ending)
        ending.exit_code = 0
    except SystemExit as end:
        ending.exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if ending.exit_code > 128:  # a pool waits forever for a thread during whose start the signal came
            ending.at_exit()
        raise
