"""Loops over runs of a few elements with one scale and zero point each, all of one length: by registers across them."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import njit, specialize
from fastq.kernels.body import rebase, reduction_of, visit_run, with_parameters
from fastq.kernels.load_store import PREFETCH, load_elements
from fastq.kernels.operands import parameter_bits
from fastq.kernels.spec import nan_mask, status_of
from fastq.kernels.traversal import columns

# Elements of a run at most, which fill no register, but for `compare`. One thread of a Zen 5, 2**20 elements, beside
# runs one by one: float32 of 2, 4, 8, 12 elements by given parameters 2.9, 3.4, 1.7, 2.4 times as fast, decoded 2.3,
# 2.8, 1.6, 2.0, `compare` 9, 10, 0.92, 4.7, by own ranges in two passes 3.2, 4.2, 2.8, 4.2.
LONGEST = 15
# and of minima, which need no whole register: float32 of 4, 12, 16, 32 elements 2.8, 3.5, 2.4, 1.6 times as fast, bytes
# of 16, 32, 48, 63 3.5, 1.8, 1.3, 1.2, of 64 0.8; float64 of 16 to 24 1.2 to 1.4
LONGEST_REDUCED, LONGEST_BYTES = 32, 63
RUNS_TOGETHER = 64  # whose elements are visited as a row: whole lines of any type
_SPREAD = LONGEST + 1  # parameters that are written at a time, up to so many too many
_ROOM = 8 * (RUNS_TOGETHER * LONGEST + _SPREAD)  # bytes of the scales, or zero points, of so many elements


@njit
def short_runs(spec, operands, args, units):
    """Visit elements start..stop, `args.repeat` runs at a time; src and dst hold the elements from `origin` on."""
    memory = v.scratch(_ROOM, types.uint8), v.scratch(_ROOM, types.uint8)
    return _visit(spec, rebase(operands, args, units), args, units.start, units.stop, memory)


@specialize
def _visit(spec, operands, args, start, stop, memory):
    """Visit elements start..stop; return the status."""
    return _reduce if reduction_of(operands) else _convert


# --- parameters for each element --------------------------------------------------------------------------------------


@njit
def _convert(spec, operands, args, i, stop, memory):
    """Visit elements as a row of columns, by parameters that are spread over the elements of their runs."""
    size, status = args.block, 0
    while i < stop:
        run = i // size
        first = run * size
        end = min(first + args.repeat * size, stop)
        beside = _spread(operands, size, run, (end - first + size - 1) // size, memory)
        status |= columns.visit(spec, beside, args, -first, i, end)
        i = end
    return status


@njit
def _spread(operands, size, p, many, memory):
    """Operands with the parameters of so many runs from p on, each as often as a run has elements."""
    scale, zero_point = parameter_bits(operands)
    scales, zero_points = (
        v.cast_pointer(memory[0], v.dtype_of(scale)),
        v.cast_pointer(memory[1], v.dtype_of(zero_point)),
    )
    for k in range(many):  # what is written too much, the next run writes over
        v.store(scales, k * size, v.full(scale[p + k], _spread_lanes(scale)))
        v.store(zero_points, k * size, v.full(zero_point[p + k], _spread_lanes(zero_point)))
    return with_parameters(operands, scales, zero_points)


@specialize
def _spread_lanes(where):
    """Vec type of as many elements of a pointer as are written at a time."""
    return v.Vec(where.dtype, _SPREAD)


# --- reductions -------------------------------------------------------------------------------------------------------


@njit
def _reduce(spec, operands, args, i, stop, memory):
    """Merge elements into the results of their runs, as many at a time as a square has rows."""
    size, status = args.block, 0
    vec = _lanes_of_square(operands.src)
    n = v.count(vec)
    while i < stop:
        run = i // size
        if i == run * size and i + (n - 1) * size + max(n, size) <= stop:
            status |= _merge_runs(spec, operands, run, i, size, vec, memory[0])
            i += n * size
        else:
            end = min((run + 1) * size, stop)
            status |= visit_run(spec, operands, args, run, i, end)
            i = end
    return status


@specialize
def _lanes_of_square(src):
    """Vec type of elements of which as many are transposed in registers."""
    return v.square_lanes(src.dtype)


@specialize
def _merge_runs(spec, operands, p, i, size, vec, memory):
    """Merge as many runs from i on as `vec` has lanes into the results from p on."""
    reduction = reduction_of(operands)
    load, add, finish = reduction.load, reduction.add, reduction.finish

    def merge(spec, operands, p, i, size, vec, memory):
        n, step, state = v.count(vec), 0, load(operands, p, vec)
        nans = nan_mask(spec, state[0])
        line = v.LINE * 8 // v.bits_of(operands.src)
        if size >= line:  # which the CPU does not fetch ahead: runs of 24 float32, 2**25 elements, 1.4 times as fast
            for k in range(0, n * size, line):
                v.prefetch(operands.src, i + k + PREFETCH)
        while step < size:  # some elements of each run; the last ones may overlap those before
            step = max(min(step, size - n), 0)
            columns_of_runs = _transposed(operands.src, i + step, size, vec, memory)
            for j in range(min(n, size)):
                x = load_elements(columns_of_runs, j * n, vec)
                nans = nans | nan_mask(spec, x)
                state = add(x, state)
            step += n
        finish(operands, p, state, nans)
        return status_of(v.any_lane(nans), False)

    return merge


@specialize
def _transposed(src, i, step, vec, memory):
    """Write a square whose rows begin `step` elements apart, from src[i] on, to memory column by column; a pointer."""
    bits, kind = types.Integer.from_bitwidth(src.dtype.bitwidth, False), src.dtype
    lanes, size = v.Vec(bits, vec.instance_type.n), src.dtype.bitwidth // 8

    def transposed(src, i, step, vec, memory):
        rows = v.load_square(v.cast_pointer(v.advance(src, i), bits), step * size, lanes)
        v.store_rows(v.cast_pointer(memory, bits), v.count(vec) * size, v.transpose(rows))
        return v.cast_pointer(memory, kind)

    return transposed
