"""Action: what a loop does with the runs it visits, known when it is compiled."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core.extending import models, register_model

from fastq.kernels import SAW_INFINITE_RANGE, SAW_NAN, formulas
from fastq.kernels.rule import ONNX, Rule
from fastq.kernels.simd import (
    Vec,
    bounded_to_integer,
    by_type,
    constant,
    convert,
    either_nan,
    full_like,
    inline,
    is_float,
    is_nan,
    nearest,
    select,
    store,
)


class Action(types.Opaque):  # type: ignore[misc]
    """Type of an argument that is nothing at run time and chooses the code.

    Parameters
    ----------
    name : str
        "minmax", "quantize", "dequantize", "fake" (quantize and dequantize) or "compare".
    nan : str
        "raise": report NaN; "zero": take it for 0.0.
    scheme : str
        "": parameters are given; "asymmetric" or "symmetric": taken from the range of what they belong to.
    block : int
        Elements in every block, for the loop over blocks that fill registers; 0: known only at run time.
    rule : Rule
        The arithmetic.
    """

    def __init__(self, name: str, nan: str = "raise", scheme: str = "", block: int = 0, rule: Rule = ONNX) -> None:
        self.does, self.nan, self.scheme, self.block, self.rule = name, nan, scheme, block, rule
        super().__init__(name=f"Action({name}, {nan}, {scheme}, {block}, {rule})")

    def __reduce__(self) -> Any:
        return Action, (self.does, self.nan, self.scheme, self.block, self.rule)


register_model(Action)(models.OpaqueModel)


@inline
def saw(nan, infinite):
    """What a kernel has to report, as one integer."""
    return SAW_NAN * nan | SAW_INFINITE_RANGE * infinite


@by_type
def nan_lanes(action, x):
    """Mask of the lanes to report as NaN."""
    if is_float(x) and action.nan == "raise":
        return lambda action, x: is_nan(x)
    return lambda action, x: False


@by_type
def nan_in_pair(action, x, y):
    """Mask of the lanes where x or y has NaN to report: one comparison looks at both."""
    if is_float(x) and action.nan == "raise":
        return lambda action, x, y: either_nan(x, y)
    return lambda action, x, y: False


@by_type
def value_of(action, x, like):
    """Input lanes in the compute type, that of the pointer `like`; NaN as 0.0 where the action says so."""
    if is_float(x) and action.nan == "zero":
        return lambda action, x, like: convert(
            select(is_nan(x), constant(0, x), x), formulas.compute_type(action, like)
        )
    return lambda action, x, like: convert(x, formulas.compute_type(action, like))


@by_type
def suits(action, scale):
    """Whether `result_in_span` may be used for this scale."""
    if action.does == "dequantize":
        return lambda action, scale: True
    return lambda action, scale: formulas.suits_span(action, scale)


@by_type
def result_in_span(action, x, s, dst):
    """What compute values become under one prepared scale that suits it, in the dtype of `dst`."""
    dtype = dst.dtype
    fits = action.scheme == "symmetric" and action.rule.clamps_values and action.rule.range.fits
    steps = formulas.steps_in_range if fits else formulas.steps_in_span

    def quantize(action, x, s, dst):
        return convert(steps(action, x, s) + nearest(s.base), dtype)

    def fake(action, x, s, dst):
        done = convert(steps(action, x, s), formulas.compute_type(action, s.scale))
        return convert(formulas.value_of_steps(action, done, s), dtype)

    def dequantize(action, x, s, dst):
        return convert(formulas.dequantize_value(action, x, s), dtype)

    return {"quantize": quantize, "fake": fake, "dequantize": dequantize}[action.does]


@by_type
def result(action, x, scale, zero_point, lowest, highest, dst):
    """What compute values become under any scales and zero points, in the dtype of `dst`."""
    dtype = dst.dtype

    def quantize(action, x, scale, zero_point, lowest, highest, dst):
        s = formulas.span(action, scale, zero_point, lowest, highest)
        return bounded_to_integer(formulas.code_value(action, x, s, lowest, highest), dtype)

    def fake(action, x, scale, zero_point, lowest, highest, dst):
        s = formulas.span(action, scale, zero_point, lowest, highest)
        return convert(formulas.dequantize_value(action, formulas.code_value(action, x, s, lowest, highest), s), dtype)

    def dequantize(action, x, scale, zero_point, lowest, highest, dst):
        s = formulas.span(action, scale, zero_point, lowest, highest)
        return convert(formulas.dequantize_value(action, x, s), dtype)

    return {"quantize": quantize, "fake": fake, "dequantize": dequantize}[action.does]


@by_type
def parameters(action, lo, hi, plan, scale):
    """Scale and zero point of a range by the action's scheme, in the dtype of `scale`."""
    formula = formulas.symmetric if action.scheme == "symmetric" else formulas.asymmetric
    stored = scale.dtype
    compute = getattr(types, action.rule.compute) if action.rule.compute else stored
    within = types.float64 if action.rule.range.double else compute

    codes = action.rule.range.codes

    def of_range(action, lo, hi, plan, scale):
        lo, hi = convert(convert(lo, compute), within), convert(convert(hi, compute), within)
        lowest, highest = (plan.lowest, plan.highest) if codes is None else codes
        steps, zeros = formula(action, lo, hi, convert(lowest, within), convert(highest, within), compute)
        return convert(steps, stored), convert(zeros, stored)

    return of_range


@by_type
def put_parameters(action, scale, zero_point, p, steps, zeros):
    """Write parameters p onwards, where the action has a place for them."""
    if action.does == "fake":
        return lambda action, scale, zero_point, p, steps, zeros: None

    def put(action, scale, zero_point, p, steps, zeros):
        store(scale, p, steps)
        store(zero_point, p, as_stored(zeros, zero_point))

    return put


@by_type
def as_stored(zeros, zero_point):
    """Zero points in the dtype that they are kept in."""
    dtype = zero_point.dtype
    if isinstance(dtype, types.Float):
        return lambda zeros, zero_point: convert(zeros, dtype)
    return lambda zeros, zero_point: bounded_to_integer(zeros, dtype)


@by_type
def identities(x):
    """The identities of a minimum and of a maximum, in as many lanes as x has."""
    dtype = x.dtype if isinstance(x, Vec) else x
    least, most = (-float("inf"), float("inf")) if is_float(x) else (dtype.minval, dtype.maxval)
    return lambda x: (full_like(constant(most, x), x), full_like(constant(least, x), x))
