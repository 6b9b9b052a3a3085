"""Formats given by a table of numbers: nf4, fp4 and dynamic8, and scales nested in them."""

import dataclasses

import numpy as np
import pytest
from catalogue import same_bytes
from hard_rows import hard_values
from numba import types
from traced_functions import CFunction

import fastq
from fastq.engine.simd import Vec, load, pointer, store
from fastq.formats.codebooks import CODEBOOKS, Codebook
from fastq.kernels import codebooks
from fastq.kernels.ggml.grid_search import LANES

NAMES = tuple(CODEBOOKS)

# the pivots of QLoRA's NF4 to the digits that its authors print (bitsandbytes, dQuantizeNF4)
NF4_PIVOTS = [-0.8480964004993439, -0.6106329262256622, -0.4599952697753906, -0.33967943489551544, -0.23460740596055984]
NF4_PIVOTS += [-0.13791173323988914, -0.045525018125772476, 0.03979014977812767, 0.1202552504837513, 0.2035212516784668]
NF4_PIVOTS += [0.2920137718319893, 0.3893125355243683, 0.5016634166240692, 0.6427869200706482, 0.8614784181118011]


@pytest.mark.slow("compiles a kernel a codebook", quick=lambda name: name == "nf4")
@pytest.mark.parametrize("name", NAMES)
def test_float64_beside_thresholds_of_float32(name):
    # contract 10.2
    """Numbers that round to a threshold, and those that no float32 holds."""
    thresholds = np.array(CODEBOOKS[name].thresholds)
    huge, tiny = np.float64(3e38), np.float64(2.0**-149)
    least = [0.0, tiny / 4, tiny / 2, tiny, tiny * 3 / 4, 2.0**-1074]
    ends = [huge, 2 * huge, 1e300, np.finfo(np.float64).max]
    beside = [np.nextafter(thresholds, towards) for towards in (-2, 2)]
    x = np.concatenate([thresholds, *beside, least, np.negative(least), ends, np.negative(ends)])
    for scale in (1.0, 0.25):  # powers of two, by which numbers stay next to thresholds
        params = fastq.QParams(np.float64(scale), 0, name)
        fast, slow = (module.quantize(scale * x, qparams=params) for module in (fastq, fastq.reference))
        same_bytes(fast.codes, slow.codes)


@pytest.mark.slow("compiles a kernel a format", quick=lambda name: name == "nf4")
@pytest.mark.parametrize("name", ["nf4", "float4_e2m1fn"])
def test_scales_that_a_convention_keeps_in_float64_are_used_in_float32(name):
    # contract 2.3
    """Where they are infinite or 0: then 0 times the scale is NaN, and what is beyond the numbers has the last one."""
    wide = dataclasses.replace(fastq.CONVENTIONS["onnx"], name="own", stored_type="float64", variants=())
    x = np.array([0, 3, -0.75], np.float32)
    for api in (fastq, fastq.reference):
        for scale, expected in ((1e200, [np.nan] * 3), (1e-300, [0, 0, 0])):
            params = fastq.QParams(np.float64(scale), 0, name, convention=wide, computed="float32")
            values = api.fake_quantize(x, qparams=params)
            assert values.dtype == np.float32
            np.testing.assert_array_equal(values, np.float32(expected), err_msg=api.__name__)


def test_pivots_are_those_of_the_paper():
    assert np.allclose(CODEBOOKS["nf4"].thresholds, NF4_PIVOTS, rtol=0, atol=1e-7)


@pytest.mark.slow("compiles two kernels a codebook", quick=lambda name: name != "fp4")
@pytest.mark.parametrize("name", NAMES)
def test_every_code_has_the_nearest_number(name):
    # contract 10.3
    row = CODEBOOKS[name]
    x = np.random.default_rng(1).uniform(-1, 1, 20_000).astype(np.float32)
    x[0] = 1
    numbers = np.array(row.values)
    errors = np.abs(fastq.quantize(x, name).dequantize() - x)
    least = np.abs(numbers - x[:, None].astype(np.float64)).min(axis=1)
    cell = 2 / 65535 if name == "dynamic8" else 0  # of the table by which bitsandbytes finds these codes
    assert (errors <= least + cell + 1e-7).all()
    assert (np.abs(numbers[np.roll(np.arange(len(numbers)), 1)][fastq.quantize(x, name).unpacked()] - x) > least).any()


@pytest.mark.slow("compiles two kernels a codebook", quick=lambda name: name == "nf4")
@pytest.mark.parametrize("name", NAMES)
def test_a_block_of_zeros_has_scale_zero(name):
    # contract 10.1
    q = fastq.quantize(np.zeros((2, 64), np.float32), name, axis=-1, block_size=64)
    assert not q.scale.any()
    assert not q.dequantize().any()


