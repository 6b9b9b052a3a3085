"""Corners of kernels that ordinary data seldom meet: one lane, one bound, one bit."""

import dataclasses
import functools
import itertools

import gguf as gguf_package
import ml_dtypes
import numba
import numpy as np
import pytest
from catalogue import same_bytes, same_quantized
from gguf_blocks import oracle, same_values
from numba import types

import fastq
from fastq import reference
from fastq.engine.jit import numba_intrinsic, traced
from fastq.formats.codebooks import CODEBOOKS
from fastq.formats.gguf import BLOCK_FORMATS, DOUBLED
from fastq.kernels.body.range_search import _prepare_for_search
from fastq.kernels.formulas import PreparedBlockScale
from fastq.kernels.spec import KernelSpec
from fastq.plan import nan_and_infinity
from fastq.system import tuning
from fastq.tools.gguf_files.tensor_types import TENSOR_TYPES

# --- blocks side by side ----------------------------------------------------------------------------------------------

SIZES = (16, 32, 64, 128)


@pytest.mark.slow("compiles a kernel a size", quick=lambda size: size == 32)
@pytest.mark.parametrize("size", SIZES)
def test_nan_in_any_lane_and_any_block_is_refused(size):
    x = np.random.default_rng(size).standard_normal((32, size)).astype(np.float32)
    for k in range(0, x.size, 3):
        kept, x.flat[k] = x.flat[k], np.nan
        with pytest.raises(ValueError, match="x has 1 NaN"):
            fastq.quantize(x, "uint4", axis=1, block_size=size)
        x.flat[k] = kept


@pytest.mark.slow("compiles a kernel a size", quick=lambda size: size == 32)
@pytest.mark.parametrize("size", SIZES)
def test_nan_in_some_lanes_of_blocks_counts_as_zero(size):
    rng = np.random.default_rng(size)
    x = rng.uniform(1, 2, (64, size)).astype(np.float32)
    x[rng.random(x.shape) < 1.5 / size] = np.nan
    options = {"axis": 1, "block_size": size, "nan": "zero"}
    same_quantized(fastq.quantize(x, "uint8", **options), reference.quantize(x, "uint8", **options))


KEEPING = {  # where the loops over runs, over blocks side by side and one by one, and over columns find blocks of 32
    "runs": ((300, 25), 1),
    "side by side": ((300, 32), 1),
    "one by one": ((3, 32), 1),
    "columns": ((32, 300), 0),
}


