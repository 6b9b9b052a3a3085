"""Draw the results of several schemes for one array, measured on a sample by the reference: no kernel is compiled."""

from __future__ import annotations

import contextlib
import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple
from numpy.typing import ArrayLike

from fastq import reference
from fastq.adapters.xarray.labelled import match_labels
from fastq.formats.qtypes import as_qtype
from fastq.ops import compare as errors
from fastq.ops.minmax import minmax
from fastq.requests.quantization import as_input
from fastq.results import Comparison, QuantizedArray
from fastq.system.arguments import shown
from fastq.system.arrays_of_callers import as_array
from fastq.system.attributes import cached_property
from fastq.system.dtypes import Array
from fastq.tools.plot.axes import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    SKY,
    VERMILLION,
    axis_of,
    check_axis,
    legend_below,
    set_labels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Arguments = Mapping[str, Any]  # arguments of `fastq.quantize`

SAMPLE = 1 << 16  # most elements of a sample
PIECE = 4096  # elements in a row of the sample of a one-dimensional array

INTEGERS = tuple(f"int{bits}" for bits in range(2, 9))

_ARRAY: Arguments = {}
_ROWS: Arguments = {"axis": 0}
_COLUMNS: Arguments = {"axis": -1}
_BLOCKS: Arguments = {"axis": -1, "block_size": 32}
# families of schemes: the arguments that their formats share, and the formats
FAMILIES: dict[str, tuple[Arguments, tuple[str, ...]]] = {
    "one scale": (_ARRAY, INTEGERS),
    "a scale for each row": (_ROWS, INTEGERS),
    "a scale for each column": (_COLUMNS, INTEGERS),
    "blocks of 32": (_BLOCKS, INTEGERS),
    "float8, a scale for each row": (_ROWS, ("float8_e4m3fn", "float8_e5m2")),
    "MX": (_ARRAY, ("mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "mxint8")),
    "NVFP4": (_ARRAY, ("nvfp4",)),
}
_NAME_WIDTH = 32  # characters in a line of the name of a scheme; longer lines leave too little width for bars
MEASURED = 1 << 26  # about the most elements that `compare` measures; in larger arrays it measures whole rows

_MARKS = tuple(zip((BLUE, VERMILLION, GREY, GREEN, ORANGE, PINK, SKY), "osXD^vP", strict=True))


class Measured(NamedTuple):
    """The result of a scheme for an array."""

    bits: float  # bits of codes and parameters per element
    sqnr_db: float  # signal to quantization noise ratio of the sample, in decibels


def sample_of(x: Array, scheme: Arguments) -> Array:
    """Return evenly spread parts of an array, which a scheme quantizes as it does within the whole array.

    Scales of a part must be those that the array would have, or errors would be of another size. So a part has all
    elements that share a scale: blocks along the last axis lie within rows, a scale for each index on an axis goes with
    that index, and blocks along another axis are kept whole by cutting the other axes.

    With one scale for all no part has all elements; rows are taken, and the caller brings the scale. Rows are those
    along the last axis, in a one-dimensional array pieces.
    """
    block_size = scheme.get("block_size") or as_qtype(scheme["dtype"]).block_size
    axes = scheme.get("axis")
    own_axes = [] if axes is None else sorted(normalize_axis_tuple(axes, x.ndim, "axis"))
    if not own_axes or (block_size and own_axes == [x.ndim - 1]):
        rows = _as_rows(x)
        indices = _spread_indices(len(rows), SAMPLE // max(rows.shape[1], 1))
        return np.ascontiguousarray(rows[indices, :SAMPLE])
    # blocks along an axis stay whole; without blocks each index on its axes has a scale
    axes_to_cut = [axis for axis in range(x.ndim) if axis not in own_axes] if block_size else own_axes
    axis_to_cut = max(axes_to_cut, key=lambda axis: x.shape[axis])  # the longest one leaves the most parts to choose
    elements_of_index = x.size // x.shape[axis_to_cut]
    indices = _spread_indices(x.shape[axis_to_cut], SAMPLE // max(elements_of_index, 1))
    return x.take(indices, axis=axis_to_cut)


def _as_rows(x: Array) -> Array:
    """Return an array as rows along its last axis; one of one dimension is cut into pieces if it is long."""
    if x.ndim > 1:
        return x.reshape(-1, x.shape[-1])
    flat = x.reshape(-1)
    if flat.size <= SAMPLE:
        return flat.reshape(1, -1)
    return flat[: flat.size // PIECE * PIECE].reshape(-1, PIECE)


def _spread_indices(count: int, number: int) -> Array:
    """Return a number of evenly spread indices below `count`, at least one."""
    return np.linspace(0, count - 1, min(max(number, 1), count)).astype(np.intp)


class Trial:
    """A nonempty array on which schemes are tried, each on a sample."""

    def __init__(self, x: Array) -> None:
        self.x = x

    @cached_property
    def _ends(self) -> list[float]:
        """The smallest and the largest element of the whole array, for schemes with one scale."""
        return [end.item() for end in minmax(self.x)]

    def measure(self, scheme: Arguments) -> Measured:
        """Return bits per element and SQNR of a sample; a scale for the whole array is from its range, or searched."""
        qtype = as_qtype(scheme["dtype"])
        sample = sample_of(self.x, scheme)
        parameter_bits = 0.0
        if scheme.get("axis") is None and not qtype.block_size:
            searched = scheme.get("range", "minmax") != "minmax"
            params = reference.choose_qparams(sample if searched else np.array(self._ends, sample.dtype), **scheme)
            q = reference.quantize(sample, qparams=params)
        else:
            q = reference.quantize(sample, **scheme)
            has_zero_points = not (qtype.element or qtype.block_size or q.symmetric)  # else none are stored
            parameter_bits = 8 * (q.scale.nbytes + (q.zero_point.nbytes if has_zero_points else 0)) / sample.size
        return Measured(qtype.bits + parameter_bits, reference.compare(sample, q).sqnr_db)


def _families(schemes: Any) -> dict[str, list[Arguments]]:
    """Return the arguments of `fastq.quantize` for the points of each family; None: those of `FAMILIES`."""
    if schemes is None:
        return {name: [{**shared, "dtype": dtype} for dtype in dtypes] for name, (shared, dtypes) in FAMILIES.items()}
    requirement = "a mapping of names to lists of arguments, dtype among them"
    if not isinstance(schemes, Mapping) or not schemes:
        raise TypeError(f"schemes must be {requirement}, not {shown(schemes)}")
    for name, members in schemes.items():
        if not isinstance(members, Sequence) or not members or not all(map(_has_dtype, members)):
            raise TypeError(f"schemes must be {requirement}, but that of {shown(name)} is {shown(members)}")
    return {name: list(members) for name, members in schemes.items()}


@np.errstate(all="ignore")  # of the caller
def sqnr(
    x: ArrayLike, schemes: Mapping[str, Sequence[Mapping[str, Any]]] | None = None, *, ax: Axes | None = None
) -> Axes:
    """Draw the signal to quantization noise ratio of one array against bits, for families of schemes.

    In arrays of more than 65,536 elements only evenly spread rows are quantized; a scale for the whole array is taken
    from the range of the array.

    Parameters
    ----------
    x : array_like
        Array of one or more axes, of dtype float16, bfloat16, float32, float64 or an integer dtype, finite and not
        empty.
    schemes : mapping of str to sequence of mapping, optional
        Arguments of `fastq.quantize` by the names in the legend; each is a point: ``{"rows": [{"dtype": "int4", "axis":
        0}, {"dtype": "int8", "axis": 0}]}``. By default integers of 2 to 8 bits with one scale, a scale for each index
        on the first or on the last axis, and blocks of 32; float8, MX formats and NVFP4.
    ax : Axes, optional
        Axes to draw in; by default those of a new figure.

    Returns
    -------
    Axes
        Axes with decibels over bits per element, including those of scales and zero points.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    >>> ax = fastq.plot.sqnr(x, {"rows": [{"dtype": f"int{bits}", "axis": 0} for bits in (4, 6, 8)]})
    >>> [round(float(bits), 3) for bits in ax.lines[0].get_xdata()]
    [4.625, 6.625, 8.625]
    """
    check_axis(ax)
    x = as_input(x)
    if not x.size:
        raise ValueError("x has no elements to quantize")
    trial = Trial(x)
    families = {name: sorted(map(trial.measure, members)) for name, members in _families(schemes).items()}
    a = axis_of(ax)
    for (name, points), (colour, mark) in zip(families.items(), cycle(_MARKS), strict=False):
        bits, ratios = zip(*points, strict=True)
        width = 1.5 if len(set(bits)) == len(bits) else 0.0  # no line joins formats with the same bits
        a.plot(bits, ratios, color=colour, marker=mark, linewidth=width, label=name)
    of_sample = f", {SAMPLE:,} elements of it measured" if x.size > SAMPLE else ""
    title = f"{' x '.join(map(str, x.shape))} {x.dtype}{of_sample}"
    set_labels(a, title, "bits per element, with scales and zero points", "SQNR, dB")
    a.grid(alpha=0.3)
    return legend_below(a, 3)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Put the name of a scheme before the message of an error."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"schemes has {name!r}: {error}") from error


def _has_dtype(arguments: object) -> bool:
    """Return whether these are arguments by name, with a dtype."""
    return isinstance(arguments, Mapping) and "dtype" in arguments


@np.errstate(all="ignore")  # of the caller
def compare(x: ArrayLike, schemes: Mapping[str, QuantizedArray | ArrayLike], *, ax: Axes | None = None) -> Axes:
    """Draw several approximations of one array side by side, the best first.

    Parameters
    ----------
    x : array_like
        As in `fastq.compare`.
    schemes : mapping of str to QuantizedArray or array_like
        Approximations of x by the names that label them.
    ax : Axes, optional
        Axes to draw in; by default those of a new figure.

    Returns
    -------
    Axes
        Axes with a bar for each approximation, as long as its signal to quantization noise ratio, with bits per element
        and the largest error next to it. In a matrix of more than 67,108,864 elements only every n-th row is measured,
        as the title says, unless blocks have several rows.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    TypeError, ValueError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.linspace(-1, 1, 64, dtype=np.float32)
    >>> ax = fastq.plot.compare(x, {name: fastq.quantize(x, name) for name in ("int4", "int8")})
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['int8', 'int4']
    """
    check_axis(ax)
    approximations: Any = schemes
    if not isinstance(approximations, Mapping) or not approximations:
        raise TypeError(f"schemes must be a mapping of names to approximations, not {shown(schemes)}")
    values = as_input(x)
    pairs: dict[str, tuple[Array, Any]] = {}
    for name, q in schemes.items():
        with _naming(name):
            original, approximation = match_labels(x, q)
        operand = approximation if isinstance(approximation, QuantizedArray) else as_array(approximation, "schemes")
        pairs[name] = (values if original is x else as_input(original)), operand
    measured_rows, every = _rows_to_measure(list(pairs.values()), values.size)
    rows: list[_ComparedScheme] = []
    for (name, (_, q)), (rows_of_x, rows_of_q) in zip(pairs.items(), measured_rows, strict=True):
        with _naming(name):
            measured = errors.compare(rows_of_x, rows_of_q)
        rows.append(_ComparedScheme(name=name, errors=measured, bits=8 * q.nbytes / max(q.size, 1)))
    rows.sort(key=lambda row: -row.errors.sqnr_db)
    ratios = [row.errors.sqnr_db for row in rows]
    longest = max((ratio for ratio in ratios if np.isfinite(ratio)), default=1.0)
    lengths = [ratio if np.isfinite(ratio) else longest for ratio in ratios]
    a = axis_of(ax)
    places = range(len(rows))
    bars = a.barh(places, lengths, color=BLUE, alpha=0.85, height=0.6)
    texts = [
        f"{row.errors.sqnr_db:.1f} dB, {row.bits:.3g} bits, errors up to {row.errors.max_abs_error:.3g}" for row in rows
    ]
    # a dollar is one of mathematics to matplotlib
    names = [textwrap.fill(str(row.name), _NAME_WIDTH).replace("$", r"\$") for row in rows]
    a.set_yticks(places, names)
    a.invert_yaxis()
    width = 1.02
    if a.figure.get_layout_engine() is None:  # nothing makes room beside the axes
        a.bar_label(bars, texts, padding=4, fontsize="small")
        width = 1.9
    else:
        right_axis = a.secondary_yaxis("right")
        right_axis.set_yticks(places, texts, fontsize="small")
        right_axis.tick_params(length=0)
    a.set_xlim(min(0.0, *lengths), max(longest, 1.0) * width)
    of_rows = f", one row in {every} measured" if every > 1 else ""
    set_labels(a, f"{' x '.join(map(str, values.shape)) or 'one number'} {values.dtype}{of_rows}", "SQNR, dB", "")
    return a


class _ComparedScheme(NamedTuple):
    """What a picture shows of an approximation."""

    name: str
    errors: Comparison
    bits: float  # per element


def _rows_to_measure(pairs: list[tuple[Array, Any]], size: int) -> tuple[list[tuple[Any, Any]], int]:
    """Return every n-th row of arrays and their approximations, and n: 1 unless arrays are large and can be cut."""
    step = math.ceil(size / MEASURED)
    if step > 1 and all(array.ndim > 1 and len(array) >= step and q.shape == array.shape for array, q in pairs):
        with contextlib.suppress(ValueError):  # blocks have several rows
            return [(array[::step], q[::step]) for array, q in pairs], step
    return list(pairs), 1
