"""Scales and zero points of ranges that are in memory: the step between a reduction and a conversion."""

from __future__ import annotations

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.formulas import is_infinite
from fastq.kernels.minifloat import offset_as_stored, scale_as_stored
from fastq.kernels.operands import fewest_lanes, register_lanes
from fastq.kernels.parameters import store_parameters
from fastq.kernels.scales_of_ranges import range_parameters
from fastq.kernels.spec import status_of


@traced
def parameters_of_ranges(spec, operands, args, units):
    """Convert ranges start..stop to scales and zero points by the scheme."""
    infinite = _convert_ranges(spec, operands, args, units.start, units.stop, fewest_lanes(operands))
    return status_of(infinite=infinite)


@traced
def parameters_of_many_ranges(spec, operands, args, units):
    """Convert ranges start..stop as `parameters_of_ranges`, as many at a time as registers hold.

    It takes twice as long to compile: decision D39.
    """
    vec = register_lanes(operands)
    few = fewest_lanes(operands)
    whole = units.stop - (units.stop - units.start) % v.count(vec)
    infinite = _convert_ranges(spec, operands, args, units.start, whole, vec)
    return status_of(infinite=infinite | _convert_ranges(spec, operands, args, whole, units.stop, few))


@traced
def round_to_stored_type(spec, operands, args, units):
    """Round scales and offsets start..stop to the type of half precision that they are stored in, in place.

    Where the convention says ``codes_by="unrounded"`` this is the last step: codes were computed with all their digits.
    """
    scale = operands.scale
    vec = v.Vec(scale.dtype, v.REGISTER_BITS // scale.dtype.bitwidth)
    whole = units.stop - (units.stop - units.start) % v.count(vec)
    for p in range(units.start, whole, v.count(vec)):
        _round_lanes(spec, operands, p, vec)
    for p in range(whole, units.stop):
        _round_lanes(spec, operands, p, v.Vec(scale.dtype, 1))
    return status_of()


@traced
def _round_lanes(spec, operands, p, vec):
    """Round the scales and offsets from p on, as many as `vec` has lanes, in place."""
    v.store(operands.scale, p, scale_as_stored(spec, v.load(operands.scale, p, vec)))
    if spec.rule.zero == "offset":
        v.store(operands.zero_point, p, offset_as_stored(spec, v.load(operands.zero_point, p, vec)))


@traced
def _convert_ranges(spec, operands, args, start, stop, vec):
    """Convert ranges start..stop, as many at a time as there are lanes; return whether any scale is infinite."""
    infinite = False
    for p in range(start, stop, v.count(vec)):
        lo, hi = v.load(operands.lo, p, vec), v.load(operands.hi, p, vec)
        scale, zero_point = range_parameters(spec, lo, hi, args, operands.scale)
        store_parameters(spec, operands, p, scale, zero_point)
        infinite |= v.any_lane(is_infinite(scale))
    return infinite
