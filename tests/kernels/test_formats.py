"""Half precision, packed, float and block formats: fast equals reference, byte for byte."""

import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from catalogue import FEW, LAYOUTS, same_bytes
from comparing import Work, dequantize, dequantize_linear, fake_quantize, measures, minmax, quantize, quantize_linear
from format_cases import (
    BLOCKS,
    CODES,
    FLOAT8,
    FLOATS,
    GRANULARITIES,
    HALF_LAYOUTS,
    HALVES,
    KINDS,
    PACKED,
    SHAPE,
    SMALL,
    any_codes,
    dtype_of,
    every_code,
    granularities,
    inputs,
    rounding_cases,
)

import fastq
from fastq import reference
from fastq.formats.qtypes import QTYPES
from fastq.results import QParams, QuantizedArray

LINEAR = [name for name, qtype in QTYPES.items() if not qtype.block_size]


def one_each(codes, dtype, shape):
    return reference.unpack(codes, dtype, shape=shape) if QTYPES[dtype].packed else codes


def given(scale, code, **where):
    """Parameters of a scale, or of as many as there are, without zero points."""
    scale = np.asarray(scale)
    return QParams(scale, np.zeros(scale.shape, QTYPES[code].storage), code, **where)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("code", LINEAR)
def test_nothing_by_a_given_scale(code, compare):
    compare(Work(np.empty((3, 0), np.float32), qparams=given(np.float32(1), code)), quantize_linear)


# Every 16-bit number through every format, every code back


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("code", LINEAR)
def test_every_half_through_every_format(code, half, compare):
    x, qtype = every_code(half), QTYPES[code]
    policies = ["zero"] if qtype.float_format is None or qtype.float_format.nan is None else ["zero", "keep"]
    for scale, nan, saturate in itertools.product((1.0, 0.37, 2.0**-14), policies, (True, False)):
        for kind in (np.float32, x.dtype):
            compare(
                Work(x, options={"nan": nan, "saturate": saturate}, qparams=given(np.array(scale, kind), code)),
                quantize_linear,
            )


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("code", BLOCKS)
def test_every_finite_half_with_parameters_of_its_range(code, half, compare):
    x = every_code(half)
    with np.errstate(invalid="ignore"):
        x = x[np.isfinite(x)]
    for order in (np.arange(x.size), np.random.default_rng(7).permutation(x.size)):
        compare(Work(x[order], code, outputs=(half,)), quantize, dequantize)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize(
    ("output", "code"),
    [
        *itertools.product(["float32"], LINEAR),
        *itertools.product([*HALVES, "float64"], [name for name in ("int8", *KINDS) if name in LINEAR]),
    ],
)
def test_every_code_is_decoded(output, code, compare):
    qtype = QTYPES[code]
    codes = every_code(qtype.element) if qtype.element else np.arange(qtype.qmin, qtype.qmax + 1).astype(qtype.storage)
    scales = [*map(np.float32, (1, 0.37, 1e-30, 1e30)), *map(np.float64, (0.1, 1e-300))]
    for scale in (*scales, np.float16(0.1), dtype_of("bfloat16").type(3)):
        q = QuantizedArray(reference.pack(codes, code) if qtype.packed else codes, given(scale, code), codes.shape)
        compare(Work(codes, q=q, outputs=(output,)), dequantize_linear, dequantize)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("code", BLOCKS)
