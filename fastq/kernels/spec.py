"""Action: what a loop does with the runs it visits, known when it is compiled."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core.extending import models, register_model

from fastq.kernels import SAW_INFINITE_RANGE, SAW_NAN, formulas
from fastq.kernels.bitpack import Bits
from fastq.kernels.load_store import fetch, held
from fastq.kernels.load_store import put as put_in
from fastq.kernels.minifloat import Minifloat, decode, encode
from fastq.kernels.rule import ONNX, Rule
from fastq.simd.vec import (
    REGISTER_BITS,
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
    maximum,
    minimum,
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
        "raise": report NaN; "zero": take it for 0.0; "keep": give it the code of NaN.
    scheme : str
        "": parameters are given; "asymmetric", "symmetric", "microscaling" or "nvfp4": taken from the range of what
        they belong to.
    block : int
        Elements in every block, for the loop over blocks that fill registers; 0: known only at run time.
    rule : Rule
        The arithmetic.
    code : Minifloat, optional
        The float format of the codes; None where they are integers.
    own : str
        "power" where scales are powers of two as the format prescribes; "tensor" where they are in units of one scale
        for the whole array, which then stands in place of the zero point; else "".
    streams : bool
        Whether large results go past the cache.
    """

    def __init__(
        self,
        name: str,
        nan: str = "raise",
        scheme: str = "",
        block: int = 0,
        rule: Rule = ONNX,
        code: Minifloat | None = None,
        own: str = "",
        streams: bool = False,
    ) -> None:
        self.does, self.nan, self.scheme, self.block = name, nan, scheme, block
        self.rule, self.code, self.own, self.streams = rule, code, own, streams
        super().__init__(name=f"Action({name}, {nan}, {scheme}, {block}, {rule}, {code}, {own}, {streams})")

    def __reduce__(self) -> Any:
        return Action, (self.does, self.nan, self.scheme, self.block, self.rule, self.code, self.own, self.streams)


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
def compute_lanes(action, scale, registers):
    """Vec type of so many registers, a literal, of the type to compute in."""
    if not isinstance(registers, types.IntegerLiteral):
        return None
    compute = formulas.computes_in(action, scale)
    vec = Vec(compute, registers.literal_value * REGISTER_BITS // compute.bitwidth)
    return lambda action, scale, registers: vec


@by_type
def parameter_type(action, scale):
    """The type of scales and zero points in registers: that in memory; of a format's own, the type to compute in."""
    dtype = formulas.computes_in(action, scale) if action.own else scale.dtype
    return lambda action, scale: dtype


@inline
def step_at(action, scale, p, kind):
    """Scales p onwards, as many as `kind` has lanes."""
    return convert(fetch(scale, p, kind), parameter_type(action, scale))


@by_type
def zero_at(action, zero_point, p, kind, plan, scale):
    """Zero points p onwards, or what stands in their place."""
    if action.own == "tensor":
        return lambda action, zero_point, p, kind, plan, scale: plan.tensor
    return lambda action, zero_point, p, kind, plan, scale: convert(
        fetch(zero_point, p, kind), parameter_type(action, scale)
    )


@by_type
def value_of(action, x, scale):
    """Input lanes in the type to compute in; NaN as 0.0 where the action says so."""
    if is_float(x) and action.nan == "zero":
        return lambda action, x, scale: convert(
            select(is_nan(x), constant(0, x), x), formulas.compute_type(action, scale)
        )
    return lambda action, x, scale: convert(x, formulas.compute_type(action, scale))


@by_type
def unsuited(action, scale):
    """Mask of the scales for which `result_in_span` may not be used."""
    if action.does == "dequantize":
        return lambda action, scale: False
    return lambda action, scale: formulas.unsuited_to_span(action, scale)


@by_type
def result_in_span(action, x, s, dst):
    """What compute values become under one prepared scale that suits it, in the dtype of `dst`."""
    fits = action.scheme == "symmetric" and action.rule.clamps_values and action.rule.range.fits
    steps = formulas.steps_in_range if fits else formulas.steps_in_span
    code = action.code

    def quantize(action, x, s, dst):
        return held(steps(action, x, s) + formulas.base_code(s), dst)

    def quantize_to_float(action, x, s, dst):
        return held(float_ratio_in_span(action, x, s), dst)

    def fake(action, x, s, dst):
        done = convert(steps(action, x, s), formulas.compute_type(action, s.scale))
        return held(formulas.value_of_steps(action, done, s), dst)

    def fake_by_float(action, x, s, dst):
        nearby = decode(encode(float_ratio_in_span(action, x, s), code), code)
        return held(formulas.dequantize_value(action, convert(nearby, formulas.compute_type(action, s.scale)), s), dst)

    def dequantize(action, x, s, dst):
        return held(formulas.dequantize_value(action, x, s), dst)

    if code is not None:
        return {"quantize": quantize_to_float, "fake": fake_by_float, "dequantize": dequantize}[action.does]
    return {"quantize": quantize, "fake": fake, "dequantize": dequantize}[action.does]


@by_type
def result(action, x, scale, zero_point, lowest, highest, dst):
    """What compute values become under any scales and zero points, in the dtype of `dst`."""
    code, integer = action.code, dst.dtype.held if isinstance(dst.dtype, Bits) else dst.dtype

    def quantize(action, x, scale, zero_point, lowest, highest, dst):
        x, scale = without_nan_scale(action, x, scale)
        s = formulas.span(action, scale, zero_point, lowest, highest)
        return bounded_to_integer(formulas.code_value(action, x, s, lowest, highest), integer)

    def quantize_to_float(action, x, scale, zero_point, lowest, highest, dst):
        s = formulas.span(action, scale, zero_point, lowest, highest)
        return held(float_ratio(action, x, s), dst)

    def fake(action, x, scale, zero_point, lowest, highest, dst):
        x, usable = without_nan_scale(action, x, scale)
        s = formulas.span(action, usable, zero_point, lowest, highest)
        value = formulas.code_value(action, x, s, lowest, highest)
        s = formulas.span(action, scale, zero_point, lowest, highest)
        return held(formulas.dequantize_value(action, value, s), dst)

    def fake_by_float(action, x, scale, zero_point, lowest, highest, dst):
        s = formulas.span(action, scale, zero_point, lowest, highest)
        nearby = decode(encode(float_ratio(action, x, s), code), code)
        return held(formulas.dequantize_value(action, convert(nearby, formulas.compute_type(action, scale)), s), dst)

    def dequantize(action, x, scale, zero_point, lowest, highest, dst):
        s = formulas.span(action, scale, zero_point, lowest, highest)
        return held(formulas.dequantize_value(action, x, s), dst)

    if code is not None:
        return {"quantize": quantize_to_float, "fake": fake_by_float, "dequantize": dequantize}[action.does]
    return {"quantize": quantize, "fake": fake, "dequantize": dequantize}[action.does]


@by_type
def without_nan_scale(action, x, scale):
    """Values and scales, 0 and 1 where the scale marks a block that had NaN."""
    if not action.own:
        return lambda action, x, scale: (x, scale)

    def without(action, x, scale):
        marked = is_nan(scale)
        return select(marked, constant(0, x), x), select(marked, constant(1, scale), scale)

    return without


@by_type
def float_ratio(action, x, s):
    """What a float code is the nearest of."""
    code = action.code

    def divided(action, x, s):
        return formulas.float_quotient(x, s.scale, code)

    def by_power(action, x, s):
        x, scale = without_nan_scale(action, x, s.scale)
        return x / scale

    def in_units_of_tensor(action, x, s):
        x, scale = without_nan_scale(action, x, s.scale)
        return formulas.nvfp4_units(x, scale, s.zero_point)

    return {"": divided, "power": by_power, "tensor": in_units_of_tensor}[action.own]


@by_type
def float_ratio_in_span(action, x, s):
    """`float_ratio` for one prepared scale that suits it."""
    code = action.code

    def divided(action, x, s):
        return formulas.float_quotient_in_span(x, s, code)

    def by_power(action, x, s):
        return x * s.factor  # exact

    def in_units_of_tensor(action, x, s):
        return formulas.nvfp4_units(x, s.scale, s.zero_point)

    return {"": divided, "power": by_power, "tensor": in_units_of_tensor}[action.own]


@by_type
def parameters(action, lo, hi, plan, scale):
    """Scale and zero point of a range by the action's scheme, in the dtype of `scale`."""
    compute = formulas.computes_in(action, scale)
    if action.scheme == "microscaling":
        below, kind = action.code.row.emax if action.code is not None else 0, scale.dtype
        return lambda action, lo, hi, plan, scale: formulas.power_of_two(
            convert(lo, compute), convert(hi, compute), below, kind
        )
    if action.scheme == "nvfp4":
        kind, element = scale.dtype, action.code
        return lambda action, lo, hi, plan, scale: formulas.nvfp4(
            convert(lo, compute), convert(hi, compute), plan.tensor, kind, element
        )
    formula = formulas.symmetric if action.scheme == "symmetric" else formulas.asymmetric
    stored = scale.dtype
    within = types.float64 if action.rule.range.double else compute

    codes = action.rule.range.codes

    def of_range(action, lo, hi, plan, scale):
        lo, hi = convert(convert(lo, compute), within), convert(convert(hi, compute), within)
        lowest, highest = (plan.lowest, plan.highest) if codes is None else codes
        steps, zeros = formula(action, lo, hi, convert(lowest, within), convert(highest, within), compute)
        return convert(steps, stored), convert(zeros, stored)

    return of_range


@by_type
def for_nan(action, steps, nans):
    """The scales, NaN where one belongs to a block with NaN that is to be kept."""
    if action.nan == "keep" and action.own:
        return lambda action, steps, nans: select(nans, constant(float("nan"), steps), steps)
    return lambda action, steps, nans: steps


@by_type
def put_parameters(action, scale, zero_point, p, steps, zeros):
    """Write parameters p onwards, where the action has a place for them."""
    if action.does == "fake":
        return lambda action, scale, zero_point, p, steps, zeros: None
    if action.own == "tensor":
        return lambda action, scale, zero_point, p, steps, zeros: put_in(scale, p, held(steps, scale))

    def put(action, scale, zero_point, p, steps, zeros):
        put_in(scale, p, held(steps, scale))
        store(zero_point, p, as_stored(zeros, zero_point))

    return put


@inline
def put_extents(scale, zero_point, p, los, his, nans):
    """Write minima and maxima, which passed NaN over, from p on; where there was one, it counts as 0.0.

    -0.0 becomes 0.0: which of them was found depends on the order.
    """
    zero = constant(0, los)
    store(scale, p, select(nans, minimum(los, zero), los) + zero)
    store(zero_point, p, select(nans, maximum(his, zero), his) + zero)


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
