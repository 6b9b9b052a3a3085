"""Quantized models of other writers, and of older ones: the values that their readers compute, in plain NumPy."""

import json

import ml_dtypes
import numpy as np
import pytest
import source_models as models
from commands import invoke, refused, run
from model_folders import all_of, values_of
from numpy import float32 as f32
from source_models import E8M0, float8
from sources import BF16, FP8, PLAIN, SOURCES, of_modelopt, scaled

import fastq
from fastq.io import open_checkpoint, save_checkpoint
from fastq.tools.checkpoints import row_chunks


@pytest.mark.slow("compiles a kernel", quick=lambda case: case != "auto-round, scales of either sign, 3 bits")
@pytest.mark.parametrize("case", SOURCES)
def test_values_are_those_that_readers_compute(tmp_path, monkeypatch, case):
    tensors, entry, expected, *files = SOURCES[case]()
    folder = models.write(tmp_path / "model", tensors, entry, *files)
    monkeypatch.setattr(row_chunks, "CHUNK", 1)  # many chunks
    found = values_of(folder)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.slow("compiles a kernel each", quick=lambda case: not case.endswith(("2 bits", "3 bits")))
@pytest.mark.parametrize("case", SOURCES)
def test_a_matrix_of_any_writer_is_compared_under_its_own_name(tmp_path, case):
    tensors, entry, expected, *files = SOURCES[case]()
    folder = models.write(tmp_path / "model", tensors, entry, *files)
    np.savez(tmp_path / "plain.npz", **expected)
    result = invoke("compare", tmp_path / "plain.npz", folder, "--json")
    assert (result.exit_code, "a.weight:" in result.stderr) == (4 if result.stderr else 0, False)  # b.weight is more
    lines = {line["name"]: line for line in json.loads(result.stdout)["tensors"]}
    assert lines.keys() == expected.keys()
    for name, line in lines.items():
        assert line["max_abs_error"] == 0
        assert (line["shape"], line["bytes_a"]) == (list(expected[name].shape), expected[name].nbytes)
        assert line["b"] not in ("F8_E4M3", "I32", "U8", "I8")
    assert fastq.load(folder).keys() >= expected.keys()


ALL_OF_IT = (
    "float8, ragged",
    "float8, a static scale",
    "experts",
    "experts, a static scale",
    "float4 of gpt-oss",
    "AWQ",
)
ALL_OF_IT += (
    "modelopt, a file",
    "modelopt, float8",
    "GPTQ, order of activations",
    "GPTQ, an older file",
    "Mistral",
    "fbgemm",
)


