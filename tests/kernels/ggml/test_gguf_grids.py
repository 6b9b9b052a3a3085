"""Block formats of GGUF whose codes are points of grids, and those of one and two bits, which fastq's oracles lack."""

import itertools

import gguf as gguf_package
import numpy as np
import pytest
from catalogue import LAYOUTS, same_bytes
from gguf_blocks import any_blocks, needed_importance, oracle, same_values

import fastq
from fastq import reference
from fastq.formats.gguf import BLOCK_FORMATS, GridFormat, as_block_format
from fastq.reference.gguf_fields import pack, unpack

GRIDS = [name for name, row in BLOCK_FORMATS.items() if isinstance(row, GridFormat)]
EVERY_HALF = np.arange(1 << 16)

each_module = pytest.mark.parametrize("module", [fastq, reference], ids=["fast", "reference"])


def blocks_of(name, seed=0, **numbers):
    """Blocks with these numbers, of which all others are any."""
    form, count = BLOCK_FORMATS[name], len(next(iter(numbers.values())))
    found = unpack(any_blocks(name, count, 1, seed=seed), form)
    for of, values in numbers.items():
        found[of][...] = values
    return pack(found, form)


@pytest.mark.parametrize("name", GRIDS)
def test_points_are_those_of_the_package(name):
    # contract 21.2
    form, package = BLOCK_FORMATS[name], getattr(gguf_package.quants, name)
    package.init_grid()
    expected = package.grid.reshape(package.grid_shape) * (8 if form.shifts else 1)
    same_bytes(form.grid.points, expected.astype(np.int8))
    assert form.count("codes") * form.grid.width == form.size
    assert len(form.grid.points) == 1 << form.bits


@each_module
@pytest.mark.parametrize("name", GRIDS)
def test_every_code_in_every_place(module, name):
    form = BLOCK_FORMATS[name]
    codes = (np.arange(1 << form.bits)[:, None] + 37 * np.arange(form.count("codes"))) % (1 << form.bits)
    blocks = blocks_of(name, codes=codes, d=np.full((len(codes), 1), 0x3C00))
    same_bytes(module.gguf.dequantize(blocks, name), oracle("dequantize", blocks, name))


