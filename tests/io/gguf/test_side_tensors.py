"""Tensors beside others, models in parts, metadata: what llama.cpp and the gguf package take them to mean."""

import json
from pathlib import Path

import gguf_lies
import numpy as np
import pytest
from click.testing import CliRunner
from gguf_files import encoded, meant, read, values, write

import fastq
import fastq.io
from fastq.cli.app import cli

pytestmark = pytest.mark.usefixtures("here")


def run(*arguments, exit_code=0):
    result = CliRunner().invoke(cli, [str(each) for each in arguments])
    assert result.exit_code == exit_code, result.output
    return result


# Scales: a weight, its shape and type; shape and type of the scale; whether llama.cpp multiplies
SCALED = {
    "a matrix": ("blk.0.attn_q", (4, 64), "NVFP4", (1,), "F32", True),
    "the output": ("output", (4, 64), "NVFP4", (1,), "F32", True),
    "experts": ("blk.0.ffn_up_exps", (3, 4, 64), "NVFP4", (3,), "F32", True),
    "experts of one scale": ("blk.0.ffn_up_exps", (3, 4, 64), "NVFP4", (1,), "F32", True),
    "a scale of float16": ("blk.0.attn_v", (4, 64), "NVFP4", (1,), "F16", True),
    "a scale of bfloat16": ("blk.0.attn_v", (4, 64), "NVFP4", (1,), "BF16", True),
    "Q8_0": ("blk.0.attn_k", (4, 64), "Q8_0", (1,), "F32", True),
    "experts in Q8_0": ("blk.0.ffn_down_exps", (2, 4, 64), "Q8_0", (2,), "F32", True),
    "Q4_0": ("blk.0.attn_output", (4, 64), "Q4_0", (1,), "F32", True),
    "ternary, as BitNet": ("blk.0.ffn_gate", (2, 256), "TQ2_0", (1,), "F32", True),
    "MXFP4": ("blk.0.ssm_in", (4, 64), "MXFP4", (1,), "F32", True),
    "F16": ("blk.0.attn_q", (4, 64), "F16", (1,), "F32", True),
    "F32": ("blk.0.attn_q", (4, 64), "F32", (1,), "F32", True),
    "a scale of the input of a router": ("blk.0.ffn_gate_inp", (8, 64), "F32", (64,), "F32", False),
    "a vector": ("blk.0.attn_norm", (64,), "F32", (1,), "F32", False),
    "another ending": ("blk.0.attn_q", (4, 64), "Q8_0", None, "F32", False),
}


def scaled_file(name, path="in.gguf", **more):
    module, shape, kind, scale, scale_kind, _ = SCALED[name]
    x = values(shape)
    tensors = {f"{module}.weight": (encoded(x, kind), kind)}
    if scale:
        tensors[f"{module}.scale"] = encoded(values(scale, 1) ** 2 + np.float32(0.25), scale_kind), scale_kind
    sides = {"input_scale": (1,), "weight_scale": (1,), "bias": shape[-2:-1]}
    tensors |= {f"{module}.{side}": (values(size, 2), None) for side, size in sides.items()}
    tensors["rope_freqs.weight"] = values((8,), 3), None
    return write(path, tensors | more), f"{module}.weight", f"{module}.scale"


@pytest.mark.parametrize("name", list(SCALED))
def test_values_are_times_their_scale(name):
    path, weight, scale = scaled_file(name)
    expected, is_scaled = meant(path, weight, is_scaled=SCALED[name][-1]), SCALED[name][-1]
    for opened in (fastq.load(path), fastq.io.open_checkpoint(path)):
        key = weight if weight in opened else weight.removesuffix(".weight")
        found = opened[key]
        found = found.dequantize() if isinstance(found, fastq.QuantizedArray) else found
        np.testing.assert_allclose(np.float32(found), expected, rtol=1e-6)
        assert (scale in opened) == (SCALED[name][3] is not None and not is_scaled)
    others = {name: (each.data, None) for name, each in read(path)[1].items() if name not in (weight, scale)}
    if not is_scaled and scale in read(path)[1]:
        others[scale] = read(path)[1][scale].data, None
    write("plain.gguf", others | {weight: (expected, None)})
    (line,) = (
        each for each in json.loads(run("compare", "plain.gguf", path, "--json").stdout) if each["name"] == weight
    )
    assert line["sqnr_db"] is None or line["sqnr_db"] > 120


