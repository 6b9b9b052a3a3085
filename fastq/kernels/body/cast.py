"""Cast floats to integers of 8 to 32 bits: any rounding, and what is out of range refused, clamped or wrapped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fastq.engine import simd as v
from fastq.engine.jit import Constants, traced
from fastq.kernels.body import BODIES, Body
from fastq.kernels.formulas import round_by_rule
from fastq.kernels.load_store import load_elements
from fastq.kernels.pointers import CastOperands
from fastq.kernels.rule import Rule
from fastq.kernels.spec import status_of
from fastq.kernels.status import OUT_OF_RANGE


@dataclass(eq=False, repr=False)
class CastSpec(Constants):
    """Type of an argument that chooses the code of a cast."""

    rule: Rule  # its `rounding` is that of the cast
    wraps: bool  # whether values out of range wrap around; else they are clamped, and reported
    nan: str  # "raise": report what is not finite; "keep": NaN becomes `args.nan_code`, infinities are too large
    scaled: bool  # whether values are cast in units of a scale, from an offset on
    scale_kind: ClassVar[str] = ""
    streams: ClassVar[bool] = False


@traced
def _wrap(x, integer):
    """Add a multiple of the number of integers to whole numbers, so that they are in range; all steps are exact."""
    number = 2.0**integer.bitwidth
    rest = x - v.floor(x * v.constant(1 / number, x)) * v.constant(number, x)
    if not integer.signed:
        return rest
    return v.select(rest >= v.constant(number / 2, rest), rest - v.constant(number, rest), rest)


@traced
def _cast(spec, operands, args, shared, i, kind):
    """Cast the elements from src[i] on; return them, and the status: whether any is not finite, or out of range."""
    scale, offset = shared
    compute = operands.scale.dtype
    integer = operands.dst.dtype
    x = load_elements(operands.src, i, kind)
    units = v.convert(x, compute)
    if spec.scaled:
        units = (units - offset) / scale
    whole = round_by_rule(spec, units)
    outside = False if spec.wraps else v.any_lane((whole < args.lowest) | (whole > args.highest))
    inside = v.minimum(v.maximum(_wrap(whole, integer) if spec.wraps else whole, args.lowest), args.highest)
    integers = v.bounded_to_integer(inside, integer)
    if spec.nan == "raise":
        special = v.any_lane((v.absolute(x) < v.constant(float("inf"), x)) ^ True)
    else:
        special = False
        integers = v.select(v.is_nan(x), v.convert(args.nan_code, integer), integers)
    return integers, status_of(special, False) | OUT_OF_RANGE * outside


BODIES[CastOperands] = Body(elements=_cast)
