"""Minimum and maximum of contiguous elements; what becomes of NaN in them is in fastq/kernels/nan.py."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import TARGET, traced
from fastq.kernels.body import BODIES, Body, Reduction, add_to_state, finish_state, load_state
from fastq.kernels.load_store import load_elements, prefetch_ahead, prefetch_lanes
from fastq.kernels.minifloat import Minifloat
from fastq.kernels.nan import first_min_max, min_max_identities, nan_in_halves, store_min_max
from fastq.kernels.pointers import MinMaxOperands, PartialOperands
from fastq.kernels.spec import status_of

# Registers of 512 bits that are four independent chains at least, which hide the latency of a minimum. Four of minima
# and four of maxima are all that AVX2 or NEON has: decision D30
FOUR_CHAINS = 4 if TARGET.has("avx512f") else 2


@traced
def lanes_once_loaded(registers, src):
    """Vec type of elements of src that fill `registers`, a literal, once they are loaded."""
    width = 32 if isinstance(src.dtype, Minifloat) else src.dtype.bitwidth
    return v.Vec(src.dtype, registers * v.REGISTER_BITS // width)


@traced
def few_lanes(src):
    """Vec type of as many elements of src as a register holds of float32, or of elements that are wider."""
    return v.Vec(src.dtype, v.REGISTER_BITS // max(src.dtype.bitwidth, 32))


@traced
def min_max(src, i, end):
    """Reduce src[i:end], one element or more, to its minimum and maximum without NaN, and whether there was a NaN."""
    wide = lanes_once_loaded(FOUR_CHAINS, src)
    narrow = lanes_once_loaded(1, src)
    few = few_lanes(src)
    if end - i >= v.count(wide):
        return _min_max(src, i, end, wide)
    if end - i >= v.count(narrow):
        return _min_max(src, i, end, narrow)
    if end - i >= v.count(few):
        return _min_max(src, i, end, few)
    x = load_elements(src, i, v.dtype_of(src))
    lo, hi = first_min_max(x)
    nan = x != x
    i += 1
    while i < end:
        x = load_elements(src, i, v.dtype_of(src))
        lo = v.minimum(x, lo)
        hi = v.maximum(x, hi)
        nan = nan | (x != x)
        i += 1
    return lo, hi, nan


@traced
def _min_max(src, i, end, vec):
    """Reduce src[i:end] as `min_max`, a Vec or more: after the first one from an aligned address on.

    The last Vec ends with the last element; elements that two of them have are seen twice.
    """
    n = v.count(vec)
    last = end - n
    x = load_elements(src, i, vec)
    los, his = first_min_max(x)
    nans = nan_in_halves(x)
    i = min(i + n - v.misalignment(src, i, vec), last)
    while True:
        prefetch_lanes(src, i + prefetch_ahead(), vec)
        x = load_elements(src, i, vec)
        los = v.minimum(x, los)
        his = v.maximum(x, his)
        nans = nans | nan_in_halves(x)
        if i == last:
            return v.reduce_min(los), v.reduce_max(his), v.any_lane(nans)
        i = min(i + n, last)


@traced
def min_max_of_run(src, i, end, vec):
    """Reduce src[i:end] as `min_max` does; what does not fill a register is read as the end of one that begins before.

    Where there is NaN, minimum and maximum are meaningless.
    """
    skipped = v.count(vec) - (end - i)
    if skipped <= 0:
        return min_max(src, i, end)
    x = load_elements(src, end - v.count(vec), vec)
    x = v.select(v.lanes_from(skipped, x), x, v.full_like(load_elements(src, i, v.dtype_of(src)), x))
    return v.reduce_min(x), v.reduce_max(x), v.any_lane(x != x)


# --- as a body --------------------------------------------------------------------------------------------------------


@traced
def _reduce_run(spec, operands, args, p, i, end):
    """Merge the minimum and maximum of a run into those with index p; return the status."""
    lo, hi, nan = min_max(operands.src, i, end)
    store_min_max(operands, p, v.minimum(lo, operands.lo[p]), v.maximum(hi, operands.hi[p]), nan)
    return status_of(nan=nan)


# --- short runs: as many as a square has rows, whose elements are transposed in registers ----------------------------

# Elements of a run at most, and bytes: decision D28
LONGEST = 32
LONGEST_BYTES = 63


@traced
def merge_short_runs(spec, operands, args, p, i, row_end, limit):
    """Merge runs into their results, see `Body`: as many together as a square has rows, so that each has its own lane.

    Rows that end with a shorter block are left to `_reduce_run`.
    """
    size = args.block
    first = i
    status = 0
    vec = square_of(operands.src)
    n = v.count(vec)
    if size < 2 or size > longest(operands.src) or args.length % size:
        return 0, i, row_end, 0
    memory = _square_on_stack(operands.src)
    while i + (n - 1) * size + max(n, size) <= limit:  # registers may reach beyond the last one of these runs
        status |= _merge_square(spec, operands, p + (i - first) // size, i, size, vec, memory)
        i += n * size
    # the row of the next run ends a whole number of rows after the one given
    return (i - first) // size, i, row_end + ((i - row_end) // args.length + 1) * args.length, status


@traced
def square_of(src):
    """Vec type of elements of which as many are transposed in registers."""
    return v.square_lanes(src.dtype)


@traced
def _square_on_stack(src):
    return v.scratch(v.square_lanes(src.dtype).n ** 2, src.dtype)


@traced
def longest(src):
    """Return the elements of a run at most that is taken with others."""
    return LONGEST_BYTES if src.dtype.bitwidth == 8 else LONGEST


@traced
def _merge_square(spec, operands, p, i, size, vec, memory):
    """Merge as many runs from i on as `vec` has lanes into the results from p on."""
    n = v.count(vec)
    offset = 0  # in each run
    state = load_state(operands, p, vec)
    nans = state[0] != state[0]  # none: results are never NaN
    line = v.LINE * 8 // v.bits_of(operands.src)
    if size >= line:  # which the CPU does not fetch ahead
        for k in range(0, n * size, line):
            v.prefetch(operands.src, i + k + prefetch_ahead())
    while offset < size:  # some elements of each run; the last ones may overlap those before
        offset = max(min(offset, size - n), 0)
        _transpose(operands.src, i + offset, size, vec, memory)
        for j in range(min(n, size)):
            x = load_elements(memory, j * n, vec)
            nans = nans | (x != x)
            state = add_to_state(operands, x, state)
        offset += n
    finish_state(operands, p, state, nans)
    return status_of(nan=v.any_lane(nans))


@traced
def _transpose(src, i, step, vec, memory):
    """Write a square whose rows begin `step` elements apart, from src[i] on, to memory column by column."""
    bits = types.Integer.from_bitwidth(src.dtype.bitwidth, False)
    size = src.dtype.bitwidth // 8
    rows = v.load_square(v.cast_pointer(v.advance(src, i), bits), step * size, v.Vec(bits, vec.n))
    v.store_rows(v.cast_pointer(memory, bits), vec.n * size, v.transpose(rows))


@traced
def _add(x, state):
    return v.minimum(x, state[0]), v.maximum(x, state[1])


@traced
def merge_extremes(state, other):
    """Return the smaller and the larger ones of two pairs."""
    return v.minimum(state[0], other[0]), v.maximum(state[1], other[1])


@traced
def _finish(operands, p, state, nans):
    store_min_max(operands, p, state[0], state[1], nans)


_REDUCTION = Reduction(min_max_identities, _add, merge_extremes, _finish)
BODIES[MinMaxOperands] = Body(_reduce_run, batch=merge_short_runs, reduction=_REDUCTION)
BODIES[PartialOperands] = Body(reduction=_REDUCTION)