@pytest.mark.parametrize("options", [["--dequantize"], ["--dequantize", "BF16"], ["Q8_0", "--allow-requantize"]])
@pytest.mark.parametrize("name", list(SCALED))
def test_conversions_keep_what_is_meant(name, options):
    path, weight, scale = scaled_file(name)
    result = run("gguf", path, "out.gguf", *options)
    (_, before), (_, after) = read(path), read("out.gguf")
    expected, found = (meant(each, weight, is_scaled=SCALED[name][-1]) for each in (path, "out.gguf"))
    noise = np.linalg.norm(np.float64(found) - expected) / np.linalg.norm(np.float64(expected))
    assert noise < (1e-7 if options == ["--dequantize"] else 4e-3 if "BF16" in options else 1e-2)
    in_blocks = before[weight].tensor_type.name not in ("F32", "F16", "BF16")
    folded = in_blocks and SCALED[name][-1] and before[weight].tensor_type != after[weight].tensor_type
    left_out = {scale, scale.removesuffix("scale") + "input_scale"} if folded else set()
    assert set(before) - set(after) == left_out
    assert (scale in result.stderr) == folded
    for side in set(after) - {weight}:  # byte for byte
        assert (after[side].tensor_type, after[side].data.tobytes()) == (
            *(before[side].tensor_type, before[side].data.tobytes()),
        )


def test_blocks_that_stay_keep_their_scale():
    path, weight, scale = scaled_file("a matrix", **{"blk.1.attn_q.weight": (values((4, 64)), None)})
    result = run("gguf", path, "out.gguf", "Q8_0", "--tensor-type", "blk.0=NVFP4")
    tensors = read("out.gguf")[1]
    assert (tensors[weight].tensor_type.name, result.stderr) == ("NVFP4", "")
    np.testing.assert_array_equal(meant("out.gguf", weight), meant(path, weight))
    assert scale in tensors


@pytest.mark.parametrize("shape", [(2,), (4,), (2, 4)])
def test_scales_that_fit_no_matrix(shape):
    tensors = {"a.weight": (encoded(values((4, 64)), "NVFP4"), "NVFP4"), "a.scale": (values(shape), None)}
    write("in.gguf", tensors)
    expected = f"'a.scale' has {np.prod(shape)} numbers of F32 for 1 matrices\n"
    for command in (["gguf", "in.gguf", "out.gguf", "--dequantize"], ["inspect", "in.gguf"]):
        assert run(*command, exit_code=1).output.endswith(expected)


def test_a_file_of_weights_that_keep_any_type():
    odd = {
        "rope_freqs.weight": (values((8,)), None),
        "ids.weight": (np.arange(8, dtype=np.int32), None),
        "bytes": (np.arange(-4, 4, dtype=np.int8), None),
        "double": (np.float64(values((4,))), None),
        "blk.0.attn_q.weight.lora_a": (values((4, 32)), None),
        "blk.0.attn_q.bias": (values((4,)), None),
        "blk.0.iq.norm": (np.arange(66, dtype=np.uint8).reshape(1, 66), "IQ2_XXS"),
    }
    write("in.gguf", odd | {"blk.0.attn_q.weight": (values((4, 32)), None)})
    run("gguf", "in.gguf", "out.gguf", "Q8_0")
    before, after = read("in.gguf")[1], read("out.gguf")[1]
    for name in odd:
        assert (after[name].tensor_type, after[name].data.tobytes()) == (
            *(before[name].tensor_type, before[name].data.tobytes()),
        )


# Parts

MODEL = {f"blk.{i}.attn_q.weight": (values((4, 64), i), None) for i in range(5)}
PARTS = [f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]


