"""Tensors next to others, models in parts, metadata: what llama.cpp and the gguf package take them to mean."""

import json
from pathlib import Path

import gguf_lies
import numpy as np
import pytest
from commands import run, told
from gguf_files import encoded, meant, read, values, write

import fastq
import fastq.io

pytestmark = pytest.mark.usefixtures("here")


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
    tensors |= {f"{module}.{side}": values(size, 2) for side, size in sides.items()}
    tensors["rope_freqs.weight"] = values((8,), 3)
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
    left_out = (weight, scale) if is_scaled else (weight,)
    others = {name: each.data for name, each in read(path)[1].items() if name not in left_out}
    write("plain.gguf", others | {weight: expected})
    lines = {line["name"]: line for line in json.loads(run("compare", "plain.gguf", path, "--json"))["tensors"]}
    assert lines[weight]["sqnr_db"] is None or lines[weight]["sqnr_db"] > 120


NOT_CONVERTED = "a scale of the input of a router", "a vector"  # weights that no mix has in another type


@pytest.mark.parametrize(
    ("options", "kind"),
    [(["--dequantize"], "F32"), (["--dequantize", "BF16"], "BF16"), (["Q8_0", "--allow-requantize"], "Q8_0")],
)
@pytest.mark.parametrize("name", list(SCALED))
def test_conversions_keep_what_is_meant(name, options, kind):
    path, weight, scale = scaled_file(name)
    is_converted = name not in NOT_CONVERTED and SCALED[name][2] != kind
    said = told("gguf", path, "out.gguf", *options, exit_code=0 if is_converted else 4)
    assert ("nothing was converted" in said) == (not is_converted)
    (_, before), (_, after) = read(path), read("out.gguf")
    assert after[weight].tensor_type.name == (kind if is_converted else SCALED[name][2])
    expected, found = (meant(each, weight, is_scaled=SCALED[name][-1]) for each in (path, "out.gguf"))
    noise = np.linalg.norm(np.float64(found) - expected) / np.linalg.norm(np.float64(expected))
    assert noise < (1e-7 if options == ["--dequantize"] else 4e-3 if "BF16" in options else 1e-2)
    in_blocks = before[weight].tensor_type.name not in ("F32", "F16", "BF16")
    folded = in_blocks and SCALED[name][-1] and before[weight].tensor_type != after[weight].tensor_type
    left_out = {scale, scale.removesuffix("scale") + "input_scale"} if folded else set()
    assert set(before) - set(after) == left_out
    assert (scale in said) == folded
    same_bytes(before, after, set(after) - {weight})


def same_bytes(before, after, names):
    for name in names:
        assert after[name].tensor_type == before[name].tensor_type
        assert after[name].data.tobytes() == before[name].data.tobytes()


def test_blocks_that_stay_keep_their_scale():
    path, weight, scale = scaled_file("a matrix", **{"blk.1.attn_q.weight": values((4, 64))})
    assert told("gguf", path, "out.gguf", "Q8_0", "--tensor-type", "blk.0=NVFP4", exit_code=0) == ""
    tensors = read("out.gguf")[1]
    assert tensors[weight].tensor_type.name == "NVFP4"
    np.testing.assert_array_equal(meant("out.gguf", weight), meant(path, weight))
    assert scale in tensors


@pytest.mark.parametrize("shape", [(2,), (4,), (2, 4)])
def test_scales_that_fit_no_matrix(shape):
    write("in.gguf", {"a.weight": (encoded(values((4, 64)), "NVFP4"), "NVFP4"), "a.scale": values(shape)})
    for command in (["gguf", "in.gguf", "out.gguf", "--dequantize"], ["inspect", "in.gguf"]):
        assert told(*command).endswith(f"'a.scale' has {np.prod(shape)} numbers of F32 for 1 matrices\n")


def test_a_file_of_weights_that_keep_any_type():
    odd = {
        "rope_freqs.weight": values((8,)),
        "ids.weight": np.arange(8, dtype=np.int32),
        "bytes": np.arange(-4, 4, dtype=np.int8),
        "double": np.float64(values((4,))),
        "blk.0.attn_q.weight.lora_a": values((4, 32)),
        "blk.0.attn_q.bias": values((4,)),
        "blk.0.iq.norm": (np.arange(66, dtype=np.uint8).reshape(1, 66), "IQ2_XXS"),
    }
    write("in.gguf", odd | {"blk.0.attn_q.weight": values((4, 32))})
    run("gguf", "in.gguf", "out.gguf", "Q8_0")
    same_bytes(read("in.gguf")[1], read("out.gguf")[1], odd)


