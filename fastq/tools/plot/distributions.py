"""Draw the distribution of the elements of an array: over its codes, by channel, and within calibrated ranges."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fastq.adapters.xarray.labelled import match_labels
from fastq.formats.conventions.table import as_convention
from fastq.formats.granularity import axes_from_front
from fastq.ops.calibrate import Calibrator
from fastq.ops.compare import compare
from fastq.ops.histogram import mantissa_bits, units_of_both_sides, widen
from fastq.ops.minmax import minmax
from fastq.requests.quantization import as_input
from fastq.results import Histogram, QuantizedArray
from fastq.results.elements import code_ends, parameter_places, sample_places, values_at, values_of
from fastq.results.measures import FAR, outliers_of
from fastq.results.parameters import scheme_text
from fastq.system.arguments import as_int, shown
from fastq.system.arrays_of_callers import as_array
from fastq.system.dtypes import Array
from fastq.tools.plot.axes import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    VERMILLION,
    axis_of,
    check_axis,
    legend_below,
    set_labels,
)
from fastq.tools.plot.outliers import SHOWN_CHANNELS, largest_of_channels, outlier_text, outliers_by_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COUNTED = 1 << 19  # most elements that are counted
BARS = 64  # of a histogram, and most of an octave of a calibrator's
EMPTY = 0.5  # elements at the base of bars on a logarithmic axis, which has no 0
TICKS = 256  # most codes that are drawn one by one: more would touch each other
SAMPLE = 1 << 18  # most elements whose errors are computed
TALLEST = 1e300  # magnitude on a logarithmic axis, whose margins and ticks reach beyond it
BINS = 512  # most channels that are drawn: fewer than the pixels of a default figure
OCTAVES = 2  # of a calibrator's histogram whose bins are drawn; those below have bars of one width
# colours and dashes of methods; dashes keep lines visible that overlap
_LINES = {
    "minmax": (VERMILLION, "solid"),
    "percentile": (BLUE, (0, (6, 2))),
    "mse": (GREEN, (0, (3, 3))),
    "entropy": (PINK, (0, (1, 2))),
}


@np.errstate(all="ignore")  # of the caller
def histogram(x: ArrayLike, q: QuantizedArray, *, ax: Axes | None = None) -> Axes:
    """Draw the values of an array as a histogram above the grid of its codes; clipped values are orange.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, bfloat16, float32, float64 or an integer dtype, not empty. If it has more than 524,288
        elements, a random sample of that size is counted.
    q : QuantizedArray
        Codes of x. With one scale the axis shows values; with several scales it shows codes, with each element at ``x /
        scale + zero_point``.
    ax : Axes, optional
        Axes to draw in; by default those of a new figure.

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
    x, q = match_labels(x, q)
    x = as_input(x)
    if not isinstance(q, QuantizedArray):
        raise TypeError(f"q must be a QuantizedArray, not {shown(q)}")
    clipped = compare(x, q).clipped or 0
    places = sample_places(x.shape, COUNTED)
    sample = np.asarray(x[places], np.float64)
    has_one_scale = q.scale.size == 1
    if has_one_scale:  # then the axis shows values, else codes
        values = sample
        grid = _values_of_codes(q)
        lowest, highest = map(float, minmax(x))
    else:
        values = _positions(sample, q, places)
        grid = _codes_in_use(q)
        lowest, highest = values.min(), values.max()
    # the ends of the values that round to codes: half a step beyond the first and the last
    first = float(grid[0] - (grid[1] - grid[0]) / 2)
    last = float(grid[-1] + (grid[-1] - grid[-2]) / 2)
    heights, edges = np.histogram(values, BARS, (min(lowest, first), max(highest, last)))
    a = axis_of(ax)
    a.stairs(np.maximum(heights, EMPTY), edges, baseline=EMPTY, fill=True, color=BLUE, alpha=0.75, label="elements")
    beyond = [ends for ends in ((edges[0], first), (last, edges[-1])) if ends[1] - ends[0] > 1e-6 * (last - first)]
    for (start, end), label in zip(beyond, ("beyond the codes", None), strict=False):
        a.axvspan(start, end, color=ORANGE, alpha=0.35, label=label, linewidth=0)
    below: dict[str, Any] = {"color": GREEN, "transform": a.get_xaxis_transform(), "label": f"{grid.size:,} codes"}
    if grid.size > TICKS:
        a.plot(grid[[0, -1]], [0.03, 0.03], linewidth=4, **below)
    else:
        a.vlines(grid, 0, 0.06, linewidth=1, **below)
    a.set_yscale("log")
    a.set_ylim(0.6 * EMPTY, max(2.0 * heights.max(), 10.0))
    a.margins(x=0.01)
    of_sample = f" of a sample of {len(values):,}" if x.size > COUNTED else ""
    title = f"{scheme_text(q.qparams)}: clips {_percent_text(clipped / x.size)}"
    set_labels(a, title, "value" if has_one_scale else "code, before it is rounded", f"elements in a bar{of_sample}")
    return legend_below(a, 3)


