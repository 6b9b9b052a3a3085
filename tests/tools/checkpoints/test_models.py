"""Model directories: which tensors are quantized, what is stored of them, and what happens when something is wrong."""

import csv
import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from commands import run
from gguf_files import decoded, encoded
from gguf_files import write as write_gguf
from model_folders import (
    BF16,
    CONFIG,
    EXPERTS,
    INDEX,
    INNER,
    LAYER,
    Q_PROJ,
    all_of,
    config_of,
    int4_groups,
    sqnr_db,
    unpacked_words,
    write_model,
)
from safetensors.numpy import load_file

import fastq
from fastq import reference
from fastq.io import open_checkpoint, save_checkpoint
from fastq.tools.checkpoints.encoding import ScaleArithmetic, encode
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.quantization import Quantization
from fastq.tools.checkpoints.quantization_config import StoredSchemes
from fastq.tools.checkpoints.rules import Rules
from fastq.tools.files.safetensors_files import SafetensorsSource
from fastq.tools.layouts.schemes import PRESETS, as_scheme


def raw_of(folder):
    """Dtype, shape and bytes of all tensors, also of dtypes that safetensors has no arrays for."""
    sources = [SafetensorsSource(path) for path in folder.glob("*.safetensors")]
    return {
        name: (spec.dtype, spec.shape, source.raw(name).tobytes())
        for source in sources
        for name, spec in source.tensors.items()
    }


# What is written


def test_int4_is_that_of_the_format(model, quantized):
    stored, x = all_of(quantized[0]), all_of(model)[f"{Q_PROJ}.weight"]
    codes, scale = int4_groups(x)
    found = unpacked_words(stored[f"{Q_PROJ}.weight_packed"], x.shape[1])
    np.testing.assert_array_equal(found, codes)
    assert stored[f"{Q_PROJ}.weight_scale"].tobytes() == scale.tobytes()
    assert stored[f"{Q_PROJ}.weight_shape"].tolist() == list(x.shape)
    assert (found != int4_groups(x, half=7)[0]).any()  # another divisor is seen


def test_experts_are_split(model, quantized):
    stored, source = all_of(quantized[0]), all_of(model)
    both, down = source[f"{LAYER}.mlp.experts.gate_up_proj"], source[f"{LAYER}.mlp.experts.down_proj"]
    for expert in range(EXPERTS):
        parts = {"gate_proj": both[expert, :INNER], "up_proj": both[expert, INNER:], "down_proj": down[expert]}
        for name, x in parts.items():
            packed = stored[f"{LAYER}.mlp.experts.{expert}.{name}.weight_packed"]
            np.testing.assert_array_equal(unpacked_words(packed, x.shape[1]), int4_groups(x)[0])
    assert not any("gate_up_proj" in name for name in stored)


LEFT = {
    "model.embed_tokens.weight": "embedding",
    f"{LAYER}.input_layernorm.weight": "1 dimension",
    f"{Q_PROJ}.bias": "bias",
    f"{LAYER}.mlp.gate.weight": "router",
    "lm_head.weight": "output head",
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left_alone_is_said(model, quantized, name):
    assert all_of(quantized[0])[name].tobytes() == all_of(model)[name].tobytes()
    assert re.search(rf"{re.escape(name)} .* copied: {LEFT[name]} ", quantized[1])


def test_the_directory_is_whole(model, quantized):
    out, output = quantized
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in model.iterdir())
    assert (out / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    index = json.loads((out / INDEX).read_text())
    assert index["weight_map"] == {name: path.name for path in out.glob("*.safetensors") for name in load_file(path)}
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in all_of(out).values())
    assert re.search(r"14 tensors", output)


def test_config(quantized):
    config = config_of(quantized[0])
    entry = config.pop("quantization_config")
    assert config == CONFIG
    found = [entry[key] for key in ("quant_method", "format", "quantization_status")]
    assert found == ["compressed-tensors", "pack-quantized", "compressed"]
    names, patterns = ["lm_head", "model.embed_tokens", f"{LAYER}.mlp.gate"], entry["ignore"][3:]
    assert entry["ignore"][:3] == names
    assert patterns[2:] == [r"re:.*mlp\.gate$", r"re:.*model\.embed_tokens$"]  # where readers put them in other modules
    for pattern, other in zip(patterns, ["cls.predictions.decoder", "model.layers.1.mlp.router"], strict=False):
        assert re.match(pattern.removeprefix("re:"), other)  # heads that no file has; names of other versions
    assert not any(re.match(pattern.removeprefix("re:"), Q_PROJ) for pattern in patterns)
    (group,) = entry["config_groups"].values()
    assert group["targets"] == ["Linear"]
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, "dynamic": False}
    assert group["weights"] == weights
    assert group["input_activations"] is None


