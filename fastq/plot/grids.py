"""Draw the histogram of an array over the grid of its codes, and what that clips."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fastq.formats.conventions import as_convention
from fastq.operations.measure import compare, minmax
from fastq.plot.axes import BLUE, GREEN, ORANGE, axis_of, check_axis, legend_below, percent
from fastq.requests.values import as_input
from fastq.results import QuantizedArray
from fastq.results.elements import code_ends, parameter_places, sampled_places, values_of
from fastq.results.parameters import scheme_text
from fastq.system.arguments import as_array, is_a, shown
from fastq.system.dtypes import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SAMPLE = 1 << 19  # elements that are counted at most
BARS = 200
EMPTY = 0.5  # elements: where bars begin on a logarithmic axis, which has no 0
TICKS = 256  # codes that are drawn one by one at most: more would touch each other


def histogram(x: ArrayLike, q: QuantizedArray, *, ax: Axes | None = None) -> Axes:
    """Draw the values of an array as a histogram, above the grid of its codes; what is clipped lies in orange.

    Parameters
    ----------
    x : array_like
        Of float16, bfloat16, float32, float64 or an integer dtype, not empty. Of more than 524,288 elements a random
        sample of that size is counted.
    q : QuantizedArray
        Codes of x. Where they have one scale, the axis is that of values; where they have several, that of codes, on
        which each element is at ``x / scale + zero_point``.
    ax : Axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    Axes
        A logarithmic axis of elements in a bar over values or codes.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError, ValueError
        If an argument is not as described, or x has NaN.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.linspace(-1, 1, 1000, dtype=np.float32)
    >>> ax = fastq.plot.histogram(x, fastq.quantize(x, "int4"))
    >>> ax.get_title()
    'int4: clips nothing'
    """
    check_axis(ax)
    x = as_input(x)
    if not is_a(q, QuantizedArray):
        raise TypeError(f"q must be a QuantizedArray, not {shown(q)}")
    clipped = compare(x, q).clipped or 0
    places = sampled_places(x.shape, SAMPLE)
    values = np.asarray(x[places], np.float64)
    one = q.scale.size == 1
    grid = _grid(q, one)
    first, last = _reach(grid)
    values = values if one else _positions(values, q, places)
    lowest, highest = map(float, minmax(x)) if one else (values.min(), values.max())
    heights, edges = np.histogram(values, BARS, (min(lowest, first), max(highest, last)))
    a = axis_of(ax)
    a.stairs(np.maximum(heights, EMPTY), edges, baseline=EMPTY, fill=True, color=BLUE, alpha=0.75, label="elements")
    _shade_clipped(a, edges, first, last)
    _draw_grid(a, grid)
    a.set_yscale("log")
    a.set_ylim(0.6 * EMPTY, max(2.0 * heights.max(), 10.0))
    a.margins(x=0.01)
    of_sample = f" of a sample of {len(values):,}" if x.size > SAMPLE else ""
    a.set_xlabel("value" if one else "code, before it is rounded")
    a.set_ylabel(f"elements in a bar{of_sample}")
    a.set_title(f"{scheme_text(q.qparams)}: clips {percent(clipped / x.size)}", fontsize="medium")
    legend_below(a, 3)
    return a


def _grid(q: QuantizedArray, decoded: bool) -> Array:
    """Return the codes in use in order, those of floats by their numbers; or what they decode to."""
    p = q.qparams
    first, last = code_ends(p)
    if p.dtype.element:
        codes = np.arange(1 << p.dtype.bits, dtype=np.uint8).view(p.dtype.storage)
        codes = codes[np.isfinite(codes.astype(np.float32))]
    else:
        codes = np.arange(first, last + 1).astype(p.dtype.storage)
    numbers = np.array(p.dtype.codebook.values) if p.dtype.codebook else codes
    return np.unique((values_of(codes, p, q.shape, (0,) * q.ndim) if decoded else numbers).astype(np.float64))


def _reach(grid: Array) -> tuple[float, float]:
    """Return the ends of what rounds to a point of a grid: half a step beyond the first and the last."""
    return float(grid[0] - (grid[1] - grid[0]) / 2), float(grid[-1] + (grid[-1] - grid[-2]) / 2)


def _positions(values: Array, q: QuantizedArray, places: tuple[Array, ...]) -> Array:
    """Return where values lie among the codes, before they are rounded."""
    p = q.qparams
    where = parameter_places(p, q.shape, places)
    scale, zero_point = (as_array(each, "q")[where].astype(np.float64) for each in (p.scale, p.zero_point))
    if p.tensor_scale is not None:
        scale = scale * float(p.tensor_scale)
    if p.dtype.block_size and not p.dtype.element:
        scale = scale / 64
    if as_convention(p.convention).zero_point == "offset":
        start = code_ends(p)[0] if as_convention(p.convention).offset_code == "lowest" else 0
        return (values - zero_point) / scale + start
    return values / scale + zero_point


def _shade_clipped(a: Axes, edges: Array, first: float, last: float) -> None:
    """Shade what lies beyond the codes."""
    label: str | None = "beyond the codes"
    for start, end in ((edges[0], first), (last, edges[-1])):
        if end - start > 1e-6 * (last - first):
            a.axvspan(start, end, color=ORANGE, alpha=0.35, label=label, linewidth=0)
            label = None


def _draw_grid(a: Axes, grid: Array) -> None:
    """Draw a line below the bars for each code, or the span of too many."""
    below = a.get_xaxis_transform()
    if grid.size > TICKS:
        a.plot(grid[[0, -1]], [0.03, 0.03], color=GREEN, linewidth=4, transform=below, label=f"{grid.size:,} codes")
    else:
        a.vlines(grid, 0, 0.06, color=GREEN, linewidth=1, transform=below, label=f"{grid.size:,} codes")