def _stored_codes(q: QuantizedArray) -> Array:
    """Return the codes that the scheme uses, as they are stored: of a float format all finite ones."""
    qtype = q.dtype
    if qtype.element:
        codes = np.arange(1 << qtype.bits, dtype=np.uint8).view(qtype.storage)
        return codes[np.isfinite(codes.astype(np.float32))]
    first, last = code_ends(q.qparams)
    return np.arange(first, last + 1).astype(qtype.storage)


def _codes_in_use(q: QuantizedArray) -> Array:
    """Return the codes in use in order, for float formats and tables as their numbers."""
    numbers = np.array(q.dtype.codebook.values) if q.dtype.codebook else _stored_codes(q)
    return np.unique(numbers.astype(np.float64))


def _values_of_codes(q: QuantizedArray) -> Array:
    """Return the values of the codes in use in order, by the first scale."""
    return np.unique(values_of(_stored_codes(q), q.qparams, q.shape, (0,) * q.ndim).astype(np.float64))


def _positions(values: Array, q: QuantizedArray, places: tuple[Array, ...]) -> Array:
    """Return the positions of values among the codes, before rounding: ``x / scale + zero_point``, or by an offset."""
    params = q.qparams
    indices = parameter_places(params, q.shape, places)
    scale = as_array(params.scale, "q")[indices].astype(np.float64)
    zero_point = as_array(params.zero_point, "q")[indices].astype(np.float64)
    if params.tensor_scale is not None:
        scale = scale * float(params.tensor_scale)
    if params.dtype.block_size and not params.dtype.element:  # mxint8, whose codes are multiples of 1/64
        scale = scale / 64
    convention = as_convention(params.convention)
    if convention.zero_point == "offset":
        code_of_offset = code_ends(params)[0] if convention.offset_code == "lowest" else 0
        return (values - zero_point) / scale + code_of_offset
    return values / scale + zero_point


@np.errstate(all="ignore")  # of the caller
def channels(x: ArrayLike, q: QuantizedArray | None = None, *, axis: int | None = None, ax: Axes | None = None) -> Axes:
    """Draw the largest magnitude of each channel, and the root mean square of its errors, to find outliers.

    Parameters
    ----------
    x : array_like
        Array of one or more axes, of dtype float16, bfloat16, float32, float64 or an integer dtype, not empty.
    q : QuantizedArray, optional
        Codes of x. Errors are computed for at most 262,144 random elements, at the same places in each channel.
    axis : int, optional
        The channel axis. By default, of the axes with outliers, the one whose outlier is the most times larger than the
        median; without outliers that of q if it has a single one, else the first.
    ax : Axes, optional
        Axes to draw in; by default those of a new figure.

    Returns
    -------
    Axes
        Axes with magnitudes over channels, logarithmic. If there are more than 512 channels, neighbours are joined, and
        the largest is drawn. Channels whose largest magnitude is at least 6 times the median are marked, three of them
        by number. The title has the axis and, if it was not given, the outliers of other axes.

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
    >>> x[:, 5] *= 40
    >>> ax = fastq.plot.channels(x, fastq.quantize(x, "int8"))
    >>> ax.get_title()
    '100 channels of axis 1, 1 outlier'
    """
    check_axis(ax)
    x, q = match_labels(x, q)
    x = as_input(x)
    if q is not None and not isinstance(q, QuantizedArray):
        raise TypeError(f"q must be a QuantizedArray or None, not {shown(q)}")
    if q is not None and q.shape != x.shape:
        raise ValueError(f"x has shape {x.shape} and q has shape {q.shape}")
    (chosen,) = axes_from_front((0 if axis is None else as_int(axis, "axis"),), x.ndim, "x")  # refuses a scalar, too
    if not x.size:
        raise ValueError(f"x has shape {x.shape}: there is no channel to draw")
    minmax(x)  # refuses NaN
    outliers_of_axes = outliers_by_axis(x) if axis is None else {}
    along = _axis_to_draw(x, q, outliers_of_axes) if axis is None else chosen
    largest = largest_of_channels(x, along)
    if largest.max() > TALLEST:
        raise ValueError(f"x has magnitudes up to {largest.max():.3g}, more than a picture holds: draw x / 1e10")
    errors = None if q is None else _channel_errors(x, q, along)
    channels_of_bin = math.ceil(largest.size / BINS)
    outliers = outliers_of(largest)

    from matplotlib.ticker import MaxNLocator

    a = axis_of(ax)
    counted = f"channel of axis {along}" + (f", largest of {channels_of_bin}" if channels_of_bin > 1 else "")
    for heights, colour, label in ((largest, BLUE, "largest magnitude"), (errors, ORANGE, "RMS error")):
        if heights is not None:
            binned = np.maximum.reduceat(heights, np.arange(0, heights.size, channels_of_bin))
            shown_heights = np.where(binned > 0, binned, np.nan)  # 0 has no place on a logarithmic axis
            edges = np.arange(binned.size + 1) * channels_of_bin - 0.5
            a.stairs(shown_heights, edges, baseline=None, color=colour, linewidth=1.5, label=label)
    _mark_outliers(a, along, largest, outliers)
    a.set_yscale("log")
    a.margins(x=0.01)
    a.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    count = f"{outliers.size or 'no'} outlier{'s' * (outliers.size != 1)}"
    elsewhere = [f"outliers of {outlier_text(k, channels)}" for k, channels in outliers_of_axes.items() if k != along]
    title = "\n".join([f"{largest.size:,} channels of axis {along}, {count}", *elsewhere])
    set_labels(a, title, counted, "magnitude")
    return legend_below(a, 3)