def test_names_of_json_for_nan_and_infinities_stay(model, tmp_path):
    """Which Python's json writes, and so config.json of models that have no limit of a step has them."""
    folder = shutil.copytree(model, tmp_path / "own")
    (folder / "config.json").write_text(json.dumps(CONFIG)[:-1] + ', "limits": [-Infinity, 0.0, Infinity, NaN]}')
    run("convert", folder, tmp_path / "q", "--scheme", "W8A16")
    text = re.sub(r"\s+", " ", (tmp_path / "q" / "config.json").read_text())
    assert '"limits": [ -Infinity, 0.0, Infinity, NaN ]' in text


def test_dequantize_gives_the_values_that_readers_compute(model, quantized, tmp_path):
    # contract 27.7
    run("convert", quantized[0], tmp_path / "plain", "--dequantize")
    plain = all_of(tmp_path / "plain")
    for name in ("q_proj", "k_proj", "v_proj"):
        x = all_of(model)[f"{LAYER}.self_attn.{name}.weight"]
        codes, scale = int4_groups(x)
        expected = codes.astype(np.float32) * np.repeat(scale.astype(np.float32), 32, axis=1)
        assert plain[f"{LAYER}.self_attn.{name}.weight"].tobytes() == expected.astype(BF16).tobytes()
    assert config_of(tmp_path / "plain") == CONFIG
    assert plain["lm_head.weight"].tobytes() == all_of(model)["lm_head.weight"].tobytes()


def test_scales_of_activations_are_dropped(model, quantized, tmp_path):
    """Those that llm-compressor stores of inputs, keys and values: a plain model has no use for them."""
    folder = shutil.copytree(quantized[0], tmp_path / "q")
    attention, one = f"{LAYER}.self_attn", np.ones(1, np.float32)
    gone = [f"{Q_PROJ}.{end}" for end in ("input_scale", "input_zero_point", "input_global_scale", "output_scale")]
    gone += [f"{attention}.{end}_scale" for end in "qkv"]
    kept = ["input_scale", f"{LAYER}.mlp.gate.input_scale", f"{Q_PROJ}.my_scale"]
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    shutil.rmtree(folder)
    write_model(folder, [all_of(quantized[0]), dict.fromkeys([*gone, *kept], one)], config)
    output = run("convert", folder, tmp_path / "plain", "--dequantize", "--every")
    write_model(tmp_path / "without", [all_of(quantized[0])], config_of(quantized[0]))
    run("convert", tmp_path / "without", tmp_path / "expected", "--dequantize")
    assert set(all_of(tmp_path / "plain")) == set(all_of(tmp_path / "expected")) | set(kept)
    assert config_of(tmp_path / "plain") == CONFIG
    for name in gone:
        assert re.search(rf"{re.escape(name)} .* dropped: for activations ", output)


def test_dequantize_to_another_dtype(quantized, tmp_path):
    run("convert", quantized[0], tmp_path / "plain", "--dequantize", "--dtype", "float32")
    assert {array.dtype.name for array in all_of(tmp_path / "plain").values()} == {"float32"}
    assert config_of(tmp_path / "plain")["dtype"] == "float32"


def test_open_checkpoint(model, quantized):
    opened = open_checkpoint(quantized[0])
    q, x = opened[Q_PROJ], all_of(model)[f"{Q_PROJ}.weight"]
    assert isinstance(q, fastq.QuantizedArray)
    assert (q.shape, q.dtype.name, q.block_size) == (x.shape, "int4", 32)
    np.testing.assert_array_equal(q.unpacked(), int4_groups(x)[0])
    assert opened["lm_head.weight"].tobytes() == all_of(model)["lm_head.weight"].tobytes()
    assert len(opened) == len(list(opened)) == 14
    assert opened.config["model_type"] == CONFIG["model_type"]
    with pytest.raises(KeyError, match="nothing"):
        opened["nothing"]
    assert set(open_checkpoint(model)) == set(all_of(model))


