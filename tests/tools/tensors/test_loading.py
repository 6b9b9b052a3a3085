"""What any command or `save` writes, every reader reads: `fastq.load`, and each command or it says which one does."""

import glob
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import ml_dtypes
import numpy as np
import pytest
from commands import invoke, run, told
from gguf_files import write as write_gguf
from model_folders import config_of, write_single
from quantized_arrays import ARRAYS
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import fastq
from fastq import reference
from fastq.io import open_checkpoint, save_checkpoint
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.layouts.schemes import PRESETS

RNG = np.random.default_rng(8)
W, BIAS = RNG.standard_normal((64, 256)).astype(np.float32), RNG.standard_normal(64).astype(np.float32)
MODEL = {"a.q_proj.weight": W, "a.q_proj.bias": BIAS, "a.norm.weight": BIAS}


def write_model(folder, tensors, dtype):
    write_single(folder, tensors, {"model_type": "llama", "dtype": dtype})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One file of each kind, by the name of its writer."""
    folder = tmp_path_factory.mktemp("written")
    write_model(folder / "model", MODEL, "float32")
    np.save(folder / "plain.npy", W)
    np.savez_compressed(folder / "plain.npz", **MODEL)
    save_file(MODEL, folder / "plain.safetensors")
    ARRAYS["packed"].save(folder / "save.safetensors")
    run("quantize", folder / "plain.safetensors", folder / "quantize.safetensors")
    run("quantize", folder / "plain.npz", folder / "quantize.npz")
    run("dequantize", folder / "quantize.npz", folder / "dequantize.npz")
    run("convert", folder / "model", folder / "convert", "--scheme", "W8A16")
    write_gguf(folder / "plain.gguf", {"blk.0.attn_q.weight": W, "blk.0.attn_norm.weight": BIAS})
    run("convert", folder / "convert", folder / "floats", "--dequantize")
    run("gguf", folder / "plain.gguf", folder / "gguf.gguf", "--type", "Q8_0")
    run("gguf", folder / "gguf.gguf", folder / "floats.gguf", "--dequantize")
    save_checkpoint(folder / "checkpoint", {"a.q_proj": fastq.load(folder / "quantize.npz")["a.q_proj.weight"]})
    return folder


@pytest.fixture
def here(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "files")
    monkeypatch.chdir(tmp_path / "files")
    return tmp_path / "files"


# the weight in each kind of file, and what refuses to read it with the command that does; all else reads it
WEIGHTS = {
    "plain.npy": "plain",
    "plain.npz": "a.q_proj.weight",
    "plain.safetensors": "a.q_proj.weight",
    "plain.gguf": "blk.0.attn_q.weight",
    "quantize.safetensors": "a.q_proj.weight",
    "quantize.npz": "a.q_proj.weight",
    "dequantize.npz": "a.q_proj.weight",
    "save.safetensors": "save",
    "model": "a.q_proj.weight",
    "convert": "a.q_proj.weight",
    "convert/model.safetensors": "a.q_proj.weight",
    "floats": "a.q_proj.weight",
    "checkpoint": "a.q_proj.weight",
    "gguf.gguf": "blk.0.attn_q.weight",
    "floats.gguf": "blk.0.attn_q.weight",
}
QUANTIZED = {"quantize.safetensors", "quantize.npz", "save.safetensors", "convert", "convert/model.safetensors"}
QUANTIZED |= {"checkpoint", "gguf.gguf"}
BLOCKS, MODELS = ("plain.gguf", "gguf.gguf", "floats.gguf"), ("model", "convert", "floats", "checkpoint")
PLAIN = "dequantize.npz", "floats", "floats.gguf"  # floats that were codes
REFUSED = {
    **{("quantize", f): f"fastq gguf {f} OUT.gguf --type Q4_K_M quantizes it" for f in BLOCKS},
    **{("quantize", f): f"fastq convert {f} OUT --scheme W8A16 quantizes a model directory" for f in MODELS},
    **{
        ("quantize", name): "it is quantized already; fastq dequantize restores it"
        for name in ("quantize.safetensors", "quantize.npz", "save.safetensors")
    },
    ("quantize", "convert/model.safetensors"): "fastq convert convert OUT --dequantize restores the model",
    ("dequantize", "plain.npy"): "fastq quantize writes .safetensors and .npz",
    **{
        ("dequantize", name): "holds nothing that fastq quantized"
        for name in ("plain.npz", "plain.safetensors", "dequantize.npz")
    },
    **{("dequantize", f): f"fastq convert {f} OUT --dequantize restores a model directory" for f in MODELS},
    ("dequantize", "convert/model.safetensors"): "fastq convert convert OUT --dequantize restores the model",
    **{("suggest", name): "quantized already" for name in QUANTIZED},
    **{("convert", name): "fastq quantize reads it" for name in WEIGHTS if name.endswith((".npy", ".npz"))},
    **{("convert", name): "fastq gguf reads it" for name in BLOCKS},
    **{
        ("convert", name): "name the folder that has it and config.json"
        for name in WEIGHTS
        if name.endswith(".safetensors")
    },
    **{("gguf", name): "convert_hf_to_gguf.py of llama.cpp makes GGUF" for name in WEIGHTS if name not in BLOCKS},
    **{("gguf", name): "does not end in .gguf" for name in WEIGHTS if name[-4:] in (".npy", ".npz")},
    **{("binarize", name): "does not end in .npy" for name in WEIGHTS if name != "plain.npy"},
    **{("binarize", name): "give one of its arrays as .npy" for name in WEIGHTS if name.endswith(".npz")},
    ("gguf", "gguf.gguf"): "take --dequantize first, or --allow-requantize",
}
COMMANDS = {
    "inspect": lambda path: ("inspect", path),
    "compare": lambda path: ("compare", path, path, "--every"),
    "suggest": lambda path: ("suggest", path, "--sqnr", "1"),  # of GGUF the smallest type, which no search makes
    "suggest by default": lambda path: ("suggest", path),
    "quantize": lambda path: ("quantize", path, "out.safetensors"),
    "dequantize": lambda path: ("dequantize", path, "out.safetensors"),
    "convert": lambda path: ("convert", path, "out", "--scheme", "W8A8"),
    "binarize": lambda path: ("binarize", path, "out.npy"),
    "gguf": lambda path: ("gguf", path, "out.gguf", "Q4_0"),
}


@pytest.mark.slow("compiles searches of all types", quick=lambda command, path: command != "suggest by default")
@pytest.mark.parametrize("path", WEIGHTS)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reads_every_file_or_says_which_does(here, command, path):
    result = invoke(*COMMANDS[command](path))
    refusal = REFUSED.get((command.partition(" ")[0], path))
    assert result.exit_code in ((0,) if refusal is None else (1, 2)), result.output
    if refusal is None:
        assert WEIGHTS[path] in result.stdout or command in ("dequantize", "binarize")
    else:
        assert refusal in " ".join(result.stderr.split())
        assert not glob.glob("out*")


@pytest.mark.parametrize("path", WEIGHTS)
def test_load_opens_every_file(here, path):
    # contract 28.4
    loaded = fastq.load(path)
    if path == "save.safetensors":
        assert loaded.codes.tobytes() == ARRAYS["packed"].codes.tobytes()
        loaded = {"save": loaded}
    weight = loaded[WEIGHTS[path]]
    assert isinstance(weight, fastq.QuantizedArray if path in QUANTIZED else np.ndarray)
    if path in PLAIN:
        assert 40 < reference.compare(W, weight).sqnr_db < 60
    elif path not in QUANTIZED:
        assert weight.tobytes() == W.tobytes()
    elif path != "save.safetensors":
        assert reference.compare(W, weight).sqnr_db > 40
        assert f", 1 quantized, {sum_of(path):,} bytes)" in repr(loaded)


def sum_of(path):
    """Bytes of the tensors of a file, by its headers."""
    if path.endswith(".gguf"):
        return sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)
    if path.endswith(".npz"):
        return sum(array.nbytes for name, array in np.load(path).items() if name != "__metadata__")
    tensors = load_file(path if path.endswith(".safetensors") else f"{path}/model.safetensors")
    return sum(array.nbytes for array in tensors.values())


@pytest.mark.parametrize("before", ["plain.npz", "plain.safetensors", "model"])
@pytest.mark.parametrize("after", ["quantize.safetensors", "quantize.npz", "convert", "convert/model.safetensors"])
def test_a_quantized_matrix_is_one_line_under_its_own_name(here, before, after):
    lines = {line["name"]: line for line in json.loads(run("compare", before, after, "--json"))["tensors"]}
    assert lines.keys() == MODEL.keys()
    line, values = lines["a.q_proj.weight"], fastq.load(after)["a.q_proj.weight"].dequantize()
    assert line["sqnr_db"] == pytest.approx(10 * np.log10((W**2.0).sum() / ((W - values) ** 2.0).sum()), abs=1e-4)
    assert (line["bytes_a"], line["bytes_b"]) == (W.nbytes, sum_of(after) - 2 * BIAS.nbytes)
    assert told("compare", before, after, exit_code=0) == ""
    shown = run("compare", before, after).splitlines()[-1]
    total = sum(array.nbytes for array in MODEL.values())
    assert shown.startswith(
        f"3 tensors, 1 quantized: {total:,} -> {sum_of(after):,} bytes, {total / sum_of(after):.2f} x"
    )
    assert shown.endswith(f"worst {line['sqnr_db']:.2f} dB: a.q_proj.weight")


@pytest.mark.slow("compiles kernels of each scheme", quick=lambda scheme: scheme == "W4A16")
@pytest.mark.parametrize("scheme", PRESETS)
def test_what_convert_wrote_has_the_values_that_dequantize_gives(here, scheme):
    write_model(here / "bf16", {name: array.astype(ml_dtypes.bfloat16) for name, array in MODEL.items()}, "bfloat16")
    run("convert", "bf16", "out", "--scheme", scheme)
    run("convert", "out", "back", "--dequantize", "--dtype", "float32")
    values, q = load_file("back/model.safetensors")["a.q_proj.weight"], fastq.load("out")["a.q_proj.weight"]
    whole = q.dequantize() if q.ndim == 2 else q.dequantize().reshape(-1, q.shape[2] * q.shape[3])
    assert np.asarray(whole)[: len(W), : W.shape[1]].tobytes() == values.tobytes()
    (line,) = (
        each for each in json.loads(run("compare", "bf16", "out", "--json"))["tensors"] if each["a"] != each["b"]
    )
    expected = reference.compare(W.astype(ml_dtypes.bfloat16), values)
    assert (line["max_abs_error"], line["sqnr_db"]) == (expected.max_abs_error, pytest.approx(expected.sqnr_db))


WITHOUT = """
import sys; sys.modules["safetensors"] = None
import fastq
try:
    fastq.load("plain.npz")
