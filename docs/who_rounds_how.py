"""Write docs/who-rounds-how.md, and the tables of calls in docs/howto/frameworks.md: `python docs/who_rounds_how.py`.

They come from the rows of fastq.CONVENTIONS, docs/conventions.json and docs/who-rounds-how.toml, whose first lines say
what belongs there.
"""

import ast
import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fastq.formats.bitrounding import TIES
from fastq.formats.conventions import frameworks, lessons, media, models, science, vectors
from fastq.formats.conventions.convention import Convention
from fastq.formats.conventions.table import CONVENTIONS
from fastq.formats.describe import (
    code_formula,
    ends_words,
    format_code_formula,
    format_scale_formula,
    has_only_floats,
    in_every_case,
    of_own_formats,
    own_formats,
    rounding_of_format,
    rounding_words,
    scale_formula,
    zero_point_formula,
)
from fastq.formats.qtypes import as_qtype

DOCS = Path(__file__).parent
DATA, COMPARED = DOCS / "who-rounds-how.toml", DOCS / "conventions.json"
PAGE, CALLS = DOCS / "who-rounds-how.md", DOCS / "howto" / "frameworks.md"
BEGIN, END = "<!-- begin: python docs/who_rounds_how.py -->", "<!-- end -->"

# a title and the rows of each table
DOMAINS: dict[str, tuple[str, tuple[Convention, ...]]] = {
    "frameworks": ("Frameworks", frameworks.ROWS),
    "models": ("Tools for models", models.ROWS),
    "vectors": ("Vectors", vectors.ROWS),
    "science": ("Science data", science.ROWS),
    "media": ("Sound and images", media.ROWS),
    "lessons": ("Lessons", lessons.ROWS),
}
# with what the data may begin to say it
ENDS = ("saturates", "wraps", "an error", "become infinite", "nothing is beyond")
ORDERS = (
    "lowest bits first",
    "highest bits first",
    "whole bytes",
    "whole floats",
    "in parts",
    "compressed by",
    "nothing is stored",
)


class Cells(NamedTuple):
    """What is said of the arithmetic of a system."""

    code: str
    scale: str
    zero_point: str
    rounding: str
    ends: str  # the codes in use where these are not all, or an empty text


def entries(stored: Path = DATA) -> dict[str, list[dict[str, Any]]]:
    """Return the entries of the data for each domain, those of conventions first, in the order of their rows."""
    found = tomllib.loads(stored.read_text(encoding="utf-8"))["entry"]
    of_rows = {entry["convention"]: entry for entry in found if "convention" in entry}
    return {
        domain: [
            *(of_rows[row.name] for row in rows if row.name in of_rows),
            *(entry for entry in found if entry.get("domain") == domain),
        ]
        for domain, (_, rows) in DOMAINS.items()
    }


def unmatched(stored: Path = DATA) -> list[str]:
    """Return what is wrong with the entries of conventions: those that are missing, and those of no convention."""
    found = tomllib.loads(stored.read_text(encoding="utf-8"))["entry"]
    named = [entry["convention"] for entry in found if "convention" in entry]
    needed = f"{stored.name} needs an [[entry]] with calls for convention"
    return [
        *(f"{needed} {name!r}" for name in CONVENTIONS if name not in named),
        *(
            f"{stored.name} has an entry for {name!r}, which is no convention"
            for name in named
            if name not in CONVENTIONS
        ),
    ]


def page(stored: Path = DATA, compared: Path = COMPARED) -> str:
    """Return docs/who-rounds-how.md."""
    verified = json.loads(compared.read_text(encoding="utf-8"))
    if wrong := unmatched(stored):
        raise ValueError("; ".join(wrong))
    links = ", ".join(f"[{title}](#{_anchor(domain)})" for domain, (title, _) in DOMAINS.items())
    return f"{_HEAD}{links}\n\n" + "\n".join(
        "\n".join([f"## {DOMAINS[domain][0]}\n", _TABLE, *(_row(entry, domain, verified) for entry in those), ":::\n"])
        for domain, those in entries(stored).items()
    )


_HEAD = """---
html_theme.sidebar_secondary.remove: true
---

# Who rounds how

How systems make codes of numbers, each at the version that is named. Where a number of values is named, as many were
compared with the call of fastq, most of them on ties or next to them, and not one differs. Names that are links are
those of `fastq.CONVENTIONS`: [Conventions](conventions.md) has all of their formulas, and what each system leaves
undefined. The other systems need no convention of their own.

`lo` and `hi` are the ends of the range that shares a scale, `qmin` and `qmax` the first and the last code, `n = qmax -
qmin`, F the type of x; `rint` rounds ties to even, `round` away from zero, `up` is `floor(v + 0.5)`, and `fma` is
rounded once. Scales and zero points are those of one range for the array. *Ends* and *NaN* are what the system does
with numbers beyond its codes, with NaN and with infinities; fastq saturates, refuses NaN, and takes it for 0 with
`nan="zero"`. *Bits* is the place of the first of several codes in a byte. In calls, `replace` is `dataclasses.replace`.

"""
_TABLE = """:::{list-table}
:class: rounding
"""


