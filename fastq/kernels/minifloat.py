"""Decode floats of 16 bits and fewer to float32, and encode them with one rounding."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import register_model

from fastq.engine.jit import intrinsic, njit, specialize, target
from fastq.engine.simd import (
    Element,
    ElementModel,
    Vec,
    bitcast,
    constant,
    convert,
    first,
    full,
    is_nan,
    lane_type,
    maximum,
    minimum,
    select,
)
from fastq.formats.codebooks import Codebook
from fastq.formats.floats import FLOAT_FORMATS, FloatFormat
from fastq.kernels.codebooks import LOOK_UP_BITS, decode_by_table, encode_by_table, value_of_code, words

# without the instructions LLVM calls C functions, which are not linked
HAS_HALF = target().has("f16c") or target().is_arm


class Minifloat(Element):
    """Type of floats of a format.

    Parameters
    ----------
    row : FloatFormat or Codebook
        The format, one with a sign, or the table of its numbers.
    saturate : bool
        Whether a conversion gives the largest finite number for what is larger.
    dense : bool
        Whether floats of fewer than 8 bits share bytes.
    """

    def __init__(self, row: FloatFormat | Codebook, saturate: bool = False, dense: bool = True) -> None:
        self.row: Any = row
        self.saturate = saturate or row.nan is None
        self.bits = types.Integer.from_bitwidth(max(row.bits, 8), signed=False)
        # all of the row, since machine code is kept on disk under this name
        super().__init__(f"Minifloat({row}, {saturate}, {dense})", row.bits if dense else self.bits.bitwidth)


register_model(Minifloat)(ElementModel)


# width, mantissa and exponent bias of the floats that have lanes
_SOURCES = {types.float32: (types.int32, 23, 127), types.float64: (types.int64, 52, 1023)}


@intrinsic
def _bits_to_half(typingctx, x):
    """Convert the bits of IEEE half lanes to float32."""

    def emit(context, builder, sig, args):
        half = builder.bitcast(args[0], ir.VectorType(ir.HalfType(), x.n))
        return builder.fpext(half, ir.VectorType(ir.FloatType(), x.n))

    return Vec(types.float32, x.n)(x), emit


@intrinsic
def _half_to_bits(typingctx, x):
    """Round float32 lanes to IEEE half and return their bits."""

    def emit(context, builder, sig, args):
        half = builder.fptrunc(args[0], ir.VectorType(ir.HalfType(), x.n))
        return builder.bitcast(half, ir.VectorType(ir.IntType(16), x.n))

    return Vec(types.uint16, x.n)(x), emit


def _format(kind) -> Minifloat:
    found: Minifloat = kind.instance_type
    return found


# --- to float32 -------------------------------------------------------------------------------------------------------


@specialize
def decode(bits, kind):
    """Decode the bits of the Minifloat `kind` to float32; exact."""
    form = _format(kind)
    if not isinstance(bits, Vec):
        one = Vec(bits, 1)
        return lambda bits, kind: first(decode(full(bits, one), kind))
    if isinstance(form.row, Codebook):
        return lambda bits, kind: decode_by_table(bits, kind)
    if form.row.name == "float16" and HAS_HALF:
        return lambda bits, kind: _bits_to_half(bits)
    if form.row.exponent == 8:
        shift = 32 - form.row.bits
        return lambda bits, kind: bitcast(_word(bits) << constant(shift, _word(bits)), types.float32)
    if form.row.bits <= LOOK_UP_BITS and form.row.nan is None:
        return _decode_by_look_up(bits, kind)
    return _decode_by_fields(bits, kind)


@specialize
def _word(bits):
    return lambda bits: convert(bits, types.int32)


def _decode_by_look_up(bits, kind):
    """Look up numbers in registers: one instruction of AVX-512, where fields take seven."""
    row = _format(kind).row
    codes = 1 << row.bits
    value_of = value_of_code(words(list(map(row.number, range(codes)))))
    return lambda bits, kind: value_of(_word(bits) & constant(codes - 1, _word(bits)))


def _decode_by_fields(bits, kind):
    form = _format(kind)
    magnitude, drop = (1 << (form.row.bits - 1)) - 1, 23 - form.row.mantissa
    rebias, subnormal = (127 - form.row.bias) << 23, 2.0 ** (1 - form.row.bias - form.row.mantissa)
    normal, to_sign, sign = 1 << form.row.mantissa, 32 - form.row.bits, -(1 << 31)

    def fields(bits, kind):
        word = convert(bits, types.int32)
        size = word & constant(magnitude, word)
        value = bitcast((size << constant(drop, word)) + constant(rebias, word), types.float32)
        tiny = convert(size, types.float32) * constant(subnormal, value)
        value = select(size < constant(normal, word), tiny, value)
        value = _special(value, word, size, kind)
        return bitcast(
            bitcast(value, types.int32) | ((word << constant(to_sign, word)) & constant(sign, word)), types.float32
        )

    return fields


@specialize
def _special(value, word, size, kind):
    """Put infinities and NaN where the bits say so."""
    form = _format(kind)
    infinite, nan, code = (
        float("inf"),
        float("nan"),
        form.row.infinity if form.row.infinity is not None else form.row.nan,
    )
    if form.row.infinity is not None:

        def ieee(value, word, size, kind):
            value = select(size == constant(code, word), constant(infinite, value), value)
            return select(size > constant(code, word), constant(nan, value), value)

        return ieee
    if form.row.without_negative_zero:
        return lambda value, word, size, kind: select(word == constant(code, word), constant(nan, value), value)
    if form.row.nan is not None:
        return lambda value, word, size, kind: select(size == constant(code, word), constant(nan, value), value)
    return lambda value, word, size, kind: value


# --- from float32 and float64 -----------------------------------------------------------------------------------------


@specialize
def encode(x, kind):
    """Round float lanes to the Minifloat `kind`, ties to even, and return their bits.

    Overflow, of infinities too, gives the largest finite number where the format saturates, else infinity, or NaN if
    there is no infinity. NaN keeps its sign; of a format without NaN the result is the largest number.
    """
    form = _format(kind)
    if not isinstance(x, Vec):
        one = Vec(x, 1)
        return lambda x, kind: first(encode(full(x, one), kind))
    if isinstance(form.row, Codebook):
        return lambda x, kind: encode_by_table(x, kind)
    if form.row.name == "float16" and HAS_HALF and x.dtype == types.float32 and not form.saturate:
        return lambda x, kind: _half_to_bits(_canonical(x))
    if form.row.exponent == 8 and x.dtype == types.float32:
        return _encode_same_exponent(x, kind)
    return _encode_by_addition(x, kind)


@specialize
def in_half(spec, x):
    """Round the float32 result of an operation to the type of half precision that the rule names, if it names one."""
    form = _half(spec.rule.half)
    return (lambda spec, x: decode(encode(x, form), form)) if form else lambda spec, x: x


@specialize
def scale_in_half(spec, scale):
    """Round scales to the type of half precision that the rule of ranges names, if it names one."""
    form = _half(spec.rule.range.half)
    within = lane_type(scale)
    return (
        (lambda spec, scale: convert(decode(encode(scale, form), form), within)) if form else lambda spec, scale: scale
    )


def _half(name: str) -> Minifloat | None:
    return Minifloat(FLOAT_FORMATS[name]) if name else None


@specialize
def _canonical(x):
    """Replace every NaN by the quiet NaN of its sign: what CPUs make of its other bits differs."""
    quiet, sign = 0x7FC00000, -(1 << 31)

    def canonical(x):
        word = bitcast(x, types.int32)
        return select(is_nan(x), bitcast((word & constant(sign, word)) | constant(quiet, word), types.float32), x)

    return canonical


def _encode_same_exponent(x, kind):
    """Round by adding half a unit to the bits, less the last bit kept being even; the carry may reach the exponent."""
    form = _format(kind)
    drop, nan, target = 32 - form.row.bits, form.row.nan, form.bits
    half, sign = (1 << (drop - 1)) - 1, 1 << (form.row.bits - 1)

    def rounded(x, kind):
        word = bitcast(x, types.uint32)
        shift, odd = constant(drop, word), constant(1, word)
        code = (word + constant(half, word) + ((word >> shift) & odd)) >> shift
        quiet = ((word >> shift) & constant(sign, word)) | constant(nan, word)
        return convert(select(is_nan(x), quiet, code), target)

    return rounded


def _encode_by_addition(x, kind):
    """Round by adding a power of two whose last bit has the value of the last bit to keep.

    That power follows the exponent of x, but not below that of the smallest normal number, so that subnormal results
    come out right too; the sum less the power is a whole number, to which the exponent field is added.
    """
    form, (integer, mantissa, bias) = _format(kind), _SOURCES[x.dtype]
    source, target, drop = x.dtype, form.bits, mantissa - form.row.mantissa
    magnitude, smallest = (1 << (integer.bitwidth - 1)) - 1, (1 - form.row.bias + bias) << mantissa
    power = drop << mantissa
    limit = form.row.max if form.saturate else 2 * form.row.max

    def added(x, kind):
        word = bitcast(x, integer)
        size = bitcast(word & constant(magnitude, word), source)
        bounded = minimum(size, constant(limit, x))  # of NaN the limit
        exponent = _exponent_of(bounded, kind)
        unit = exponent + constant(power, word)
        units = bitcast(bounded + bitcast(unit, source), integer) - unit
        code = units + ((exponent - constant(smallest, word)) >> constant(drop, word))
        return convert(_with_sign(_with_special(code, size, kind), word, kind), target)

    return added


@specialize
def _exponent_of(size, kind):
    """Return the bits of the power of two below a magnitude, but not below that of the smallest normal number."""
    integer, mantissa, bias = _SOURCES[size.dtype]
    exponents = ((1 << integer.bitwidth - mantissa - 1) - 1) << mantissa
    smallest = (1 - _format(kind).row.bias + bias) << mantissa

    def exponent(size, kind):
        word = bitcast(size, integer)
        return maximum(word & constant(exponents, word), constant(smallest, word))

    return exponent


@specialize
def round_magnitude(x, kind):
    """Round lanes of magnitudes to numbers of the Minifloat `kind`: what `decode` makes of a saturating `encode`."""
    row, (_, mantissa, _) = _format(kind).row, _SOURCES[x.dtype]
    limit, power, source = row.max, (mantissa - row.mantissa) << mantissa, x.dtype

    def rounded(x, kind):
        bounded = minimum(x, constant(limit, x))
        exponent = _exponent_of(bounded, kind)
        unit = bitcast(exponent + constant(power, exponent), source)
        return (bounded + unit) - unit

    return rounded


@specialize
def _with_special(code, size, kind):
    """Replace the codes of magnitudes that overflow or are NaN."""
    form = _format(kind)
    largest, nan = form.row.largest, form.row.nan
    over = form.row.nan if form.row.infinity is None else form.row.infinity
    if nan is None:
        return lambda code, size, kind: code
    if form.saturate:
        return lambda code, size, kind: select(is_nan(size), constant(nan, code), code)

    def overflowing(code, size, kind):
        code = select(code > constant(largest, code), constant(over, code), code)
        return select(is_nan(size), constant(nan, code), code)

    return overflowing


@specialize
def _with_sign(code, word, kind):
    """Give codes the sign of the source bits, but not zero where the format has no -0.0."""
    form = _format(kind)
    shift, sign = word.dtype.bitwidth - form.row.bits, 1 << (form.row.bits - 1)

    def signed(code, word, kind):
        return code | ((word >> constant(shift, word)) & constant(sign, word))

    if not form.row.without_negative_zero:
        return signed
    signed_lanes = njit(signed)
    return lambda code, word, kind: select(code == constant(0, code), code, signed_lanes(code, word, kind))


# --- powers of two ----------------------------------------------------------------------------------------------------


class PowerOfTwo(Element):
    """Type of powers of two stored as 8 bit exponents: b stands for ``2**(b - bias)``, 255 for NaN."""

    def __init__(self, bias: int) -> None:
        self.bias, self.bits = bias, types.uint8
        super().__init__(f"PowerOfTwo({bias})", 8)


register_model(PowerOfTwo)(ElementModel)

_LEAST_POWER = 0x400000  # bits of 2.0**-127, a subnormal number: what exponent 0 stands for


@specialize
def decode_power(bits, kind):
    """Decode exponents to powers of two in float32."""
    if not isinstance(bits, Vec):
        one = Vec(bits, 1)
        return lambda bits, kind: first(decode_power(full(bits, one), kind))
    rebias, nan = 2.0 ** (127 - _format(kind).bias), float("nan")

    def decoded(bits, kind):
        word = convert(bits, types.int32)
        power = maximum(word << constant(23, word), constant(_LEAST_POWER, word))
        value = bitcast(power, types.float32) * constant(rebias, types.float32(0))
        return select(word == constant(255, word), constant(nan, value), value)

    return decoded


@specialize
def encode_power(x, kind):
    """Encode powers of two in range as exponents; NaN and infinity give 255."""
    if not isinstance(x, Vec):
        one = Vec(x, 1)
        return lambda x, kind: first(encode_power(full(x, one), kind))
    rebias, dtype = 2.0 ** (_format(kind).bias - 127), types.uint8

    def encoded(x, kind):
        word = bitcast(convert(x * constant(rebias, x), types.float32), types.int32)
        return convert((word >> constant(23, word)) & constant(255, word), dtype)

    return encoded


@specialize
def power_below(x, below, kind):
    """Return the largest power of two with an exponent in `kind` that is not above ``x / 2**below``, x a magnitude.

    Infinity stays infinity.
    """
    integer, mantissa, bias = _SOURCES[x.dtype if isinstance(x, Vec) else x]
    if not isinstance(x, Vec):
        one = Vec(x, 1)
        return lambda x, below, kind: first(power_below(full(x, one), below, kind))
    source, infinite = x.dtype, float("inf")
    rebias = 2.0 ** (127 - _format(kind).bias)
    least = _LEAST_POWER if source == types.float32 else (bias - 127) << mantissa
    most = (bias + 127) << mantissa

    def power(x, below, kind):
        word = bitcast(x, integer)
        exponent = ((word >> constant(mantissa, word)) - constant(below, word)) << constant(mantissa, word)
        bounded = minimum(maximum(exponent, constant(least, word)), constant(most, word))
        return select(x == constant(infinite, x), x, bitcast(bounded, source) * constant(rebias, x))

    return power
