"""Every convention of the table, and any that a user makes: fast equals reference, bit for bit."""

import dataclasses
import itertools
from pathlib import Path
from runpy import run_path

import numpy as np
import pytest
from catalogue import ANYWHERE, in_blocks, same_bytes, same_quantized, specials, ties, values

import fastq
from fastq import reference
from fastq.engine import jit
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import as_qtype

ROWS = fastq.CONVENTIONS
SHAPE = (3, 5, 70)
GRANULARITIES = [
    {},
    {"axis": 0},
    {"axis": -1},
    {"axis": -1, "block_size": 32},
    {"axis": -1, "block_size": 33},
]

OWN = {
    "rounded to half": fastq.Convention(
        "rounded to half",
        operation_type="input",
        quotient="reciprocal",
        fused=True,
        zero_point_inside=True,
        degenerate_zero_point="end",
        degenerate="epsilon",
        scale_floor=1e-4,
    ),
    "scale in half": fastq.Convention("scale in half", stored_type="input", formats=("uint8", "float8_e4m3fn")),
    "offset in half": fastq.Convention(
        "offset in half",
        schemes=("asymmetric",),
        operation_type="input",
        zero_point="offset",
        offset_code="zero",
        formats=("uint8",),
    ),
    "everything unusual": fastq.Convention(
        "everything unusual",
        parameter_type="float64",
        divisor="codes",
        scale_floor=0.01,
        degenerate="floor",
        zero_point_end="highest",
        zero_point_rounding="floor",
        zero_point_rounded="quotient",
        zero_point_inside=True,
        rounding="floor",
        narrow=(),
    ),
    "a float among the codes": fastq.Convention(
        "a float among the codes",
        schemes=("asymmetric",),
        includes_zero=False,
        zero_point="float",
        zero_point_inside=True,
        rounding="half_away",
    ),
    "symmetric alone": fastq.Convention(
        "symmetric alone", formats=("int8",), schemes=("symmetric",), stored_type="float16", rounding="half_away"
    ),
    "middle of a bucket": fastq.Convention("middle of a bucket", rounding="floor", decode="middle", narrow=()),
    "truncated reciprocal": fastq.Convention(
        "truncated reciprocal",
        quotient="reciprocal_of_double",
        stored_type="float64",
        rounding="trunc",
        zero_point_rounding="trunc",
        variants=(("symmetric", "rounding", "half_away"), ("blocks", "zero_point_inside", True)),
    ),
    "inverse of scales": fastq.Convention(
        "inverse of scales",
        schemes=("asymmetric",),
        stored_type="float64",
        scale_from="inverse",
        zero_point="float",
        zero_point_inside=True,
        quotient="reciprocal_of_double",
    ),
    "narrow ranges": fastq.Convention("narrow ranges", narrow_range=3.0, scale_sign="farther_end"),
    "codes before scales are rounded": fastq.Convention(
        "codes before scales are rounded",
        stored_type="bfloat16",
        codes_by="unrounded",
        scale_sign="farther_end",
        zero_point_end="highest",
        symmetric_extreme="signed_low",
    ),
    "range of a least size": fastq.Convention(
        "range of a least size",
        scale_floor=0.0,
        range_floor=0.05,
        scale_digits="bfloat16",
        stored_type="float16",
        zero_point_end="both",
        zero_point_rounded="quotient",
        narrow_unsigned="highest",
        variants=(("blocks", "stored_type", "bfloat16"),),
    ),
    "whole steps": fastq.Convention(
        "whole steps",
        schemes=("asymmetric",),
        includes_zero=False,
        stored_type="float16",
        codes_by="unrounded",
        zero_point="offset",
        scale_rounding="whole_steps",
        quotient="reciprocal",
        variants=(("uint8", "rounding", "half_away"),),
    ),
    "offset of code zero, rounded away": fastq.Convention(
        "offset of code zero, rounded away",
        schemes=("asymmetric",),
        zero_point="offset",
        offset_code="zero",
        rounding="half_away",
        reduce_range=True,
        clamp="format",
    ),
    "a wide type and powers of two": fastq.Convention(
        "a wide type and powers of two",
        compute_type="float64",
        scale_rounding="power_of_two",
        scale_sign="nearer_end",
        stored_type="float32",
        zero_point_rounding="half_up",
        rounding="half_up",
        quotient="divide_in_float64",
        zero_point_inside=True,
    ),
    "a wide quotient in half precision": fastq.Convention(
        "a wide quotient in half precision",
        operation_type="input",
        quotient="divide_in_float64",
        zero_point_inside=True,
    ),
    "a turned offset": fastq.Convention(
        "a turned offset",
        schemes=("asymmetric",),
        scale_sign="negative",
        scale_rounding="power_of_two",
        zero_point="offset",
        degenerate_zero_point="zero",
        offset_rounding="float32_below",
        rounding="half_up",
    ),
    "cut from wider integers": fastq.Convention("cut from wider integers", cut_from=16, zero_point_inside=True),
    "cut, rounded down": fastq.Convention(
        "cut, rounded down", schemes=("symmetric",), cut_from=12, rounding="floor", formats=("int8",)
    ),
    "a product by the range": fastq.Convention(
        "a product by the range",
        schemes=("asymmetric",),
        includes_zero=False,
        zero_point="offset",
        quotient="range_of_multiple",
        rounding="floor",
    ),
}
ALL = {name: ROWS[name] for name in ANYWHERE} | OWN


