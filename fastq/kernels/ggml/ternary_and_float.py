"""Blocks of GGUF of ternary and of 4 bit floating-point codes, sixteen side by side."""

from __future__ import annotations

from numba import types

from fastq.engine.jit import njit, specialize
from fastq.engine.simd import (
    absolute,
    advance,
    bitcast,
    bounded_to_integer,
    constant,
    convert,
    full,
    load,
    maximum,
    minimum,
    select,
    store,
)
from fastq.kernels.ggml.search import F32, I32, LANES, VALUES
from fastq.kernels.ggml.spec import half, step_of

_HIDDEN = 1 << 23  # of the bits of a float32


@njit
def largest_magnitude(x, count):
    """Largest magnitude of each block."""
    largest = full(0.0, F32)
    for i in range(count):
        largest = maximum(largest, absolute(load(x, i * LANES, F32)))
    return largest


# --- ternary ----------------------------------------------------------------------------------------------------------


@njit
def ternary(spec, group, numbers):
    """Write the numbers of ternary blocks."""
    d, zero = largest_magnitude(group.x, 256), full(0.0, F32)
    inverse = constant(1, d) / d
    inverse = select((d == zero) | (inverse == full(float("inf"), F32)), zero, inverse)
    for i in range(0, VALUES, LANES):
        position = load(group.x, i, F32) * inverse
        code = select(position >= full(0.5, F32), full(2, I32), full(1, I32))
        code = select(position <= full(-0.5, F32), full(0, I32), code)
        store(numbers.codes, i, convert(code, types.uint8))
    store(numbers.d, 0, half(spec, d))


# --- floating point ---------------------------------------------------------------------------------------------------


@specialize
def floats(spec, group, numbers):
    """Write the numbers of floating-point blocks, whose scales are always finite."""
    sub, subs = spec.row.sub, spec.row.size // spec.row.sub

    def blocks(spec, group, numbers):
        for j in range(subs):
            scale = scale_code(spec, largest_magnitude(advance(group.x, j * sub * LANES), sub))
            store(numbers.d, j * LANES, convert(scale, types.uint16))
            step = step_of(spec, scale)
            for i in range(j * sub * LANES, (j + 1) * sub * LANES, LANES):
                store(numbers.codes, i, convert(float_code(load(group.x, i, F32), step), types.uint8))

    return blocks


@njit
def float_code(x, step):
    """Code of the nearest number, of two as near the one nearer to 0; a step of 0 makes all as near."""
    size, code = select(step > full(0.0, F32), absolute(x), full(0.0, F32)), full(0, I32)
    code = _if_past(size, step, 0.5, 1, code)
    code = _if_past(size, step, 1.5, 2, code)
    code = _if_past(size, step, 2.5, 3, code)
    code = _if_past(size, step, 3.5, 4, code)
    code = _if_past(size, step, 5.0, 5, code)
    code = _if_past(size, step, 7.0, 6, code)
    code = _if_past(size, step, 10.0, 7, code)
    negative = (x < full(0.0, F32)) & (code > full(0, I32))
    return select(negative, code | constant(8, code), code)


@njit
def _if_past(size, step, half_way, number, code):
    """Return a code where a magnitude is beyond the half between its number and the one before."""
    return select(size > step * constant(half_way, step), full(number, I32), code)


@specialize
def scale_code(spec, largest):
    """Return the scales of sub-blocks as codes."""
    code_of = _exponent if spec.row.scale == "e8m0" else _e4m3
    return lambda spec, largest: code_of(largest)


@njit
def _exponent(largest):
    """Floor of log2, which is rounded to float32: slightly below a power of two it is that of the power.

    The distance from a power 2**n, in units of the last bit before it, is at most ln(2) * 2**m for a logarithm whose
    last bit before n is worth 2**(m - 23). What is below 2**-125 has a negative exponent, of which a byte is left.
    """
    tiny = largest < full(2.0**-126, F32)
    word = bitcast(select(tiny, largest * full(2.0**24, F32), largest), types.int32)
    below = (word >> constant(23, word)) - constant(127, word) - select(tiny, full(24, I32), full(0, I32))
    power = below + constant(1, below)
    positive = select(power > constant(0, power), full(1, I32), full(0, I32))
    distance = convert(absolute(power) - positive, types.float32)
    unit = bitcast(bitcast(distance, types.int32) & constant(0x7F800000, word), types.float32)
    near = bounded_to_integer(unit * full(0.6931472, F32), types.int32)
    mantissa = word & constant(_HIDDEN - 1, word)
    rounded = select(mantissa + near >= full(_HIDDEN, I32), power, below)
    code = rounded + constant(125, rounded)
    return select(largest > full(0.0, F32), code & constant(0xFF, code), full(0, I32))


@njit
def _e4m3(largest):
    """Floats of 4 and 3 bits, halves rounded up; subnormal ones up to 7, and 448 for all from 248 on."""
    x = minimum(largest / full(6.0, F32), full(448.0, F32))
    word = bitcast(x, types.int32)
    exponent = (word >> constant(23, word)) - constant(120, word)
    normal = (exponent << constant(3, word)) | ((word >> constant(20, word)) & constant(7, word))
    normal = normal + ((word >> constant(19, word)) & constant(1, word))
    normal = select(normal >= full(0x78, I32), full(0x7E, I32), normal)
    small = minimum(x * full(512.0, F32) + full(0.5, F32), full(7.0, F32))
    return select(exponent > full(0, I32), normal, bounded_to_integer(small, types.int32))