@pytest.mark.parametrize("case", ALL_OF_IT)
def test_dequantize_leaves_a_plain_model(tmp_path, case):
    """Nothing of how it was stored is left."""
    tensors, entry, expected, *files = SOURCES[case]()
    folder = models.write(tmp_path / "model", tensors, entry, *files)
    run("convert", folder, tmp_path / "plain", "--dequantize")
    plain = all_of(tmp_path / "plain")
    assert plain.keys() == expected.keys() | ({"b.weight"} & tensors.keys())
    for name, values in expected.items():
        np.testing.assert_array_equal(plain[name], values)
    assert json.loads((tmp_path / "plain" / "config.json").read_text()) == {"model_type": "llama", "dtype": "float32"}
    assert sorted(path.name for path in (tmp_path / "plain").iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("case", ALL_OF_IT)
def test_quantized_anew_in_one_step_or_two(tmp_path, case):
    """The same bytes; what is left out of the source is told."""
    tensors, entry, expected, *files = SOURCES[case]()
    tensors["c.weight"] = np.ones((4, 8), BF16)
    folder = models.write(tmp_path / "model", tensors, entry, *files, config={"dtype": "bfloat16"})
    result = invoke("convert", folder, tmp_path / "one", "--scheme", "W8A8")
    assert result.exit_code == 0, result.output
    assert f"{folder}: its {len(expected)} quantized weights are read as BF16\n" in result.stderr
    assert ("scales of activations, keys and values are left out" in result.stderr) == any(
        name.endswith(("input_scale", "activation_scale", "qscale_act", "scale_ub")) for name in tensors
    )
    run("convert", folder, tmp_path / "plain", "--dequantize")
    run("convert", tmp_path / "plain", tmp_path / "two", "--scheme", "W8A8")
    for path in (tmp_path / "two").iterdir():
        assert (tmp_path / "one" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "case", ["float8, ragged", "float8, powers of two", "AWQ", "GPTQ", "GPTQ, symmetric", "fbgemm"]
)
def test_what_was_opened_is_saved_as_compressed_tensors(tmp_path, case):
    tensors, entry, expected, *_ = SOURCES[case]()
    opened = open_checkpoint(models.write(tmp_path / "model", tensors, entry))
    save_checkpoint(tmp_path / "saved", opened, opened.config)
    entry = json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"]
    assert entry["quant_method"] == "compressed-tensors"
    found = values_of(tmp_path / "saved")
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    (group,) = entry["config_groups"].values()
    assert group["weights"]["symmetric"] == (case not in ("AWQ", "GPTQ"))


def test_experts_are_opened_in_three_dimensions(tmp_path):
    for case, shape in [("float4 of gpt-oss", (2, 6, 64)), ("experts", (3, 2, 128, 1, 128))]:
        tensors, entry, expected, *_ = SOURCES[case]()
        opened = open_checkpoint(models.write(tmp_path / case, tensors, entry))
        (name,) = expected
        assert opened[name].shape == shape
        values = expected[name].swapaxes(1, 2) if "gpt" in case else expected[name]
        np.testing.assert_array_equal(opened[name].dequantize().reshape(values.shape), values)
        with pytest.raises(ValueError, match="which compressed-tensors has no format for"):
            save_checkpoint(tmp_path / "saved", opened)


def test_columns_in_the_order_of_activations_are_not_opened(tmp_path):
    tensors, entry, *_ = SOURCES["GPTQ, order of activations"]()
    opened = open_checkpoint(models.write(tmp_path / "model", tensors, entry))
    with pytest.raises(
        ValueError, match=r"^a in model\.safetensors: its columns are in the order of activations; fastq"
    ):
        opened["a"]


# Scales of zero, and those that no matrix has


def scale_of(tensors):
    return next(
        name
        for name in tensors
        if name.endswith(("scale_inv", "weight_scale", ".scale", "scales", "qscale_weight", "proj_scale"))
    )


HAVE_ZEROS = [
    case
    for case in SOURCES
    if not any(word in case for word in ("power", "bytes", "float4 in", "gpt-oss", "V4", "MXFP8"))
]


@pytest.mark.parametrize("case", HAVE_ZEROS)
def test_scales_of_zero(tmp_path, case):
    """Of all groups of a row, or of all: zeros, as a code times 0 is."""
    tensors, entry, _, *files = SOURCES[case]()
    tensors[scale_of(tensors)] = np.zeros_like(tensors[scale_of(tensors)])
    for values in values_of(models.write(tmp_path / "model", tensors, entry, *files)).values():
        assert not values.any()


OF_FLOATS = "float8, ragged", "float8, scales of bfloat16", "experts"
NOT_SCALES = [(case, number) for case in (*OF_FLOATS, "AWQ", "GPTQ") for number in (np.nan, np.inf)]


@pytest.mark.parametrize(("case", "number"), [*NOT_SCALES, *((case, -1.0) for case in OF_FLOATS)])
def test_other_scales_are_refused_by_name(tmp_path, case, number):
    tensors, entry, expected, *_ = SOURCES[case]()
    name = scale_of(tensors)
    tensors[name] = tensors[name].copy()
    tensors[name].reshape(-1)[-1] = number
    folder, (weight,) = models.write(tmp_path / "model", tensors, entry), expected
    line = refused("convert", folder, tmp_path / "out", "--dequantize")
    assert f"{weight.removesuffix('.weight')} in model.safetensors: " in line
    assert "scale" in line


# What is not read, or is not what is said


def without(tensors, end):
    return {name: array for name, array in tensors.items() if not name.endswith(end)}


def changed(case, change, **entry):
    tensors, found, *_ = SOURCES[case]()
    return change(tensors), found | entry


F8 = np.zeros((4, 4), models.E4M3)
REFUSED = {
    "a.weight in model.safetensors is F8_E4M3 and has no scale": lambda: (
        {"a.weight": F8},
        FP8,
    ),
    "it is F8_E5M2 of shape (4, 4), not float8_e4m3fn": lambda: (
        {"a.weight": F8.view(ml_dtypes.float8_e5m2), "a.weight_scale_inv": np.ones((1, 1), f32)},
        FP8,
    ),
    "not float8_e4m3fn of 2 or 3 dimensions": lambda: ({"a.weight": F8[0], "a.weight_scale_inv": np.ones(1, f32)}, FP8),
    "a.weight_scale_inv in model.safetensors is not part of a weight that fastq knows": lambda: changed(
        "float8", lambda t: t | {"a.weight": t["a.weight"].astype(BF16)}
    ),
    "it has scales of shape (3, 2), which do not cut 200 x 150 into blocks": lambda: changed(
        "float8, ragged", lambda t: t | {"a.weight_scale_inv": np.ones((3, 2), f32)}
    ),
    "it has scales of shape (4, 4), which do not cut 256 x 256 into blocks of 128 x 128": lambda: scaled(
        float8((256, 256), (64, 64))
    )[:2],
    "it has scales of shape (3,), which do not cut 200 x 150 into blocks": lambda: changed(
        "float8, ragged", lambda t: t | {"a.weight_scale_inv": np.ones(3, f32)}, weight_block_size=None
    ),
    "it has scales of shape (1, 2, 2), which do not cut": lambda: changed(
        "float8, ragged", lambda t: t | {"a.weight_scale_inv": np.ones((1, 2, 2), f32)}
    ),
    "'a.weight_scale_inv' should be F32 of shape (2, 2), not I32 of shape (2, 2)": lambda: changed(
        "float8, ragged", lambda t: t | {"a.weight_scale_inv": np.ones((2, 2), np.int32)}
    ),
    "of modelopt's 'W4A8_AWQ'; only FP8, NVFP4, W4A16_": lambda: of_modelopt(quant_algo="W4A8_AWQ")[:2],
    "of modelopt's 'NVFP4_AWQ'; only FP8, NVFP4, ": lambda: of_modelopt(
        quant_algo="MIXED_PRECISION", quantized_layers={"a": {"quant_algo": "NVFP4_AWQ"}, "b": {"quant_algo": "FP8"}}
    )[:2],
    "of modelopt's 'MIXED_PRECISION'; only FP8": lambda: of_modelopt(quant_algo="MIXED_PRECISION")[:2],
    "of modelopt's 'None'; only FP8": lambda: of_modelopt(quant_algo=None)[:2],
    "of auto-round's 'auto_round:llm_compressor'; only layouts of gptq and awq are read": lambda: changed(
        "auto-round", dict, packing_format="auto_round:llm_compressor"
    ),
    "of AWQ's 'llm-awq' with 4 bits; only 'gemm'": lambda: changed("AWQ", dict, backend="llm-awq"),
    "a.pre_quant_scale in model.safetensors is not part of a weight": lambda: changed(
        "modelopt, float4", lambda t: t | {"a.pre_quant_scale": np.ones(64, f32)}
    ),
    "it is I8 with scales of 1 x 16: float4 needs 1 x 32": lambda: (
        {"a.weight": np.zeros((4, 32), np.int8), "a.scale": np.zeros((4, 4), E8M0)},
        FP8,
    ),
    "nothing in it is quantized, although it has a quantization_config: no tensor is named _scale_inv": lambda: (
        {"a.weight": PLAIN},
        FP8,
    ),
    "its blocks are U8 of shape (2, 6, 2, 16), with no scales": lambda: changed(
        "float4 of gpt-oss", lambda t: without(t, "_scales")
    ),
    "with scales of shape (2, 6)": lambda: changed(
        "float4 of gpt-oss", lambda t: t | {"experts.gate_up_proj_scales": np.zeros((2, 6), np.uint8)}
    ),
    "a.qzeros must be a matrix; it is missing": lambda: changed("AWQ", lambda t: without(t, "qzeros")),
    "a.scales must be a matrix; it is of shape (80,)": lambda: changed(
        "AWQ", lambda t: t | {"a.scales": t["a.scales"].reshape(-1)}
    ),
    "outputs in awq, its scales have": lambda: changed(
        "GPTQ", lambda t: without(t, "g_idx"), quant_method="awq", bits=4
    ),
    "are for 8 bits, which awq does not have": lambda: changed("GPTQ, 8 bits", lambda t: t, quant_method="awq", bits=4),
    "a in model.safetensors: qzeros has shape (2, 5), but the other tensors need shape (1, 5)": lambda: changed(
        "AWQ", lambda t: t | {"a.scales": t["a.scales"][:1]}
    ),
    "act.scales in model.safetensors is not part of a weight": lambda: changed(  # what AutoAWQ divides activations by
        "AWQ", lambda t: t | {"act.scales": np.ones(4, f32)}
    ),
    "a.qzeros in model.safetensors is not part of a weight": lambda: changed("GPTQ", lambda t: without(t, "qweight")),
    "experts.gate_up_proj_scales in model.safetensors is not part of a weight": lambda: changed(
        "float4 of gpt-oss", lambda t: without(t, "_blocks")
    ),
    "of AWQ's 'gemv' with 4 bits; only 'gemm' with 4 is read": lambda: changed("AWQ", dict, version="gemv"),
    "of AWQ's 'gemm' with 8 bits": lambda: changed("AWQ", dict, bits=8),
    "of GPTQ's 'marlin'; only 'gptq' and 'gptq_v2' are read": lambda: changed("GPTQ", dict, checkpoint_format="marlin"),
    "are for 4 bits, but quantization_config has bits 8: one is wrong": lambda: changed("GPTQ", dict, bits=8),
    "of GPTQ's 'marlin'; only": lambda: changed("GPTQ", dict, is_marlin_format=True),
    "it has groups of columns of shape (3,), not integers of shape (64,)": lambda: changed(
        "GPTQ", lambda t: t | {"a.g_idx": np.zeros(3, np.int32)}
    ),
    "g_idx must name every block as often as it has inputs": lambda: changed(
        "GPTQ", lambda t: t | {"a.g_idx": np.array([1] + [0] * 63, np.int32)}
    ),
    "zero points of which all bits are set": lambda: changed(
        "GPTQ", lambda t: t | {"a.qzeros": np.full_like(t["a.qzeros"], -1)}
    ),
}
REFUSED |= {
    "is of 'no quant_method'; known are": lambda: ({"a.weight": PLAIN}, {"load_in_4bit": True}),
    "nothing in it is quantized, although it has a quantization_config: no tensor is named .scales": lambda: (
        {"a.weight": PLAIN},
        None,
        None,
        {"quantization": {"group_size": 64, "bits": 4}},
    ),
}
METHODS = "aqlm bitnet bitsandbytes eetq fp_quant gguf higgs hqq nvfp4 quanto quark spqr torchao vptq"
REFUSED |= {
    f"is of '{name}'; known are compressed-tensors, ": lambda name=name: ({"a.weight": PLAIN}, {"quant_method": name})
    for name in METHODS.split()
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_read_is_named(tmp_path, message):
    """Of --scheme and of --dequantize alike: no advice that leads nowhere."""
    folder = models.write(tmp_path / "model", *REFUSED[message]())
    for options in (["--dequantize"], ["--scheme", "W8A8"]):
        line = refused("convert", folder, tmp_path / "out", *options, "--force")
        assert message in line, line


@pytest.mark.parametrize("dtype", models.OTHERS)
def test_groups_of_columns_of_other_dtypes_are_refused(tmp_path, dtype):
    tensors, entry, *_ = SOURCES["GPTQ"]()
    folder = models.write(tmp_path / "model", tensors, entry)
    models.respell(folder / "model.safetensors", "a.g_idx", dtype, models.OTHERS[dtype])
    assert "a in model.safetensors: " in refused("convert", folder, tmp_path / "out", "--dequantize")
    assert invoke("inspect", folder).exit_code == 4


def test_a_plain_tensor_of_the_name_of_a_quantized_one(tmp_path):
    tensors, entry, *_ = SOURCES["GPTQ"]()
    folder = models.write(tmp_path / "model", tensors | {"a.weight": PLAIN}, entry)
    with pytest.raises(ValueError, match=r"two tensors are called 'a\.weight'; the second is in model"):
        fastq.load(folder)
    result = invoke("inspect", folder)
    assert (result.exit_code, "two tensors" in result.stderr, "a.qweight" in result.stdout) == (4, True, True)


def test_an_entry_of_nothing_is_none(tmp_path):
    for name, config in [("null", {"quantization_config": None}), ("empty", {"compression_config": {}})]:
        folder = models.write(tmp_path / name, {"a.weight": np.ones((4, 64), f32)}, config=config)
        run("convert", folder, tmp_path / f"{name} out", "--scheme", "W8A8")
