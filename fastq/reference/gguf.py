"""`fastq.gguf` in plain NumPy, written from the contract alone; nothing here knows the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.formats.gguf import (
    BLOCK,
    WEIGHTED_CANDIDATES,
    BlockFormat,
    CodebookFormat,
    FloatFormat,
    ScaledFormat,
    SuperFormat,
    TernaryFormat,
    as_block_format,
)
from fastq.reference import gguf_small, gguf_super
from fastq.reference.gguf_fields import Numbers, are_finite, half_bits, pack, unpack, values
from fastq.reference.gguf_search import F, fit_range, fit_signed, total
from fastq.reference.gguf_super import sub_blocks
from fastq.system.arguments import as_array, as_importance, is_out, native
from fastq.system.dtypes import Array

__all__ = ["dequantize", "quantize"]

TOO_LARGE = F(2.0**36)  # for searches, whose sums of products must be finite


def quantize(
    data: ArrayLike, qtype: object, *, imatrix: ArrayLike | None = None, out: Array | None = None
) -> NDArray[np.uint8]:
    """Return the blocks of `data`.

    Returns
    -------
    ndarray of uint8
        Arguments, result and errors as for `fastq.gguf.quantize`.
    """
    form, data = as_block_format(qtype), as_array(data, "data")
    if data.dtype.kind not in "iu" and data.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        raise TypeError(f"data must be numbers of up to 64 bits, not {data.dtype}")
    rows = _rows(data, form.size, form)
    weights = None
    if imatrix is not None:
        weights = np.broadcast_to(as_importance(imatrix, data.shape, form.group)[0], data.shape)
    weights = weights if form.weighted else None
    with np.errstate(all="ignore"):
        x = rows.astype(np.float32)
        numbers = _numbers(x, weights, form) if len(x) else unpack(np.empty((0, form.nbytes), np.uint8), form)
        finite = are_finite(numbers, form) & np.isfinite(x).all(axis=1)
        if form.searches(weights is not None):
            finite &= ~(np.abs(x) >= TOO_LARGE).any(axis=1)
    if not finite.all():
        raise ValueError(f"data has NaN, infinity or values too large for {form} in block {int(np.argmin(finite))}")
    return _delivered(pack(numbers, form).reshape(*data.shape[:-1], data.shape[-1] // form.size * form.nbytes), out)


def dequantize(data: ArrayLike, qtype: object, *, out: Array | None = None) -> NDArray[np.float32]:
    """Return the values of blocks.

    Returns
    -------
    ndarray of float32
        Arguments, result and errors as for `fastq.gguf.dequantize`.
    """
    form, data = as_block_format(qtype), as_array(data, "data")
    if data.dtype != np.uint8:
        raise TypeError(f"data must be uint8, not {data.dtype}")
    rows = np.ascontiguousarray(_rows(data, form.nbytes, form))
    with np.errstate(all="ignore"):
        result = values(rows, form)
    return _delivered(result.reshape(*data.shape[:-1], data.shape[-1] // form.nbytes * form.size), out)


def _rows(data: Array, width: int, form: BlockFormat) -> Array:
    """One row for each block."""
    if not data.ndim or data.shape[-1] % width:
        raise ValueError(f"data has shape {data.shape}, but qtype {form} needs a last axis of a multiple of {width}")
    return data.reshape(-1, width)


def _delivered(result: Array, out: Any) -> Array:
    if out is None:
        return result
    if not is_out(out) or native(out.dtype) != result.dtype:
        raise TypeError(f"out must be an ndarray of dtype {result.dtype}")
    if out.shape != result.shape:
        raise ValueError(f"out has shape {out.shape}, but the result has shape {result.shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    out[...] = result
    return out


# Formats


def _numbers(x: Array, weights: Array | None, form: BlockFormat) -> Numbers:
    """Return the numbers of blocks."""
    if isinstance(form, TernaryFormat):
        return gguf_small.quantize_ternary(x)
    if isinstance(form, FloatFormat):
        return gguf_small.quantize_float(x, form)
    if isinstance(form, ScaledFormat):
        return _scaled(x, form) if weights is None else _searched(x, weights, form)
    flat = None if weights is None else weights.reshape(x.shape)
    if isinstance(form, SuperFormat):
        return gguf_super.quantize_super(x, flat, form)
    assert isinstance(form, CodebookFormat)
    return gguf_super.quantize_codebook(x, flat, form)


# Blocks of 32


def _searched(x: Array, weights: Array, form: ScaledFormat) -> Numbers:
    """Blocks whose scale the importance of columns chooses; the spread of values is that of the whole row."""
    lines = x.reshape(-1, weights.shape[-1])
    mean = total(np.ascontiguousarray((lines * lines).T)) / F(lines.shape[1])
    w = weights.reshape(lines.shape) * np.sqrt(mean[:, None] + lines * lines)
    (part,), (of_part,) = sub_blocks(x, BLOCK), sub_blocks(w.reshape(x.shape), BLOCK)
    if form.has_minimum:
        scale, least, codes = fit_range(part, of_part, form.steps, WEIGHTED_CANDIDATES)
        return {"d": half_bits(scale), "min": half_bits(-least), "codes": codes.T}
    scale, codes = fit_signed(part, of_part, -form.steps)
    return {"d": half_bits(scale), "codes": codes.T}


def _scaled(x: Array, form: ScaledFormat) -> Numbers:
    scale, least = _parameters(x, form)
    numbers = {"d": half_bits(scale[:, 0]), "codes": _codes(x, scale, least, form)}
    return numbers | {"min": half_bits(least[:, 0])} if form.has_minimum else numbers


def _parameters(x: Array, form: ScaledFormat) -> tuple[Array, Array]:
    """Scale, not yet rounded, and smallest value of each row, as columns."""
    if form.has_minimum:
        least = _take(x, x.argmin(axis=1))
        return (x.max(axis=1, keepdims=True) - least) / np.float32(form.steps) + np.float32(0), least
    largest = _take(x, np.abs(x).argmax(axis=1))
    if form.extent == "magnitude":
        largest = np.abs(largest)
    return largest / np.float32(form.steps), np.zeros_like(largest)


def _take(x: Array, column: Array) -> Array:
    taken: Array = np.take_along_axis(x, column[:, None], axis=1)
    return taken


def _codes(x: Array, scale: Array, least: Array, form: ScaledFormat) -> Array:
    inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    position = (x - least) * inverse
    if form.extent == "magnitude":
        whole = np.trunc(position)
        whole += np.copysign(np.abs(position - whole) >= 0.5, position)
    else:
        whole = np.trunc(position + np.float32(form.zero + 0.5))
    codes: Array = np.minimum(np.where(np.isinf(inverse), 0, whole), 2**form.bits - 1).astype(np.int64)
    return codes
