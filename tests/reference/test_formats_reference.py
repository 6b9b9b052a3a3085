"""The reference's half precision, packed, float and block formats against independent truth.

Truth is ml_dtypes where it rounds once (from float32), exact rational arithmetic, ONNX's table and reference evaluator,
whole numbers as bit strings, and the block formats written again for one number at a time.
"""

import itertools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from catalogue import PatchedNumPy, same_bytes
from format_cases import (
    BLOCKS,
    CODES,
    FLOAT8,
    HALVES,
    MICROSCALING,
    PACKED,
    SMALL,
    SPECIFIED,
    any_codes,
    block_input,
    dtype_of,
    every_code,
    finite,
    rounding_cases,
)
from fuzzing import exact

from fastq import reference
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QTYPES
from fastq.reference import floats
from fastq.results import QParams, QuantizedArray


def unpacked(codes, dtype, shape):
    return reference.unpack(codes, dtype, shape=shape) if QTYPES[dtype].packed else codes


def quantized(x, dtype, **options):
    """The codes of x at scale 1, one per element."""
    x = np.asarray(x)
    scale = np.ones((), np.float64 if x.dtype == np.float64 else np.float32)
    return unpacked(reference.quantize_linear(x, scale, dtype=dtype, **options), dtype, x.shape)


# What to round: every tie with its neighbours, every 16-bit float, random bits


def all_float32(name):
    with np.errstate(invalid="ignore"):
        halves = [every_code(half).astype(np.float32) for half in HALVES]
    bits = np.random.default_rng(0).integers(0, 1 << 32, 50_000, np.uint32).view(np.float32)
    near = np.random.default_rng(1).standard_normal(50_000, np.float32) * np.float32(SPECIFIED[name][3] / 2)
    return np.concatenate([rounding_cases(name, np.float32), *halves, bits, near])


def cast_by_ml_dtypes(x, name):
    with np.errstate(over="ignore", invalid="ignore"):
        codes = (x + np.float32(0) if name in SMALL else x).astype(dtype_of(name))
    if name in FLOAT8:  # all NaN of a sign as one
        sign = np.signbit(x) & (not name.endswith("uz"))
        nan = FLOAT_FORMATS[name].nan | (sign * 0x80)
        codes = np.where(np.isnan(x), nan, codes.view(np.uint8)).astype(np.uint8).view(codes.dtype)
    return codes


def check_codes_of_ml_dtypes(name):
    x = all_float32(name)
    x = x[~np.isnan(x)] if name in SMALL else np.concatenate([x, np.array([np.nan, -np.nan], np.float32)])
    options = {} if name in SMALL else {"nan": "keep", "saturate": False}
    same_bytes(quantized(x, name, **options), cast_by_ml_dtypes(x, name))


@pytest.mark.parametrize("name", CODES)
def test_codes_are_those_of_ml_dtypes(name):
    # contract 8.2
    check_codes_of_ml_dtypes(name)


@pytest.mark.parametrize("name", FLOAT8)
def test_saturating_codes_are_those_of_onnx(name):
    # contract 8.2
    helper = pytest.importorskip("onnx.numpy_helper", reason="onnx has the saturating cast")
    x = all_float32(name)
    x = x[~np.isnan(x)]
    same_bytes(quantized(x, name), helper.saturate_cast(x, dtype_of(name)))


@pytest.mark.parametrize("name", SPECIFIED)
def test_every_code_is_decoded_as_by_ml_dtypes(name):
    # contract 8.6
    codes = every_code(name)
    with np.errstate(invalid="ignore"):
        expected = codes.astype(np.float64)
    decoded = floats.decode(codes, FLOAT_FORMATS[name])
    same_bytes(np.isnan(decoded), np.isnan(expected))
    same_bytes(np.signbit(decoded), np.signbit(expected))
    same_bytes(decoded[~np.isnan(decoded)], expected[~np.isnan(expected)])
    if name in QTYPES:
        same_bytes(reference.dequantize_linear(codes, 1.0), codes.astype(np.float32))


def test_scales_of_microscaling_are_decoded_as_by_ml_dtypes():
    codes = np.arange(256, dtype=np.uint8)
    decoded = floats.decode(codes, FLOAT_FORMATS["float8_e8m0fnu"])
    same_bytes(decoded, codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float64))


# The same from the specification in exact arithmetic, for float64, which ml_dtypes rounds twice


