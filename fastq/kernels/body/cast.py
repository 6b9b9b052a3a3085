"""Cast floats to integers of 8 to 32 bits: any rounding, and what is out of range refused, clamped or wrapped."""

from __future__ import annotations

from numba import types
from numba.core.extending import models, register_model

from fastq.engine import simd as v
from fastq.engine.jit import njit, specialize
from fastq.kernels.body import rebase
from fastq.kernels.formulas import round_by_rule
from fastq.kernels.load_store import load_elements, prefetch_distance, prefetch_lanes
from fastq.kernels.operands import register_lanes
from fastq.kernels.rule import Rule
from fastq.kernels.spec import status_of
from fastq.kernels.status import OUT_OF_RANGE


class CastSpec(types.Opaque):
    """Type of an argument that is nothing at run time and chooses the code of a cast.

    Parameters
    ----------
    rule : Rule
        Its `rounding` is that of the cast.
    wraps : bool
        Whether values out of range wrap around; else they are clamped, and reported.
    nan : str
        "raise": report what is not finite; "keep": NaN is cast to the number `args.size`, infinities are out of range.
    scaled : bool
        Whether values are cast in units of a scale, from an offset on.
    """

    scale_kind = ""

    def __init__(self, rule: Rule, wraps: bool, nan: str, scaled: bool) -> None:
        self.rule, self.wraps, self.nan, self.scaled = rule, wraps, nan, scaled
        super().__init__(name=f"CastSpec({rule.rounding}, {wraps}, {nan}, {scaled})")


register_model(CastSpec)(models.OpaqueModel)


@specialize
def _units(spec, x, operands):
    """Convert values to the type to compute in, and to units of the scale."""
    if not spec.scaled:
        return lambda spec, x, operands: v.convert(x, v.dtype_of(operands.scale))

    def scaled(spec, x, operands):
        return (v.convert(x, v.dtype_of(operands.scale)) - operands.zero_point[0]) / operands.scale[0]

    return scaled


@specialize
def _wrapped(spec, x, integer):
    """Add a multiple of the number of integers to whole numbers, so that they are in range; all steps are exact."""
    if not spec.wraps:
        return lambda spec, x, integer: x
    number, half = 2.0**integer.dtype.bitwidth, 2.0 ** (integer.dtype.bitwidth - 1)

    def unsigned(spec, x, integer):
        return x - v.floor(x * v.constant(1 / number, x)) * v.constant(number, x)

    def signed(spec, x, integer):
        rest = unsigned_rest(spec, x, integer)
        return v.select(rest >= v.constant(half, rest), rest - v.constant(number, rest), rest)

    unsigned_rest = njit(unsigned)
    return signed if integer.dtype.signed else unsigned


@specialize
def _out_of_range(spec, x, args):
    """Mask of whole numbers to report as out of range."""
    if spec.wraps:
        return False
    return lambda spec, x, args: (x < args.lowest) | (x > args.highest)


@specialize
def _not_finite(spec, x):
    """Mask of values to report as NaN or infinite."""
    if spec.nan == "raise":
        return lambda spec, x: (v.absolute(x) < v.constant(float("inf"), x)) ^ True
    return False


@specialize
def _with_nan(spec, x, integers, operands, args):
    """Replace the integers of NaN, where it has one."""
    if spec.nan == "raise":
        return lambda spec, x, integers, operands, args: integers

    def chosen(spec, x, integers, operands, args):
        return v.select(v.is_nan(x), v.convert(args.size, v.dtype_of(operands.dst)), integers)

    return chosen


@njit
def _cast_lanes(spec, operands, args, i, kind):
    """Cast the elements of a Vec or scalar type from src[i] on; return whether any is not finite, or out of range."""
    x = load_elements(operands.src, i, kind)
    whole = round_by_rule(spec, _units(spec, x, operands))
    inside = v.minimum(v.maximum(_wrapped(spec, whole, v.dtype_of(operands.dst)), args.lowest), args.highest)
    integers = v.bounded_to_integer(inside, v.dtype_of(operands.dst))
    v.store(operands.dst, i, _with_nan(spec, x, integers, operands, args))
    return v.any_lane(_not_finite(spec, x)), v.any_lane(_out_of_range(spec, whole, args))


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
