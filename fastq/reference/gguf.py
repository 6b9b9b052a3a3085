"""`fastq.gguf` in plain NumPy, written from the contract only; nothing here depends on the kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.formats import gguf as formats
from fastq.formats.gguf import (
    BLOCK,
    WEIGHTED_CANDIDATES,
    BinaryFormat,
    BlockFormat,
    CodebookFormat,
    Float4Format,
    GridFormat,
)
from fastq.reference import gguf_grid_search, gguf_small, gguf_splits, gguf_super
from fastq.reference.arrays import check_place, deliver
from fastq.reference.gguf_fields import Numbers, are_finite, half_bits, pack, unpack, values
from fastq.reference.gguf_least import lessen
from fastq.reference.gguf_search import F, at, fit_range, fit_signed
from fastq.requests.gguf import as_importance_of_columns, as_least_error, check_importance_of_columns
from fastq.requests.quantization import as_input
from fastq.system.arrays_of_callers import as_array
from fastq.system.dtypes import Array

__all__ = ["dequantize", "quantize"]

TOO_LARGE = F(2.0**36)  # for searches, whose sums of products must be finite
TOO_HEAVY = F(2.0**90)  # for them, of weights
BYTES = np.dtype(np.uint8)


def quantize(
    data: ArrayLike,
    qtype: object,
    *,
    range: str = "minmax",
    importance: ArrayLike | None = None,
    out: Array | None = None,
) -> NDArray[np.uint8]:
    """Return the blocks of `data`: arguments, result and errors are those of `fastq.gguf.quantize`."""
    form = formats.as_block_format(qtype)
    data = as_input(data, "data")
    least_error = as_least_error(range, form)
    rows, shape = _rows(data, form.size, form.nbytes, form)
    check_importance_of_columns(form, importance)
    weights = None if importance is None else as_importance_of_columns(importance, data.shape, form.group)[0]
    check_place(out, shape, BYTES)
    weights = None if weights is None else np.broadcast_to(weights, data.shape)
    with np.errstate(all="ignore"):
        x = rows.astype(F)
        numbers = unpack(np.empty((0, form.nbytes), BYTES), form)
        if len(x):
            numbers = _numbers(x, weights if form.weighted else None, form)
        if len(x) and least_error:
            numbers = lessen(x, None if weights is None else weights.reshape(x.shape), numbers, form)
        finite = are_finite(numbers, form) & np.isfinite(x).all(axis=1)
        if form.searches(weights is not None):
            finite &= ~(np.abs(x) >= TOO_LARGE).any(axis=1)
            if weights is not None:
                finite &= _have_finite_sums(x, weights, form)
    if not finite.all():
        raise ValueError(f"data has NaN, infinity or values too large for {form} in block {int(np.argmin(finite))}")
    return deliver(pack(numbers, form).reshape(shape), BYTES, out)


def dequantize(data: ArrayLike, qtype: object, *, out: Array | None = None) -> NDArray[np.float32]:
    """Return the values of blocks: arguments, result and errors are those of `fastq.gguf.dequantize`."""
    form = formats.as_block_format(qtype)
    data = as_array(data, "data")
    if data.dtype != np.uint8:
        raise TypeError(f"data must be uint8, not {data.dtype}")
    rows, shape = _rows(data, form.nbytes, form.size, form)
    check_place(out, shape, np.dtype(F))
    with np.errstate(all="ignore"):
        result = values(np.ascontiguousarray(rows), form)
    return deliver(result.reshape(shape), np.dtype(F), out)


def _rows(data: Array, width: int, made: int, form: BlockFormat) -> tuple[Array, tuple[int, ...]]:
    """Return one row for each block, and the shape of the result, which has `made` elements for each block."""
    if not data.ndim or data.shape[-1] % width:
        raise ValueError(f"data has shape {data.shape}, but qtype {form} needs a last axis of a multiple of {width}")
    return data.reshape(-1, width), (*data.shape[:-1], data.shape[-1] // width * made)


def _have_finite_sums(x: Array, weights: Array, form: BlockFormat) -> Array:
    """Return whether the importance of columns is small enough for each block."""
    # contract 20.9
    lines = x.reshape(-1, weights.shape[-1]) if form.of_rows else x
    mean = gguf_super.mean_square(lines).repeat(len(x) // len(lines))
    return np.asarray(weights.reshape(x.shape).max(axis=1) * (F(1) + mean) < TOO_HEAVY)


# Formats


def _numbers(x: Array, weights: Array | None, form: BlockFormat) -> Numbers:
    """Return the numbers of blocks; weights are the importance of columns, in the shape of the data."""
    if isinstance(form, BinaryFormat):
        return gguf_small.quantize_binary(x)
    if isinstance(form, formats.TernaryFormat):
        return gguf_small.quantize_ternary(x, form)
    if isinstance(form, Float4Format):
        return gguf_small.quantize_float4(x, form)
    if isinstance(form, formats.ScaledFormat):
        return _blocks_by_extent(x, form) if weights is None else _blocks_by_search(x, weights, form)
    flat = None if weights is None else weights.reshape(x.shape)
    if isinstance(form, formats.SuperFormat):
        return gguf_super.quantize_super(x, flat, form)
    if isinstance(form, GridFormat):
        of_levels = gguf_splits.quantize_splits if form.shifts else gguf_grid_search.quantize_points
        return of_levels(x, flat, form)
    assert isinstance(form, CodebookFormat)
    return gguf_super.quantize_codebook(x, flat, form)


# Blocks of 32


def _blocks_by_search(x: Array, weights: Array, form: formats.ScaledFormat) -> Numbers:
    """Return blocks whose scale depends on the importance of columns; the spread of values is that of the whole row."""
    lines = x.reshape(-1, weights.shape[-1])
    w = gguf_super.weights_of(lines, weights.reshape(lines.shape), 1)
    (part,) = gguf_super.sub_blocks(x, BLOCK)
    (of_part,) = gguf_super.sub_blocks(w.reshape(x.shape), BLOCK)
    if form.has_minimum:
        scale, least, codes = fit_range(part, of_part, form.steps, WEIGHTED_CANDIDATES)
        return {"d": half_bits(scale), "min": half_bits(-least), "codes": codes.T}
    scale, codes = fit_signed(part, of_part, -form.steps)
    return {"d": half_bits(scale), "codes": codes.T}


def _blocks_by_extent(x: Array, form: formats.ScaledFormat) -> Numbers:
    """Return blocks whose scale is a fraction of their range or of their largest magnitude."""
    columns = np.ascontiguousarray(x.T)
    least = np.zeros(len(x), F)
    extent = at(columns, np.abs(columns).argmax(axis=0))
    if form.has_minimum:
        least = at(columns, columns.argmin(axis=0))
        extent = x.max(axis=1) - least
    elif form.extent == "magnitude":
        extent = np.abs(extent)
    # 0.0 is added to the difference of -0.0 and 0.0, which is -0.0
    scale = extent / F(form.steps) + F(0) if form.has_minimum else extent / F(form.steps)
    inverse = np.where(scale == 0, F(0), F(1) / scale)
    position = (columns - least) * inverse
    whole = np.trunc(position if form.extent == "magnitude" else position + F(form.zero + 0.5))
    if form.extent == "magnitude":
        whole += np.copysign(np.abs(position - whole) >= 0.5, position)
    codes = np.minimum(np.where(np.isinf(inverse), 0, whole), 2**form.bits - 1).astype(np.int64).T
    numbers = {"d": half_bits(scale), "codes": codes}
    return numbers | {"min": half_bits(least)} if form.has_minimum else numbers
