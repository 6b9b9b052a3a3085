"""What earlier versions of compressed-tensors stored, and what goes with weights: the same values, or refused."""

import functools
import json
import re

import ml_dtypes
import numpy as np
import pytest
import source_models as models
from model_folders import all_of, refused, run

from fastq.formats.compressed_tensors import PRESETS
from fastq.io import open_checkpoint, save_checkpoint
from fastq.io.checkpoints import encoding
from fastq.io.checkpoints.config import plain_config
from fastq.io.checkpoints.converting import convert
from fastq.io.checkpoints.finding import stored_weights
from fastq.io.checkpoints.folder import ModelFolder
from fastq.io.checkpoints.quantizing import Quantization
from fastq.io.checkpoints.rules import Rules

A, ZERO, SCALE = "l.self_attn.q_proj", "l.self_attn.q_proj.weight_zero_point", "l.self_attn.q_proj.weight_scale"
ROWS, COLUMNS, GROUPS = 160, 256, 2  # with more than one chunk of rows
ASYMMETRIC = "W4A16_ASYM"
QUANTIZED = "quantization_config"


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    """The tensors and the config.json of a model by a scheme, and the values."""
    root = tmp_path_factory.mktemp("older")
    rng = np.random.default_rng(0)
    source = {f"{A}.weight": rng.standard_normal((ROWS, COLUMNS), np.float32), "l.norm.weight": np.ones(8, np.float32)}
    models.write(root / "model", source)

    @functools.cache
    def by(name):
        convert(
            Quantization(ModelFolder(root / "model"), Rules(PRESETS[name])), root / name, progress=lambda *done: None
        )
        source = ModelFolder(root / name)
        tensors = {name: np.array(source.load(name)) for name in source.tensors}
        return tensors, json.loads((root / name / "config.json").read_text()), values_of(root / name)[f"{A}.weight"]

    return by


def values_of(folder):
    return {weight.name: weight.all_values() for weight in stored_weights(ModelFolder(folder)).values()}


