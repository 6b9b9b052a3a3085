"""Folders of models as people have them: which files are read, and what tells that it is those."""

import json
from typing import NamedTuple

import numpy as np
from model_folders import INDEX
from safetensors.numpy import save_file

SINGLE, FIRST, SECOND = "model.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
EMBED, NORM, Q, HEAD = (
    "model.embed_tokens.weight",
    "model.norm.weight",
    "model.layers.0.self_attn.q_proj.weight",
    "lm_head.weight",
)
NAMES = (EMBED, NORM, Q)
SHARDS = {FIRST: (EMBED, NORM), SECOND: (Q,)}


def index(files=SHARDS, **more):
    """An index of the tensors of files, and of those that `more` names."""
    entries = {tensor: file for file, tensors in files.items() for tensor in tensors}
    return {"metadata": {}, "weight_map": entries | {name.replace("__", "."): file for name, file in more.items()}}


def lies(*missing, **more):
    listed = index(**more)
    for name in missing:
        del listed["weight_map"][name]
    return SHARDS | {INDEX: listed}


def folder(path, files, config=None):
    """Write files: of tensors, by their names, whose values tell which file they are of; of JSON; or some bytes."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    (path / "tokenizer.json").write_text("{}")
    for mark, (name, content) in enumerate(files.items()):
        if isinstance(content, dict):
            (path / name).write_text(json.dumps(content))
        elif name.endswith(".safetensors"):
            save_file(
                {tensor: np.full((2,) if tensor == NORM else (2, 2), mark, np.float32) for tensor in content},
                path / name,
            )
        else:
            (path / name).write_bytes(b"weights")
    return path


class Read(NamedTuple):
    """The contents of a folder in addition to config.json, and the files that are read."""

    files: dict
    read: list
    note: str = ""  # words of the notes
    more: str = ""  # what is copied too


OF_TORCH = {"pytorch_model.bin": None, "pytorch_model.bin.index.json": {}}
READ = {
    "one file": Read({SINGLE: NAMES}, [SINGLE]),
    "with Mistral's": Read(
        {"consolidated.safetensors": NAMES, SINGLE: NAMES, "params.json": {}}, [SINGLE], more="params.json"
    ),
    "with Mistral's shards": Read(
        {"consolidated-00001-of-00001.safetensors": NAMES, "consolidated.safetensors.index.json": {}, SINGLE: NAMES},
        [SINGLE],
    ),
    "with a variant": Read({"model.fp16.safetensors": NAMES, SINGLE: NAMES}, [SINGLE]),
    "with a variant of shards": Read({"model.safetensors.index.fp16.json": {}, SINGLE: NAMES}, [SINGLE], more="any"),
    "with torch's": Read(OF_TORCH | {SINGLE: NAMES}, [SINGLE]),
    "with others": Read({"model.gguf": None, "model.onnx": None, SINGLE: NAMES}, [SINGLE]),
    "with shards": Read(SHARDS | {INDEX: index(), SINGLE: NAMES}, [SINGLE], "model.safetensors is read"),
    "with an old index": Read({INDEX: index(), SINGLE: NAMES}, [SINGLE]),
    "with its own index": Read({INDEX: index({SINGLE: NAMES}), SINGLE: NAMES}, [SINGLE]),
    "with an adapter": Read(
        {SINGLE: NAMES, "adapter_config.json": {}, "adapter_model.safetensors": ("a",)},
        [SINGLE],
        more="adapter_config.json adapter_model.safetensors",
    ),
    "one of another name": Read({"pixtral.safetensors": NAMES}, ["pixtral.safetensors"]),
    "only a variant": Read({"model.fp16.safetensors": NAMES}, ["model.fp16.safetensors"]),
    "shards": Read(SHARDS | {INDEX: index()}, [FIRST, SECOND]),
    "shards with Mistral's": Read(SHARDS | {INDEX: index(), "consolidated.safetensors": NAMES}, [FIRST, SECOND]),
    "an index without metadata": Read(SHARDS | {INDEX: {"weight_map": index()["weight_map"]}}, [FIRST, SECOND]),
    "one shard": Read({FIRST: NAMES, INDEX: index({FIRST: NAMES})}, [FIRST]),
    "a tied head that no file has": Read(lies(lm_head__weight=FIRST), [FIRST, SECOND], "'lm_head.weight', which no"),
    "a tied embedding that no file has": Read(
        lies(decoder__embed_tokens__weight=FIRST), [FIRST, SECOND], "'decoder.embed_tokens.weight'"
    ),
    "a table that no file has": Read(lies(model__rotary__inv_freq=FIRST), [FIRST, SECOND], "inv_freq"),
    "a norm that the index lacks": Read(lies(NORM), [FIRST, SECOND]),
    "a matrix that the index lacks": Read(SHARDS | {INDEX: index({FIRST: (EMBED,), SECOND: (Q,)})}, [FIRST, SECOND]),
    "the wrong shard": Read(lies(model__norm__weight=SECOND), [FIRST, SECOND]),
}
