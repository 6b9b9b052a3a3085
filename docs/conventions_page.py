"""Write docs/conventions.md, from the table of conventions and what was compared: `python docs/conventions_page.py`."""

import json
import textwrap
from pathlib import Path
from typing import Any

from fastq.formats.conventions.convention import Convention
from fastq.formats.conventions.table import CONVENTIONS
from fastq.formats.describe import (
    code_formula,
    format_code_formula,
    format_scale_formula,
    format_value_formula,
    in_every_case,
    of_own_formats,
    own_formats,
    scale_formula,
    value_formula,
    zero_point_formula,
)
from fastq.formats.qtypes import QTYPES
from fastq.formats.requantization import REQUANTIZATIONS, Requantization


def page(verified: Path) -> str:
    """Return docs/conventions.md.

    Parameters
    ----------
    verified : Path
        docs/conventions.json, which tests/conformance/record.py writes: the comparisons, ``{name: {"system", "version",
        "values", "undefined"}}``; it may be missing.
    """
    compared = json.loads(verified.read_text()) if verified.exists() else {}
    sections = [_section(row, compared.get(row.name)) for row in CONVENTIONS.values()]
    rows = [_requantization(row, compared.get(f"requantize {row.name}")) for row in REQUANTIZATIONS.values()]
    return _HEAD + "\n".join([*sections, _OF_ACCUMULATORS, *rows])


_HEAD = """# Conventions

Generated from the table in `fastq/formats/conventions/` by `python docs/conventions_page.py`.

F is the compute type of the values, `lo` and `hi` the ends of the range that a parameter belongs to, `qmin` and `qmax`
the first and the last code, `n = qmax - qmin`. `rint` rounds ties to even, `round` away from zero, `up` is `floor(v +
0.5)`. Every operation is rounded in F unless it says otherwise; `fma` is rounded once. In formats with scales of their
own `largest` is the largest magnitude of a block, and `nearest` rounds to a number of the format, ties to even.

Where a system is undefined or wraps, fastq is not: NaN is a `ValueError` (`nan="zero"` treats it as 0), a range with an
infinity too; codes saturate, and a range wider than float32 has a finite scale or is a `ValueError`.

[Who rounds how](who-rounds-how.md) has these systems and others in tables, in words, with their calls.

A convention of your own is a `fastq.Convention`, or a row with fields changed:
`dataclasses.replace(fastq.CONVENTIONS["torch"], reduce_range=True)`.

"""


def _section(row: Convention, compared: dict[str, Any] | None) -> str:
    widened = "`lo = min(x, 0)`, `hi = max(x, 0)`" if row.includes_zero else "`lo = min(x)`, `hi = max(x)`"
    if row.offset_rounding == "float32_below":
        widened += "; where they differ, lo is then the largest float32 that is not above it, else the scale is 0"
    lines = [f"## {row.name}\n", f"{row.system}.\n"]
    if len(own_formats(row)) < len(row.formats or QTYPES):
        lines.append(f"- range: {widened}")
        for title, formula in (
            ("scale", scale_formula),
            ("zero point", zero_point_formula),
            ("code", code_formula),
            ("value", value_formula),
        ):
            for text, where in in_every_case(row, formula):
                lines.append(f"- {title}: `{text}`{f' ({where})' if where else ''}")
    for title, of_format in (
        ("scale", format_scale_formula),
        ("code", format_code_formula),
        ("value", lambda qtype, _: format_value_formula(qtype)),
    ):
        lines += [f"- {title}: `{text}` ({where})" for text, where in of_own_formats(row, of_format)]
    numbers = "scale and offset are" if row.codes_by == "unrounded" and row.zero_point == "offset" else "the scale is"
    when = ", once codes are computed" if row.codes_by == "unrounded" else ""
    if row.stored_type == "input":
        lines.append(f"- bfloat16 and float16: {numbers} rounded to the dtype of x{when}")
    elif row.stored_type in ("float16", "bfloat16"):
        lines.append(f"- {numbers} rounded to {row.stored_type}{when}")
    if row.searched_signed:
        where = f"where a range of {' or '.join(row.searched_signed)} is searched for"
        lines.append(f"- {where}, the scale is negative if `hi > -lo` (symmetric)")
    if row.stored_type == "float32" and row.zero_point == "offset":
        lines.append("- the offset is rounded to float32")
    if row.compute_type == "float64":
        lines.append("- F is float64 for all input")
    if row.operation_type == "input":
        lines.append("- bfloat16 and float16: each operation except that of values is rounded to the dtype of x")
    if row.narrow_unsigned == "highest":
        lines.append("- symmetric codes of unsigned formats: 0 to 2^bits - 2")
    if row.value_type == "result":
        lines.append("- values of bfloat16 and float16: parameters and then each operation are rounded to that dtype")
    lines.append(f"- formats: {', '.join(row.formats) or 'all'}; {' and '.join(row.schemes)}")
    return "\n".join([*lines, *_verification(compared), ""])


_OF_ACCUMULATORS = """## requantize

The arithmetic of `fastq.requantize`, generated from `fastq/formats/requantization.py`. `acc` and `bias` are int32,
whose sum wraps around. A multiplier is `units * 2**(shift - 31)`, with units from 2**30 to 2**31 - 1, rounded half
away from zero; one with a shift below -31 counts as 0. `up` rounds ties up, `away` away from zero, `rint` to even;
`<<` and the sum with the zero point wrap around as int32, and codes are clamped last.
"""

_UNITS = {
    "twice_away": "away(up(((acc + bias) << max(shift, 0)) * units / 2**31) / 2**max(-shift, 0))",
    "twice_up": "up(up(((acc + bias) << max(shift, 0)) * units / 2**31) / 2**max(-shift, 0))",
    "once": "up((acc + bias) * units / 2**(31 - shift))",
    "float": "rint(float32(acc + bias) * float32(multiplier))",
}


def _requantization(row: Requantization, compared: dict[str, Any] | None) -> str:
    lines = [f"### {row.name}\n", f"{row.system}.\n", f"- code: `clamp({_UNITS[row.arithmetic]} + zero_point)`"]
    if row.float_bias:
        lines.append("- a bias that is a float: `float32(acc) + float32(bias)`")
    lines.append("- formats: int8, uint8, int16")
    return "\n".join([*lines, *_verification(compared), ""])


def _verification(compared: dict[str, Any] | None) -> list[str]:
    if compared is None:
        return ["- verified against: no system of this name"]
    verified = f"- verified against: {compared['version']}; {compared['values']:,} values, the same bytes"
    undefined = [f"- where the system is undefined: {compared['undefined']}"] if compared["undefined"] else []
    return [textwrap.fill(line, 120, subsequent_indent="  ") for line in (verified, *undefined)]


def main() -> None:
    """Write docs/conventions.md of the source tree."""
    docs = Path(__file__).parent
    (docs / "conventions.md").write_text(page(docs / "conventions.json"))


if __name__ == "__main__":
    main()
