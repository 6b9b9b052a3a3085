"""Model directories that are damaged, or say what can't be: each is refused in one line, and nothing half-written."""

import json
import os
import re
import shutil

import numpy as np
import pytest
from commands import invoke, refused, run, told
from model_folders import CONFIG, INDEX, LAYER, Q_PROJ, all_of, config_of, write_model
from safetensors.numpy import load_file, save_file

from fastq.io import open_checkpoint
from fastq.tools.checkpoints.quantization_config import StoredSchemes
from fastq.tools.layouts.schemes import as_scheme

# What is wrong


def edit_index(folder, change):
    index = json.loads((folder / INDEX).read_text())
    change(index["weight_map"])
    (folder / INDEX).write_text(json.dumps(index))


def second_shard(folder):
    return sorted(folder.glob("*.safetensors"))[1]


def change_shard(folder, change, listed=()):
    """Apply a change to the tensors of the second shard, and name some in the index."""
    path = second_shard(folder)
    arrays = {name: array.copy() for name, array in load_file(path).items()}
    change(arrays)
    save_file(arrays, path, {"format": "pt"})
    edit_index(folder, lambda map: map.update(dict.fromkeys(listed, path.name)))


def adding(name, shape, listed=True):
    zeros = {name: np.zeros(shape, np.float32)}
    return lambda folder: change_shard(folder, lambda arrays: arrays.update(zeros), zeros if listed else ())


def spoiling(value):
    return lambda folder: change_shard(folder, lambda arrays: arrays[V_PROJ].__setitem__((3, 4), value))


def writing(name, text):
    return lambda folder: (folder / name).write_text(text)


def listing(file):
    return lambda folder: edit_index(folder, lambda map: map.update(a=file))


def other_folder(name):
    def change(folder):
        (folder / "config.json").unlink()
        (folder / name).write_text("{}")

    return change


def only(name):
    """A folder with one file of weights that fastq does not read there, and without config.json."""

    def change(folder):
        for file in folder.iterdir():
            file.unlink()
        (folder / name).write_bytes(b"")

    return change


def moved_to(name):
    def change(folder):
        (folder / name).mkdir(parents=True)
        for file in [each for each in folder.iterdir() if each.is_file()]:
            file.rename(folder / name / file.name)

    return change


V_PROJ = f"{LAYER}.self_attn.v_proj.weight"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"
DAMAGED = {
    "has no config.json": lambda folder: (folder / "config.json").unlink(),
    "has no config.json: it is an adapter; merge_and_unload of peft merges": other_folder("adapter_config.json"),
    "has no config.json: it is a pipeline of diffusers, which does not read": other_folder("model_index.json"),
    "has no config.json: it is in the layout of its makers; take the files that": other_folder("params.json"),
    f"{os.sep}within has one": moved_to("within"),
    "has no config.json, but m.gguf: fastq gguf reads it": only("m.gguf"),
    "has no config.json, but pytorch_model.bin: load it with transformers, and": only("pytorch_model.bin"),
    "it is a model of diffusers, which does not read compressed-tensors": writing(
        "config.json", '{"_class_name": "UNet2DConditionModel", "_diffusers_version": "0.36"}'
    ),
    "config.json is not readable JSON": writing("config.json", "{"),
    "is not readable JSON: -1e400 is beyond float64": writing("config.json", '{"a": -1e400}'),
    "config.json does not hold a JSON object": writing("config.json", "[]"),
    "is not readable JSON: ": writing("config.json", "[" * 10**6),
    "has no weight_map": writing(INDEX, "{}"),
    "which is missing; fetch it again": lambda folder: second_shard(folder).unlink(),
    "is a pointer of Git LFS; git lfs pull fetches the file": lambda folder: second_shard(folder).write_text(POINTER),
    "is not a readable .safetensors file": lambda folder: second_shard(folder).write_bytes(b"\1" * 99),
    **{f"names '{file}'": listing(file) for file in ("../x.safetensors", "/etc/passwd", "tokenizer.json")},
    "which has no such tensor": listing("model-00001-of-00002.safetensors"),
    "must have one .safetensors file; it has model-00001": lambda folder: (folder / INDEX).unlink(),
    "and another one in model-00002-of-00002.safetensors; keep one": adding(f"{Q_PROJ}.bias", 2, listed=False),
    f"{Q_PROJ} has a weight_scale, but config.json has no quantization_config": adding(f"{Q_PROJ}.weight_scale", 2),
    "two tensors would become the weight of": adding(f"{LAYER}.mlp.experts.0.up_proj.weight", (128, 128)),
    "has 100 columns, not a multiple of the group size 128": adding(V_PROJ, (64, 100)),
    "v_proj can't be quantized: x has NaN": spoiling(np.nan),
    "v_proj can't be quantized: x has 1 infinite values: their range has no scale; --ignore": spoiling(-np.inf),
}


