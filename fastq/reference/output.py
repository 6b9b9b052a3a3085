"""Write results: the last rounding, and codes that share bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType
from fastq.reference import floats
from fastq.reference.arguments import HALVES
from fastq.reference.packing import pack_codes
from fastq.requests.values import check_out
from fastq.system.arguments import native
from fastq.system.dtypes import Array


def check_place(out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Raise TypeError or ValueError unless a result of this shape and dtype can be written to `out`, or it is None."""
    if out is not None:
        check_out(out, shape, dtype)


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