@pytest.mark.parametrize("dtype", ["mxfp8_e4m3", "mxfp4", "mxint8", "nvfp4"])
@pytest.mark.parametrize("input_dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("loop", KEEPING)
@pytest.mark.slow(
    "compiles a kernel a case",
    quick=lambda dtype, input_dtype, loop: (dtype, input_dtype, loop) == ("mxfp8_e4m3", np.float32, "side by side"),
)
def test_infinity_beside_nan_that_is_kept_is_refused(dtype, input_dtype, loop, threads):
    shape, axis = KEEPING[loop]
    x = np.random.default_rng(0).standard_normal(shape).astype(input_dtype)
    blocks = np.moveaxis(x, axis, -1)
    blocks[1, [2, 23]] = np.nan
    blocks[2] = np.nan  # a range of nothing but NaN has no infinite end
    options = {"axis": axis, "nan": "keep"}
    expected = reference.quantize(x, dtype, **options)
    for n in (1, 2):
        threads(n)
        same_quantized(fastq.quantize(x, dtype, **options), expected)
        for infinity, lane in itertools.product((np.inf, -np.inf), (1, 3, 22, 24)):
            kept, blocks[1, lane] = blocks[1, lane], infinity
            for module in (fastq, reference):
                with pytest.raises(ValueError, match=r"x has .*infinite values"):
                    module.quantize(x, dtype, **options)
            blocks[1, lane] = kept


@pytest.mark.parametrize("sign", [1, -1])
def test_codes_of_blocks_are_clamped_at_both_ends(sign):
    """A tie is rounded to an even zero point and to an even number of steps: beyond an end where that is odd."""
    row = dataclasses.replace(fastq.CONVENTIONS["onnx"], name="odd", reserves_fill=True)
    x = np.random.default_rng(0).uniform(-100, 100, (64, 32)).astype(np.float32)
    x[:, 3], x[:, 20] = sign * -101.5, sign * 152.5
    options = {"axis": 1, "block_size": 32, "convention": row}
    found = fastq.quantize(x, "int8", **options)
    same_quantized(found, reference.quantize(x, "int8", **options))
    assert (found.codes[:, 3] == sign * -127).all()  # of -128 and 128


# --- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("api", [fastq, reference])
def test_of_two_largest_values_the_negative_one_has_the_lowest_code(api):
    """As in ONNX Runtime's quantize_matmul_4bits, where abs(max) > abs(min) has to hold for the other."""
    x = np.tile(np.float32([-1, 1, 0.25, -0.5]), 8)
    found = api.quantize(x, "uint4", symmetric=True, convention="matmul-nbits")
    assert found.scale.item() == 1 / 8
    assert found.unpacked()[:4].tolist() == [0, 15, 10, 4]


@pytest.mark.parametrize("end", ["lowest", "highest"])
def test_float_zero_points_are_counted_from_either_end(end):
    """By hand: steps of 0.5 from -3, to 124.5."""
    row = dataclasses.replace(fastq.CONVENTIONS["textbook"], name=end, zero_point="float", zero_point_end=end)
    x = np.array([-3, 10, 124.5], np.float32)
    for api in (fastq, reference):
        found = api.choose_qparams(x, "uint8", convention=row)
        assert (found.scale.item(), found.zero_point.item()) == (0.5, 6.0)


@pytest.mark.slow("compiles a kernel")
def test_zero_point_of_positive_constants_where_it_is_an_end():
    row = dataclasses.replace(fastq.CONVENTIONS["compressed-tensors"], name="not widened", includes_zero=False)
    x = np.repeat(np.array([5, -5, 0, 1e-40], np.float32)[:, None], 40, axis=1)
    options = {"axis": 0, "convention": row}
    found = fastq.quantize(x, "int8", **options)
    same_quantized(found, reference.quantize(x, "int8", **options))
    assert found.zero_point.tolist() == [0, 127, 0, 0]


@pytest.mark.slow("compiles 2 kernels a case", quick=lambda shape: shape == (40,))
@pytest.mark.parametrize("shape", [(40,), (3, 40), (5, 33)])
def test_blocks_that_are_shorter_have_a_scale_of_nan_too(shape):
    x = np.ones(shape, np.float32)
    x[..., -1] = np.nan
    found = fastq.quantize(x, "mxfp4", nan="keep")
    same_quantized(found, reference.quantize(x, "mxfp4", nan="keep"))
    assert np.isnan(found.dequantize()).sum() == x.size // shape[-1] * (shape[-1] - 32)


@pytest.mark.parametrize("size", [16, 24, 32, 128])
def test_nan_in_any_block_is_refused_beside_given_scales(size):
    x, scale = np.ones((40, size), np.float32), np.ones((40, 1), np.float32)
    for k in range(0, x.size, 7):
        x.flat[k] = np.nan
        with pytest.raises(ValueError, match="x has 1 NaN"):
            fastq.quantize_linear(x, scale, dtype="uint8", axis=1, block_size=size)
        x.flat[k] = 1


@pytest.mark.slow("compiles 2 kernels a case", quick=lambda rounding: rounding == "half_even")
@pytest.mark.parametrize("rounding", fastq.Convention.__dataclass_fields__["rounding"].metadata["choices"])
def test_codes_that_are_clamped_are_counted_to_a_step(rounding):
    # contract 10.4
    """Where rounding goes one way, what is less than a step beyond an end is clamped or not."""
    row = dataclasses.replace(fastq.CONVENTIONS["onnx"], name=rounding, rounding=rounding)
    params = fastq.QParams(np.float32(0.5), 3, "int8", convention=row)
    steps = np.arange(-1.25, 1.5, 0.125)
    rounded = {"half_even": np.rint, "half_away": lambda x: np.trunc(x + np.copysign(0.5, x))}
    rounded["half_up"] = lambda x: np.floor(x + 0.5)
    for step in [*(steps - 131), *(steps + 124)]:
        x = np.full(64, step / 2, np.float32)
        code = rounded.get(rounding, getattr(np, rounding, None))(step) + 3
        assert fastq.compare(x, fastq.quantize(x, qparams=params)).clipped == (0 if -128 <= code <= 127 else 64)


FAR = [  # scales, zero points and values whose code is rounded to one beyond the last
    (0.20428163, 4.2891695e06, -876146.4),
    (1.6051091, 4.9082005e06, -7.8777875e06),
    (0.6213696, 3.5429184e07, -2.201446e07),
    (5.163306, -4.9734796e07, 2.567973e08),
]


@pytest.mark.slow("compiles 2 kernels")
@pytest.mark.parametrize(("scale", "zero_point", "x"), FAR)
def test_codes_beside_a_zero_point_far_away_are_counted_where_they_are_clamped(scale, zero_point, x):
    row = dataclasses.replace(
        fastq.CONVENTIONS["onnx"], name="far", zero_point="float", zero_point_inside=True, includes_zero=False
    )
    params = fastq.QParams(np.float32(scale), np.float32(zero_point), "uint8", convention=row)
    x = np.full(64, x, np.float32)
    code = np.rint(x[0] / params.scale + params.zero_point)
    assert not 0 <= code <= 255
    assert fastq.compare(x, fastq.quantize(x, qparams=params)).clipped == 64


def test_no_blocks_have_a_scale_of_the_array():
    x = np.empty((0, 16), np.float32)
    found, expected = fastq.quantize(x, "nvfp4").qparams, reference.quantize(x, "nvfp4").qparams
    same_bytes(found.scale, expected.scale)
    same_bytes(found.tensor_scale, expected.tensor_scale)


def test_a_subclass_of_str_that_names_no_format_is_refused_with_a_name_that_does():
    with pytest.raises(TypeError, match=r"not .int44.: did you mean int4\?"):
        fastq.quantize(np.ones((2, 4), np.float32), np.str_("int44"))


def test_a_bool_among_axes_is_refused_after_the_same_call_with_integers():
    x = np.ones((2, 4, 8), np.float32)
    for function in (fastq.minmax, functools.partial(fastq.quantize, dtype="int8")):
        function(x, axis=(0, 1))
        with pytest.raises(TypeError, match="axis must be"):
            function(x, axis=(0, True))


def test_histograms_of_many_channels_have_one_part_each():
    x = np.random.default_rng(0).standard_normal((600, 40)).astype(np.float32)
    found, expected = fastq.Calibrator("int8", axis=0), reference.Calibrator("int8", axis=0)
    found.update(x)
    expected.update(x[::37])  # which takes a channel as long as fastq takes all
    options = {"method": "percentile", "percentile": 75}
    same_bytes(found.clipping_range(**options)[1][::37], expected.clipping_range(**options)[1])


@pytest.mark.slow("compiles 3 kernels")
def test_blocks_with_nan_have_a_scale_of_nan_and_others_have_none(threads):
    """Few blocks for many threads are not quantized in one pass."""
    threads(4)
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    x[1, 40] = np.nan
    found = fastq.quantize(x, "mxfp8_e4m3", nan="keep")
    same_quantized(found, reference.quantize(x, "mxfp8_e4m3", nan="keep"))
    assert np.isnan(found.dequantize()).sum() == 32


UNITS_OF_TENSOR = KernelSpec("minmax", scale_kind="tensor")


def test_searches_divide_by_scales_in_the_order_of_quantizing():
    """First by that of the array: the other order has another last bit."""

    @traced
    def factor_of(spec, scale, tensor):
        given = PreparedBlockScale(scale, tensor, scale, scale, scale, scale)
        return _prepare_for_search(spec, given).factor

    of_numbers = numba_intrinsic(factor_of, UNITS_OF_TENSOR, result=types.float32)
    factor = numba.njit(lambda scale, tensor: of_numbers(scale, tensor))
    scales = np.arange(16, 32, dtype=np.float32)
    for tensor in np.random.default_rng(0).uniform(1e-4, 1e-3, 20).astype(np.float32):
        assert [factor(scale, tensor) for scale in scales] == (np.float32(1) / tensor / scales).tolist()


# --- floats -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow("compiles a kernel a format", quick=lambda dtype: dtype == "float8_e4m3fn")
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"])
def test_codes_of_values_of_both_signs(dtype):
    x = np.array([0.0, 1e-3, 0.3, 1, 1.7, 200, 1e6, np.inf, np.nan] * 30, np.float32)
    x = np.concatenate([x, -x])
    found = fastq.quantize_linear(x, np.float32(1), dtype=dtype, nan="keep", saturate=False)
    same_bytes(found.view(np.uint8), x.astype(getattr(ml_dtypes, dtype)).view(np.uint8))


@pytest.mark.slow("compiles a kernel")
def test_nan_of_float16_has_no_payload():
    codes = np.array([0x7F, 0xFF] * 40, np.uint8).view(ml_dtypes.float8_e4m3fn)
    found = fastq.dequantize_linear(codes, np.float32(3), dtype="float16")
    assert found.view(np.uint16).tolist() == [0x7E00, 0xFE00] * 40


def test_numbers_of_fp4_are_those_of_the_paper():
    """QLoRA's code has them, bitsandbytes/csrc/kernels.cu, dDequantizeFP4Tree: signs, two bits of exponent and one."""
    positive = [0, 0.005208333, 0.66666667, 1, 0.33333333, 0.5, 0.16666667, 0.25]
    np.testing.assert_allclose(CODEBOOKS["fp4"].values, [*positive, *np.negative(positive)], rtol=1e-6)
    assert not np.signbit(CODEBOOKS["fp4"].values)[8]  # bitsandbytes/functional.py, get_4bit_type: -0, an integer


# --- blocks of GGUF ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream_from", [1, 1 << 40])
def test_nibbles_of_gguf_are_in_their_places(stream_from, monkeypatch):
    row = dataclasses.replace(tuning.current(), stream_codes=True, stream_from=stream_from)
    monkeypatch.setattr(tuning, "current", lambda: row)
    pairs = np.random.default_rng(0).integers(0, 256, (100, 16), np.uint8)
    one = np.float16([1]).view(np.uint8)
    blocks = np.concatenate([np.broadcast_to(one, (100, 2)), pairs], axis=1)
    wanted = np.concatenate([pairs & 15, pairs >> 4], axis=1).astype(np.float32) - 8
    for offset in range(0, 16, 5):
        out = np.empty(100 * 32 + 16, np.float32)[offset : offset + 100 * 32].reshape(100, 32)
        same_bytes(fastq.gguf.dequantize(blocks, "Q4_0", out=out), wanted)


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_any_bytes_of_k_quants(name):
    blocks = np.random.default_rng(0).integers(0, 256, (40, BLOCK_FORMATS[name].nbytes), np.uint8)
    same_values(fastq.gguf.dequantize(blocks, name), oracle("dequantize", blocks, name))


def test_every_scale_of_nvfp4_in_gguf():
    """Numbers of float8_e4m3fn to 240, and 448; sixteen values of six times a scale each have the scale."""
    codes = np.array([*range(0x78), 0x7E], np.uint8)
    numbers = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    codes, numbers = (np.resize(each, (each.size + 3) // 4 * 4) for each in (codes, numbers))
    x = np.repeat(6 * numbers, 16).reshape(-1, 64)
    blocks = fastq.gguf.quantize(x, "NVFP4")
    assert blocks[:, :4].ravel().tolist() == codes.tolist()
    same_bytes(blocks, reference.gguf.quantize(x, "NVFP4"))


def test_smallest_values_that_are_not_taken_for_zero():
    """Where importance is known, smallest values of sub-blocks have codes of their own from 1e-15 on."""
    least = np.float32(1e-15)
    for value, codes in ((least, [63] * 8), (np.nextafter(least, np.float32(0)), [0] * 8)):
        x = np.full((1, 256), -value)
        blocks = fastq.gguf.quantize(x, "Q4_K", importance=np.ones(256, np.float32))
        same_bytes(blocks, reference.gguf.quantize(x, "Q4_K", importance=np.ones(256, np.float32)))
        parameters = blocks[0, 4:16].astype(int)
        assert [*(parameters[4:8] & 63), *(parameters[8:] >> 4 | parameters[4:8] >> 6 << 4)] == codes


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4", "TQ2_0"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf])
def test_infinities_in_gguf_are_refused(name, bad):
    x = np.ones((20, 256), np.float32)
    x[13, 200] = bad
    for module in (fastq.gguf, reference.gguf):
        with pytest.raises(ValueError, match="infinity"):
            module.quantize(x, name)


@pytest.mark.slow("compiles a kernel each", quick=lambda name: name == "Q4_K")
@pytest.mark.parametrize("name", ["Q2_K", "Q4_K"])
def test_the_first_scale_of_a_search_may_be_the_best(name):
    rng = np.random.default_rng(0)
    x, imatrix = rng.standard_normal((200, 256)).astype(np.float32), rng.uniform(0, 1, 256).astype(np.float32)
    same_bytes(fastq.gguf.quantize(x, name, importance=imatrix), reference.gguf.quantize(x, name, importance=imatrix))


def test_numbers_of_float4_are_those_of_other_packages():
    numbers = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert [2 * each for each in numbers.tolist()] == list(DOUBLED)
    assert list(gguf_package.quants.MXFP4.kvalues) == list(DOUBLED)


def test_numbers_of_types_are_those_of_the_package():
    known = {kind.name: kind.value for kind in gguf_package.GGMLQuantizationType}
    known |= {"NVFP4": 40, "Q1_0": 41, "Q2_0": 42}  # ggml/include/ggml.h, enum ggml_type; older packages lack some
    assert {name: row.number for name, row in BLOCK_FORMATS.items()} == {name: known[name] for name in BLOCK_FORMATS}


def test_sizes_of_types_are_those_of_the_package():
    """Of all types that files may have, with those that are only copied."""
    kinds = {kind.name: kind for kind in gguf_package.GGMLQuantizationType}
    for row in TENSOR_TYPES.values():
        if (kind := kinds.get(row.name)) is not None:
            assert (row.number, row.block, row.nbytes) == (kind.value, *gguf_package.GGML_QUANT_SIZES[kind]), row.name
    assert len(kinds.keys() & TENSOR_TYPES.keys()) > 30


# --- packed codes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", range(-3, 3))
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_packed_codes_in_every_order_of_memory(order, axis):
    codes = np.random.default_rng(axis + 3).integers(0, 16, (4, 5, 6), np.uint8)
    packed = reference.pack(codes, "uint4", axis=axis)
    packed = np.ascontiguousarray(packed.transpose(order)).transpose(np.argsort(order))
    same_bytes(fastq.unpack(packed, "uint4", shape=codes.shape, axis=axis), codes)


@pytest.mark.slow("compiles 2 kernels a width", quick=lambda bits: bits == 4)
@pytest.mark.parametrize("bits", range(1, 8))
def test_rows_of_packed_codes_begin_with_a_byte(bits):
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (5, 13), np.uint8)
    packed = fastq.pack(codes, f"uint{bits}")
    same_bytes(packed, reference.pack(codes, f"uint{bits}"))
    same_bytes(fastq.unpack(packed, f"uint{bits}", shape=codes.shape), codes)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_packed_codes_of_which_each_has_a_byte(order):
    """They have the shape of their values, which are in C order all the same."""
    codes = np.random.default_rng(0).integers(-8, 8, (2, 36, 1)).astype(np.int8)
    packed = np.ascontiguousarray(fastq.pack(codes, "int4").transpose(order)).transpose(np.argsort(order))
    q = fastq.QuantizedArray(packed, fastq.QParams(0.5, 0, "int4"), codes.shape)
    same_bytes(q.dequantize(), (codes / 2).astype(q.dequantize().dtype))


@pytest.mark.parametrize("step", [2, -1])
def test_packed_codes_of_one_axis_with_gaps(step):
    codes = np.random.default_rng(0).integers(0, 16, 50, np.uint8)
    packed = reference.pack(codes, "uint4")
    memory = np.zeros((packed.size, abs(step)), np.uint8).ravel()[::step]
    memory[:] = packed
    same_bytes(fastq.unpack(memory, "uint4", shape=codes.shape), codes)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (5,), (70,), (20, 7), (3, 4, 10), (2, 20, 7), (3, 4, 2), (20, 2)])
