"""Pictures of what quantization does to an array; needs matplotlib, the extra ``[plot]``."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.dispatch import validation
from fastq.formats.conventions import as_convention, part_of
from fastq.operations.calibrate import Calibrator
from fastq.operations.measure import compare
from fastq.results import Comparison, Histogram, QuantizedArray
from fastq.system.arguments import as_array, as_int, is_a, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.image import AxesImage

Array = NDArray[Any]

CELLS = 256  # cells a side at most: fewer than a panel of the default figure has pixels, so that none is left out
AT_ONCE = 1 << 20  # elements looked at together; bounds the temporaries
SPREAD = 50  # from this ratio of largest to median magnitude on, a linear colour scale would hide the median
STACKED = 4  # an array this many times wider than high has its panels under each other
WRITTEN = 144  # numbers written into cells at most
SMALLEST_FONT, LARGEST_FONT = 6.0, 10.0  # points
BARS = 256  # of a histogram at most, on either side of 0
# of methods: colours that the colour-blind tell apart, by Okabe and Ito, and dashes by which lines upon others are seen
_LINES = {
    "minmax": ("#D55E00", "solid"),
    "percentile": ("#0072B2", (0, (6, 2))),
    "mse": ("#009E73", (0, (3, 3))),
    "entropy": ("#CC79A7", (0, (1, 2))),
}
LUMINANCE = np.array([0.299, 0.587, 0.114])  # of red, green and blue, ITU-R BT.601


def errors(x: ArrayLike, q: QuantizedArray | ArrayLike, *, ax: ArrayLike | None = None) -> NDArray[np.object_]:
    """Draw an array, its codes, what they decode to, and the error, side by side.

    Arrays of more than 256 rows or columns (of more than 64 rows, if wide and low) are drawn in cells of several
    elements. A cell shows the element of the largest magnitude with its code and decoded value, and in the last panel
    the largest error, so that no outlier is lost. Small arrays have their numbers written into the cells. Colours
    follow the inverse hyperbolic sine where the largest magnitude is more than 50 times the median.

    Parameters
    ----------
    x : array_like
        Of float32, float64 or an integer dtype, not empty. One dimension is drawn as a row; more than two are folded
        into rows of the last one.
    q : QuantizedArray or array_like
        The approximation: codes of x, or values of float32 or float64 and x's shape, which leave the second panel
        without codes.
    ax : array_like of four Axes, optional
        Where to draw, in a figure with ``layout="constrained"`` if it shall make room for titles and colour bars; by
        default a new figure, with the panels under each other if x is wide and low.

    Returns
    -------
    ndarray of Axes
        Shape (4,): original, codes, decoded, error. The error is ``original - decoded``, as in `fastq.compare`.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError, ValueError
        If x and q are not as `fastq.compare` takes them, or `ax` is not four Axes.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    >>> axes = fastq.plot.errors(x, fastq.quantize(x, "int4"))
    >>> [a.get_title().splitlines()[0] for a in axes]
    ['original', 'codes', 'decoded', 'error']
    """
    _require_matplotlib()
    x = validation.as_input(x)
    measured = compare(x, q)
    decoded, codes = as_array(q, "q"), as_array(q.unpacked(), "q.codes") if is_a(q, QuantizedArray) else None
    cells = _cells(_folded(x), _folded(decoded), None if codes is None else _folded(codes))
    axes = _new_axes(cells) if ax is None else _given_axes(ax)

    _draw_panels(axes, cells, q)
    for a, title in zip(axes, _titles(x, q, measured, cells.step), strict=True):
        a.set_title(title, fontsize="medium")
    return axes


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
    methods : sequence of str
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
    _require_matplotlib()
    if not is_a(calibrator, Calibrator):
        raise TypeError(f"calibrator must be a Calibrator, not {shown(calibrator)}")
    names = _as_methods(methods)
    one = _of_channel(calibrator, channel)
    options: dict[str, Any] = {"percentile": percentile, "quantized_bins": quantized_bins, "grid": grid}
    ranges = {name: [end.item() for end in one.clipping_range(name, **options)] for name in names}
    a = _new_axis() if ax is None else _given_axis(ax)
    _draw_bars(a, one)
    for name, ends in ranges.items():
        colour, dashes = _LINES[name]
        label = f"{name}: {ends[0]:.3g} to {ends[1]:.3g}, clips {_percent(_clipped(one, *ends))}"
        for end, text in zip(ends, (label, None), strict=True):
            a.axvline(end, color=colour, linestyle=dashes, linewidth=2, label=text)
    a.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=2, fontsize="small", frameon=False)
    return a


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("fastq.plot needs matplotlib: pip install 'fastq-kernels[plot]'", name=error.name) from error


# What is shown


class _Cells(NamedTuple):
    """What each cell of the picture shows; arrays of one shape, at most CELLS a side."""

    shape: tuple[int, int]
    step: tuple[int, int]
    original: Array
    codes: Array
    decoded: Array
    error: Array


def _folded(a: Array) -> Array:
    """Return `a` as a matrix of rows along its last axis."""
    return a.reshape(-1, a.shape[-1] if a.ndim else 1)


def _cells(x: Array, decoded: Array, codes: Array | None) -> _Cells:
    """Return what to show of three matrices of one shape; codes of 0 where there are none."""
    rows, columns = x.shape
    step = _step(x.shape)
    shown = np.empty((4, math.ceil(rows / step[0]), math.ceil(columns / step[1])))
    for place, tile in _tiles(x.shape, step):
        original, approximation = x[tile].astype(np.float64), decoded[tile].astype(np.float64)
        error = original - approximation
        largest = _largest(original, step[1])
        shown[0][place] = original[largest]
        shown[1][place] = 0 if codes is None else codes[tile][largest]
        shown[2][place] = approximation[largest]
        shown[3][place] = error[_largest(error, step[1])]
    return _Cells(x.shape, step, *shown)


def _step(shape: tuple[int, int]) -> tuple[int, int]:
    """Return how many elements a cell is high and wide, so that it gets a pixel at least."""
    if _is_square(shape):
        return (math.ceil(max(shape) / CELLS),) * 2
    return math.ceil(shape[0] / (CELLS // STACKED if _is_stacked(shape) else CELLS)), math.ceil(shape[1] / CELLS)


def _tiles(shape: tuple[int, int], step: tuple[int, int]) -> Iterator[tuple[tuple[int, slice], tuple[slice, slice]]]:
    """Yield pieces of rows of cells: where they are among the cells, and among the elements."""
    width = max(AT_ONCE // (step[0] * step[1]), 1)
    for row in range(math.ceil(shape[0] / step[0])):
        for column in range(0, math.ceil(shape[1] / step[1]), width):
            elements = (slice(row * step[0], (row + 1) * step[0]), slice(column * step[1], (column + width) * step[1]))
            yield (row, slice(column, column + width)), elements


def _largest(tile: Array, step: int) -> tuple[Array, Array]:
    """Return row and column of the element of the largest magnitude in each cell of `step` columns."""
    magnitude = np.abs(tile)
    row = magnitude.argmax(axis=0)
    heights = magnitude.max(axis=0)
    padded = np.pad(heights, (0, -heights.size % step), constant_values=-1.0).reshape(-1, step)
    column = padded.argmax(axis=1) + np.arange(0, heights.size, step)
    return row[column], column


def _titles(
    x: Array, q: QuantizedArray | ArrayLike, measured: Comparison, step: tuple[int, int]
) -> tuple[str, str, str, str]:
    of_cells = "" if step == (1, 1) else "\ncells: largest of {} x {}".format(*step)
    return (
        f"original\n{_described(x)}{of_cells}",
        f"codes\n{_scheme(q)}",
        f"decoded\nSQNR {measured.sqnr_db:.2f} dB",
        f"error\nat most {measured.max_abs_error:.3g}{of_cells}",
    )


def _described(x: Array) -> str:
    shape = " x ".join(map(str, x.shape)) or "one number"
    folded = "" if x.ndim == 2 or x.ndim == 0 else " as {} x {}".format(*_folded(x).shape)
    return f"{shape} {x.dtype}{folded}"


def _scheme(q: QuantizedArray | ArrayLike) -> str:
    if not isinstance(q, QuantizedArray):
        return "none: q is an array of values"
    if q.scale.size == 1:
        zero = "offset" if as_convention(q.convention).zero_point == "offset" else "zero point"
        return f"{q.dtype}, scale {q.scale.item():.4g}, {zero} {q.zero_point.item():.6g}"
    blocks = f", block_size={q.block_size}" if q.block_size else ""
    return f"{q.dtype}, axis={q.axis}{blocks}"


# How it is drawn


def _new_axes(cells: _Cells) -> NDArray[np.object_]:
    from matplotlib import pyplot
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    stacked = _is_stacked(cells.shape)
    rows, columns, size = (4, 1, (10.0, 7.0)) if stacked else (1, 4, (16.0, 5.2))
    engine = ConstrainedLayoutEngine(rect=(0.0, 0.04, 1.0, 0.96))  # bars move down as pictures grow to their place
    _, axes = pyplot.subplots(rows, columns, figsize=size, layout=engine)
    return np.asarray(axes, object)


def _is_stacked(shape: tuple[int, int]) -> bool:
    return shape[1] >= STACKED * shape[0]


def _is_square(shape: tuple[int, int]) -> bool:
    """Return whether elements are drawn as high as wide, rather than the picture filling its place."""
    return shape[0] / STACKED < shape[1] < STACKED * shape[0]


def _given_axes(ax: ArrayLike) -> NDArray[np.object_]:
    from matplotlib.axes import Axes

    axes = as_array(ax, "ax").ravel()
    if axes.size != 4:
        raise ValueError(f"ax must be four Axes, not {axes.size}")
    wrong = [type(a).__name__ for a in axes.tolist() if not isinstance(a, Axes)]
    if wrong:
        raise TypeError(f"ax must be four Axes, not {', '.join(wrong)}")
    return axes


def _draw_panels(axes: NDArray[np.object_], cells: _Cells, q: QuantizedArray | ArrayLike) -> None:
    for a in axes:
        _set_view(a, cells.shape)
    shared = _scale_of(np.stack([cells.original, cells.decoded]))
    _draw(axes[0], cells, cells.original, "viridis", shared, digits=4)
    if isinstance(q, QuantizedArray):
        _draw(axes[1], cells, cells.codes, "cividis", _scale_of_codes(q), digits=5)
    else:
        axes[1].set_axis_off()
    _draw(axes[2], cells, cells.decoded, "viridis", shared, digits=4)
    _draw(axes[3], cells, cells.error, "RdBu_r", _scale_of(cells.error, centred=True), digits=2)


def _scale_of(values: Array, *, centred: bool = False) -> Normalize:
    """Return a colour scale: linear, or where few values are far larger, one on which the others differ too."""
    from matplotlib.colors import AsinhNorm, Normalize

    finite = values[np.isfinite(values)]
    magnitude = np.abs(finite[finite != 0])
    if not magnitude.size:
        return Normalize(-1.0, 1.0)
    typical, top = float(np.median(magnitude)), float(magnitude.max())
    lo, hi = (-top, top) if centred else (float(finite.min()), float(finite.max()))
    return AsinhNorm(3 * typical, lo, hi) if top > SPREAD * typical else Normalize(lo, hi)


def _scale_of_codes(q: QuantizedArray) -> Normalize:
    """Return the colour scale of all codes that the scheme may use, so that unused ones are seen too."""
    from matplotlib.colors import Normalize

    row = as_convention(q.convention).under(q.symmetric, part_of(q.axis, q.block_size))
    return Normalize(*row.code_range(q.dtype, q.symmetric))


def _draw(ax: Axes, cells: _Cells, values: Array, colours: str, scale: Normalize, *, digits: int) -> None:
    height, width = (count * step for count, step in zip(values.shape, cells.step, strict=True))
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)  # the last cells may reach beyond the array
    image = ax.imshow(values, colours, scale, aspect=ax.get_aspect(), interpolation="nearest", extent=extent)
    _add_colour_bar(ax, image, vertical=_is_stacked(cells.shape))
    if cells.step == (1, 1):
        _write_numbers(ax, image, values, digits)


def _set_view(ax: Axes, shape: tuple[int, int]) -> None:
    """Let the axes count elements, also where a cell shows several."""
    from matplotlib.ticker import MaxNLocator

    rows, columns = shape
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    ax.set_aspect("equal" if _is_square(shape) else "auto")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


def _add_colour_bar(ax: Axes, image: AxesImage, *, vertical: bool) -> None:
    """Put the bar beside or below the picture, which keeps its size."""
    from matplotlib.colors import AsinhNorm
    from matplotlib.ticker import MaxNLocator

    where = (1.01, 0.0, 0.015, 1.0) if vertical else (0.0, -0.16, 1.0, 0.05)
    bar = ax.figure.colorbar(image, cax=ax.inset_axes(where), orientation="vertical" if vertical else "horizontal")
    bar.ax.tick_params(labelsize="small")
    if isinstance(image.norm, AsinhNorm):
        ticks = [float(tick) for tick in image.norm.inverse(np.linspace(0.0, 1.0, 5))]
        bar.set_ticks(ticks, labels=[f"{float(f'{tick:.2g}'):g}" for tick in ticks])
        bar.minorticks_off()
    else:
        bar.locator = MaxNLocator(4)
        bar.update_ticks()


def _write_numbers(ax: Axes, image: AxesImage, values: Array, digits: int) -> None:
    """Write each number into its cell with so many digits, or as many as fit all cells."""
    if values.size > WRITTEN:
        return
    for precision in range(digits, 1, -1):
        texts = [f"{value:.{precision}g}" for value in values.ravel()]
        size = _font_size(ax, values.shape, max(map(len, texts)))
        if size >= SMALLEST_FONT:
            break
    else:
        return
    for place, text, colour in zip(np.ndindex(values.shape), texts, image.to_rgba(values).reshape(-1, 4), strict=True):
        ink = "black" if colour[:3] @ LUMINANCE > 0.5 else "white"
        ax.text(place[1], place[0], text, ha="center", va="center", size=size, color=ink)


def _font_size(ax: Axes, shape: tuple[int, ...], characters: int) -> float:
    """Return the size in points at which that many characters fit a cell; one is about 0.6 of the size wide."""
    box = ax.get_window_extent()
    width, height = (72 / ax.figure.dpi * pixels for pixels in (box.width / shape[1], box.height / shape[0]))
    return min(LARGEST_FONT, 0.95 * width / (0.6 * characters), 0.6 * height)


# Calibration


def _as_methods(methods: Sequence[str]) -> list[str]:
    """Return the names of methods, each once."""
    known = ", ".join(_LINES)
    if isinstance(methods, str) or not isinstance(methods, Sequence):
        raise TypeError(f"methods must be a list of {known}, not {shown(methods)}")
    names = list(methods)
    for name in names:
        if type(name) is not str or name not in _LINES:
            raise ValueError(f"methods must be of {known}, not {shown(name)}")
    return list(dict.fromkeys(names))


def _of_channel(calibrator: Calibrator, channel: int | tuple[int, ...]) -> Calibrator:
    """Return a calibrator that has seen what a channel has."""
    channels = calibrator.minimum.shape
    place = tuple(as_int(k, "channel") for k in (channel if isinstance(channel, tuple) else (channel,)))
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


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share else "nothing"


def _draw_bars(ax: Axes, one: Calibrator) -> None:
    """Draw the bins in use, so many together that bars are wide enough to be seen."""
    counts, edges, wide = one.counts.ravel(), one.edges.ravel(), max(one.bins // BARS, 1)
    bars, ends = counts.reshape(-1, wide).sum(axis=1), edges[::wide]
    first, last = np.flatnonzero(bars)[[0, -1]]
    heights, ends = bars[first : last + 1], ends[first : last + 2]
    ax.stairs(heights, ends, baseline=0.5, fill=True, color="#8C8C8C", alpha=0.6)
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.5)
    ax.set_xlabel("value")
    ax.set_ylabel(f"elements in a width of {ends[1] - ends[0]:.3g}")
    ax.set_title(f"{one.dtype}: {int(one.count.sum()):,} elements", fontsize="medium")


def _new_axis() -> Axes:
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(8.0, 4.5), layout="constrained")[1]


def _given_axis(ax: object) -> Axes:
    from matplotlib.axes import Axes

    if not isinstance(ax, Axes):
        raise TypeError(f"ax must be an Axes, not {shown(ax)}")
    return ax
