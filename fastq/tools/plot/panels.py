"""Draw an array, its codes, the decoded values and the error, side by side, in cells found band by band of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.adapters.xarray.labelled import match_labels
from fastq.formats.conventions.table import as_convention
from fastq.ops.compare import compare
from fastq.requests.quantization import as_input
from fastq.results import Comparison, QuantizedArray
from fastq.results.elements import code_ends, codes_at
from fastq.system.arrays_of_callers import as_array
from fastq.system.dtypes import Array
from fastq.tools.plot.axes import require_matplotlib
from fastq.tools.plot.outliers import outlier_text, outliers_by_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.image import AxesImage

Pair = tuple[int, int]  # of rows and columns
Rows = QuantizedArray | Array  # a matrix with rows to slice

CELLS = 256  # most cells per side: fewer than the pixels of a panel of the default figure, so that each is visible
STACKED = 4  # from this ratio of width to height on, panels are below each other
ABREAST = 2  # from this ratio of height to width on, panels are in one row
# inches: the longer side of a picture, a line of a title, and ticks and a bar
PICTURE = 3.4
LINE = 0.2
BELOW = 1.2
# elements decoded together, and searched together; they bound the temporaries. The latter stay in cache
BAND = 1 << 20
AT_ONCE = 1 << 18
SPREAD = 50  # from this ratio of largest to median magnitude on, a linear colour scale would hide the median
WRITTEN = 144  # most numbers written into cells
# points
SMALLEST_FONT = 6.0
LARGEST_FONT = 10.0
LUMINANCE = np.array([0.299, 0.587, 0.114])  # of red, green and blue, ITU-R BT.601


@np.errstate(all="ignore")  # of the caller
def errors(x: ArrayLike, q: QuantizedArray | ArrayLike, *, ax: ArrayLike | None = None) -> NDArray[np.object_]:
    """Draw an array, its codes, what they decode to, and the error, in four panels.

    Arrays of more than 256 rows or columns (of more than 64 rows, if wide and low) are drawn in cells of several
    elements. A cell shows the element with the largest magnitude, its code and its decoded value, and in the last panel
    the largest error, so that no outlier is lost. In small arrays numbers are written into the cells. Colours follow
    the inverse hyperbolic sine if the largest magnitude is more than 50 times the median; the bar says so. The first
    title names outlier channels, whose largest magnitude is at least 6 times the median of those of their axis.

    Parameters
    ----------
    x : array_like
        Array of dtype float32, float64 or an integer dtype, not empty. One dimension is drawn as a row; more than two
        are folded into rows along the last one.
    q : QuantizedArray or array_like
        The approximation: codes of x, or values of dtype float32 or float64 in the shape of x, for which the second
        panel has no codes.
    ax : array_like of four Axes, optional
        Axes to draw in; use a figure with ``layout="constrained"`` to make room for titles and colour bars. By default
        those of a new figure that fits the shape of x: two by two, below each other, or in one row.

    Returns
    -------
    ndarray of Axes
        Axes of shape (4,): original, codes, decoded, error. The error is ``original - decoded``, as in `fastq.compare`.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError, ValueError
        If x and q are not arguments of `fastq.compare`, or `ax` is not four Axes.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    >>> axes = fastq.plot.errors(x, fastq.quantize(x, "int4"))
    >>> [a.get_title().splitlines()[0] for a in axes]
    ['original', 'codes', 'decoded', 'error']
    """
    require_matplotlib()
    x, q = match_labels(x, q)
    x = as_input(x)
    if isinstance(q, QuantizedArray):
        q = QuantizedArray(as_array(q.codes, "q.codes"), q.qparams, q.shape)  # without names of dimensions
    from matplotlib.axes import Axes

    axes = None if ax is None else as_array(ax, "ax").ravel()
    if axes is not None and axes.size != 4:
        raise ValueError(f"ax must be four Axes, not {axes.size}")
    wrong = [] if axes is None else [type(a).__name__ for a in axes.tolist() if not isinstance(a, Axes)]
    if wrong:
        raise TypeError(f"ax must be four Axes, not {', '.join(wrong)}")
    measured = compare(x, q)
    cells = _cells_of(x, q)
    titles = _titles(x, q, measured, cells.step)
    if axes is None:
        from matplotlib import pyplot
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        engine = ConstrainedLayoutEngine(rect=(0.0, 0.02, 1.0, 0.98))
        rows, columns, size = _panel_grid(cells.shape, max(title.count("\n") + 1 for title in titles))
        axes = np.asarray(pyplot.subplots(rows, columns, figsize=size, layout=engine)[1], object).ravel()

    _draw_panels(axes, cells, q)
    for a, title in zip(axes, titles, strict=True):
        a.set_title(title, fontsize="medium")
    return axes


# Texts


def _titles(x: Array, q: QuantizedArray | ArrayLike, measured: Comparison, step: Pair) -> tuple[str, ...]:
    """Return the titles of the four panels."""
    of_cells = "" if step == (1, 1) else "\ncells: largest of {} x {}".format(*step)
    shape = " x ".join(map(str, x.shape)) or "one number"
    matrix = "" if x.ndim in (0, 2) else " as {} x {}".format(*_as_matrix(x).shape)
    texts = [outlier_text(axis, channels) for axis, channels in outliers_by_axis(x).items()] if x.ndim > 1 else []
    outliers = f"\noutliers: {'; '.join(texts)}" if texts else ""
    return (
        f"original\n{shape} {x.dtype}{matrix}{of_cells}{outliers}",
        f"codes\n{_scheme_text(q)}",
        f"decoded\nSQNR {measured.sqnr_db:.2f} dB",
        f"error\nat most {measured.max_abs_error:.3g}{of_cells}",
    )


def _scheme_text(q: QuantizedArray | ArrayLike) -> str:
    """Return the scheme of codes in words: their single scale and zero point, or what shares these."""
    if not isinstance(q, QuantizedArray):
        return "none: q is an array of values"
    if q.scale.size == 1:
        zero = "offset" if as_convention(q.convention).zero_point == "offset" else "zero point"
        return f"{q.dtype}, scale {q.scale.item():.4g}, {zero} {q.zero_point.item():.6g}"
    return f"{q.dtype}, axis={q.axis}" + (f", block_size={q.block_size}" if q.block_size else "")


# How it is drawn


def _draw_panels(axes: NDArray[np.object_], cells: Cells, q: QuantizedArray | ArrayLike) -> None:
    """Draw the cells into the four panels; original and decoded values have one colour scale."""
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator

    rows, columns = cells.shape
    for a in axes:  # ticks count elements, also if a cell shows several
        a.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
        a.set_aspect("equal" if _is_square(cells.shape) else "auto")
        for axis in (a.xaxis, a.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    shared = _scale_of(np.stack([cells.original, cells.decoded]))
    _draw_image(axes[0], cells, cells.original, "viridis", shared, digits=4)
    if isinstance(q, QuantizedArray):
        first, last = code_ends(q.qparams)
        codes = Normalize(first, last)  # all codes of the scheme, so that unused ones are visible too
        _draw_image(axes[1], cells, cells.codes, "cividis", codes, digits=5)
    else:
        axes[1].set_axis_off()
    _draw_image(axes[2], cells, cells.decoded, "viridis", shared, digits=4)
    _draw_image(axes[3], cells, cells.error, "RdBu_r", _scale_of(cells.error, centred=True), digits=2)


def _scale_of(values: Array, *, centred: bool = False) -> Normalize:
    """Return a colour scale: linear, or, if few values are far larger, one that also separates the others."""
    from matplotlib.colors import AsinhNorm, Normalize

    finite = values[np.isfinite(values)]
    magnitude = np.abs(finite[finite != 0])
    if not magnitude.size:
        return Normalize(-1.0, 1.0)
    typical = float(np.median(magnitude))
    top = float(magnitude.max())
    lo, hi = (-top, top) if centred else (float(finite.min()), float(finite.max()))
    if not math.isfinite(hi - lo):
        raise ValueError(
            f"x and its approximation are from {lo:.3g} to {hi:.3g}, a range that no colour scale holds: draw x / 4 "
            "and q.dequantize() / 4"
        )
    return AsinhNorm(3 * typical, lo, hi) if top > SPREAD * typical else Normalize(lo, hi)


def _draw_image(ax: Axes, cells: Cells, values: Array, colours: str, scale: Normalize, *, digits: int) -> None:
    """Draw the values of cells with a colour bar, and write them if each cell is one element."""
    height, width = (count * step for count, step in zip(values.shape, cells.step, strict=True))
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)  # the last cells may reach beyond the array
    image = ax.imshow(values, colours, scale, aspect=ax.get_aspect(), interpolation="nearest", extent=extent)
    _add_colour_bar(ax, image, vertical=_is_stacked(cells.shape))
    if cells.step == (1, 1):
        _write_numbers(ax, image, values, digits)


def _add_colour_bar(ax: Axes, image: AxesImage, *, vertical: bool) -> None:
    """Put the bar next to the picture, or below its ticks; its distance and width are in points."""
    from matplotlib.colors import AsinhNorm
    from matplotlib.ticker import MaxNLocator
    from matplotlib.transforms import Affine2D, ScaledTranslation, blended_transform_factory

    points = Affine2D().scale(1 / 72) + ax.figure.dpi_scale_trans
    place = cast("Affine2D", ax.transAxes)
    if vertical:
        right_of_picture = blended_transform_factory(points + ScaledTranslation(1, 0, place), place)
        place_of_bar = ax.inset_axes((6, 0, 8, 1), transform=right_of_picture)
    else:
        below_picture = blended_transform_factory(place, points + ScaledTranslation(0, 0, place))
        place_of_bar = ax.inset_axes((0, -34, 1, 8), transform=below_picture)
    bar = ax.figure.colorbar(image, cax=place_of_bar, orientation="vertical" if vertical else "horizontal")
    bar.ax.tick_params(labelsize="small")
    if isinstance(image.norm, AsinhNorm):
        ticks = [float(tick) for tick in image.norm.inverse(np.linspace(0.0, 1.0, 5))]
        bar.set_ticks(ticks, labels=[f"{float(f'{tick:.2g}'):g}" for tick in ticks])
        bar.minorticks_off()
        bar.set_label("asinh scale" if vertical else "asinh scale, not linear", size="small")
    else:
        bar.locator = MaxNLocator(4)
        bar.update_ticks()


def _write_numbers(ax: Axes, image: AxesImage, values: Array, digits: int) -> None:
    """Write each number into its cell with `digits` digits, or as many as fit all cells."""
    if values.size > WRITTEN:
        return
    ax.apply_aspect()  # else the box is that of the room, wider than a tall picture
    box = ax.get_window_extent()
    width, height = (72 / ax.figure.dpi * n for n in (box.width / values.shape[1], box.height / values.shape[0]))
    for precision in range(digits, 1, -1):
        texts = [f"{value:.{precision}g}" for value in values.ravel()]
        # a character is about 0.6 of the size wide
        size = min(LARGEST_FONT, 0.95 * width / (0.6 * max(map(len, texts))), 0.6 * height)
        if size >= SMALLEST_FONT:
            break
    else:  # not even two digits fit
        return
    for place, text, colour in zip(np.ndindex(values.shape), texts, image.to_rgba(values).reshape(-1, 4), strict=True):
        ink = "black" if colour[:3] @ LUMINANCE > 0.5 else "white"
        ax.text(place[1], place[0], text, ha="center", va="center", size=size, color=ink)


# Cells


class Cells(NamedTuple):
    """Cells of `step` rows and columns of a matrix of a `shape`: arrays of one shape, with at most CELLS per side."""

    shape: Pair
    step: Pair
    original: Array
    codes: Array  # 0 without codes
    decoded: Array
    error: Array


def _as_matrix(a: Array) -> Array:
    """Return an array as rows along its last axis."""
    return a.reshape(-1, a.shape[-1] if a.ndim else 1)


def _cells_of(x: Array, q: QuantizedArray | ArrayLike) -> Cells:
    """Return the contents of the cells for an array and its approximation.

    An approximation is decoded a band of rows at a time, and a band is searched tile by tile, so that temporaries stay
    small. Codes are looked up at the end, at the places of the elements that are shown.
    """
    matrix = _as_matrix(x)
    shape = matrix.shape[0], matrix.shape[1]
    step = _step_of_cells(shape)
    cells = math.ceil(shape[0] / step[0]), math.ceil(shape[1] / step[1])
    original = np.zeros(cells)
    codes = np.zeros(cells)
    decoded = np.zeros(cells)
    error = np.zeros(cells)
    places = np.empty(cells, np.intp)  # of the elements that are shown, in C order
    approximation = _rows_of(q, shape, step[0])
    height = step[0] * max(BAND // (step[0] * shape[1]), 1)
    for start in range(0, shape[0], height):
        row = start // step[0]
        rows = slice(start, min(start + height, shape[0]))
        band = approximation[rows]
        values = band.dequantize() if isinstance(band, QuantizedArray) else band
        for cell, tile in _tiles(row, values.shape, step):
            original_tile = _as_float(matrix[rows][tile])
            decoded_tile = _as_float(values[tile])
            largest = _largest(original_tile, step)
            original[cell] = original_tile[largest]
            decoded[cell] = decoded_tile[largest]
            furthest = _largest(original_tile - decoded_tile, step)
            error[cell] = original_tile[furthest].astype(np.float64) - decoded_tile[furthest].astype(np.float64)
            places[cell] = (largest[0] + (rows.start + tile[0].start)) * shape[1] + largest[1] + tile[1].start
    if isinstance(q, QuantizedArray):
        indices = np.unravel_index(places, x.shape) if x.ndim else ()
        codes[...] = codes_at(as_array(q.codes, "q.codes"), q.dtype, indices)
    return Cells(shape=shape, step=step, original=original, codes=codes, decoded=decoded, error=error)


def _step_of_cells(shape: Pair) -> Pair:
    """Return the height and the width of a cell in elements, so that it covers at least a pixel."""
    rows, columns = shape
    if _is_square(shape):
        side = math.ceil(max(shape) / CELLS)
        return side, side
    cells_below_each_other = CELLS // STACKED if _is_stacked(shape) else CELLS
    return math.ceil(rows / cells_below_each_other), math.ceil(columns / CELLS)


def _rows_of(q: QuantizedArray | ArrayLike, shape: Pair, step: int) -> Rows:
    """Return an approximation as a matrix of a shape: codes if they can be cut after each `step` rows, else values."""
    if not isinstance(q, QuantizedArray):
        return _as_matrix(as_array(q, "q"))
    try:
        codes = q.reshape(shape)
        codes[step:]
    except ValueError:  # parameters belong to several axes that are merged here, or to blocks of rows
        return _as_matrix(q.dequantize())
    return codes


def _is_stacked(shape: Pair) -> bool:
    """Return whether panels are drawn below each other."""
    return shape[1] >= STACKED * shape[0]


def _panel_grid(shape: Pair, lines: int) -> tuple[int, int, tuple[float, float]]:
    """Return rows and columns of panels, and width and height of a figure in inches, for titles of some lines.

    `shape` is that of the matrix: the pictures fill the figure, without empty room around them.
    """
    height, width = shape
    if _is_stacked(shape):
        return 4, 1, (10.0, 6.0 + 4 * LINE * lines)
    if _is_square(shape) and height >= ABREAST * width:
        return 1, 4, (9.0, PICTURE + BELOW + LINE * lines)
    picture = PICTURE * min(height / width, 1.0) if _is_square(shape) else PICTURE
    return 2, 2, (8.0, 2 * (picture + BELOW + LINE * lines))


def _is_square(shape: Pair) -> bool:
    """Return whether elements are square, instead of filling the panel."""
    return shape[0] / STACKED < shape[1] < STACKED * shape[0]


def _tiles(row: int, shape: tuple[int, ...], step: Pair) -> Iterator[tuple[tuple[int, slice], tuple[slice, slice]]]:
    """Yield the tiles of a band, each a piece of a row of cells: its position among the cells, and in the band.

    `row` is the first row of cells in the band. A cell has `step` rows and columns of elements; a tile is as high as a
    cell, and as wide as about `AT_ONCE` elements allow.
    """
    width = max(AT_ONCE // (step[0] * step[1]), 1)
    for k, top in enumerate(range(0, shape[0], step[0])):
        for column in range(0, math.ceil(shape[1] / step[1]), width):
            elements = (slice(top, top + step[0]), slice(column * step[1], (column + width) * step[1]))
            yield (row + k, slice(column, column + width)), elements


def _as_float(tile: Array) -> Array:
    """Return a tile as floats that have all its numbers."""
    return tile if tile.dtype in (np.float32, np.float64) else tile.astype(np.float64)


def _largest(tile: Array, step: Pair) -> tuple[Array, Array]:
    """Return row and column of the element of the largest magnitude in each cell of a row of cells."""
    magnitude = np.abs(tile)
    of_columns = magnitude.max(axis=0)  # 5 times as fast as `argmax` of all if columns are few
    if missing := -of_columns.size % step[1]:  # of the last cell
        of_columns = np.append(of_columns, np.full(missing, -1.0, of_columns.dtype))
    column = of_columns.reshape(-1, step[1]).argmax(axis=1) + np.arange(0, of_columns.size, step[1])
    return magnitude[:, column].argmax(axis=0), column