@each_module
@pytest.mark.parametrize("name", [*GRIDS, "Q1_0", "Q2_0"])
def test_no_blocks(module, name):
    form = BLOCK_FORMATS[name]
    for shape in ((0, form.nbytes), (3, 0), (0,)):
        values = module.gguf.dequantize(np.empty(shape, np.uint8), name)
        same_bytes(values, np.empty((*shape[:-1], shape[-1] // form.nbytes * form.size), np.float32))


@each_module
@pytest.mark.parametrize("name", GRIDS)
def test_every_scale_and_every_sign(module, name):
    # contract 21.1
    form = BLOCK_FORMATS[name]
    places = 5 * np.arange(form.count("signs")), 3 * np.arange(form.count("scales"))
    steps, signs = (np.arange(1 << form.width(of)) for of in ("scales", "signs"))
    signs = (np.resize(signs, 128)[:, None] + places[0]) % (1 << form.width("signs"))
    scales = (np.resize(steps, 128)[:, None] + places[1]) % (1 << form.width("scales"))
    blocks = blocks_of(name, signs=signs, scales=scales)
    same_values(module.gguf.dequantize(blocks, name), oracle("dequantize", blocks, name))


@pytest.mark.slow("2 s each")
@pytest.mark.parametrize("name", GRIDS)
def test_every_half_precision_scale(name):
    blocks = blocks_of(name, d=EVERY_HALF[:, None])
    expected = oracle("dequantize", blocks, name)
    for module in (fastq, reference):
        same_values(module.gguf.dequantize(blocks, name), expected)


@pytest.mark.parametrize("name", GRIDS)
def test_layouts_and_threads(name, threads):
    for shape in ((6, 3), (2, 3, 2), (5,)):
        for layout, n in itertools.product([each for each in LAYOUTS if each != "swapped"], (1, 2, 4)):
            threads(n)
            blocks = LAYOUTS[layout](any_blocks(name, *shape))
            expected = reference.gguf.dequantize(blocks, name)
            same_bytes(fastq.gguf.dequantize(blocks, BLOCK_FORMATS[name].number), expected)
            if layout in ("strided", "fortran", "unaligned"):
                out = LAYOUTS[layout](np.zeros_like(expected))
                same_bytes(fastq.gguf.dequantize(blocks, name, out=out), expected)


# --- one and two bits, which the package does not decode --------------------------------------------------------------


@each_module
def test_values_of_signs(module):
    blocks = any_blocks("Q1_0", 3000, 1)
    with np.errstate(invalid="ignore"):  # NaN is made quiet
        d = blocks[:, :2].copy().view(np.float16).astype(np.float32) * np.float32(1)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    same_bytes(module.gguf.dequantize(blocks, "Q1_0"), np.where(bits == 1, d, -d))


@each_module
def test_values_of_two_bits(module):
    blocks = any_blocks("Q2_0", 3000, 1)
    d = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    codes = (blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3).reshape(-1, 64)
    with np.errstate(invalid="ignore"):
        same_values(module.gguf.dequantize(blocks, "Q2_0"), (codes.astype(np.int8) - 1) * d)


@each_module
def test_codes_of_values_too_small_for_an_inverse(module):
    """Q2_0 takes them as -1, as ggml on x86-64, where TQ2_0 takes them as 0."""
    x = np.full((1, 256), 1e-39, np.float32)
    assert set(module.gguf.quantize(x, "Q2_0").reshape(-1, 18)[:, 2:].ravel()) == {0}
    assert set(module.gguf.quantize(x, "TQ2_0")[0, :64]) == {0b01010101}
    zeros = np.zeros((1, 256), np.float32)
    assert set(module.gguf.quantize(zeros, "Q2_0").reshape(-1, 18)[:, 2:].ravel()) == {0b01010101}
    assert set(module.gguf.quantize(-zeros, "Q1_0").reshape(-1, 18)[:, 2:].ravel()) == {0xFF}


@each_module
def test_magnitudes_are_added_in_turn(module):
    """Small ones after a large one are lost, in ggml too; together they would round the mean up."""
    x = np.full((1, 128), 2.0**-25, np.float32)
    x[0, 0] = 1 + 2.0**-11
    assert module.gguf.quantize(x, "Q1_0")[0, :2].view(np.float16) == np.float16(1 / 128)
    assert module.gguf.quantize(x[:, ::-1], "Q1_0")[0, :2].view(np.float16) == np.float16((1 + 2.0**-10) / 128)


# --- points of grids that are searched for ----------------------------------------------------------------------------


@pytest.mark.slow("compiles a kernel for each case", quick=lambda module, name: module is reference or name == "IQ3_S")
@each_module
@pytest.mark.parametrize("name", GRIDS)
def test_zeros_do_not_move_what_follows(module, name):
    """As they do in ggml's IQ3_S, of which a reader gets other values than those that were quantized."""
    # contract 21.7
    form, rng = BLOCK_FORMATS[name], np.random.default_rng(3)
    zero = np.arange(256) // form.sub % 3 == 1
    x = np.where(zero, 0, rng.standard_normal((20, 256))).astype(np.float32)
    importance = needed_importance(name, 256)
    blocks = module.gguf.quantize(x, name, importance=importance)
    numbers, missed = unpack(blocks, form), module.gguf.dequantize(blocks, name) - x
    assert not numbers["codes"][:, zero[:: form.grid.width]].any()
    assert not numbers["signs"][:, zero[:: 256 // form.count("signs")]].any()
    assert (missed[:, ~zero] ** 2).mean() < (0.4 if form.shifts else 0.16)
    nothing = module.gguf.quantize(np.zeros((2, 256), np.float32), name, importance=importance)
    same_bytes(nothing, np.zeros((2, form.nbytes), np.uint8))


@each_module
@pytest.mark.parametrize("name", [name for name, row in BLOCK_FORMATS.items() if row.needs_importance])
def test_formats_that_need_importance(module, name):
    # contract 21.1
    with pytest.raises(ValueError, match=f"^importance must be given for {name}, to which ggml quantizes with"):
        module.gguf.quantize(np.zeros((1, 256), np.float32), name)


def test_names_that_are_none():
    with pytest.raises(ValueError, match=r"NVFP4 \(40\).*, not 'IQ2_XL'"):
        as_block_format("IQ2_XL")
    with pytest.raises(ValueError, match=r"did you mean Q2_K"):
        as_block_format("Q2K")