# Parts

MODEL = {f"blk.{i}.attn_q.weight": values((4, 64), i) for i in range(5)}
PARTS = [f"m-{i:05}-of-00003.gguf" for i in (1, 2, 3)]


def parts(**fields):
    write(Path("m.gguf"), MODEL, fields={"general.name": "a model", **fields}, parts=2)


@pytest.mark.parametrize("options", [["Q8_0"], ["--dequantize"], ["F16", "--json"]])
@pytest.mark.parametrize("given", PARTS)
def test_a_model_in_parts_is_read_as_a_whole(given, options):
    parts()
    write("whole.gguf", MODEL, fields={"general.name": "a model"})
    assert told("gguf", given, "out.gguf", *options, exit_code=0) == ""  # the parts are joined, if no more than that
    run("gguf", "whole.gguf", "expected.gguf", *options, exit_code=4 if options == ["--dequantize"] else 0)
    assert Path("out.gguf").read_bytes() == Path("expected.gguf").read_bytes()
    fields, _ = read("out.gguf")
    assert not [key for key in fields if key.startswith("split.")]


@pytest.mark.parametrize("given", PARTS)
def test_parts_are_read_by_all_that_reads(given):
    parts()
    shown = json.loads(run("inspect", given, "--json"))
    assert [each["name"] for each in shown["tensors"]] == list(MODEL) == list(fastq.load(Path(given)))
    for name, value in fastq.io.open_checkpoint(given).items():
        np.testing.assert_array_equal(value, MODEL[name])
    Path(PARTS[1]).unlink()
    if given == PARTS[1]:
        return
    message = f"parts of the model are missing: {PARTS[1]}"
    assert told("gguf", given, "out.gguf", "Q8_0") == f"Error: {given}: {message}\n"
    left = json.loads(run("inspect", given, "--json", exit_code=4))
    assert [each["name"] for each in left["tensors"]] == [n for n in MODEL if n[4] in "014"]
    assert told("inspect", given, exit_code=4) == f"{message}; the tensors of the others are shown\n"


@pytest.mark.parametrize("out", PARTS)
def test_no_part_is_replaced(out):
    parts()
    before = Path(out).read_bytes()
    assert " IN itself" in told("gguf", PARTS[0], out, "Q8_0", "--force", exit_code=2)
    assert Path(out).read_bytes() == before


def lone(path, count, number=0, tensors=None, name="a.weight"):
    """A part as `count` and `number` say, each the bytes of a field after its key."""
    fields = [gguf_lies.field("split.count", 2, np.uint16(count).tobytes())]
    fields.append(gguf_lies.field("split.no", 2, np.uint16(number).tobytes()))
    fields += [] if tensors is None else [gguf_lies.uint32("split.tensors.count", tensors)]
    Path(path).write_bytes(gguf_lies.gguf(fields, [gguf_lies.tensor(name)]))


FIRST, SECOND = "a-00001-of-00002.gguf", "a-00002-of-00002.gguf"
UNEQUAL = "split.no and split.count are"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.gguf": (2,)}, "it is one of 2 parts of a model, but its name does not end as in -00001-of-00002.gguf"),
        *(
            ({name: (2, *number)}, "its name does not end as in -00001-of-00002.gguf")
            for name, *number in (
                *(("a-00001-of-00003.gguf",), ("a-00003-of-00002.gguf", 2)),
                *(("a-00000-of-00002.gguf",), ("a-1-of-2.gguf",)),
            )
        ),
        ({FIRST: (2,), SECOND: (2, 0, None, "b")}, f"{SECOND}: {UNEQUAL} 0 and 2, not 1 and 2"),
        ({FIRST: (2,), SECOND: (3, 1, None, "b")}, f"{SECOND}: {UNEQUAL} 1 and 3, not 1 and 2"),
        ({FIRST: (2, 1), SECOND: (2, 1, None, "b")}, f"{FIRST}: {UNEQUAL} 1 and 2, not 0 and 2"),
        ({FIRST: (2,), SECOND: (2, 1)}, f"'a.weight' is in {FIRST}, too"),
        ({FIRST: (2, 0, 3), SECOND: (2, 1, 3, "b")}, "its parts have 2 tensors, not 3"),
    ],
)
def test_parts_that_do_not_fit(files, message):
    for path, about in files.items():
        lone(path, *about)
    first = next(iter(files))
    for command in (["inspect", first], ["gguf", first, "out.gguf", "Q8_0"]):
        assert told(*command).endswith(f"{message}\n")
    assert sorted(each.name for each in Path().iterdir()) == sorted(files)


