"""Model directories: which matrices are quantized by which scheme, what readers find, and what another model leaves."""

import json
import re

import ml_dtypes
import numpy as np
import pytest
from commands import invoke, refused, run, told
from model_folders import (
    BF16,
    EXPERTS,
    HIDDEN,
    INNER,
    LAYER,
    all_of,
    config_of,
    contents,
    sqnr_db,
    tensors,
    write_model,
    write_single,
)
from safetensors.numpy import load_file, save_file
from source_models import respell

import fastq
from fastq.io import open_checkpoint, save_checkpoint
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.quantization import Quantization
from fastq.tools.checkpoints.quantization_config import StoredSchemes
from fastq.tools.checkpoints.rules import Rules, make_plan
from fastq.tools.files.tensor_specs import spec_of
from fastq.tools.layouts.schemes import PRESETS, as_scheme

W8A8 = as_scheme("W8A8")


# What another model leaves


@pytest.mark.parametrize(("first", "second"), [("single", "sharded"), ("sharded", "single")])
def test_force_leaves_no_shard_of_another_model(tmp_path, first, second):
    write_model(tmp_path / "sharded", tensors())
    write_single(tmp_path / "single", {"a.weight": np.ones((32, 128), BF16)})
    options = ["--scheme", "W4A16", "--group-size", "32"]
    run("convert", tmp_path / first, tmp_path / "out", *options)
    run("convert", tmp_path / second, tmp_path / "out", *options, "--force")
    run("convert", tmp_path / second, tmp_path / "fresh", *options)
    found, expected = contents(tmp_path / "out"), contents(tmp_path / "fresh")
    assert {name: found.get(name) for name in expected} == expected
    assert {name for name in found if name.endswith((".safetensors", ".index.json"))} <= set(expected)


# Schemes


# names of formats, and of presets of llm-compressor that are not names here
OTHER_NAMES = {"FP8": "FP8_DYNAMIC", "float8": "FP8_DYNAMIC", "float8_e4m3fn": "FP8_DYNAMIC", "int4": "W4A16"}
OTHER_NAMES |= {
    "int8": "W8A16",
    "INT8": "W8A16",
    "NVFP4": "NVFP4A16",
    "mxfp4": "MXFP4A16",
    "mxfp6": "MXFP6A16",
    "MXFP8": "MXFP8A16",
}


def test_options_that_a_scheme_lacks():
    message = " applies to integers in groups; weights of W8A8 are int8 with one scale for each row"
    for option, given in {"--group-size": (32, None), "--asymmetric": (None, False)}.items():
        with pytest.raises(ValueError, match=f"^{option}{message}$"):
            W8A8.with_options(*given)
    with pytest.raises(ValueError, match=r"scheme must be one of W2A16, .*, not 'W5A5'"):
        as_scheme("W5A5")
    for name, meant in OTHER_NAMES.items():
        with pytest.raises(ValueError, match=rf"not '{name}': did you mean {meant}\?$"):
            as_scheme(name)


# Names of modules and targets


def test_modules_without_a_dot_are_no_classes(tmp_path):
    rng = np.random.default_rng(4)
    source = {f"{name}.weight": rng.uniform(1, 2, (32, 128)).astype(BF16) for name in ("first", "second", "body")}
    write_single(tmp_path / "model", source)
    run("convert", tmp_path / "model", tmp_path / "q", "--scheme", "W4A16_ASYM", "--scheme-for", "first=W4A16")
    assert [name for name in all_of(tmp_path / "q") if "zero" in name and "first" in name] == []
    run("convert", tmp_path / "q", tmp_path / "plain", "--dequantize")
    plain = all_of(tmp_path / "plain")
    for name, x in source.items():
        assert sqnr_db(x, plain[name]) > 20, name


def target_of(module, targets):
    """The target by which compressed-tensors finds the scheme of a Linear layer."""
    ordered = sorted(targets, key=lambda target: ("re:" in target, target))
    matched = (t for t in ordered if (re.match(t[3:], module) if t.startswith("re:") else t == module))
    return next(matched, "Linear")