def parts(**fields):
    write(Path("m.gguf"), MODEL, fields={"general.name": "a model", **fields}, parts=2)


@pytest.mark.parametrize("options", [["Q8_0"], ["--dequantize"], ["F16", "--json"]])
@pytest.mark.parametrize("given", PARTS)
def test_a_model_in_parts_is_read_as_a_whole(given, options):
    parts()
    write("whole.gguf", MODEL, fields={"general.name": "a model"})
    run("gguf", given, "out.gguf", *options)
    run("gguf", "whole.gguf", "expected.gguf", *options)
    assert Path("out.gguf").read_bytes() == Path("expected.gguf").read_bytes()
    fields, _ = read("out.gguf")
    assert not [key for key in fields if key.startswith("split.")]


@pytest.mark.parametrize("given", PARTS)
def test_parts_are_read_by_all_that_reads(given):
    parts()
    shown = json.loads(run("inspect", given, "--json").stdout)
    assert [each["name"] for each in shown["tensors"]] == list(MODEL) == list(fastq.load(Path(given)))
    for name, value in fastq.io.open_checkpoint(given).items():
        np.testing.assert_array_equal(value, MODEL[name][0])
    Path(PARTS[1]).unlink()
    if given == PARTS[1]:
        return
    message = f"parts of the model are missing: {PARTS[1]}"
    assert run("gguf", given, "out.gguf", "Q8_0", exit_code=1).stderr == f"Error: {given}: {message}\n"
    left = run("inspect", given, "--json", exit_code=4)
    assert [each["name"] for each in json.loads(left.stdout)["tensors"]] == [n for n in MODEL if n[4] in "014"]
    assert left.stderr == f"{message}; shown are the tensors of the others\n"


@pytest.mark.parametrize("out", PARTS)
def test_no_part_is_replaced(out):
    parts()
    before = Path(out).read_bytes()
    assert " IN itself" in run("gguf", PARTS[0], out, "Q8_0", "--force", exit_code=2).stderr
    assert Path(out).read_bytes() == before


def lone(path, count, number=0, tensors=None, name="a.weight"):
    """A part as `count` and `number` say, each the bytes of a field after its key."""
    fields = [gguf_lies.field("split.count", 2, np.uint16(count).tobytes())]
    fields.append(gguf_lies.field("split.no", 2, np.uint16(number).tobytes()))
    fields += [] if tensors is None else [gguf_lies.uint32("split.tensors.count", tensors)]
    Path(path).write_bytes(gguf_lies.gguf(fields, [gguf_lies.tensor(name)]))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.gguf": (2,)}, "it is one of 2 parts of a model, but its name does not end as in -00001-of-00002.gguf"),
        ({"a-00001-of-00003.gguf": (2,)}, "its name does not end as in -00001-of-00002.gguf"),
        ({"a-00003-of-00002.gguf": (2, 2)}, "its name does not end as in -00001-of-00002.gguf"),
        ({"a-00000-of-00002.gguf": (2,)}, "its name does not end as in -00001-of-00002.gguf"),
        ({"a-1-of-2.gguf": (2,)}, "its name does not end as in -00001-of-00002.gguf"),
        (
            {"a-00001-of-00002.gguf": (2,), "a-00002-of-00002.gguf": (2, 0, None, "b")},
            "a-00002-of-00002.gguf: split.no and split.count are 0 and 2, not 1 and 2",
        ),
        (
            {"a-00001-of-00002.gguf": (2,), "a-00002-of-00002.gguf": (3, 1, None, "b")},
            "a-00002-of-00002.gguf: split.no and split.count are 1 and 3, not 1 and 2",
        ),
        (
            {"a-00001-of-00002.gguf": (2, 1), "a-00002-of-00002.gguf": (2, 1, None, "b")},
            "a-00001-of-00002.gguf: split.no and split.count are 1 and 2, not 0 and 2",
        ),
        (
            {"a-00001-of-00002.gguf": (2,), "a-00002-of-00002.gguf": (2, 1)},
            "'a.weight' is in a-00001-of-00002.gguf, too",
        ),
        (
            {"a-00001-of-00002.gguf": (2, 0, 3), "a-00002-of-00002.gguf": (2, 1, 3, "b")},
            "its parts have 2 tensors, not 3",
        ),
    ],
)
def test_parts_that_do_not_fit(files, message):
    for path, about in files.items():
        lone(path, *about)
    first = next(iter(files))
    for command in (["inspect", first], ["gguf", first, "out.gguf", "Q8_0"]):
        assert run(*command, exit_code=1).stderr.endswith(f"{message}\n")
    assert sorted(each.name for each in Path().iterdir()) == sorted(files)