def test_every_piece_is_counted(shape, monkeypatch):
    monkeypatch.setattr(nan_and_infinity, "_PIECE", 6)
    x = np.where(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 3 == 0, np.nan, 1).astype(np.float32)
    with pytest.raises(ValueError, match=f"x has {np.isnan(x).sum()} NaN"):
        fastq.minmax(x)


@pytest.mark.parametrize("function", ["quantize", "fake_quantize"])
@pytest.mark.parametrize("wrong", [{"nan": "ignore"}, {"out": np.empty(5, np.float32)}, {"axis": 7}])
def test_of_two_wrong_arguments_both_refuse_the_same(function, wrong):
    for module in (fastq, reference):
        with pytest.raises(ValueError, match="saturate must be True for a search for ranges"):
            getattr(module, function)(np.ones((4, 8), np.float32), "int8", saturate=False, range="mse", **wrong)


SIGNALLING = {
    "float64": np.uint64(0x7FF0 << 48 | 1),
    "float32": np.uint32(0x7F80 << 16 | 1),
    "float16": np.uint16(0x7C01),
}
REFUSING = {
    "quantize": lambda x: fastq.quantize(x, "int8"),
    "quantize_linear": lambda x: fastq.quantize_linear(x, 0.5, 0),
    "fake_quantize": lambda x: fastq.fake_quantize(x, "int8", axis=0),
    "choose_qparams": lambda x: fastq.choose_qparams(x, "mxfp4"),
    "minmax": lambda x: fastq.minmax(x),
    "compare": lambda x: fastq.compare(x, x),
    "Calibrator": lambda x: fastq.Calibrator("int8").update(x),
    "gguf": lambda x: fastq.gguf.quantize(x, "Q8_0"),
    "gguf, by rows": lambda x: fastq.gguf.quantize(x, "Q4_K"),
}


