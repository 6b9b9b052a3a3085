"""Whether a plain way to do the work of a cell, or a peer, does the same: its results compared with the reference's.

They may round at the last bit of a scale otherwise, or multiply by its reciprocal, and so take the next code at some
ties. Blocks of GGUF and codes of one bit have to be the same bytes. Of elements the first and the last piece are
compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fastq.formats.qtypes import QTYPES

from ..calls import Array, Results, repeated
from ..verify import MEASURES_AGREE, TIES_AT_MOST
from .calls import codes_of
from .grid import GRANULARITIES, WORKS, Cell

AGREE = 1e-6  # of parameters and values, but at ties
NEXT_CODES = {"requantize": 0.05}  # TensorFlow Lite rounds twice, and so to the next code up to 2**-6 from a tie
# which have no ties
NOT_ROUNDED = ("dequantize", "dequantize_linear", "gguf.dequantize", "minmax", "xarray.unpack_array")


def disagreement(cell: Cell, right: Results, log2: int, results: Sequence[Array], ties: float = TIES_AT_MOST) -> str:
    """Say how results at a size differ from the right ones of the piece, repeated: '' where they do not.

    A share `ties` of the elements may have the next code.
    """
    function, times = WORKS[cell.work].function, GRANULARITIES[cell.granularity].times(log2)
    ties = 0.0 if function in NOT_ROUNDED else max(ties, NEXT_CODES.get(function, 0.0))
    if function == "compare":
        return _of_measures(cell.elements(log2), right, times, results[0], ties)
    if function in ("choose_qparams", "minmax"):
        axis = GRANULARITIES[cell.granularity].growing_axis_of_parameters
        pairs = zip(results, right.items(), strict=True)
        return next(filter(None, (_of_parameters(got, *named, times, axis, ties) for got, named in pairs)), "")
    return _of_elements(cell, results[0], right.get("codes", right.get("result")), times, ties)


def _of_parameters(got: Array, name: str, right: Array, times: int, axis: int | None, ties: float) -> str:
    wanted = repeated(right, times, axis)
    if got.size != wanted.size:
        return f"{name}: {got.size}, not {wanted.size}"
    return "" if _agree(got.ravel(), wanted.ravel(), ties) else f"{name}: not the reference's"


@np.errstate(divide="ignore")
def _of_measures(n: int, right: Results, times: int, sums: Array, ties: float) -> str:
    squares, errors, relatives, power, most, most_relative, counted, clipped = sums
    decibels = 10 * (np.log10(power) - np.log10(squares))
    measures = [squares / n, decibels, most, errors / n, most_relative, relatives / counted]
    if not np.allclose(measures, right["measures"], MEASURES_AGREE, 0, equal_nan=True):
        return f"measures: {measures}, not {right['measures']}"
    wanted = (right["clipped"] or 0) * times
    return "" if abs(clipped - wanted) <= ties * n else f"clipped: {clipped}, not {wanted}"


def _of_elements(cell: Cell, got: Array, right: Array, times: int, ties: float) -> str:
    shape, axis = list(right.shape), GRANULARITIES[cell.granularity].growing_axis
    shape[axis] *= times
    if (got.dtype, list(got.shape)) != (right.dtype, shape):
        return f"{got.dtype} of shape {got.shape}, not {right.dtype} of {tuple(shape)}"
    wanted = _codes(cell, right)
    same = (_agree(_codes(cell, each), wanted, ties) for each in _ends(got, right.shape[axis], axis))
    return "" if all(same) else "not the reference's"


def _ends(array: Array, n: int, axis: int) -> Iterator[Array]:
    """Yield the first piece and the last."""
    for part in (slice(0, n), slice(array.shape[axis] - n, None)):
        yield array[(slice(None),) * axis + (part,)]


def _codes(cell: Cell, array: Array) -> Array:
    """Return integers of which neighbours are the next codes; other results as they are, octets as single bits."""
    work, qtype = WORKS[cell.work], QTYPES.get(cell.format)
    if "values" in work.writes or work.function == "unpack":
        return array
    if qtype is None or work.function in ("binarize", "pack"):
        return np.unpackbits(np.ascontiguousarray(array).view(np.uint8)).astype(bool)
    return codes_of(cell, array)


def _agree(got: Array, right: Array, ties: float) -> bool:
    """Return whether all but a few are the same, and integers are the next ones there; bits are all the same."""
    if right.dtype == np.bool_:
        return bool((got == right).all())
    wanted = right.astype(np.float64)
    far = np.abs(got.astype(np.float64) - wanted)
    near = (far <= AGREE * np.maximum(np.abs(wanted), AGREE)) | (np.isnan(wanted) & np.isnan(got))
    few = np.mean(~near) <= ties
    return bool(few and (right.dtype.kind not in "iu" or far.max() <= 1))
