"""What the contenders are given: the same numbers in every process, in memory whose pages are all present.

The contenders of one process share them, since separate ones would not fit the memory. Large arrays repeat one piece of
`PERIOD` elements. So the right answer is the reference's for that piece, repeated, whatever the size of the array.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq import QParams, reference
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import as_qtype

from .cases import GRANULARITIES, Case

Array = NDArray[Any]

SCALE = 0.05
ZERO_POINT = 3
MULTIPLIER = np.float32(0.0207)  # of accumulators, which are values in units of MULTIPLIER * SCALE
KEEPBITS = 10  # of the significand, where values are rounded to fewer bits
WITHIN = np.float32(0.9)  # how much of the range of a row, column or block its given scale covers
SEED = 20240607
PERIOD = 18  # log2; 64 rows of 4096
ALIGNMENT = 64


def period(case: Case) -> Case:
    """The case of the piece that the arrays of `case` repeat."""
    return case._replace(log2=min(case.log2, PERIOD))


def empty(shape: int | tuple[int, ...], dtype: Any, *, aligned: bool = False) -> Array:
    """Memory whose pages are all present; at NumPy's own alignment (16 bytes for large arrays) or at 64 bytes."""
    size, dtype = int(np.prod(shape)), np.dtype(dtype)
    if aligned:
        raw = np.empty(size * dtype.itemsize + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        array = raw[start : start + size * dtype.itemsize].view(dtype).reshape(shape)
    else:
        array = np.empty(shape, dtype)
    array.view(np.uint8).fill(1)
    return array


def repeated(piece: Array, times: int, *, aligned: bool = False) -> Array:
    """The piece repeated, in its own memory: flat for a flat piece, else one below the other."""
    out = empty((times * piece.shape[0], *piece.shape[1:]), piece.dtype, aligned=aligned)
    out.reshape(times, *piece.shape)[...] = piece
    return out


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name, or that of ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


@lru_cache(maxsize=4)
def piece_of_values(case: Case) -> Array:
    """Normal deviates: a few in a thousand of them are beyond the int8 range of SCALE and ZERO_POINT."""
    x = np.random.default_rng(SEED).standard_normal(case.shape, dtype=np.float32)
    x *= np.float32(2)
    if case.work.dtype == "int32":
        x = np.rint(x / (MULTIPLIER * np.float32(SCALE)))
    return x.astype(dtype_of(case.work.dtype))


@lru_cache(maxsize=4)
def piece_of_codes(case: Case) -> Array:
    """The input of decodes, compare, pack and unpack: codes of the values, one per element."""
    case = case._replace(work=case.work._replace(dtype="float32"))
    x, qtype = piece_of_values(case), as_qtype(case.work.code)
    codes = reference.quantize(x, qparams=piece_of_qparams(case)).codes
    return reference.unpack(codes, qtype, shape=x.shape) if qtype.packed else codes


@lru_cache(maxsize=4)
def piece_of_qparams(case: Case) -> QParams:
    """What the works with given parameters are given: exactly SCALE and `zero_point`, to the last bit, for a tensor.

    Rows, columns and blocks have scales of their own: those of the format, or scales that the float16 of GGUF blocks
    holds, with which the largest values are beyond the codes.
    """
    code = case.work.code
    if case.work.granularity == "tensor":
        return QParams(np.array(scale(code)), zero_point(code), as_qtype(code))
    found = reference.choose_qparams(piece_of_values(case), code, **granularity(case))
    if case.work.prescribed:
        return found
    return replace(found, scale=(WITHIN * found.scale).astype(np.float16).astype(np.float32))


def scale(code: str) -> np.float32:
    """The scale of the works with given parameters: SCALE for 8 bits, with fewer codes in proportion."""
    return np.float32(SCALE * 2 ** (8 - as_qtype(code).bits))


def zero_point(code: str) -> Array:
    """The zero point of the works with given parameters: 3 beyond the middle for 8 bits, none for floats."""
    qtype = as_qtype(code)
    return np.array(0 if qtype.element or qtype.bits < 8 else qtype.middle + ZERO_POINT).astype(qtype.storage)


@lru_cache(maxsize=1)
def x(case: Case, *, aligned: bool = False) -> Array:
    """Values of the case's shape."""
    return repeated(piece_of_values(period(case)), case.elements >> period(case).log2, aligned=aligned)


@lru_cache(maxsize=1)
def codes(case: Case, *, aligned: bool = False) -> Array:
    """One code per element, in the shape of the case."""
    return repeated(piece_of_codes(period(case)), case.elements >> period(case).log2, aligned=aligned)


@lru_cache(maxsize=1)
def packed(case: Case, *, aligned: bool = False) -> Array:
    """Codes several a byte, of as many rows as the case has."""
    piece = reference.pack(piece_of_codes(period(case)), case.work.code)
    return repeated(piece, case.elements >> period(case).log2, aligned=aligned)


@lru_cache(maxsize=1)
def qparams(case: Case, *, aligned: bool = False) -> QParams:
    """The given parameters; those of rows, and of blocks of rows, are repeated as the rows are."""
    piece = piece_of_qparams(period(case))
    if case.work.granularity in ("tensor", "columns"):
        return piece
    times = case.elements >> period(case).log2
    scales, zeros = (repeated(array, times, aligned=aligned) for array in (piece.scale, piece.zero_point))
    return replace(piece, scale=scales, zero_point=zeros)


def zero(case: Case) -> int:
    """The given zero point, as a number: 0 in the middle of the codes."""
    return 0 if case.work.symmetric else int(zero_point(case.work.code))


def elements(code: str) -> Array:
    """The numbers that 4 bits stand for, before the scale."""
    return reference.unpack(np.arange(16, dtype=np.uint8), code, shape=(32,))[::2].astype(np.float32)


def limits(case: Case) -> tuple[int, int]:
    """The lowest and the highest code: as far from zero where that is in the middle."""
    info = np.iinfo(as_qtype(case.work.code).storage)
    return -info.max if case.work.symmetric else info.min, info.max


def grouped(array: Array, case: Case) -> Array:
    """A view that broadcasts with `scales_of`: flat with one scale, with blocks along their own axis."""
    rows, columns = case.shape
    block = GRANULARITIES[case.work.granularity].block_size
    if block:
        return array.reshape(rows, columns // block, -1)
    return array.ravel() if case.work.granularity == "tensor" else array


def scales_of(case: Case) -> Array:
    """The given scales, with the axes of `grouped` arrays."""
    scales = qparams(case, aligned=True).scale
    return scales[..., None] if case.work.granularity not in ("tensor", "columns") else scales


@lru_cache(maxsize=1)
def blocks(case: Case, *, aligned: bool = False) -> Array:
    """Blocks of the GGUF format, of as many rows as the case has."""
    piece = reference.gguf.quantize(piece_of_values(period(case)), case.work.code)
    return repeated(piece, case.elements >> period(case).log2, aligned=aligned)


def out(case: Case, what: str, *, aligned: bool = False) -> Array:
    """Memory for a result: "values", "codes" in their storage, or "bytes" (one code per byte); what it held is gone."""
    array = _out(case, what, aligned)
    array.view(np.uint8).fill(1)
    return array


@lru_cache(maxsize=2)
def _out(case: Case, what: str, aligned: bool) -> Array:
    rows, code = case.shape[0], case.work.code
    if what == "values":
        return empty(case.shape, dtype_of(case.work.dtype), aligned=aligned)
    if what == "bytes":
        return empty(case.shape, as_qtype(code).storage, aligned=aligned)
    if code in BLOCK_FORMATS or as_qtype(code).packed:
        return empty((rows, case.nbytes("codes") // rows), np.uint8, aligned=aligned)
    return empty(case.shape, as_qtype(code).storage, aligned=aligned)


@lru_cache(maxsize=2)
def room(nbytes: int, name: str) -> Array:
    """Aligned bytes for any use; `name` keeps buffers of one size apart in the cache."""
    return empty(nbytes, np.uint8, aligned=True)


def forget() -> None:
    """Give back the memory of inputs and results."""
    for kept in (x, codes, packed, qparams, blocks, room, _out):
        kept.cache_clear()


def granularity(case: Case) -> dict[str, Any]:
    """Arguments of fastq.quantize for the case's granularity; none where the format prescribes it."""
    if case.work.prescribed:
        return {}
    axis, block_size, _ = GRANULARITIES[case.work.granularity]
    return {"axis": axis, "block_size": block_size, "symmetric": case.work.symmetric}
