"""Loops over runs of a few elements with one scale and zero point each, all of one length: by registers across them."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.body import rebase, with_memory
from fastq.kernels.operands import parameter_bits
from fastq.kernels.sizes import LONGEST, RUNS_TOGETHER
from fastq.kernels.traversal import columns

_SPREAD = LONGEST + 1  # parameters that are written at a time, up to this many too many
_ROOM = 8 * (RUNS_TOGETHER * LONGEST + _SPREAD)  # bytes of the scales, or zero points, of these elements


@traced
def short_runs(spec, operands, args, units):
    """Visit elements start..stop, `args.merged` runs at a time as a row of columns, by parameters of each element."""
    operands = rebase(operands, args, units)
    room = (v.scratch(_ROOM, types.uint8), v.scratch(_ROOM, types.uint8))
    i = units.start
    stop = units.stop
    size = args.block
    status = 0
    while i < stop:
        run = i // size
        first = run * size
        end = min(first + args.merged * size, stop)
        spread = _spread_parameters(operands, size, run, (end - first + size - 1) // size, room)
        status |= columns.visit(spec, spread, args, -first, i, end)  # element `first` has parameter 0 of these
        i = end
    return status


@traced
def _spread_parameters(operands, size, p, many, room):
    """Return operands with the parameters of `many` runs from p on, each repeated for all elements of its run."""
    scale, zero_point = parameter_bits(operands)
    scales = v.cast_pointer(room[0], v.dtype_of(scale))
    zero_points = v.cast_pointer(room[1], v.dtype_of(zero_point))
    for k in range(many):  # what is written too much, the next run writes over
        v.store(scales, k * size, v.full(scale[p + k], _spread_lanes(scale)))
        v.store(zero_points, k * size, v.full(zero_point[p + k], _spread_lanes(zero_point)))
    return with_memory(operands, room)


@traced
def _spread_lanes(pointer):
    """Vec type of as many elements of a pointer as are written at a time."""
    return v.Vec(pointer.dtype, _SPREAD)