def _channel_errors(x: Array, q: QuantizedArray, along: int) -> Array:
    """Return the root mean square of the errors of each channel, from a sample of its elements."""
    shape_of_channel = tuple(length for axis, length in enumerate(x.shape) if axis != along)
    # the same places in each channel: indices of shape (1, places), next to channels of shape (channels, 1)
    places = [place[np.newaxis] for place in sample_places(shape_of_channel, max(SAMPLE // x.shape[along], 1))]
    places.insert(along, np.arange(x.shape[along])[:, np.newaxis])
    values = values_at(as_array(q.codes, "q.codes"), q.qparams, q.shape, tuple(places))
    errors = x[tuple(places)].astype(np.float64) - values.astype(np.float64)
    _, exponents = np.frexp(np.abs(errors).max(axis=1, initial=0.0))  # float64 may not hold the squares
    scaled = np.ldexp(errors, -exponents[:, np.newaxis])
    return np.asarray(np.ldexp(np.sqrt(np.mean(scaled**2, axis=1)), exponents))


def _axis_to_draw(x: Array, q: QuantizedArray | None, outliers: dict[int, Array]) -> int:
    """Return the axis with the farthest outlier; without one that of the scales, or the first."""
    own = None if q is None or q.block_size else q.axis
    if not outliers:
        return own % x.ndim if isinstance(own, int) else 0
    largest = {axis: largest_of_channels(x, axis) for axis in outliers}
    return max(outliers, key=lambda axis: float(largest[axis].max() / np.median(largest[axis])))


def _mark_outliers(a: Axes, along: int, largest: Array, outliers: Array) -> None:
    """Mark outlier channels, and write the numbers of the farthest ones."""
    if not outliers.size:
        return
    a.axhline(FAR * np.median(largest), color=GREY, linestyle=(0, (4, 3)), linewidth=1, label=f"{FAR:g} x the median")
    a.plot(
        outliers,
        largest[outliers],
        "o",
        color=VERMILLION,
        markersize=5,
        label=f"outliers, {outlier_text(along, outliers)}",
    )
    for channel in outliers[np.argsort(largest[outliers])[::-1][:SHOWN_CHANNELS]].tolist():
        near = (channel, largest[channel])
        a.annotate(f"{channel}", near, xytext=(5, -3), textcoords="offset points", fontsize="small")


@np.errstate(all="ignore")  # of the caller
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
    """Draw the histogram of a calibrator, and for each method the range and the clipped share.

    Parameters
    ----------
    calibrator : Calibrator
        Calibrator with elements.
    methods : list or tuple of str
        Methods of `Calibrator.clipping_range`, whose ranges are drawn as pairs of lines.
    channel : int or tuple of int
        Index of the channel to draw, one for each axis that is kept.
    percentile, quantized_bins, grid
        Options of the methods.
    ax : Axes, optional
        Axes to draw in; by default those of a new figure.

    Returns
    -------
    Axes
        Axes with the elements per bin over the values, logarithmic. The legend has the ranges, and the share of
        elements beyond them, counting bins that lie beyond as a whole.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError, ValueError
        If an argument is not as described, or the calibrator has no elements.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> calibrator = fastq.Calibrator("int8", symmetric=True)
    >>> calibrator.update(np.linspace(-1, 1, 1001, dtype=np.float32))
    >>> ax = fastq.plot.calibration(calibrator, methods=["minmax", "percentile"], percentile=90)
    >>> [text.get_text() for text in ax.get_legend().get_texts()]
    ['minmax: -1 to 1, clips nothing', 'percentile: -0.902 to 0.902, clips 9.8 %']
    """
    check_axis(ax)
    if not isinstance(calibrator, Calibrator):
        raise TypeError(f"calibrator must be a Calibrator, not {shown(calibrator)}")
    known = ", ".join(_LINES)
    if not (isinstance(methods, (list, tuple)) and methods):
        raise TypeError(f"methods must be a list of {known}, not {shown(methods)}")
    for name in methods:
        if type(name) is not str or name not in _LINES:
            raise ValueError(f"methods must be of {known}, not {shown(name)}")
    calibrator = _calibrator_of_channel(calibrator, channel)
    options: dict[str, Any] = {"percentile": percentile, "quantized_bins": quantized_bins, "grid": grid}
    ranges = {name: [end.item() for end in calibrator.clipping_range(name, **options)] for name in methods}
    bars, ends, width = _bars(calibrator)
    first, last = np.flatnonzero(bars)[[0, -1]]
    bottom = bars[bars > 0].min() / 2
    a = axis_of(ax)
    a.stairs(bars[first : last + 1], ends[first : last + 2], baseline=bottom, fill=True, color=GREY, alpha=0.6)
    a.set_yscale("log")
    a.set_ylim(bottom=bottom)
    title = f"{calibrator.dtype}: {int(calibrator.count.sum()):,} elements"
    set_labels(a, title, "value", f"elements in a width of {width:.3g}")
    for name, (lo, hi) in ranges.items():
        colour, dashes = _LINES[name]
        label = f"{name}: {lo:.3g} to {hi:.3g}, clips {_percent_text(_share_beyond(calibrator, lo, hi))}"
        for end, text in ((lo, label), (hi, None)):
            a.axvline(end, color=colour, linestyle=dashes, linewidth=2, label=text)
    return legend_below(a, 2, -0.17)


def _bars(calibrator: Calibrator) -> tuple[Array, Array, float]:
    """Return the heights of bars of a calibrator's histogram, their ends, and the width to which heights refer.

    Bins are narrow near 0 and as wide as they are far; narrow ones are joined, so that bars are visible.
    """
    counts = calibrator.counts.ravel()
    edges = calibrator.edges.ravel()
    bins_of_octave = 1 << mantissa_bits(calibrator.bins)
    steps = max(calibrator.bins // bins_of_octave - 1 - OCTAVES, 0)  # octaves near 0 whose bins become one width
    bins_of_bar = max(bins_of_octave // BARS, 1)
    elements = widen(counts, steps).reshape(-1, bins_of_bar).sum(axis=1)
    # 0 is the edge in the middle, so the one after it is the width of the narrowest bin
    ends = (np.ldexp(units_of_both_sides(calibrator.bins), steps) * edges[calibrator.bins + 1])[::bins_of_bar]
    width = ends[calibrator.bins // bins_of_bar + 1]
    return elements * (width / np.diff(ends)), ends, width


def _share_beyond(calibrator: Calibrator, lo: float, hi: float) -> float:
    """Return the share of the elements in bins that lie beyond a range as a whole."""
    counts = calibrator.counts.ravel()
    edges = calibrator.edges.ravel()
    below = counts[edges[1:] <= lo].sum() if lo > calibrator.minimum else 0
    above = counts[edges[:-1] >= hi].sum() if hi < calibrator.maximum else 0
    return float((below + above) / counts.sum())


def _calibrator_of_channel(calibrator: Calibrator, channel: int | tuple[int, ...]) -> Calibrator:
    """Return a calibrator with the elements of one channel."""
    channels = calibrator.minimum.shape
    place = tuple(as_int(k, "channel") for k in (channel if isinstance(channel, tuple) else (channel,)))
    if not place and math.prod(channels) == 1:
        return calibrator
    if len(place) != len(channels) or not all(0 <= k < n for k, n in zip(place, channels, strict=True)):
        raise ValueError(f"channel must be an index of channels of shape {channels}, not {shown(channel)}")
    of_channel = copy.copy(calibrator)
    histogram = calibrator._data
    indices = tuple(slice(k, k + 1) for k in place)
    of_channel._histogram = Histogram(histogram.lo[indices], histogram.hi[indices], histogram.counts[indices])
    return of_channel


def _percent_text(share: float) -> str:
    """Return a share of the elements as text."""
    return f"{100 * share:.2g} %" if share else "nothing"
