"""fastq suggest: the schemes that it finds, and the command that takes them."""

import json
import os
import pathlib
import re

import numpy as np
import pytest
import source_models
from commands import invoke, run
from format_cases import dtype_of
from gguf_files import read as read_gguf
from gguf_files import write as write_gguf

import fastq
from fastq import reference
from fastq.formats.gguf import BLOCK_FORMATS

W = np.random.default_rng(4).standard_normal((96, 64)).astype(np.float32)
W[5] *= 50


@pytest.fixture(autouse=True)
def _folder(here):
    """A folder with a file, which is the current one."""
    np.save("w.npy", W)


def test_the_whole_reaches_what_its_sample_reaches():
    x = np.random.default_rng(11).standard_normal((1024, 128)).astype(np.float32)
    np.save("x.npy", x)  # int6 by rows has 31.55 dB on the sample, and 31.51 dB
    (entry,) = json.loads(run("suggest", "x.npy", "--sqnr", "31.53", "--json"))["tensors"]
    assert reference.compare(x, reference.quantize(x, **entry["scheme"])).sqnr_db >= 31.53


def test_schemes_are_those_of_the_command_that_takes_them():
    """Of files, of a folder of files, of a model and of GGUF; the command is told, and runs."""
    rng = np.random.default_rng(0)
    matrices = {f"l.{name}.weight": rng.standard_normal((64, 256), np.float32) for name in ("up_proj", "o_proj")}
    others = {"l.odd_proj.weight": (8, 144), "l.other_proj.weight": (8, 100), "lm_head.weight": (64, 256)}
    tensors = matrices | {name: np.ones(shape, np.float32) for name, shape in others.items()}
    in_half = {name: x.astype(dtype_of("bfloat16")) for name, x in tensors.items()}
    source_models.write(pathlib.Path("model"), in_half, config={"dtype": "bfloat16"})
    os.mkdir("folder")
    os.rename("w.npy", "folder/w.npy")
    said = {source: invoke("suggest", source).stderr for source in ("folder", "folder/w.npy")}
    written = "suggest --json > FILE writes them\n"
    assert said["folder"] == f"fastq quantize --like FILE takes them, a file at a time; {written}"
    assert said["folder/w.npy"] == f"fastq quantize --like FILE takes them; {written}"
    result = invoke("suggest", "model", "--sqnr", "18", "--json")
    found = {entry["name"]: [entry["scheme"], entry["bytes"]] for entry in json.loads(result.stdout)["tensors"]}
    of_groups = 64 * 256 // 2 + 64 * 2 * 2 + 16  # codes, scales and the shape
    of_blocks = 8 * 144 // 2 + 8 * 144 // 16 + 4
    assert found == {
        **{name: ["W4A16", of_groups] for name in matrices},
        "l.odd_proj.weight": ["NVFP4A16", of_blocks],
    }
    assert result.stderr.startswith(
        "left out: 1 (rows shorter than a group), 1 (copied by fastq convert: output head)\n"
    )
    assert f"fastq convert model OUT --like FILE takes them; {written}" in result.stderr
    pathlib.Path("like.json").write_text(result.stdout)
    converted = ("convert", "model", "out", "--like", "like.json", "--ignore", "l.other_proj")
    lines = run(*converted, "--every").splitlines()
    for name, form in {
        **dict.fromkeys(matrices, "int4 group 128"),
        "l.odd_proj.weight": "float4 tensor_group 16",
    }.items():
        assert any(name in line and form in line for line in lines), lines
    matrix = matrices["l.up_proj.weight"][:, :96].copy()  # of types with small blocks, which compile in less time
    write_gguf("b.gguf", {"w.weight": matrix, "odd.weight": np.ones((8, 100), np.float32)})
    result = invoke("suggest", "b.gguf", "--sqnr", "20", "--json")
    types = {entry["name"]: entry["scheme"] for entry in json.loads(result.stdout)["tensors"]}
    assert (types["w.weight"] in BLOCK_FORMATS, types["odd.weight"]) == (True, "BF16")
    assert f"fastq gguf b.gguf OUT.gguf --like FILE takes them; {written}" in result.stderr
    pathlib.Path("types.json").write_text(result.stdout)
    run("gguf", "b.gguf", "out.gguf", "--like", "types.json")
    assert {name: each.tensor_type.name for name, each in read_gguf("out.gguf")[1].items()} == types