@pytest.mark.slow("compiles a kernel a case", quick=lambda dtype, function: dtype == "float32" or function == "minmax")
@pytest.mark.parametrize("function", REFUSING)
@pytest.mark.parametrize("dtype", SIGNALLING)
def test_signalling_nan_is_refused_without_a_warning(function, dtype):
    x = np.ones((2, 256), dtype)
    x.view(SIGNALLING[dtype].dtype)[1, 7] = SIGNALLING[dtype]
    with pytest.raises(ValueError, match="NaN"):
        REFUSING[function](x)


@pytest.mark.parametrize("code", range(256))
def test_scales_of_nvfp4_are_positive_or_nan(code):
    scale = np.array([[code]], np.uint8).view(ml_dtypes.float8_e4m3fn)
    codes = np.zeros((1, 8), np.uint8)
    p = fastq.QParams(scale, np.zeros((1, 1), "uint8"), "nvfp4", axis=-1, block_size=16, tensor_scale=np.float32(1))
    if float(scale[0, 0]) <= 0:
        with pytest.raises(ValueError, match="scale must be positive for nvfp4"):
            fastq.QuantizedArray(codes, p, (1, 16)).dequantize()
    else:
        fastq.QuantizedArray(codes, p, (1, 16)).dequantize()


@pytest.mark.parametrize("dtype", CODEBOOKS)
@pytest.mark.parametrize("size", [1e-37, 1e-39, 1e-181, 1e-310, 1e300])
@pytest.mark.slow("compiles 5 kernels a table")
def test_blocks_of_tiny_and_huge_float64_have_codes_of_the_table(dtype, size):
    """The least scale, whose reciprocal values are multiplied by, is the same in every compute type."""
    x = np.random.default_rng(0).standard_normal((8, 64)) * size
    for options in ({"axis": 1, "block_size": 64}, {"axis": 1, "block_size": 17}, {"range": "mse"}):
        same_quantized(fastq.quantize(x, dtype, **options), reference.quantize(x, dtype, **options))


