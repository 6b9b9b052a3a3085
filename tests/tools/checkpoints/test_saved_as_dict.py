"""A dict of an opened model: saved it has the same values, or is refused by name."""

import dataclasses

import numpy as np
import pytest
import source_models as models
from commands import run
from sources import SOURCES

import fastq
from fastq import reference
from fastq.io import open_checkpoint, save_checkpoint
from fastq.tools.layouts.schemes import PRESETS

WAYS = {"dict": lambda folder: dict(open_checkpoint(folder)), "load": lambda folder: dict(fastq.load(folder))}
RAGGED = "ends with a row or column of zeros, .*: pass the mapping of open_checkpoint itself, not a dict of it"
UNITS = "has scales that are not float8_e4m3fn numbers divided .*: pass the mapping of open_checkpoint itself"
REFUSED = {
    **dict.fromkeys(("float8, ragged", "float8, less than a block", "float8, scales of bfloat16"), RAGGED),
    **dict.fromkeys(("float8, powers of two", "float8, powers of two in bytes", "float8, other blocks"), RAGGED),
    **dict.fromkeys(("float8, a static scale", "DeepSeek V4", "Mistral", "float8, blocks of none said"), RAGGED),
    **dict.fromkeys(("modelopt, float4", "modelopt, a file", "modelopt, as vLLM calls it"), UNITS),
    **dict.fromkeys(("modelopt, an algorithm for each layer", "modelopt, a layer left alone"), UNITS),
    "modelopt, blocks": RAGGED,
    "modelopt, blocks in one layer": RAGGED,
}
OF_EXPERTS = [case for case in SOURCES if case.startswith(("experts", "one expert", "float4 of gpt-oss"))]


def values_of(tensors):
    return {
        name.removesuffix(".weight"): each.dequantize() if isinstance(each, fastq.QuantizedArray) else each
        for name, each in tensors.items()
    }


def same_values(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.slow("compiles kernels of its own", quick=lambda case: case != "GPTQ, 2 bits")  # others have 3, 4 and 8
@pytest.mark.parametrize("case", [case for case in SOURCES if "order of act" not in case])
def test_models_of_other_writers(tmp_path, case):
    tensors, entry, _, *files = SOURCES[case]()
    folder = models.write(tmp_path / "model", tensors, entry, *files)
    opened = WAYS["dict"](folder)
    missing = "which compressed-tensors has no format for" if case in OF_EXPERTS or case.endswith("3 bits") else ""
    if message := missing or REFUSED.get(case):
        with pytest.raises(ValueError, match=rf"^tensors\['.*'\] (is .*, )?{message}"):
            save_checkpoint(tmp_path / "saved", opened)
        assert not (tmp_path / "saved").exists()
    else:
        save_checkpoint(tmp_path / "saved", opened)
        same_values(values_of(open_checkpoint(tmp_path / "saved")), values_of(opened))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Matrices of whole blocks, with values that a model has."""
    rng = np.random.default_rng(0)
    tensors = {f"l.{name}.weight": rng.standard_normal((128, 256), np.float32) * 0.02 for name in ("up_proj", "o_proj")}
    return models.write(tmp_path_factory.mktemp("dict") / "model", tensors | {"l.norm.weight": np.ones(8, np.float32)})


@pytest.mark.slow("compiles kernels for each format", quick=lambda name, way: name in ("NVFP4A16", "FP8_BLOCK"))
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PRESETS)
def test_models_of_ours(source, tmp_path, name, way):
    """The same values, and of all but the scales of nvfp4, which may have another unit, the same bytes."""
    run("convert", source, tmp_path / "q", "--scheme", name)
    opened = WAYS[way](tmp_path / "q")
    save_checkpoint(tmp_path / "saved", opened)
    same_values(values_of(open_checkpoint(tmp_path / "saved")), values_of(opened))
    config = open_checkpoint(tmp_path / "saved").config["quantization_config"]["config_groups"]["group_0"]
    assert config["format"] == PRESETS[name].format
    assert config["weights"] == PRESETS[name].weights.config()


@pytest.mark.parametrize("factor", [1.0, 2688 / 0.37, 3e-33, 3e38, 1 / 3], ids=str)
def test_units_of_float8_scales_are_found(tmp_path, factor):
    """Of any number that scales are in units of, and of few different scales."""
    q = reference.quantize(np.random.default_rng(2).standard_normal((4, 64)).astype(np.float32), "nvfp4")
    for codes in (q.scale, np.broadcast_to(q.scale[:1, :1], q.scale.shape)):
        scale = codes.astype(np.float32) / np.float32(factor)
        params = fastq.QParams(
            scale, np.zeros(scale.shape, q.zero_point.dtype), "float4_e2m1fn", -1, 16, symmetric=True
        )
        given = fastq.QuantizedArray(q.codes, params, q.shape)
        folder = tmp_path / f"{np.unique(scale).size}"
        save_checkpoint(folder, {"a": given})
        np.testing.assert_array_equal(open_checkpoint(folder)["a"].dequantize(), reference.dequantize(given))


@pytest.mark.parametrize(
    "scale", [np.linspace(1, 2, 16), np.full(16, 1e38), np.geomspace(1, 1e6, 16)], ids=["near", "huge", "wide"]
)
def test_other_scales_of_float4_are_refused(tmp_path, scale):
    params = fastq.QParams(
        scale.reshape(4, 4).astype(np.float32), np.zeros((4, 4), np.uint8), "float4_e2m1fn", -1, 16, symmetric=True
    )
    q = fastq.QuantizedArray(np.zeros((4, 32), np.uint8), params, (4, 64))
    if scale[0] == scale[-1]:
        save_checkpoint(tmp_path / "saved", {"a": q})
        assert not open_checkpoint(tmp_path / "saved")["a"].dequantize().any()
        return
    with pytest.raises(ValueError, match=rf"^tensors\['a'\] {UNITS}, not a dict of it, or quantize to 'nvfp4'$"):
        save_checkpoint(tmp_path / "saved", {"a": q})


def test_layouts_give_back_blocks_and_one_scale():
    x = np.random.default_rng(5).standard_normal((64, 96)).astype(np.float32)
    blocks = reference.quantize(x.reshape(2, 32, 3, 32), "float8_e4m3fn", axis=(0, 2))
    cases = blocks, reference.quantize(x, "float8_e4m3fn"), reference.quantize(x, "int8", symmetric=True)
    cases += (reference.quantize(x, "float8_e4m3fn", axis=1, block_size=32),)
    for q in cases:
        tensors = fastq.layouts.to_tensors(q, "compressed_tensors")
        size = {"block_size": q.block_size} if q.block_size else {}
        back = fastq.layouts.from_tensors(tensors, "compressed_tensors", dtype=q.dtype, **size)
        np.testing.assert_array_equal(reference.dequantize(back), reference.dequantize(q))
        assert back.shape == q.shape
    assert dataclasses.replace(blocks.qparams).axis == (0, 2)