@pytest.mark.parametrize(
    ("field", "exit_code"),
    [
        (gguf_lies.field("split.count", 8, gguf_lies.text("2")), 1),
        (gguf_lies.field("split.count", 10, b"\xff" * 8), 1),
        (gguf_lies.field("split.count", 5, b"\xff" * 4), 1),
        (gguf_lies.field("split.count", 7, b"\1"), 0),  # a bool
        (gguf_lies.array("split.count", 2, 1, b"\2\0"), 1),
    ],
)
def test_counts_that_are_none(field, exit_code):
    Path(FIRST).write_bytes(gguf_lies.gguf([field]))
    said = told("inspect", FIRST, exit_code=exit_code)
    assert ("split.count must be a number from 1 to 65,535, not " in said) == bool(exit_code)


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
        ("Q8_0", 7),
        ("7", 7),
        ("q4_k", 15),
        ("--type Q5_K_S", 16),
        ("F16", 1),
        ("BF16", 32),
        ("f32", 0),
        ("MXFP4_MOE", 38),
        ("38", 38),
        ("--dequantize", 0),
        ("--dequantize F16", 1),
        ("--dequantize --type BF16", 32),
        ("Q4_0 --pure", 2),
        ("Q4_1 --tensor-type attn=Q5_1", 3),
    ],
)
def test_metadata_is_that_of_the_new_file(options, number):
    write("in.gguf", MODEL, fields=MADE_WITH)
    run("gguf", "in.gguf", "out.gguf", *options.split())
    (before, _), (after, tensors) = read("in.gguf"), read("out.gguf")
    changed = {each.tensor_type.name for each in tensors.values()} != {"F32"}
    expected = {key: value for key, value in before.items() if not (changed and key.startswith("quantize.imatrix."))}
    assert after == expected | {"general.file_type": number, "general.quantization_version": 2}


@pytest.mark.parametrize(
    ("fields", "exit_code"),
    [
        ({}, 4),
        ({"general.file_type": 7}, 4),
        ({"general.quantization_version": 2}, 4),
        ({"general.file_type": 7, "general.quantization_version": 2, "quantize.imatrix.file": "old.dat"}, 4),
        ({"general.file_type": 15}, 0),
        ({"general.file_type": 7, "general.quantization_version": 1}, 0),
    ],
)
@pytest.mark.parametrize("options", [["Q8_0"], ["Q8_0", "--allow-requantize"], ["Q4_0", "--tensor-type", ".=Q8_0"]])
def test_a_changed_field_is_a_change(fields, exit_code, options):
    # contract 28.17
    number = {"Q8_0": 7, "Q4_0": 2}[options[0]]
    fields = {key: number if value == 7 else value for key, value in fields.items()}
    write("in.gguf", {name: (encoded(x, "Q8_0"), "Q8_0") for name, x in MODEL.items()}, fields=fields)
    said = told("gguf", "in.gguf", "out.gguf", *options, exit_code=exit_code)
    line = "nothing was converted: no tensor of in.gguf gets another type\n"
    assert said == (line if exit_code else "")
    (before, tensors), (after, copies) = read("in.gguf"), read("out.gguf")
    same_bytes(tensors, copies, MODEL)
    assert any(after[key] != value for key, value in before.items()) == (exit_code == 0)
    assert after == before | {"general.file_type": number, "general.quantization_version": 2}


@pytest.mark.parametrize(("options", "exit_code"), [(["Q8_0"], 0), (["--dequantize"], 4), (["F16"], 0)])
def test_long_names_are_written_and_said(options, exit_code):
    name = "model.diffusion_model.input_blocks.10.1.transformer_blocks.0.attn1.to_out.0.weight"
    write("in.gguf", {name: values((4, 64))})
    lines = told("gguf", "in.gguf", "out.gguf", *options, exit_code=exit_code).splitlines()
    assert list(read("out.gguf")[1]) == [name]
    assert lines[0] == f"llama.cpp does not read names of more than 63 bytes: '{name}'"
    assert [line.split(":")[0] for line in lines[1:]] == ["nothing was converted"] * (exit_code == 4)


def test_big_endian_files_are_refused_with_the_way_out():
    content = bytearray(gguf_lies.gguf())
    content[4:8] = content[7:3:-1]
    Path("in.gguf").write_bytes(content)
    assert told("inspect", "in.gguf").endswith("gguf-convert-endian of the gguf package turns it into little-endian\n")