def test_save_checkpoint_writes_what_was_opened(quantized, tmp_path):
    opened = open_checkpoint(quantized[0])
    config = {key: value for key, value in opened.config.items() if key != "quantization_config"}
    save_checkpoint(tmp_path / "one", opened, config)
    save_checkpoint(tmp_path / "many", opened, config, shard_size=50_000)
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    for folder in ("one", "many"):
        assert raw_of(tmp_path / folder) == raw_of(quantized[0])
        entry = config_of(tmp_path / folder)["quantization_config"]
        assert entry["config_groups"] == opened.config["quantization_config"]["config_groups"]
        more = {f"{LAYER}.input_layernorm", "re:.*input_layernorm$"}
        assert sorted(entry["ignore"]) == sorted({*opened.config["quantization_config"]["ignore"], *more})
    with pytest.raises(ValueError, match="must be an empty directory"):
        save_checkpoint(tmp_path / "one", opened)


@pytest.mark.slow("compiles kernels for each format", quick=lambda name: name == "NVFP4A16")
@pytest.mark.parametrize("name", PRESETS)
def test_save_checkpoint_keeps_every_scheme(model, tmp_path, name):
    run("convert", model, tmp_path / "q", "--scheme", name)
    opened = open_checkpoint(tmp_path / "q")
    entry = opened.config["quantization_config"] | {"kv_cache_scheme": {"a": 1}}
    save_checkpoint(tmp_path / "again", opened, opened.config | {"quantization_config": entry})
    assert raw_of(tmp_path / "again") == raw_of(tmp_path / "q")
    entry = config_of(tmp_path / "again")["quantization_config"]
    assert entry["config_groups"] == opened.config["quantization_config"]["config_groups"]
    assert entry["kv_cache_scheme"] == {"a": 1}


@pytest.mark.slow("compiles kernels for each format")
@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "mxfp4", "mxfp8_e4m3", "nvfp4", "int2", "int4 asymmetric"])
def test_save_checkpoint_of_arrays(tmp_path, dtype):
    x = np.random.default_rng(1).standard_normal((64, 128)).astype(np.float32)
    blocks = {"axis": -1, "block_size": 32} if dtype.startswith(("int2", "int4")) else {"axis": 0}
    options = {} if dtype[:2] in ("mx", "nv") else blocks | {"symmetric": "asymmetric" not in dtype}
    q = fastq.quantize(x, dtype.split()[0], **options)
    save_checkpoint(tmp_path / "model", {"layer": q, "layer.bias": x[0]})
    opened = open_checkpoint(tmp_path / "model")
    np.testing.assert_allclose(opened["layer"].dequantize(), q.dequantize(), rtol=2**-22 if dtype == "nvfp4" else 0)
    assert opened["layer.bias"].tobytes() == x[0].tobytes()


WIDE = np.random.default_rng(3).standard_normal((2, 64))
F32 = WIDE.astype(np.float32)
SPOILED = np.where(WIDE > 2, np.nan, F32).astype(np.float32)
ROWS = {"axis": 0, "symmetric": True}
INT4 = reference.quantize(F32, "int4", axis=1, block_size=32, symmetric=True)
EYE, NOTHING = (reference.quantize(x, "int8", **ROWS) for x in (np.eye(8, dtype=np.float32), F32[:0]))
OF_FLOATS = reference.quantize(F32, "float8_e4m3fn", axis=0, convention="compressed-tensors")
NEGATIVE = OF_FLOATS.qparams.with_values(-OF_FLOATS.scale, OF_FLOATS.zero_point)
ONE_SCALE = fastq.QuantizedArray(np.zeros((2, 4), np.uint8), fastq.QParams(1.0, 0, "uint8"), (2, 4))
FOURS = reference.quantize(F32, "nvfp4")
TINY = dataclasses.replace(FOURS.qparams, tensor_scale=np.float32(1e-42))
PARTS = ("a.weight", "a.weight_zero_point", "a.weight_g_idx", "b.weight_scale")
PART = r"^tensors\['{}'\] would be read as a part of the quantized '{}'"
SCALE = r"^tensors\['a'\] would be stored with a scale of {}; it must be (positive and finite|finite and not 0)$"
NO_FORMAT = "which compressed-tensors has no format for"
NOT_SAVED = {
    "one scale": ({"layer": ONE_SCALE}, NO_FORMAT),
    "no elements": ({"layer": NOTHING}, rf"is int8 of shape \(0, 64\), axis 0, .*, {NO_FORMAT}"),
    "complex": ({"x": np.zeros(3, np.complex128)}, r"is complex128, which a \.safetensors file can't hold"),
    "two of one name": ({"a": EYE, "a.weight": np.eye(2)}, r"^two tensors would be named 'a\.weight'$"),
    "infinite": ({"a": reference.quantize(1e60 * WIDE, "int8", **ROWS)}, SCALE.format("inf")),
    "zero": ({"a": reference.quantize(1e-60 * WIDE, "int8", **ROWS)}, SCALE.format(r"0\.0")),
    "negative": ({"a": fastq.QuantizedArray(OF_FLOATS.codes, NEGATIVE, OF_FLOATS.shape)}, SCALE.format(r"-0\.\d+")),
    "nan of mxfp4": ({"a": reference.quantize(SPOILED, "mxfp4", nan="keep")}, SCALE.format("nan")),
    "nan of nvfp4": ({"a": reference.quantize(SPOILED, "nvfp4", nan="keep")}, SCALE.format("nan")),
    "a tensor scale without a reciprocal": (
        {"a": fastq.QuantizedArray(FOURS.codes, TINY, FOURS.shape)},
        r"^tensors\['a'\] has a tensor_scale of 1.*e-42, whose stored reciprocal",
    ),
    **{name: ({name: WIDE, "a": INT4}, PART.format(name, name[0])) for name in PARTS},
    "no UTF-8": ({"b": WIDE, "a\ud800": WIDE}, r"must have names that UTF-8 can encode, not 'a\\ud800'$"),
    "metadata": ({"b": WIDE, "__metadata__": WIDE}, "a tensor named '__metadata__'"),
}