except ModuleNotFoundError as error:
    print(error)
print(fastq.load("save.safetensors").shape)
"""


def test_what_files_of_many_tensors_need_is_said(here):
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    told = "files of tensors need safetensors: pip install safetensors"
    assert done.stdout.splitlines() == [told, str(ARRAYS["packed"].shape)], done.stderr


def test_names_are_there_before_anything_is_read(here, monkeypatch):
    opened = [fastq.load(path) for path in ("quantize.safetensors", "convert", "gguf.gguf")]
    checkpoint = open_checkpoint("convert")

    def refuse(*arguments, **options):
        raise AssertionError

    monkeypatch.setattr(np, "memmap", refuse)
    for tensors in (*opened, checkpoint):
        assert all(name in tensors for name in tensors)
        assert "nothing" not in tensors
    for tensors in opened:
        assert sum("q" in name for name in tensors) == len(tensors) - sum("norm" in name for name in tensors)
    with pytest.raises(AssertionError):
        opened[0]["a.q_proj.weight"]


def test_a_damaged_tensor_is_named_when_it_is_read(here):
    # contract 28.4
    with safe_open("quantize.safetensors", "numpy") as file:
        metadata = file.metadata()
    stored = load_file("quantize.safetensors")
    save_file(stored | {"a.q_proj.weight_scale": -stored["a.q_proj.weight_scale"]}, "quantize.safetensors", metadata)
    tensors = fastq.load("quantize.safetensors")
    assert tensors["a.norm.weight"].tobytes() == BIAS.tobytes()
    with pytest.raises(
        ValueError, match=r"tensor 'a\.q_proj\.weight' of quantize\.safetensors can't be read: its scale"
    ):
        tensors["a.q_proj.weight"]
    with pytest.raises(KeyError):
        tensors["nothing"]


@pytest.mark.parametrize("at", [0.3, 0.6, 0.9])
def test_a_damaged_member_of_an_archive_is_named(here, at):
    content = bytearray((here / "plain.npz").read_bytes())
    content[int(W.nbytes * 0.9 * at)] ^= 255
    (here / "plain.npz").write_bytes(content)
    tensors = fastq.load("plain.npz")
    assert tensors["a.norm.weight"].tobytes() == BIAS.tobytes()
    with pytest.raises(ValueError, match=r"tensor 'a\.q_proj\.weight' of plain\.npz can't be read"):
        tensors["a.q_proj.weight"]
    assert told("inspect", "plain.npz").count("\n") == 1


def test_archives_of_any_order_and_dtype(here):
    arrays = {"f": np.asfortranarray(W), "big": W.astype(">f8"), "none": W[:0], "one": np.float16(3), "flag": W > 0}
    arrays |= {dtype: np.arange(3).astype(dtype) for dtype in (">u4", "<u8", "complex64")}
    np.savez("x.npz", **arrays)
    tensors = fastq.load("x.npz")
    for name in arrays:
        assert np.array_equal(tensors[name], arrays[name])
        assert tensors[name].dtype == arrays[name].dtype
    np.savez("o.npz", o=np.array([None]))
    with pytest.raises(ValueError, match=r"path can't be read: 'o\.npz': .*Python objects"):
        fastq.load("o.npz")


def test_arrays_of_an_archive_that_are_copied_keep_their_numbers(here):
    copied = {"flag": W[0] > 0, "ids": np.arange(5, dtype=">i8"), "big": np.arange(3, dtype=">u4")}
    copied |= {"c": (W[0] + 1j * W[1]).astype("complex64")}
    copied = {name: np.asfortranarray(array.reshape(1, -1)) for name, array in copied.items()}
    np.savez("x.npz", w=W, **copied)
    run("quantize", "x.npz", "x.safetensors")
    stored = load_file("x.safetensors")
    for name, array in copied.items():
        assert np.array_equal(stored[name], array)
    for name, array in (("text", np.array(["a"])), ("wide", np.ones(2, complex)), ("day", np.ones(1, "M8[D]"))):
        np.savez("y.npz", w=W, **{name: array})
        line = f"Error: y.npz: array {name!r} is {array.dtype.name}, which fastq does not write\n"
        assert told("quantize", "y.npz", "y.safetensors") == line


def test_an_archive_of_codes_is_that_of_safetensors_in_the_form_of_numpy(here):
    ours, theirs = dict(np.load("quantize.npz")), load_file("quantize.safetensors")
    with safe_open("quantize.safetensors", "numpy") as file:
        assert json.loads(str(ours.pop("__metadata__"))) == file.metadata()
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape)
        assert ours[name].tobytes() == array.tobytes()
    run("quantize", "plain.npz", "again.npz")
    assert Path("again.npz").read_bytes() == Path("quantize.npz").read_bytes()
    line = told("quantize", "plain.npz", "float8.npz", "--dtype", "float8_e4m3fn")
    assert "'a.q_proj.weight' is F8_E4M3, which .npz files do not hold; write .safetensors" in line
    refusal = told("quantize", "plain.npy", "codes.npy", exit_code=2)
    assert "a .npy file holds one array, but codes need scales: numpy.load reads .npz" in refusal


@pytest.mark.parametrize("text", ["[]", '{"a": 1}', '{"a": ', "[" * 100_000, "1"])
def test_metadata_of_an_archive_that_are_none(here, text):
    np.savez("x.npz", w=W, __metadata__=np.array(text))
    assert told("inspect", "x.npz").startswith("Error: x.npz is not a readable .npz file: ")


def test_arrays_that_are_called_metadata_are_arrays(here):
    np.savez("x.npz", w=W, __metadata__=BIAS)
    assert fastq.load("x.npz")["__metadata__"].tobytes() == BIAS.tobytes()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_that_are_none(here):
    for name, members in (("twice", ["a.npy", "a.npy"]), ("text", ["a.txt"])):
        with zipfile.ZipFile(f"{name}.npz", "w") as archive:
            for member in members:
                with archive.open(member, "w") as file:
                    np.save(file, BIAS)
    (here / "junk.npz").write_bytes(b"junk")
    for name, said in (
        ("twice", "'a.npy' is there twice"),
        ("text", "'a.txt' is not an array"),
        ("junk", "not a zip file"),
    ):
        with pytest.raises(ValueError, match=said):
            fastq.load(f"{name}.npz")


def test_a_folder_of_arrays_is_read_too(here):
    os.mkdir("arrays")
    for name in ("int8", "mxfp4"):
        ARRAYS[name].save(f"arrays/{name}.safetensors")
    np.save("arrays/w.npy", W)
    tensors = fastq.load("arrays")
    assert set(tensors) == {"int8", "mxfp4", "w"}
    for name in ("int8", "mxfp4"):
        assert np.array_equal(tensors[name].dequantize(), reference.dequantize(ARRAYS[name]))
    os.mkdir("nothing")
    with pytest.raises(ValueError, match=r"path can't be read: 'nothing': there is no"):
        fastq.load("nothing")


def test_a_model_whose_config_makes_no_sense_is_shown_as_it_is_stored(here):
    config = config_of(here / "convert")
    config["quantization_config"]["quant_method"] = "unheard-of"
    (here / "convert" / "config.json").write_text(json.dumps(config))
    for path in ("convert", "convert/model.safetensors"):
        assert "a.q_proj.weight_packed" in run("inspect", path, exit_code=4)
        assert "shown as they are stored" in told("inspect", path, exit_code=4)
        assert "unheard-of" in told("compare", "model", path)


@pytest.mark.slow("compiles kernels of each scheme", quick=lambda scheme: scheme.startswith("W8"))
@pytest.mark.parametrize("scheme", ["W8A16", "W8A8", "FP8_BLOCK", "NVFP4A16"])
def test_what_was_loaded_is_saved_as_a_model(here, scheme):
    run("convert", "model", "out", "--scheme", scheme)
    save_checkpoint("again", fastq.load("out"), {"dtype": "float32"})
    stored, again = (ModelFolder.open(here / folder) for folder in ("out", "again"))
    assert stored.tensors == again.tensors
    assert all(stored.raw(name).tobytes() == again.raw(name).tobytes() for name in stored.tensors)
    assert np.array_equal(fastq.load("again")["a.q_proj.weight"].codes, fastq.load("out")["a.q_proj.weight"].codes)
    save_checkpoint("third", {"a.q_proj": fastq.load("quantize.safetensors")["a.q_proj.weight"]}, {"dtype": "float32"})
    compared = run("compare", "quantize.safetensors", "third", exit_code=4)
    assert (compared.count("q_proj.weight"), compared.endswith(", equal\n")) == (1, True)


def test_integers_of_gguf_files_are_loaded(here):
    arrays = {name: np.arange(-2, 4).reshape(2, 3).astype(name) for name in ("int8", "int16", "int32", "int64")}
    write_gguf("ids.gguf", arrays)
    for tensors in (fastq.load("ids.gguf"), open_checkpoint("ids.gguf")):
        for name, array in arrays.items():
            assert tensors[name].dtype == array.dtype
            np.testing.assert_array_equal(tensors[name], array)


def test_a_model_in_shards_is_read_by_each_and_by_all(here):
    run("convert", "model", "two", "--scheme", "W8A16")
    stored = load_file("two/model.safetensors")
    first = {name: array for name, array in stored.items() if "scale" in name}
    save_file(first, "two/a.safetensors")
    save_file({name: array for name, array in stored.items() if name not in first}, "two/b.safetensors")
    os.remove("two/model.safetensors")
    files = {name: "a.safetensors" if name in first else "b.safetensors" for name in stored}
    (here / "two" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert set(fastq.load("two")) == set(fastq.load("two/b.safetensors")) == set(MODEL)
    assert set(fastq.load("two/a.safetensors")) == set()
    assert np.array_equal(fastq.load("two")["a.q_proj.weight"].codes, fastq.load("convert")["a.q_proj.weight"].codes)


def test_names_of_the_other_mapping_are_told_the_nearest(folder):
    """Tensors have the names of weights, checkpoints those of modules; both have one repr."""
    tensors, checkpoint = fastq.load(folder / "convert"), open_checkpoint(folder / "convert")
    for model, asked, said in (
        (tensors, "a.q_proj", "convert has no tensor 'a.q_proj'; the nearest are a.q_proj."),
        (checkpoint, "a.q_proj.weight", "convert has no tensor 'a.q_proj.weight'; the nearest are a.q_proj"),
    ):
        with pytest.raises(KeyError) as caught:
            model[asked]
        assert caught.value.args[0].startswith(said)
        assert (model.get(asked), model.get(asked, 7), asked in model) == (None, 7, False)
        assert model.stored(asked) is None
    assert repr(checkpoint) == repr(tensors).replace("Tensors", "Checkpoint")
    assert repr(open_checkpoint(folder / "plain.gguf")).startswith("Checkpoint('plain.gguf': 2 tensors, 0 quantized, ")