def test_readers_find_the_scheme_that_was_given_first(tmp_path):
    model = ModelFolder.open(write_model(tmp_path / "model", tensors()))
    patterns = (("re:.*self_attn.k", W8A8), ("re:.*self_attn", as_scheme("FP8_DYNAMIC")), ("re:.*down_", W8A8))
    conversion = Quantization(model, Rules(as_scheme("W8A16"), (), patterns, unequal=True))
    entry = conversion.config()["quantization_config"]
    by_target = {t: group["weights"] for group in entry["config_groups"].values() for t in group["targets"]}
    weights = list(conversion.plan.matrices)
    assert {weight.scheme.name for weight in weights if "k_proj" in weight.module} == {"W8A8"}
    for weight in weights:
        assert by_target[target_of(weight.module, by_target)] == weight.scheme.weights.config(), weight.module
    by_pattern = [pattern for pattern, _ in patterns]
    assert target_of(f"{LAYER}.self_attn.k_proj", by_pattern) == "re:.*self_attn"  # as it would be by patterns


def test_schemes_are_found_in_the_order_of_readers():
    bits = {"re:m": 2, "Linear": 3, "re:.*y": 4, "m.x": 5, "re:m.x": 6}
    weights = {"type": "int", "strategy": "channel"}
    groups = {
        target: {"targets": [target], "weights": {**weights, "num_bits": n}, "format": "pack-quantized"}
        for target, n in bits.items()
    }
    schemes = StoredSchemes({"quantization_config": {"config_groups": groups}})
    for module in ("m.x", "m.y", "m.z", "m", "head"):
        assert schemes.scheme_of(module).weights.bits == bits[target_of(module, bits)]


# Tensors other than matrices of Linear layers


@pytest.mark.parametrize("config", [{"model_type": "gpt2"}, {"model_type": "x", "decoder": {"model_type": "gpt2"}}])
def test_models_of_conv1d_are_refused(config):
    with pytest.raises(ValueError, match=r"type gpt2 have Conv1D layers, whose weights are stored as \(inputs"):
        make_plan(specs_of({"h.0.attn.c_attn.weight": (128, 384)}), config, Rules(W8A8))


def specs_of(shapes):
    return {name: spec_of(name, "BF16", shape) for name, shape in shapes.items()}


GATE_UP, DOWN = (EXPERTS, 2 * INNER, HIDDEN), (EXPERTS, HIDDEN, INNER)
TYPED, SIZED = "experts as (inputs, outputs)", "experts with axis {} not of hidden_size"
STACKS = [
    ({"model_type": "qwen3_vl_moe"}, GATE_UP, DOWN, TYPED),
    ({"model_type": "x", "text_config": {"model_type": "qwen3_vl_moe_text"}}, GATE_UP, DOWN, TYPED),
    ({"hidden_size": HIDDEN}, GATE_UP[:1] + GATE_UP[:0:-1], DOWN[:1] + DOWN[:0:-1], SIZED),
    ({"text_config": {"hidden_size": HIDDEN}}, GATE_UP[:1] + GATE_UP[:0:-1], DOWN[:1] + DOWN[:0:-1], SIZED),
    ({"text_config": {"hidden_size": HIDDEN}}, GATE_UP, DOWN, None),
    ({"hidden_size": [HIDDEN], "model_type": ["llama4"]}, GATE_UP, DOWN, None),
]


@pytest.mark.parametrize(("config", "gate_up", "down", "reason"), STACKS)
def test_stacks_of_experts(config, gate_up, down, reason):
    shapes = {"q_proj.weight": (HIDDEN, HIDDEN), "mlp.experts.gate_up_proj": gate_up, "mlp.experts.down_proj": down}
    specs = specs_of(shapes)
    plan = make_plan(specs, config, Rules(W8A8))
    for name, axis in (("gate_up_proj", 2), ("down_proj", 1)):
        assert plan.copied.get(f"mlp.experts.{name}") == (reason and reason.format(axis))
    assert ("mlp.experts" in plan.modules_to_ignore(specs)) == (reason is not None)


# What other writers store


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_one_scale_of_any_shape(tmp_path, shape):
    codes = np.arange(64, dtype=np.uint8).reshape(4, 16).view(ml_dtypes.float8_e4m3fn)
    weights = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    scheme = {"targets": ["Linear"], "weights": weights, "format": "float-quantized"}
    config = {"dtype": "bfloat16", "quantization_config": {"config_groups": {"g": scheme}}}
    arrays = {"a.weight": codes, "a.weight_scale": np.full(shape, 0.5, np.float32)}
    q = open_checkpoint(write_single(tmp_path / "m", arrays, config))["a"]
    assert (q.codes.tobytes(), float(q.scale)) == (codes.tobytes(), 0.5)


