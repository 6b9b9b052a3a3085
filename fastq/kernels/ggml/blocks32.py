"""Loops over blocks of 32 values that have float16 parameters, in block formats of GGUF."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.formats.gguf import BLOCK
from fastq.kernels.ggml.fields import store_block
from fastq.kernels.ggml.spec import GROUP, half, is_special, values_from
from fastq.kernels.load_store import prefetch_lanes
from fastq.kernels.status import HAS_INFINITE_RANGE
from fastq.kernels.traversal.block_extremes import ends_of, magnitudes_of, make_block_extremes
from fastq.kernels.traversal.streaming import flush, stage_at, store_tail, write_pointer

_blocks_ahead = v.tuned("prefetch_blocks")  # while codes are written, for the extremes of the groups to come

_F32 = v.Vec(types.float32, GROUP)
_ROW = v.Vec(types.float32, BLOCK)
_GROUP_VALUES = GROUP * BLOCK
_STAGE_BYTES = _GROUP_VALUES * 4 + 2 * v.LINE  # bytes of a group, of values or blocks, as they are staged
_SIGN = -(1 << 31)
_BELOW_HALF = 0x3EFFFFFF  # bits of the float32 before 0.5


# --- quantize ---------------------------------------------------------------------------------------------------------


@traced
def quantize_blocks(spec, operands, args, units):
    """Quantize blocks start..stop; src and dst begin with block `origin`. Reports a block that has no finite scale."""
    src = v.advance(operands.src, -units.origin * BLOCK)
    dst = v.advance(operands.dst, -units.origin * spec.nbytes)
    values_of_few = v.scratch(_GROUP_VALUES, v.dtype_of(src))
    bytes_of_few = v.scratch(_STAGE_BYTES, types.uint8)
    stage = stage_at(v.scratch(_STAGE_BYTES, types.uint8), v.advance(dst, units.start * spec.nbytes))
    p = units.start
    stop = units.stop
    refused = False
    while p < stop:
        x = v.advance(src, p * BLOCK)
        y = v.advance(dst, p * spec.nbytes)
        blocks = stop - p
        if spec.streaming:
            y = write_pointer(stage)
        if blocks < GROUP:  # by way of a group on the stack
            x = values_of_few
            y = bytes_of_few
            for i in range(blocks * BLOCK):
                v.store(x, i, v.load(src, p * BLOCK + i, v.dtype_of(src)))  # at any address
            for i in range(blocks * BLOCK, _GROUP_VALUES):
                x[i] = 0
        refused |= _quantize_group(spec, x, y)
        if blocks < GROUP:
            for i in range(blocks * spec.nbytes):
                dst[p * spec.nbytes + i] = y[i]
        elif spec.streaming:
            stage = flush(stage, GROUP * spec.nbytes)
        p += GROUP
    if spec.streaming:
        store_tail(stage)
    return HAS_INFINITE_RANGE * refused


@traced
def _quantize_group(spec, src, dst):
    """Sixteen blocks: their parameters are computed side by side, and one division serves for all."""
    scales = v.scratch(GROUP, types.uint16)
    minima = v.scratch(GROUP, types.uint16)
    inverses = v.scratch(GROUP, types.float32)
    shifts = v.scratch(GROUP, types.float32)
    extremes = block_extremes((spec, src), 0, GROUP)
    p = parameters(spec, *scaled_extent(spec, src, extremes))
    v.store(scales, 0, p.scale)
    v.store(minima, 0, p.minimum)
    v.store(inverses, 0, p.inverse)
    v.store(shifts, 0, p.shift)
    for k in range(GROUP):
        prefetch_lanes(src, k * BLOCK + _blocks_ahead(), v.lanes_like(_ROW, src))
        codes = codes_of(spec, values(spec, src, k * BLOCK), inverses[k], shifts[k])
        store_block(spec, dst, k * spec.nbytes, scales[k], minima[k], codes)
    return v.any_lane(p.refused | extremes.nan)


@traced
def values(spec, src, i):
    """Load the block that begins with src[i] as float32."""
    return values_from(spec, src, i, _ROW)


@traced
def _extremes_of_block(context, k):
    """Reduce block k of a group to `BlockExtremes` in a register."""
    spec, src = context
    reduce = magnitudes_of if spec.block_format.extent == "magnitude" else ends_of
    return reduce(values(spec, src, k * BLOCK), GROUP)


block_extremes = make_block_extremes(_extremes_of_block)


@traced
def scaled_extent(spec, src, s):
    """Return what the scales of a group are a fraction of, and what is subtracted from values before."""
    if spec.block_format.extent == "magnitude":
        size = v.bitcast(s.high, types.float32)
        return size, v.full_like(v.constant(0, size), size)
    zero = v.full_like(v.constant(0, s.low), s.low)
    if spec.block_format.extent == "signed":
        extent = v.select(s.high > -s.low, s.high, s.low)
        return _with_signs(spec, src, extent, v.any_lane(s.high == -s.low)), zero
    low = _with_signs(spec, src, s.low, v.any_lane(s.low == zero))
    return v.maximum(s.high, low) - low, low


@traced
def _with_signs(spec, src, extreme, doubtful):
    """Return extremes, with the signs that ggml gives them where it is in doubt which of two numbers was found.

    In doubt is whether 0.0 or -0.0 is the smallest value, or which of two values of the largest magnitude comes first.
    """
    return _with_first_signs(spec, src, extreme) if doubtful else extreme


@traced
def _with_first_signs(spec, src, extreme):
    """Give each extreme of a group the sign that it has where it comes first in its block."""
    memory = v.scratch(GROUP, types.float32)
    v.store(memory, 0, extreme)
    for k in range(GROUP):
        x = values(spec, src, k * BLOCK)
        size = v.absolute(memory[k])
        word = v.bitcast(x, types.int32)
        at = v.mask_to_bits(is_extreme(spec, x, memory[k]))
        negative = (v.mask_to_bits(word < v.constant(0, word)) & at & -at) != 0
        memory[k] = v.select(negative, -size, size)
    return v.load(memory, 0, _F32)


@traced
def is_extreme(spec, x, extreme):
    """Mask of the lanes where the extreme is, whatever its sign where that is in doubt."""
    return v.absolute(x) == v.absolute(extreme) if spec.block_format.extent == "signed" else x == extreme


class BlockParameters(NamedTuple):
    """Stored parameters of blocks, the input of `codes_of`, and a mask of blocks without finite ones."""

    scale: Any
    minimum: Any
    inverse: Any
    shift: Any
    refused: Any


@traced
def parameters(spec, extent, lowest):
    """Compute parameters from the result of `scaled_extent`. A reciprocal that overflows leaves every code 0.

    Codes are taken with the scale before it is rounded to float16.
    """
    scale = extent / v.constant(spec.block_format.steps, extent)
    zero = v.full_like(v.constant(0, scale), scale)
    inverse = v.select(scale == zero, zero, v.constant(1, scale) / scale)
    usable = v.absolute(inverse) < v.constant(float("inf"), scale)
    stored = half(spec, scale)
    least = half(spec, lowest)
    shift = lowest
    if spec.block_format.extent == "signed":  # what to add before truncation
        shift = v.select(usable, v.constant(spec.block_format.zero + 0.5, lowest), v.full_like(0.5, lowest))
    refused = is_special(spec, stored) | is_special(spec, least)
    return BlockParameters(stored, least, v.select(usable, inverse, zero), shift, refused)


@traced
def codes_of(spec, x, inverse, shift):
    """Compute the codes of a block as int32; in a block that is refused they are undefined."""
    if spec.block_format.extent == "magnitude":
        # half less one ulp, with the sign of x: the sum's fraction is cut to the nearest whole number, halves away
        word = v.bitcast(x, types.int32)
        towards = v.bitcast((word & v.constant(_SIGN, word)) | v.constant(_BELOW_HALF, word), types.float32)
        return v.bounded_to_integer(x * inverse + towards, types.int32)
    signed = spec.block_format.extent == "signed"
    position = x * inverse + shift if signed else (x - shift) * inverse + v.constant(0.5, x)
    return v.bounded_to_integer(v.minimum(position, v.constant(float(2**spec.block_format.bits - 1), x)), types.int32)