def written(folder, tensors, config):
    folder.mkdir()
    models.write_file(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# Zero points

SCALES = (ROWS, GROUPS)
OF_ZEROS = {  # as writers had them for a scheme without zero points
    "int8": lambda scale: np.zeros(scale.shape, np.int8),
    "int32": lambda scale: np.zeros(scale.shape, np.int32),
    "int64": lambda scale: np.zeros(scale.shape, np.int64),
    "uint8": lambda scale: np.zeros(scale.shape, np.uint8),
}


@pytest.mark.parametrize("dtype", [*OF_ZEROS, "float8", "words"])
@pytest.mark.parametrize("name", [name for name in PRESETS if name != ASYMMETRIC])
def test_zero_points_of_zeros_change_nothing(quantized, tmp_path, name, dtype):
    tensors, config, values = quantized(name)
    scale = tensors[SCALE]
    if dtype == "words" and name in ("W2A16", "W4A16", "W8A16"):
        bits = PRESETS[name].weights.bits
        zero = models.in_words(np.full((GROUPS, ROWS), 1 << bits - 1), bits).T
    elif dtype in ("float8", "words"):
        zero = np.zeros(scale.shape, ml_dtypes.float8_e4m3fn if "FP" in name or "MX" in name else np.int16)
    else:
        zero = OF_ZEROS[dtype](scale)
    folder = written(tmp_path / "m", tensors | {ZERO: zero}, config)
    np.testing.assert_array_equal(values_of(folder)[f"{A}.weight"], values)
    run("convert", folder, tmp_path / "plain", "--dequantize")
    assert all_of(tmp_path / "plain").keys() == {f"{A}.weight", "l.norm.weight"}


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_zero_points_one_by_one(quantized, tmp_path, monkeypatch, dtype):
    """Words of them came later; what is opened and saved has words."""
    tensors, config, values = quantized(ASYMMETRIC)
    bits = np.unpackbits(tensors[ZERO].T.copy().view(np.uint8), axis=-1, bitorder="little")
    plain = (bits.reshape(GROUPS, -1, 4) @ np.array([1, 2, 4, 8]))[:, :ROWS].T - 8
    folder = written(tmp_path / "m", tensors | {ZERO: np.ascontiguousarray(plain.astype(dtype))}, config)
    monkeypatch.setattr(encoding, "CHUNK", 1)
    np.testing.assert_array_equal(values_of(folder)[f"{A}.weight"], values)
    save_checkpoint(tmp_path / "saved", open_checkpoint(folder), config)
    assert (all_of(tmp_path / "saved")[ZERO] == tensors[ZERO]).all()


def test_zero_points_that_were_not_stored_are_zero(quantized, tmp_path):
    tensors, config, _ = quantized(ASYMMETRIC)
    zeros = np.full_like(tensors[ZERO], np.int32(0x88888888 - (1 << 32)))
    written(tmp_path / "stored", tensors | {ZERO: zeros}, config)
    written(tmp_path / "not", {name: array for name, array in tensors.items() if name != ZERO}, config)
    np.testing.assert_array_equal(*(values_of(tmp_path / each)[f"{A}.weight"] for each in ("stored", "not")))


# name of a scheme, zero points, and what is said
OTHER_ZEROS = [
    (
        "W8A8",
        np.eye(ROWS, 1, dtype=np.int8),
        "a weight_zero_point with other numbers than 0, which int8 channel does not",
    ),
    ("W4A16", np.eye(*SCALES, dtype=np.int8), "with other numbers than 0"),
    ("W4A16", np.full(SCALES, 9, np.int32), "weight_zero_point has numbers that are no codes of int4"),
    (ASYMMETRIC, np.full(SCALES, 128, np.uint8), "weight_zero_point has numbers that are no codes of int4"),
    (ASYMMETRIC, np.zeros((3, 2), np.int8), "should be I32 of shape (20, 2), not I8 of shape (3, 2)"),
    (ASYMMETRIC, np.zeros(SCALES, np.float32), "'l.self_attn.q_proj.weight_zero_point' should be I32 of shape (20, 2)"),
]


@pytest.mark.parametrize("end", ["weight_zero_point", "weight_g_idx"])
@pytest.mark.parametrize("dtype", models.OTHERS)
def test_parts_of_other_dtypes_are_refused_by_name(quantized, tmp_path, end, dtype):
    tensors, config, _ = quantized("W4A16")
    folder = written(tmp_path / "m", tensors | {f"{A}.{end}": np.full(2 * ROWS * GROUPS, 3)}, config)
    models.respell(folder / "model.safetensors", f"{A}.{end}", dtype, models.OTHERS[dtype])
    assert f"{A} in model.safetensors: " in refused("convert", folder, tmp_path / "out", "--dequantize")


@pytest.mark.parametrize("where", ["config_groups", "transform_config", "more"])
def test_objects_in_objects_are_refused(quantized, tmp_path, where):
    tensors, config, _ = quantized("W4A16")
    text = "[" * 900 + "]" * 900
    folder = written(tmp_path / "m", tensors, edit(ENTRY, lambda e: e.update({where: "DEEP"}))(config))
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"DEEP"', text))
    for command in (["convert", folder, tmp_path / "out", "--dequantize"], ["compare", folder, folder]):
        assert "config.json has objects in objects more than 100 deep" in refused(*command)


@pytest.mark.parametrize(("name", "zero", "message"), OTHER_ZEROS)
def test_other_zero_points_are_refused_by_name(quantized, tmp_path, name, zero, message):
    tensors, config, _ = quantized(name)
    folder = written(tmp_path / "m", tensors | {ZERO: zero}, config)
    with pytest.raises(ValueError, match=re.escape(message)):
        values_of(folder)
    line = refused("convert", folder, tmp_path / "out", "--dequantize")
    assert f"{A} in model.safetensors: " in line
    assert message in line


PARTS = {
    "W4A16": ["weight_packed", "weight_shape"],
    "W8A8": ["weight"],
    "FP8_DYNAMIC": ["weight"],
    "FP8_BLOCK": ["weight"],
    "NVFP4A16": ["weight_packed", "weight_global_scale"],
    "MXFP4A16": ["weight_packed"],
    "MXFP8A16": ["weight"],
}

# Scales

POWERS = "MXFP4A16", "MXFP8A16"


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in POWERS])
def test_scales_of_zero(quantized, tmp_path, monkeypatch, name):
    """Of experts that calibration never met; the others are as they were."""
    tensors, config, values = quantized(name)
    scale, expected = tensors[SCALE].copy(), values.copy()
    rows, columns = PRESETS[name].weights.block or (1, COLUMNS // scale.shape[1])
    scale[1, 0] = 0
    expected[rows : 2 * rows, :columns] = 0
    folder = written(tmp_path / "m", tensors | {SCALE: scale}, config)
    monkeypatch.setattr(encoding, "CHUNK", 1)
    np.testing.assert_array_equal(values_of(folder)[f"{A}.weight"], expected)
    save_checkpoint(tmp_path / "saved", open_checkpoint(folder), config)
    np.testing.assert_array_equal(values_of(tmp_path / "saved")[f"{A}.weight"], expected)


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in POWERS])
def test_negative_scales_are_refused_by_name(quantized, tmp_path, name):
    tensors, config, _ = quantized(name)
    scale = tensors[SCALE].copy()
    scale[-1, -1] = -1
    folder = written(tmp_path / "m", tensors | {SCALE: scale}, config)
    line = refused("convert", folder, tmp_path / "out", "--dequantize")
    assert f"{A} in model.safetensors: its weight has a scale of -" in line


