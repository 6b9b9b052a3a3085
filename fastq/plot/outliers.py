"""Draw range and error of each channel of an array."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from fastq.operations.measure import minmax
from fastq.plot.axes import BLUE, GREY, ORANGE, VERMILLION, axis_of, check_axis, legend_below
from fastq.requests.values import as_input
from fastq.results import QuantizedArray
from fastq.results.elements import sampled_places, values_at
from fastq.results.measures import FAR, outliers_of
from fastq.system.arguments import as_array, as_int, is_a, shown, within_array
from fastq.system.dtypes import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SAMPLE = 1 << 18  # elements of which errors are taken at most
BINS = 512  # channels that are drawn at most: fewer than a default figure is wide in pixels
NAMED = 3  # outliers whose numbers are written


def channels(x: ArrayLike, q: QuantizedArray | None = None, *, axis: int | None = None, ax: Axes | None = None) -> Axes:
    """Draw the largest magnitude of each channel, and the root mean square of its errors: where the outliers are.

    Parameters
    ----------
    x : array_like
        Of one axis or more, of float16, bfloat16, float32, float64 or an integer dtype, not empty.
    q : QuantizedArray, optional
        Codes of x. Errors are those of 262,144 elements at most, drawn at random, the same places of each channel.
    axis : int, optional
        Which axis counts channels; by default that of q if it is one, else the first.
    ax : Axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    Axes
        A logarithmic axis of magnitudes over channels. Of more than 512 channels neighbours are drawn together by
        the largest. Those whose largest magnitude is 6 times the median or more are marked, three of them by number.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError, ValueError, AxisError
        If an argument is not as described, or x has NaN.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.ones((8, 100), np.float32)
    >>> x[5] *= 40
    >>> ax = fastq.plot.channels(x, fastq.quantize(x, "int8"))
    >>> ax.get_title()
    '8 channels of axis 0, 1 outlier'
    """
    check_axis(ax)
    x = as_input(x)
    if q is not None and not is_a(q, QuantizedArray):
        raise TypeError(f"q must be a QuantizedArray or None, not {shown(q)}")
    if q is not None and q.shape != x.shape:
        raise ValueError(f"x has shape {x.shape} and q has shape {q.shape}")
    along = _axis(x, q, axis)
    if not x.size:
        raise ValueError(f"x has shape {x.shape}: there is no channel to draw")
    lo, hi = (np.asarray(end, np.float64) for end in minmax(x, axis=along))
    largest = np.maximum(-lo, hi)
    errors = None if q is None else _errors(x, q, along)
    together, outliers = math.ceil(largest.size / BINS), outliers_of(largest)

    from matplotlib.ticker import MaxNLocator

    a = axis_of(ax)
    _draw(a, _binned(largest, together), together, BLUE, "largest magnitude")
    if errors is not None:
        _draw(a, _binned(errors, together), together, ORANGE, "RMS error")
    _mark(a, largest, outliers)
    a.set_yscale("log")
    a.margins(x=0.01)
    a.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    a.set_xlabel(f"channel of axis {along}" + (f", largest of {together}" if together > 1 else ""))
    a.set_ylabel("magnitude")
    a.set_title(
        f"{largest.size:,} channels of axis {along}, {outliers.size or 'no'} outlier{'s' * (outliers.size != 1)}",
        fontsize="medium",
    )
    legend_below(a, 3)
    return a


def _axis(x: Array, q: QuantizedArray | None, axis: int | None) -> int:
    """Return the axis that counts channels."""
    if axis is None:
        own = None if q is None or q.block_size else q.axis
        axis = own if isinstance(own, int) else 0
    return within_array((as_int(axis, "axis"),), x.ndim, "x")[0]


def _errors(x: Array, q: QuantizedArray, along: int) -> Array:
    """Return the root mean square of the errors of each channel, of a sample of its elements."""
    others = tuple(n for a, n in enumerate(x.shape) if a != along)
    places = [place[np.newaxis] for place in sampled_places(others, max(SAMPLE // x.shape[along], 1))]
    places.insert(along, np.arange(x.shape[along])[:, np.newaxis])
    values = values_at(as_array(q.codes, "q.codes"), q.qparams, q.shape, tuple(places))
    errors = x[tuple(places)].astype(np.float64) - values.astype(np.float64)
    return np.asarray(np.sqrt(np.mean(errors**2, axis=1)))


def _binned(heights: Array, together: int) -> Array:
    """Return the largest of neighbours."""
    return np.maximum.reduceat(heights, np.arange(0, heights.size, together))


def _draw(a: Axes, heights: Array, together: int, colour: str, label: str) -> None:
    """Draw a height for each channel; 0 has no place on a logarithmic axis."""
    edges = np.arange(heights.size + 1) * together - 0.5
    a.stairs(np.where(heights > 0, heights, np.nan), edges, baseline=None, color=colour, linewidth=1.5, label=label)


def _mark(a: Axes, largest: Array, outliers: Array) -> None:
    if not outliers.size:
        return
    a.axhline(FAR * np.median(largest), color=GREY, linestyle=(0, (4, 3)), linewidth=1, label=f"{FAR:g} x the median")
    a.plot(outliers, largest[outliers], "o", color=VERMILLION, markersize=5, label="outliers")
    for channel in outliers[np.argsort(largest[outliers])[::-1][:NAMED]].tolist():
        near = (channel, largest[channel])
        a.annotate(f"{channel}", near, xytext=(5, -3), textcoords="offset points", fontsize="small")
