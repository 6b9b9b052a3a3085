"""What earlier versions of compressed-tensors stored, and what goes with weights: the same values, or refused."""

import functools
import json
import re

import ml_dtypes
import numpy as np
import pytest
import source_models as models
from commands import refused, run
from model_folders import all_of, values_of

from fastq.io import open_checkpoint, save_checkpoint
from fastq.tools.checkpoints import row_chunks
from fastq.tools.checkpoints.converting import convert
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.quantization import Quantization
from fastq.tools.checkpoints.quantization_config import plain_config
from fastq.tools.checkpoints.rules import Rules
from fastq.tools.layouts.schemes import PRESETS

A, ZERO, SCALE = "l.self_attn.q_proj", "l.self_attn.q_proj.weight_zero_point", "l.self_attn.q_proj.weight_scale"
ROWS, COLUMNS, GROUPS = 160, 256, 2  # with more than one chunk of rows
ASYMMETRIC = "W4A16_ASYM"
QUANTIZED = "quantization_config"
ENTRY, GROUP = (QUANTIZED,), (QUANTIZED, "config_groups", "group_0")


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
            Quantization(ModelFolder.open(root / "model"), Rules(PRESETS[name])),
            root / name,
            progress=lambda *done: None,
        )
        source = ModelFolder.open(root / name)
        tensors = {name: np.array(source.load(name)) for name in source.tensors}
        return tensors, json.loads((root / name / "config.json").read_text()), values_of(root / name)[f"{A}.weight"]

    return by


SCALES = (ROWS, GROUPS)


@pytest.fixture
def stored(quantized, tmp_path):
    """What writes a model by a scheme, with tensors that are changed (None: left out) and another config.json."""

    def write(name, tensors=None, config=lambda plain: plain):
        kept, plain, values = quantized(name)
        tensors = tensors(kept) if callable(tensors) else tensors or {}
        (tmp_path / "m").mkdir()
        changed = {key: array for key, array in (kept | tensors).items() if array is not None}
        models.write_file(tmp_path / "m" / "model.safetensors", changed)
        (tmp_path / "m" / "config.json").write_text(json.dumps(config(plain)))
        return tmp_path / "m", values

    return write


def same_values(folder, values):
    np.testing.assert_array_equal(values_of(folder)[f"{A}.weight"], values)


def of_bits(words, bits):
    """Integers of words, one bit after the other."""
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    return stream.reshape(len(words), -1, bits) @ (1 << np.arange(bits))


# Zero points


@pytest.mark.slow("compiles kernels of its own", quick=lambda name, dtype: name not in ("W2A16", "MXFP8A16"))
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "float8", "words"])
@pytest.mark.parametrize("name", [name for name in PRESETS if name != ASYMMETRIC])
def test_zero_points_of_zeros_change_nothing(stored, tmp_path, name, dtype):
    """As writers had them for a scheme without zero points."""
    if dtype == "words" and name in ("W2A16", "W4A16", "W8A16"):
        bits = PRESETS[name].weights.bits
        zero = models.in_words(np.full((GROUPS, ROWS), 1 << bits - 1), bits).T
    elif dtype in ("float8", "words"):
        dtype = ml_dtypes.float8_e4m3fn if "FP" in name or "MX" in name else np.int16
    folder, values = stored(name, lambda kept: {ZERO: zero if dtype == "words" else np.zeros(kept[SCALE].shape, dtype)})
    same_values(folder, values)
    run("convert", folder, tmp_path / "plain", "--dequantize")
    assert all_of(tmp_path / "plain").keys() == {f"{A}.weight", "l.norm.weight"}


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_zero_points_one_by_one(stored, quantized, tmp_path, monkeypatch, dtype):
    """Words of them came later; what is opened and saved has words."""
    words = quantized(ASYMMETRIC)[0][ZERO]
    folder, values = stored(ASYMMETRIC, {ZERO: (of_bits(words.T, 4)[:, :ROWS].T - 8).astype(dtype)})
    monkeypatch.setattr(row_chunks, "CHUNK", 1)
    same_values(folder, values)
    opened = open_checkpoint(folder)
    save_checkpoint(tmp_path / "saved", opened, opened.config)
    assert (all_of(tmp_path / "saved")[ZERO] == words).all()


