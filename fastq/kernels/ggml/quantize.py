"""Loops that quantize sixteen blocks of GGUF side by side: lane k of every Vec belongs to block k.

The values of a group are transposed in memory, so that number i of all blocks is one Vec. A format makes the numbers of
blocks of them (`quantize_group`), whose fields are rows of bytes in the same order, which are transposed back.
"""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.ggml.fields import BlockNumbers, pack
from fastq.kernels.ggml.least_error import lessen
from fastq.kernels.ggml.numbers import quantize_group
from fastq.kernels.ggml.scale_search import F32, I32, LANES, PART, SUBS, U8, VALUES
from fastq.kernels.ggml.spec import GROUP, is_special, values_from
from fastq.kernels.ggml.weights import BlockGroup, outweighs
from fastq.kernels.status import HAS_INFINITE_RANGE

_LINE = v.Vec(types.uint8, v.LINE)
_HALVES = v.Vec(types.uint16, LANES)
_ROOM = 224 * LANES  # bytes of a group, in whole rows of Vecs
_RESULTS = _ROOM + v.LINE  # bytes of a group, the last ones of which are written as whole Vecs

_INFINITY = 0x7F800000  # bits of a float32
_TOO_LARGE = 0x51800000  # those of 2.0**36: sums of a search would overflow


@traced
def quantize_groups(spec, operands, args, units):
    """Quantize blocks start..stop; src and dst begin with block `origin`. Reports blocks without finite parameters."""
    src = v.advance(operands.src, -units.origin * spec.size)
    dst = v.advance(operands.dst, -units.origin * spec.nbytes)
    x = v.scratch(VALUES, types.float32)
    importance = v.scratch(VALUES, types.float32)
    offsets = v.scratch(LANES, types.int64)
    means = v.scratch(LANES, types.float32)
    rows = v.scratch(_ROOM, types.uint8)
    results = v.scratch(_RESULTS, types.uint8)
    numbers = BlockNumbers(
        v.scratch(SUBS, types.uint16),
        v.scratch(LANES, types.uint16),
        v.scratch(SUBS, types.uint8),
        v.scratch(SUBS, types.uint8),
        v.scratch(PART, types.uint8),
        v.scratch(VALUES, spec.code),
    )
    p = units.start
    row = -1
    refused = False
    while p < units.stop:
        blocks = min(units.stop - p, GROUP)
        for k in range(LANES):  # those that there are not are like the last one
            offsets[k] = (p + min(k, blocks - 1)) * spec.size
        refused |= v.any_lane(load_group(spec, src, offsets, x) >= v.full(limit(spec), I32))
        row = load_importance(spec, operands, args, p, blocks, (row, src, offsets, importance, means))
        group = BlockGroup(x, importance, means)
        refused |= outweighs(spec, group)
        quantize_group(spec, group, numbers)
        lessen(spec, group, numbers)
        refused |= any_special(spec, numbers)
        pack(spec, numbers, rows)
        store_rows(rows, spec.nbytes, results)
        copy(results, v.advance(dst, p * spec.nbytes), blocks * spec.nbytes)
        p += GROUP
    return HAS_INFINITE_RANGE * refused


@traced
def any_special(spec, numbers):
    """Whether a float16 parameter of one of the blocks is infinite or NaN."""
    if spec.block_format.width("d") < 16:
        return False
    special = is_special(spec, v.load(numbers.d, 0, _HALVES))
    if spec.block_format.has_minimum:
        special = special | is_special(spec, v.load(numbers.min, 0, _HALVES))
    return v.any_lane(special)


@traced
def limit(spec):
    """Bits of the smallest magnitude that is refused: infinity, or less where a search adds up products."""
    return _TOO_LARGE if spec.block_format.searches(spec.weighted) else _INFINITY


@traced
def load_group(spec, src, offsets, x):
    """Transpose the values of sixteen blocks; return the largest bits of their magnitudes."""
    worst = v.full(0, I32)
    for i in range(0, spec.size, LANES):
        for k in range(LANES):
            value = values_from(spec, src, offsets[k] + i, F32)
            worst = v.maximum(worst, v.bitcast(value, types.int32) & v.constant(0x7FFFFFFF, worst))
            v.store(x, (i + k) * LANES, value)
        transpose(v.advance(x, i * LANES))
    return worst


@traced
def transpose(square):
    """Transpose a square in memory."""
    step = LANES * square.dtype.bitwidth // 8
    v.store_rows(square, step, v.transpose(v.load_square(square, step, v.Vec(square.dtype, LANES))))


@traced
def load_importance(spec, operands, args, p, blocks, context):
    """Transpose the importance of the columns of sixteen blocks, if there is one.

    Formats of 32 values also get the mean square of the row of each block: `row` is the one of the last block of the
    group before, or -1, whose mean square need not be computed again.
    """
    return _load_importance(spec, operands, args, p, blocks, context) if spec.weighted else -1


@traced
def _load_importance(spec, operands, args, p, blocks, context):
    """Do what `load_importance` says, and return the row of the last block."""
    row, src, offsets, importance, means = context
    for k in range(LANES):
        block = p + min(k, blocks - 1)
        row_of_block_k = block // args.row_blocks
        place = block % args.row_blocks
        if spec.of_rows:
            if row_of_block_k == row:
                means[k] = means[(k - 1) % LANES]
            else:
                row_of_block = v.advance(src, row_of_block_k * args.row_blocks * spec.size)
                means[k] = _mean_square_in_order(spec, row_of_block, args.row_blocks)
        row = row_of_block_k
        offsets[k] = (row_of_block_k // args.alike_rows * args.row_blocks + place) * spec.size
    for i in range(0, spec.size, LANES):
        for k in range(LANES):
            v.store(importance, (i + k) * LANES, v.load(operands.importance, offsets[k] + i, F32))
        transpose(v.advance(importance, i * LANES))
    return row


@traced
def _mean_square_in_order(spec, src, blocks):
    """Return the mean square of a row, whose squares are added one after the other, as ggml does."""
    total = v.convert(0, types.float32)
    few = v.scratch(LANES, types.float32)
    for i in range(0, blocks * spec.size, LANES):
        value = values_from(spec, src, i, F32)
        v.store(few, 0, value * value)
        for k in range(LANES):
            total = total + few[k]
    return total / v.convert(blocks * spec.size, types.float32)


@traced
def store_rows(rows, count, results):
    """Transpose rows of bytes to `count` bytes per block, the last ones first: excess bytes are overwritten."""
    chunks = (count + LANES - 1) // LANES
    for n in range(chunks):
        i = (chunks - 1 - n) * LANES
        transpose(v.advance(rows, i * LANES))
        for k in range(LANES):
            v.store(results, k * count + i, v.load(rows, (i + k) * LANES, U8))


@traced
def copy(src, dst, count):
    """Copy bytes, and write none beyond them: there are the blocks of another thread."""
    i = 0
    while i <= count - v.LINE:
        v.store(dst, i, v.load(src, i, _LINE))
        i += v.LINE
    while i < count:
        dst[i] = src[i]
        i += 1
