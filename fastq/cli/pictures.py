"""Pictures of errors for pages: SVG without a ground, in the colour of the text around it."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import fastq

INK = "#010203"  # of text and lines, which none of the colour scales has: it becomes that of the page
NONE = "<p>No picture: pip install 'fastq-kernels[plot]'</p>"
WORST = 3  # tensors of which there are pictures

Errors = tuple[Any, Any]  # an array and its approximation, as `fastq.plot.errors` takes them


class Picture(NamedTuple):
    """A picture with a title of one line."""

    title: str
    svg: str


def pictures_of_worst(entries: Sequence[dict[str, Any]], errors_of: Callable[[str], Errors]) -> Iterator[Picture]:
    """Yield pictures of the tensors with the least ratio of signal to noise, the worst first."""
    measured = [entry for entry in entries if entry["sqnr_db"] is not None and math.isfinite(entry["sqnr_db"])]
    for entry in sorted(measured, key=lambda entry: float(entry["sqnr_db"]))[:WORST]:
        yield Picture(f"{entry['name']}: {entry['sqnr_db']:.2f} dB", _svg(*errors_of(entry["name"])))


def _svg(x: Any, q: Any) -> str:
    try:
        import matplotlib
    except ImportError:
        return NONE
    matplotlib.use("agg", force=False)
    from matplotlib import pyplot

    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    style: dict[Any, Any] = dict.fromkeys(inked, INK) | {"svg.fonttype": "none", "font.family": "sans-serif"}
    with pyplot.rc_context(style):
        figure, axes = pyplot.subplots(2, 2, figsize=(12, 10), layout="constrained")
        fastq.plot.errors(x, q, ax=axes)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True)
        pyplot.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :].replace(INK, "currentColor")
