"""The directive ``bit-layouts``: tables of code formats with their bits drawn, made from those in fastq/formats."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

import numpy as np
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import fastq
from fastq.formats.codebooks import CODEBOOKS
from fastq.formats.floats import FLOAT_FORMATS, FloatFormat
from fastq.formats.gguf import BLOCK_FORMATS, BlockFormat
from fastq.formats.qtypes import QTYPES, QType

Box = tuple[float, str, str, str]  # width in units, class of its colour, text within, what a pointer over it shows

BIT, HEIGHT = 16, 22  # pixels


def block_parts(row: BlockFormat) -> tuple[tuple[str, int], ...]:
    """Return what the bytes of a block are, in their order, and how many of each; words may have several kinds."""
    owners: list[tuple[str, ...]] = [()] * row.nbytes
    for field in row.fields:
        what = "high bits" if field.of == "codes" and field.shift else _SHOWN.get(field.of, field.of)
        for i in range(field.at, field.at + field.nbytes):
            owners[i] = (*owners[i], *({what} - {*owners[i]}))
    return tuple((" + ".join(what), len(list(same))) for what, same in itertools.groupby(owners))


_SHOWN = {"mins": "scales"}  # which they share bytes with
BLOCKS = {name: block_parts(row) for name, row in BLOCK_FORMATS.items()}
_COLOURS = {"d": "sign", "min": "other", "scales": "exponent", "codes": "mantissa", "signs": "other"}
_COLOURS |= {"high bits": "fourth"}


def boxes(row: Iterable[Box], unit: float) -> str:
    """Return boxes in a row as SVG; the colours are those of fastq.css."""
    parts, x = [], 0.5
    for width, colour, text, title in row:
        middle = x + width * unit / 2
        parts.append(
            f'<g class="{colour}"><title>{escape(title)}</title>'
            f'<rect x="{x:g}" y="0.5" width="{width * unit:g}" height="{HEIGHT}"/>'
            f'<text x="{middle:g}" y="{HEIGHT / 2 + 4.5:g}">{escape(text)}</text></g>'
        )
        x += width * unit
    size = f'width="{x + 0.5:g}" height="{HEIGHT + 1}" viewBox="0 0 {x + 0.5:g} {HEIGHT + 1}"'
    return f'<svg class="bits" role="img" {size}>{"".join(parts)}</svg>'


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table that scrolls where the page is narrow; cells are HTML."""
    head = "".join(f"<th>{name}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        '<div class="pst-scrollable-table-container"><table class="table bit-layouts">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def code(name: object) -> str:
    """Return a name as code."""
    return f"<code>{escape(str(name))}</code>"


def integers() -> str:
    """Draw the integer formats: first and last codes, storage."""
    rows = [q for q in QTYPES.values() if not q.element and not q.block_size]
    columns = ("format", "codes", "of a symmetric scheme", "stored in")
    return table(columns, [(code(q), _ends(q, False), _ends(q, True), _stored(q)) for q in sorted(rows, key=_width)])


def _width(q: QType) -> tuple[int, bool]:
    return q.bits, not q.signed


def _ends(q: QType, symmetric: bool) -> str:
    first, last = q.code_range(symmetric)
    return f"{first:g} .. {last:g}"


def _stored(q: QType) -> str:
    if not q.packed:
        return code(q.storage)
    shared = math.gcd(8, q.bits)
    return f"{8 // shared} codes in {q.bits // shared} byte{'s' * (q.bits != shared)}"


def floats() -> str:
    """Draw sign, exponent and mantissa of the float formats, the sign highest."""
    columns = ("format", "bits, the highest first", "bias", "largest", "smallest normal", "smallest", "infinity", "NaN")
    return table(columns, [_float_row(row) for row in FLOAT_FORMATS.values()])


def _float_row(row: FloatFormat) -> tuple[object, ...]:
    fields = [("sign", "S")] * row.sign + [("exponent", "E")] * row.exponent + [("mantissa", "M")] * row.mantissa
    drawn = boxes(
        [(1, colour, letter, f"{colour}, bit {row.bits - 1 - i}") for i, (colour, letter) in enumerate(fields)], BIT
    )
    normal, least = 2.0 ** (1 - row.bias), 2.0 ** (1 - row.bias - row.mantissa)
    if not row.mantissa:  # of powers of two only
        normal = least = 2.0**-row.bias
    codes = ("-" if value is None else code(f"0x{value:02X}") for value in (row.infinity, row.nan))
    return code(row.name), drawn, row.bias, f"{row.max:.6g}", f"{normal:.4g}", f"{least:.4g}", *codes


def codebooks() -> str:
    """Draw the numbers of the formats that are tables on a line from -1 to 1."""
    rows = []
    for book in CODEBOOKS.values():
        lines = "".join(_tick(150 * value + 160, f"code {k}: {value:g}") for k, value in enumerate(book.values))
        drawn = f'<svg class="bits ticks" role="img" width="320" height="22" viewBox="0 0 320 22">{lines}</svg>'
        rows.append((code(book.name), book.bits, drawn, f"{len(set(book.values))}"))
    return table(("format", "bits", "numbers, from -1 to 1", "how many"), rows)


def _tick(x: float, title: str) -> str:
    return f'<line x1="{x:.1f}" x2="{x:.1f}" y1="2" y2="20"><title>{escape(title)}</title></line>'


def blocks() -> str:
    """Draw a block of the formats with scales of their own: the scale and the elements that share it."""
    rows = []
    for q in (q for q in QTYPES.values() if q.block_size):
        element = q.element or "int8, in 64ths"
        row: list[Box] = [(8, "exponent", "scale", f"scale: {q.scale_element}")]
        row += [(q.bits / 4, "mantissa", "", f"element {k}: {element}") for k in range(q.block_size)]
        whole = "float32, one per array" if q.has_tensor_scale else "-"
        bits = q.bits + 8 / q.block_size
        rows.append((code(q), code(element), q.block_size, f"{bits:g}", whole, boxes(row, 5)))
    return table(("format", "element", "block", "bits per element", "scale of scales", "a block"), rows)


def packing() -> str:
    """Draw which bits of the first bytes each code takes, as `fastq.reference.pack` packs them."""
    rows = []
    for bits in range(1, 8):
        owner = packed_owners(bits)
        drawn: list[Box] = []
        for start in range(0, len(owner), 8):
            drawn += [
                (1, f"code{k % 2}", str(k), f"byte {start // 8}, bit {i}: code {k}")
                for i, k in enumerate(owner[start : start + 8])
            ]
        parts = [boxes(drawn[start : start + 8], BIT) for start in range(0, len(drawn), 8)]
        rows.append((bits, f'<span class="bytes">{"".join(parts)}</span>'))
    return table(("bits", "byte 0, 1, 2: bit 0 on the left; the number is that of the code"), rows)


def packed_owners(bits: int, count: int = 3) -> list[int]:
    """Return for each bit of the first bytes, the lowest first, the number of the code that it belongs to."""
    codes = 8 * count // bits + 1
    ones = np.eye(codes, dtype=np.uint8) * ((1 << bits) - 1)
    packed = np.array([fastq.reference.pack(row, f"uint{bits}") for row in ones])[:, :count]
    return [int(k) for k in np.unpackbits(packed, axis=1, bitorder="little").argmax(axis=0)]


def gguf() -> str:
    """Draw the bytes of a block of each format of GGUF."""
    rows = []
    for row in BLOCK_FORMATS.values():
        parts, unit = [], 320 / row.nbytes
        for what, count in BLOCKS[row.name]:
            shown = what if count * unit > 8 * len(what) else ""
            parts.append((count, _COLOURS[what.split(" + ")[0]], shown, f"{what}: {count} bytes"))
        bits = 8 * row.nbytes / row.size
        rows.append((code(row.name), row.number, row.size, row.nbytes, f"{bits:.4g}", boxes(parts, unit)))
    columns = (
        "format",
        "ggml_type",
        "values",
        "bytes",
        "bits per value",
        "a block, first byte on the left",
    )
    return table(columns, rows)


DRAWN: dict[str, Callable[[], str]] = {f.__name__: f for f in (integers, floats, codebooks, blocks, packing, gguf)}


class BitLayouts(SphinxDirective):
    """One of the tables above, by its name."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table as HTML."""
        return [nodes.raw("", DRAWN[self.arguments[0]](), format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive."""
    app.add_directive("bit-layouts", BitLayouts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