def test_every_code_with_every_scale_is_decoded(code, compare):
    qtype = QTYPES[code]
    codes = every_code(qtype.element) if qtype.element else np.arange(-128, 128).astype(np.int8)
    scale = every_code(qtype.scale_element)
    with np.errstate(invalid="ignore"):
        scale = scale[~(scale.astype(np.float32) <= 0)]  # with NaN
    each = np.tile(codes, (scale.size, -(-qtype.block_size // codes.size)))
    scales = scale[:, np.newaxis].repeat(-(-each.shape[1] // qtype.block_size), axis=1)
    tensor_scale = np.array(0.37, np.float32) if code == "nvfp4" else None
    p = QParams(scales, np.zeros(scales.shape, qtype.storage), qtype, 1, qtype.block_size, True, "onnx", tensor_scale)
    q = QuantizedArray(reference.pack(each, code) if qtype.packed else each, p, each.shape)
    compare(Work(each, q=q, outputs=tuple(FLOATS)), dequantize)


# Ties, special values, NaN, measures


@pytest.mark.slow(
    "compiles kernels of its own", quick=lambda code, dtype: (code, dtype) == ("float8_e4m3fn", "float32")
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("code", CODES)
def test_ties_and_their_neighbours(code, dtype, compare):
    kind = np.dtype(dtype).type
    cases = rounding_cases(code, kind)
    # under these quotients of a tie's neighbour are nearest to the tie, and remainders become subnormal
    small = np.ldexp(2 - 2.0**-23, np.arange(-101, -77, 2))
    for scale, saturate in itertools.product((1.0, 0.37, 2.0**-60, np.finfo(dtype).tiny, *small), (True, False)):
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            x = np.concatenate([cases * kind(scale), cases])
        for p in (given(scale, code), given(np.full(x.shape, scale, dtype), code, axis=0)):
            compare(Work(x, options={"saturate": saturate}, qparams=p), quantize_linear)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("code", FLOAT8)
def test_values_out_of_range_with_and_without_saturation(code, compare):
    x = np.concatenate([inputs("float32", 300, 9) * 200, np.array([np.inf, -np.inf], np.float32)])
    p = reference.choose_qparams(x[:300] / 50, code)
    for saturate in (True, False):
        compare(Work(x, options={"saturate": saturate}, qparams=p), quantize, fake_quantize)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize(("half", "layout"), HALF_LAYOUTS)
def test_minmax_and_errors_of_halves(half, layout, compare):
    x = LAYOUTS[layout](inputs(half, np.prod(SHAPE), 10).reshape(SHAPE))
    for options in GRANULARITIES:
        compare(Work(x, "int8", options, threads=(1, 4)), minmax, measures)


@pytest.mark.slow("compiles kernels of its own", quick=lambda code, shape: code == "int8")
@pytest.mark.parametrize("shape", [SHAPE, (3, 5, 64)])
@pytest.mark.parametrize("code", ["int8", *KINDS])
def test_errors_of_formats(code, shape, compare):
    x, other = (inputs("float32", np.prod(shape), seed).reshape(shape) for seed in (11, 12))
    for options, measured in itertools.product(granularities(code), (x, LAYOUTS["strided"](other))):
        compare(Work(x, code, options, measured), measures)


@pytest.mark.slow("compiles a kernel a format", quick=lambda dtype, bound: dtype == "nvfp4")
@pytest.mark.parametrize(
    ("dtype", "bound"), [("mxfp8_e4m3", 464.0), ("mxfp4", 7.0), ("mxint8", 127.5 / 64), ("nvfp4", 7)]
)
def test_what_is_beyond_the_codes_is_counted_in_the_type_of_the_parameters(dtype, bound):
    """Float32 for prescribed scales: a float64 that rounds to the bound is on it, and one beyond float32 is clipped."""
    q = reference.quantize(np.zeros(64, np.float32), dtype)
    scale = np.full(q.scale.shape, 1, np.float32).astype(q.scale.dtype)
    tensor_scale = None if q.qparams.tensor_scale is None else np.array(1, np.float32)
    params = replace(q.qparams, scale=scale, tensor_scale=tensor_scale)
    q = QuantizedArray(q.codes, params, q.shape)
    on_it_is_clipped = dtype != "mxfp8_e4m3"  # whose largest code is even, to which a tie is rounded
    beyond = np.array([1, -1, 1 + 1e-12, 1 - 1e-12, 1 + 1e-6, 1 - 1e-6]) * bound
    for api in (fastq, reference):
        assert [api.compare(np.full(64, x), q).clipped // 64 for x in beyond] == [on_it_is_clipped] * 4 + [True, False]
    if dtype != "nvfp4":
        scale.view(np.uint8)[:] = 254  # 2**127
        huge = np.full(64, 4e40)  # 235 of these, but infinite in float32
        assert fastq.compare(huge, q).clipped == reference.compare(huge, q).clipped == 64


# Packing


@pytest.mark.slow("compiles kernels for each format; 10,000 arrays", quick=lambda dtype: dtype == "int4")
@pytest.mark.parametrize("dtype", PACKED)
def test_packing(dtype):
    orders = ("little", "big") if QTYPES[dtype].bits == 1 else ("little",)
    for length, bitorder in itertools.product((0, *range(1, 40), 63, 64, 65, 257, 1000), orders):
        for shape, axis in [
            ((length,), -1),
            ((3, length), 1),
            ((length, 3), 0),
            ((2, length, 5), 1),
            ((2, 3, length), 2),
        ]:
            codes = any_codes(dtype, shape, length)
            options = {"axis": axis, "bitorder": bitorder}
            packed = reference.pack(codes, dtype, **options)
            same_bytes(fastq.pack(codes, dtype, **options), packed)
            same_bytes(fastq.pack(np.asfortranarray(codes), dtype, **options), packed)
            same_bytes(fastq.unpack(packed, dtype, shape=shape, **options), codes)
            same_bytes(fastq.unpack(np.asfortranarray(packed), dtype, shape=shape, **options), codes)


@pytest.mark.slow("compiles kernels for each format", quick=lambda dtype: dtype in FEW)
@pytest.mark.parametrize("dtype", PACKED)
def test_packing_of_rank_0_and_of_narrow_dtypes(dtype):
    codes = any_codes(dtype, ())
    same_bytes(fastq.pack(codes, dtype), reference.pack(codes, dtype))
    same_bytes(fastq.unpack(reference.pack(codes, dtype), dtype, shape=()), codes)
    codes = any_codes(dtype, (3, 11))
    if not QTYPES[dtype].element:
        same_bytes(fastq.pack(codes.astype(np.int64), dtype), reference.pack(codes, dtype))
        if hasattr(ml_dtypes, dtype):
            same_bytes(fastq.pack(codes.astype(dtype_of(dtype)), dtype), reference.pack(codes, dtype))


@pytest.mark.slow("compiles kernels for each format", quick=lambda dtype: dtype in FEW)
@pytest.mark.parametrize("dtype", QTYPES)
def test_unpacked_codes(dtype):
    q = fastq.quantize(inputs("float32", 77, 13).reshape(7, 11), dtype)
    codes = one_each(q.codes, dtype, q.shape)
    same_bytes(q.unpacked(), codes)
    name = dtype if hasattr(ml_dtypes, dtype) else codes.dtype.name
    if name == dtype or not QTYPES[dtype].packed or QTYPES[dtype].element:
        same_bytes(q.unpacked(name), codes.astype(dtype_of(name)))


@pytest.mark.slow("compiles kernels for each format", quick=lambda name: name in FEW)
@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "uint2", "int1", "uint1", *SMALL])
def test_narrow_arrays_of_ml_dtypes_are_dequantized(name):
    codes = any_codes(name, (5, 9)).astype(dtype_of(name))
    junk = codes.view(np.uint8) | 0xFF << QTYPES[name].bits & 0xFF  # the other bits of its byte are not read
    same_bytes(fastq.dequantize_linear(junk.view(codes.dtype), 0.5), reference.dequantize_linear(codes, 0.5))
    for many in (any_codes(name, (3, 36, 512)).astype(codes.dtype), any_codes(name, (4099,)).astype(codes.dtype)):
        for source in (many, np.asfortranarray(many), np.flip(many), many[::2]):
            expected = reference.dequantize_linear(np.ascontiguousarray(source), 0.5)
            same_bytes(fastq.dequantize_linear(source, 0.5), expected)
            if not QTYPES[name].element:
                same_bytes(fastq.pack(source, name), reference.pack(np.ascontiguousarray(source), name))
    scale = np.random.default_rng(14).uniform(0.1, 2, 5).astype(np.float32)
    zero_point = np.zeros(5, codes.dtype)
    for options in ({"axis": 0}, {"axis": 0, "dtype": "bfloat16"}):
        actual = fastq.dequantize_linear(codes, scale, zero_point, **options)
        same_bytes(actual, reference.dequantize_linear(codes, scale, zero_point, **options))
        x = inputs("float32", 45, 15).reshape(5, 9)
        actual = fastq.quantize_linear(x, scale, zero_point, axis=0)
        same_bytes(actual, reference.quantize_linear(x, scale, zero_point, axis=0))


# out=, errors


@pytest.mark.slow("compiles 6 kernels a case")
@pytest.mark.parametrize("dtype", ["int3", "float8_e4m3fn", "float6_e2m3fn", "mxfp8_e5m2", "mxfp4", "nvfp4"])
def test_out_takes_the_result_and_is_returned(dtype):
    x = inputs("float16", 70, 16).reshape(2, 35)
    q = reference.quantize(x, dtype)
    values = {name: reference.dequantize(q, dtype=name) for name in FLOATS}
    calls = [(q.codes, lambda out: fastq.quantize(x, dtype, out=out).codes)]
    calls += [(values[name], lambda out: q.dequantize(out=out)) for name in FLOATS]
    calls += [(values["float16"], lambda out: fastq.fake_quantize(x, dtype, out=out))]
    for expected, call in calls:
        rows, columns = expected.shape
        strided = np.empty((rows, 2 * columns), expected.dtype)[::-1, ::2]
        for out in (np.empty_like(expected), np.empty_like(expected, order="F"), strided):
            assert call(out) is out
            same_bytes(out, expected)


@pytest.mark.slow("compiles kernels for 4 formats")
@pytest.mark.parametrize("half", HALVES)
def test_halves_are_overwritten_by_what_is_left_of_them(half):
    x = inputs(half, 210, 17).reshape(6, 35)
    for dtype in ("int8", "uint4", "float8_e5m2", "mxfp4"):
        expected, shared = reference.fake_quantize(x, dtype), x.copy()
        assert fastq.fake_quantize(shared, dtype, out=shared) is shared
        same_bytes(shared, expected)


@pytest.mark.parametrize(
    ("dtype", "bitorder"), [("int4", "little"), ("uint3", "little"), ("uint1", "little"), ("uint1", "big")]
)
def test_packing_reads_nothing_of_the_memory_that_it_writes(dtype, bitorder):
    for n in range(1, 41):
        codes = (np.arange(n) % 2).astype(reference.unpack(np.zeros(1, np.uint8), dtype, shape=(1,)).dtype)
        expected = reference.pack(codes, dtype, bitorder=bitorder)
        used = np.full(expected.size, 255, np.uint8)
        del used  # its memory is the next that NumPy gives for as many bytes
        same_bytes(fastq.pack(codes, dtype, bitorder=bitorder), expected)