@pytest.mark.parametrize("factor", [0, -1, np.nan, np.inf])
def test_global_scales(tmp_path, factor):
    """By an infinite one all is 0; by others nothing can be divided."""
    arrays = {
        "a.weight_packed": np.full((2, 16), 7, np.uint8),
        "a.weight_scale": np.ones((2, 2), ml_dtypes.float8_e4m3fn),
        "a.weight_global_scale": np.array([factor], np.float32),
    }
    groups = {"config_groups": {"g": PRESETS["NVFP4A16"].config(["Linear"])}}
    config = {"dtype": "bfloat16", "quantization_config": groups}
    opened = open_checkpoint(write_single(tmp_path / "m", arrays, config))
    if factor == np.inf:
        assert not opened["a"].dequantize().any()
        return
    with pytest.raises(ValueError, match=r"^a in .*: its global scale is .*, which must be positive"):
        opened["a"]


def test_tensors_that_are_no_weights_are_opened_and_saved(tmp_path):
    """Each dtype of NumPy that a .safetensors file can have."""
    numbers = np.array([1, 0, 1])
    arrays = {name: numbers.astype(name) for name in ("bool", "uint32", "uint64", "complex64")}
    opened = open_checkpoint(write_single(tmp_path / "m", arrays))
    save_checkpoint(tmp_path / "out", opened)
    for found in (opened, fastq.load(tmp_path / "m"), open_checkpoint(tmp_path / "out")):
        for name, array in arrays.items():
            assert (found[name].dtype, found[name].tobytes()) == (array.dtype, array.tobytes())


def test_tensors_that_numpy_lacks_are_packed_codes(tmp_path):
    folder = write_single(tmp_path / "m", {"mask": np.zeros(2, np.uint8)})
    respell(folder / "model.safetensors", "mask", "F4", 4)
    for opened in (open_checkpoint(folder), fastq.load(folder)):
        assert opened["mask"].dequantize().tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="'mask' is F4, which NumPy lacks"):
        ModelFolder.open(folder).load("mask")


def test_fused_layers_share_a_global_scale(model):
    conversion = Quantization(ModelFolder.open(model), Rules(as_scheme("NVFP4A16")))
    assert sorted(len(weights) for weights in conversion.fused.values()) == [1, 1, 2, 2, 3]
    largest = max(np.abs(all_of(model)[f"{LAYER}.self_attn.{n}_proj.weight"].astype(np.float32)).max() for n in "qkv")
    (fused,) = (name for name, weights in conversion.fused.items() if len(weights) == 3)
    assert conversion._global_scale(fused) == pytest.approx(448 * 6 / largest, rel=1e-6)


def test_tensors_of_experts_are_loaded_once_for_global_scales(own, monkeypatch):
    """Loading may be decoding; of a NaN the matrix is named that has it, and no other with the same scale."""
    path = own / "model-00002-of-00002.safetensors"
    arrays = {name: array.copy() for name, array in load_file(path).items()}
    arrays[f"{LAYER}.mlp.experts.gate_up_proj"][1, -1, 3] = np.nan
    save_file(arrays, path)
    conversion, loaded = Quantization(ModelFolder.open(own), Rules(as_scheme("NVFP4A16"))), []
    load = ModelFolder.load
    monkeypatch.setattr(ModelFolder, "load", lambda self, name: loaded.append(name) or load(self, name))
    for key in conversion.fused:
        conversion._global_scale(key)
    assert len(loaded) == len(set(loaded)) == 5
    line = refused("convert", own, own.parent / "out", "--scheme", "NVFP4A16")
    assert f"{LAYER}.mlp.experts.1.up_proj can't be quantized: " in line


# Kinds that sizes tell, where names don't

