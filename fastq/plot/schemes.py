"""Draw what several schemes make of one array."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from fastq.operations import measure
from fastq.plot.axes import BLUE, GREEN, ORANGE, PINK, SKY, VERMILLION, axis_of, check_axis, legend_below
from fastq.plot.candidates import FAMILIES, SAMPLE, Trial
from fastq.requests.values import as_input
from fastq.results import Comparison, QuantizedArray
from fastq.system.arguments import as_array, is_a, shown
from fastq.system.dtypes import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MEASURED = 1 << 26  # elements that `compare` looks at, about; of more, whole rows

_MARKS = tuple(zip((BLUE, VERMILLION, GREEN, ORANGE, PINK, SKY), "osD^vP", strict=True))


def sqnr(
    x: ArrayLike, schemes: Mapping[str, Sequence[Mapping[str, Any]]] | None = None, *, ax: Axes | None = None
) -> Axes:
    """Draw the signal to quantization noise ratio of one array against bits, for families of schemes.

    Of arrays of more than 65,536 elements some rows are quantized, evenly spread; a scale for the whole array is that
    of its range.

    Parameters
    ----------
    x : array_like
        Of one axis or more, of float16, bfloat16, float32, float64 or an integer dtype, finite and not empty.
    schemes : mapping of str to sequence of mapping, optional
        By the names of the legend, arguments of `fastq.quantize`, each a point: ``{"rows": [{"dtype": "int4", "axis":
        0}, {"dtype": "int8", "axis": 0}]}``. By default integers of 2 to 8 bits with one scale, a scale for each row
        and blocks of 32; float8, MX formats and NVFP4.
    ax : Axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    Axes
        Decibels over bits an element, those of scales and zero points included.

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
    tried = Trial(x)
    families = {name: sorted(map(tried.measured, members)) for name, members in _as_families(schemes).items()}
    a = axis_of(ax)
    for (name, points), (colour, mark) in zip(families.items(), cycle(_MARKS), strict=False):
        bits, ratios = zip(*points, strict=True)
        width = 1.5 if len(set(bits)) == len(bits) else 0.0  # formats of the same bits have no line that joins them
        a.plot(bits, ratios, color=colour, marker=mark, linewidth=width, label=name)
    a.set_xlabel("bits an element, with scales and zero points")
    a.set_ylabel("SQNR, dB")
    of_sample = f", {SAMPLE:,} elements of it measured" if x.size > SAMPLE else ""
    a.set_title(f"{' x '.join(map(str, x.shape))} {x.dtype}{of_sample}", fontsize="medium")
    a.grid(alpha=0.3)
    legend_below(a, 3)
    return a


def compare(x: ArrayLike, schemes: Mapping[str, QuantizedArray | ArrayLike], *, ax: Axes | None = None) -> Axes:
    """Draw several approximations of one array side by side, the best first.

    Parameters
    ----------
    x : array_like
        As in `fastq.compare`.
    schemes : mapping of str to QuantizedArray or array_like
        Approximations of x by the names that are written next to them.
    ax : Axes, optional
        Where to draw; by default a new figure.

    Returns
    -------
    Axes
        A bar for each approximation, as long as its signal to quantization noise ratio, with bits an element and the
        largest error next to it. Of a matrix of more than 67,108,864 elements one row in so many is measured, as the
        title says, unless blocks have several rows.

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
    x = as_input(x)
    if not is_a(schemes, Mapping) or not schemes:
        raise TypeError(f"schemes must be a mapping of names to approximations, not {shown(schemes)}")
    given = {name: q if is_a(q, QuantizedArray) else as_array(q, "schemes") for name, q in schemes.items()}
    part, every = _some_rows(x, given)
    rows = [(name, _measured(part[0], q, name), _bits(given[name])) for name, q in zip(given, part[1:], strict=True)]
    rows.sort(key=lambda row: -row[1].sqnr_db)
    lengths = [row.sqnr_db for _, row, _ in rows]
    most = max((n for n in lengths if np.isfinite(n)), default=1.0)
    drawn = [n if np.isfinite(n) else most for n in lengths]
    a = axis_of(ax)
    bars = a.barh(range(len(rows)), drawn, color=BLUE, alpha=0.85, height=0.6)
    texts = [f"{row.sqnr_db:.1f} dB, {bits:.3g} bits, errors up to {row.max_abs_error:.3g}" for _, row, bits in rows]
    a.bar_label(bars, texts, padding=4, fontsize="small")
    a.set_yticks(range(len(rows)), [str(name).replace("$", r"\$") for name, *_ in rows])  # else it is mathematics
    a.invert_yaxis()
    a.set_xlim(min(0.0, *drawn), max(most, 1.0) * 1.9)
    a.set_xlabel("SQNR, dB")
    of_rows = f", one row in {every} measured" if every > 1 else ""
    a.set_title(f"{' x '.join(map(str, x.shape)) or 'one number'} {x.dtype}{of_rows}", fontsize="medium")
    return a


def _some_rows(x: Array, given: Mapping[str, QuantizedArray | Array]) -> tuple[list[Any], int]:
    """Return an array and its approximations, of large ones every few rows, and how many rows each stands for."""
    whole, every = [x, *given.values()], math.ceil(x.size / MEASURED)
    if every == 1 or x.ndim < 2 or len(x) < every or any(q.shape != x.shape for q in given.values()):
        return whole, 1
    try:
        return [each[::every] for each in whole], every
    except ValueError:  # blocks of several rows
        return whole, 1


def _measured(x: Array, q: QuantizedArray | Array, name: str) -> Comparison:
    try:
        return measure.compare(x, q)
    except (TypeError, ValueError) as error:
        raise type(error)(f"schemes has {name!r}: {error}") from error


def _bits(q: QuantizedArray | Array) -> float:
    """Return the bits that an element takes."""
    return 8 * q.nbytes / max(q.size, 1)


def _as_families(schemes: Any) -> dict[str, list[Mapping[str, Any]]]:
    if schemes is None:
        return {name: [{**shared, "dtype": dtype} for dtype in dtypes] for name, (shared, dtypes) in FAMILIES.items()}
    wanted = "a mapping of names to lists of arguments, dtype among them"
    families: dict[str, list[Mapping[str, Any]]] = {}
    for name, members in schemes.items() if is_a(schemes, Mapping) else ():
        families[name] = list(members) if is_a(members, Sequence) else []
        if not families[name] or not all(is_a(each, Mapping) and "dtype" in each for each in families[name]):
            raise TypeError(f"schemes must be {wanted}, but that of {shown(name)} is {shown(members)}")
    if not families:
        raise TypeError(f"schemes must be {wanted}, not {shown(schemes)}")
    return families
