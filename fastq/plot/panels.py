"""Draw an array, its codes, what they decode to, and the error, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.formats.conventions import as_convention
from fastq.operations.measure import compare
from fastq.plot.axes import require_matplotlib
from fastq.plot.cells import Cells, cells_of, folded, is_square, is_stacked
from fastq.requests.values import as_input
from fastq.results import Comparison, QuantizedArray
from fastq.results.elements import code_ends
from fastq.system.arguments import as_array, is_a
from fastq.system.dtypes import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.image import AxesImage


SPREAD = 50  # from this ratio of largest to median magnitude on, a linear colour scale would hide the median
WRITTEN = 144  # numbers written into cells at most
SMALLEST_FONT, LARGEST_FONT = 6.0, 10.0  # points
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
    require_matplotlib()
    x = as_input(x)
    given = None if ax is None else _given_axes(ax)
    measured = compare(x, q)
    cells = cells_of(x, q)
    axes = _new_axes(cells) if given is None else given

    _draw_panels(axes, cells, q)
    for a, title in zip(axes, _titles(x, q, measured, cells.step), strict=True):
        a.set_title(title, fontsize="medium")
    return axes


# What is shown


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
    matrix = "" if x.ndim == 2 or x.ndim == 0 else " as {} x {}".format(*folded(x).shape)
    return f"{shape} {x.dtype}{matrix}"


def _scheme(q: QuantizedArray | ArrayLike) -> str:
    if not is_a(q, QuantizedArray):
        return "none: q is an array of values"
    if q.scale.size == 1:
        zero = "offset" if as_convention(q.convention).zero_point == "offset" else "zero point"
        return f"{q.dtype}, scale {q.scale.item():.4g}, {zero} {q.zero_point.item():.6g}"
    blocks = f", block_size={q.block_size}" if q.block_size else ""
    return f"{q.dtype}, axis={q.axis}{blocks}"


# How it is drawn


def _new_axes(cells: Cells) -> NDArray[np.object_]:
    from matplotlib import pyplot
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    stacked = is_stacked(cells.shape)
    rows, columns, size = (4, 1, (10.0, 7.0)) if stacked else (1, 4, (16.0, 5.2))
    engine = ConstrainedLayoutEngine(rect=(0.0, 0.04, 1.0, 0.96))  # bars move down as pictures grow to their place
    _, axes = pyplot.subplots(rows, columns, figsize=size, layout=engine)
    return np.asarray(axes, object)


def _given_axes(ax: ArrayLike) -> NDArray[np.object_]:
    from matplotlib.axes import Axes

    axes = as_array(ax, "ax").ravel()
    if axes.size != 4:
        raise ValueError(f"ax must be four Axes, not {axes.size}")
    wrong = [type(a).__name__ for a in axes.tolist() if not is_a(a, Axes)]
    if wrong:
        raise TypeError(f"ax must be four Axes, not {', '.join(wrong)}")
    return axes


def _draw_panels(axes: NDArray[np.object_], cells: Cells, q: QuantizedArray | ArrayLike) -> None:
    for a in axes:
        _set_view(a, cells.shape)
    shared = _scale_of(np.stack([cells.original, cells.decoded]))
    _draw(axes[0], cells, cells.original, "viridis", shared, digits=4)
    if is_a(q, QuantizedArray):
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

    return Normalize(*code_ends(q.qparams))


def _draw(ax: Axes, cells: Cells, values: Array, colours: str, scale: Normalize, *, digits: int) -> None:
    height, width = (count * step for count, step in zip(values.shape, cells.step, strict=True))
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)  # the last cells may reach beyond the array
    image = ax.imshow(values, colours, scale, aspect=ax.get_aspect(), interpolation="nearest", extent=extent)
    _add_colour_bar(ax, image, vertical=is_stacked(cells.shape))
    if cells.step == (1, 1):
        _write_numbers(ax, image, values, digits)


def _set_view(ax: Axes, shape: tuple[int, int]) -> None:
    """Let the axes count elements, also where a cell shows several."""
    from matplotlib.ticker import MaxNLocator

    rows, columns = shape
    ax.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    ax.set_aspect("equal" if is_square(shape) else "auto")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))


def _add_colour_bar(ax: Axes, image: AxesImage, *, vertical: bool) -> None:
    """Put the bar next to or below the picture, which keeps its size."""
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
    """Write each number into its cell with `digits` digits, or as many as fit all cells."""
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