@pytest.mark.parametrize("message", DAMAGED)
def test_damaged_models_are_refused_in_one_line(own, tmp_path, message):
    DAMAGED[message](own)
    options = [] if "columns" in message else ["--group-size", "32"]
    line = refused("convert", own, tmp_path / "out", "--scheme", "W4A16", *options)
    assert re.search(re.escape(message).replace("x\\ has\\ NaN", ".*NaN"), line), line
    assert not (tmp_path / "out" / INDEX).exists()
    assert not list(tmp_path.rglob("*.part"))


def test_two_shards_that_would_have_a_tensor_each(quantized, tmp_path):
    """Next to codes the original weight, in another shard: both would be the weight."""
    folder, name = tmp_path / "both", f"{Q_PROJ}.weight"
    config = config_of(quantized[0])
    write_model(folder, [all_of(quantized[0]), {name: np.zeros((128, 128), np.float32)}], config)
    line = refused("convert", folder, tmp_path / "out", "--dequantize")
    assert "has a weight, which int4 group 32 in pack-quantized does not store" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.slow("compiles kernels of the format")
def test_a_power_of_two_that_is_nan(model, tmp_path):
    run("convert", model, tmp_path / "q", "--scheme", "MXFP4A16")
    arrays = all_of(tmp_path / "q")
    arrays[f"{Q_PROJ}.weight_scale"].put(9, 255)
    folder = write_model(tmp_path / "lies", [arrays], config_of(tmp_path / "q"))
    message = f"{Q_PROJ} in model-00001-of-00001.safetensors: its weight has a scale of nan"
    assert message in refused("convert", folder, tmp_path / "out", "--dequantize")
    with pytest.raises(ValueError, match=message):
        open_checkpoint(folder)[Q_PROJ]


@pytest.mark.parametrize("name", [f"{Q_PROJ}.weight", f"{LAYER}.input_layernorm.weight"])
def test_values_that_a_dtype_does_not_have(own, tmp_path, name):
    # contract 27.7
    """Of a matrix that was quantized, and of a tensor that was not."""
    path = own / "model-00001-of-00002.safetensors"
    arrays = {each: array.copy() for each, array in load_file(path).items()}
    arrays[f"{Q_PROJ}.bias"][:] = -np.inf  # stays what it is
    save_file(arrays, path)
    run("convert", own, tmp_path / "small", "--scheme", "W4A16", "--group-size", "32")
    run("convert", tmp_path / "small", tmp_path / "plain", "--dequantize", "--dtype", "float16")
    assert np.isneginf(all_of(tmp_path / "plain")[f"{Q_PROJ}.bias"]).all()
    arrays[name].reshape(-1)[5] = 1e5
    save_file(arrays, path)
    run("convert", own, tmp_path / "q", "--scheme", "W4A16", "--group-size", "32")
    line = refused("convert", tmp_path / "q", tmp_path / "out", "--dequantize", "--dtype", "float16")
    assert f"tensor '{name}' can't become F16: its values are too large for F16" in line
    assert not (tmp_path / "out" / INDEX).exists()
    assert not list((tmp_path / "out").glob("*.safetensors"))


@pytest.mark.parametrize("scheme", ["W4A16", "W4A16_ASYM"])
def test_scales_that_a_dtype_does_not_have(own, tmp_path, scheme):
    """One line says so, and no warning of NumPy's before it."""
    change_shard(own, lambda arrays: arrays[V_PROJ].__setitem__(0, 1e30))
    (own / "config.json").write_text(json.dumps(CONFIG | {"dtype": "float16"}))
    line = refused("convert", own, tmp_path / "out", "--scheme", scheme, "--group-size", "32")
    assert f"{V_PROJ.removesuffix('.weight')} can't be quantized: x has a range too wide for a finite scale" in line


