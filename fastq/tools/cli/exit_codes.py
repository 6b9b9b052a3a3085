"""The exit codes of commands."""

from __future__ import annotations

from fastq.tools.cli import interrupts

TOO_FAR = 3
IN_PART = 4
EXIT_CODES = {
    0: "done",
    1: "failed, or `check` or `demo` found a difference; one line says why",
    2: "wrong arguments, or options that cannot be combined",
    TOO_FAR: "a tensor does not reach the SQNR of `compare --at-least` or `suggest`, or has NaN or infinite values, for"
    " which `suggest` has no scheme; standard error names the worst",
    IN_PART: "done in part; standard error names the parts that were not found, read or compared, such as variables "
    "whose coordinates disagree, or that there was nothing to change",
    interrupts.EXIT_CODE: "ended by Ctrl-C; no half-written file stays, and `convert` continues when it is started"
    " again",
}