def exact_code(value, name, negative):
    """The saturated code of a finite number, the even one of two."""
    return exact.float_code(abs(Fraction(value)), negative, FLOAT_FORMATS[name], True)


def exact_codes(x, name):
    """Saturated codes of finite float64 numbers."""
    codes = [exact_code(v, name, math.copysign(1, v) < 0 and not (v == 0 and name in SMALL)) for v in x.tolist()]
    return np.array(codes, np.uint8).view(dtype_of(name))


@pytest.mark.parametrize("name", CODES)
def test_codes_of_float64_are_exact(name):
    x = rounding_cases(name, np.float64)
    x = x[np.isfinite(x)]
    if x.size > 500:
        x = np.concatenate([x[:20], np.random.default_rng(2).choice(x, 480)])
    same_bytes(quantized(x, name), exact_codes(x, name))


def test_table_of_formats_is_that_of_the_specifications():
    for name, (exponent, mantissa, bias, largest) in SPECIFIED.items():
        row = FLOAT_FORMATS[name]
        assert (row.exponent, row.mantissa, row.bias, row.max) == (exponent, mantissa, bias, largest)
        assert row.emax == math.floor(math.log2(largest))


# ONNX

N, INF = math.nan, math.inf
# the table of ONNX's Cast, which QuantizeLinear refers to: x, then the codes of E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ
SATURATED = [
    (0.0, 0x00, 0x00, 0x00, 0x00),
    (-0.0, 0x80, 0x00, 0x80, 0x00),
    (N, 0x7F, 0x80, 0x7E, 0x80),
    (INF, 0x7E, 0x7F, 0x7B, 0x7F),
    (-INF, 0xFE, 0xFF, 0xFB, 0xFF),
    (1e6, 0x7E, 0x7F, 0x7B, 0x7F),
    (-1e6, 0xFE, 0xFF, 0xFB, 0xFF),
]
NOT_SATURATED = [
    (0.0, 0x00, 0x00, 0x00, 0x00),
    (-0.0, 0x80, 0x00, 0x80, 0x00),
    (N, 0x7F, 0x80, 0x7E, 0x80),
    (-N, 0xFF, 0x80, 0xFE, 0x80),
    (INF, 0x7F, 0x80, 0x7C, 0x80),
    (-INF, 0xFF, 0x80, 0xFC, 0x80),
    (1e6, 0x7F, 0x80, 0x7C, 0x80),
    (-1e6, 0xFF, 0x80, 0xFC, 0x80),
]


