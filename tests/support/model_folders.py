"""Small model directories, and compressed-tensors' formats in plain NumPy."""

import json

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.quant_methods import stored_weights

BF16 = ml_dtypes.bfloat16
LAYER = "model.layers.0"
Q_PROJ = f"{LAYER}.self_attn.q_proj"
INDEX = "model.safetensors.index.json"
HIDDEN, INNER, EXPERTS = 128, 256, 2
CONFIG = {"model_type": "qwen3_moe", "hidden_size": HIDDEN, "dtype": "bfloat16"}


def tensors(seed=0):
    """The tensors of a layer with attention, a router and stacked experts, in two shards."""
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return (rng.standard_normal(shape) * 0.02).astype(BF16)

    first = {
        "model.embed_tokens.weight": normal(32, HIDDEN),
        f"{LAYER}.self_attn.q_proj.weight": normal(HIDDEN, HIDDEN),
        f"{LAYER}.self_attn.q_proj.bias": normal(HIDDEN),
        f"{LAYER}.self_attn.k_proj.weight": 3 * normal(64, HIDDEN),
        f"{LAYER}.input_layernorm.weight": normal(HIDDEN),
    }
    second = {
        f"{LAYER}.self_attn.v_proj.weight": normal(64, HIDDEN),
        f"{LAYER}.mlp.gate.weight": normal(EXPERTS, HIDDEN),
        f"{LAYER}.mlp.experts.gate_up_proj": normal(EXPERTS, 2 * INNER, HIDDEN),
        f"{LAYER}.mlp.experts.down_proj": normal(EXPERTS, HIDDEN, INNER),
        "lm_head.weight": normal(32, HIDDEN),
    }
    return [first, second]


def write_model(folder, shards, config=CONFIG):
    """Write a model directory."""
    folder.mkdir()
    names = [f"model-{k + 1:05}-of-{len(shards):05}.safetensors" for k in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, folder / name, {"format": "pt"})
    files = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": files}))
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def unpacked_words(words, columns):
    """Codes of int4 in words of 32 bits, the first one in the low bits."""
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    codes = stream[:, : columns * 4].reshape(len(words), columns, 4)
    return (codes * (1 << np.arange(4))).sum(-1).astype(np.int64) - 8


def int4_groups(x, *, half=7.5):
    """Codes and scales of int4 in groups of 32, by a scale that is rounded to bfloat16 first."""
    groups = x.astype(np.float32).reshape(len(x), -1, 32)
    scale = (np.abs(groups).max(-1) / np.float32(half)).astype(BF16)
    codes = np.clip(np.rint(groups / scale.astype(np.float32)[..., None]), -8, 7)
    return codes.reshape(x.shape).astype(np.int64), scale


def all_of(folder):
    """All tensors of a folder by name, which may be changed."""
    return {
        name: array.copy() for path in sorted(folder.glob("*.safetensors")) for name, array in load_file(path).items()
    }


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def sqnr_db(x, y):
    """The ratio of a signal to the error of another one, in decibels."""
    x, y = (np.asarray(each).astype(np.float64) for each in (x, y))
    return 10 * np.log10((x**2).sum() / ((x - y) ** 2).sum())


def write_single(folder, arrays, config=CONFIG):
    """Write a model of one file without an index."""
    folder.mkdir()
    save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def values_of(folder):
    """Return the values of each quantized weight of a model directory."""
    return {weight.name: weight.all_values() for weight in stored_weights(ModelFolder.open(folder)).values()}
