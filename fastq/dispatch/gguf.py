"""Resolve the block formats of GGUF: blocks in place or tile by tile, and which block was refused."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch import validation
from fastq.dispatch.cache import Plan
from fastq.dispatch.parameters import result_of
from fastq.dispatch.planner import COPY
from fastq.dispatch.strides import TILE, is_plain, tiles
from fastq.formats.gguf import BLOCK, BlockFormat, as_block_format
from fastq.kernels.build import compile_kernel, element_type
from fastq.kernels.loops import gguf
from fastq.kernels.operands import CopyOperands
from fastq.runtime import threadpool
from fastq.runtime.driver import UNFIT, Checks, LaunchPlan, bind, plan_launch, run
from fastq.system import tuning
from fastq.system.arguments import native

Array = NDArray[Any]

_UINT8, _FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)
_SOURCES = {dtype.name for dtype in (*validation.FLOATS, *validation.INTEGERS)} | {"float16", "bfloat16"}


def gguf_quantize(data: Array, out: Any, _s: None, _z: None, _q: None, qtype: object, *_: None) -> Plan:
    """Resolve `fastq.gguf.quantize`."""
    row = as_block_format(qtype)
    if data.dtype.name not in _SOURCES:
        raise TypeError(f"data must be float32, float16, bfloat16, float64 or an integer array, not {data.dtype}")
    shape = _shape(data, BLOCK, "values", row.nbytes, row)
    launch = _launch(
        gguf.quantize_blocks, row, data, BLOCK, out, shape, _UINT8, row.nbytes, tuning.current().stream_codes
    )

    def quantize(data: Array, out: Any, *_: object) -> Array:
        blocks, refused = launch(data, out)
        if refused >= 0:
            _refuse(data, refused, row)
        return blocks

    return quantize


def gguf_dequantize(data: Array, out: Any, _s: None, _z: None, _q: None, qtype: object, *_: None) -> Plan:
    """Resolve `fastq.gguf.dequantize`."""
    row = as_block_format(qtype)
    if data.dtype != _UINT8:
        raise TypeError(f"data must be uint8, the bytes of blocks, not {data.dtype}")
    shape = _shape(data, row.nbytes, "bytes", BLOCK, row)
    launch = _launch(gguf.dequantize_blocks, row, data, row.nbytes, out, shape, _FLOAT32, BLOCK, True)
    return lambda data, out, *_: launch(data, out)[0]


def _launch(
    loop: Any,
    row: BlockFormat,
    data: Array,
    width: int,
    out: Any,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    result_width: int,
    streams: bool,
) -> Callable[[Array, Any], tuple[Array, int]]:
    """Return what turns `width` elements of arrays alike into `result_width` of a result, and says what was refused."""
    result = result_of(shape, dtype, out)
    blocks, target = data.size // width, None if out is None else np.asarray(out)
    if not blocks:
        return lambda data, out: (result.new() if out is None else out, -1)
    plain = is_plain(data) and is_plain(target)
    past_cache = streams and plain and data.nbytes + result.nbytes >= tuning.current().stream_from
    kernel = _compiled(loop, row, native(data.dtype), dtype, past_cache)
    threads = threadpool.threads_for(blocks * BLOCK) if plain else 1
    plan = plan_launch(kernel, COPY, None, blocks, threads, size=BLOCK, chunk_multiple=gguf.GROUP)
    checked = bind(plan.checked(Checks((data.nbytes, result.nbytes, 0, 0))))

    def launch(data: Array, out: Any) -> tuple[Array, int]:
        values = result.new() if out is None else out
        status = checked(data, values) if plain and type(values) is np.ndarray else UNFIT
        if status == UNFIT:
            target = np.asarray(values)
            (data,) = validation.copy_if_overlapping(target, data)
            if not plain:
                return values, _run_tiles(plan, _in_blocks(data, width), _in_blocks(target, result_width))
            status = run(plan, data, target)
        return values, _first_reported(plan, data, np.asarray(values), blocks) if status else -1

    return launch


@functools.cache
def _compiled(loop: Any, row: BlockFormat, src: np.dtype[Any], dst: np.dtype[Any], streaming: bool) -> int:
    """Return the address of a loop compiled for a format and two dtypes."""
    source, target = element_type(src), element_type(dst)
    spec = gguf.BlockSpec(row, element_type(np.dtype(np.float16)), source, streaming)
    return compile_kernel(loop, CopyOperands(getattr(source, "bits", source), target), spec)


def _in_blocks(x: Array, width: int) -> Array:
    """View with an axis for the blocks of each row and one for what is in a block."""
    return x.reshape(*x.shape[:-1], -1, width)


def _run_tiles(whole: LaunchPlan, src: Array, dst: Array) -> int:
    width: int = src.shape[-1]
    most = min(TILE, src.size) // width
    buffers = [np.empty((most, x.shape[-1]), native(x.dtype)) for x in (src, dst)]
    for index, start, stop in tiles(src.shape):
        part, blocks = src[index], (stop - start) // width
        x, y = (buffer[:blocks] for buffer in buffers)
        np.copyto(x.reshape(part.shape), part)
        if run(whole.part(0, blocks), x, y):
            return start // width + _first_reported(whole, x, y, blocks)
        dst[index] = y.reshape(*part.shape[:-1], dst.shape[-1])
    return -1


def _first_reported(whole: LaunchPlan, src: Array, dst: Array, stop: int) -> int:
    """Find the first of blocks 0..stop that a plan reports, by halving."""
    start = 0
    while stop - start > 1:
        middle = (start + stop) // 2
        if run(whole.part(start, middle), src, dst):
            stop = middle
        else:
            start = middle
    return start


def _shape(data: Array, width: int, what: str, becomes: int, row: BlockFormat) -> tuple[int, ...]:
    """Shape of the result, in which each `width` elements of a row become so many.

    Raises
    ------
    ValueError
        If rows are not a multiple of the width.
    """
    shape = data.shape
    if not shape or shape[-1] % width:
        raise ValueError(
            f"data has shape {shape}, but for qtype {row} its last axis must be a multiple of {width}, "
            f"the {what} of a block"
        )
    return (*shape[:-1], shape[-1] // width * becomes)


def _refuse(data: Array, block: int, row: BlockFormat) -> None:
    index_of_row, place = divmod(block, data.shape[-1] // BLOCK)
    index = tuple(int(k) for k in np.unravel_index(index_of_row, data.shape[:-1])) if data.ndim > 1 else ()
    first = place * BLOCK
    with np.errstate(over="ignore"):
        finite = np.isfinite(data[index][first : first + BLOCK].astype(np.float32)).all()
    reason = f"values too large for the float16 parameters of {row}" if finite else "NaN or infinity"
    where = f"row {index[0] if len(index) == 1 else index} of data" if index else "data"
    raise ValueError(f"{where} has {reason} in elements {first}..{first + BLOCK - 1}")
