"""Numbers of blocks of GGUF to bytes and back by the table of fields, in plain NumPy: one row for each block."""

from __future__ import annotations

import numpy as np

from fastq.formats.gguf import CODEBOOK, DOUBLED, BinaryFormat, BlockFormat, CodebookFormat, Float4Format, GridFormat
from fastq.formats.gguf_field import Field
from fastq.system.dtypes import Array

Numbers = dict[str, Array]  # integers by the names of fields, one row for each block

F = np.float32


def pack(numbers: Numbers, form: BlockFormat) -> Array:
    """Return the bytes of blocks; bytes without numbers are 0."""
    count = len(next(iter(numbers.values())))
    blocks = np.zeros((count, form.nbytes), np.uint8)
    for field in form.fields_of(*numbers):
        first = field.first
        width = form.width(field.of)
        parts = numbers[field.of][:, first : first + field.numbers].astype(np.int64)
        parts = parts.reshape(count, field.words // field.stride, field.parts, field.stride)
        words = _fraction(parts) if field.base == 3 else _words_of_bits(parts, field, width)
        as_bytes = words.reshape(count, field.words, 1).view(np.uint8)[:, :, : field.word]
        blocks[:, field.at : field.at + field.nbytes] |= as_bytes.reshape(count, field.nbytes)
    return blocks


def _words_of_bits(parts: Array, field: Field, width: int) -> Array:
    """Return words of the bits of numbers; axis 2 has the numbers in one word. The highest bits are not cut off."""
    parts = parts >> field.shift
    if field.shift + field.bits < width:
        parts &= (1 << field.bits) - 1
    places = field.low + field.pitch * np.arange(field.parts)
    return np.asarray(np.bitwise_or.reduce(parts << places[:, None], axis=2).astype("<i8"))


def _fraction(digits: Array) -> Array:
    """Return the numbers with these digits in base 3, divided by 243, in units of 1 / 256 and rounded up."""
    powers = np.array([81, 27, 9, 3, 1])[: digits.shape[2]]
    whole: Array = (digits * powers[:, None]).sum(axis=2)
    return (-(whole * -256 // 243)).astype("<i8")


def unpack(blocks: Array, form: BlockFormat) -> Numbers:
    """Return the numbers of blocks by the names of fields: undoes `pack`."""
    numbers = {of: np.zeros((len(blocks), form.count(of)), np.int64) for of in {field.of for field in form.fields}}
    for field in form.fields:
        words = np.zeros((len(blocks), field.words, 8), np.uint8)
        as_bytes = blocks[:, field.at : field.at + field.nbytes]
        words[:, :, : field.word] = as_bytes.reshape(len(blocks), field.words, field.word)
        groups = words.view("<i8").reshape(len(blocks), field.words // field.stride, 1, field.stride)
        place = np.arange(field.parts)[:, None]
        if field.base == 3:
            parts = (groups * 3**place % 256 * 3) >> 8  # the highest digit of what is left without those before
        else:
            parts = groups >> field.low + field.pitch * place & (1 << field.bits) - 1
        numbers_of_field = numbers[field.of][:, field.first : field.first + field.numbers]
        numbers_of_field |= parts.reshape(numbers_of_field.shape) << field.shift
    return numbers


def values(blocks: Array, form: BlockFormat) -> Array:
    """Return the values of blocks: numbers of codes times scales, and smallest values."""
    # contract 19.1, 19.4 and 21.1
    numbers = unpack(blocks, form)
    if isinstance(form, GridFormat):
        return _values_of_points(numbers, form)
    if isinstance(form, BinaryFormat):
        scale = _parameters_of_sub_blocks(numbers, "d", "scales", 0)[:, 0] * F(1)  # NaN becomes quiet
        return np.where(numbers["codes"] == 1, scale, -scale)
    of_codes = numbers_of(numbers["codes"].reshape(len(blocks), form.size // form.sub, form.sub), form)
    if isinstance(form, Float4Format):
        steps = float_steps(numbers["d"], form)[:, :, None]
    else:
        steps = _parameters_of_sub_blocks(numbers, "d", "scales", form.scale_zero)
    if not form.has_minimum:
        return _with_sign_of_x86_nan(of_codes * steps, steps).reshape(len(blocks), form.size)
    lows = _parameters_of_sub_blocks(numbers, "min", "mins", 0)
    steps = np.where(np.isnan(lows), F(0), steps)
    products = _with_sign_of_x86_nan(of_codes * steps, steps)
    result = _with_sign_of_x86_nan(products - lows if "mins" in numbers else products + lows, products, lows)
    return result.reshape(len(blocks), form.size)


_TABLES = {CodebookFormat: CODEBOOK, Float4Format: DOUBLED}


def numbers_of(codes: Array, form: BlockFormat) -> Array:
    """Return the numbers of codes, in units of the scale."""
    table = _TABLES.get(type(form))
    return _as_signed(codes, form.zero) if table is None else np.array(table, F)[codes]


def _values_of_points(numbers: Numbers, form: GridFormat) -> Array:
    """Return points of a grid with signs, or with an eighth added to or subtracted from each coordinate."""
    points = form.grid.points[numbers["codes"]].astype(F)
    signs = numbers["signs"]
    scales = numbers["scales"].astype(F)
    count = len(points)
    if form.width("signs") == 7:
        # the eighth sign makes the number of minus signs even
        signs = signs | np.bitwise_xor.reduce(signs[..., None] >> np.arange(7) & 1, axis=-1) << 7
    # one bit for each value, or for each part of a block whose values have the same
    is_minus = signs[..., None] >> np.arange(8) & 1 if form.width("signs") > 1 else signs
    signs_of_block = form.count("signs") * (8 if form.width("signs") > 1 else 1)
    signed = np.where(is_minus.reshape(count, signs_of_block, 1) == 1, F(-1), F(1))
    points = points.reshape(count, signs_of_block, form.size // signs_of_block)
    of_codes: Array = points / F(8) + signed / F(8) if form.shifts else points * signed
    odd = scales * F(2) + F(1) if form.shifts else (scales + F(0.5)) * F(2 * form.unit)
    steps = numbers["d"].astype(np.uint16).view(np.float16).astype(F) * odd
    values = of_codes.reshape(count, form.size // form.sub, form.sub) * steps[:, :, None]
    return np.asarray(values).reshape(count, form.size)


def _parameters_of_sub_blocks(numbers: Numbers, unit: str, codes: str, zero: int) -> Array:
    """Return parameters of sub-blocks from a float16 unit and codes, or the one of a block; axis 2 has one value."""
    parameters: Array = numbers[unit].astype(np.uint16).view(np.float16).astype(F)
    if codes in numbers:
        parameters = _with_sign_of_x86_nan(parameters * _as_signed(numbers[codes], zero), parameters)
    return parameters[:, :, None]


def _with_sign_of_x86_nan(values: Array, *operands: Array) -> Array:
    """Return values in which each NaN that no operand had is negative, as x86-64 makes it."""
    made = np.isnan(values) & ~np.logical_or.reduce(np.broadcast_arrays(*map(np.isnan, operands)))
    return np.where(made, -np.abs(values), values)


def _as_signed(stored: Array, zero: int) -> Array:
    """Return the numbers in bytes that are stored with `zero` added; 8-bit numbers are signed."""
    return (stored - zero).astype(np.int8).astype(F)


def float_steps(scales: Array, form: Float4Format) -> Array:
    """Return half of the values of 8-bit scales: codes are looked up doubled."""
    if form.scale == "e8m0":
        steps: Array = np.ldexp(F(1), np.minimum(scales, 255) - 128).astype(F)
        return steps
    exponent = scales >> 3 & 15
    mantissa = (scales & 7).astype(F)
    value = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(1 + mantissa / F(8), exponent - 7)).astype(F)
    return np.where((scales == 0) | (scales == 0x7F), F(0), value * F(0.5))


def half_bits(x: Array) -> Array:
    """Return the bits of float16 parameters, one row for each."""
    return x.astype(np.float16)[:, None].view(np.uint16)


def are_finite(numbers: Numbers, form: BlockFormat) -> Array:
    """Return whether the float16 parameters of each block are finite."""
    halves = [numbers[of] for of in ("d", "min") if form.count(of) and form.width(of) == 16]
    return np.asarray(np.logical_and.reduce([(bits[:, 0] & 0x7C00) != 0x7C00 for bits in halves] or [np.True_]))
