"""Decode floats of 16 bits and fewer to float32, and encode them with one rounding.

What looks at the bits of a float takes a scalar as a Vec of one lane.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import TARGET, traced
from fastq.formats.codebooks import Codebook
from fastq.formats.floats import FLOAT_FORMATS, FloatFormat
from fastq.kernels.codebooks import LOOK_UP_BITS, decode_by_table, encode_by_table, make_value_of_code, words
from fastq.kernels.sizes import NOISE_BITS
from fastq.kernels.stochastic_rounding import round_at_random

# without the instructions LLVM calls C functions, which are not linked
HAS_HALF = TARGET.has("f16c") or TARGET.is_arm


class Minifloat(v.Element):
    """Type of floats of a format, one with a sign, or of the table of its numbers.

    With `saturate` a conversion gives the largest finite number for larger ones; `dense` floats of fewer than 8 bits
    share bytes.
    """

    def __init__(self, number_format: FloatFormat | Codebook, saturate: bool = False, dense: bool = True) -> None:
        self.format: Any = number_format
        self.saturate = saturate or number_format.nan is None
        self.bits = types.Integer.from_bitwidth(max(number_format.bits, 8), signed=False)
        # all of the format, since machine code is kept on disk under this name
        super().__init__(
            f"Minifloat({number_format}, {saturate}, {dense})", number_format.bits if dense else self.bits.bitwidth
        )


# of the floats that have lanes: the integer of as many bits, the bits of the mantissa, and the bias of the exponent
FIELDS_OF_FLOATS = {types.float32: (types.int32, 23, 127), types.float64: (types.int64, 52, 1023)}


@v.instruction(lambda x: v.Vec(types.float32, x.n)(x))
def _bits_to_half(context, builder, sig, x):
    """Convert the bits of IEEE half lanes to float32."""
    n = sig.return_type.n
    half = builder.bitcast(x, ir.VectorType(ir.HalfType(), n))
    return builder.fpext(half, ir.VectorType(ir.FloatType(), n))


@v.instruction(lambda x: v.Vec(types.uint16, x.n)(x))
def _half_to_bits(context, builder, sig, x):
    """Round float32 lanes to IEEE half and return their bits."""
    n = sig.return_type.n
    half = builder.fptrunc(x, ir.VectorType(ir.HalfType(), n))
    return builder.bitcast(half, ir.VectorType(ir.IntType(16), n))


# --- to float32 -------------------------------------------------------------------------------------------------------


@traced
def decode(bits, form):
    """Decode the bits of a Minifloat to float32; exact."""
    float_format = form.format
    if not isinstance(bits, v.Vec):
        return v.first(decode(v.full(bits, v.Vec(v.lane_type(bits), 1)), form))
    if isinstance(form.format, Codebook):
        return decode_by_table(bits, form)
    if float_format.name == "float16" and HAS_HALF:
        return _bits_to_half(bits)
    word = v.convert(bits, types.int32)
    if float_format.exponent == 8:  # bfloat16: the upper bits of a float32
        return v.bitcast(word << v.constant(32 - float_format.bits, word), types.float32)
    # one instruction of AVX-512, where fields take seven
    if float_format.bits <= LOOK_UP_BITS and float_format.nan is None:
        codes = 1 << float_format.bits
        value_of_code = make_value_of_code(words(list(map(float_format.number, range(codes)))))
        return value_of_code(word & v.constant(codes - 1, word))
    return _decode_by_fields(word, form)


@traced
def _decode_by_fields(word, form):
    """Move the fields of numbers to their places in float32, where the exponent is biased by 127.

    Subnormal numbers have no such place; they are a product of their digits.
    """
    float_format = form.format
    magnitude = word & v.constant((1 << (float_format.bits - 1)) - 1, word)
    rebias = v.constant((127 - float_format.bias) << 23, word)
    value = v.bitcast((magnitude << v.constant(23 - float_format.mantissa, word)) + rebias, types.float32)
    least = v.constant(2.0 ** (1 - float_format.bias - float_format.mantissa), value)
    tiny = v.convert(magnitude, types.float32) * least
    value = v.select(magnitude < v.constant(1 << float_format.mantissa, word), tiny, value)
    value = v.bitcast(_special(value, word, magnitude, form), types.int32)
    sign = (word << v.constant(32 - float_format.bits, word)) & v.constant(-(1 << 31), word)
    return v.bitcast(value | sign, types.float32)


@traced
def _special(value, word, magnitude, form):
    """Put infinities and NaN where the bits say so."""
    float_format = form.format
    nan = v.constant(float("nan"), value)
    if float_format.name == "float16":  # quiet, with its payload: what the instructions give
        payload = magnitude << v.constant(23 - float_format.mantissa, word)
        nan = v.bitcast(payload | v.constant(0x7FC00000, word), types.float32)
    if float_format.infinity is not None:
        code = v.constant(float_format.infinity, word)
        value = v.select(magnitude == code, v.constant(float("inf"), value), value)
        return v.select(magnitude > code, nan, value)
    if float_format.nan is None:
        return value
    code = word if float_format.without_negative_zero else magnitude
    return v.select(code == v.constant(float_format.nan, word), nan, value)


# --- from float32 and float64 -----------------------------------------------------------------------------------------


@traced
def encode(x, form, ties="even"):
    """Round float lanes to a Minifloat, ties to "even" or to the "first_code", and return their bits.

    Overflow, of infinities too, gives the largest finite number where the format saturates, else infinity, or NaN if
    there is no infinity. NaN keeps its sign; of a format without NaN the result is the largest number.
    """
    float_format = form.format
    if not isinstance(x, v.Vec):
        return v.first(encode(v.full(x, v.Vec(v.lane_type(x), 1)), form, ties))
    if isinstance(form.format, Codebook):
        return encode_by_table(x, form)
    if ties == "first_code":
        return _encode_by_units(x, form, ties=ties)
    if float_format.name == "float16" and HAS_HALF and x.dtype == types.float32 and not form.saturate:
        return _half_to_bits(_canonical(x))
    if float_format.exponent == 8 and x.dtype == types.float32:
        return _encode_same_exponent(x, form)
    return _encode_by_units(x, form)


@traced
def encode_at_random(x, form, numbers):
    """Round float lanes to a Minifloat as `encode`, but to either neighbour by the numbers of `draw`."""
    if not isinstance(x, v.Vec):
        lanes = v.full(x, v.Vec(v.lane_type(x), 1)), v.full(numbers, v.Vec(v.lane_type(numbers), 1))
        return v.first(encode_at_random(lanes[0], form, lanes[1]))
    if form.format.exponent == 8 and x.dtype == types.float32:
        return _encode_same_exponent(x, form, numbers)
    return _encode_by_units(x, form, numbers)


@traced
def in_half(spec, x):
    """Round the float32 result of an operation to the type of half precision that the rule names, if it names one."""
    form = _half(spec.rule.operation_half)
    return decode(encode(x, form), form) if form else x


@traced
def value_in_half(spec, x):
    """Round what values of integer codes are computed from to the type of half precision that the rule names."""
    form = _half(spec.rule.value_half) if spec.code is None else None
    return v.convert(decode(encode(x, form), form), v.lane_type(x)) if form else x


@traced
def scale_in_half(spec, scale):
    """Round scales to the types of half precision that a rule may name: first `scale_digits`, then `scale_half`."""
    for form in (_half(spec.rule.range.scale_digits), _half(spec.rule.range.scale_half)):
        if form:
            scale = v.convert(decode(encode(scale, form), form), v.lane_type(scale))
    return scale


@traced
def offset_as_stored(spec, offset):
    """Round offsets, with which codes were computed, to the type that they are stored in."""
    form = _half(spec.rule.stored_half)
    return v.convert(decode(encode(offset, form), form), v.lane_type(offset)) if form else offset


@traced
def scale_as_stored(spec, scale):
    """Round scales as `offset_as_stored`; what would be 0 becomes the smallest number of that type.

    Others do other things with scales that a type loses: see `are_subnormal` in fastq/formats/floats.py.
    """
    form = _half(spec.rule.stored_half)
    if not form:
        return scale
    rounded = offset_as_stored(spec, scale)
    least = v.copysign(v.constant(form.format.positive(2.0**-1000), scale), scale)
    return v.select(rounded == v.constant(0, scale), least, rounded)


def _half(name: str) -> Minifloat | None:
    """Return the type of half precision of this name, None of an empty one."""
    return Minifloat(FLOAT_FORMATS[name]) if name else None


@traced
def _canonical(x):
    """Replace every NaN by the quiet NaN of its sign: CPUs differ in its other bits."""
    word = v.bitcast(x, types.int32)
    quiet = (word & v.constant(-(1 << 31), word)) | v.constant(0x7FC00000, word)
    return v.select(v.is_nan(x), v.bitcast(quiet, types.float32), x)


@traced
def _encode_same_exponent(x, form, numbers=None):
    """Round the bits, whose carry may reach the exponent; at random to the bits that `numbers` have, then by these."""
    float_format = form.format
    drop = 32 - form.format.bits
    word = v.bitcast(x, types.uint32)
    most = float_format.max
    bounded = v.minimum(v.maximum(x, v.constant(-most, x)), v.constant(most, x)) if form.saturate else x
    bits = v.bitcast(bounded, types.uint32)
    if numbers is None:
        code = _round_off_bits(bits, drop)
    else:
        parts = _round_off_bits(bits, drop - NOISE_BITS) + v.bitcast(numbers, types.uint32)
        code = parts >> v.constant(NOISE_BITS, parts)
    sign = (word >> v.constant(drop, word)) & v.constant(1 << (float_format.bits - 1), word)
    return v.convert(v.select(v.is_nan(x), sign | v.constant(float_format.nan, word), code), form.bits)


@traced
def _round_off_bits(word, drop):
    """Drop the lowest bits of words, rounded half to even: half a unit less one, and the last kept bit, are added."""
    shift = v.constant(drop, word)
    last_kept = (word >> shift) & v.constant(1, word)
    below_half = v.constant((1 << (drop - 1)) - 1, word)
    return (word + below_half + last_kept) >> shift


@traced
def _encode_by_units(x, form, numbers=None, ties="even"):
    """Round magnitudes to whole units, the value of the last bit to keep, to which the exponent field is added.

    A unit follows the exponent of x, but not below that of the smallest normal number, so that subnormal results come
    out right too.
    """
    float_format = form.format
    integer, mantissa, bias = FIELDS_OF_FLOATS[x.dtype]
    drop = mantissa - float_format.mantissa
    word = v.bitcast(x, integer)
    magnitude = v.bitcast(word & v.constant((1 << (integer.bitwidth - 1)) - 1, word), x.dtype)
    most = float_format.max if form.saturate else 2 * float_format.max  # its code is beyond the largest one, too
    bounded = v.minimum(magnitude, v.constant(most, x))  # of NaN the limit
    exponent = _exponent_of(bounded, form)
    if numbers is None:
        units = _nearest_units(bounded, exponent, drop, ties)
    else:  # the exponent of a unit changes sign
        per_unit = v.bitcast(v.constant((2 * bias + float_format.mantissa) << mantissa, word) - exponent, x.dtype)
        units = v.convert(round_at_random(bounded * per_unit, numbers), integer)
    smallest = v.constant((1 - float_format.bias + bias) << mantissa, word)
    code = _with_special(units + ((exponent - smallest) >> v.constant(drop, word)), magnitude, form)
    sign_bit = v.constant(1 << (float_format.bits - 1), word)
    sign = (word >> v.constant(integer.bitwidth - float_format.bits, word)) & sign_bit
    signed = code | sign
    one_zero = ties == "first_code" or float_format.without_negative_zero
    return v.convert(v.select(code == v.constant(0, code), code, signed) if one_zero else signed, form.bits)


@traced
def _nearest_units(magnitude, exponent, drop, ties):
    """Round to units by adding a power of two whose last bit has the value of one, `drop` above the exponent.

    What was rounded up by half a unit to an even number is one unit less if ties go to the first code.
    """
    integer, mantissa, _ = FIELDS_OF_FLOATS[magnitude.dtype]
    power = exponent + v.constant(drop << mantissa, exponent)
    shift = v.bitcast(power, magnitude.dtype)
    total = magnitude + shift
    units = v.bitcast(total, integer) - power
    if ties == "even":
        return units
    half = shift * v.constant(2.0 ** (-mantissa - 1), shift)
    one = v.constant(1, units)
    return v.select((total - shift) - magnitude == half, units - one, units)


@traced
def _exponent_of(magnitude, form):
    """Return the bits of the power of two below a magnitude, but not below that of the smallest normal number."""
    integer, mantissa, bias = FIELDS_OF_FLOATS[magnitude.dtype]
    smallest = (1 - form.format.bias + bias) << mantissa
    exponents = ((1 << integer.bitwidth - mantissa - 1) - 1) << mantissa
    word = v.bitcast(magnitude, integer)
    return v.maximum(word & v.constant(exponents, word), v.constant(smallest, word))


@traced
def round_magnitude(x, form):
    """Round lanes of magnitudes to numbers of a Minifloat, like `decode` after a saturating `encode`."""
    float_format = form.format
    _, mantissa, _ = FIELDS_OF_FLOATS[x.dtype]
    bounded = v.minimum(x, v.constant(float_format.max, x))
    exponent = _exponent_of(bounded, form)
    unit = v.bitcast(exponent + v.constant((mantissa - float_format.mantissa) << mantissa, exponent), x.dtype)
    # the sum has no bits below the last one of a number with this exponent: adding rounds, half to even
    return (bounded + unit) - unit


@traced
def _with_special(code, magnitude, form):
    """Replace the codes of magnitudes that overflow or are NaN."""
    float_format = form.format
    if float_format.nan is None:
        return code
    if not form.saturate:
        over = float_format.nan if float_format.infinity is None else float_format.infinity
        code = v.select(code > v.constant(float_format.largest, code), v.constant(over, code), code)
    return v.select(v.is_nan(magnitude), v.constant(float_format.nan, code), code)


# --- powers of two ----------------------------------------------------------------------------------------------------


class PowerOfTwo(v.Element):
    """Type of powers of two stored as 8 bit exponents: b stands for ``2**(b - bias)``, 255 for NaN."""

    def __init__(self, bias: int) -> None:
        self.bias = bias
        self.bits = types.uint8
        super().__init__(f"PowerOfTwo({bias})", 8)


LEAST_POWER = 0x400000  # bits of 2.0**-127, a subnormal number: what exponent 0 stands for


@traced
def decode_power(bits, form):
    """Decode exponents to powers of two in float32."""
    if not isinstance(bits, v.Vec):
        return v.first(decode_power(v.full(bits, v.Vec(v.lane_type(bits), 1)), form))
    word = v.convert(bits, types.int32)
    power = v.maximum(word << v.constant(23, word), v.constant(LEAST_POWER, word))
    value = v.bitcast(power, types.float32)
    value = value * v.constant(2.0 ** (127 - form.bias), value)
    return v.select(word == v.constant(255, word), v.constant(float("nan"), value), value)


@traced
def encode_power(x, form):
    """Encode powers of two in range as exponents; NaN and infinity give 255."""
    if not isinstance(x, v.Vec):
        return v.first(encode_power(v.full(x, v.Vec(v.lane_type(x), 1)), form))
    word = v.bitcast(v.convert(x * v.constant(2.0 ** (form.bias - 127), x), types.float32), types.int32)
    return v.convert((word >> v.constant(23, word)) & v.constant(255, word), types.uint8)
