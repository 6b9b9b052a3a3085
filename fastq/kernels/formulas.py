"""Each rule of the contract once, for a scalar and a Vec alike."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import types
from numba.core.registry import cpu_target

from fastq.kernels.minifloats import decode, encode, power_below
from fastq.kernels.simd import (
    Vec,
    any_lane,
    bitcast,
    by_type,
    constant,
    convert,
    fma,
    full_like,
    inline,
    maximum,
    minimum,
    nearest,
    rint,
    select,
)

_TRIPLE, _CPU, _FEATURES = cpu_target.target_context.codegen().magic_tuple()

# without the instruction, LLVM calls a C function per lane: 50 times slower than the division it would replace
HAS_FMA = "+fma" in _FEATURES or "aarch64" in _TRIPLE


# --- values to codes --------------------------------------------------------------------------------------------------


@inline
def unclamped_code(x, scale, zero_point):
    """``rint(x / scale) + zero_point``, every operand float."""
    return rint(x / scale) + zero_point


@inline
def code_value(x, scale, zero_point, lowest, highest):
    """``clamp(rint(x / scale) + zero_point)``, the QuantizeLinear of ONNX, as a whole float; every operand float.

    Infinities and whatever lies far out of range saturate; NaN gives `lowest`.
    """
    return minimum(maximum(unclamped_code(x, scale, zero_point), lowest), highest)


class Span(NamedTuple):
    """One scale and zero point, made ready for many values: see `span`."""

    scale: Any
    zero_point: Any
    reciprocal: Any
    below: Any
    above: Any


@inline
def span(scale, zero_point, lowest, highest):
    """What `steps_in_span` needs: the reciprocal, and the values whose codes are the lowest and the highest."""
    below, above = (lowest - zero_point) * scale, (highest - zero_point) * scale
    return Span(scale, zero_point, constant(1, scale) / scale, below, above)


@by_type
def suits_span(scale):
    """Whether `steps_in_span` equals `code_value` for this scale.

    Codes have at most 16 bits, so with a float32 scale in 2**-100 .. 2**100 no product below overflows, and every
    remainder that can decide a tie is exact (its unit is 2**-48 scales).
    """
    smallest, largest = (2.0**-100, 2.0**100) if scale == types.float32 else (2.0**-900, 2.0**900)
    return lambda scale: smallest < scale < largest


@inline
def steps_in_span(x, s):
    """``code - zero_point`` as int32 for a scale that `suits_span`: `code_value` with fewer instructions, bit for bit.

    Values are clamped instead of codes: a value at a bound is divided to within 2**-24 of a whole number of codes,
    which is what it rounds to. So the code is in range, NaN's too: `maximum` gives its second operand for it.
    """
    return nearest(quotient(minimum(maximum(x, s.below), s.above), s))


@inline
def steps_in_range(x, s):
    """`steps_in_span` for values of the symmetric range that the scale was taken from: there is nothing to clamp."""
    return nearest(quotient(x, s))


@by_type
def quotient(x, s):
    """The correctly rounded ``x / s.scale``.

    With r the rounded reciprocal and q = x * r, ``fma(fma(-q, scale, x), r, q)`` is that quotient wherever nothing
    overflows or underflows (Markstein 1990; Brisebarre, Muller and Raina 2004). tests/test_quotient.py proves it for
    float32 by trying every pair of significands whose quotient is near enough to a rounding boundary to be in doubt.
    7.0 against 4.4 Gelem/s for the division, one core, in cache.
    """
    if HAS_FMA and isinstance(x, Vec) and x.dtype == types.float32:

        def corrected(x, s):
            first = x * s.reciprocal
            return fma(fma(-first, s.scale, x), s.reciprocal, first)

        return corrected
    return lambda x, s: x / s.scale


# --- values to float codes --------------------------------------------------------------------------------------------


@by_type
def float_quotient(x, scale, code):
    """``x / scale``, what a float code is the nearest of; ONNX adds the zero point, so -0.0 becomes 0.0, to some."""
    if code.instance_type.nan is None:
        return lambda x, scale, code: x / scale + constant(0, x)
    return lambda x, scale, code: x / scale


@by_type
def float_quotient_in_span(x, s, code):
    """`float_quotient` for a scale that `suits_span`, with x bounded so that nothing overflows."""
    form = code.instance_type
    if not (HAS_FMA and isinstance(x, Vec) and x.dtype == types.float32):
        return lambda x, s, code: float_quotient(x, s.scale, code)
    bound = form.max if form.saturate else 4 * form.max

    def bounded(x, s, code):
        limit = full_like(constant(bound, x) * s.scale, x)
        near = quotient(maximum(-limit, minimum(limit, x)), s)  # of NaN itself, in this order
        return _signed_like(near, x, code)

    return bounded


@by_type
def _signed_like(near, x, code):
    """The quotient with the sign of x, which its correction takes from -0.0 and perhaps NaN; or 0.0 for both zeros."""
    if code.instance_type.nan is None:
        return lambda near, x, code: near + constant(0, x)

    def signed(near, x, code):
        word, sign = bitcast(x, types.int32), constant(-(1 << 31), bitcast(x, types.int32))
        return bitcast((bitcast(near, types.int32) & ~sign) | (word & sign), types.float32)

    return signed


# --- codes to values --------------------------------------------------------------------------------------------------


@inline
def dequantize_value(code, scale, zero_point):
    """``(code - zero_point) * scale``; the difference of two 16 bit codes is exact in float32."""
    return (code - zero_point) * scale


# --- a range to parameters --------------------------------------------------------------------------------------------


@inline
def asymmetric(lo, hi, lowest, highest):
    """Scale and zero point of ``lo..hi`` widened to contain 0, as DynamicQuantizeLinear of ONNX takes them."""
    zero = constant(0, lo)
    lo, hi = minimum(lo, zero), maximum(hi, zero)
    scale, usable = _usable(_step(lo, hi, highest - lowest))
    zero_point = minimum(maximum(rint(lowest - lo / scale), lowest), highest)
    return scale, select(usable, zero_point, zero)


@inline
def symmetric(lo, hi, lowest, highest):
    """Scale and zero point of ``-m..m``, m the largest magnitude; `lowest` and `highest` are the codes of its ends."""
    two = constant(2, lo)
    scale, _ = _usable(maximum(maximum(-lo, hi), constant(0, lo)) / ((highest - lowest) / two))
    return scale, full_like((lowest + highest) / two, lo)


@inline
def power_of_two(lo, hi, below, kind):
    """Scale and zero point of a block by OCP Microscaling Formats (MX) 1.0, section 6.3.

    ``2**(floor(log2(largest magnitude)) - below)`` with `below` the exponent of the largest number of the element.
    """
    zero = constant(0, lo)
    return power_below(maximum(maximum(-lo, hi), zero), below, kind), full_like(zero, lo)


NVFP4_LEAST = 2.0**-6  # the smallest normal number of float8_e4m3fn, under which torchao lets no block scale fall


@by_type
def nvfp4(lo, hi, tensor, kind, element):
    """Scale of a block in units of the array's scale, rounded to a float of `kind`, and what is in the zero's place.

    ``clamp(largest magnitude / largest element / tensor)``, torchao's `nvfp4_quantize`.
    """
    least, most, elements = NVFP4_LEAST, kind.instance_type.max, element.instance_type.max

    def rounded(lo, hi, tensor, kind, element):
        zero = constant(0, lo)
        largest = maximum(maximum(-lo, hi), zero)
        scale = largest / constant(elements, lo) / tensor
        scale = minimum(maximum(scale, constant(least, lo)), constant(most, lo))
        return convert(decode(encode(scale, kind), kind), lane_type(lo)), full_like(tensor, lo)

    return rounded


@by_type
def lane_type(x):
    """Scalar type of the lanes of x."""
    dtype = x.dtype if isinstance(x, Vec) else x
    return lambda x: dtype


@inline
def nvfp4_units(x, scale, tensor):
    """Values in units of elements, ``x * (1 / tensor / scale)`` as torchao; -0.0 becomes 0.0."""
    return x * (constant(1, tensor) / tensor / scale) + constant(0, x)


@inline
def _usable(scale):
    """The scale, 1 where it is below the smallest normal number, and whether it was not."""
    usable = scale >= smallest_normal(scale)
    return select(usable, scale, constant(1, scale)), usable


@by_type
def is_infinite(scale):
    """Mask of the scales that a range with an infinite end gives."""
    return lambda scale: scale == constant(float("inf"), scale)


@by_type
def smallest_normal(like):
    """Smallest normal number of the lane type of `like`."""
    dtype = like.dtype if isinstance(like, Vec) else like
    tiny = 2.0**-126 if dtype == types.float32 else 2.0**-1022
    return lambda like: constant(tiny, like)


@by_type
def _step(lo, hi, steps):
    """``(hi - lo) / steps``, also where the difference overflows: then in float64, for float64 as two quotients.

    A single step may be larger than any number; it is the largest then.
    """
    dtype = lo.dtype if isinstance(lo, Vec) else lo
    largest, infinite = 2.0**128 - 2.0**104 if dtype == types.float32 else 1.7976931348623157e308, float("inf")
    if dtype == types.float64:

        def step(lo, hi, steps):
            distance, infinity = hi - lo, constant(infinite, lo)
            far = minimum(hi / steps - lo / steps, constant(largest, lo))
            far = select((hi < infinity) & (lo > -infinity), far, infinity)
            return select(distance < infinity, distance / steps, far)
    else:

        def step(lo, hi, steps):
            distance, infinity = hi - lo, constant(infinite, lo)
            near = distance < infinity
            scale = distance / steps
            if not any_lane(near ^ True):
                return scale
            wide = (convert(hi, types.float64) - convert(lo, types.float64)) / convert(steps, types.float64)
            far = convert(minimum(wide, constant(largest, wide)), types.float32)
            far = select((hi < infinity) & (lo > -infinity), far, infinity)
            return select(near, scale, far)

    return step