def test_nothing_to_quantize(own, tmp_path):
    line = refused("convert", own, tmp_path / "out", "--scheme", "W8A8", "--ignore", "re:.*")
    assert "no matrix to quantize" in line
    assert not (tmp_path / "out").exists()


USAGE = [
    ([], "--scheme is missing: one of W2A16, "),
    (["--scheme", "w4a61"], "not 'w4a61': did you mean W4A16?"),
    (["--scheme", "W5A5"], "scheme must be one of W2A16"),
    (["--scheme", "W4A16", "--dequantize"], "--dequantize and --scheme cannot be combined"),
    (["--scheme", "W4A16", "--dtype", "float32"], "--dtype needs --dequantize"),
    (
        ["--dequantize", "--group-size", "32"],
        "--dequantize can be combined with --dtype, --force and the options of the table only",
    ),
    (
        ["--dequantize", "--convention", "compressed-tensors"],
        "--dequantize can be combined with --dtype, --force and the options of the table",
    ),
    (
        ["--dequantize", "--range", "minmax"],
        "--dequantize can be combined with --dtype, --force and the options of the table only",
    ),
    (["--scheme", "W4A16", "--ignore", "re:("], "is not a regular expression"),
    (["--scheme", "W4A16", "--scheme-for", "a"], "is not PATTERN=SCHEME"),
    (["--scheme", "W4A16", "--scheme-for", "a=b"], "scheme must be one of"),
    (["--scheme", "W4A16", "--report", "no/such/r.csv"], "there is no folder 'no/such'"),
    (["--scheme", "W8A8", "--ignore", "a", "--ignore", Q_PROJ], "no module has a name that matches 'a'"),
    (
        ["--scheme", "W8A8", "--scheme-for", "re:lm_=W8A16"],
        "re:lm_ matches lm_head, which is not quantized (output head) as W8A16; --include 're:lm_' quantizes",
    ),
    (["--scheme", "W4A16", "--report", "r.txt"], "does not end in .json, .csv or .html"),
    (["--scheme", "FP8_DYNAMIC", "--group-size", "32"], "--group-size applies to integers in groups"),
    (["--scheme", "W8A8", "--asymmetric"], "--asymmetric applies to integers in groups; weights of W8A8 are int8 with"),
    (["--dequantize"], "nothing in it is quantized"),
]


