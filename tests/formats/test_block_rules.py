"""The rules of scales and codes in blocks, of every row and of rows that no system has."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from catalogue import in_blocks, same_bytes, same_quantized

import fastq
from fastq import reference
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QTYPES

ONNX = fastq.CONVENTIONS["onnx"]


def own(code, **changes):
    return dataclasses.replace(ONNX, name="own", formats=(code,), **changes)


CASES = {
    f"{row.name} {code}": (row, code) for row in fastq.CONVENTIONS.values() for code in row.formats if in_blocks(code)
}
CASES |= {
    "ceil mxint8": (own("mxint8", exponent="ceil"), "mxint8"),
    "even mxint8": (own("mxint8", exponent="even"), "mxint8"),
    "quotient mxint8": (own("mxint8", exponent="ceil_of_quotient", zero_exponent="zero"), "mxint8"),
    "reciprocal": (own("mxfp4", exponent="ceil_of_quotient", scale_quotient="reciprocal"), "mxfp4"),
    "first code of float8": (own("mxfp8_e5m2", float_ties="first_code", zero_exponent="zero"), "mxfp8_e5m2"),
    "a larger floor": (own("nvfp4", block_scale_floor=0.75, float_ties="first_code"), "nvfp4"),
    "zeros of any array": (own("nvfp4", block_scale_floor=0.0, block_quotient="divide"), "nvfp4"),
    "quotients in half precision": (
        own("nvfp4", scale_quotient="reciprocal", operation_type="input", block_quotient="divide"),
        "nvfp4",
    ),
}


def array(dtype):
    """Values on ties of elements, next to them, and blocks whose largest magnitude is next to a border."""
    rng = np.random.default_rng(5)
    numbers = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, 7.5, 28, 448, 1.9375, 57344, 0.0, 1 / 3])
    x = rng.choice(numbers, (40, 128)) * rng.choice([-1.0, 1.0], (40, 128)) * 2.0 ** rng.integers(-9, 9, (40, 1))
    x += rng.choice([0, 0, 2.0**-22, -(2.0**-22)], x.shape) * np.abs(x)
    largest = np.array([4, 4.0000005, 7, 6.9999995, 6, 6.0000005, 7.75, 7.7499995, 448, 448.00003, 500, 2.0**-126])
    x[:12, 32:64] = rng.uniform(-1, 1, (12, 32)) * largest[:, None]
    x[:12, 40] = largest
    x[12], x[13], x[14, :50], x[15], x[16] = 0, -0.0, 1e-42, 2.0**-126 * 1.4, 2.0**-127 * 6.5
    x[17, 64:], x[18], x[19, 5], x[20] = -3e38, 1e-9, -3.3e38, 2.0**-24
    steps = np.array([1.125, 1.25, 1.375, 1.625, 1.75, 1.875, 13, 15])[:, None]  # numbers of float8_e4m3fn
    x[24:32, :9] = steps * [6, 2.5, 3.5, 5, 1.25, 1.75, 0.25, 0.75, -2.5]
    x[24:32, 9:16] = 0
    if dtype == "float16":
        return np.clip(x, -6e4, 6e4).astype(dtype)
    return x.astype(FLOAT_FORMATS[dtype].dtype if dtype == "bfloat16" else dtype)


@pytest.mark.slow("compiles 9 kernels a case")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_codes_scales_and_values(name, dtype):
    # contract 8.8, 12.6, 12.7 and 12.8
    row, code = CASES[name]
    x = array(dtype)
    for axis in (-1, 0):
        options = {"axis": axis, "convention": row}
        q, expected = (api.quantize(x, code, **options) for api in (fastq, reference))
        same_quantized(q, expected)
        same_bytes(q.dequantize(), reference.dequantize(expected))
        same_bytes(*(api.fake_quantize(x, code, **options) for api in (fastq, reference)))
        same_bytes(fastq.choose_qparams(x, code, **options).scale, expected.scale)
        other = x[::-1] if axis else x[:, ::-1]
        same_quantized(fastq.quantize(other, qparams=q.qparams), reference.quantize(other, qparams=expected.qparams))


def exponents(row, code, *magnitudes):
    """Return the exponents of the scales of blocks with these largest magnitudes."""
    x = np.zeros((len(magnitudes), 32), np.float32)
    x[:, 7] = magnitudes
    x[:, 8] = -x[:, 7] / 3
    p, expected = (api.choose_qparams(x, code, convention=row) for api in (fastq, reference))
    same_bytes(p.scale, expected.scale)
    return np.log2(p.scale.astype(np.float64)).astype(int).ravel().tolist()


def test_exponents():
    # contract 12.6
    rows = {name: fastq.CONVENTIONS[name] for name in ("torchao-ceil", "torchao-even", "torchao-rceil", "mlx-float")}
    assert exponents(rows["torchao-ceil"], "mxfp4", 4, np.nextafter(np.float32(4), 5), 7.9, 0) == [0, 1, 1, -127]
    below = np.nextafter(np.float32(7), np.float32(0))
    assert exponents(rows["torchao-even"], "mxfp4", 7, below, 4, 2.0**-130) == [1, 0, 0, -127]
    assert exponents(rows["torchao-even"], "mxfp8_e4m3", 7.75, 7.7) == [-5, -6]
    assert exponents(fastq.CONVENTIONS["compressed-tensors"], "mxfp8_e4m3", 7, 6.9) == [-5, -6]
    assert exponents(fastq.CONVENTIONS["compressed-tensors"], "mxfp6_e2m3", 7.75, 7.7) == [1, 0]
    above = np.nextafter(np.float32(6), np.float32(7))
    assert exponents(rows["torchao-rceil"], "mxfp4", 6, above, 12, 0) == [0, 1, 1, -127]
    assert exponents(rows["mlx-float"], "mxfp4", 6, above, 0, 2.0**-149) == [0, 1, 0, 0]
    least = 2.0**-127
    assert exponents(CASES["quotient mxint8"][0], "mxint8", least, 1.99 * least, 4 * least, 0) == [-127, -126, -125, 0]


def test_ties_and_zeros_of_float_codes():
    # contract 8.8
    x = np.float32([6, 0.25, -0.25, 0.75, -0.75, 1.25, 1.75, 2.5, -2.5, 3.5, 5, -5, -0.0, -0.1, 0.2500001])
    expected = [7, 0, 0, 1, 9, 2, 3, 4, 12, 5, 6, 14, 0, 0, 1]
    for api in (fastq, reference):
        codes = api.quantize(np.resize(x, 32), "mxfp4", convention="mlx-float").unpacked().view(np.uint8)
        assert codes[: len(x)].tolist() == expected


@pytest.mark.parametrize("api", [fastq, reference])
def test_scales_of_blocks_that_are_0(api):
    # contract 12.8
    x = np.zeros((2, 32), np.float32)
    x[0, :16], x[1, 20] = 1e-3, -3
    q = api.quantize(x, "nvfp4", convention="mlx-float")
    assert q.scale.astype(np.float32).tolist() == [[0, 0], [0, 0.5]]
    assert q.tensor_scale == 1
    assert np.count_nonzero(q.unpacked().view(np.uint8)) == 1
    assert np.count_nonzero(api.dequantize(q)) == 1
    same_quantized(api.quantize(x, qparams=q.qparams), q)
    with pytest.raises(ValueError, match="scale must be positive for nvfp4"):
        api.quantize(x, qparams=dataclasses.replace(q.qparams, convention="onnx"))
    x[0, 0] = np.inf
    with pytest.raises(ValueError, match="infinite"):
        api.quantize(x, "nvfp4", convention="mlx-float")
    x[0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        api.quantize(x, "nvfp4", convention="mlx-float")
    kept = api.quantize(x, "nvfp4", convention="mlx-float", nan="keep")
    assert np.isnan(kept.scale.astype(np.float32)).tolist() == [[True, False], [False, False]]


def test_an_array_of_any_size_has_the_scales_of_its_parts():
    # contract 12.8
    x = array("float32")[:12]
    for name, code in (("mlx-float", "nvfp4"), ("torchao-nvfp4", "nvfp4")):
        whole = reference.quantize(x, code, convention=name)
        same_bytes(whole.scale[3:5], reference.quantize(x[3:5], code, convention=name).scale)


def test_a_search_for_ranges_chooses_among_exponents_of_the_rule():
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    for name in ("mlx-float mxfp4", "mlx-float nvfp4"):
        row, code = CASES[name]
        options = {"convention": row, "range": "mse"}
        q, expected = (api.quantize(x, code, **options) for api in (fastq, reference))
        same_quantized(q, expected)


def test_numbers_of_elements():
    for qtype in QTYPES.values():
        if qtype.block_size:
            most = FLOAT_FORMATS[qtype.element].max if qtype.element else Fraction(127, 64)
            assert qtype.largest_element == most


def test_fields_that_are_refused():
    for floor in (-1.0, 449.0, np.nan, "x", 2.0**-10, 1e-30):
        with pytest.raises((ValueError, TypeError), match="block_scale_floor"):
            fastq.Convention("own", block_scale_floor=floor)
    with pytest.raises(ValueError, match="exponent must be"):
        fastq.Convention("own", exponent="nearest")