@pytest.mark.parametrize("shard_size", [1, 10**6])  # in two shards, and in one
@pytest.mark.parametrize("case", NOT_SAVED)
def test_save_checkpoint_refuses(tmp_path, case, shard_size):
    # contract 27.8
    """What has no format, scales that nobody reads, and names that readers take for those of parts."""
    tensors, message = NOT_SAVED[case]
    with pytest.raises(ValueError, match=message):
        save_checkpoint(tmp_path / "model", tensors, {"dtype": "float16"}, shard_size=shard_size)
    assert not (tmp_path / "model").exists()


def test_names_of_parts_without_anything_quantized_are_like_others(tmp_path):
    for name in PARTS:
        save_checkpoint(tmp_path / name, {name: WIDE})
        assert open_checkpoint(tmp_path / name)[name].tobytes() == WIDE.tobytes()


def test_save_checkpoint_rounds_scales_of_float64(tmp_path):
    # contract 27.8
    scale = np.array([1 / 3, 5.0])
    q = fastq.QuantizedArray(np.ones((2, 4), np.int8), fastq.QParams(scale, [0, 0], "int8", 0, symmetric=True), (2, 4))
    save_checkpoint(tmp_path / "model", {"a": q})
    assert all_of(tmp_path / "model")["a.weight_scale"].tobytes() == scale.astype(np.float32).tobytes()


def test_save_checkpoint_takes_any_byte_order(tmp_path):
    save_checkpoint(tmp_path / "model", {"a": WIDE.astype(">f4"), "b": np.arange(3, dtype=">i2")})
    stored = all_of(tmp_path / "model")
    assert stored["a"].tobytes() == WIDE.astype("<f4").tobytes()
    assert stored["b"].tobytes() == np.arange(3, dtype="<i2").tobytes()


def q8_0(scale):
    """Blocks of Q8_0 of which the second has that scale, and the values of the gguf package."""
    blocks = encoded(WIDE.astype(np.float32), "Q8_0")
    blocks[0, 34:36] = np.array([scale], "<f2").view(np.uint8)
    return blocks, decoded(blocks, "Q8_0")


def test_blocks_of_gguf_whose_scale_is_0_are_zeros(tmp_path):
    """As ggml writes values that are too small for a scale in float16: their codes are not 0."""
    blocks, expected = q8_0(0)
    assert blocks[0, 36:].any()
    write_gguf(tmp_path / "m.gguf", {"a.weight": (blocks, "Q8_0"), "b.weight": (blocks[0, 34:], "Q8_0")})
    opened = open_checkpoint(tmp_path / "m.gguf")
    np.testing.assert_array_equal(opened["a"].dequantize(), expected)
    np.testing.assert_array_equal(opened["b"].dequantize(), np.zeros(32))


