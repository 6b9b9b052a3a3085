"""Codes that share bytes: packed and unpacked, and quantized and dequantized tile by tile."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.granularity import Layout, make_layout
from fastq.dispatch.planner import args_of, past_cache, prepare, repeated
from fastq.dispatch.spec import Call, Parameters
from fastq.dispatch.strides import is_plain, tiles
from fastq.formats.floats import FLOAT_FORMATS
from fastq.kernels.build import kernel_address
from fastq.kernels.loops.repack import repack
from fastq.kernels.operands import CopyOperands
from fastq.kernels.storage import ElementType, StorageFormat
from fastq.runtime import threadpool
from fastq.runtime.driver import NONE, OUT, Program, X, program, run

Array = NDArray[Any]

# codes that a unit of work has where rows do not matter: whole bytes of any format
REPACKED = 1 << 14


def in_bytes(call: Call, x: Array, out: Array, shape: tuple[int, ...]) -> bool:
    """Whether kernels can work on packed codes in place."""
    assert call.how.code is not None
    return is_plain(x) and is_plain(out) and _parted_by_bytes(shape, call.axes, call.block_size, call.how.code.group)


@functools.lru_cache(4096)
def _parted_by_bytes(shape: tuple[int, ...], axes: tuple[int, ...] | None, block_size: int, group: int) -> bool:
    """Whether every row and every run of one parameter begins on a whole byte."""
    layout = make_layout(shape, axes, block_size)
    if layout is None:
        return False
    runs = [shape[-1]] if shape and math.prod(shape[:-1]) > 1 else []
    if layout.parameters > 1:
        runs += [layout.block, layout.length] if layout.inner == 1 else [layout.inner]
    return not any(run % group for run in runs)


def apart_dtype(code: StorageFormat) -> np.dtype[Any]:
    """Return the dtype of an array of codes one in a byte; of float codes that of their bits."""
    return code.unpacked if isinstance(code.unpacked, np.dtype) else np.dtype(np.uint8)


def apply_in_tiles(call: Call, x: Array, out: Array, given: Parameters) -> int:
    """Quantize to packed codes, or dequantize them, through tiles of codes one in a byte; the bits of what was seen."""
    quantizing, seen, code, call = call.does == "quantize", 0, call.how.code, call.apart
    assert code is not None
    values, packed = (x, out) if quantizing else (out, x)
    dtype, codes_dtype = values.dtype.newbyteorder("="), apart_dtype(code)
    dtypes = (dtype, codes_dtype) if quantizing else (codes_dtype, dtype)
    prepared = prepare(call, values.shape, 1, False, *dtypes, given.scale.dtype, given.zero.dtype, direct=False)
    scale, zero, tensor = repeated(given, prepared.repeat)
    whole = prepared.program.with_tensor(tensor)
    for index, start, stop in tiles(values.shape):
        part, where = values[index], packed[packed_index(index, values.shape, code)]
        codes = np.empty(part.shape, codes_dtype)
        if quantizing:
            src, dst = np.ascontiguousarray(part, dtype), codes
        else:
            unpack(where, codes, code)
            src, dst = codes, np.empty(part.shape, dtype)
        seen |= run(whole.part(start, stop, start), src, dst, scale, zero)
        if quantizing:
            pack(codes, where, code)
        else:
            values[index] = dst
    return seen


def packed_index(index: tuple[Any, ...], shape: tuple[int, ...], code: StorageFormat) -> tuple[Any, ...]:
    """Where the bytes of a tile are: tiles that part the last axis do so at whole bytes."""
    if len(index) < len(shape) or not shape:
        return index
    *others, last = index
    return (*others, slice(last.start * code.bits // 8, -(-last.stop * code.bits // 8)))


def pack(codes: Array, packed: Array, code: StorageFormat) -> int:
    """Pack codes along their last axis; the bits of what was seen."""
    if is_plain(codes) and is_plain(packed):
        return _repack(codes, packed, codes.shape, code, (codes.dtype, code))
    seen = 0
    for index, _, _ in tiles(codes.shape):
        part = np.ascontiguousarray(codes[index], codes.dtype.newbyteorder("="))
        where = packed_index(index, codes.shape, code)
        whole = np.empty(packed[where].shape, np.uint8)
        seen |= _repack(part, whole, part.shape, code, (part.dtype, code))
        packed[where] = whole
    return seen


def unpack(packed: Array, codes: Array, code: StorageFormat) -> None:
    """Write codes packed along the last axis one in a byte."""
    if is_plain(codes) and is_plain(packed):
        _repack(packed, codes, codes.shape, code, (code, codes.dtype))
        return
    for index, _, _ in tiles(codes.shape):
        part = np.ascontiguousarray(packed[packed_index(index, codes.shape, code)])
        whole = np.empty(codes[index].shape, codes.dtype)
        _repack(part, whole, whole.shape, code, (code, codes.dtype))
        codes[index] = whole


def _repack(
    src: Array, dst: Array, shape: tuple[int, ...], code: StorageFormat, kinds: tuple[ElementType, ElementType]
) -> int:
    return run(repacking(shape, code, kinds), src, dst) if math.prod(shape) else 0


def repacking(shape: tuple[int, ...], code: StorageFormat, kinds: tuple[ElementType, ElementType]) -> Program:
    """Return the program that brings codes of a shape from one kind of memory to the other, in C order."""
    size, length = math.prod(shape), shape[-1] if shape else 1
    if length % code.group == 0 or size == length:
        length = REPACKED
    return _repacking(size, length, threadpool.threads_for(size), past_cache(shape, *kinds), *kinds)


@functools.lru_cache(4096)
def _repacking(size: int, length: int, threads: int, streaming: bool, *kinds: ElementType) -> Program:
    kinds = tuple(np.dtype(np.uint8) if getattr(kind, "name", "") in FLOAT_FORMATS else kind for kind in kinds)
    kinds = tuple(
        StorageFormat(kind.bits, False) if isinstance(kind, StorageFormat) and kind.element else kind for kind in kinds
    )
    kernel = kernel_address(repack, CopyOperands(*kinds), "repack")
    args = args_of(Layout(1, length, 1, length, 1, 1, 1, ()), streaming=streaming, size=size)
    return program(kernel, (X, OUT, NONE, NONE, NONE), args, -(-size // length), threads, size=length)
