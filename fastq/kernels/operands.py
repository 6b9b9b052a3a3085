"""What a kernel works on: typed operands, numeric arguments in registers, and the units that one call visits."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import from_dtype, types

from fastq.engine import simd as v
from fastq.engine.jit import njit, traced
from fastq.kernels.args import KERNEL_ARGS, STAGED, STRAIGHT, WHOLE_ROWS
from fastq.kernels.storage import widest_bits

KERNEL_ARGS_TYPE = from_dtype(KERNEL_ARGS)  # passed to a kernel as its address


class Units(NamedTuple):
    """Units `start` to `stop` of the work, by the thread of a slot; src and dst begin with element `origin`."""

    origin: Any
    start: Any
    stop: Any
    slot: Any


class Args(NamedTuple):
    """`KERNEL_ARGS` in registers: from memory they would be read anew after each store, which might have changed it."""

    outer: Any
    length: Any
    inner: Any
    block: Any
    blocks: Any
    cycle: Any
    kept: Any
    lowest: Any
    highest: Any
    tensor: Any
    streaming: Any
    staging: Any
    whole_rows: Any
    outgrows_cache: Any
    repeat: Any
    chunk: Any
    size: Any
    partials: Any
    partial_stride: Any
    grid: Any
    candidates: Any


@njit
def load_args(args, compute):
    """Load numeric arguments, floats in the type to compute in."""
    indexing = (args.outer, args.length, args.inner, args.block, args.blocks, args.cycle, args.kept)
    floats = (v.convert(args.lowest, compute), v.convert(args.highest, compute), v.convert(args.tensor, compute))
    modes = (args.streaming == STRAIGHT, args.streaming == STAGED, args.streaming == WHOLE_ROWS)
    return Args(*indexing, *floats, *modes, *_others(args))


@njit
def without_streaming(args):
    """Return the same arguments for results that stay in the cache."""
    indexing = (args.outer, args.length, args.inner, args.block, args.blocks, args.cycle, args.kept)
    floats = (args.lowest, args.highest, args.tensor)
    return Args(*indexing, *floats, False, False, False, *_others(args))


@njit
def _others(args):
    sizes = args.chunk, args.size, args.partials, args.partial_stride, args.grid, args.candidates
    return args.outgrows_cache != 0, args.repeat, *sizes


@traced
def parameter_bits(operands):
    """Return pointers to the bits of scales and of zero points."""
    return _as_bits(operands.scale), _as_bits(operands.zero_point)


@traced
def _as_bits(where):
    return v.cast_pointer(where, types.Integer.from_bitwidth(where.dtype.bitwidth, False))


def pointer_types(operands: types.NamedTuple) -> dict[str, types.CPointer]:
    """Return the types of the pointers by their names."""
    return dict(zip(operands.fields, operands.types, strict=True))


@traced
def register_lanes(operands):
    """Vec type of elements of the first operand: of the widest of it, results and scales a register is full."""
    dtypes = {name: pointer.dtype for name, pointer in pointer_types(operands).items()}
    elements, scale = [dtypes[name].bitwidth for name in ("src", "dst", "lo") if name in dtypes], dtypes.get("scale")
    widest = widest_bits(elements, None if scale is None else scale.bitwidth)
    return v.Vec(operands[0].dtype, v.REGISTER_BITS // widest)