@pytest.mark.parametrize("scale", [-0.5, np.nan, np.inf])
def test_blocks_of_gguf_with_other_scales_are_refused_by_name(tmp_path, scale):
    write_gguf(tmp_path / "m.gguf", {"a.weight": (q8_0(scale)[0], "Q8_0")})
    with pytest.raises(ValueError, match=rf"^tensor 'a\.weight' has a scale of {scale}, which must be 0 or"):
        open_checkpoint(tmp_path / "m.gguf")["a"]


def test_a_tensor_of_gguf_with_the_name_of_a_module(tmp_path):
    blocks, expected = q8_0(1)
    write_gguf(tmp_path / "m.gguf", {"a.weight": (blocks, "Q8_0"), "a": WIDE.astype(np.float32)})
    opened = open_checkpoint(tmp_path / "m.gguf")
    assert set(opened) == {"a.weight", "a"}
    np.testing.assert_array_equal(opened["a.weight"].dequantize(), expected)
    assert opened["a"].tobytes() == WIDE.astype(np.float32).tobytes()


def test_a_tensor_with_the_name_of_a_module(quantized, tmp_path):
    config = config_of(quantized[0])
    write_model(tmp_path / "both", [all_of(quantized[0]), {Q_PROJ: WIDE}], config)
    with pytest.raises(ValueError, match=rf"^tensor '{Q_PROJ}' and the weight of '{Q_PROJ}\.weight_packed' would both"):
        open_checkpoint(tmp_path / "both")


def test_open_checkpoint_of_gguf(tmp_path):
    x = np.random.default_rng(2).standard_normal((3, 64)).astype(np.float32)
    x[1] = 0
    stored = {"a.weight": (encoded(x, "Q8_0"), "Q8_0"), "b.weight": (encoded(x, "Q4_0"), "Q4_0")}
    opened = open_checkpoint(write_gguf(tmp_path / "m.gguf", stored))
    assert isinstance(opened["a"], fastq.QuantizedArray)
    assert list(opened) == ["a", "b.weight"]  # that of a module where it is quantized, else of the tensor
    for name, (codes, kind) in zip(opened, stored.values(), strict=True):
        assert np.asarray(opened[name]).tobytes() == reference.gguf.dequantize(codes, kind).tobytes()
    assert opened.config == {"general.architecture": "llama", "llama.block_count": 2}


# Choices


def test_ignore_and_scheme_for(model):
    other = (("re:.*k_proj", as_scheme("w8a8")),)
    rules = Rules(as_scheme("W4A16"), (Q_PROJ, "re:.*experts"), other, unequal=True)
    conversion = Quantization(ModelFolder.open(model), rules)
    chosen = {weight.module: weight.scheme.name for weight in conversion.plan.matrices}
    assert chosen == {f"{LAYER}.self_attn.k_proj": "W8A8", f"{LAYER}.self_attn.v_proj": "W4A16"}
    entry = conversion.config()["quantization_config"]
    assert entry["format"] == "mixed-precision"
    assert [group["targets"] for group in entry["config_groups"].values()] == [
        [f"{LAYER}.self_attn.k_proj"],
        [f"{LAYER}.self_attn.v_proj"],  # not the class, for which vLLM looks first where it reads several as one
    ]
    assert {Q_PROJ, "re:.*experts", f"{LAYER}.mlp.experts"} <= set(entry["ignore"])
    schemes = StoredSchemes(conversion.config())
    assert schemes.scheme_of(f"{LAYER}.self_attn.k_proj").weights == as_scheme("W8A8").weights
    assert schemes.scheme_of(f"{LAYER}.self_attn.v_proj").weights == as_scheme("W4A16").weights


def test_experts_that_are_stored_transposed_are_left_alone(own):
    (own / "config.json").write_text(json.dumps(CONFIG | {"model_type": "gpt_oss"}))
    plan = Quantization(ModelFolder.open(own), Rules(as_scheme("W8A8"))).plan
    assert plan.copied[f"{LAYER}.mlp.experts.gate_up_proj"] == "experts as (inputs, outputs)"
    assert f"{LAYER}.mlp.experts" in plan.modules_to_ignore(ModelFolder.open(own).tensors)


def test_every_scheme_is_read_as_it_is_written(model):
    for scheme in PRESETS.values():
        read = StoredSchemes({"quantization_config": {"config_groups": {"g": scheme.config(["Linear"])}}})
        assert (read.scheme_of("any").weights, read.scheme_of("any").format) == (scheme.weights, scheme.format)


