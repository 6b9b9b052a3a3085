"""Which files of a folder are the model: those that transformers reads (tests/conformance asks it)."""

import json

import pytest
from commands import invoke, refused, run
from folder_cases import FIRST, NAMES, READ, SECOND, SHARDS, SINGLE, Q, folder, index, lies
from model_folders import INDEX, all_of

from fastq.tools.checkpoints.copied_files import other_files
from fastq.tools.checkpoints.folder import ModelFolder


@pytest.mark.parametrize("case", READ)
def test_what_is_read(tmp_path, case):
    files, read, note, more = READ[case]
    model = ModelFolder.open(folder(tmp_path / "model", files))
    assert list(model.shards) == read
    order = list(files)
    for name, file in model.files.items():
        assert (model.load(name) == order.index(file)).all()
    assert set(model.tensors) == {tensor for file in read for tensor in files[file]}
    assert (note in " ".join(model.notes)) if note else not model.notes
    if more != "any":
        copied = {path.name for path in other_files(model.path)}
        assert copied == {"tokenizer.json", *more.split()}


@pytest.mark.parametrize(("named", "read"), [("other.safetensors", 1), ("other.safetensors.index.json", 2)])
def test_the_file_that_the_config_names(tmp_path, named, read):
    files = {
        SINGLE: NAMES,
        "other.safetensors": NAMES,
        FIRST: NAMES,
        "other.safetensors.index.json": index({FIRST: NAMES}),
    }
    model = ModelFolder.open(folder(tmp_path / "model", files, {"transformers_weights": named}))
    assert model.load(Q)[0, 0] == read
    assert model.index == (named if named.endswith("json") else "")


REFUSED = {
    "nothing": ({}, "it has none"),
    "torch's": (
        {"pytorch_model.bin": None},
        "it has pytorch_model.bin: load it with transformers, and write .safetensors",
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
    "a tensor twice": ({FIRST: NAMES, SECOND: (Q,), INDEX: index()}, "and another one in"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(tmp_path, case):
    files, message = REFUSED[case]
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        ModelFolder.open(folder(tmp_path / "model", files))


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
        ModelFolder.open(folder(tmp_path / "model", lies(lm_head__weight=FIRST), CONFIGS[message]))


def test_a_file_of_another_name_gets_an_index(tmp_path):
    """By which readers find what was converted."""
    path = folder(tmp_path / "model", {"pixtral.safetensors": NAMES})
    run("convert", path, tmp_path / "out", "--scheme", "W8A8")
    listed = json.loads((tmp_path / "out" / INDEX).read_text())["weight_map"]
    assert set(listed.values()) == {"pixtral.safetensors"}
    assert listed.keys() == all_of(tmp_path / "out").keys()


def test_a_tensor_that_two_files_have_alike(tmp_path):
    files = {FIRST: NAMES, SECOND: NAMES, INDEX: index({FIRST: NAMES, SECOND: (Q,)})}
    path = folder(tmp_path / "model", files)
    (path / SECOND).write_bytes((path / FIRST).read_bytes())
    model = ModelFolder.open(path)
    assert model.files == dict.fromkeys(NAMES, FIRST)
    run("convert", path, tmp_path / "out", "--scheme", "W8A8")
    assert all_of(tmp_path / "out").keys() == {*NAMES, f"{Q}_scale"}


def test_notes_are_told(tmp_path):
    """On standard error, before what is wrong."""
    model = folder(tmp_path / "model", lies(lm_head__weight=FIRST))
    result = invoke("convert", model, tmp_path / "out", "--scheme", "W8A8")
    assert f"{model}: {INDEX} names 'lm_head.weight', which no file has: it is tied to another one\n" in result.stderr
    assert "nothing in it is quantized" in refused("convert", model, tmp_path / "out2", "--dequantize")