def test_zero_points_that_were_not_stored_are_zero(stored, quantized):
    tensors = quantized(ASYMMETRIC)[0]
    codes = of_bits(tensors[f"{A}.weight_packed"], 4).astype(np.float32) - 8
    folder, _ = stored(ASYMMETRIC, {ZERO: None})
    same_values(folder, codes * np.repeat(tensors[SCALE], COLUMNS // GROUPS, 1).astype(np.float32))


def negative(kept):
    scale = kept[SCALE].copy()
    scale[-1, -1] = -1
    return {SCALE: scale}


@pytest.mark.slow("compiles a kernel", quick=lambda name: name != "W2A16")
@pytest.mark.parametrize("name", [name for name, scheme in PRESETS.items() if scheme.weights.kind == "int"])
def test_scales_of_integers_may_be_negative(stored, tmp_path, name):
    """Readers multiply by them, and so do saved copies."""
    folder, values = stored(name, lambda kept: {SCALE: -kept[SCALE]})
    same_values(folder, -values)
    opened = open_checkpoint(folder)
    save_checkpoint(tmp_path / "saved", opened, opened.config)
    same_values(tmp_path / "saved", -values)


PARTS = {
    "W4A16": ["weight_packed", "weight_shape"],
    "W8A8": ["weight"],
    "FP8_DYNAMIC": ["weight"],
    "FP8_BLOCK": ["weight"],
    "NVFP4A16": ["weight_packed", "weight_global_scale"],
    "MXFP4A16": ["weight_packed"],
    "MXFP6A16": ["weight_packed"],
    "MXFP8A16": ["weight"],
}
POWERS = "MXFP4A16", "MXFP6A16", "MXFP6A8", "MXFP8A16"
NONE = "a weight_zero_point with numbers other than 0"
NO_CODES = "weight_zero_point has numbers that are not codes of int4"
# name of a scheme, zero points, and what is said; of a weight without scales nothing else is left over as if it were a
# plain tensor
REFUSED = [
    ("W8A8", {ZERO: np.eye(ROWS, 1, dtype=np.int8)}, f"it has {NONE}, which int8 channel does not"),
    ("W4A16", {ZERO: np.eye(*SCALES, dtype=np.int8)}, f"it has {NONE}"),
    ("W4A16", {ZERO: np.full(SCALES, 9, np.int32)}, NO_CODES),
    (ASYMMETRIC, {ZERO: np.full(SCALES, 128, np.uint8)}, NO_CODES),
    (ASYMMETRIC, {ZERO: np.zeros((3, 2), np.int8)}, "should be I32 of shape (20, 2), not I8 of shape (3, 2)"),
    (ASYMMETRIC, {ZERO: np.zeros(SCALES, np.float32)}, f"'{ZERO}' should be I32 of shape (20, 2)"),
    *((name, negative, "its weight has a scale of -") for name in PRESETS if "FP" in name and name not in POWERS),
    *((name, {f"{A}.{end}": None}, "") for name, parts in PARTS.items() for end in ("weight_scale", *parts)),
    *(
        (name, {f"{A}.{end}": np.ones(1, np.float32)}, f"it has a {end}, which ")
        for end in ("weight_global_scale", "weight_packed", "weight_shape")
        for name in ("W8A8", "FP8_DYNAMIC", "FP8_BLOCK")
    ),
]


@pytest.mark.slow("compiles kernels of its own", quick=lambda name, **_: name != "MXFP8A16")
@pytest.mark.parametrize(("name", "tensors", "message"), REFUSED)
def test_parts_that_do_not_fit_are_refused_by_name(stored, tmp_path, name, tensors, message):
    folder, _ = stored(name, tensors)
    if "zero_point" in message:
        with pytest.raises(ValueError, match=re.escape(message.removeprefix("it has "))):
            values_of(folder)
    line = refused("convert", folder, tmp_path / "out", "--dequantize")
    assert (f"{A} in model.safetensors: " if message else A) in line
    assert message in line
    assert message or ("model.safetensors" in line and not (tmp_path / "out").exists())


@pytest.mark.parametrize("end", ["weight_zero_point", "weight_g_idx"])
@pytest.mark.parametrize("dtype", models.OTHERS)
def test_parts_of_other_dtypes_are_refused_by_name(stored, tmp_path, end, dtype):
    folder, _ = stored("W4A16", {f"{A}.{end}": np.full(2 * ROWS * GROUPS, 3)})
    models.respell(folder / "model.safetensors", f"{A}.{end}", dtype, models.OTHERS[dtype])
    assert f"{A} in model.safetensors: " in refused("convert", folder, tmp_path / "out", "--dequantize")


@pytest.mark.parametrize("where", ["config_groups", "transform_config", "more"])
def test_objects_in_objects_are_refused(stored, tmp_path, where):
    folder, _ = stored("W4A16", None, edit(ENTRY, lambda e: e.update({where: "DEEP"})))
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"DEEP"', "[" * 900 + "]" * 900))
    for command in (["convert", folder, tmp_path / "out", "--dequantize"], ["compare", folder, folder]):
        assert "config.json nests objects more than 100 deep" in refused(*command)


# Scales


@pytest.mark.slow("compiles kernels of its own", quick=lambda name: name != "W2A16")
@pytest.mark.parametrize("name", [name for name in PRESETS if name not in POWERS])
def test_scales_of_zero(stored, quantized, tmp_path, monkeypatch, name):
    # contract 27.9
    """Of experts that calibration never met; the others are as they were."""
    scale, expected = (quantized(name)[k][key].copy() for k, key in ((0, SCALE), (2, slice(None))))
    rows, columns = PRESETS[name].weights.block or (1, COLUMNS // scale.shape[1])
    scale[1, 0] = 0
    expected[rows : 2 * rows, :columns] = 0
    folder, _ = stored(name, {SCALE: scale})
    monkeypatch.setattr(row_chunks, "CHUNK", 1)
    same_values(folder, expected)
    opened = open_checkpoint(folder)
    save_checkpoint(tmp_path / "saved", opened, opened.config)
    same_values(tmp_path / "saved", expected)


@pytest.mark.parametrize(("name", "shape"), [("W8A8", (ROWS,)), ("FP8_DYNAMIC", (1, ROWS)), ("W8A8", (ROWS, 1, 1))])
def test_axes_of_one_element_do_not_matter(stored, name, shape):
    same_values(*stored(name, lambda kept: {SCALE: kept[SCALE].reshape(shape)}))


# Columns in the order of activations


@pytest.mark.parametrize("name", ["W4A16", ASYMMETRIC, "W8A16"])
@pytest.mark.parametrize("order", ["own", "none", "shuffled"])
def test_columns_in_an_order(stored, quantized, monkeypatch, name, order):
    """Column k has the scale of group g_idx[k]."""
    tensors, _, values = quantized(name)
    groups, change = np.arange(COLUMNS) // 128, lambda weights: None
    if order == "shuffled":
        groups, bits, zero = np.random.default_rng(1).permutation(groups), PRESETS[name].weights.bits, 0
        codes = of_bits(tensors[f"{A}.weight_packed"], bits) - (1 << bits - 1)
        if name == ASYMMETRIC:
            zero = of_bits(tensors[ZERO].T, bits)[:, :ROWS].T[:, groups] - 8
        values = (codes - zero).astype(np.float32) * tensors[SCALE].astype(np.float32)[:, groups]
        change = lambda weights: weights.update(actorder="group")  # noqa: E731
    g_idx = np.full(COLUMNS, -1) if order == "none" else groups
    folder, _ = stored(name, {f"{A}.weight_g_idx": g_idx.astype(np.int32)}, edit((*GROUP, "weights"), change))
    monkeypatch.setattr(row_chunks, "CHUNK", 1)
    same_values(folder, values)


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


def with_entry(**changes):
    """What changes the quantization_config."""
    return edit(ENTRY, lambda e: e.update(changes))


def with_group(**changes):
    return edit(GROUP, lambda g: g.update(changes))


def without(path, key):
    return edit(path, lambda part: part.pop(key) and None)


WEIGHTS = (*GROUP, "weights")
TRANSFORM = {"type": "hadamard", "apply": [{"targets": ["Linear"], "location": "weight_input"}]}
METHOD = {"quant_method": "compressed-tensors"}
SAID = {
    "another key": ("W4A16", edit((), lambda c: {"compression_config": c.pop(QUANTIZED)} | c)),
    "nested": ("W4A16", edit((), lambda c: c | {QUANTIZED: METHOD | {QUANTIZED: c.pop(QUANTIZED)}})),
    **{
        f"of the {key}": ("W4A16", edit((), lambda c, key=key: {key: {QUANTIZED: c.pop(QUANTIZED)}} | c))
        for key in ("text_config", "llm_config", "language_config")
    },
    "without a method": ("W4A16", without(ENTRY, "quant_method")),
    "an older method": ("W4A16", with_entry(quant_method="sparseml")),
    "no sparsity": ("W4A16", with_entry(sparsity_config={"format": "dense"})),
    "no sparsity, without a format": ("W4A16", with_entry(sparsity_config={"ignore": []})),
    "no transforms": ("W4A16", with_entry(transform_config={"config_groups": {}})),
    "null for transforms": ("W4A16", with_entry(transform_config=None)),
    "transforms of weights": ("W4A16", with_entry(transform_config={"config_groups": {"u": TRANSFORM}})),
    "one format for all": ("W4A16", without(GROUP, "format")),
    "naive": ("W8A8", with_group(format="naive-quantized")),
    "naive float8": ("FP8_DYNAMIC", with_group(format="naive-quantized")),
    "a preset's name": ("W4A16", with_entry(config_groups={"W4A16": ["Linear"]})),
    "a preset's name in small letters": ("W8A8", with_entry(config_groups={"w8a8": ["re:.*proj"]})),
    "another class": ("W4A16", with_group(targets=["LinearBase"])),
    "a class and another": ("W4A16", with_group(targets=["Embedding", "Linear"])),
    "an order of no consequence": ("W4A16", edit(WEIGHTS, lambda w: w.update(actorder="weight"))),
    "blocks as text": ("FP8_BLOCK", edit(WEIGHTS, lambda w: w.update(block_structure="128x128"))),
    "without a strategy": ("W4A16", without(WEIGHTS, "strategy")),
    "an observer": ("W4A16", edit(WEIGHTS, lambda w: w.update(observer="mse", observer_kwargs={}))),
    "a status": ("W4A16", with_entry(quantization_status="frozen")),
    "scales of float4 left out": ("NVFP4A16", without(WEIGHTS, "scale_dtype")),
}


@pytest.mark.parametrize("case", SAID)
def test_configs_of_older_writers(stored, tmp_path, case):
    name, change = SAID[case]
    folder, values = stored(name, None, change)
    same_values(folder, values)
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
    return with_entry(transform_config={"config_groups": {"u": {"type": "hadamard", "apply": apply}}})


PLACES = ("input", "k_cache", "q_attn")
MORE = {  # what makes a model more than its weights
    **{f"has a transform_config of {place}: layers rotate": transforms(place) for place in PLACES},
    "has a transform_config of output, weight_input: layers": transforms("weight_input", "output"),
    "has a transform_config: layers rotate their inputs, which can't be undone": with_entry(
        transform_config=["hadamard"]
    ),
    "has a transform_config of somewhere": transforms("somewhere"),
    "has a sparsity_config, which fastq does not undo": with_entry(sparsity_config={"format": "sparse-24-bitmask"}),
    "has a sparsity_config": with_entry(sparsity_config={"format": "sparse-bitmask"}),
    "has a sparsity_config, which": with_entry(sparsity_config="2:4"),
    "has a moe_sparsity_config, which fastq does not undo": with_entry(moe_sparsity_config={"method": "novice"}),
    **{
        f"format '{name}'; known are": with_group(format=name)
        for name in ("marlin-24", "dense", "mxfp5-pack-quantized")
    },
    "has no list of targets": with_entry(config_groups={"W5A5": ["Linear"]}),
}


@pytest.mark.parametrize("message", MORE)
def test_models_that_are_more_than_their_weights(stored, tmp_path, message):
    """Refused alike by --dequantize and --scheme, and by functions that open them."""
    folder, _ = stored("W4A16", None, MORE[message])
    for options in (["--dequantize"], ["--scheme", "W8A8"]):
        assert message in refused("convert", folder, tmp_path / "out", *options)
    with pytest.raises(ValueError, match="config"):
        open_checkpoint(folder)


# Tensors stored next to weights

BESIDE = ["input_scale", "input_zero_point", "output_scale", "input_global_scale", "k_scale", "v_scale"]
OF_CACHE = ["k_scale", "v_scale", "q_scale", "k_zero_point", "kv_scale", "kv_cache_scale"]
OF_CACHE += ["attn.k_scale", "attn.v_scale"]


@pytest.mark.parametrize("is_quantized", [True, False])
def test_scales_of_activations_and_caches_are_dropped(stored, quantized, tmp_path, is_quantized):
    cache = {"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"}}
    tensors = {f"l.self_attn.{end}": np.ones(1, np.float32) for end in OF_CACHE}
    if is_quantized:
        tensors |= {f"{A}.{end}": np.ones(1, np.float32) for end in BESIDE}
    dropped = len(tensors)
    if not is_quantized:  # only keys and values are to be
        cache["config_groups"] = {}
        kept, _, values = quantized("W4A16")
        tensors |= {key: None for key in kept if A in key} | {f"{A}.weight": values}
    folder, values = stored("W4A16", tensors, with_entry(**cache))
    output = run("convert", folder, tmp_path / "plain", "--dequantize", "--every")
    assert output.count("dropped: for activations") == dropped
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
