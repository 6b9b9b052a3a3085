"""Rule: the arithmetic of one convention as kernels know it, constants while they are compiled."""

from __future__ import annotations

from typing import NamedTuple

from fastq.formats.conventions.convention import NEAREST

# rounding at random: of codes of at most 8 bits, and of more
AT_RANDOM = "at_random"
WIDELY_AT_RANDOM = "widely_at_random"


class RangeRule(NamedTuple):
    """The rule from a range to scale and zero point.

    `range_rule_of` in fastq/plan/spec.py makes it from the fields of a `Convention` that have the same names. A bool
    says whether such a field has one of its values: `stored_in_float32` is ``stored_type="float32"``.
    """

    # first and last code that parameters are made for, where these are not the bounds of codes
    codes: tuple[float, float] | None = None
    includes_zero: bool = True  # whether the range is widened to contain 0
    in_float64: bool = False  # whether the arithmetic is that of float64, else that of values
    span_in_compute: bool = False  # whether the difference of the ends is taken in the type of the values all the same
    # whether the range begins at the float32 that is not above its lower end
    starts_at_float32_below: bool = False
    scale_is_power_of_two: bool = False  # whether an asymmetric scale is rounded up to a power of two
    scale_has_whole_inverse: bool = False  # whether one below 1 is rounded up to the inverse of a whole number
    # of an asymmetric scale: "positive", "negative", or by which end has the lowest code, "nearer_end" or "farther_end"
    scale_sign: str = "positive"
    stored_in_float32: bool = False  # whether scale and offset are rounded to float32 last
    # whether the scale is rounded to the type of the values before the zero point is taken by it
    scale_rounded: bool = False
    range_floor: float = 0.0  # the least size of the range that a scale comes from
    # "float16" or "bfloat16" where the scale is rounded to it before it is rounded to `scale_half`, else ""
    scale_digits: str = ""
    added_to_divisor: int = 0  # what is added to the number of code steps to get the divisor of the range
    scale_by_reciprocal: bool = False  # whether the range is multiplied by the rounded reciprocal of the divisor
    # below it a scale is degenerate, and so is 0; None: the smallest normal number; "root": the square root of that
    scale_floor: float | str | None = None
    # whether a scale of few digits is rounded up where the end of the range would be clamped
    tiny_scale_reaches: bool = False
    # what a degenerate scale becomes: a number, "floor", "epsilon" of the type of operations, or "value", that of a
    # constant array
    degenerate: float | str = 1.0
    # whether a symmetric scale has the opposite sign of the value of largest magnitude: "", "signed", or "signed_low",
    # where the lower end counts as below 0
    symmetric_extreme: str = ""
    scale_from_inverse: bool = False  # whether an asymmetric scale comes from its inverse
    narrow_range: float | None = None  # the widest asymmetric range that has the scale 1; None: there is none
    offset_in_whole_steps: bool = False  # whether the scale is changed so that the offset is a whole number of steps
    values_fit: bool = True  # whether no value of the range has a code out of range
    zero_point_end: str = "lowest"  # what the zero point is taken from: the "lowest" or the "highest" end, or "both"
    zero_point_rounding: str = "half_even"  # of the zero point; "": none, it is a float
    # whether the end of the range in steps is rounded before it is taken from the code, else the difference
    zero_point_rounds_quotient: bool = False
    # zero point for a degenerate scale that did not become the floor: "scheme" (0, symmetric the middle), "zero" (in
    # both), "lowest" (symmetric the middle), "end" (0, the last code where the range ends below it), or "formula", that
    # of other scales; offsets are what they are for other scales, 0 ("zero") or the lower end ("value")
    degenerate_zero_point: str = "scheme"
    scale_half: str = ""  # "float16" or "bfloat16" where the scale is rounded to it, else ""
    # of scales of blocks that are powers of two: how the exponent comes from the largest magnitude, see `Convention`
    exponent: str = "floor"
    scale_of_zeros: float = 2.0**-127  # the power of two for a block of zeros
    # of scales of blocks in units of that of the array: the least before they are rounded
    block_scale_floor: float = 2.0**-6
    tensor_scale_is_one: bool = False  # whether that of the array is 1