@pytest.mark.parametrize("stacked", [False, True])
def test_matrices_that_readers_fuse_get_one_scheme(stacked):
    """The one of the fewest bits by which all of them reach it, as convert refuses others; experts too."""
    rng = np.random.default_rng(0)
    easy = rng.standard_normal((4, 128, 256), np.float32)
    hard = rng.standard_normal((4, 128, 256), np.float32)
    hard[..., ::16] *= 30  # of which groups lose most
    if stacked:
        tensors = {"model.layers.0.mlp.experts.gate_up_proj": easy, "model.layers.0.mlp.experts.down_proj": hard}
        tensors["a.other.weight"] = easy[0]
    else:
        tensors = {
            f"a.{name}_proj.weight": x for name, x in zip("qkvo", (easy[0], easy[1], hard[0], easy[2]), strict=True)
        }
    in_half = {name: x.astype(dtype_of("bfloat16")) for name, x in tensors.items()}
    source_models.write(pathlib.Path("model"), in_half, config={"dtype": "bfloat16"})
    text = run("suggest", "model", "--sqnr", "18", "--json")
    found = {entry["name"]: entry["scheme"] for entry in json.loads(text)["tensors"]}
    fused = [name for name in tensors if "experts" in name or name[2:3] in "qkv"]
    (scheme,) = {found.pop(name) for name in fused}
    assert scheme != "W4A16"
    assert set(found.values()) == {"W4A16"}
    pathlib.Path("like.json").write_text(text)
    run("convert", "model", "out", "--like", "like.json")


@pytest.mark.parametrize(
    ("dtype", "sqnr", "scheme"),
    [
        ("float32", "18", "MXFP4A16"),  # W4A16 has a shape more
        ("bfloat16", "18", "W4A16"),
        *((dtype, *row) for dtype in ("float32", "bfloat16") for row in (("19.8", "W4A16_ASYM"), ("20.2", "NVFP4A16"))),
    ],
)
def test_bits_of_a_suggestion_are_those_of_the_file(dtype, sqnr, scheme):
    x = np.random.default_rng(0).standard_normal((64, 256), np.float32).astype(dtype_of(dtype))
    source_models.write(pathlib.Path("model"), {"l.o_proj.weight": x}, config={"dtype": dtype})
    (entry,) = json.loads(run("suggest", "model", "--sqnr", sqnr, "--json"))["tensors"]
    assert entry["scheme"] == scheme
    run("convert", "model", "out", "--scheme", scheme)
    data = pathlib.Path("out/model.safetensors").read_bytes()
    stored = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    stored = {name: each["data_offsets"] for name, each in stored.items() if name != "__metadata__"}
    nbytes = sum(end - start for start, end in stored.values())
    assert (entry["bytes"], entry["bits"]) == (nbytes, 8 * nbytes / x.size)


@pytest.mark.parametrize(
    ("config", "name"), [({"lr": 1}, "w.npz"), ({"model_type": "gpt2"}, "model.safetensors")], ids=["no model", "gpt2"]
)
def test_what_the_command_for_models_refuses_has_the_schemes_of_files(config, name):
    os.mkdir("folder")
    source_models.write_file(pathlib.Path("folder/model.safetensors"), {"h.c_attn.weight": W})
    if name != "model.safetensors":
        os.remove("folder/model.safetensors")
        np.savez("folder/w.npz", w=W)
    pathlib.Path("folder/config.json").write_text(json.dumps(config))
    run("convert", "folder", "out", "--scheme", "W8A16", exit_code=1)
    result = invoke("suggest", "folder", "--json")
    assert (result.exit_code, result.stderr) == (
        0,
        "fastq quantize --like FILE takes them, a file at a time; suggest --json > FILE writes them\n",
    )
    assert "dtype" in json.loads(result.stdout)["tensors"][0]["scheme"]


def test_the_table_has_the_fewest_bytes_that_reach_it():
    output = run("suggest", "w.npy", "--sqnr", "40")
    q = reference.quantize(W, "mxint8")
    ratio = reference.compare(W, q).sqnr_db
    line = rf"w +96 x 64 +24,576 +mxint8 axis=1 blocks of 32 symmetric +8\.250 +6,336 +{ratio:.2f}"
    assert re.search(line, output), output
    assert "1 tensor, 1 tried: 24,576 -> " in output
    assert output.endswith(f" {ratio:.2f} dB, worst {ratio:.2f} dB: w\n")


def test_a_suggested_scheme_is_for_its_tensor_only():
    """A down_proj is a matrix of an MLP, and a stack of experts elsewhere; the others keep their own schemes."""
    shapes = {"a.mlp.down_proj.weight": (64, 128), "a.mlp.up_proj.weight": (64, 128), "a.mlp.o_proj.weight": (64, 128)}
    shapes |= {"a.mlp.experts.down_proj": (2, 64, 128), "a.mlp.experts.gate_up_proj": (2, 64, 128)}
    rng = np.random.default_rng(0)
    source_models.write(pathlib.Path("model"), {name: rng.standard_normal(n, np.float32) for name, n in shapes.items()})
    schemes = dict.fromkeys(shapes, "W4A16") | {name: "W8A16" for name in shapes if "experts" in name}
    schemes["a.mlp.down_proj.weight"] = "NVFP4A16"
    entries = [{"name": name, "scheme": scheme} for name, scheme in schemes.items()]
    pathlib.Path("like.json").write_text(json.dumps({"tensors": entries}))
    run("convert", "model", "out", "--like", "like.json")
    found = {name: each.dtype.name for name, each in fastq.load("out").items()}
    experts = {f"a.mlp.experts.{k}.{part}_proj.weight": "int8" for k in (0, 1) for part in ("down", "gate", "up")}
    rest = {"a.mlp.down_proj.weight": "float4_e2m1fn", "a.mlp.up_proj.weight": "int4", "a.mlp.o_proj.weight": "int4"}
    assert found == experts | rest