def test_scales_below_zero_are_read_and_infinite_ones_refused():
    # contract 10.1
    q = fastq.quantize(np.linspace(-1, 1, 64, dtype=np.float32), "nf4")
    negative = dataclasses.replace(q.qparams, scale=np.float32(-0.5))
    same_bytes(fastq.QuantizedArray(q.codes, negative, q.shape).dequantize(), q.dequantize() * np.float32(-0.5))
    infinite = dataclasses.replace(q.qparams, scale=np.float32(np.inf))
    with pytest.raises(ValueError, match="scale must be finite in float32; 1 of 1 are not, the first is inf"):
        fastq.QuantizedArray(q.codes, infinite, q.shape).dequantize()


@pytest.mark.parametrize("name", NAMES)
def test_an_explanation_has_the_number_of_the_code(name):
    q = fastq.reference.quantize(hard_values(name), name, axis=-1, block_size=64)
    values, number = fastq.reference.dequantize(q), CODEBOOKS[name].values[q.unpacked()[1, 3]]
    explained = q.explain((1, 3))
    assert explained.value == values[1, 3] == np.float32(number) * q.scale[1, 0]
    assert explained.formulas["code"] == "decided(x * (1 / max(scale, 1e-38)))"
    assert explained.formulas["scale"] == "max(-lo, hi) in F"
    assert name in repr(q)


def test_a_table_of_other_numbers_has_another_name_on_disk():
    row = CODEBOOKS["nf4"]
    assert repr(row) != repr(dataclasses.replace(row, values=row.values[::-1]))
    assert hash(row) == hash(Codebook("nf4", 4, row.values))


def test_codes_beyond_the_table_are_refused():
    with pytest.raises(ValueError, match=r"codes must be from .* for nf4"):
        fastq.pack(np.array([16], np.uint8), "nf4")
    with pytest.raises(TypeError, match="codes must be uint8 for dtype nf4, not int8"):
        fastq.pack(np.array([1], np.int8), "nf4")


# --- nested scales ----------------------------------------------------------------------------------------------------


def test_nested_scales_are_those_of_the_reference():
    # contract 10.7
    scale = np.random.default_rng(2).uniform(0, 3, (7, 100)).astype(np.float32)
    nested = fastq.nest_scale(scale)
    q, offset, values = fastq.reference.nest_scale(scale)
    same_bytes(nested.quantized.codes, q.codes)
    same_bytes(nested.quantized.scale, q.scale)
    same_bytes(nested.dequantize(), values)
    assert nested.offset == offset
    assert nested.nbytes == 700 + 4 * 3 + 4
    assert np.abs(nested.dequantize() - scale).max() < 0.03
    assert (fastq.nest_scale(scale, offset=1.0).dequantize() != values).any()
    same_bytes(fastq.nest_scale(scale.astype(">f4")).dequantize(), values)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scale": np.ones(3)}, TypeError, "scale must be float32, not float64"),
        ({"scale": np.array([np.nan], np.float32)}, ValueError, "scale must be finite numbers"),
        ({"scale": np.ones(0, np.float32)}, ValueError, "scale must be finite numbers, at least one"),
        ({"scale": np.ones(3, np.float32), "block_size": 0}, ValueError, "block_size must be 1 or more, not 0"),
        ({"scale": np.ones(3, np.float32), "offset": np.nan}, ValueError, "offset must be from -3.4"),
        ({"scale": np.ones(3, np.float32), "offset": 1e39}, ValueError, "offset must be from .* not 1e"),
        ({"scale": np.float32([3e38]), "offset": -3e38}, ValueError, "scale minus the offset .* must be finite in"),
    ],
)
@pytest.mark.parametrize("api", [fastq, fastq.reference], ids=["fast", "reference"])
def test_what_is_no_scale_is_refused(api, arguments, error, message):
    with pytest.raises(error, match=message):
        api.nest_scale(**arguments)


@pytest.mark.parametrize("words", sorted({0, codebooks._WORDS}))
def test_lanes_of_a_table_by_memory_and_by_registers(words, monkeypatch):
    """What CPUs without such an instruction compute, as AArch64, is computed here too."""
    monkeypatch.setattr(codebooks, "_WORDS", words)
    numbers, indices = Vec(types.float32, LANES), Vec(types.int32, LANES)

    def take(table, index, out):
        lanes = load(pointer(index, types.int32), 0, indices)
        store(pointer(out, types.float32), 0, codebooks.permute(load(pointer(table, types.float32), 0, numbers), lanes))

    table = np.tile(np.arange(8, dtype=np.float32) / 3, LANES // 8)
    index = np.random.default_rng(0).integers(-(2**31), 2**31, LANES, np.int32)
    out = np.zeros(LANES, np.float32)
    CFunction(take, *[types.intp] * 3)(*(each.ctypes.data for each in (table, index, out)))
    same_bytes(out, table[index & 7])
