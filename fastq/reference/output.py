"""Write results: their shape and dtype, what `out` must be, and the last rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType
from fastq.reference import floats
from fastq.reference.arguments import FLOATS, HALVES, check_shape
from fastq.reference.packing import pack_codes, packed_shape
from fastq.system.arguments import as_dtype, equal, is_a, is_out, native

Array = NDArray[Any]


def check_is_out(out: object) -> None:
    """Raise TypeError unless `out` is None or an array that can be written to as it is."""
    if out is not None and not is_out(out):
        raise TypeError(f"out must be an ndarray, not {type(out).__name__}")


def check_out(out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise TypeError or ValueError unless a result of this shape and dtype can be written to `out`."""
    check_is_out(out)
    if out is None:
        return
    if out.dtype != dtype and native(out.dtype) != dtype:
        raise TypeError(f"out has dtype {out.dtype}, but {dtype} is needed")
    check_shape(out, "out", shape)
    if not out.flags.writeable:
        raise ValueError("out is read-only")


def output_dtype(dtype: DTypeLike | None, out: Array | None, default: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of dequantized values: `dtype`, else that of `out`, else `default`."""
    check_is_out(out)
    name, floats = "out" if dtype is None else "dtype", "float16, bfloat16, float32 or float64"
    if dtype is None:
        dtype = default if out is None else out.dtype
    is_name = is_a(dtype, str) and equal(dtype, "bfloat16")
    wanted = FLOAT_FORMATS["bfloat16"].dtype if is_name else as_dtype(dtype, name, floats)
    if wanted.name not in FLOATS:
        raise TypeError(f"{name} must be {floats}, not {wanted}")
    return native(wanted)


def delivered(values: Array, dtype: np.dtype[Any], out: Array | None) -> Array:
    """Return `values` in `out`, or as an array of their own in their own memory order; an array even where 0-d."""
    out = np.empty_like(values, dtype) if out is None else out
    if dtype.name in HALVES:
        values = floats.cast(values, native(dtype), FLOAT_FORMATS[dtype.name])
    with np.errstate(over="ignore", under="ignore"):
        out[...] = values
    return out


def stored(codes: Array, qtype: QType, out: Array | None) -> Array:
    """Return `codes` as the format keeps them: packed along the last axis if they have fewer than 8 bits."""
    packed = pack_codes(np.atleast_1d(codes), qtype, -1) if qtype.packed else codes
    return delivered(packed, packed.dtype, out)


def codes_shape(shape: tuple[int, ...], qtype: QType) -> tuple[int, ...]:
    """Return the shape of the codes of an array, packed where the format packs them."""
    return packed_shape(shape, qtype, -1) if qtype.packed else shape


def codes_dtype(qtype: QType) -> np.dtype[Any]:
    """Return the dtype of stored codes."""
    return np.dtype(np.uint8) if qtype.packed else qtype.storage