class Rule(NamedTuple):
    """The rule from values to codes and back; the default is that of ONNX."""

    # "divide", "divide_in_float64" (with the offset taken from the value), "reciprocal" (product with the rounded
    # 1 / scale, the scale rounded first), "reciprocal_of_double" (product with 1 / scale taken in float64, then
    # rounded), "range" (quotient by the range of all codes, times their number), "range_of_multiple" (product with
    # their number, divided by the range), or "steps_in_unit" (products of the value and the offset with the rounded
    # 1 / scale, a whole number above 1)
    quotient: str = "divide"
    # "half_even", "half_away", "half_up", "floor", "ceil", "trunc", or at random: see `draws`
    rounding: str = "half_even"
    finer: float = 0.0  # parts of a step to which steps are rounded first, half to even; 0: they are not
    # "code" (added to the rounded quotient), "inside" (added to it before it is rounded) or "offset" (in units of the
    # values, taken from them)
    zero: str = "code"
    fused: bool = False  # whether the product and a zero point inside are rounded once, in float32
    offset: str = ""  # which code has the offset as its value: "lowest", "zero", or 0 as the "middle" of a range
    middle: bool = False  # whether a code stands for the middle of its bucket
    signed: bool = False  # whether a scale may be negative
    wide: bool = False  # whether codes have more digits than numbers of the type of the arithmetic
    beyond_int32: bool = False  # whether codes are those of uint32
    compute: str = ""  # type of the arithmetic where it is not that of the scale
    operation_half: str = ""  # "float16" or "bfloat16" where the result of each operation is rounded to it, else ""
    # "float16" or "bfloat16" where scales and offsets from ranges are rounded to it once codes are computed, else ""
    stored_half: str = ""
    ties: str = "even"  # where ties of float codes go: "even" or "first_code"; a bool would be an argument at run time
    divides_blocks: bool = False  # whether values are divided by both scales, else multiplied by their reciprocals
    allows_zero: bool = False  # whether the scale of a block may be 0
    value_half: str = ""  # "float16" or "bfloat16" where each operation that gives a value is rounded to it, else ""
    range: RangeRule | None = None  # None where parameters are given

    @property
    def by_range(self) -> bool:
        """Whether values are divided by the range of all codes."""
        return self.quotient in ("range", "range_of_multiple")

    @property
    def divides_steps(self) -> bool:
        """Whether a value is a quotient, of steps by a number, and not the product of steps and the scale."""
        return self.by_range or self.quotient == "steps_in_unit"

    @property
    def of_values(self) -> Rule:
        """The same for values alone: what only codes depend on is that of ONNX, so conventions share kernels."""
        return self._replace(
            quotient=self.quotient if self.divides_steps else ONNX.quotient,
            rounding=ONNX.rounding,
            finer=ONNX.finer,
            fused=ONNX.fused,
            wide=ONNX.wide,
            beyond_int32=ONNX.beyond_int32,
            ties=ONNX.ties,
            divides_blocks=ONNX.divides_blocks,
            allows_zero=ONNX.allows_zero,
        )

    @property
    def corrects(self) -> bool:
        """Whether `quotient` of formulas.py may divide: by a product with the reciprocal, which is corrected.

        It is exact and knows positive scales alone, and the zero point is added after it. Values are clamped before or
        within it, and a value at a bound comes out close to a whole number: only to the nearest, or at random, is it
        rounded to that.
        """
        exact = self.quotient == "divide" and not self.operation_half and not self.wide
        return exact and (self.is_nearest or self.draws) and self.zero != "inside" and not self.signed

    @property
    def clamps_values(self) -> bool:
        """Whether values can be clamped before the division, instead of codes: why, says `_steps_in_range`."""
        return self.corrects and self.rounding != WIDELY_AT_RANDOM

    @property
    def is_nearest(self) -> bool:
        """Whether codes are the nearest ones."""
        return self.rounding in NEAREST

    @property
    def draws(self) -> bool:
        """Whether rounding needs random numbers."""
        return self.rounding in (AT_RANDOM, WIDELY_AT_RANDOM)


ONNX = Rule()