WORDS = {"vocab_size": 200, "hidden_size": HIDDEN, "num_hidden_layers": 1, "tie_word_embeddings": False}
KINDS = [  # name, rows, what config.json says besides, why it stays, if it does
    ("vte", 200, {}, "embedding"),
    ("language_model.table", 200, {}, "embedding"),
    ("visual.table", 160, {"vision_config": {"visual_vocab_size": 160}}, "embedding"),
    ("unembed_out", 200, {"text_config": {"vocab_size": 200}}, "embedding"),
    ("to_words", 200, {}, "embedding"),
    ("layers.0.mlp.wide", 200, {}, None),
    ("merger.fc", 200, {"intermediate_size": 200}, None),
    ("merger.fc", 128, {}, None),
    ("merger.fc", 64, {"vocab_size": 64}, None),
    ("merger.fc", 200, {"vocab_size": "200"}, None),
    ("layers.0.mlp.gate.wg", 8, {"num_experts": 8}, "router"),
    ("layers.0.ffn.w_gate", 8, {"moe_num_experts": 0, "num_local_experts": 8}, "router"),
    ("layers.0.switch.linear", 8, {"n_routed_experts": 8}, "router"),
    ("layers.0.mlp.gating", 8, {"num_experts": 8}, "router"),
    ("layers.0.moe.gating_network.0", 8, {"num_experts": 8}, "router"),
    ("layers.0.mlp.selector", 8, {"num_experts": 8}, "router"),
    ("layers.0.feed_forward.chooser", 8, {"num_experts": 8}, "router"),
    ("layers.0.mlp.chooser", 8, {"num_experts": 8, "gate_size": 8}, None),
    ("layers.0.mlp.w3", 8, {"num_experts": 8}, None),
    ("layers.0.mlp.gate.wg", 16, {"num_experts": 8}, None),
    ("layers.0.mlp.gate_proj", 8, {"num_experts": 8}, None),
    ("layers.0.self_attn.k_proj", 8, {"num_experts": 8}, None),
    ("layers.0.self_attn.gate.wg", 8, {"num_experts_per_tok": 8}, None),
]


@pytest.mark.parametrize(("module", "rows", "more", "reason"), KINDS)
def test_kinds_by_sizes(module, rows, more, reason):
    specs = specs_of({"layers.0.q.weight": (HIDDEN, HIDDEN), f"{module}.weight": (rows, HIDDEN)})
    plan = make_plan(specs, WORDS | more, Rules(W8A8))
    assert plan.copied.get(f"{module}.weight") == reason
    if reason == "embedding":
        assert module in plan.modules_to_ignore(specs)
        (made,) = make_plan(specs, WORDS | more, Rules(W8A8, include=(module,))).quantized[f"{module}.weight"]
        assert made.kind == "embedding"


def test_an_embedding_by_its_size_is_read_as_floats(tmp_path):
    """Included, it is named in config.json, and the printed call has floats."""
    x = np.ones((200, HIDDEN), np.float32)
    write_model(tmp_path / "m", [{"layers.0.q.weight": x[:HIDDEN], "vte.weight": x}], WORDS)
    said = told("convert", tmp_path / "m", tmp_path / "q", "--scheme", "W8A8", exit_code=0)
    assert "left as floats: embeddings and output heads, 102,400 bytes; --include vte quantizes them" in said
    said = told("convert", tmp_path / "m", tmp_path / "p", "--scheme", "W8A8", "--include", "vte", exit_code=0)
    assert "CompressedTensorsConfig(dequantize=True)" in said.splitlines()[-1]
    (group,) = config_of(tmp_path / "p")["quantization_config"]["config_groups"].values()
    assert "vte" in group["targets"]


@pytest.mark.parametrize("own_code", [False, True])
def test_matrices_outside_layers_of_code_that_is_not_known_are_told_of(tmp_path, own_code):
    arrays = {name: np.ones((HIDDEN, HIDDEN), np.float32) for name in ("layers.0.q.weight", "merger.weight")}
    write_model(tmp_path / "m", [arrays], {"auto_map": {"AutoModel": "m.M"}} if own_code else {})
    said = told("convert", tmp_path / "m", tmp_path / "q", "--scheme", "W8A8", exit_code=0)
    why = "the model has code of its own" if own_code else "config.json has no model_type"
    assert f"{why}: merger is taken for a Linear layer; --ignore leaves others" in said
    assert ("dequantize=True" in said) == own_code
    (tmp_path / "m" / "config.json").write_text('{"model_type": "llama"}')
    assert "are taken for" not in told("convert", tmp_path / "m", tmp_path / "r", "--scheme", "W8A8", exit_code=0)
    (tmp_path / "m" / "config.json").write_text('{"auto_map": {"AutoModel": "m.M"}}' if own_code else "{}")
    said = told("convert", tmp_path / "m", tmp_path / "p", "--scheme", "W8A8", "--ignore", "merger", exit_code=0)
    assert "are taken for" not in said