@pytest.mark.slow("compiles kernels for each format")
@pytest.mark.parametrize("method", ["minmax", "mse"])
@pytest.mark.parametrize("convention", ["rounded-scale", "compressed-tensors"])
@pytest.mark.parametrize("name", PRESETS)
def test_there_and_back(model, tmp_path, name, convention, method):
    # contract 27.1, 27.2, 27.3 and 27.4
    options = ["--scheme", name, "--convention", convention, "--range", method]
    run("convert", model, tmp_path / "q", *options, "--report", tmp_path / "r.json")
    run("convert", tmp_path / "q", tmp_path / "plain", "--dequantize")
    rows = {row["name"]: row for row in json.loads((tmp_path / "r.json").read_text())["tensors"]}
    source, plain = all_of(model), all_of(tmp_path / "plain")
    least = {2: 3, 4: 16, 6: 26, 8: 29}[PRESETS[name].weights.bits]
    for end in ("q_proj", "k_proj", "v_proj"):
        weight = f"{LAYER}.self_attn.{end}.weight"
        sqnr = sqnr_db(source[weight], plain[weight])
        assert sqnr > least
        assert rows[weight]["sqnr_db"] == pytest.approx(sqnr, abs=1.5)  # values were rounded once more


@pytest.mark.slow("compiles kernels for each", quick=lambda dtype, name: (dtype, name) == ("BF16", "W4A16_ASYM"))
@pytest.mark.parametrize("name", ["W4A16", "W4A16_ASYM", "W8A16", "W8A8"])
@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_the_convention_rounds_every_operation(dtype, name):
    # contract 27.6
    half, weights = {"BF16": BF16, "F16": np.float16}[dtype], PRESETS[name].weights
    x = (np.random.default_rng(8).standard_normal((256, 256)) * 0.02).astype(half)
    groups = x.reshape(256, -1, weights.group_size or 256)  # arithmetic of ml_dtypes and NumPy rounds to x's dtype
    last = half(2**weights.bits - 1)
    first, lo, hi = half(-(2 ** (weights.bits - 1))), groups.min(-1), groups.max(-1)
    scale = np.maximum(-lo, hi) / (last / half(2)) if weights.symmetric else (hi - lo) / last
    zero = np.zeros_like(lo) if weights.symmetric else np.rint(np.clip(first - lo / scale, first, first + last))
    steps = groups / scale[..., None] + zero[..., None].astype(half)  # rint of bfloat16 is float32
    expected = np.clip(np.rint(steps.astype(np.float32)), float(first), float(first + last)).reshape(x.shape)
    for bit_exact in (True, False):
        _, _, q = encode(x, PRESETS[name], ScaleArithmetic(dtype, bit_exact))
        same = (q.unpacked() == expected).all() and (q.scale.reshape(scale.shape) == scale.astype(np.float32)).all()
        assert same == bit_exact  # the default differs, and is seen to
    # a model is read in its dtype
    _, _, wide = encode(x.astype(np.float32), PRESETS[name], ScaleArithmetic(dtype, True))
    assert (wide.unpacked() == expected).all()


@pytest.mark.parametrize("name", ["MXFP4A16", "NVFP4A16"])
def test_infinities_have_no_scale(name):
    x = np.where(np.arange(64 * 128).reshape(64, 128) == 200, np.inf, 1).astype(np.float32)
    with pytest.raises(ValueError, match="x has 1 infinite values: their range has no scale"):
        encode(x, PRESETS[name], ScaleArithmetic("BF16"))


@pytest.mark.parametrize("suffix", ["json", "csv", "html"])
def test_reports(model, tmp_path, suffix):
    path = tmp_path / f"r.{suffix}"
    run("convert", model, tmp_path / "q", "--scheme", "W4A16", "--group-size", "32", "--report", path)
    text = path.read_text()
    if suffix == "html":
        assert text.count("<tr>") == 15
        assert text.count("<details") == 3
        assert "data:image/png;base64," in text or "No picture" in text
    else:
        rows = json.loads(text)["tensors"] if suffix == "json" else list(csv.DictReader(text.splitlines()))
        row = next(row for row in rows if row["name"] == f"{Q_PROJ}.weight")
        shape = [128, 128] if suffix == "json" else "128 x 128"
        assert (row["shape"], int(row["bytes"])) == (shape, 128 * 64 + 128 * 4 * 2 + 16)
        assert 18 < float(row["sqnr_db"]) < 25
