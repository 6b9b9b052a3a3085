"""Cards of HTML, which notebooks show: a QuantizedArray with a histogram of its codes in SVG, and named numbers."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.results.elements import code_ends, codes_at, sample_places
from fastq.results.parameters import QParams, parameters_text, scheme_text
from fastq.system.arrays_of_callers import as_array, is_lazy

SAMPLE = 1 << 16  # most codes that are counted
BARS = 64  # most bars
WIDTH, HEIGHT = 320, 72  # size of the histogram in pixels

_FRAME = """<div style="border:1px solid currentColor;border-radius:6px;padding:10px 14px;display:inline-block;\
max-width:100%;box-sizing:border-box;color:inherit;font-family:sans-serif;font-size:13px;line-height:1.5">
{}
</div>"""

_CARD = """<div><b>QuantizedArray</b> {shape} {scheme}</div>
<div style="opacity:.75">{numbers}</div>
<div style="opacity:.75">{size}</div>
{histogram}"""

_HISTOGRAM = """<svg viewBox="0 0 {width} {full}" width="{width}" height="{full}" role="img" style="max-width:100%;\
height:auto" aria-label="{label}"><title>{label}</title>
<g fill="#0072B2">{bars}</g>
<line x1="0" y1="{height}" x2="{width}" y2="{height}" stroke="currentColor" stroke-opacity=".5"/>
<g fill="currentColor" font-size="11" font-family="sans-serif"><text x="0" y="{base}">{first}</text>
<text x="{width}" y="{base}" text-anchor="end">{last}</text></g></svg>"""


def card(codes: Any, p: QParams, shape: tuple[int, ...], nbytes: int) -> str:
    """Return a card with shape, scheme, parameters, bytes and, for codes in memory, a histogram."""
    size = math.prod(shape)
    bits = f", {8 * nbytes / size:.3g} bits per element" if size else ""
    content = _CARD.format(
        shape=html.escape(" x ".join(map(str, shape)) or "one number"),
        scheme=html.escape(scheme_text(p)),
        numbers=html.escape(parameters_text(p)),
        size=f"{nbytes:,} bytes{bits}",
        histogram="" if is_lazy(codes) or not size else _histogram(*histogram_of(as_array(codes, "codes"), p, shape)),
    )
    return _FRAME.format(content)


def card_of_numbers(title: str, numbers: Mapping[str, str]) -> str:
    """Return a card with a line for each number, its name first."""
    rows = "\n".join(
        f'<tr><td style="text-align:left">{html.escape(name)}</td>'
        f'<td style="text-align:right;font-variant-numeric:tabular-nums">{html.escape(text)}</td></tr>'
        for name, text in numbers.items()
    )
    return _FRAME.format(f"<div><b>{html.escape(title)}</b></div>\n<table>\n{rows}\n</table>")


def histogram_of(codes: NDArray[Any], p: QParams, shape: tuple[int, ...]) -> tuple[NDArray[np.int64], float, float]:
    """Return a histogram of a sample of the codes, and the first and the last code in use."""
    first, last = code_ends(p)
    places = sample_places(shape, SAMPLE)
    numbers = codes_at(codes, p.dtype, places).astype(np.float64)
    if p.dtype.element and not p.dtype.codebook:
        return np.histogram(numbers[np.isfinite(numbers)], BARS, (first, last))[0], first, last
    wide = math.ceil((last - first + 1) / BARS)
    bars = math.ceil((last - first + 1) / wide)
    return np.histogram(numbers, bars, (first - 0.5, first - 0.5 + bars * wide))[0], first, last


def _histogram(counts: NDArray[np.int64], first: float, last: float) -> str:
    """Return SVG of a histogram, with a bar for each count but 0, and the first and the last code below."""
    wide = WIDTH / len(counts)
    tallest = max(int(counts.max()), 1)
    bars = "".join(
        f'<rect x="{k * wide:.2f}" y="{HEIGHT - (tall := HEIGHT * count / tallest):.2f}" '
        f'width="{max(wide - 0.5, 0.5):.2f}" height="{tall:.2f}"/>'
        for k, count in enumerate(counts.tolist())
        if count
    )
    label = f"histogram of codes from {first:g} to {last:g}"
    ends = {"first": f"{first:g}", "last": f"{last:g}", "label": label, "bars": bars}
    return _HISTOGRAM.format(width=WIDTH, height=HEIGHT, full=HEIGHT + 16, base=HEIGHT + 13, **ends)
