"""Which files of a folder are the model: those that transformers reads (tests/conformance asks it)."""

import json

import numpy as np
import pytest
from model_folders import INDEX, invoke, refused
from safetensors.numpy import save_file

from fastq.io.checkpoints.folder import ModelFolder

SINGLE, FIRST, SECOND = "model.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
EMBED, NORM, Q, HEAD = "model.embed_tokens.weight", "model.norm.weight", "model.q_proj.weight", "lm_head.weight"
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
            save_file({tensor: np.full((2, 2), mark, np.float32) for tensor in content}, path / name)
        else:
            (path / name).write_bytes(b"weights")
    return path


# what is in a folder beside config.json: the files that are read; words of the notes; what is copied too
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


@pytest.mark.parametrize("case", READ)
def test_what_is_read(tmp_path, case):
    files, read, note, more = READ[case]
    model = ModelFolder(folder(tmp_path / "model", files))
    assert list(model.shards) == read
    order = list(files)
    for name, file in model.files.items():
        assert model.load(name).tolist() == [[order.index(file)] * 2] * 2
    assert set(model.tensors) == {tensor for file in read for tensor in files[file]}
    assert (note in " ".join(model.notes)) if note else not model.notes
    if more != "any":
        copied = {path.name for path in model.other_files()}
        assert copied == {"tokenizer.json", *more.split()}


@pytest.mark.parametrize(("named", "read"), [("other.safetensors", 1), ("other.safetensors.index.json", 2)])
def test_the_file_that_the_config_names(tmp_path, named, read):
    files = {
        SINGLE: NAMES,
        "other.safetensors": NAMES,
        FIRST: NAMES,
        "other.safetensors.index.json": index({FIRST: NAMES}),
    }
    model = ModelFolder(folder(tmp_path / "model", files, {"transformers_weights": named}))
    assert model.load(Q)[0, 0] == read
    assert model.index == (named if named.endswith("json") else "")


REFUSED = {
    "nothing": ({}, "it has none"),
    "torch's": (
        {"pytorch_model.bin": None},
        "it has pytorch_model.bin: load it with transformers, whose save_pretrained",
    ),
    "shards of torch": (
        {"pytorch_model-00001-of-00001.bin": None, "pytorch_model.bin.index.json": {}},
        "save_pretrained",
    ),
    "Meta's": ({"consolidated.00.pth": None, "params.json": {}}, "it has consolidated.00.pth: load it with torch"),
    "GGUF": ({"model-Q8_0.gguf": None}, "it has model-Q8_0.gguf: fastq gguf reads it"),
    "an adapter": (
        {"adapter_config.json": {}, "adapter_model.safetensors": ("a",)},
        "merge the adapter into its model",
    ),
    "shards without an index": (SHARDS, f"it has {FIRST}, {SECOND}"),
    "four files": (
        {f"{name}.safetensors": ("a",) for name in "abcd"},
        "a.safetensors, b.safetensors, c.safetensors, ...",
    ),
    "a file that is missing": ({FIRST: NAMES, INDEX: index()}, f"names {SECOND}, which is missing; fetch it again"),
    "a matrix that no file has": (
        lies(model__o_proj__weight=FIRST),
        f"'model.o_proj.weight' is in {FIRST}, which has no",
    ),
    "a tensor twice": ({FIRST: NAMES, SECOND: (Q,), INDEX: index()}, "keep it in one"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(tmp_path, case):
    files, message = REFUSED[case]
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        ModelFolder(folder(tmp_path / "model", files))


CONFIGS = {
    "lm_head.weight' is in": {"tie_word_embeddings": False},
    "'lm_head.weight' is": {"text_config": {"tie_word_embeddings": False}},
    "names '../a.safetensors' as transformers_weights": {"transformers_weights": "../a.safetensors"},
    "names 3 as transformers_weights": {"transformers_weights": 3},
    "names 'model.bin' as transformers_weights": {"transformers_weights": "model.bin"},
    "names a.safetensors as transformers_weights, which is missing": {"transformers_weights": "a.safetensors"},
}


@pytest.mark.parametrize("message", CONFIGS)
def test_configs_that_say_otherwise(tmp_path, message):
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        ModelFolder(folder(tmp_path / "model", lies(lm_head__weight=FIRST), CONFIGS[message]))


def test_notes_are_told(tmp_path):
    """On standard error, before what is wrong."""
    model = folder(tmp_path / "model", lies(lm_head__weight=FIRST))
    result = invoke("convert", model, tmp_path / "out", "--scheme", "W8A8")
    assert f"{model}: {INDEX} names 'lm_head.weight', which no file has: it is tied to another one\n" in result.stderr
    assert "nothing in it is quantized" in refused("convert", model, tmp_path / "out2", "--dequantize")
