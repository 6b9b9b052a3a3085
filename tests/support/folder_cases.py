"""Folders of models as people have them: which files are read, and what tells that it is those."""

import json

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


# the contents of a folder in addition to config.json: the files that are read; words of the notes; what is copied too
READ = {
    "one file": ({SINGLE: NAMES}, [SINGLE], "", ""),
    "with Mistral's": (
        {"consolidated.safetensors": NAMES, SINGLE: NAMES, "params.json": {}},
        [SINGLE],
        "",
        "params.json",
    ),
    "with Mistral's shards": (
        {"consolidated-00001-of-00001.safetensors": NAMES, "consolidated.safetensors.index.json": {}, SINGLE: NAMES},
        [SINGLE],
        "",
        "",
    ),
    "with a variant": ({"model.fp16.safetensors": NAMES, SINGLE: NAMES}, [SINGLE], "", ""),
    "with a variant of shards": ({"model.safetensors.index.fp16.json": {}, SINGLE: NAMES}, [SINGLE], "", "any"),
    "with torch's": ({"pytorch_model.bin": None, "pytorch_model.bin.index.json": {}, SINGLE: NAMES}, [SINGLE], "", ""),
    "with others": ({"model.gguf": None, "model.onnx": None, SINGLE: NAMES}, [SINGLE], "", ""),
    "with shards": (SHARDS | {INDEX: index(), SINGLE: NAMES}, [SINGLE], "model.safetensors is read", ""),
    "with an old index": ({INDEX: index(), SINGLE: NAMES}, [SINGLE], "", ""),
    "with its own index": ({INDEX: index({SINGLE: NAMES}), SINGLE: NAMES}, [SINGLE], "", ""),
    "with an adapter": (
        {SINGLE: NAMES, "adapter_config.json": {}, "adapter_model.safetensors": ("a",)},
        [SINGLE],
        "",
        "adapter_config.json adapter_model.safetensors",
    ),
    "one of another name": ({"pixtral.safetensors": NAMES}, ["pixtral.safetensors"], "", ""),
    "only a variant": ({"model.fp16.safetensors": NAMES}, ["model.fp16.safetensors"], "", ""),
    "shards": (SHARDS | {INDEX: index()}, [FIRST, SECOND], "", ""),
    "shards with Mistral's": (SHARDS | {INDEX: index(), "consolidated.safetensors": NAMES}, [FIRST, SECOND], "", ""),
    "an index without metadata": (SHARDS | {INDEX: {"weight_map": index()["weight_map"]}}, [FIRST, SECOND], "", ""),
    "one shard": ({FIRST: NAMES, INDEX: index({FIRST: NAMES})}, [FIRST], "", ""),
    "a tied head that no file has": (lies(lm_head__weight=FIRST), [FIRST, SECOND], "'lm_head.weight', which no", ""),
    "a tied embedding that no file has": (
        SHARDS | {INDEX: index(decoder__embed_tokens__weight=FIRST)},
        [FIRST, SECOND],
        "'decoder.embed_tokens.weight'",
        "",
    ),
    "a table that no file has": (lies(model__rotary__inv_freq=FIRST), [FIRST, SECOND], "inv_freq", ""),
    "a norm that the index lacks": (lies(NORM), [FIRST, SECOND], "", ""),
    "a matrix that the index lacks": (
        SHARDS | {INDEX: index({FIRST: (EMBED,), SECOND: (Q,)})},
        [FIRST, SECOND],
        "",
        "",
    ),
    "the wrong shard": (lies(model__norm__weight=SECOND), [FIRST, SECOND], "", ""),
}
