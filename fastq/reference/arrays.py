"""Input arrays, in native byte order, wide enough and without NaN; and results, rounded for the last time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType
from fastq.reference import floats
from fastq.reference.packing import pack_codes
from fastq.requests import quantization
from fastq.system.arguments import native
from fastq.system.dtypes import Array

HALVES = ("float16", "bfloat16")


def as_input(x: ArrayLike, name: str = "x") -> Array:
    """Return `x` as an array of one of the input dtypes, in native byte order."""
    # contract 1.2 and 1.3
    x = quantization.as_input(x, name)
    return x.astype(native(x.dtype), copy=False)


@np.errstate(invalid="ignore")  # signalling NaN
def widen(x: Array) -> Array:
    """Return 16-bit floats as float32, which holds them all; other dtypes as they are."""
    return x.astype(np.float32) if x.dtype.name in HALVES else x


def nan_as_zero(x: Array, nan: str) -> Array:
    """Return `x` with 0 instead of NaN, which the policy "raise" refuses; with "omit" unchanged."""
    # contract 14.1
    if nan == "raise":
        check_no_nan(x, "x has {} NaN; pass nan='zero' to treat them as 0.0")
    return x if nan == "omit" else np.where(np.isnan(x), x.dtype.type(0), x)


def ready_to_encode(x: Array, nan: str, qtype: QType) -> Array:
    """Return `x` for the computation of codes, NaN replaced by 0.0 unless it has a code.

    A block of a format with its own scales keeps NaN in its scale, which makes its codes zeros.
    """
    return x if nan == "keep" and not qtype.block_size else nan_as_zero(x, nan)


def check_no_nan(x: Array, message: str) -> None:
    """Raise ValueError if `x` has NaN; `message` is formatted with their number."""
    if count := np.count_nonzero(np.isnan(x)):
        raise ValueError(message.format(count))


def check_place(out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise TypeError or ValueError unless a result of this shape and dtype can be written to `out`, or it is None."""
    # contract 14.5
    if out is not None:
        quantization.check_out(out, shape, dtype)


def deliver(result: Array, dtype: np.dtype[Any], out: Array | None) -> Array:
    """Return a result in `out`, or as a new array in its own memory order; an array even if it is 0-d."""
    # contract 14.5
    out = np.empty_like(result, dtype) if out is None else out
    if dtype.name in HALVES:  # by one rounding: bfloat16 of ml_dtypes takes float64 by way of float32
        result = floats.encode(result, FLOAT_FORMATS[dtype.name], saturate=False).view(native(dtype))
    with np.errstate(over="ignore", under="ignore"):
        out[...] = result
    return out


def pack_if_narrow(codes: Array, qtype: QType, out: Array | None) -> Array:
    """Return `codes` as the format stores them: packed along the last axis if they have fewer than 8 bits."""
    # contract 1.8
    packed = pack_codes(np.atleast_1d(codes), qtype, -1) if qtype.packed else codes
    return deliver(packed, packed.dtype, out)