@pytest.mark.parametrize(
    "field",
    [
        gguf_lies.field("split.count", 8, gguf_lies.text("2")),
        gguf_lies.field("split.count", 10, b"\xff" * 8),
        gguf_lies.field("split.count", 5, b"\xff" * 4),
        gguf_lies.field("split.count", 7, b"\1"),
        gguf_lies.array("split.count", 2, 1, b"\2\0"),
    ],
)
def test_counts_that_are_none(field):
    Path("a-00001-of-00002.gguf").write_bytes(gguf_lies.gguf([field]))
    result = run("inspect", "a-00001-of-00002.gguf", exit_code=field != gguf_lies.field("split.count", 7, b"\1"))
    assert result.exit_code == 0 or "split.count must be a number from 1 to 65,535, not " in result.stderr


@pytest.mark.parametrize("count", [0, 1])
def test_a_model_in_one_part_is_whole(count):
    lone("a.gguf", count)
    run("gguf", "a.gguf", "out.gguf", "Q8_0")
    assert not [key for key in read("out.gguf")[0] if key.startswith("split.")]


# Metadata

MADE_WITH = {"quantize.imatrix.file": "old.dat", "quantize.imatrix.entries_count": 7, "general.file_type": 3}


@pytest.mark.parametrize(
    ("options", "number"),
    [
        (["Q8_0"], 7),
        (["7"], 7),
        (["q4_k"], 15),
        (["--type", "Q5_K_S"], 16),
        (["F16"], 1),
        (["BF16"], 32),
        (["f32"], 0),
        (["MXFP4_MOE"], 38),
        (["38"], 38),
        (["--dequantize"], 0),
        (["--dequantize", "F16"], 1),
        (["--dequantize", "--type", "BF16"], 32),
        (["Q4_0", "--pure"], 2),
        (["Q4_1", "--tensor-type", "attn=Q5_1"], 3),
    ],
)
def test_metadata_is_that_of_the_new_file(options, number):
    write("in.gguf", MODEL, fields=MADE_WITH)
    run("gguf", "in.gguf", "out.gguf", *options)
    (before, _), (after, tensors) = read("in.gguf"), read("out.gguf")
    changed = {each.tensor_type.name for each in tensors.values()} != {"F32"}
    expected = {key: value for key, value in before.items() if not (changed and key.startswith("quantize.imatrix."))}
    assert after == expected | {"general.file_type": number, "general.quantization_version": 2}


@pytest.mark.parametrize("options", [["Q8_0"], ["--dequantize"], ["F16"]])
def test_long_names_are_written_and_said(options):
    name = "model.diffusion_model.input_blocks.10.1.transformer_blocks.0.attn1.to_out.0.weight"
    write("in.gguf", {name: (values((4, 64)), None)})
    result = run("gguf", "in.gguf", "out.gguf", *options)
    assert list(read("out.gguf")[1]) == [name]
    assert result.stderr == f"llama.cpp does not read names of more than 63 bytes: '{name}'\n"


def test_big_endian_files_are_refused_with_the_way_out():
    content = bytearray(gguf_lies.gguf())
    content[4:8] = content[7:3:-1]
    Path("in.gguf").write_bytes(content)
    assert run("inspect", "in.gguf", exit_code=1).stderr.endswith(
        "gguf-convert-endian of the gguf package turns it into little-endian\n"
    )
