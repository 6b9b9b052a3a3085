"""Cast floats to integers of 8 to 32 bits: any rounding, and what is out of range refused, clamped or wrapped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fastq.engine import simd as v
from fastq.engine.jit import Constants, njit, traced
from fastq.kernels.body import rebase
from fastq.kernels.formulas import round_by_rule
from fastq.kernels.load_store import load_elements, prefetch_distance, prefetch_lanes
from fastq.kernels.operands import register_lanes
from fastq.kernels.rule import Rule
from fastq.kernels.spec import status_of
from fastq.kernels.status import OUT_OF_RANGE


@dataclass(eq=False, repr=False)
class CastSpec(Constants):
    """Type of an argument that chooses the code of a cast."""

    rule: Rule  # its `rounding` is that of the cast
    wraps: bool  # whether values out of range wrap around; else they are clamped, and reported
    nan: str  # "raise": report what is not finite; "keep": NaN becomes the number `args.size`, infinities are too large
    scaled: bool  # whether values are cast in units of a scale, from an offset on
    scale_kind: ClassVar[str] = ""


@traced
def _wrapped(x, integer):
    """Add a multiple of the number of integers to whole numbers, so that they are in range; all steps are exact."""
    number = 2.0**integer.bitwidth
    rest = x - v.floor(x * v.constant(1 / number, x)) * v.constant(number, x)
    if not integer.signed:
        return rest
    return v.select(rest >= v.constant(number / 2, rest), rest - v.constant(number, rest), rest)


@traced
def _cast_lanes(spec, operands, args, i, kind):
    """Cast the elements of a Vec or scalar type from src[i] on; return whether any is not finite, or out of range."""
    compute, integer = operands.scale.dtype, operands.dst.dtype
    x = load_elements(operands.src, i, kind)
    units = v.convert(x, compute)
    if spec.scaled:
        units = (units - operands.zero_point[0]) / operands.scale[0]
    whole = round_by_rule(spec, units)
    outside = False if spec.wraps else v.any_lane((whole < args.lowest) | (whole > args.highest))
    inside = v.minimum(v.maximum(_wrapped(whole, integer) if spec.wraps else whole, args.lowest), args.highest)
    integers = v.bounded_to_integer(inside, integer)
    if spec.nan == "raise":
        special = v.any_lane((v.absolute(x) < v.constant(float("inf"), x)) ^ True)
    else:
        special, integers = False, v.select(v.is_nan(x), v.convert(args.size, integer), integers)
    v.store(operands.dst, i, integers)
    return special, outside


@njit
def cast(spec, operands, args, units):
    """Cast elements start..stop; src and dst hold those from `origin` on."""
    operands = rebase(operands, args, units)
    vec, i, stop = register_lanes(operands), units.start, units.stop
    special, outside = False, False
    while i <= stop - v.count(vec):
        prefetch_lanes(operands.src, i + prefetch_distance(operands.src), vec)
        nan, out = _cast_lanes(spec, operands, args, i, vec)
        special, outside = special | nan, outside | out
        i += v.count(vec)
    while i < stop:
        nan, out = _cast_lanes(spec, operands, args, i, v.dtype_of(operands.src))
        special, outside = special | nan, outside | out
        i += 1
    return status_of(special, False) | OUT_OF_RANGE * outside
