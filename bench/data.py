"""What the contenders are given: the same numbers in every process, in memory whose pages are all present.

The contenders of one process share them, since separate ones would not fit the memory. Large arrays repeat one piece of
`PERIOD` elements. So the right answer is the reference's for that piece, repeated, whatever the size of the array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from fastq import QParams, reference
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import as_qtype

from .calls import SCALE, SEED, ZERO_POINT, Array, Operands, dtype_of, empty, repeated
from .cases import C_ORDER, GRANULARITIES, OPERATIONS, PERIOD, Case

MULTIPLIER = 1 / np.float32(48.3)  # of accumulators, which are values in units of MULTIPLIER * SCALE
WITHIN = np.float32(0.9)  # how much of the range of a row, column or block its given scale covers
# works whose parameters are given
GIVEN = ("quantize_linear", "dequantize_linear", "dequantize", "fake_quantize", "requantize")


def _with_gaps(x: Array) -> Array:
    """Lay out every second element of a row."""
    memory = empty((x.shape[0], 2 * x.shape[1]), x.dtype)
    memory[:, ::2] = x
    return memory[:, ::2]


# how the first operand lies in memory, with the same values
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    C_ORDER: lambda x: x,
    "fortran": np.asfortranarray,
    "reversed": lambda x: np.flip(np.ascontiguousarray(np.flip(x))),
    "gaps": _with_gaps,
    "swapped": lambda x: x.astype(x.dtype.newbyteorder("S")),
}


def period(case: Case) -> Case:
    """The case of the piece that the arrays of `case` repeat."""
    return case._replace(log2=min(case.log2, PERIOD))


def values(case: Case) -> Array:
    """Normal deviates: a few in a thousand of them are beyond the int8 range of SCALE and ZERO_POINT."""
    x = np.random.default_rng(SEED).standard_normal(case.shape, dtype=np.float32)
    x *= np.float32(2)
    if case.work.dtype == "int32":
        x = np.rint(x / (MULTIPLIER * np.float32(SCALE)))
    return x if case.work.dtype == "int8" else x.astype(dtype_of(case.work.dtype))


def scale(code: str) -> np.float32:
    """The scale of the works with given parameters: SCALE for 8 bits, with fewer codes in proportion."""
    return np.float32(SCALE * 2 ** (8 - as_qtype(code).bits))


def zero_point(code: str) -> Array:
    """The zero point of the works with given parameters: 3 beyond the middle for 8 bits, none for floats."""
    qtype = as_qtype(code)
    return np.array(0 if qtype.element or qtype.bits < 8 else qtype.middle + ZERO_POINT).astype(qtype.storage)


def given(case: Case, x: Array) -> QParams:
    """What the works with given parameters are given: exactly SCALE and `zero_point`, to the last bit, for a tensor.

    Rows, columns and blocks have scales of their own: those of the format, or scales that the float16 of GGUF blocks
    holds, with which the largest values are beyond the codes.
    """
    code = case.work.code
    if case.work.operation == "requantize":
        return QParams(1 / MULTIPLIER, np.array(ZERO_POINT, as_qtype(code).storage), as_qtype(code))
    if case.work.granularity == "tensor":
        return QParams(np.array(scale(code)), zero_point(code), as_qtype(code))
    found = reference.choose_qparams(x, code, **granularity(case))
    if case.work.prescribed:
        return found
    return replace(found, scale=(WITHIN * found.scale).astype(np.float16).astype(np.float32))


def granularity(case: Case) -> dict[str, Any]:
    """Arguments of fastq.quantize for the case's granularity; none where the format prescribes it."""
    if case.work.prescribed:
        return {}
    shared = GRANULARITIES[case.work.granularity]
    return {"axis": shared.axis, "block_size": shared.block_size, "symmetric": case.work.symmetric}


@lru_cache(maxsize=4)
def piece(case: Case) -> Operands:
    """The operands of a case of at most `PERIOD`, without memory for the result."""
    work, x = case.work, values(case)
    shared = GRANULARITIES[work.granularity]
    made = Operands(work.function, work.code, x, case.shape, "float32", shared.axis, shared.block_size, work.symmetric)
    if work.operation in GIVEN:
        made = replace(made, qparams=given(case, x))
    if work.operation == "compare":
        q = reference.quantize(x, work.code, **granularity(case))
        return replace(made, qparams=q.qparams, approximation=q.codes)
    reads = OPERATIONS[work.operation].read.split()[0]
    if reads == "values":
        return made
    if work.code in BLOCK_FORMATS:
        return replace(made, first=reference.gguf.quantize(x, work.code))
    codes = reference.quantize(x, qparams=made.qparams or given(case, x)).codes
    if reads == "bytes":
        codes = reference.unpack(codes, work.code, shape=case.shape)
    return replace(made, first=codes)


@lru_cache(maxsize=1)
def _operands(case: Case, aligned: bool) -> Operands:
    """Repeat the piece; given parameters of rows, and of blocks of rows, are repeated as the rows are."""
    small = piece(period(case))
    times = case.shape[0] // period(case).shape[0]
    p, other = small.qparams, small.approximation
    if p is not None and case.work.granularity not in ("tensor", "columns"):
        scales, zeros = (repeated(array, times, aligned=aligned) for array in (p.scale, p.zero_point))
        p = replace(p, scale=scales, zero_point=zeros)
    other = None if other is None else repeated(other, times, aligned=aligned)
    first = LAYOUTS[case.work.layout](repeated(small.first, times, aligned=aligned))
    return replace(small, first=first, shape=case.shape, qparams=p, approximation=other)


def operands(case: Case, *, aligned: bool = True) -> Operands:
    """The operands of a case, with memory for its result where it takes such."""
    made = OPERATIONS[case.work.operation].written.split()[:1]
    return replace(_operands(case, aligned), out=out(case, made[0], aligned=aligned) if made else None)


def out(case: Case, what: str, *, aligned: bool = True) -> Array:
    """Memory for a result: "values", "codes" in their storage, or "bytes" (one code per byte); what it held is gone."""
    array = _out(case, what, aligned)
    array.view(np.uint8).fill(1)
    return array


@lru_cache(maxsize=2)
def _out(case: Case, what: str, aligned: bool) -> Array:
    rows, code = case.shape[0], case.work.code
    if what == "values":
        return empty(case.shape, dtype_of(case.work.dtype), aligned=aligned)
    if what == "codes" and (code in BLOCK_FORMATS or as_qtype(code).packed):
        return empty((rows, case.nbytes("codes") // rows), np.uint8, aligned=aligned)
    return empty(case.shape, as_qtype(code).storage, aligned=aligned)


@lru_cache(maxsize=2)
def room(nbytes: int, name: str) -> Array:
    """Aligned bytes for any use; `name` keeps buffers of one size apart in the cache."""
    return empty(nbytes, np.uint8, aligned=True)


def forget() -> None:
    """Give back the memory of inputs and results."""
    for kept in (_operands, room, _out):
        kept.cache_clear()


def elements(code: str) -> Array:
    """The numbers that 4 bits stand for, before the scale."""
    return reference.unpack(np.arange(16, dtype=np.uint8), code, shape=(32,))[::2].astype(np.float32)