CODE = """
import torch.nn as nn
from torch.nn import Embedding as Lookup
Table = nn.Embedding
class Words(Table): ...
class Turn(nn.Module):
    def __init__(self, size):
        self.weight = nn.Parameter(size, size)
class Turned(Turn): ...
class Registered(nn.Module):
    def __init__(self, size):
        self.register_parameter("weight", nn.Parameter(size, size))
class Projection(nn.Linear): ...
def make_table(size):
    table = Lookup(size, size)
    return table
class Layer(nn.Module):
    def __init__(self, config):
        self.mix = nn.Linear(64, 64)
        self.both = nn.Linear(64, 64)
        self.project = Projection(64, 64)
        self.turn, self.turned = Turn(64), Turned(64)
        self.registered = nn.ModuleList([Registered(64)])
        self.either = Turn(64) if config.turns else nn.Linear(64, 64)
        self.made_here = self.make(64)
    def make(self, size):
        return make_table(size)
        self.memory: nn.Embedding = torch.nn.Embedding(num_embeddings=64, embedding_dim=64)
class Model(nn.Module):
    def __init__(self, config):
        self.places = nn.Embedding(config.places, 64, padding_idx=0)
        self.kinds = nn.ModuleList([nn.Embedding(8, 64) for _ in range(2)])
        self.bag = nn.EmbeddingBag(64, 64)
        self.wide = VocabParallelEmbedding(64, 64)
        self.before = nn.Sequential(nn.Linear(64, 64), nn.GELU())
        self.both = nn.Embedding(64, 64)
        self.turning = RotaryEmbedding(64)
        self.count = 3
        words = Words(64, 64)
        self.text = words
        self.aliased = Lookup(64, 64)
        self.made = make_table(64)
        setattr(self, "set", Table(64, 64))
        self.add_module("added", nn.Embedding(64, 64))
        self.by_name = nn.ModuleDict({"item": nn.Embedding(64, 64)})
        self.in_order = nn.Sequential(OrderedDict([("first", nn.Embedding(64, 64))]))
"""
TABLES = "places", "kinds.0", "bag", "wide", "layers.0.memory", "text", "aliased", "made", "set", "added"
TABLES += "by_name.item", "in_order.first", "layers.0.made_here"
NOT_LINEAR = "layers.0.turn", "layers.0.turned", "layers.0.registered.0"


def test_the_code_of_a_model_tells_its_tables(tmp_path):
    linear = ["before.0", "layers.0.mix", "layers.0.project", "layers.0.either", "both"]
    names = (*TABLES, *NOT_LINEAR, *linear, "turning.fc")
    arrays = {f"{name}.weight": np.ones((HIDDEN, HIDDEN), np.float32) for name in names}
    write_model(tmp_path / "m", [arrays], {"auto_map": {"AutoModel": "code.Model"}})
    (tmp_path / "m" / "code.py").write_text(CODE)
    (tmp_path / "m" / "broken.py").write_text("def (")
    said = told("convert", tmp_path / "m", tmp_path / "q", "--scheme", "W8A8", exit_code=0)
    found = all_of(tmp_path / "q")
    assert {name for name, array in found.items() if array.dtype == np.int8} == {
        f"{name}.weight" for name in (*linear, "turning.fc")
    }
    assert all(found[f"{name}.weight"].dtype == np.float32 for name in (*TABLES, *NOT_LINEAR))
    why = "broken.py could not be read as Python (invalid syntax, line 1)"
    assert f"{why}: both, layers.0.either, turning.fc are taken for Linear layers" in said
    stays = "layers, 196,608 bytes (not Linear in the code of the model): "
    assert f"left as floats: {stays}{', '.join(f'{name}.weight' for name in sorted(NOT_LINEAR)[:3])}" in said
    rows = json.loads(run("suggest", tmp_path / "m", "--sqnr", "20", "--json"))["tensors"]
    assert not {row["name"] for row in rows} & {f"{name}.weight" for name in (*TABLES, *NOT_LINEAR)}


