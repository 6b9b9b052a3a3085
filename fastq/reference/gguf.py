"""`fastq.gguf` in plain NumPy, written from the contract alone; nothing here knows the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.formats.gguf import BLOCK, BlockFormat, as_block_format
from fastq.system.arguments import as_array, is_out, native

Array = NDArray[Any]

__all__ = ["dequantize", "quantize"]


def quantize(data: ArrayLike, qtype: object, *, out: Array | None = None) -> NDArray[np.uint8]:
    """Return the blocks of `data`.

    Returns
    -------
    ndarray of uint8
        Arguments, result and errors as for `fastq.gguf.quantize`.
    """
    form, data = as_block_format(qtype), as_array(data, "data")
    if data.dtype.kind not in "iu" and data.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        raise TypeError(f"data must be numbers of up to 64 bits, not {data.dtype}")
    rows = _rows(data, BLOCK, form)
    with np.errstate(all="ignore"):
        blocks = _blocks(rows.astype(np.float32), form)
    return _delivered(blocks.reshape(*data.shape[:-1], data.shape[-1] // BLOCK * form.nbytes), out)


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
        values = _values(rows, form)
    return _delivered(values.reshape(*data.shape[:-1], data.shape[-1] // form.nbytes * BLOCK), out)


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


# Blocks


def _blocks(x: Array, form: BlockFormat) -> Array:
    scale, least = _parameters(x, form)
    stored = [part.astype("<f2") for part in ((scale, least) if form.has_minimum else (scale,))]
    bad = ~np.logical_and.reduce([np.isfinite(part) for part in stored])
    if bad.any():
        raise ValueError(f"data has NaN, infinity or values too large for {form} in block {int(np.argmax(bad))}")
    head = [part.view(np.uint8) for part in stored]
    return np.concatenate([*head, *_bytes(_codes(x, scale, least, form), form)], axis=1)


def _parameters(x: Array, form: BlockFormat) -> tuple[Array, Array]:
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


def _codes(x: Array, scale: Array, least: Array, form: BlockFormat) -> Array:
    inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    position = (x - least) * inverse
    if form.extent == "magnitude":
        whole = np.trunc(position)
        whole += np.copysign(np.abs(position - whole) >= 0.5, position)
    else:
        whole = np.trunc(position + np.float32(form.zero + 0.5))
    codes: Array = np.minimum(np.where(np.isinf(inverse), 0, whole), 2**form.bits - 1).astype(np.int64)
    return codes


def _bytes(codes: Array, form: BlockFormat) -> list[Array]:
    if form.bits == 8:
        return [codes.astype(np.int8).view(np.uint8)]
    low, high = codes[:, :16] % 16, codes[:, 16:] % 16
    nibbles = (low + 16 * high).astype(np.uint8)
    if form.bits == 4:
        return [nibbles]
    return [np.packbits(codes >= 16, axis=1, bitorder="little"), nibbles]


# Values


def _values(rows: Array, form: BlockFormat) -> Array:
    head = 4 if form.has_minimum else 2
    parameters = rows[:, :head].copy().view("<f2").astype(np.float32)
    values = (_whole(rows[:, head:], form) - form.zero).astype(np.float32) * parameters[:, :1]
    return values + parameters[:, 1:] if form.has_minimum else values


def _whole(codes: Array, form: BlockFormat) -> Array:
    if form.bits == 8:
        return codes.copy().view(np.int8).astype(np.int64)
    nibbles = codes[:, -16:].astype(np.int64)
    whole = np.concatenate([nibbles % 16, nibbles // 16], axis=1)
    if form.bits == 5:
        whole += 16 * np.unpackbits(codes[:, :4], axis=1, bitorder="little")
    return whole