@pytest.mark.parametrize(("name", "shape"), [("W8A8", (ROWS,)), ("FP8_DYNAMIC", (1, ROWS)), ("W8A8", (ROWS, 1, 1))])
def test_axes_of_one_element_do_not_matter(quantized, tmp_path, name, shape):
    tensors, config, values = quantized(name)
    folder = written(tmp_path / "m", tensors | {SCALE: tensors[SCALE].reshape(shape)}, config)
    np.testing.assert_array_equal(values_of(folder)[f"{A}.weight"], values)


# Tensors that are missing


@pytest.mark.parametrize(
    ("name", "end"),
    [(name, end) for name, parts in PARTS.items() for end in ("weight_scale", *parts)],
)
def test_parts_that_are_missing(quantized, tmp_path, name, end):
    """Of a weight without scales nothing else is left over as if it were a plain tensor."""
    tensors, config, _ = quantized(name)
    left = {key: array for key, array in tensors.items() if key != f"{A}.{end}"}
    line = refused("convert", written(tmp_path / "m", left, config), tmp_path / "out", "--dequantize")
    assert f"{A}" in line
    assert "model.safetensors" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("end", ["weight_global_scale", "weight_packed", "weight_shape"])
@pytest.mark.parametrize("name", ["W8A8", "FP8_DYNAMIC", "FP8_BLOCK"])
def test_parts_too_many(quantized, tmp_path, name, end):
    tensors, config, _ = quantized(name)
    folder = written(tmp_path / "m", tensors | {f"{A}.{end}": np.ones(1, np.float32)}, config)
    line = refused("convert", folder, tmp_path / "out", "--dequantize")
    assert f"{A} in model.safetensors: it has a {end}, which " in line


# Columns in the order of activations


@pytest.mark.parametrize("name", ["W4A16", ASYMMETRIC, "W8A16"])
@pytest.mark.parametrize("order", ["own", "none", "shuffled"])
def test_columns_in_an_order(quantized, tmp_path, monkeypatch, name, order):
    """Column k has the scale of group g_idx[k]."""
    tensors, config, values = quantized(name)
    groups = np.arange(COLUMNS) // 128
    if order == "shuffled":
        groups = np.random.default_rng(1).permutation(groups)
        weights = config[QUANTIZED]["config_groups"]["group_0"]["weights"] | {"actorder": "group"}
        bits, zero = weights["num_bits"], 0
        stream = np.unpackbits(tensors[f"{A}.weight_packed"].view(np.uint8), axis=-1, bitorder="little")
        codes = stream.reshape(ROWS, COLUMNS, bits) @ (1 << np.arange(bits)) - (1 << bits - 1)
        if name == ASYMMETRIC:
            stream = np.unpackbits(tensors[ZERO].T.copy().view(np.uint8), axis=-1, bitorder="little")
            zero = (stream.reshape(GROUPS, -1, bits) @ (1 << np.arange(bits)))[:, :ROWS].T[:, groups] - 8
        values = (codes - zero).astype(np.float32) * tensors[SCALE].astype(np.float32)[:, groups]
        config = json.loads(json.dumps(config))
        config[QUANTIZED]["config_groups"]["group_0"]["weights"] = weights
    g_idx = np.full(COLUMNS, -1) if order == "none" else groups
    folder = written(tmp_path / "m", tensors | {f"{A}.weight_g_idx": g_idx.astype(np.int32)}, config)
    monkeypatch.setattr(encoding, "CHUNK", 1)
    np.testing.assert_array_equal(values_of(folder)[f"{A}.weight"], values)


# What config.json says


def edit(path, change):
    """Return what changes an entry of config.json, by the names that lead to it."""

    def edited(config):
        config = part = json.loads(json.dumps(config))
        for key in path:
            part = part[key]
        changed = change(part)
        return config if changed is None else changed

    return edited


