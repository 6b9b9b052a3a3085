"""Action: what a loop does with the runs it visits, known when it is compiled."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core.extending import models, register_model

from fastq.kernels import SAW_INFINITE_RANGE, SAW_NAN, formulas
from fastq.kernels.memory import held
from fastq.kernels.minifloats import Minifloat, decode, encode
from fastq.kernels.packing import Bits
from fastq.kernels.simd import (
    Vec,
    bounded_to_integer,
    by_type,
    constant,
    convert,
    dtype_of,
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
    code : Minifloat, optional
        The float format of the codes; None where they are integers.
    """

    def __init__(
        self, name: str, nan: str = "raise", scheme: str = "", block: int = 0, code: Minifloat | None = None
    ) -> None:
        self.does, self.nan, self.scheme, self.block, self.code = name, nan, scheme, block, code
        super().__init__(name=f"Action({name}, {nan}, {scheme}, {block}, {code})")

    def __reduce__(self) -> Any:
        return Action, (self.does, self.nan, self.scheme, self.block, self.code)


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
        return lambda action, x, like: select(is_nan(x), constant(0, x), x)
    compute = like.dtype
    return lambda action, x, like: convert(x, compute)


@by_type
def suits(action, scale):
    """Whether `result_in_span` may be used for this scale."""
    if action.does == "dequantize":
        return lambda action, scale: True
    return lambda action, scale: formulas.suits_span(scale)


@by_type
def result_in_span(action, x, s, dst):
    """What compute values become under one prepared scale that suits it, in the dtype of `dst`."""
    steps = formulas.steps_in_range if action.scheme == "symmetric" else formulas.steps_in_span
    code = action.code

    def quantize(action, x, s, dst):
        return held(steps(x, s) + nearest(s.zero_point), dst)

    def quantize_to_float(action, x, s, dst):
        return held(formulas.float_quotient_in_span(x, s, code), dst)

    def fake(action, x, s, dst):
        return held(convert(steps(x, s), dtype_like(s.scale)) * s.scale, dst)

    def fake_by_float(action, x, s, dst):
        nearby = decode(encode(formulas.float_quotient_in_span(x, s, code), code), code)
        return held(convert(nearby, dtype_like(s.scale)) * s.scale, dst)

    def dequantize(action, x, s, dst):
        return held(formulas.dequantize_value(x, s.scale, s.zero_point), dst)

    if code is not None:
        return {"quantize": quantize_to_float, "fake": fake_by_float, "dequantize": dequantize}[action.does]
    return {"quantize": quantize, "fake": fake, "dequantize": dequantize}[action.does]


@by_type
def result(action, x, scale, zero_point, lowest, highest, dst):
    """What compute values become under any scales and zero points, in the dtype of `dst`."""
    code, integer = action.code, dst.dtype.held if isinstance(dst.dtype, Bits) else dst.dtype

    def quantize(action, x, scale, zero_point, lowest, highest, dst):
        return bounded_to_integer(formulas.code_value(x, scale, zero_point, lowest, highest), integer)

    def quantize_to_float(action, x, scale, zero_point, lowest, highest, dst):
        return held(formulas.float_quotient(x, scale, code), dst)

    def fake(action, x, scale, zero_point, lowest, highest, dst):
        value = formulas.code_value(x, scale, zero_point, lowest, highest)
        return held(formulas.dequantize_value(value, scale, zero_point), dst)

    def fake_by_float(action, x, scale, zero_point, lowest, highest, dst):
        nearby = decode(encode(formulas.float_quotient(x, scale, code), code), code)
        return held(convert(nearby, dtype_like(scale)) * scale, dst)

    def dequantize(action, x, scale, zero_point, lowest, highest, dst):
        return held(formulas.dequantize_value(x, scale, zero_point), dst)

    if code is not None:
        return {"quantize": quantize_to_float, "fake": fake_by_float, "dequantize": dequantize}[action.does]
    return {"quantize": quantize, "fake": fake, "dequantize": dequantize}[action.does]


@by_type
def dtype_like(x):
    """Scalar type of the lanes of x."""
    dtype = x.dtype if isinstance(x, Vec) else x
    return lambda x: dtype


@by_type
def parameters(action, lo, hi, plan, scale):
    """Scale and zero point of a range by the action's scheme, in the dtype of `scale`."""
    formula = formulas.symmetric if action.scheme == "symmetric" else formulas.asymmetric
    compute = scale.dtype

    def of_range(action, lo, hi, plan, scale):
        lo, hi = convert(lo, compute), convert(hi, compute)
        return formula(lo, hi, plan.lowest, plan.highest)

    return of_range


@by_type
def put_parameters(action, scale, zero_point, p, steps, zeros):
    """Write parameters p onwards, where the action has a place for them."""
    if action.does == "fake":
        return lambda action, scale, zero_point, p, steps, zeros: None

    def put(action, scale, zero_point, p, steps, zeros):
        store(scale, p, steps)
        store(zero_point, p, bounded_to_integer(zeros, dtype_of(zero_point)))

    return put


@by_type
def identities(x):
    """The identities of a minimum and of a maximum, in as many lanes as x has."""
    dtype = x.dtype if isinstance(x, Vec) else x
    least, most = (-float("inf"), float("inf")) if is_float(x) else (dtype.minval, dtype.maxval)
    return lambda x: (full_like(constant(most, x), x), full_like(constant(least, x), x))