def schemes(row):
    """Each scheme of a convention with a code format, of different ones where it has them: kernels take time."""
    formats = row.formats or ("uint8", "int8")
    return [(formats[k % len(formats)], scheme == "symmetric") for k, scheme in enumerate(row.schemes)]


def array(dtype, seed=3):
    """Values of all magnitudes, with rows of zeros, constants, and tiny and huge values."""
    x = values(dtype, np.prod(SHAPE), seed).reshape(SHAPE)
    if dtype.startswith("float"):
        x = np.clip(x, -1e5, 1e5).astype(dtype)
        x[0, 3], x[0, 4] = x[0, 3] * x.dtype.type(1e-40), x[0, 4] * x.dtype.type(1e30)
    x[0, 0], x[0, 1], x[0, 2] = 0, 5, np.array(-3).astype(dtype)
    return x


def within(row, x):
    """The same values, no larger than scales of float16 can represent if a row has these."""
    has_float16 = "float16" in (row.stored_type, *(value for *_, value in row.variants))
    return x.clip(-3e4, 3e4) if has_float16 and x.dtype.kind == "f" else x


def check(x, other, code, options):
    x = within(options["convention"], x)
    q, expected = fastq.quantize(x, code, **options), reference.quantize(x, code, **options)
    same_quantized(q, expected)
    same_bytes(q.dequantize(), reference.dequantize(expected))
    if options.get("axis") != -1:
        same_bytes(fastq.fake_quantize(x, code, **options), reference.fake_quantize(x, code, **options))
    same_quantized(fastq.quantize(other, qparams=q.qparams), reference.quantize(other, qparams=expected.qparams))


@pytest.mark.slow("compiles 20 kernels a case")
@pytest.mark.parametrize("name", ALL)
def test_every_granularity_in_one_pass_and_in_two(name):
    row = ALL[name]
    x, other = array("float32"), values("float32", np.prod(SHAPE), 4).reshape(SHAPE)
    for (code, symmetric), options in itertools.product(schemes(row), GRANULARITIES):
        check(x, other, code, options | {"symmetric": symmetric, "convention": row})


@pytest.mark.slow("compiles 4 kernels a case")
@pytest.mark.parametrize("name", ALL)
def test_blocks_that_are_computed_side_by_side(name):
    row = ALL[name]
    x, other = (values("float32", 37 * 64, seed).reshape(37, 64) for seed in (3, 4))
    code, symmetric = schemes(row)[0]
    check(x, other, code, {"axis": -1, "block_size": 32, "symmetric": symmetric, "convention": row})


ROUNDS = [name for name, row in ALL.items() if "input" in (row.operation_type, row.stored_type)]