@pytest.mark.parametrize(("saturate", "table"), [(True, SATURATED), (False, NOT_SATURATED)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_table_of_onnx(dtype, saturate, table):
    for x, *codes in table:
        for name, code in zip(
            ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"], codes, strict=True
        ):
            with np.errstate(over="ignore"):
                actual = quantized(np.array(x, dtype), name, nan="keep", saturate=saturate)
            assert actual.view(np.uint8) == code, (x, name)


# Half precision


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("dtype", QTYPES)
def test_halves_are_the_float32_numbers_that_they_are(dtype, half):
    x = every_code(half)
    with np.errstate(invalid="ignore"):
        x = x[np.isfinite(x)]
    wide = x.astype(np.float32)
    scale = np.float32(0.37)
    if not QTYPES[dtype].block_size:
        codes = reference.quantize_linear(x, scale, dtype=dtype)
        same_bytes(codes, reference.quantize_linear(wide, scale, dtype=dtype))
        same_bytes(
            reference.quantize_linear(x, np.array(scale, x.dtype), dtype=dtype),
            reference.quantize_linear(wide, np.array(scale, x.dtype).astype(np.float32), dtype=dtype),
        )
    q, expected = reference.quantize(x, dtype), reference.quantize(wide, dtype)
    same_bytes(q.codes, expected.codes)
    same_bytes(q.scale, expected.scale)
    fake = reference.fake_quantize(x, dtype)
    with np.errstate(over="ignore"):
        same_bytes(fake, reference.dequantize(expected).astype(x.dtype))
    assert fake.dtype == x.dtype


@pytest.mark.parametrize("half", HALVES)
def test_minmax_of_halves_has_their_dtype(half):
    # contract 1.6
    x = np.random.default_rng(5).standard_normal((4, 33)).astype(dtype_of(half))
    lo, hi = reference.minmax(x, axis=0)
    same_bytes(lo, np.array([min(row) for row in x.astype(float).tolist()]).astype(x.dtype))
    same_bytes(hi, np.array([max(row) for row in x.astype(float).tolist()]).astype(x.dtype))
    wide = reference.compare(x.astype(np.float32), reference.quantize(x, "int8"))
    assert reference.compare(x, reference.quantize(x, "int8")) == wide


@pytest.mark.parametrize("half", HALVES)
def test_values_are_rounded_once_to_halves(half):
    # contract 1.6
    numbers = finite(half)
    ties = (numbers[1:] + numbers[:-1]) / 2
    x = np.concatenate([ties * (1 + 2.0**-40), ties * (1 - 2.0**-40), ties])
    x = np.random.default_rng(6).choice(x, 3000)
    # scales are positive: one code, as many scales as numbers
    scale = np.abs(x[x != 0])
    codes = np.ones(scale.size, np.int8)
    values = reference.dequantize_linear(codes, scale, axis=0, dtype=half)
    for value, number in zip(values.astype(float).tolist(), map(Fraction, scale.tolist()), strict=True):
        assert Fraction(value) == exact.rounded(number, half)
    assert values.dtype == dtype_of(half)


def test_float64_is_rounded_to_float16_as_by_numpy():
    rng = np.random.default_rng(7)
    bits = rng.integers(0, 2047 << 52, 20_000).view(np.float64)  # positive and finite
    x = np.concatenate([bits, np.ldexp(np.frexp(bits)[0], rng.integers(-30, 20, bits.size))])
    scale = x[x > 0]
    codes = np.ones(scale.size, np.int8)
    with np.errstate(over="ignore", under="ignore"):
        same_bytes(reference.dequantize_linear(codes, scale, axis=0, dtype=np.float16), scale.astype(np.float16))


# Codes of fewer than 8 bits as the digits of one integer per row

LENGTHS = [*range(1, 18), 31, 32, 33, 64, 65]


def packed_row(numbers, bits):
    whole = sum(int(n) % (1 << bits) << k * bits for k, n in enumerate(numbers))
    return list(whole.to_bytes(math.ceil(len(numbers) * bits / 8), "little"))


def check_packing(dtype):
    bits = QTYPES[dtype].bits
    for length in LENGTHS:
        codes = any_codes(dtype, (3, length), length)
        numbers = codes.view(np.uint8) if QTYPES[dtype].element else codes
        expected = np.array([packed_row(row, bits) for row in numbers.tolist()], np.uint8)
        same_bytes(reference.pack(codes, dtype), expected)
        same_bytes(reference.unpack(expected, dtype, shape=codes.shape), codes)
        same_bytes(reference.pack(codes.T, dtype, axis=0), np.ascontiguousarray(expected.T))
        same_bytes(reference.unpack(expected.T, dtype, shape=codes.T.shape, axis=0), np.ascontiguousarray(codes.T))
        middle = np.moveaxis(np.stack([codes, codes[::-1]]), 2, 1)
        both = np.moveaxis(np.stack([expected, expected[::-1]]), 2, 1)
        same_bytes(reference.pack(middle, dtype, axis=1), np.ascontiguousarray(both))
        same_bytes(reference.unpack(both, dtype, shape=middle.shape, axis=-2), np.ascontiguousarray(middle))


@pytest.mark.parametrize("dtype", PACKED)
def test_packed_codes_are_the_digits_of_a_number(dtype):
    check_packing(dtype)


@pytest.mark.parametrize("bitorder", ["little", "big"])
@pytest.mark.parametrize("dtype", ["uint1", "int1"])
def test_one_bit_is_packed_as_by_numpy(dtype, bitorder):
    # contract 1.10
    for length, axis in itertools.product(LENGTHS, (0, 1, -1)):
        codes = any_codes(dtype, (length, 5) if axis == 0 else (5, length), length)
        expected = np.packbits(codes != 0, axis=axis, bitorder=bitorder)
        same_bytes(reference.pack(codes, dtype, axis=axis, bitorder=bitorder), expected)
        same_bytes(reference.unpack(expected, dtype, shape=codes.shape, axis=axis, bitorder=bitorder), codes)


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2", "int1", "uint1"])
def test_narrow_integers_of_ml_dtypes_are_packed_and_unpacked(name):
    codes = any_codes(name, (3, 7))
    same_bytes(reference.pack(codes.astype(dtype_of(name)), name), reference.pack(codes, name))
    q = reference.quantize(codes.astype(np.float32), name, axis=0)
    own = unpacked(q.codes, name, q.shape).astype(dtype_of(name))
    same_bytes(reference.dequantize_linear(own, q.scale, q.zero_point, axis=0), reference.dequantize(q))


@pytest.mark.parametrize("dtype", PACKED)
def test_packed_codes_of_rank_0(dtype):
    codes = any_codes(dtype, ())
    byte = np.array([int(codes.view(np.uint8)) % (1 << QTYPES[dtype].bits)], np.uint8)
    same_bytes(reference.pack(codes, dtype), byte)
    same_bytes(reference.unpack(byte, dtype, shape=()), codes)


# Microscaling and NVFP4, one number at a time


def exponent_of(value):
    """floor(log2 |value|)."""
    return math.frexp(value)[1] - 1


def microscaled(block, dtype):
    """The shared exponent and the codes of one block: OCP MX 1.0, section 6.3; codes of mxint8 in 64ths."""
    name = QTYPES[dtype].element
    largest = max(map(abs, block))
    emax = math.floor(math.log2(SPECIFIED[name][3])) if name else 0
    shared = min(max(exponent_of(largest) - emax, -127), 127) if largest else -127
    if not name:
        return shared, [min(max(round(Fraction(v) / Fraction(2) ** shared * 64), -127), 127) for v in block]
    unit = Fraction(2) ** shared
    return shared, [exact_code(Fraction(value) / unit, name, math.copysign(1, value) < 0) for value in block]


def check_microscaling(dtype, ftype=np.float32):
    qtype = QTYPES[dtype]
    x = block_input(ftype, (18, 75))
    q = reference.quantize(x, dtype)
    assert (q.axis, q.block_size, q.symmetric, q.tensor_scale) == (-1, 32, True, None)
    same_bytes(q.zero_point, np.zeros((18, 3), qtype.storage))
    assert q.scale.dtype == ml_dtypes.float8_e8m0fnu
    codes = unpacked(q.codes, dtype, x.shape)
    values = reference.dequantize(q)
    assert values.dtype == np.float32
    for row, block in itertools.product(range(18), range(3)):
        part = slice(32 * block, 32 * block + 32)
        shared, expected = microscaled(x[row, part].tolist(), dtype)
        assert q.scale.view(np.uint8)[row, block] == shared + 127
        actual = codes[row, part]
        assert (actual.view(np.uint8) if qtype.element else actual).tolist() == expected
        fractions = Fraction(2) ** shared / (1 if qtype.element else 64)
        for value, code in zip(values[row, part].tolist(), actual.astype(float).tolist(), strict=True):
            exact = Fraction(code) * fractions
            assert abs(value) == (abs(exact) if abs(exact) < 2**128 else math.inf)
            assert math.copysign(1, value) == math.copysign(1, code)


@pytest.mark.slow("a second each", quick=lambda dtype, ftype: dtype == "mxfp6_e2m3")
@pytest.mark.parametrize("ftype", [np.float32, np.float64])
@pytest.mark.parametrize("dtype", MICROSCALING)
def test_microscaling_is_that_of_the_specification(dtype, ftype):
    # contract 12.2
    check_microscaling(dtype, ftype)


def nvfp4(rows):
    """Scale of the array, scales and codes of the blocks: torchao's order of operations in float32."""
    single = np.float32
    tensor = single(max(abs(v) for row in rows for v in row)) / single(448 * 6)
    tensor = max(tensor, single(2.0**-120)) if any(map(any, rows)) else single(1)
    eights = exact.numbers(FLOAT_FORMATS["float8_e4m3fn"])
    scales, codes = [], []
    for row in rows:
        for start in range(0, len(row), 16):
            block = row[start : start + 16]
            wanted = single(max(map(abs, block))) / single(6) / tensor
            wanted = min(max(wanted, single(2.0**-6)), single(448))
            scales.append(exact_code(float(wanted), "float8_e4m3fn", False))
            reciprocal = (single(1) / tensor) / single(float(eights[scales[-1]]))
            steps = [float(single(value) * reciprocal) for value in block]
            codes += [exact_code(v, "float4_e2m1fn", math.copysign(1, v) < 0) for v in steps]
    return tensor, scales, codes


def nvfp4_inputs():
    rng = np.random.default_rng(9)
    plain = rng.standard_normal((5, 50)).astype(np.float32)
    wide = (plain * 10.0 ** rng.integers(-6, 7, plain.shape)).astype(np.float32)
    zeros = np.array([[0.0, -0.0] * 25], np.float32)
    return [plain, wide, zeros, plain * np.float32(1e37), plain * np.float32(1e-33), plain * np.float32(1e-38)]


@pytest.mark.parametrize("k", range(6))
def test_nvfp4_is_that_of_torchao(k):
    # contract 12.3 and 12.4
    x = nvfp4_inputs()[k]
    q = reference.quantize(x, "nvfp4")
    tensor, scales, codes = nvfp4(x.tolist())
    same_bytes(q.tensor_scale, np.array(tensor, np.float32))
    assert (q.scale.dtype, q.scale.shape) == (ml_dtypes.float8_e4m3fn, (len(x), 4))
    assert q.scale.view(np.uint8).ravel().tolist() == scales
    own = unpacked(q.codes, "nvfp4", x.shape)
    assert own.view(np.uint8).ravel().tolist() == codes
    steps = q.scale.astype(np.float32) * q.tensor_scale
    same_bytes(reference.dequantize(q), own.astype(np.float32) * steps.repeat(16, axis=1)[:, :50])
    assert q.qparams.nbytes == q.scale.nbytes + q.zero_point.nbytes + 4


@pytest.mark.parametrize("dtype", BLOCKS)
def test_blocks_along_any_axis_are_those_of_rows(dtype):
    # contract 12.1
    x = block_input(np.float32, (33, 75))[:, :35].reshape(33, 5, 7)
    for axis in (0, 1, 2, -1, -3):
        rows = np.ascontiguousarray(np.moveaxis(x, axis, -1))
        q, expected = reference.quantize(x, dtype, axis=axis), reference.quantize(rows, dtype)
        same_bytes(np.moveaxis(q.scale, axis, -1), expected.scale)
        same_bytes(np.moveaxis(reference.dequantize(q), axis, -1), reference.dequantize(expected))
        codes = np.moveaxis(unpacked(q.codes, dtype, x.shape), axis, -1)
        same_bytes(codes, unpacked(expected.codes, dtype, rows.shape))
        assert q.axis == axis


@pytest.mark.parametrize("dtype", BLOCKS)
def test_quantizing_again_with_the_same_parameters(dtype):
    x = block_input(np.float32, (7, 40))
    q = reference.quantize(x, dtype)
    same_bytes(reference.quantize(x, qparams=q.qparams).codes, q.codes)
    p = reference.choose_qparams(x, dtype)
    same_bytes(p.scale, q.scale)
    same_bytes(reference.fake_quantize(x, dtype), reference.dequantize(q))
    beyond = reference.quantize(np.full_like(x, np.inf), qparams=q.qparams)
    assert reference.compare(x * 0 + np.float32(3e38), beyond).clipped > 0
    wide = x.astype(np.float64) * 1e200
    same_bytes(reference.fake_quantize(wide, dtype), reference.dequantize(reference.quantize(wide, dtype), dtype=float))


@pytest.mark.parametrize("dtype", BLOCKS)
def test_nan_and_infinity_in_blocks(dtype):
    # contract 12.5
    qtype = QTYPES[dtype]
    x = np.random.default_rng(10).standard_normal((3, 70)).astype(np.float32)
    x[1, 40] = np.nan
    with pytest.raises(ValueError, match="x has 1 NaN"):
        reference.quantize(x, dtype)
    zeroed = np.where(np.isnan(x), np.float32(0), x)
    expected = reference.quantize(zeroed, dtype)
    same_bytes(reference.quantize(x, dtype, nan="zero").codes, expected.codes)
    q = reference.quantize(x, dtype, nan="keep")
    block = 40 // qtype.block_size
    part = slice(block * qtype.block_size, (block + 1) * qtype.block_size)
    spoiled = np.zeros(x.shape, bool)
    spoiled[1, part] = True
    values = reference.dequantize(q)
    same_bytes(values, np.where(spoiled, np.float32(np.nan), reference.dequantize(expected)))
    assert q.scale.view(np.uint8)[1, block] == (0x7F if dtype == "nvfp4" else 0xFF)
    assert not unpacked(q.codes, dtype, x.shape)[1, part].view(np.uint8).any()
    same_bytes(reference.fake_quantize(x, dtype, nan="keep"), values)
    same_bytes(reference.quantize(zeroed, qparams=q.qparams).codes, q.codes)
    for infinity in (np.inf, -np.inf):
        with pytest.raises(ValueError, match="infinite"):
            reference.quantize(np.where(np.isnan(x), np.float32(infinity), x), dtype)


@pytest.mark.parametrize("name", FLOAT8)
def test_nan_in_float_codes(name):
    # contract 8.5
    x = np.array([1, np.nan, -2], np.float32)
    with pytest.raises(ValueError, match="x has 1 NaN"):
        reference.quantize(x, name)
    clean = reference.quantize(np.array([1, 0, -2], np.float32), name)
    same_bytes(reference.quantize(x, name, nan="zero").codes, clean.codes)
    kept = reference.quantize(x, name, nan="keep")
    same_bytes(kept.scale, clean.scale)
    assert kept.codes.view(np.uint8)[1] == FLOAT_FORMATS[name].nan
    assert kept.codes.view(np.uint8)[::2].tolist() == clean.codes.view(np.uint8)[::2].tolist()
    assert np.isnan(reference.dequantize(kept)).tolist() == [False, True, False]


@pytest.mark.parametrize("ftype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CODES)
def test_parameters_of_float_codes_from_a_range(name, ftype):
    # contract 8.1
    rng, info = np.random.default_rng(11), np.finfo(ftype)
    for factor in (1, 1e-30, 1e30, info.tiny, info.smallest_subnormal, 0):
        x = rng.standard_normal((4, 9)).astype(ftype) * ftype(factor)
        for axis in (None, 0):
            q = reference.quantize(x, name, axis=axis)
            largest = np.abs(x).max() if axis is None else np.abs(x).max(axis=1)
            with np.errstate(under="ignore"):
                scale, codes = np.asarray(largest / ftype(SPECIFIED[name][3])), ftype(2 * SPECIFIED[name][3] + 1)
                short = (scale < info.tiny) & (scale * codes < 2 * largest)
            scale = np.where(short, scale + info.smallest_subnormal, scale)
            scale = np.where(scale == 0, ftype(1), scale)
            same_bytes(q.scale, scale)
            same_bytes(q.zero_point, np.zeros(scale.shape, dtype_of(name)))
            assert q.symmetric
            quotient = x / (scale if axis is None else scale[:, np.newaxis])
            same_bytes(unpacked(q.codes, name, x.shape), quantized(quotient, name))
            same_bytes(reference.fake_quantize(x, name, axis=axis), reference.dequantize(q))
            assert reference.compare(x, q).clipped == 0


# Errors


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2"])
def test_unpacked_to_the_dtype_of_ml_dtypes(name):
    codes = any_codes(name, (3, 7))
    p = QParams(np.array(1, np.float32), np.array(0, QTYPES[name].storage), QTYPES[name])
    q = QuantizedArray(reference.pack(codes, name), p, codes.shape)
    same_bytes(q.unpacked(), codes)
    for dtype in (name, dtype_of(name)):
        same_bytes(q.unpacked(dtype), codes.astype(dtype_of(name)))


def test_quantizing_floats_keeps_floating_point_errors_inside():
    x = np.array([[3e38, -3e38, 1e-45, 0] * 10], np.float32)
    with np.errstate(all="raise"):
        for dtype in (*CODES, *BLOCKS):
            q = reference.quantize(x, dtype)
            reference.dequantize(q, dtype=np.float16)
            reference.compare(x, q)
            reference.quantize(x[:, 2:3] * 0, dtype)


# The checks can fail


MUTANTS = {
    "floored": ({"rint": np.floor}, lambda: check_codes_of_ml_dtypes("float8_e4m3fn")),
    "truncated": ({"rint": np.trunc}, lambda: check_codes_of_ml_dtypes("float4_e2m1fn")),
    "half away": ({"rint": lambda x: np.floor(x + 0.5)}, lambda: check_codes_of_ml_dtypes("float6_e2m3fn")),
    "signless": ({"signbit": lambda x: x < 0}, lambda: check_codes_of_ml_dtypes("float8_e5m2")),
    "NaN missed": ({"isnan": lambda x: np.zeros(np.shape(x), bool)}, lambda: check_codes_of_ml_dtypes("float8_e5m2")),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_checks_catch_float_formats_with_another_numpy_function(monkeypatch, mutant):
    changed, check = MUTANTS[mutant]
    check()
    monkeypatch.setattr(floats, "np", PatchedNumPy(**changed))
    with pytest.raises(AssertionError):
        check()