ENTRY = (QUANTIZED,)
GROUP = (QUANTIZED, "config_groups", "group_0")
TRANSFORM = {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "weight_input"}]}
SAID = {
    "another key": ("W4A16", edit((), lambda c: {"compression_config": c.pop(QUANTIZED)} | c)),
    "nested": (
        "W4A16",
        edit((), lambda c: c | {QUANTIZED: {"quant_method": "compressed-tensors", QUANTIZED: c.pop(QUANTIZED)}}),
    ),
    **{
        f"of the {key}": ("W4A16", edit((), lambda c, key=key: {key: {QUANTIZED: c.pop(QUANTIZED)}} | c))
        for key in ("text_config", "llm_config", "language_config")
    },
    "without a method": ("W4A16", edit(ENTRY, lambda e: e.pop("quant_method") and None)),
    "an older method": ("W4A16", edit(ENTRY, lambda e: e.update(quant_method="sparseml"))),
    "no sparsity": ("W4A16", edit(ENTRY, lambda e: e.update(sparsity_config={"format": "dense"}))),
    "no sparsity, without a format": ("W4A16", edit(ENTRY, lambda e: e.update(sparsity_config={"ignore": []}))),
    "no transforms": ("W4A16", edit(ENTRY, lambda e: e.update(transform_config={"config_groups": {}}))),
    "null for transforms": ("W4A16", edit(ENTRY, lambda e: e.update(transform_config=None))),
    "transforms of weights": (
        "W4A16",
        edit(ENTRY, lambda e: e.update(transform_config={"config_groups": {"u": TRANSFORM}})),
    ),
    "one format for all": ("W4A16", edit(GROUP, lambda g: g.pop("format") and None)),
    "naive": ("W8A8", edit(GROUP, lambda g: g.update(format="naive-quantized"))),
    "naive float8": ("FP8_DYNAMIC", edit(GROUP, lambda g: g.update(format="naive-quantized"))),
    "a preset's name": ("W4A16", edit(ENTRY, lambda e: e.update(config_groups={"W4A16": ["Linear"]}))),
    "a preset's name in small letters": (
        "W8A8",
        edit(ENTRY, lambda e: e.update(config_groups={"w8a8": ["re:.*proj"]})),
    ),
    "another class": ("W4A16", edit(GROUP, lambda g: g.update(targets=["LinearBase"]))),
    "a class and another": ("W4A16", edit(GROUP, lambda g: g.update(targets=["Embedding", "Linear"]))),
    "an order of no consequence": ("W4A16", edit((*GROUP, "weights"), lambda w: w.update(actorder="weight"))),
    "blocks as text": ("FP8_BLOCK", edit((*GROUP, "weights"), lambda w: w.update(block_structure="128x128"))),
    "without a strategy": ("W4A16", edit((*GROUP, "weights"), lambda w: w.pop("strategy") and None)),
    "an observer": ("W4A16", edit((*GROUP, "weights"), lambda w: w.update(observer="mse", observer_kwargs={}))),
    "a status": ("W4A16", edit(ENTRY, lambda e: e.update(quantization_status="frozen"))),
    "scales of float4 left out": ("NVFP4A16", edit((*GROUP, "weights"), lambda w: w.pop("scale_dtype") and None)),
}


@pytest.mark.parametrize("case", SAID)
def test_configs_of_older_writers(quantized, tmp_path, case):
    name, change = SAID[case]
    tensors, config, values = quantized(name)
    folder = written(tmp_path / "m", tensors, change(config))
    np.testing.assert_array_equal(values_of(folder)[f"{A}.weight"], values)
    run("convert", folder, tmp_path / "plain", "--dequantize")
    assert "quant" not in (tmp_path / "plain" / "config.json").read_text()


DTYPES_SAID = [
    ({"dtype": "bfloat16", "torch_dtype": "bfloat16"}, {"dtype": "float32", "torch_dtype": "float32"}),
    ({"torch_dtype": "float16"}, {"torch_dtype": "float32"}),
    ({}, {"dtype": "float32"}),
    ({"text_config": {"dtype": "float16", "a": 1}}, {"text_config": {"dtype": "float32", "a": 1}, "dtype": "float32"}),
]


@pytest.mark.parametrize(("config", "plain"), DTYPES_SAID)
def test_the_dtype_of_plain_configs(config, plain):
    assert plain_config(config, "float32") == plain


def transforms(*locations):
    apply = [{"targets": ["Linear"], "location": location} for location in locations]
    return edit(
        ENTRY, lambda e: e.update(transform_config={"config_groups": {"u": {"type": "hadamard", "apply": apply}}})
    )