def _row(entry: dict[str, Any], domain: str, verified: dict[str, Any]) -> str:
    """Return a row of a table, a line for each of its cells."""
    name = entry.get("convention", "")
    system, record = (CONVENTIONS[name].system, verified.get(name)) if name else (entry["system"], entry)
    title = f"**[{name}](conventions.md#{name})** {system}" if name else f"**{system}**"
    if also := entry.get("names"):
        title += f"; {', '.join(f'`{each}`' for each in also)}"
    cells = cells_of(entry)
    version, values = (record["version"], record.get("values")) if record else ("no system of this name", None)
    lines = {
        "code": cells.code,
        "scale": cells.scale,
        "zero point": cells.zero_point,
        "rounding": cells.rounding,
        "ends": f"{entry['ends']}; codes in use: {cells.ends}" if cells.ends else entry["ends"],
        "NaN": entry["nan"],
        "bits": entry["order"],
        "version": version,
        "compared": f"{values:,} values" if values else "not by values",
    }
    return "\n".join(
        [
            f"* - {title}",
            *(f"  - *{label}* {text}" for label, text in lines.items()),
            f"  - *[fastq]({page_of(entry, domain)})*{_calls(entry)}",
        ]
    )


def page_of(entry: dict[str, Any], domain: str) -> str:
    """Return the page that shows the calls of an entry, by default a table of calls."""
    return str(entry.get("page") or f"howto/{CALLS.name}#{_anchor(domain)}")


def _anchor(domain: str) -> str:
    return DOMAINS[domain][0].lower().replace(" ", "-")


def _calls(entry: dict[str, Any]) -> str:
    """Return our calls, each after theirs."""
    calls = [f"{theirs}: {ours}" for theirs, ours in entry["calls"]]
    return f" {calls[0]}" if len(calls) == 1 else "\n    - ".join(["", *calls])


def calls_page(text: str, stored: Path = DATA) -> str:
    """Return docs/howto/frameworks.md, whose text is given, with its tables of calls."""
    lines = [BEGIN]
    for domain, those in entries(stored).items():
        lines += [f"\n### {DOMAINS[domain][0]}\n", "| theirs | `fastq.` |", "|---|---|"]
        lines += [f"| {theirs} | {ours} |" for entry in those for theirs, ours in entry["calls"]]
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    made = "\n".join([*lines, END]).replace("](howto/frameworks.md#", "](#").replace("](howto/", "](")
    return before + made.replace("](reference/", "](../reference/") + after


# Arithmetic: of a convention, or of what a call asks for --------------------------------------------------------------


def cells_of(entry: dict[str, Any]) -> Cells:
    """Return what is said of the arithmetic of an entry: what follows from its convention or call, or its own words."""
    words = {name: entry[name] for name in Cells._fields[:-1] if name in entry}
    if "convention" in entry:
        return _of_convention(CONVENTIONS[entry["convention"]])._replace(**words)
    function, arguments, written = asked(first_call(entry))
    return _OF_CALLS[function](arguments, written)._replace(**words)


def first_call(entry: dict[str, Any]) -> str:
    """Return the first call of fastq in an entry."""
    return str(re.findall(r"`([^`]+\))`", entry["calls"][0][1])[0])


