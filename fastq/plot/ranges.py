"""Draw the histogram of a calibrator, and the range that each method takes."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fastq.operations.calibrate import Calibrator
from fastq.plot.axes import BLUE, GREEN, GREY, PINK, VERMILLION, axis_of, check_axis, percent
from fastq.results import Histogram
from fastq.system.arguments import as_int, is_a, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = 256  # of a histogram at most, on either side of 0
# of methods: colours, and dashes by which lines upon others are seen
_LINES = {
    "minmax": (VERMILLION, "solid"),
    "percentile": (BLUE, (0, (6, 2))),
    "mse": (GREEN, (0, (3, 3))),
    "entropy": (PINK, (0, (1, 2))),
}


def calibration(
    calibrator: Calibrator,
    *,
    methods: Sequence[str] = tuple(_LINES),
    channel: int | tuple[int, ...] = (),
    percentile: float = 99.999,
    quantized_bins: int = 128,
    grid: int = 100,
    ax: Axes | None = None,
) -> Axes:
    """Draw the histogram of a calibrator, the range that each method takes, and what that clips.

    Parameters
    ----------
    calibrator : Calibrator
        It has seen some elements.
    methods : list or tuple of str
        Which methods of `Calibrator.clipping_range`, whose ranges are drawn as pairs of lines.
    channel : int or tuple of int
        Which channel is drawn, an index for each axis that is kept.
    percentile, quantized_bins, grid
        Options of the methods.
    ax : Axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    Axes
        A logarithmic axis of elements in a bin over the values. The legend has the ranges, and the share of elements
        beyond them, of the bins that lie beyond as a whole.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError, ValueError
        If an argument is not as described, or nothing was seen.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> calibrator = fastq.Calibrator("int8", symmetric=True)
    >>> calibrator.update(np.linspace(-1, 1, 1001, dtype=np.float32))
    >>> ax = fastq.plot.calibration(calibrator, methods=["minmax", "percentile"], percentile=90)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['minmax: -1 to 1, clips nothing', 'percentile: -0.9 to 0.9, clips 10 %']
    """
    check_axis(ax)
    if not is_a(calibrator, Calibrator):
        raise TypeError(f"calibrator must be a Calibrator, not {shown(calibrator)}")
    names = _as_methods(methods)
    one = _of_channel(calibrator, channel)
    options: dict[str, Any] = {"percentile": percentile, "quantized_bins": quantized_bins, "grid": grid}
    ranges = {name: [end.item() for end in one.clipping_range(name, **options)] for name in names}
    a = axis_of(ax)
    _draw_bars(a, one)
    for name, ends in ranges.items():
        colour, dashes = _LINES[name]
        label = f"{name}: {ends[0]:.3g} to {ends[1]:.3g}, clips {percent(_clipped(one, *ends))}"
        for end, text in zip(ends, (label, None), strict=True):
            a.axvline(end, color=colour, linestyle=dashes, linewidth=2, label=text)
    a.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, fontsize="small", frameon=False)
    return a


def _as_methods(methods: Sequence[str]) -> list[str]:
    """Return the names of methods, each once."""
    known = ", ".join(_LINES)
    if not (is_a(methods, (list, tuple)) and methods):
        raise TypeError(f"methods must be a list of {known}, not {shown(methods)}")
    names = list(methods)
    for name in names:
        if type(name) is not str or name not in _LINES:
            raise ValueError(f"methods must be of {known}, not {shown(name)}")
    return list(dict.fromkeys(names))


def _of_channel(calibrator: Calibrator, channel: int | tuple[int, ...]) -> Calibrator:
    """Return a calibrator that has seen what a channel has."""
    channels = calibrator.minimum.shape
    place = tuple(as_int(k, "channel") for k in (channel if is_a(channel, tuple) else (channel,)))
    if not place and math.prod(channels) == 1:
        return calibrator
    if len(place) != len(channels) or not all(0 <= k < n for k, n in zip(place, channels, strict=True)):
        raise ValueError(f"channel must be an index of channels of shape {channels}, not {shown(channel)}")
    one, seen = copy.copy(calibrator), calibrator._known
    where = tuple(slice(k, k + 1) for k in place)
    one._seen = Histogram(seen.lo[where], seen.hi[where], seen.counts[where])
    return one


def _clipped(one: Calibrator, lo: float, hi: float) -> float:
    """Return the share of the elements in bins that lie beyond a range as a whole."""
    counts, edges = one.counts.ravel(), one.edges.ravel()
    below = counts[edges[1:] <= lo].sum() if lo > one.minimum else 0
    above = counts[edges[:-1] >= hi].sum() if hi < one.maximum else 0
    return float((below + above) / counts.sum())


def _draw_bars(ax: Axes, one: Calibrator) -> None:
    """Draw the bins in use, several to a bar, so that bars are wide enough to be seen."""
    counts, edges, wide = one.counts.ravel(), one.edges.ravel(), max(one.bins // BARS, 1)
    bars, ends = counts.reshape(-1, wide).sum(axis=1), edges[::wide]
    first, last = np.flatnonzero(bars)[[0, -1]]
    heights, ends = bars[first : last + 1], ends[first : last + 2]
    ax.stairs(heights, ends, baseline=0.5, fill=True, color=GREY, alpha=0.6)
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.5)
    ax.set_xlabel("value")
    ax.set_ylabel(f"elements in a width of {ends[1] - ends[0]:.3g}")
    ax.set_title(f"{one.dtype}: {int(one.count.sum()):,} elements", fontsize="medium")