NAMES_WEIGHTS = """
class Project(ColumnParallelLinear):
    def load(self, state, other):
        for key in ("weight", "bias"):
            state[key] = {"weight": self.load(key)}
        other.weight = self.share()
        setattr(other, "weight", self.share())

class Layer(nn.Module):
    def __init__(self):
        self.project = Project(64, 64)

model.places = nn.Embedding(64, 64)
"""


def test_code_that_names_weights_creates_none(tmp_path):
    """Such a class may be a Linear one; a module that gets its class outside functions has one all the same."""
    names = "layers.0.project", "places"
    arrays = {f"{name}.weight": np.ones((HIDDEN, HIDDEN), np.float32) for name in names}
    write_model(tmp_path / "m", [arrays], {"auto_map": {"AutoModel": "code.Model"}})
    (tmp_path / "m" / "code.py").write_text(NAMES_WEIGHTS)
    told("convert", tmp_path / "m", tmp_path / "q", "--scheme", "W8A16", exit_code=0)
    found = all_of(tmp_path / "q")
    assert "layers.0.project.weight_packed" in found
    assert found["places.weight"].dtype == np.float32


def test_layers_that_are_not_linear_are_quantized_by_wish(tmp_path):
    """Nothing but floats has what their forward reads."""
    write_model(
        tmp_path / "m",
        [{"layers.0.turn.weight": np.ones((HIDDEN, HIDDEN), np.float32)}],
        {"auto_map": {"AutoModel": "code.Model"}},
    )
    (tmp_path / "m" / "code.py").write_text(CODE)
    line = refused("convert", tmp_path / "m", tmp_path / "q", "--scheme", "W8A8")
    assert "--include '*' quantizes those that are not Linear in the code of the model" in line
    said = told("convert", tmp_path / "m", tmp_path / "q", "--scheme", "W8A8", "--include", "*", exit_code=0)
    assert "CompressedTensorsConfig(dequantize=True)" in said.splitlines()[-1]


LARGE = {  # tensors that stay floats, and the line on them
    "experts of other names": ({"moe.experts.w13": (2, 64, 32)}, "experts, 16,384 bytes (named w13): moe.experts.w13"),
    "experts as inputs": ({"experts.down_proj": (2, 32, 64)}, "experts, 16,384 bytes (experts with axis 1 not of hid"),
    "kernels": (
        {"conv.weight": (32, 32, 3, 3)},
        "other tensors of two or more axes, 36,864 bytes (4 dimensions): conv.wei",
    ),
    "not named weight": (
        {"a.in_proj_weight": (96, 32)},
        "other tensors of two or more axes, 12,288 bytes (named in_proj_",
    ),
    "a small part": ({"conv.weight": (1, 1, 3, 3)}, None),
    "ignored": ({"layers.0.up.weight": (64, 32)}, None),
    "norms and routers": ({"gate.weight": (64, 32), "norm.weight": (64, 32)}, None),
}


@pytest.mark.parametrize("name", LARGE)
def test_what_stays_of_a_large_part_is_told(tmp_path, name):
    shapes, line = LARGE[name]
    arrays = {each: np.ones(shape, np.float32) for each, shape in shapes.items()}
    arrays["layers.0.q.weight"] = np.ones((HIDDEN, HIDDEN), np.float32)[:64, :32]
    write_model(tmp_path / "m", [arrays], {"hidden_size": 64, "num_hidden_layers": 1})
    options = ["--ignore", "layers.0.up"] if name == "ignored" else []
    said = told("convert", tmp_path / "m", tmp_path / "q", "--scheme", "W8A8", *options, exit_code=0)
    lines = [each for each in said.splitlines() if each.startswith("left as floats: ")]
    assert len(lines) == (line is not None)
    if line is not None:
        assert lines[0].startswith(f"left as floats: {line}")


@pytest.mark.parametrize("takes", [True, False])
def test_a_model_without_linear_layers_is_quantized_as_a_file(tmp_path, takes):
    """Of tables of static embeddings, as model2vec writes them."""
    arrays = {"embeddings": np.ones((30, 8), np.float32)} if takes else {"bias": np.ones(8, np.float32)}
    write_single(tmp_path / "m", arrays, {"model_type": "model2vec"})
    line = refused("convert", tmp_path / "m", tmp_path / "q", "--scheme", "W8A8")
    assert ("fastq quantize takes its file" in line) == takes
    made = invoke("quantize", tmp_path / "m" / "model.safetensors", tmp_path / "q.npz")
    assert (made.exit_code == 0) == takes
