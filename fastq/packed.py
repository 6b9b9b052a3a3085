"""Codes that share bytes: packed and unpacked, and quantized and dequantized tile by tile."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.floats import FLOAT_FORMATS
from fastq.forms import PLAIN, Bounds, Form, How, Kind
from fastq.kernels import parallel, repack
from fastq.layout import Layout, make_layout
from fastq.plans import STREAMING, element, ids, kernel_address, plan_of, prepare, repeated, with_tensor
from fastq.views import is_plain, tiles

Array = NDArray[Any]

# codes that a unit of work has where rows do not matter: whole bytes of any format
REPACKED = 1 << 14


def in_bytes(
    x: Array, out: Array, shape: tuple[int, ...], axes: tuple[int, ...] | None, block_size: int, how: How
) -> Layout | None:
    """Return the layout of packed codes where every row and every run of one parameter begins on a whole byte."""
    assert how.code is not None
    layout = make_layout(shape, axes, block_size)
    if layout is None or not (is_plain(x) and is_plain(out)):
        return None
    runs = [shape[-1]] if shape and math.prod(shape[:-1]) > 1 else []
    if layout.parameters > 1:
        runs += [layout.block, layout.length] if layout.inner == 1 else [layout.inner]
    return None if any(run % how.code.group for run in runs) else layout


def apart_dtype(code: Form) -> np.dtype[Any]:
    """Return the dtype of an array of codes one in a byte; of float codes that of their bits."""
    return code.apart if isinstance(code.apart, np.dtype) else np.dtype(np.uint8)


def apply_in_tiles(
    does: str,
    x: Array,
    out: Array,
    parameters: tuple[Array, Array],
    axes: tuple[int, ...] | None,
    block_size: int,
    bounds: Bounds,
    nan: str,
    how: How,
    tensor: float,
) -> int:
    """Quantize to packed codes, or dequantize them, through tiles of codes one in a byte; the bits of what was seen."""
    quantizing, seen, code = does == "quantize", 0, how.code
    assert code is not None
    shape, values = (x.shape, x.dtype) if quantizing else (out.shape, out.dtype)
    values, codes_dtype = values.newbyteorder("="), apart_dtype(code)
    codes_kind: Kind = how.apart.code or codes_dtype
    kinds = (values, codes_kind) if quantizing else (codes_kind, values)
    scale, zero = parameters
    others, apart = (how.steps or scale.dtype, zero.dtype), how.apart
    prepared = prepare(does, nan, bounds, shape, axes, block_size, False, apart, *kinds, *others)
    parameters = repeated(scale, zero, prepared.repeat)
    plan = with_tensor(prepared.plan, tensor)
    for index, start, stop in tiles(shape):
        packed_index = _packed_index(index, shape, code)
        if quantizing:
            part = np.ascontiguousarray(x[index], values)
            codes = np.empty(part.shape, codes_dtype)
            arrays = ids(part, codes, *parameters, None, plan)
            seen |= parallel.run_serial(prepared.kernel, arrays, start, stop, start)
            packed = np.empty(out[packed_index].shape, np.uint8)
            pack(codes, packed, code)
            out[packed_index] = packed
        else:
            codes = np.empty(out[index].shape, codes_dtype)
            unpack(x[packed_index], codes, code)
            part = np.empty(codes.shape, values)
            arrays = ids(codes, part, *parameters, None, plan)
            seen |= parallel.run_serial(prepared.kernel, arrays, start, stop, start)
            out[index] = part
    return seen


def _packed_index(index: tuple[Any, ...], shape: tuple[int, ...], code: Form) -> tuple[Any, ...]:
    """Where the bytes of a tile are: tiles that part the last axis do so at whole bytes."""
    if len(index) < len(shape) or not shape:
        return index
    *others, last = index
    return (*others, slice(last.start * code.bits // 8, -(-last.stop * code.bits // 8)))


def pack(codes: Array, packed: Array, code: Form) -> int:
    """Pack codes along their last axis; the bits of what was seen."""
    if is_plain(codes) and is_plain(packed):
        return _repack(codes, packed, codes.shape, code, (codes.dtype, code))
    seen = 0
    for index, _, _ in tiles(codes.shape):
        part = np.ascontiguousarray(codes[index], codes.dtype.newbyteorder("="))
        where = _packed_index(index, codes.shape, code)
        whole = np.empty(packed[where].shape, np.uint8)
        seen |= _repack(part, whole, part.shape, code, (part.dtype, code))
        packed[where] = whole
    return seen


def unpack(packed: Array, codes: Array, code: Form) -> None:
    """Write codes packed along the last axis one in a byte."""
    if is_plain(codes) and is_plain(packed):
        _repack(packed, codes, codes.shape, code, (code, codes.dtype))
        return
    for index, _, _ in tiles(codes.shape):
        part = np.ascontiguousarray(packed[_packed_index(index, codes.shape, code)])
        whole = np.empty(codes[index].shape, codes.dtype)
        _repack(part, whole, whole.shape, code, (code, codes.dtype))
        codes[index] = whole


def _repack(src: Array, dst: Array, shape: tuple[int, ...], code: Form, kinds: tuple[Kind, Kind]) -> int:
    size, length = math.prod(shape), shape[-1] if shape else 1
    if not size:
        return 0
    if length % code.group == 0 or size == length:
        length = REPACKED
    streaming = size * element(kinds[1]).bitwidth >= 8 * STREAMING
    kernel, plan = _prepare_repack(size, length, streaming, *kinds)
    return parallel.run(kernel, ids(src, dst, None, None, None, plan), -(-size // length), size=length)


@functools.lru_cache(4096)
def _prepare_repack(size: int, length: int, streaming: bool, *kinds: Kind) -> tuple[int, Array]:
    kinds = tuple(np.dtype(np.uint8) if getattr(kind, "name", "") in FLOAT_FORMATS else kind for kind in kinds)
    kinds = tuple(Form(kind.bits, False) if isinstance(kind, Form) and kind.element else kind for kind in kinds)
    kernel = kernel_address(repack.rows, "repack", "raise", "", 0, PLAIN, *kinds, *[np.dtype(np.uint8)] * 2)
    return kernel, plan_of(Layout(1, length, 1, length, 1, 1, 1, ()), (0, 0), streaming, size)