@pytest.mark.slow("compiles 10 kernels a case")
@pytest.mark.parametrize(
    ("name", "code"),
    [(name, code) for name in ROUNDS for code in (ALL[name].formats or ("uint8", "int8")) if not in_blocks(code)],
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("granularity", GRANULARITIES, ids=str)
def test_operations_rounded_to_half_precision(name, code, dtype, granularity):
    # contract 2.5
    row, x = ALL[name], (values("float32", np.prod(SHAPE), 3).reshape(SHAPE) % 4 - 2).astype(FLOAT_FORMATS[dtype].dtype)
    x[0, 0], x[0, 1], x[0, 2] = 0, 5, -3
    x[0, 3], x[0, 4] = x[0, 3] * x.dtype.type(2.0**-20), -np.abs(x[0, 4]) * x.dtype.type(2.0**-24)
    for scheme in row.schemes:
        if (scheme, code) == ("symmetric", "int1"):
            continue  # such codes have no symmetric scheme
        options = granularity | {"symmetric": scheme == "symmetric", "convention": row}
        check(x, x[::-1], code, options)
        q = fastq.quantize(x, code, **options)
        assert np.array_equal(q.scale.astype(x.dtype).astype(np.float32), q.scale)  # scales are such numbers
        raw = {"convention": row, "axis": None}
        same_bytes(*(impl.quantize_linear(x, np.float32(0.013), None, code, **raw) for impl in (fastq, reference)))
        if options.get("axis") == 0:
            searched = options | {"range": fastq.MSERange(grid=7)}
            same_quantized(fastq.quantize(x, code, **searched), reference.quantize(x, code, **searched))


def test_codes_come_from_the_scale_before_it_is_rounded():
    # contract 2.9
    x = np.linspace(-1, 0.7, 64, dtype=np.float32) * np.float32(1 / 3)
    row = ROWS["nncf"]
    q, before = (fastq.quantize(x, "int8", symmetric=True, convention=each) for each in (row, row.before_rounding))
    assert q.codes.tolist() == before.codes.tolist()
    assert q.scale == np.float16(before.scale)
    assert q.scale != before.scale
    assert row.before_rounding.before_rounding == row.before_rounding
    values = fastq.fake_quantize(x, "int8", symmetric=True, convention=row)
    same_bytes(values, q.dequantize())


def test_an_offset_is_rounded_with_the_scale():
    # contract 2.9
    x = (np.linspace(-0.9, 1, 64) / 3).astype(np.float16)
    q = fastq.quantize(x, "uint4", convention="mlx")
    assert np.float16(q.zero_point) == q.zero_point == x.max()
    for api in (fastq, reference):
        with pytest.raises(ValueError, match="x has a range too wide for a finite scale"):
            api.quantize(np.float32([7e4, 7e4 + 1]), "uint8", convention=OWN["whole steps"])


@pytest.mark.parametrize("api", [fastq, reference])
def test_the_end_farther_from_zero_has_the_first_code(api):
    # contract 5.6 and 5.7
    for lo, hi, scale, offset in [(-3.0, 1.0, 3 / 11, -3.0), (-1.0, 3.0, -3 / 11, 3.0), (-2.0, 2.0, -2 / 7, 2.0)]:
        q = api.quantize(np.float32([lo, 0, hi]), "uint4", convention="mlx")
        assert (q.scale, q.zero_point) == (np.float32(scale), offset)
        assert api.dequantize(q)[1] == 0
    row = dataclasses.replace(ROWS["onnx"], name="own", scale_sign="farther_end")
    p = api.choose_qparams(np.float32([-1, 3]), "int8", convention=row)
    assert (p.scale, p.zero_point) == (np.float32(-4 / 255), 63)
    p = api.choose_qparams(np.float32([1e-9, 2e-9]), "uint8", convention="mlx")  # less than half of the least step
    assert (p.scale, p.zero_point) == (np.float32(-1e-7), 0)


@pytest.mark.parametrize("api", [fastq, reference])
def test_scales_of_which_a_unit_has_no_steps(api):
    # contract 2.17
    codes = np.uint8([0, 1, 7])
    options = {"convention": "hdf5-scaleoffset", "dtype": "float32"}
    found = api.dequantize_linear(codes, np.float64(1e300), np.float64(3), **options)  # 1e-300 is 0.0 in float32
    same_bytes(np.isnan(found), np.array([True, False, False]))
    assert (found[1:] == np.inf).all()


@pytest.mark.parametrize("api", [fastq, reference])
def test_scales_from_their_inverse(api):
    # contract 5.15 and 5.16
    for hi, inverse in [(3.0, np.float32(1 / 3) * np.float32(15)), (2e-4, 2e4), (9e-5, 1.0)]:
        x = np.float32([0, hi])
        q = api.quantize(x, "uint4", convention="hqq")
        assert (q.scale, q.zero_point) == (1 / np.float64(np.float32(inverse)), 0)
        assert q.unpacked().tolist() == [0, int(np.rint(x[1] * np.float32(inverse)))]
    row = dataclasses.replace(ROWS["onnx"], name="own", narrow_range=2.0)
    p = api.choose_qparams(np.float32([-1, 1]), "int8", convention=row)
    assert (p.scale, p.zero_point) == (1, -127)
    assert api.choose_qparams(np.float32([-1, 1.001]), "int8", convention=row).scale < 0.01


@pytest.mark.parametrize("api", [fastq, reference])
def test_symmetric_scales_of_either_sign(api):
    # contract 5.8
    for x, scale in [([-3.0, 1.0], 0.75), ([-1.0, 3.0], -0.75), ([-3.0, 3.0], 0.75), ([3.0, 3.0], 0.75)]:
        options = {"symmetric": True, "convention": "nncf"}
        assert api.choose_qparams(np.float32(x), "int3", **options).scale == scale
    assert api.fake_quantize(np.float32([3.0, 3.0]), "int3", **options).tolist() == [2.25, 2.25]


VALUES = {
    name: dataclasses.replace(ALL[name], name="own", value_type="result")
    for name in ("onnx", "hqq", "a float among the codes", "middle of a bucket", "whole steps", "torchao-float8")
}


@pytest.mark.slow("compiles 6 kernels a case", quick=lambda **case: {*case.values()} == {"onnx", "bfloat16", 8})
@pytest.mark.parametrize("columns", [8, 96])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", VALUES)
def test_values_rounded_to_half_precision(name, dtype, columns):
    # contract 7.7
    row = VALUES[name]
    x = (values("float32", 4 * 96, 3).reshape(-1, columns) % 4 - 2).astype(FLOAT_FORMATS[dtype].dtype)
    differ = 0
    for code, symmetric in schemes(row):
        options = {"axis": 0, "symmetric": symmetric, "convention": row}
        q, expected = (api.quantize(x, code, **options) for api in (fastq, reference))
        decoded = q.dequantize(dtype=x.dtype)
        same_bytes(decoded, reference.dequantize(expected, dtype=x.dtype))
        for kept in (q.dequantize(), q.dequantize(dtype=np.float64)):  # which are not rounded
            same_bytes(kept.astype(np.float32), reference.dequantize(expected))
        differ += np.count_nonzero(decoded != q.dequantize().astype(x.dtype))
        same_bytes(*(api.fake_quantize(x, code, **options) for api in (fastq, reference)))
        same_bytes(*(api.fake_quantize(x, qparams=q.qparams) for api in (fastq, reference)))
        if not q.dtype.packed:
            raw = {"axis": 0, "convention": row, "dtype": x.dtype}
            same_bytes(*(api.dequantize_linear(q.codes, q.scale, q.zero_point, **raw) for api in (fastq, reference)))
    assert differ or name == "torchao-float8"  # whose codes are no integers


STORED = {
    **{
        name: dataclasses.replace(fastq.CONVENTIONS[name], stored_type="input")
        for name in ("onnx", "torchao", "onnxruntime")
    },
    "tiny": fastq.Convention("tiny", stored_type="input", degenerate=1e-10, scale_floor=0.0),
}


@pytest.mark.slow("compiles 6 kernels a case")
@pytest.mark.parametrize("columns", [8, 96])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("code", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("name", STORED)
def test_scales_rounded_to_half_precision(name, code, dtype, columns):
    # contract 2.6
    """Codes of a rounded scale may lie beyond the ends; no scale becomes 0."""
    row, half = STORED[name], FLOAT_FORMATS[dtype].dtype
    of_rows = np.float32([1, 0, 189 * 2.0**-24, 3e4, -1, 2.0**-24, 7, 1e-3])
    x = np.repeat(of_rows[:, None], columns, axis=1).astype(half)
    x[3:, ::7] *= x.dtype.type(-0.7)
    for symmetric in [scheme == "symmetric" for scheme in row.schemes]:
        for axis in (0, 1, None):
            options = {"axis": axis, "symmetric": symmetric, "convention": row}
            q, expected = fastq.quantize(x, code, **options), reference.quantize(x, code, **options)
            same_quantized(q, expected)
            assert (q.scale > 0).all()
            assert np.array_equal(q.scale.astype(half).astype(q.scale.dtype), q.scale)
            if symmetric and q.dtype.signed:  # nothing wraps
                assert (np.sign(q.codes.astype(int)) * np.sign(x.astype(np.float32)) >= 0).all()


@pytest.mark.slow("compiles 3 kernels a case")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("stored", ["float16", "bfloat16"])
def test_scales_rounded_to_a_dtype_that_is_not_that_of_the_input(stored, dtype):
    # contract 2.6
    row = dataclasses.replace(fastq.CONVENTIONS["onnx"], name="own", stored_type=stored)
    x = (np.random.default_rng(6).standard_normal((8, 96)) * [[1], [0], [1e-7], [3e3], [1e-3], [7], [2], [5]]).astype(
        dtype
    )
    for symmetric in (True, False):
        options = {"axis": 0, "symmetric": symmetric, "convention": row}
        q = fastq.quantize(x, "int8", **options)
        same_quantized(q, reference.quantize(x, "int8", **options))
        assert np.array_equal(q.scale.astype(FLOAT_FORMATS[stored].dtype).astype(q.scale.dtype), q.scale)


@pytest.mark.parametrize("api", [fastq, reference])
def test_a_range_whose_scale_is_beyond_half_precision_is_refused(api):
    # contract 2.7
    options = {"symmetric": True, "convention": ALL["symmetric alone"]}
    x = np.array([1.0, -127 * 65504.0], np.float32)
    assert api.quantize(x, "int8", **options).scale == 65504
    with pytest.raises(ValueError, match="x has a range too wide for a finite scale"):
        api.quantize(2 * x, "int8", **options)


@pytest.mark.slow("compiles 2 searches")
@pytest.mark.parametrize("code", ["nf4", "fp4"])
def test_searched_scales_of_codebooks_in_half_precision(code):
    x = np.random.default_rng(3).standard_normal((4, 128)).astype(np.float16)
    options = {"axis": -1, "block_size": 64, "range": "mse", "convention": STORED["onnx"]}
    q, expected = fastq.quantize(x, code, **options), reference.quantize(x, code, **options)
    same_quantized(q, expected)
    assert np.array_equal(q.scale.astype(np.float16).astype(np.float32), q.scale)


def test_zero_points_that_float_codes_have_no_place_for():
    # contract 8.4
    row = fastq.Convention("mine", formats=("float8_e4m3fn",), schemes=("asymmetric",), zero_point="offset")
    for api in (fastq, reference):
        with pytest.raises(ValueError, match="convention 'mine' has zero points that are not codes"):
            api.quantize_linear(np.float32([-0.0]), 1.0, None, "float8_e4m3fn", convention=row)


@pytest.mark.slow("compiles 4 kernels a case")
@pytest.mark.parametrize("dtype", ["float64", "int16"])
@pytest.mark.parametrize("name", ALL)
def test_input_dtypes(name, dtype):
    row, x = ALL[name], array(dtype)
    code, symmetric = schemes(row)[-1]
    check(x, x, code, {"axis": 0, "symmetric": symmetric, "convention": row})


@pytest.mark.slow(
    "compiles kernels for each format",
    quick=lambda name, code: code not in (ALL[name].formats or [code]),
)
@pytest.mark.parametrize("code", ["int16", "uint16", "int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize("name", ALL)
def test_formats(name, code):
    row = ALL[name]
    x = within(row, array("float32", 5))
    options = {"axis": 0, "convention": row, "symmetric": "asymmetric" not in row.schemes}
    if row.formats and code not in row.formats:
        with pytest.raises(ValueError, match="dtype must be one of"):
            fastq.quantize(x, code, **options)
        return
    same_quantized(fastq.quantize(x, code, **options), reference.quantize(x, code, **options))


def scale_and_zero_points(row, code):
    scale = np.float32(0.1)
    if row.zero_point == "integer":
        qtype = as_qtype(code)
        if qtype.element:
            return [(scale, 0), (np.float32(1.0), 0)]
        return [(scale, zero) for zero in (qtype.qmin, 3, qtype.qmax)] + [(np.float32(1.0), 3)]
    return [(scale, np.float32(-1.7)), (np.float32(1.0), np.float32(2.0)), (np.float32(1.0), np.float32(0.5))]


@pytest.mark.slow("compiles 3 kernels a case", quick=lambda name: name == "torch")
@pytest.mark.parametrize("name", ALL)
def test_ties_and_specials_under_given_parameters(name):
    # contract 2.2
    row = ALL[name]
    code = schemes(row)[0][0]
    for scale, zero_point in scale_and_zero_points(row, code):
        x = np.concatenate([ties(np.float32, scale), specials(np.float32), ties(np.float32, scale) + np.float32(0.5)])
        x = np.concatenate([x, x / np.float32(7)])
        codes = fastq.quantize_linear(x, scale, zero_point, code, convention=row)
        same_bytes(codes, reference.quantize_linear(x, scale, zero_point, code, convention=row))
        each, zeros = np.full(x.shape, scale), np.full(x.shape, zero_point)
        lanes = fastq.quantize_linear(x, each, zeros, code, axis=0, convention=row)
        same_bytes(lanes, reference.quantize_linear(x, each, zeros, code, axis=0, convention=row))
        if not as_qtype(code).packed:
            back = fastq.dequantize_linear(codes, scale, zero_point, convention=row)
            same_bytes(back, reference.dequantize_linear(codes, scale, zero_point, convention=row))


@pytest.mark.slow("compiles 3 kernels for each convention", quick=lambda name, size: name == "torch")
@pytest.mark.parametrize("size", [1, 15, 16, 17, 1000, 70_001])
@pytest.mark.parametrize("name", ["torch", "tflite", "faiss", "textbook"])
def test_sizes(name, size):
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    code, symmetric = schemes(ROWS[name])[0]
    q, expected = (impl.quantize(x, code, convention=name, symmetric=symmetric) for impl in (fastq, reference))
    same_quantized(q, expected)
    same_bytes(q.dequantize(), reference.dequantize(expected))
    actual, wanted = fastq.compare(x, q), reference.compare(x, expected)
    assert (actual.clipped, actual.max_abs_error) == (wanted.clipped, wanted.max_abs_error)


@pytest.mark.slow("compiles 8 kernels a case")
@pytest.mark.parametrize("name", ["torch", "onnxruntime", "torchao"])
def test_half_of_the_codes(name):
    row, x = dataclasses.replace(ROWS[name], reduce_range=True), array("float32")
    for code, symmetric in schemes(row):
        check(x, x * np.float32(3), code, {"convention": row, "symmetric": symmetric})
    first, last = row.parameter_range(as_qtype("int8"), False)
    assert (first, last) == ((-64, 64) if name == "onnxruntime" else (-64, 63))


# half away from zero is C's round(), whose nearest neighbours below a half stay below
def test_half_away_is_exact():
    below = np.nextafter(np.float32(0.5), np.float32(0))
    x = np.array([below, 0.5, 1.5, 2.5, -below, -0.5, -2.5, 8388607.5], np.float32)
    row = fastq.Convention("half away", rounding="half_away")
    assert fastq.quantize_linear(x, 1.0, 0, "int8", convention=row).tolist() == [0, 1, 2, 3, 0, -1, -3, 127]


def test_negative_scales_of_matmul_nbits():
    # contract 2.4
    x = np.array([1.0, -0.5, 0.25, 0.0], np.float32)
    q = fastq.quantize(x, "uint4", symmetric=True, convention="matmul-nbits")
    assert q.scale == -0.125
    assert q.zero_point == 8
    assert q.unpacked().tolist() == [0, 12, 6, 8]
    assert q.dequantize().tolist() == x.tolist()


# Notebooks, of which test_notebooks.py has the others


@pytest.mark.slow("compiles 5 kernels")
def test_article_in_three_schemes():
    """The article takes the difference of the ends as a float32, the quotient as a float64."""
    row = dataclasses.replace(ROWS["textbook"], span_type="compute")
    x = np.array([0.21535037, 1.2962357, -1.0161772], np.float32)
    scale = fastq.choose_qparams(x, "int8", convention=row).scale
    assert float(scale) == 0.00906828525019627
    assert fastq.quantize_linear(x, scale, None, "int8", convention=row).tolist() == [24, 127, -112]
    q = fastq.quantize(x, "int8", symmetric=True, convention=row)
    assert (q.codes.tolist(), float(q.scale)) == ([21, 127, -100], pytest.approx(0.01020658016204834, rel=1e-15))
    for end in ("lowest", "highest"):
        q = fastq.quantize(x, "int8", convention=dataclasses.replace(row, zero_point_end=end))
        assert (q.codes.tolist(), int(q.zero_point)) == ([8, 127, -128], -16)
        assert np.array_equal(q.dequantize(), np.array([0.21763885, 1.2967647, -1.0156479], np.float32))


def test_zeros_have_a_scale_of_one():
    x = np.zeros((2, 3), np.float32)
    q = fastq.quantize(x, "uint8", convention="textbook")
    assert (float(q.scale), int(q.zero_point)) == (1.0, 0)
    assert np.array_equal(np.asarray(q), x)


# The width of codes


@pytest.mark.slow("compiles kernels for each width")
@pytest.mark.parametrize("bits", range(2, 17))
def test_codes_of_any_width(bits):
    # contract 1.13
    x = array("float32", 6)[1]
    for code, symmetric in itertools.product(("int8", "uint8", "int16", "uint16"), (False, True)):
        if bits > as_qtype(code).bits:
            continue
        options = {"bits": bits, "symmetric": symmetric, "axis": -1}
        q, expected = fastq.quantize(x, code, **options), reference.quantize(x, code, **options)
        same_quantized(q, expected)
        assert q.codes.dtype == np.dtype(code)
        half = 1 << (bits - 1)
        assert (q.dtype.qmin, q.dtype.qmax) == ((-half, half - 1) if code[0] == "i" else (0, 2 * half - 1))
        assert q.codes.min() >= q.dtype.qmin
        assert q.codes.max() <= q.dtype.qmax
        same_bytes(q.dequantize(), reference.dequantize(expected))
        same_quantized(fastq.quantize(x, qparams=q.qparams), reference.quantize(x, qparams=expected.qparams))


@pytest.mark.parametrize("impl", [fastq, reference])
@pytest.mark.parametrize(
    ("code", "bits", "error"),
    [("int8", 9, ValueError), ("int8", 1, ValueError), ("int8", True, TypeError), ("int4", 3, TypeError)],
)
def test_wrong_widths(impl, code, bits, error):
    # contract 1.13
    with pytest.raises(error, match="bits"):
        impl.quantize(np.ones(3, np.float32), code, bits=bits)


@pytest.mark.parametrize("impl", [fastq, reference])
def test_zero_points_of_narrow_codes_are_checked(impl):
    p = fastq.choose_qparams(np.ones(3, np.float32), "int8", bits=5)
    wrong = dataclasses.replace(p, zero_point=np.array(99, np.int8))
    with pytest.raises(ValueError, match="zero_point must"):
        impl.quantize(np.ones(3, np.float32), qparams=wrong)


@pytest.mark.parametrize("impl", [fastq, reference])
def test_zero_points_of_other_floats_are_refused(impl):
    """Where zero points may be floats: those of no float dtype that is computed in."""
    p = fastq.QParams(np.float32(1), np.array(1, np.longdouble), "uint8", convention="cf")
    with pytest.raises(TypeError, match=r"zero_point must be .*float.* integer.*, not (float128|longdouble)"):
        impl.quantize(np.ones(3, np.float32), qparams=p)


@pytest.mark.parametrize("impl", [fastq, reference])
def test_float_zero_points_below_float32_are_zero(impl):
    p = fastq.QParams(np.float32(1), np.float64(1e-60), "uint8", convention="cf")
    with np.errstate(all="raise"):
        q = impl.quantize(np.arange(3, dtype=np.float32), qparams=p)
    assert q.codes.tolist() == [0, 1, 2]


# What is refused


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rounding": "nearest"}, "rounding must be one of"),
        ({"quotient": "range"}, "quotient='range' needs"),
        ({"cut_from": 33}, "cut_from must be 0 to 32 bits, not 33"),
        ({"zero_point": "float"}, "needs zero_point_inside=True"),
        ({"zero_point": "offset"}, "no symmetric scheme"),
        ({"formats": ("int9",)}, "formats must be"),
        ({"formats": ("uint32",)}, "format uint32 needs zero_point='offset' of the code 0 or the middle"),
        ({"schemes": ()}, "schemes must be"),
        ({"scale_floor": -1.0}, "scale_floor must be"),
        ({"degenerate": 0.0}, "degenerate must be"),
        ({"degenerate": "floor", "scale_floor": 0.0}, "needs a scale_floor"),
        ({"scale_floor": "square"}, "scale_floor must be one of"),
        ({"range_floor": -1e-9}, "range_floor must be 0.0 or a positive finite number, not -1e-09"),
        ({"range_floor": np.float64("inf")}, "range_floor must be"),
        ({"tiny_scale": "reaching", "symmetric_extreme": "signed"}, "needs symmetric_extreme='magnitude'"),
        ({"operation_type": "input", "stored_type": "float64"}, "operation_type='input' needs parameters"),
        (
            {"value_type": "result", "quotient": "range", "zero_point": "offset", "schemes": ("asymmetric",)},
            "value_type='result' needs a quotient other than 'range'",
        ),
        ({"codes_by": "unrounded", "stored_type": "float64"}, "codes_by='unrounded' needs operation_type='compute'"),
        (
            {"codes_by": "unrounded", "quotient": "range", "zero_point": "offset", "schemes": ("asymmetric",)},
            "codes_by='unrounded' needs a quotient other than 'range'",
        ),
        ({"scale_from": "inverse"}, "scale_from='inverse' needs quotient='reciprocal_of_double'"),
        ({"narrow_range": -1.0}, "narrow_range must be None, 0.0 or a positive finite number"),
        ({"scale_rounding": "whole_steps"}, "scale_rounding='whole_steps' needs zero_point='offset'"),
        ({"variants": (("uint4", "rounding", "up"),)}, "rounding must be one of"),
        (
            {"operation_type": "input", "quotient": "range", "zero_point": "offset", "schemes": ("asymmetric",)},
            "'range'",
        ),
        ({"operation_type": "input", "compute_type": "float64"}, "operation_type='input' needs compute_type='input'"),
        ({"offset_rounding": "float32_below"}, "needs zero_point='offset'"),
        ({"variants": (("sometimes", "rounding", "floor"),)}, "condition of variants"),
        ({"variants": (("blocks", "name", "x"),)}, "a field of variants must be one of"),
        ({"variants": (("blocks", "rounding", "up"),)}, "rounding must be one of"),
        ({"variants": (("uint8", "rounding", "up"),)}, "rounding must be one of"),
    ],
)
def test_wrong_fields(fields, message):
    # contract 15.5
    with pytest.raises(ValueError, match=message):
        fastq.Convention("mine", **fields)


@pytest.mark.parametrize("name", ["scale_floor", "degenerate", "narrow_range"])
def test_numbers_become_floats(name):
    found = getattr(fastq.Convention("mine", **{name: 2}), name)
    assert (type(found), found) == (float, 2.0)


@pytest.mark.parametrize("impl", [fastq, reference])
def test_schemes_that_a_system_does_not_have(impl):
    with pytest.raises(ValueError, match="symmetric must be False"):
        impl.quantize(np.ones(3, np.float32), "uint8", symmetric=True, convention="faiss")


@pytest.mark.parametrize("impl", [fastq, reference])
@pytest.mark.parametrize(("dtype", "name", "message"), [("int8", "mlx-float", "dtype"), ("mxfp4", "hqq", "convention")])
def test_a_format_that_a_system_does_not_have_is_named_before_its_schemes(impl, dtype, name, message):
    with pytest.raises(ValueError, match=f"^{message} must be"):
        impl.quantize(np.ones(32, np.float32), dtype, convention=name)


@pytest.mark.slow("compiles kernels for each convention", quick=lambda impl, name: impl is reference or name == "faiss")
@pytest.mark.parametrize("impl", [fastq, reference])
@pytest.mark.parametrize("name", ["faiss", "cf", "textbook", "onnx"])
def test_infinite_ranges(impl, name):
    # contract 2.7
    for x in ([np.inf, 1.0], [-np.inf, -np.inf], [np.inf] * 40):
        with pytest.raises(ValueError, match="infinite"):
            impl.quantize(np.array(x, np.float32), "uint8", convention=name)


def test_two_conventions_of_one_arithmetic_share_their_kernels():
    from fastq.formats.conventions.convention import coding_of
    from fastq.plan.spec import range_rule_of, rule_of

    mine = dataclasses.replace(ROWS["torchao"], name="mine")
    float32 = np.dtype(np.float32)
    int8 = as_qtype("int8")
    for of, options in ((rule_of, (int8,)), (range_rule_of, (int8, False))):
        first, second = (of(coding_of(row, int8, False, None, 0, float32), *options) for row in (ROWS["torchao"], mine))
        assert first == second
        assert hash(first) == hash(second)


def test_names():
    assert list(ROWS) == [
        *("onnx", "onnxruntime", "torch", "torch-pt2e", "torch-fake-quantize", "tflite"),
        *("torchao", "torchao-int8", "torchao-intx", "torchao-float8"),
        *("torchao-ceil", "torchao-even", "torchao-rceil", "torchao-nvfp4"),
        *("compressed-tensors", "matmul-nbits", "qdq-nbits", "quanto", "quanto-bits", "hqq"),
        *("mlx", "mlx-float", "nncf"),
        *("ai-edge", "coremltools", "qwix"),
        *("sentence-transformers", "faiss", "usearch", "voyager", "sqlite-vec", "lance"),
        *("cf", "nibabel", "grib", "edf", "nco", "cdo", "hdf5-scaleoffset", "fits", "pcm", "flac", "textbook"),
    ]


def test_the_page_is_that_of_the_table():
    # contract 2.1
    docs = Path(__file__).parents[2] / "docs"
    page = run_path(str(docs / "conventions_page.py"))["page"]
    assert (docs / "conventions.md").read_text() == page(docs / "conventions.json"), "python docs/conventions_page.py"


# quant_utils.py of onnxruntime: ONNX_INT_TYPE_REDUCED_RANGE
REDUCED = {"int8": (-64, 64), "uint8": (0, 127), "int16": (-16384, 16384), "uint16": (0, 32767)}
REDUCED |= {"int4": (-4, 3), "uint4": (0, 7)}


@pytest.mark.slow("compiles a kernel a dtype", quick=lambda api, dtype: api is reference or dtype == "int8")
@pytest.mark.parametrize("api", [fastq, reference])
@pytest.mark.parametrize("dtype", REDUCED)
def test_reduced_ranges_are_those_of_onnxruntime(api, dtype):
    row = dataclasses.replace(ROWS["onnxruntime"], reduce_range=True)
    lowest, highest = REDUCED[dtype]
    params = api.choose_qparams(np.array([-1, 1], np.float32), dtype, convention=row)
    assert params.scale == np.float32(2 / (highest - lowest))


@pytest.mark.parametrize("api", [fastq, reference])
def test_weights_of_tflite(api):
    """Of its quantizer for weights: scales in float64, products with 1 / scale, of that as stored."""
    largest = np.random.default_rng(0).uniform(1, 2, 20000).astype(np.float32)
    scale = largest.astype(np.float64) / 127
    x = np.stack([largest, (scale * 40.5).astype(np.float32)], axis=1)  # next to it numbers near a tie
    found = api.quantize(x, "int8", axis=0, symmetric=True, convention="tflite")
    assert found.scale.ravel().tolist() == scale.tolist()
    products = x[:, 1] * (1 / scale).astype(np.float32)
    wanted = np.floor(products.astype(np.float64) + 0.5)
    assert found.codes[:, 1].tolist() == wanted.tolist()
    assert (wanted != np.floor((x[:, 1] / scale).astype(np.float32) + np.float64(0.5))).any()  # of quotients


@pytest.mark.parametrize("api", [fastq, reference])
def test_blocks_of_onnxruntime(api):
    """Its compute_scale_zp_blocked: differences in float32, zero points by stored scales, the middle for zeros."""
    options = {"axis": 1, "block_size": 2, "convention": "onnxruntime"}
    x = np.random.default_rng(0).uniform(-1, 1, (4096, 2)).astype(np.float32)
    lo, hi = np.minimum(x.min(axis=1), 0), np.maximum(x.max(axis=1), 0)
    scale = ((hi - lo).astype(np.float64) / 65535).astype(np.float32)
    found = api.choose_qparams(x, "uint16", **options)
    assert found.scale.ravel().tolist() == scale.tolist()
    assert found.zero_point.ravel().tolist() == np.rint(-lo.astype(np.float64) / scale).tolist()
    found = api.choose_qparams(np.zeros((1, 2), np.float32), "uint8", symmetric=True, **options)
    assert (found.scale.item(), found.zero_point.item()) == (1, 128)


@pytest.mark.parametrize(
    "fields",
    [
        {"decode": "middle"},
        {"schemes": ("asymmetric",), "zero_point": "offset", "offset_code": "lowest"},
        {"schemes": ("asymmetric",), "zero_point": "offset", "offset_code": "lowest", "quotient": "range"},
    ],
    ids=str,
)
@pytest.mark.slow(
    "compiles 3 kernels a dtype", quick=lambda dtype, fields: (dtype == "float8_e4m3fn") == ("zero_point" in fields)
)
@pytest.mark.parametrize("dtype", ["nf4", "float8_e4m3fn"])
def test_codes_that_are_numbers_stand_for_them_in_any_convention(dtype, fields):
    """What a convention adds to integer codes is for these alone."""
    row = dataclasses.replace(ROWS["onnx"], name="own", formats=(), **fields)
    given = fastq.QParams(np.float32(0.3), 0, dtype, convention=row)
    plain = fastq.QParams(np.float32(0.3), 0, dtype)
    x = np.array([-np.inf, -5, -0.7, -0.0, 0.0, 0.1, 0.3, 0.9, np.inf] * 9, np.float32)
    expected = reference.fake_quantize(x, qparams=plain)
    codes = reference.quantize(x, qparams=plain).codes
    for api in (fastq, reference):
        same_bytes(api.fake_quantize(x, qparams=given), expected)
        same_bytes(api.dequantize(fastq.QuantizedArray(codes, given, x.shape)), expected)


@pytest.mark.parametrize("api", [fastq, reference])
def test_a_constant_has_one_code_whatever_comes_later(api):
    # contract 2.8: so does faiss, whose range of a constant dimension has no width
    params = api.choose_qparams(np.full((3, 2), [3.5, 0.0], np.float32), "uint8", axis=-1, convention="faiss")
    later = np.array([[3.5, 0.0], [4.0, 1e-30], [-1e30, -2.0], [np.inf, -np.inf]], np.float32)
    q = api.quantize(later, qparams=params)
    assert q.codes.tolist() == [[0, 0]] * 4
    assert q.dequantize().tolist() == [[3.5, 0.0]] * 4


@pytest.mark.slow("compiles kernels for each dtype", quick=lambda api, dtype: api is reference or dtype == "float16")
@pytest.mark.parametrize("api", [fastq, reference])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_the_least_scale_is_that_of_the_type_of_operations(api, dtype):
    # contract 2.5: as torch.finfo(dtype).smallest_normal
    least = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126}[dtype]
    x = np.zeros((2, 64), FLOAT_FORMATS[dtype].dtype if dtype in FLOAT_FORMATS else dtype)
    x[1] = 2.0**-24 if dtype == "float16" else 2.0**-130
    for convention in ("torchao", "torchao-intx"):
        assert api.choose_qparams(x, "int8", axis=0, convention=convention).scale.tolist() == [least, least]
    assert api.choose_qparams(x, "int8", axis=0, symmetric=True, convention="torchao-int8").scale[0] == 2.0**-23


@pytest.mark.parametrize("api", [fastq, reference])
def test_codes_that_are_cut_from_wider_integers(api):
    # contract 2.15: by hand, the border of 1 is half a unit of 2**-31 below it
    border = 2.0**-15 - 2.0**-32
    x = np.array([border, np.nextafter(border, 0), -(2.0**-32), -(2.0**-31)])
    assert api.quantize_linear(x, 2.0**-15, 0, "int16", convention="pcm").tolist() == [1, 0, 0, -1]


@pytest.mark.parametrize("api", [fastq, reference])
def test_a_scale_has_no_more_steps_than_the_range(api):
    # contract 2.16 and 5.13
    for end in np.linspace(1.9925, 1.9999, 50):
        scale = api.choose_qparams(np.array([0.0, end]), "uint8", convention="lance").scale
        assert scale * 255 <= end <= np.nextafter(scale, 1) * 255


def test_conventions_with_the_same_values_share_a_kernel():
    """Conventions that differ only in codes: to dequantize by another one compiles nothing."""
    q = fastq.quantize(np.linspace(-1, 1, 64, dtype=np.float32), "int8")
    values = q.dequantize()
    before = jit.functions_in_memory()
    for convention in ("torchao", "torchao-intx", "coremltools"):
        qparams = dataclasses.replace(q.qparams, convention=convention)
        same_bytes(fastq.QuantizedArray(q.codes, qparams, q.shape).dequantize(), values)
    assert jit.functions_in_memory() == before