@pytest.mark.parametrize("sqnr", [1, 11, 21, 30, 60, 200])
def test_types_of_gguf_are_tried_until_one_is_good_enough(monkeypatch, sqnr):
    """The choice is that among all of them; kernels, which a first run compiles, serve only searches up to there."""
    x = np.random.default_rng(3).standard_normal((8, 256), np.float32)
    write_gguf("a.gguf", {"w.weight": x})
    taken, every = [], {"BF16": (16.0, reference.compare(x, x.astype(dtype_of("bfloat16"))).sqnr_db)}
    # which llama-quantize needs for these
    with_importance = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")
    written = {name: form for name, form in BLOCK_FORMATS.items() if name not in with_importance}
    for name, form in written.items():
        values = reference.gguf.dequantize(reference.gguf.quantize(x, name), name)
        every[name] = 8 * form.nbytes / form.size, reference.compare(x, values).sqnr_db

    def quantize(rows, name):
        taken.append(name)
        return reference.gguf.quantize(rows, name)

    monkeypatch.setattr(fastq.gguf, "quantize", quantize)
    monkeypatch.setattr(fastq.gguf, "dequantize", pytest.fail)
    result = invoke("suggest", "a.gguf", "--sqnr", str(sqnr), "--json")
    (entry,) = json.loads(result.stdout)["tensors"]
    order = [*written, "BF16"]
    reached = [name for name in order if every[name][1] >= sqnr]
    best = min(reached, key=lambda name: (every[name][0], -every[name][1])) if reached else "BF16"
    assert (entry["scheme"], entry["bits"]) == (best, every[best][0])
    assert entry["sqnr_db"] == pytest.approx(every[best][1], abs=1e-9)
    assert set(taken) == {
        name for name in written if BLOCK_FORMATS[name].searches(weighted=False) and every[name][0] <= every[best][0]
    }


def test_a_type_that_can_not_hold_the_values_is_not_suggested():
    write_gguf("a.gguf", {"w.weight": W * np.float32(1e6)})
    (entry,) = json.loads(run("suggest", "a.gguf", "--sqnr", "18", "--json"))["tensors"]
    assert entry["scheme"] == "MXFP4"
    write_gguf("a.gguf", {"w.weight": W + np.float32("inf")})
    result = invoke("suggest", "a.gguf")
    assert (result.exit_code, result.stderr) == (
        1,
        "Error: a.gguf: no scheme holds NaN or infinite values: w.weight\n",
    )


def test_tensors_with_nan_or_infinity_are_named_and_others_get_schemes():
    """Also in models, where readers take some matrices as one, and the command takes what was found."""
    numbers = np.random.default_rng(0).standard_normal((64, 256), np.float32)
    names = "q_proj", "k_proj", "up_proj", "down_proj", "o_proj"
    tensors = {f"l.self_attn.{name}.weight": numbers.copy() for name in names}
    bad = [f"l.self_attn.{name}.weight" for name in ("q_proj", "up_proj", "down_proj")]
    for name, value in zip(bad, (np.nan, np.inf, -np.inf), strict=True):
        tensors[name][5, 9] = value
    source_models.write(
        pathlib.Path("model"),
        {name: x.astype(dtype_of("bfloat16")) for name, x in tensors.items()},
        config={"dtype": "bfloat16"},
    )
    np.savez("a.npz", **{name: x.astype(np.float32) for name, x in tensors.items()})
    write_gguf("a.gguf", {name: x.astype(np.float32) for name, x in tensors.items()})
    good = tensors.keys() - {*bad}
    alone = {"l.self_attn.o_proj.weight"}
    for source, found in (("model", alone), ("a.npz", good), ("a.gguf", good)):
        result = invoke("suggest", source, "--sqnr", "10", "--json")
        assert result.exit_code == 3
        assert {entry["name"] for entry in json.loads(result.stdout)["tensors"]} == found
        named = re.search(r"\nno scheme holds NaN or infinite values: (.*)\n", "\n" + result.stderr)[1]
        assert {*named.split(", ")} == {*bad}
        assert ("1 (read as one with NaN or infinite values)" in result.stderr) == (source == "model")
        pathlib.Path("like.json").write_text(result.stdout)
        if source == "model":
            command = re.search(r"fastq (convert model OUT .*) takes them", result.stderr)[1]
            run(*command.replace("FILE", "like.json").split())
        elif source == "a.npz":
            run("quantize", source, "out.npz", "--like", "like.json")
        else:
            assert result.stderr.endswith("\nfastq gguf takes no file that has them\n")
            run("gguf", source, "out.gguf", "--like", "like.json", exit_code=1)
