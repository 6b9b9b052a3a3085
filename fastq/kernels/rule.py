"""Rule: the arithmetic of one convention as kernels know it, constants while they are compiled."""

from __future__ import annotations

from typing import NamedTuple


class RangeRule(NamedTuple):
    """How a range becomes scale and zero point.

    Attributes
    ----------
    codes : tuple of float or None
        First and last code that parameters are made for, where these are not the bounds of codes.
    widened : bool
        Whether the range is widened to contain 0.
    double : bool
        Whether the arithmetic is that of float64, else that of values.
    span_in_compute : bool
        Whether the difference of the ends is taken in the type of the values all the same.
    rounds_scale : bool
        Whether the scale is rounded to the type of the values before the zero point is taken by it.
    divisor : int
        What is added to the number of code steps to get the divisor of the range.
    floor : float or None
        Below it a scale is degenerate, and so is 0; None: the smallest normal number.
    degenerate : float or str
        What a degenerate scale becomes: a number, "floor", "epsilon" of the type of operations, or "value", that of a
        constant array.
    signed : bool
        Whether a symmetric scale has the opposite sign of the value of largest magnitude.
    fits : bool
        Whether no value of the range has a code out of range.
    from_highest : bool
        Whether the zero point is taken from the upper end.
    rounding : str
        Of the zero point; "": none, it is a float.
    rounds_quotient : bool
        Whether the end of the range in steps is rounded before it is taken from the code, else the difference.
    zero_when_degenerate : str
        Zero point beside a degenerate scale that did not become the floor: "scheme" (0, symmetric the middle), "zero"
        (in both), "lowest" (symmetric the middle) or "end" (0, the last code where the range ends below it).
    half : str
        "float16" or "bfloat16" where the scale is rounded to it, else "".
    """

    codes: tuple[float, float] | None = None
    widened: bool = True
    double: bool = False
    span_in_compute: bool = False
    rounds_scale: bool = False
    divisor: int = 0
    floor: float | None = None
    reaches: bool = False
    degenerate: float | str = 1.0
    signed: bool = False
    fits: bool = True
    from_highest: bool = False
    rounding: str = "half_even"
    rounds_quotient: bool = False
    zero_when_degenerate: str = "scheme"
    half: str = ""


class Rule(NamedTuple):
    """How values become codes, and codes values; the default is that of ONNX.

    Attributes
    ----------
    quotient : str
        "divide", "reciprocal" (product with the rounded 1 / scale, the scale rounded first), "reciprocal_of_double"
        (product with 1 / scale taken in float64, then rounded), or "range" (quotient by the range of all codes, times
        their number).
    rounding : str
        "half_even", "half_away", "floor", "ceil" or "trunc".
    zero : str
        "code" (added to the rounded quotient), "inside" (added to it before it is rounded) or "offset" (in units of
        the values, taken from them).
    fused : bool
        Whether the product and a zero point inside are rounded once, in float32.
    lowest : bool
        Whether the offset is the value of the lowest code, else that of code 0.
    middle : bool
        Whether a code stands for the middle of its bucket.
    signed : bool
        Whether a scale may be negative.
    compute : str
        Type of the arithmetic where it is not that of the scale.
    half : str
        "float16" or "bfloat16" where the result of each operation is rounded to it, else "".
    range : RangeRule or None
        None where parameters are given.
    """

    quotient: str = "divide"
    rounding: str = "half_even"
    zero: str = "code"
    fused: bool = False
    lowest: bool = False
    middle: bool = False
    signed: bool = False
    compute: str = ""
    half: str = ""
    range: RangeRule | None = None

    @property
    def clamps_values(self) -> bool:
        """Whether values can be clamped instead of codes, so that the corrected quotient can be used."""
        nearest = self.rounding in ("half_even", "half_away")
        exact = self.quotient == "divide" and not self.half
        return exact and nearest and self.zero != "inside" and not self.signed


ONNX = Rule()
