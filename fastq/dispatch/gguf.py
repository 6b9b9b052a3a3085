"""From arrays to the kernels of block formats: which kernel, in place or tile by tile, which block was refused."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.planner import STREAMING
from fastq.dispatch.strides import TILE, is_plain, tiles
from fastq.formats.gguf import BLOCK, BlockFormat
from fastq.kernels.build import compile_kernel, element_type
from fastq.kernels.loops import gguf
from fastq.kernels.operands import CopyOperands
from fastq.runtime import threadpool
from fastq.runtime.driver import NONE, OUT, Program, X, program, run
from fastq.system import tuning

Array = NDArray[Any]


def _kernel(loop: Any, form: BlockFormat, src: Array, dst: Array, pays: bool) -> int:
    """Address of a loop for two arrays; whether it pays to store what is large past the cache."""
    streaming = pays and src.nbytes + dst.nbytes >= STREAMING and is_plain(src) and is_plain(dst)
    return _compiled(loop, form, src.dtype, dst.dtype, streaming)


@functools.cache
def _compiled(loop: Any, form: BlockFormat, src: np.dtype[Any], dst: np.dtype[Any], streaming: bool) -> int:
    """Address of a loop compiled for a format and two dtypes."""
    source, target = element_type(src.newbyteorder("=")), element_type(dst.newbyteorder("="))
    spec = gguf.BlockSpec(form, element_type(np.dtype(np.float16)), source, streaming)
    return compile_kernel(loop, CopyOperands(getattr(source, "bits", source), target), spec)


@functools.lru_cache(4096)
def _program(kernel: int, blocks: int, threads: int) -> Program:
    return program(kernel, (X, OUT, NONE, NONE, NONE), None, blocks, threads, size=BLOCK, grain=gguf.GROUP)


def quantize(data: Array, out: Array, form: BlockFormat) -> int:
    """Write the blocks of data to out; return the first block that has no finite scale, -1 where all have one."""
    kernel = _kernel(gguf.quantize_blocks, form, data, out, tuning.current().stream_codes)
    return _run(kernel, data, BLOCK, out, form.nbytes)


def dequantize(data: Array, out: Array, form: BlockFormat) -> None:
    """Write the values of the blocks in data to out."""
    kernel = _kernel(gguf.dequantize_blocks, form, data, out, True)
    _run(kernel, data, form.nbytes, out, BLOCK)


def _run(kernel: int, src: Array, width: int, dst: Array, dst_width: int) -> int:
    """Run a kernel on blocks of `width` elements of src, which become `dst_width` of dst; the first one reported."""
    blocks = src.size // width
    if is_plain(src) and is_plain(dst):
        whole = _program(kernel, blocks, threadpool.threads_for(blocks * BLOCK))
        return _first_reported(whole, src, dst, blocks) if run(whole, src, dst) else -1
    return _run_tiles(_program(kernel, blocks, 1), _in_blocks(src, width), _in_blocks(dst, dst_width))


def _in_blocks(x: Array, width: int) -> Array:
    """View with an axis for the blocks of each row and one for what is in a block."""
    return x.reshape(*x.shape[:-1], -1, width)


def _run_tiles(whole: Program, src: Array, dst: Array) -> int:
    width: int = src.shape[-1]
    most = min(TILE, src.size) // width
    buffers = [np.empty((most, x.shape[-1]), x.dtype.newbyteorder("=")) for x in (src, dst)]
    for index, start, stop in tiles(src.shape):
        part, blocks = src[index], (stop - start) // width
        x, y = (buffer[:blocks] for buffer in buffers)
        np.copyto(x.reshape(part.shape), part)
        if run(whole.part(0, blocks), x, y):
            return start // width + _first_reported(whole, x, y, blocks)
        dst[index] = y.reshape(*part.shape[:-1], dst.shape[-1])
    return -1


def _first_reported(whole: Program, src: Array, dst: Array, stop: int) -> int:
    """Find the first of blocks 0..stop that a program reports, by halving."""
    start = 0
    while stop - start > 1:
        middle = (start + stop) // 2
        if run(whole.part(start, middle), src, dst):
            stop = middle
        else:
            start = middle
    return start