def asked(call: str) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Return the function of a call, its arguments by name, and the same as they are written."""
    expression = ast.parse(call, mode="eval").body
    assert isinstance(expression, ast.Call)
    names = ("x", "dtype") if ast.unparse(expression.func) == "quantize" else ("x", "scale", "zero_point", "dtype")
    nodes = dict(zip(names, expression.args, strict=False)) | {
        str(each.arg): each.value for each in expression.keywords
    }
    known = {"replace": dataclasses.replace, "CONVENTIONS": CONVENTIONS, "Convention": Convention}
    written = {name: ast.unparse(node) for name, node in nodes.items()}
    choices = ("dtype", "convention", "symmetric", "saturate", "inclusive", "bitorder", "keepbits")
    return (
        ast.unparse(expression.func),
        {each: eval(written[each], known) for each in choices if each in nodes},
        written,
    )


def _of_convention(row: Convention) -> Cells:
    """Return the cells of a convention."""
    own = {qtype.name for qtype in own_formats(row)} if row.formats else set()
    if own and own.issuperset(row.formats):
        return _of_blocks(row)
    ends = ends_words(row)
    cells = Cells(
        _formulas(row, code_formula),
        _formulas(row, scale_formula),
        "none" if has_only_floats(row) else _formulas(row, zero_point_formula),
        _cases(in_every_case(row, rounding_words)),
        "" if ends == "all codes" else ends,
    )
    return _joined(cells, _of_blocks(row)) if own else cells


def _joined(cells: Cells, others: Cells) -> Cells:
    """Return cells of formats that share arithmetic together with those of others."""
    texts = {name: f"{getattr(cells, name)}; {getattr(others, name)}" for name in ("code", "scale", "rounding")}
    return cells._replace(**texts)


def _of_blocks(row: Convention) -> Cells:
    """Return the cells of the formats of a convention that have scales of their own."""
    formulas = (of_own_formats(row, formula) for formula in (format_code_formula, format_scale_formula))
    code, scale = (_of_some([(f"`{text}`", formats) for text, formats in cases]) for cases in formulas)
    return Cells(code, scale, "none", _of_some(of_own_formats(row, rounding_of_format)), "")


def _of_some(cases: list[tuple[str, str]]) -> str:
    """Return texts, each with its formats if there are several."""
    return _cases(cases if len(cases) > 1 else [(cases[0][0], "")])


def _row_of(arguments: dict[str, Any]) -> Convention:
    """Return the convention that a call asks for."""
    row = arguments.get("convention", "onnx")
    return row if isinstance(row, Convention) else CONVENTIONS[row]


def _under(arguments: dict[str, Any], scheme: str) -> Convention:
    """Return the convention that a call asks for, as it is for its scheme and format, and one scale for the array."""
    row = _row_of(arguments).under(scheme == "symmetric", "array", arguments["dtype"])
    return dataclasses.replace(row, schemes=(scheme,), formats=(arguments["dtype"],))


def _formulas(row: Convention, formula: Callable[[Convention, str], str]) -> str:
    """Return the formulas of one range for the array, and whether there are others."""
    found = {scheme: f"`{formula(row.under(scheme == 'symmetric', 'array'), scheme)}`" for scheme in row.schemes}
    whole = len(set(found.values())) == 1
    text = found[row.schemes[0]] if whole else "; ".join(f"{scheme}: {each}" for scheme, each in found.items())
    others = len(in_every_case(row, formula)) > len(set(found.values()))
    return f"{text} ([other cases](conventions.md#{row.name}))" if others else text


def _cases(cases: list[tuple[str, str]]) -> str:
    """Return texts with the cases in which they hold, what holds in all others last."""
    named = [f"{text} ({where})" if where else text for text, where in cases if where != "else"]
    return "; ".join([*named, *(f"else {text}" for text, where in cases if where == "else")])


def _of_linear(arguments: dict[str, Any], written: dict[str, str]) -> Cells:
    """Return the cells of quantize_linear, whose scale and zero point are given."""
    qtype = as_qtype(arguments["dtype"], casts=True)
    if qtype.element:
        rounding = rounding_of_format(qtype, _row_of(arguments))
        return Cells(f"the nearest number of `{qtype}`", "none", "none", rounding, "")
    row = _under(arguments, "asymmetric")
    offset = "offset " if row.zero_point == "offset" else ""
    zero_point = f"{offset}`{written.get('zero_point', '0')}`"
    return _of_convention(row)._replace(scale=f"`{written['scale']}`", zero_point=zero_point)


def _of_range(arguments: dict[str, Any], _: dict[str, str]) -> Cells:
    """Return the cells of quantize."""
    qtype = as_qtype(arguments["dtype"])
    if qtype.element or qtype.block_size:
        row = _under(arguments, "symmetric")
        code, scale = format_code_formula(qtype, row), format_scale_formula(qtype, row)
        return Cells(f"`{code}`", f"`{scale}`", "none", rounding_of_format(qtype, row), "")
    return _of_convention(_under(arguments, "symmetric" if arguments.get("symmetric") else "asymmetric"))


def _of_bits(arguments: dict[str, Any], _: dict[str, str]) -> Cells:
    """Return the cells of binarize."""
    return Cells(f"1 where `x {'>=' if arguments.get('inclusive') else '>'} 0`", "none", "none", "none: one bit", "")


def _of_rounded_floats(arguments: dict[str, Any], _: dict[str, str]) -> Cells:
    """Return the cells of bitround."""
    row = Convention("bits", rounding=TIES[arguments.get("convention", "numcodecs")])
    code = "a float with the kept bits of its mantissa, and zeros in the others"
    return Cells(code, "none", "none", rounding_words(row), "")


_OF_CALLS: dict[str, Callable[[dict[str, Any], dict[str, str]], Cells]] = {
    "quantize_linear": _of_linear,
    "quantize": _of_range,
    "binarize": _of_bits,
    "bitround": _of_rounded_floats,
    "gguf.quantize": lambda *_: Cells("", "", "", "", ""),
}


def our_calls(stored: Path = DATA) -> Iterator[str]:
    """Return all calls of fastq in the data."""
    for those in entries(stored).values():
        for entry in those:
            for _, ours in entry["calls"]:
                yield from re.findall(r"`([^`]+\))`", ours)


def main() -> None:
    """Write the pages of the source tree."""
    PAGE.write_text(page(), encoding="utf-8")
    CALLS.write_text(calls_page(CALLS.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