@pytest.mark.parametrize(("options", "message"), USAGE, ids=[case[1] for case in USAGE])
def test_usage(model, tmp_path, options, message):
    assert message in refused("convert", model, tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_out(model, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    for out, message, *force in [
        (tmp_path / "file", "not a directory"),
        (tmp_path / "full", "is not empty; --force"),
        (model, "SRC itself", "--force"),
    ]:
        assert message in told("convert", model, out, "--scheme", "W8A8", *force, exit_code=2)
    assert os.listdir(tmp_path / "full") == ["mine"]


# what is in the way in OUT, what is said of it, and whether --force removes it
IN_WAY = [
    ("extra", lambda place, other: place.symlink_to(other), "extra is not part of the result; --force", True),
    ("extra", lambda place, other: place.write_text(""), "extra is not part of the result; --force", True),
    ("extra/deep", lambda place, other: place.symlink_to(other), "deep is not part of the result; --force", True),
    ("tokenizer.json", lambda place, other: place.mkdir(), "tokenizer.json is a folder", False),
    ("config.json", lambda place, other: place.mkdir(), "config.json is a folder", False),
    ("extra/deep/a.txt", lambda place, other: place.mkdir(), "a.txt is a folder", False),
]


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links")
@pytest.mark.parametrize(("name", "put", "message", "removed"), IN_WAY)
def test_what_is_in_the_way_of_files_that_are_copied(own, tmp_path, name, put, message, removed):
    """Nothing is written through a link, and all is said before the first shard: the run is repeated to see it."""
    out, other = tmp_path / "out", tmp_path / "other"
    (own / "extra" / "deep").mkdir(parents=True)
    (own / "extra" / "deep" / "a.txt").write_text("new")
    other.mkdir()
    (other / "a.txt").write_text("old")
    run("convert", own, out, "--scheme", "W8A8")
    place = out / name
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    put(place, other)
    before = {path.name: path.stat().st_ino for path in out.glob("*.safetensors")}
    result = invoke("convert", own, out, "--scheme", "W8A8", "--force")
    assert (other / "a.txt").read_text() == "old"
    assert result.exit_code == (0 if removed else 2), result.output
    if removed:
        assert (out / "extra" / "deep" / "a.txt").read_text() == "new"
    else:
        assert message in result.output
        assert {path.name: path.stat().st_ino for path in out.glob("*.safetensors")} == before


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links")
def test_links_in_the_way_of_a_run_that_goes_on(own, tmp_path):
    # contract 28.8
    (own / "extra").mkdir()
    (own / "extra" / "a.txt").write_text("new")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "extra").symlink_to(tmp_path)
    line = refused("convert", own, tmp_path / "out", "--scheme", "W8A8")
    assert "is not empty; --force" in line
    (tmp_path / "out" / "extra").unlink()
    spoiling(np.inf)(own)
    refused("convert", own, tmp_path / "out", "--scheme", "W8A8")
    (tmp_path / "out" / "extra").symlink_to(tmp_path)
    line = refused("convert", own, tmp_path / "out", "--scheme", "W8A8")
    assert "extra is not part of the result; --force removes it" in line
    assert not (tmp_path / "a.txt").exists()


REPORTED = ["--scheme", "W4A16", "--group-size", "32", "--report"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize(
    ("report", "message"),
    [
        ("own/config.json", "'config.json' lies in SRC, where nothing may be written; name another one"),
        ("own/new.csv", "'new.csv' lies in SRC"),
        ("link/tokenizer.json", "'tokenizer.json' lies in SRC"),
        ("out/config.json", "'config.json' is a file of the model in OUT"),
        ("out/Tokenizer.json", "'Tokenizer.json' is a file of the model in OUT"),
        ("out/model.safetensors.index.json", "is a file of the model in OUT"),
        ("out/.fastq-convert.json", "is a file of the model in OUT"),
        ("out.json", "'out.json' is OUT itself"),
        ("folder.html", "'folder.html' is not a file"),
        ("pipe.json", "'pipe.json' is not a file"),
    ],
)
def test_a_report_takes_the_place_of_no_file_of_a_model(own, tmp_path, monkeypatch, report, message):
    # contract 28.9
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(own)
    for name in ("out", "folder.html"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe.json")
    before = {path.name: path.read_bytes() for path in own.iterdir()}
    result = invoke("convert", own, "out.json" if report == "out.json" else "out", *REPORTED, report)
    assert (result.exit_code, "Invalid value for '--report'" in result.output) == (2, True)
    assert message in " ".join(result.output.split())
    assert {path.name: path.read_bytes() for path in own.iterdir()} == before
    assert list((tmp_path / "out").iterdir()) == []


def test_a_report_in_the_folder_of_the_result(own, tmp_path):
    (tmp_path / "out").mkdir()
    run("convert", own, tmp_path / "out", *REPORTED, tmp_path / "out" / "report.json")
    assert json.loads((tmp_path / "out" / "report.json").read_text())["tensors"]


def test_nothing_is_said_of_going_on_where_nothing_was_begun(own, tmp_path, monkeypatch):
    said = told("convert", own, tmp_path / "no" / "out", "--scheme", "W4A16", exit_code=2)
    assert "Invalid value for 'OUT': there is no folder" in said

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fastq.tools.cli.report.write_report", full)
    said = told("convert", own, tmp_path / "out", *REPORTED, tmp_path / "r.json")
    assert said == f"Error: {tmp_path / 'r.json'}: No space left on device\n"


def test_no_option_is_advised_that_the_command_lacks(own):
    spoiling(np.nan)(own)
    said = told("convert", own, own.parent / "out", "--scheme", "W4A16", "--group-size", "32")
    assert ("1 NaN" in said, "nan=" in said) == (True, False), said


# What a quantized directory may say

W8A8 = as_scheme("W8A8").weights.config()
ENTRIES = [
    ({"config_groups": {}}, "no config_groups"),
    ({"config_groups": {"g": 1}}, "no list of targets"),
    ({"config_groups": {"g": {"targets": ["a.b"]}}}, "no config group"),
    ({"config_groups": {"g": {"targets": ["re:("], "weights": W8A8, "format": "int-quantized"}}}, "target 're:('"),
    ({"config_groups": {"g": {"targets": ["head"], "weights": W8A8, "format": "int-quantized"}}}, "no config group"),
]
WEIGHTS = [
    (3, "must be a JSON object"),
    ({"num_bits": 4, "type": "text"}, "'text' weights of 4 bits"),
    ({"num_bits": 5, "type": "float"}, "'float' weights of 5 bits"),
    ({"num_bits": [4], "type": "float"}, "weights of [4] bits"),
    ({"num_bits": 4, "type": ["int"]}, "['int'] weights of 4 bits"),
    ({"num_bits": True, "type": "int"}, "weights of True bits"),
    ({"num_bits": 4, "type": "int", "strategy": "token"}, "strategy 'token'"),
    ({"num_bits": 4, "type": "int", "strategy": "group"}, "group_size 0"),
    ({"num_bits": 4, "type": "int", "strategy": "group", "group_size": "a"}, "group_size 'a'"),
    ({"num_bits": 4, "type": "int", "strategy": "block", "block_structure": [128, 0]}, "block_structure"),
    ({"num_bits": 4, "type": "int", "strategy": "channel", "symmetric": 3}, "symmetric 3"),
    ({"num_bits": 4, "type": "int", "strategy": "channel", "scale_dtype": "x"}, "scales of 'x'"),
]


def groups(weights, format_name="pack-quantized"):
    return {"config_groups": {"g": {"targets": ["Linear"], "weights": weights, "format": format_name}}}


@pytest.mark.parametrize(("entry", "message"), [*ENTRIES, *((groups(entry), text) for entry, text in WEIGHTS)])
def test_configs_are_refused(entry, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        StoredSchemes({"quantization_config": entry}).scheme_of("m")


def test_unknown_formats_are_refused():
    with pytest.raises(ValueError, match="format 'dense'; known are"):
        StoredSchemes({"quantization_config": groups(as_scheme("W4A16").weights.config(), "dense")})


def test_messages_are_short_whatever_a_name_is(quantized, tmp_path):
    folder = shutil.copytree(quantized[0], tmp_path / "long")
    config = config_of(folder)
    name, (group,) = "x" * 10**5, config["quantization_config"]["config_groups"].values()
    long = {"targets": ["Linear"], "weights": group["weights"], "format": name}
    for change in ({"quant_method": name}, {"config_groups": {"g": long}}, {"config_groups": {name: 1}}):
        entry = config["quantization_config"] | change
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": entry}))
        assert len(refused("convert", folder, tmp_path / "out", "--dequantize")) < 1000


def putting(end, *place):
    return lambda arrays: arrays[f"{Q_PROJ}.{end}"].put(*place)


def having(end, array):
    return lambda arrays: arrays.update({f"{Q_PROJ}.{end}": array})


LIES = {
    "has no weight_packed": lambda arrays: arrays.pop(f"{Q_PROJ}.weight_packed"),
    "has no weight_shape": lambda arrays: arrays.pop(f"{Q_PROJ}.weight_shape"),
    "has shape (-1, 128)": putting("weight_shape", 0, -1),
    "should be I32 of shape (128, 125000000)": putting("weight_shape", 1, 10**9),
    "should be I32 of shape (7, 16)": putting("weight_shape", 0, 7),
    "-of-00001.safetensors: its weight has a scale of inf, which must be 0 or more and finite": putting(
        "weight_scale", 0, np.inf
    ),
    **{
        f"should be F32 of shape (128, 4), not {name}": having("weight_scale", np.ones((128, 4), dtype))
        for name, dtype in (("BOOL", bool), ("U32", np.uint32))
    },
    "has a weight_zero_point with numbers other than 0, which int4 group 32 does not": having(
        "weight_zero_point",
        np.zeros((16, 4), np.int32),  # in words, where 0 is the code of -8
    ),
    "has a weight_global_scale, which int4 group 32 in pack-quantized does not": having(
        "weight_global_scale", np.ones(1, np.float32)
    ),
    "groups of columns of shape (12,), not integers": having("weight_g_idx", np.zeros(12, np.int32)),
}


@pytest.mark.parametrize("message", LIES)
def test_lies_about_stored_weights_are_refused(quantized, tmp_path, message):

    arrays = all_of(quantized[0])
    LIES[message](arrays)
    folder = write_model(tmp_path / "lies", [arrays], config_of(quantized[0]))
    assert message in refused("convert", folder, tmp_path / "out", "--dequantize")
