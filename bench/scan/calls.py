"""The calls of a cell, of fastq and of its reference alike, and how their results are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

import fastq
from fastq import QuantizedArray, reference
from fastq.formats.qtypes import QTYPES
from fastq.results import BitInformation, Comparison, QParams

from ..data import KEEPBITS, SCALE, ZERO_POINT
from ..verify import MEASURES, MEASURES_AGREE
from .arrays import Array, Operands, dtype_of, granularity, non_default_arguments, operands, out_like, piece, repeated
from .grid import FORMATS, GRANULARITIES, WORKS, Cell

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Results = dict[str, Any]
PARAMETERS = ("scale", "zero_point", "lo", "hi")  # results that have the shape of parameters


def _chosen(cell: Cell, o: Operands) -> Arguments:
    symmetric = {"symmetric": True} if WORKS[cell.work].parameters == "symmetric" else {}
    return (o.first, cell.format), granularity(cell) | symmetric | non_default_arguments(cell, "convention", "nan")


def _quantize(cell: Cell, o: Operands) -> Arguments:
    return ((o.first,), {"qparams": o.qparams} | non_default_arguments(cell, "nan")) if o.qparams else _chosen(cell, o)


def _raw(o: Operands) -> tuple[Any, ...]:
    assert o.qparams is not None
    return o.first, o.qparams.scale, None if o.qparams.dtype.element else o.qparams.zero_point


def _quantize_linear(cell: Cell, o: Operands) -> Arguments:
    if o.qparams is None:
        return (o.first, 1.0), {"dtype": cell.format}
    return _raw(o), {"dtype": cell.format} | granularity(cell) | non_default_arguments(cell, "convention", "nan")


def _dequantize_linear(cell: Cell, o: Operands) -> Arguments:
    codes, scale, zero_point = _raw(o)
    zero = zero_point.astype(codes.dtype) if zero_point is not None and zero_point.dtype.kind in "iu" else zero_point
    return (codes, scale, zero), {"dtype": dtype_of(cell.dtype)} | granularity(cell) | non_default_arguments(
        cell, "convention"
    )


def _compare(cell: Cell, o: Operands) -> Arguments:
    codes = o.approximation
    return (o.first, QuantizedArray(codes, o.qparams, o.shape) if o.qparams else codes), {}


def _requantize(cell: Cell, o: Operands) -> Arguments:
    assert o.qparams is not None
    return (o.first, 1 / o.qparams.scale, ZERO_POINT, cell.format), {"axis": GRANULARITIES[cell.granularity].axis}


OFFSET = 250.0  # of packed science data


def _unpack_array(cell: Cell, o: Operands) -> Arguments:
    kind = dtype_of(cell.dtype)
    return (o.first, kind.type(SCALE), kind.type(OFFSET)), {"fill_value": QTYPES[cell.format].qmin, "dtype": kind}


def unpacked(codes: Array, scale: Any, offset: Any, *, fill_value: int, dtype: np.dtype[Any]) -> Array:
    """Return what packed codes stand for, in plain NumPy."""
    return np.where(codes == fill_value, dtype.type(np.nan), codes.astype(dtype) * scale + offset)


def _with_format(cell: Cell, o: Operands) -> Arguments:
    return (o.first, cell.format), {}


# function -> its arguments
ARGUMENTS: dict[str, Callable[[Cell, Operands], Arguments]] = {
    "quantize": _quantize,
    "quantize_linear": _quantize_linear,
    "dequantize_linear": _dequantize_linear,
    "dequantize": lambda cell, o: ((QuantizedArray(o.first, o.qparams, o.shape),), {"dtype": dtype_of(cell.dtype)}),
    "fake_quantize": _quantize,
    "choose_qparams": _chosen,
    "minmax": lambda cell, o: ((o.first,), granularity(cell) | non_default_arguments(cell, "nan")),
    "compare": _compare,
    "binarize": lambda cell, o: ((o.first,), {"dtype": cell.format} | non_default_arguments(cell, "nan")),
    "requantize": _requantize,
    "xarray.unpack_array": _unpack_array,
    "bit_information": lambda cell, o: ((o.first,), {}),
    "bitround": lambda cell, o: ((o.first,), {"keepbits": KEEPBITS}),
    "pack": _with_format,
    "unpack": lambda cell, o: ((o.first, cell.format), {"shape": o.shape}),
    "gguf.quantize": _with_format,
    "gguf.dequantize": _with_format,
}


# what the reference has no function for
_REFERENCES = {"xarray.unpack_array": unpacked}


def call_of(api: Any, cell: Cell, o: Operands) -> Callable[[], Any]:
    """Return the call with all its arguments; `api` is fastq or its reference."""
    name = WORKS[cell.work].function
    positional, named = ARGUMENTS[name](cell, o)
    named |= dict(WORKS[cell.work].options) | ({} if o.out is None else {"out": o.out})
    if api is reference and name in _REFERENCES:
        return partial(_REFERENCES[name], *positional, **named)
    if api is fastq and name == "dequantize":
        return partial(positional[0].dequantize, **named)
    return partial(attrgetter(name)(api), *positional, **named)


def results_of(result: Any) -> Results:
    """Return what a call returned, by name."""
    if isinstance(result, QuantizedArray):
        return {"codes": result.codes} | results_of(result.qparams)
    if isinstance(result, QParams):
        scales = {} if result.tensor_scale is None else {"tensor_scale": result.tensor_scale}
        return {"scale": result.scale, "zero_point": result.zero_point} | scales
    if isinstance(result, Comparison):
        return {"measures": np.array([getattr(result, name) for name in MEASURES]), "clipped": result.clipped}
    if isinstance(result, BitInformation):
        return {"counts": result.counts}
    return {"lo": result[0], "hi": result[1]} if isinstance(result, tuple) else {"result": result}


def expected(cell: Cell, log2: int) -> Results:
    """Return the right results of the piece."""
    return results_of(call_of(reference, cell, piece(cell, log2))())


def with_results(cell: Cell, log2: int) -> tuple[Operands, Results]:
    """Return the operands of a size with memory for the result, and the right results of the piece."""
    right, o = expected(cell, log2), operands(cell, log2)
    array = next((value for name, value in right.items() if name in ("codes", "result")), None)
    if array is not None:
        o = replace(o, out=out_like(cell, o.first, array, GRANULARITIES[cell.granularity].times(log2)))
    return o, right


def ready(cell: Cell, log2: int) -> tuple[Operands, Callable[[Any], str]]:
    """Return the operands of a size, and what says how a result differs from the right one."""
    o, right = with_results(cell, log2)
    return o, partial(differences, cell, right, GRANULARITIES[cell.granularity].times(log2))


def differences(cell: Cell, right: Results, times: int, result: Any) -> str:
    """Say how a result differs from the right one of the piece, repeated: '' where it does not."""
    got = results_of(result)
    if got.keys() != right.keys():
        return f"results {', '.join(got)}, not {', '.join(right)}"
    return "; ".join(filter(None, (_difference(cell, name, got[name], right[name], times) for name in right)))


def _difference(cell: Cell, name: str, got: Any, right: Any, times: int) -> str:
    if name == "clipped":
        wanted = None if right is None else right * times
        return "" if got == wanted else f"clipped: {got}, not {wanted}"
    if name == "measures":  # sums, which are taken in another order
        return "" if np.allclose(got, right, MEASURES_AGREE, 0, equal_nan=True) else f"measures: {got}, not {right}"
    if name == "counts":
        return "" if (got == right * times).all() else f"{name}: not the reference's"
    row = GRANULARITIES[cell.granularity]
    if WORKS[cell.work].at_random and times > 1 and name in ("codes", "result"):
        near = _are_neighbours(cell, got, repeated(right, times, row.growing_axis))
        return "" if near else f"{name}: not next to the reference's"
    axis = (
        row.growing_axis_of_parameters if name in PARAMETERS else None if name == "tensor_scale" else row.growing_axis
    )
    return "" if _repeats(np.asarray(got), np.asarray(right), times, axis) else f"{name}: not the reference's"


def _are_neighbours(cell: Cell, got: Array, right: Array) -> bool:
    """Return whether the codes of two arrays are at most one apart: both are next to the values."""
    if (got.dtype, got.shape) != (right.dtype, right.shape):
        return False
    return bool(np.abs(codes_of(cell, got).astype(np.int32) - codes_of(cell, right)).max() <= 1)


def codes_of(cell: Cell, array: Array) -> Array:
    """Return integers of which neighbours are the next codes."""
    qtype = FORMATS[cell.format]
    if qtype.packed:
        shape = (*array.shape[:-1], array.shape[-1] * 8 // qtype.bits)
        array = reference.unpack(np.ascontiguousarray(array), qtype, shape=shape)
    return array.view(f"u{array.itemsize}") if qtype.element else array


def _repeats(got: Array, right: Array, times: int, axis: int | None) -> bool:
    """Return whether an array is another one repeated along an axis, bit for bit."""
    wanted = repeated(right, times, axis if right.shape else None)
    if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
        return False
    bits = np.dtype(f"u{got.dtype.itemsize}")
    return bool((got.view(bits) == wanted.view(bits)).all())
