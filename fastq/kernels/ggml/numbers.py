"""Numbers of sixteen blocks of GGUF side by side: lane k of every Vec is of block k."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.formats.gguf import BLOCK, BinaryFormat, CodebookFormat, Float4Format, GridFormat, SuperFormat, TernaryFormat
from fastq.kernels.ggml.blocks32 import codes_of, parameters
from fastq.kernels.ggml.grid_search import quantize_points
from fastq.kernels.ggml.k_quants import store_scale, super_blocks_of_ranges, super_blocks_of_signed_codes
from fastq.kernels.ggml.scale_search import (
    F32,
    I32,
    LANES,
    PART,
    SUBS,
    code_of_signed_fit,
    codebook_index,
    first_largest,
    fit_codebook,
    fit_range_by_format,
    fit_signed,
    nearest,
    range_code,
    smallest_and_largest,
)
from fastq.kernels.ggml.spec import half, step_of
from fastq.kernels.ggml.splits import quantize_splits
from fastq.kernels.ggml.weights import mean_square_for_weights, weigh

FLOAT_LIMITS = 0.5, 1.5, 2.5, 3.5, 5.0, 7.0, 10.0  # half way between the numbers of float4_e2m1fn, doubled
_HIDDEN = 1 << 23  # of the bits of a float32


@traced
def quantize_group(spec, group, numbers):
    """Write the numbers of sixteen blocks."""
    block_format = spec.block_format
    if isinstance(block_format, BinaryFormat):
        binary(spec, group, numbers)
    elif isinstance(block_format, TernaryFormat):
        ternary(spec, group, numbers)
    elif isinstance(block_format, Float4Format):
        floats(spec, group, numbers)
    elif isinstance(block_format, CodebookFormat):
        _codebook(spec, group, numbers)
    elif isinstance(block_format, GridFormat):
        (quantize_splits if block_format.shifts else quantize_points)(spec, group, numbers)
    elif isinstance(block_format, SuperFormat):
        (super_blocks_of_ranges if block_format.has_minimum else super_blocks_of_signed_codes)(spec, group, numbers)
    elif spec.weighted and block_format.weighted:
        (_blocks_of_ranges if block_format.has_minimum else _blocks_of_signed_codes)(spec, group, numbers)
    else:
        _blocks_of_extents(spec, group, numbers)


# --- one sub-block ----------------------------------------------------------------------------------------------------


@traced
def _blocks_of_ranges(spec, group, numbers):
    """Write the numbers of blocks with a scale and a smallest value, both searched for by the importance of columns."""
    w = v.scratch(PART, types.float32)
    room = v.scratch(PART, types.float32)
    weigh(spec, group, 0, 32, mean_square_for_weights(spec, group), w)
    fit = fit_range_by_format(spec, group.x, w, room)
    for i in range(0, PART, LANES):
        v.store(numbers.codes, i, v.convert(range_code(fit, v.load(group.x, i, F32), spec.steps), types.uint8))
    v.store(numbers.d, 0, half(spec, fit.scale))
    v.store(numbers.min, 0, half(spec, -fit.negated_minimum))


@traced
def _blocks_of_signed_codes(spec, group, numbers):
    """Write the numbers of blocks whose one scale is searched for by the importance of columns.

    `spec.steps` is negative in these formats: the value of largest magnitude has the first code.
    """
    w = v.scratch(PART, types.float32)
    room = v.scratch(PART, types.float32)
    weigh(spec, group, 0, 32, mean_square_for_weights(spec, group), w)
    fit = fit_signed(group.x, w, room, 32, -spec.steps)
    for i in range(0, PART, LANES):
        v.store(numbers.codes, i, v.convert(code_of_signed_fit(fit, v.load(group.x, i, F32), -spec.steps), types.uint8))
    v.store(numbers.d, 0, half(spec, fit.scale))


@traced
def _blocks_of_extents(spec, group, numbers):
    """Blocks whose scale is a part of their range or of their largest magnitude."""
    p = parameters(spec, *extent_of(spec, group.x))
    v.store(numbers.d, 0, p.scale)
    v.store(numbers.min, 0, p.minimum)
    for i in range(0, PART, LANES):
        code = codes_of(spec, v.load(group.x, i, F32), p.inverse, p.shift)
        v.store(numbers.codes, i, v.convert(code, types.uint8))


@traced
def extent_of(spec, x):
    """Return the extent of each block, of which its scale is a fraction, and its smallest value, or 0.

    Which extent it is, says `ScaledFormat.extent`.
    """
    low, high = smallest_and_largest(x, BLOCK)
    if spec.block_format.has_minimum:
        return high - low, low
    zero = v.full(0.0, F32)
    largest = first_of_largest(x, v.maximum(high, -low))
    return v.absolute(largest) if spec.block_format.extent == "magnitude" else largest, zero


@traced
def first_of_largest(x, size):
    """Return the first value of a magnitude in each block, also of zeros."""
    largest = v.load(x, (BLOCK - 1) * LANES, F32)
    for i in range(BLOCK - 1):
        value = v.load(x, (BLOCK - 2 - i) * LANES, F32)
        largest = v.select(v.absolute(value) == size, value, largest)
    return largest


# --- codebooks --------------------------------------------------------------------------------------------------------


@traced
def _codebook(spec, group, numbers):
    """Write the numbers of blocks whose codes are places in a codebook, of one sub-block of 32 values or of eight."""
    w = v.scratch(PART, types.float32)
    scales = v.scratch(SUBS, types.float32)
    mean = mean_square_for_weights(spec, group)
    for j in range(spec.size // 32):
        weigh(spec, group, j * 32, 32, mean, w)
        v.store(scales, j * LANES, fit_codebook(v.advance(group.x, j * 32 * LANES), w, 32))
    v.store(numbers.d, 0, half(spec, codebook_inverses(spec, scales, numbers)))
    for j in range(spec.size // 32):
        inverse = v.load(scales, j * LANES, F32)
        for i in range(j * PART, (j + 1) * PART, LANES):
            index = v.bounded_to_integer(codebook_index(inverse * v.load(group.x, i, F32)), types.int32)
            v.store(numbers.codes, i, v.convert(index, types.uint8))


@traced
def codebook_inverses(spec, scales, numbers):
    """Return the scale to be stored, and replace those of sub-blocks by their inverses, with which codes are taken.

    If there are eight, the one stored is their unit, and their codes are written, too.
    """
    if spec.size > 32:
        return _inverses_of_eight(spec, scales, numbers)
    scale = v.load(scales, 0, F32)
    v.store(scales, 0, inverse_of(scale))
    return scale


@traced
def _inverses_of_eight(spec, scales, numbers):
    """Return the unit of eight scales, write their codes, -32..31, and replace them by inverses of what is stored."""
    zero = v.full(0.0, F32)
    largest, _ = first_largest(scales, 8)
    d = -largest / v.constant(32, zero)
    inverse = inverse_of(d)
    for j in range(8):
        code = nearest(inverse * v.load(scales, j * LANES, F32))
        code = v.minimum(v.maximum(code, v.constant(-32, code)), v.constant(31, code))
        v.store(scales, j * LANES, inverse_of(d * v.convert(code, types.float32)))
        store_scale(spec, numbers.scales, j, code)
    return d


@traced
def inverse_of(scale):
    """Inverse of a scale, 0.0 of zero."""
    zero = v.full(0.0, F32)
    return v.select(scale == zero, zero, v.constant(1, zero) / scale)


@traced
def largest_magnitude(x, count):
    """Largest magnitude of each block."""
    largest = v.full(0.0, F32)
    for i in range(count):
        largest = v.maximum(largest, v.absolute(v.load(x, i * LANES, F32)))
    return largest


# --- binary and ternary -----------------------------------------------------------------------------------------------


@traced
def binary(spec, group, numbers):
    """Write the numbers of blocks of signs."""
    total = zero = v.full(0.0, F32)
    for i in range(0, spec.size * LANES, LANES):
        value = v.load(group.x, i, F32)
        total = total + v.absolute(value)
        code = v.select(value >= zero, v.full(1, I32), v.full(0, I32))
        v.store(numbers.codes, i, v.convert(code, types.uint8))
    v.store(numbers.d, 0, half(spec, total / v.constant(spec.size, total)))


@traced
def ternary(spec, group, numbers):
    """Write the numbers of ternary blocks."""
    d = largest_magnitude(group.x, spec.size)
    zero = v.full(0.0, F32)
    inverse = v.select(d == zero, zero, v.constant(1, d) / d)
    is_tiny = inverse == v.full(float("inf"), F32)  # ggml multiplies by it: each code is `of_tiny`
    code_between = v.select(is_tiny, v.full(spec.block_format.of_tiny, I32), v.full(1, I32))
    inverse = v.select(is_tiny, zero, inverse)
    for i in range(0, spec.size * LANES, LANES):
        position = v.load(group.x, i, F32) * inverse
        code = v.select(position >= v.full(0.5, F32), v.full(2, I32), code_between)
        code = v.select(position <= v.full(-0.5, F32), v.full(0, I32), code)
        v.store(numbers.codes, i, v.convert(code, types.uint8))
    v.store(numbers.d, 0, half(spec, d))


# --- floating point ---------------------------------------------------------------------------------------------------


@traced
def floats(spec, group, numbers):
    """Write the numbers of floating-point blocks, whose scales are always finite."""
    part = spec.sub * LANES
    for j in range(spec.size // spec.sub):
        scale = scale_code(spec, largest_magnitude(v.advance(group.x, j * part), spec.sub))
        v.store(numbers.d, j * LANES, v.convert(scale, types.uint16))
        step = step_of(spec, scale)
        for i in range(j * part, (j + 1) * part, LANES):
            v.store(numbers.codes, i, v.convert(float_code(v.load(group.x, i, F32), step), types.uint8))


@traced
def float_code(x, step):
    """Code of the nearest number, of two as near the one nearer to 0; a step of 0 makes all as near."""
    size = v.select(step > v.full(0.0, F32), v.absolute(x), v.full(0.0, F32))
    code = v.full(0, I32)
    for number, half_way in enumerate(FLOAT_LIMITS, 1):
        code = v.select(size > step * v.constant(half_way, step), v.full(number, I32), code)
    negative = (x < v.full(0.0, F32)) & (code > v.full(0, I32))
    return v.select(negative, code | v.constant(8, code), code)


@traced
def scale_code(spec, largest):
    """Return the scales of sub-blocks as codes."""
    return (_exponent if spec.block_format.scale == "e8m0" else _e4m3)(largest)


@traced
def _exponent(largest):
    """Floor of log2, which is rounded to float32: slightly below a power of two it is that of the power.

    The distance from a power 2**n, in units of the last bit before it, is at most ln(2) * 2**m for a logarithm whose
    last bit before n is worth 2**(m - 23). What is below 2**-125 has a negative exponent, of which a byte is left.
    """
    tiny = largest < v.full(2.0**-126, F32)
    word = v.bitcast(v.select(tiny, largest * v.full(2.0**24, F32), largest), types.int32)
    below = (word >> v.constant(23, word)) - v.constant(127, word) - v.select(tiny, v.full(24, I32), v.full(0, I32))
    power = below + v.constant(1, below)
    positive = v.select(power > v.constant(0, power), v.full(1, I32), v.full(0, I32))
    distance = v.convert(v.absolute(power) - positive, types.float32)
    unit = v.bitcast(v.bitcast(distance, types.int32) & v.constant(0x7F800000, word), types.float32)
    near = v.bounded_to_integer(unit * v.full(0.6931472, F32), types.int32)
    mantissa = word & v.constant(_HIDDEN - 1, word)
    rounded = v.select(mantissa + near >= v.full(_HIDDEN, I32), power, below)
    code = rounded + v.constant(125, rounded)
    return v.select(largest > v.full(0.0, F32), code & v.constant(0xFF, code), v.full(0, I32))


@traced
def _e4m3(largest):
    """Return scales as floats of 4 and 3 bits, halves rounded up; subnormal ones up to 7, and 448 for all from 248 on.

    Codes up to 7 are subnormal, 0x7E is 448. The exponent field is that of float32 less 120, for biases of 127 and 7.
    """
    x = v.minimum(largest / v.full(6.0, F32), v.full(448.0, F32))
    word = v.bitcast(x, types.int32)
    exponent = (word >> v.constant(23, word)) - v.constant(120, word)
    normal = (exponent << v.constant(3, word)) | ((word >> v.constant(20, word)) & v.constant(7, word))
    normal = normal + ((word >> v.constant(19, word)) & v.constant(1, word))
    normal = v.select(normal >= v.full(0x78, I32), v.full(0x7E, I32), normal)
    small = v.minimum(x * v.full(512.0, F32) + v.full(0.5, F32), v.full(7.0, F32))
    return v.select(exponent > v.full(0, I32), normal, v.bounded_to_integer(small, types.int32))