@pytest.mark.slow("compiles a kernel", quick=lambda dtype, wrong: dtype is np.float32)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("wrong", [np.inf, np.nan, -np.nan, -1.0, 0.0])
def test_a_wrong_scale_is_refused_after_the_same_call_with_a_right_one(dtype, wrong):
    x, scale = np.ones((5, 8), dtype), np.full(5, 0.5, dtype)
    for k in range(5):
        fastq.quantize_linear(x, scale, axis=0)
        scale[k] = wrong
        with pytest.raises(ValueError, match="scale must be"):
            fastq.quantize_linear(x, scale, axis=0)
        scale[k] = 0.5


@pytest.mark.parametrize("shape", [(64, 16), (64, 300), (1024, 64), (9, 4096)])
def test_nan_in_any_row_of_columns_is_refused(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for k in range(0, x.size, x.size // 13):
        kept, x.flat[k] = x.flat[k], np.nan
        with pytest.raises(ValueError, match="x has 1 NaN"):
            fastq.minmax(x, axis=1)
        x.flat[k] = kept


@pytest.mark.parametrize("size", range(1, 18))
def test_bits_from_the_highest_on_end_with_zeros(size):
    bits = np.unpackbits(fastq.pack(np.ones(size, np.uint8), "uint1", bitorder="big"))
    assert bits.tolist() == [1] * size + [0] * (-size % 8)


@pytest.mark.parametrize("k", [0, 65535, 65536, 65537, 131072, 131073, 139999])
def test_any_wrong_scale_of_many_is_refused(k):
    scale = np.full(140_000, 0.5, np.float32)
    scale[k] = np.inf
    with pytest.raises(ValueError, match="scale must be"):
        fastq.quantize_linear(np.ones((scale.size, 1), np.float32), scale, axis=0)


@pytest.mark.slow("compiles a kernel a format", quick=lambda dtype: dtype == "int8")
@pytest.mark.parametrize("dtype", ["nf4", "float8_e4m3fn", "int8"])
def test_what_is_clipped_is_asked_in_the_compute_type_of_the_parameters(dtype):
    # contract 16.5
    """Infinite in float32, and within half a step of the last code in float64."""
    x = np.array([3.4e38, 3.5e38, -3.5e38, 1.0])
    largest = {"nf4": 1, "float8_e4m3fn": 448, "int8": 127}[dtype]
    params = fastq.QParams(np.float32(3.4e38 / largest), 0, dtype)
    codes = reference.quantize(x.clip(-3.4e38, 3.4e38).astype(np.float32), qparams=params)
    assert fastq.compare(x, codes).clipped == reference.compare(x, codes).clipped == 2


@pytest.mark.parametrize("row", [0, 3, 9, 15])
def test_nan_in_any_row_of_wide_columns_is_refused(row, threads):
    """So many columns that each thread reduces some of them in all rows, several rows at a time."""
    threads(2)
    x = np.ones((16, 1 << 17), np.float32)
    x[row, 77_777] = np.nan
    with pytest.raises(ValueError, match="x has 1 NaN"):
        fastq.minmax(x, axis=1)


@pytest.mark.parametrize("api", [fastq, reference], ids=lambda api: api.__name__)
@pytest.mark.parametrize("operation", ["quantize", "fake_quantize"])
def test_nan_is_not_kept_in_scales_that_are_given(api, operation):
    x = np.ones(32, np.float32)
    with pytest.raises(ValueError, match="the scales of mxfp4 are given"):
        getattr(api, operation)(x, qparams=fastq.choose_qparams(x, "mxfp4"), nan="keep")


@pytest.mark.parametrize("name", ["nf4", "fp4", "dynamic8"])
def test_the_exponent_of_a_codebook_is_that_of_its_largest_number(name):
    # contract 10.5
    form = CODEBOOKS[name]
    assert 2.0**form.emax <= max(map(abs, form.values)) < 2.0 ** (form.emax + 1)


def test_a_calibrator_is_not_changed_by_nothing():
    x = np.random.default_rng(0).standard_normal((40, 3), np.float32)
    seen, same = (fastq.Calibrator("int8", axis=1) for _ in range(2))
    for part in (x[:10], x[:0], x[10:], x[:0]):
        seen.update(part)
    same.update(x)
    same_bytes(seen.qparams("percentile").scale, same.qparams("percentile").scale)
