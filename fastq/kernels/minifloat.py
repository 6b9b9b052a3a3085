"""Decode floats of 16 bits and fewer to float32, and encode them with one rounding."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import TARGET, traced
from fastq.formats.codebooks import Codebook
from fastq.formats.floats import FLOAT_FORMATS, FloatFormat
from fastq.kernels.codebooks import LOOK_UP_BITS, decode_by_table, encode_by_table, value_of_code, words
from fastq.kernels.sizes import NOISE_BITS
from fastq.kernels.stochastic_rounding import round_at_random

# without the instructions LLVM calls C functions, which are not linked
HAS_HALF = TARGET.has("f16c") or TARGET.is_arm


class Minifloat(v.Element):
    """Type of floats of a format, one with a sign, or of the table of its numbers.

    With `saturate` a conversion gives the largest finite number for larger ones; `dense` floats of fewer than 8 bits
    share bytes.
    """

    def __init__(self, row: FloatFormat | Codebook, saturate: bool = False, dense: bool = True) -> None:
        self.row: Any = row
        self.saturate = saturate or row.nan is None
        self.bits = types.Integer.from_bitwidth(max(row.bits, 8), signed=False)
        # all of the row, since machine code is kept on disk under this name
        super().__init__(f"Minifloat({row}, {saturate}, {dense})", row.bits if dense else self.bits.bitwidth)


# width, mantissa and exponent bias of the floats that have lanes
_SOURCES = {types.float32: (types.int32, 23, 127), types.float64: (types.int64, 52, 1023)}


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
    row = form.row
    if not isinstance(bits, v.Vec):
        return v.first(decode(v.full(bits, v.Vec(v.lane_type(bits), 1)), form))
    if isinstance(row, Codebook):
        return decode_by_table(bits, form)
    if row.name == "float16" and HAS_HALF:
        return _bits_to_half(bits)
    word = v.convert(bits, types.int32)
    if row.exponent == 8:
        return v.bitcast(word << v.constant(32 - row.bits, word), types.float32)
    if row.bits <= LOOK_UP_BITS and row.nan is None:  # one instruction of AVX-512, where fields take seven
        codes = 1 << row.bits
        return value_of_code(words(list(map(row.number, range(codes)))))(word & v.constant(codes - 1, word))
    return _decode_by_fields(word, form)


@traced
def _decode_by_fields(word, form):
    row = form.row
    size = word & v.constant((1 << (row.bits - 1)) - 1, word)
    rebias = v.constant((127 - row.bias) << 23, word)
    value = v.bitcast((size << v.constant(23 - row.mantissa, word)) + rebias, types.float32)
    tiny = v.convert(size, types.float32) * v.constant(2.0 ** (1 - row.bias - row.mantissa), value)
    value = v.select(size < v.constant(1 << row.mantissa, word), tiny, value)
    value = v.bitcast(_special(value, word, size, form), types.int32)
    sign = (word << v.constant(32 - row.bits, word)) & v.constant(-(1 << 31), word)
    return v.bitcast(value | sign, types.float32)


@traced
def _special(value, word, size, form):
    """Put infinities and NaN where the bits say so."""
    row = form.row
    nan = v.constant(float("nan"), value)
    if row.name == "float16":  # quiet, with its payload: what the instructions give
        nan = v.bitcast((size << v.constant(23 - row.mantissa, word)) | v.constant(0x7FC00000, word), types.float32)
    if row.infinity is not None:
        code = v.constant(row.infinity, word)
        value = v.select(size == code, v.constant(float("inf"), value), value)
        return v.select(size > code, nan, value)
    if row.nan is None:
        return value
    return v.select((word if row.without_negative_zero else size) == v.constant(row.nan, word), nan, value)


# --- from float32 and float64 -----------------------------------------------------------------------------------------


@traced
def encode(x, form):
    """Round float lanes to a Minifloat, ties to even, and return their bits.

    Overflow, of infinities too, gives the largest finite number where the format saturates, else infinity, or NaN if
    there is no infinity. NaN keeps its sign; of a format without NaN the result is the largest number.
    """
    row = form.row
    if not isinstance(x, v.Vec):
        return v.first(encode(v.full(x, v.Vec(v.lane_type(x), 1)), form))
    if isinstance(row, Codebook):
        return encode_by_table(x, form)
    if row.name == "float16" and HAS_HALF and x.dtype == types.float32 and not form.saturate:
        return _half_to_bits(_canonical(x))
    if row.exponent == 8 and x.dtype == types.float32:
        return _encode_same_exponent(x, form)
    return _encode_by_units(x, form)


@traced
def encode_at_random(x, form, numbers):
    """Round float lanes to a Minifloat as `encode`, but to either neighbour by the numbers of `drawn`."""
    if not isinstance(x, v.Vec):
        lanes = v.full(x, v.Vec(v.lane_type(x), 1)), v.full(numbers, v.Vec(v.lane_type(numbers), 1))
        return v.first(encode_at_random(lanes[0], form, lanes[1]))
    if form.row.exponent == 8 and x.dtype == types.float32:
        return _encode_same_exponent(x, form, numbers)
    return _encode_by_units(x, form, numbers)


@traced
def in_half(spec, x):
    """Round the float32 result of an operation to the type of half precision that the rule names, if it names one."""
    form = _half(spec.rule.half)
    return decode(encode(x, form), form) if form else x


@traced
def value_in_half(spec, x):
    """Round what values of integer codes are computed from to the type of half precision that the rule names."""
    form = _half(spec.rule.values) if spec.code is None else None
    return v.convert(decode(encode(x, form), form), v.lane_type(x)) if form else x


@traced
def scale_in_half(spec, scale):
    """Round scales to the type of half precision that the rule of ranges names, if it names one."""
    form = _half(spec.rule.range.half)
    return v.convert(decode(encode(scale, form), form), v.lane_type(scale)) if form else scale


@traced
def offset_as_kept(spec, offset):
    """Round offsets, with which codes were computed, to the type that the rule keeps them in."""
    form = _half(spec.rule.kept)
    return v.convert(decode(encode(offset, form), form), v.lane_type(offset)) if form else offset


@traced
def scale_as_kept(spec, scale):
    """Round scales as `offset_as_kept`; what would be 0 becomes the smallest number of that type."""
    form = _half(spec.rule.kept)
    if not form:
        return scale
    rounded = offset_as_kept(spec, scale)
    least = v.copysign(v.constant(form.row.positive(2.0**-1000), scale), scale)
    return v.select(rounded == v.constant(0, scale), least, rounded)


def _half(name: str) -> Minifloat | None:
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
    row = form.row
    drop = 32 - form.row.bits
    word = v.bitcast(x, types.uint32)
    bounded = v.minimum(v.maximum(x, v.constant(-row.max, x)), v.constant(row.max, x)) if form.saturate else x
    bits = v.bitcast(bounded, types.uint32)
    if numbers is None:
        code = _without_bits(bits, drop)
    else:
        parts = _without_bits(bits, drop - NOISE_BITS) + v.bitcast(numbers, types.uint32)
        code = parts >> v.constant(NOISE_BITS, parts)
    sign = (word >> v.constant(drop, word)) & v.constant(1 << (row.bits - 1), word)
    return v.convert(v.select(v.is_nan(x), sign | v.constant(row.nan, word), code), form.bits)


@traced
def _without_bits(word, drop):
    """Drop the lowest bits of words: add half a unit, less where the last bit kept is even."""
    shift = v.constant(drop, word)
    odd = v.constant(1, word)
    return (word + v.constant((1 << (drop - 1)) - 1, word) + ((word >> shift) & odd)) >> shift


@traced
def _encode_by_units(x, form, numbers=None):
    """Round magnitudes to whole units, the value of the last bit to keep, to which the exponent field is added.

    A unit follows the exponent of x, but not below that of the smallest normal number, so that subnormal results come
    out right too.
    """
    row = form.row
    integer, mantissa, bias = _SOURCES[x.dtype]
    drop = mantissa - row.mantissa
    word = v.bitcast(x, integer)
    size = v.bitcast(word & v.constant((1 << (integer.bitwidth - 1)) - 1, word), x.dtype)
    bounded = v.minimum(size, v.constant(row.max if form.saturate else 2 * row.max, x))  # of NaN the limit
    exponent = _exponent_of(bounded, form)
    if numbers is None:
        units = _nearest_units(bounded, exponent, drop)
    else:  # the exponent of a unit changes sign
        per_unit = v.bitcast(v.constant((2 * bias + row.mantissa) << mantissa, word) - exponent, x.dtype)
        units = v.convert(round_at_random(bounded * per_unit, numbers), integer)
    smallest = v.constant((1 - row.bias + bias) << mantissa, word)
    code = _with_special(units + ((exponent - smallest) >> v.constant(drop, word)), size, form)
    sign = (word >> v.constant(integer.bitwidth - row.bits, word)) & v.constant(1 << (row.bits - 1), word)
    signed = code | sign
    return v.convert(
        v.select(code == v.constant(0, code), code, signed) if row.without_negative_zero else signed, form.bits
    )


@traced
def _nearest_units(size, exponent, drop):
    """Round to units by adding a power of two whose last bit has the value of one, `drop` above the exponent."""
    integer, mantissa, _ = _SOURCES[size.dtype]
    power = exponent + v.constant(drop << mantissa, exponent)
    return v.bitcast(size + v.bitcast(power, size.dtype), integer) - power


@traced
def _exponent_of(size, form):
    """Return the bits of the power of two below a magnitude, but not below that of the smallest normal number."""
    integer, mantissa, bias = _SOURCES[size.dtype]
    smallest = (1 - form.row.bias + bias) << mantissa
    exponents = ((1 << integer.bitwidth - mantissa - 1) - 1) << mantissa
    word = v.bitcast(size, integer)
    return v.maximum(word & v.constant(exponents, word), v.constant(smallest, word))


@traced
def round_magnitude(x, form):
    """Round lanes of magnitudes to numbers of a Minifloat, like `decode` after a saturating `encode`."""
    row = form.row
    _, mantissa, _ = _SOURCES[x.dtype]
    bounded = v.minimum(x, v.constant(row.max, x))
    exponent = _exponent_of(bounded, form)
    unit = v.bitcast(exponent + v.constant((mantissa - row.mantissa) << mantissa, exponent), x.dtype)
    return (bounded + unit) - unit


@traced
def _with_special(code, size, form):
    """Replace the codes of magnitudes that overflow or are NaN."""
    row = form.row
    if row.nan is None:
        return code
    if not form.saturate:
        over = row.nan if row.infinity is None else row.infinity
        code = v.select(code > v.constant(row.largest, code), v.constant(over, code), code)
    return v.select(v.is_nan(size), v.constant(row.nan, code), code)


# --- powers of two ----------------------------------------------------------------------------------------------------


class PowerOfTwo(v.Element):
    """Type of powers of two stored as 8 bit exponents: b stands for ``2**(b - bias)``, 255 for NaN."""

    def __init__(self, bias: int) -> None:
        self.bias = bias
        self.bits = types.uint8
        super().__init__(f"PowerOfTwo({bias})", 8)


_LEAST_POWER = 0x400000  # bits of 2.0**-127, a subnormal number: what exponent 0 stands for


@traced
def decode_power(bits, form):
    """Decode exponents to powers of two in float32."""
    if not isinstance(bits, v.Vec):
        return v.first(decode_power(v.full(bits, v.Vec(v.lane_type(bits), 1)), form))
    word = v.convert(bits, types.int32)
    power = v.maximum(word << v.constant(23, word), v.constant(_LEAST_POWER, word))
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


@traced
def power_below(x, below, form):
    """Return the largest power of two with an exponent in `form` that is not above ``x / 2**below``, x a magnitude.

    Infinity stays infinity.
    """
    if not isinstance(x, v.Vec):
        return v.first(power_below(v.full(x, v.Vec(v.lane_type(x), 1)), below, form))
    integer, mantissa, bias = _SOURCES[x.dtype]
    word = v.bitcast(x, integer)
    shift = v.constant(mantissa, v.bitcast(x, integer))
    exponent = ((word >> shift) - v.constant(below, word)) << shift
    least = _LEAST_POWER if x.dtype == types.float32 else (bias - 127) << mantissa
    bounded = v.minimum(v.maximum(exponent, v.constant(least, word)), v.constant((bias + 127) << mantissa, word))
    power = v.bitcast(bounded, x.dtype) * v.constant(2.0 ** (127 - form.bias), x)
    return v.select(x == v.constant(float("inf"), x), x, power)
