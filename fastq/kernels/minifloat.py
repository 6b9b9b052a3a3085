"""Decode floats of 16 bits and fewer to float32, and encode them with one rounding."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core.extending import register_model

from fastq.engine import simd as v
from fastq.engine.jit import TARGET, intrinsic, njit, specialize
from fastq.formats.codebooks import Codebook
from fastq.formats.floats import FLOAT_FORMATS, FloatFormat
from fastq.kernels.codebooks import LOOK_UP_BITS, decode_by_table, encode_by_table, value_of_code, words

# without the instructions LLVM calls C functions, which are not linked
HAS_HALF = TARGET.has("f16c") or TARGET.is_arm


class Minifloat(v.Element):
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


register_model(Minifloat)(v.ElementModel)


# width, mantissa and exponent bias of the floats that have lanes
_SOURCES = {types.float32: (types.int32, 23, 127), types.float64: (types.int64, 52, 1023)}


@intrinsic
def _bits_to_half(typingctx, x):
    """Convert the bits of IEEE half lanes to float32."""

    def emit(context, builder, sig, args):
        half = builder.bitcast(args[0], ir.VectorType(ir.HalfType(), x.n))
        return builder.fpext(half, ir.VectorType(ir.FloatType(), x.n))

    return v.Vec(types.float32, x.n)(x), emit


@intrinsic
def _half_to_bits(typingctx, x):
    """Round float32 lanes to IEEE half and return their bits."""

    def emit(context, builder, sig, args):
        half = builder.fptrunc(args[0], ir.VectorType(ir.HalfType(), x.n))
        return builder.bitcast(half, ir.VectorType(ir.IntType(16), x.n))

    return v.Vec(types.uint16, x.n)(x), emit


def _format(kind) -> Minifloat:
    found: Minifloat = kind.instance_type
    return found


# --- to float32 -------------------------------------------------------------------------------------------------------


@specialize
def decode(bits, kind):
    """Decode the bits of the Minifloat `kind` to float32; exact."""
    form = _format(kind)
    if not isinstance(bits, v.Vec):
        one = v.Vec(bits, 1)
        return lambda bits, kind: v.first(decode(v.full(bits, one), kind))
    if isinstance(form.row, Codebook):
        return lambda bits, kind: decode_by_table(bits, kind)
    if form.row.name == "float16" and HAS_HALF:
        return lambda bits, kind: _bits_to_half(bits)
    if form.row.exponent == 8:
        shift = 32 - form.row.bits
        return lambda bits, kind: v.bitcast(_word(bits) << v.constant(shift, _word(bits)), types.float32)
    if form.row.bits <= LOOK_UP_BITS and form.row.nan is None:
        return _decode_by_look_up(bits, kind)
    return _decode_by_fields(bits, kind)


@specialize
def _word(bits):
    return lambda bits: v.convert(bits, types.int32)


def _decode_by_look_up(bits, kind):
    """Look up numbers in registers: one instruction of AVX-512, where fields take seven."""
    row = _format(kind).row
    codes = 1 << row.bits
    value_of = value_of_code(words(list(map(row.number, range(codes)))))
    return lambda bits, kind: value_of(_word(bits) & v.constant(codes - 1, _word(bits)))


def _decode_by_fields(bits, kind):
    form = _format(kind)
    magnitude, drop = (1 << (form.row.bits - 1)) - 1, 23 - form.row.mantissa
    rebias, subnormal = (127 - form.row.bias) << 23, 2.0 ** (1 - form.row.bias - form.row.mantissa)
    normal, to_sign, sign = 1 << form.row.mantissa, 32 - form.row.bits, -(1 << 31)

    def fields(bits, kind):
        word = v.convert(bits, types.int32)
        size = word & v.constant(magnitude, word)
        value = v.bitcast((size << v.constant(drop, word)) + v.constant(rebias, word), types.float32)
        tiny = v.convert(size, types.float32) * v.constant(subnormal, value)
        value = v.select(size < v.constant(normal, word), tiny, value)
        value = _special(value, word, size, kind)
        return v.bitcast(
            v.bitcast(value, types.int32) | ((word << v.constant(to_sign, word)) & v.constant(sign, word)),
            types.float32,
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
            value = v.select(size == v.constant(code, word), v.constant(infinite, value), value)
            return v.select(size > v.constant(code, word), v.constant(nan, value), value)

        return ieee
    if form.row.without_negative_zero:
        return lambda value, word, size, kind: v.select(word == v.constant(code, word), v.constant(nan, value), value)
    if form.row.nan is not None:
        return lambda value, word, size, kind: v.select(size == v.constant(code, word), v.constant(nan, value), value)
    return lambda value, word, size, kind: value


# --- from float32 and float64 -----------------------------------------------------------------------------------------


@specialize
def encode(x, kind):
    """Round float lanes to the Minifloat `kind`, ties to even, and return their bits.

    Overflow, of infinities too, gives the largest finite number where the format saturates, else infinity, or NaN if
    there is no infinity. NaN keeps its sign; of a format without NaN the result is the largest number.
    """
    form = _format(kind)
    if not isinstance(x, v.Vec):
        one = v.Vec(x, 1)
        return lambda x, kind: v.first(encode(v.full(x, one), kind))
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
    within = v.lane_type(scale)
    return (
        (lambda spec, scale: v.convert(decode(encode(scale, form), form), within))
        if form
        else lambda spec, scale: scale
    )


def _half(name: str) -> Minifloat | None:
    return Minifloat(FLOAT_FORMATS[name]) if name else None


@specialize
def _canonical(x):
    """Replace every NaN by the quiet NaN of its sign: what CPUs make of its other bits differs."""
    quiet, sign = 0x7FC00000, -(1 << 31)

    def canonical(x):
        word = v.bitcast(x, types.int32)
        return v.select(
            v.is_nan(x), v.bitcast((word & v.constant(sign, word)) | v.constant(quiet, word), types.float32), x
        )

    return canonical


def _encode_same_exponent(x, kind):
    """Round by adding half a unit to the bits, less the last bit kept being even; the carry may reach the exponent."""
    form = _format(kind)
    drop, nan, target = 32 - form.row.bits, form.row.nan, form.bits
    half, sign = (1 << (drop - 1)) - 1, 1 << (form.row.bits - 1)

    def rounded(x, kind):
        word = v.bitcast(x, types.uint32)
        shift, odd = v.constant(drop, word), v.constant(1, word)
        code = (word + v.constant(half, word) + ((word >> shift) & odd)) >> shift
        quiet = ((word >> shift) & v.constant(sign, word)) | v.constant(nan, word)
        return v.convert(v.select(v.is_nan(x), quiet, code), target)

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
        word = v.bitcast(x, integer)
        size = v.bitcast(word & v.constant(magnitude, word), source)
        bounded = v.minimum(size, v.constant(limit, x))  # of NaN the limit
        exponent = _exponent_of(bounded, kind)
        unit = exponent + v.constant(power, word)
        units = v.bitcast(bounded + v.bitcast(unit, source), integer) - unit
        code = units + ((exponent - v.constant(smallest, word)) >> v.constant(drop, word))
        return v.convert(_with_sign(_with_special(code, size, kind), word, kind), target)

    return added


@specialize
def _exponent_of(size, kind):
    """Return the bits of the power of two below a magnitude, but not below that of the smallest normal number."""
    integer, mantissa, bias = _SOURCES[size.dtype]
    exponents = ((1 << integer.bitwidth - mantissa - 1) - 1) << mantissa
    smallest = (1 - _format(kind).row.bias + bias) << mantissa

    def exponent(size, kind):
        word = v.bitcast(size, integer)
        return v.maximum(word & v.constant(exponents, word), v.constant(smallest, word))

    return exponent


@specialize
def round_magnitude(x, kind):
    """Round lanes of magnitudes to numbers of the Minifloat `kind`: what `decode` makes of a saturating `encode`."""
    row, (_, mantissa, _) = _format(kind).row, _SOURCES[x.dtype]
    limit, power, source = row.max, (mantissa - row.mantissa) << mantissa, x.dtype

    def rounded(x, kind):
        bounded = v.minimum(x, v.constant(limit, x))
        exponent = _exponent_of(bounded, kind)
        unit = v.bitcast(exponent + v.constant(power, exponent), source)
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
        return lambda code, size, kind: v.select(v.is_nan(size), v.constant(nan, code), code)

    def overflowing(code, size, kind):
        code = v.select(code > v.constant(largest, code), v.constant(over, code), code)
        return v.select(v.is_nan(size), v.constant(nan, code), code)

    return overflowing


@specialize
def _with_sign(code, word, kind):
    """Give codes the sign of the source bits, but not zero where the format has no -0.0."""
    form = _format(kind)
    shift, sign = word.dtype.bitwidth - form.row.bits, 1 << (form.row.bits - 1)

    def signed(code, word, kind):
        return code | ((word >> v.constant(shift, word)) & v.constant(sign, word))

    if not form.row.without_negative_zero:
        return signed
    signed_lanes = njit(signed)
    return lambda code, word, kind: v.select(code == v.constant(0, code), code, signed_lanes(code, word, kind))


# --- powers of two ----------------------------------------------------------------------------------------------------


class PowerOfTwo(v.Element):
    """Type of powers of two stored as 8 bit exponents: b stands for ``2**(b - bias)``, 255 for NaN."""

    def __init__(self, bias: int) -> None:
        self.bias, self.bits = bias, types.uint8
        super().__init__(f"PowerOfTwo({bias})", 8)


register_model(PowerOfTwo)(v.ElementModel)

_LEAST_POWER = 0x400000  # bits of 2.0**-127, a subnormal number: what exponent 0 stands for


@specialize
def decode_power(bits, kind):
    """Decode exponents to powers of two in float32."""
    if not isinstance(bits, v.Vec):
        one = v.Vec(bits, 1)
        return lambda bits, kind: v.first(decode_power(v.full(bits, one), kind))
    rebias, nan = 2.0 ** (127 - _format(kind).bias), float("nan")

    def decoded(bits, kind):
        word = v.convert(bits, types.int32)
        power = v.maximum(word << v.constant(23, word), v.constant(_LEAST_POWER, word))
        value = v.bitcast(power, types.float32) * v.constant(rebias, types.float32(0))
        return v.select(word == v.constant(255, word), v.constant(nan, value), value)

    return decoded


@specialize
def encode_power(x, kind):
    """Encode powers of two in range as exponents; NaN and infinity give 255."""
    if not isinstance(x, v.Vec):
        one = v.Vec(x, 1)
        return lambda x, kind: v.first(encode_power(v.full(x, one), kind))
    rebias, dtype = 2.0 ** (_format(kind).bias - 127), types.uint8

    def encoded(x, kind):
        word = v.bitcast(v.convert(x * v.constant(rebias, x), types.float32), types.int32)
        return v.convert((word >> v.constant(23, word)) & v.constant(255, word), dtype)

    return encoded


@specialize
def power_below(x, below, kind):
    """Return the largest power of two with an exponent in `kind` that is not above ``x / 2**below``, x a magnitude.

    Infinity stays infinity.
    """
    integer, mantissa, bias = _SOURCES[x.dtype if isinstance(x, v.Vec) else x]
    if not isinstance(x, v.Vec):
        one = v.Vec(x, 1)
        return lambda x, below, kind: v.first(power_below(v.full(x, one), below, kind))
    source, infinite = x.dtype, float("inf")
    rebias = 2.0 ** (127 - _format(kind).bias)
    least = _LEAST_POWER if source == types.float32 else (bias - 127) << mantissa
    most = (bias + 127) << mantissa

    def power(x, below, kind):
        word = v.bitcast(x, integer)
        exponent = ((word >> v.constant(mantissa, word)) - v.constant(below, word)) << v.constant(mantissa, word)
        bounded = v.minimum(v.maximum(exponent, v.constant(least, word)), v.constant(most, word))
        return v.select(x == v.constant(infinite, x), x, v.bitcast(bounded, source) * v.constant(rebias, x))

    return power