MORE = {  # what makes a model more than its weights
    **{
        f"has a transform_config of {place}: layers rotate": transforms(place)
        for place in ("input", "k_cache", "q_attn")
    },
    "has a transform_config of output, weight_input: layers": transforms("weight_input", "output"),
    "has a transform_config: layers rotate what they get, which is not undone": edit(
        ENTRY, lambda e: e.update(transform_config=["hadamard"])
    ),
    "has a transform_config of somewhere": transforms("somewhere"),
    "has a sparsity_config, which is not undone": edit(
        ENTRY, lambda e: e.update(sparsity_config={"format": "sparse-24-bitmask"})
    ),
    "has a sparsity_config": edit(ENTRY, lambda e: e.update(sparsity_config={"format": "sparse-bitmask"})),
    "has a sparsity_config, which": edit(ENTRY, lambda e: e.update(sparsity_config="2:4")),
    "has a moe_sparsity_config, which is not undone": edit(
        ENTRY, lambda e: e.update(moe_sparsity_config={"method": "novice"})
    ),
    "format 'marlin-24'; known are": edit(GROUP, lambda g: g.update(format="marlin-24")),
    "format 'dense'; known are": edit(GROUP, lambda g: g.update(format="dense")),
    "format 'mxfp6-pack-quantized'; known are": edit(GROUP, lambda g: g.update(format="mxfp6-pack-quantized")),
    "has no list of targets": edit(ENTRY, lambda e: e.update(config_groups={"W5A5": ["Linear"]})),
}


@pytest.mark.parametrize("message", MORE)
def test_models_that_are_more_than_their_weights(quantized, tmp_path, message):
    """Refused alike by --dequantize and --scheme, and by what opens them."""
    tensors, config, _ = quantized("W4A16")
    folder = written(tmp_path / "m", tensors, MORE[message](config))
    for options in (["--dequantize"], ["--scheme", "W8A8"]):
        assert message in refused("convert", folder, tmp_path / "out", *options)
    with pytest.raises(ValueError, match="config"):
        open_checkpoint(folder)


# What is stored beside weights

BESIDE = ["input_scale", "input_zero_point", "output_scale", "input_global_scale", "k_scale", "v_scale"]
OF_CACHE = [
    "k_scale",
    "v_scale",
    "q_scale",
    "k_zero_point",
    "kv_scale",
    "kv_cache_scale",
    "attn.k_scale",
    "attn.v_scale",
]


@pytest.mark.parametrize("is_quantized", [True, False])
def test_scales_of_activations_and_caches_are_dropped(quantized, tmp_path, is_quantized):
    tensors, config, values = quantized("W4A16")
    one = np.ones(1, np.float32)
    config = json.loads(json.dumps(config))
    config[QUANTIZED]["kv_cache_scheme"] = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    more = {f"l.self_attn.{end}": one for end in OF_CACHE}
    if is_quantized:
        more |= {f"{A}.{end}": one for end in BESIDE}
    else:  # only keys and values are to be
        config[QUANTIZED]["config_groups"] = {}
        tensors = {f"{A}.weight": values, "l.norm.weight": tensors["l.norm.weight"]}
    folder = written(tmp_path / "m", tensors | more, config)
    output = run("convert", folder, tmp_path / "plain", "--dequantize")
    assert output.count("dropped: of activations") == len(more)
    plain = all_of(tmp_path / "plain")
    assert plain.keys() == {f"{A}.weight", "l.norm.weight"}
    np.testing.assert_array_equal(plain[f"{A}.weight"], values)


def test_int4_with_a_byte_each(tmp_path):
    """As int4 with activations of int8 is stored: in int8."""
    rng = np.random.default_rng(2)
    codes, scale = rng.integers(-8, 8, (40, 64), np.int8), rng.uniform(1, 2, (40, 2)).astype(np.float32)
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    group = {"targets": ["Linear"], "weights": weights, "format": "int-quantized"}
    entry = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    folder = models.write(tmp_path / "m", {"a.weight": codes, "a.weight_scale": scale}, entry)
    np.testing.assert_array_equal(values_of(folder)["a.weight"], codes.astype(np.float32) * np.repeat(scale, 32, 1))
    folder = models.write(tmp_path / "wide", {"a.weight": codes * 2, "a.weight_scale": scale}, entry)
    assert "a in model.safetensors: " in refused("convert", folder, tmp_path / "out", "--dequantize")
