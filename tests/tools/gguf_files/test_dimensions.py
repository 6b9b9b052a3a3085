"""Tensors of more than four dimensions, as video models have: listed, loaded and copied as gguf-py reads them."""

import json

import gguf
import numpy as np
import pytest
from commands import invoke, run, told

import fastq
from fastq.tools.gguf_files import gguf_file

SHAPES = {"five": (4, 3, 2, 5, 32), "ones": (1, 2, 1, 2, 1, 4), "first": (1, 16, 3, 3, 3), "four": (2, 3, 2, 32)}


def written(path):
    """Write a file with a tensor of each shape, and one in blocks; return the values."""
    rng = np.random.default_rng(0)
    values = {f"{name}.weight": rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    writer = gguf.GGUFWriter(path, "wan")
    for name, x in values.items():
        writer.add_tensor(name, x)
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("blocks.weight", gguf.quants.quantize(values["five.weight"], kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return values


def read(path):
    """Tensors as gguf-py reads them: dimensions, type and values."""
    tensors = gguf.GGUFReader(path).tensors
    return {
        each.name: (each.shape.tolist(), each.tensor_type.name, gguf.quants.dequantize(each.data, each.tensor_type))
        for each in tensors
    }


def test_tensors_are_listed_and_loaded_as_gguf_py_reads_them(tmp_path):
    values = written(tmp_path / "m.gguf")
    listed = json.loads(run("inspect", tmp_path / "m.gguf", "--json"))["tensors"]
    theirs = read(tmp_path / "m.gguf")
    assert {each["name"]: each["shape"][::-1] for each in listed} == {name: dims for name, (dims, *_) in theirs.items()}
    loaded = fastq.load(tmp_path / "m.gguf")
    for name, x in values.items():
        np.testing.assert_array_equal(loaded[name], x)


@pytest.mark.parametrize("options", [("Q8_0",), ("--dequantize",)])
def test_what_becomes_of_them_is_told(tmp_path, options):
    written(tmp_path / "m.gguf")
    before = read(tmp_path / "m.gguf")
    said = told("gguf", tmp_path / "m.gguf", tmp_path / "o.gguf", *options, exit_code=0)
    copied = "" if options == ("--dequantize",) else ", and they are copied"
    deep = "'blocks.weight', 'first.weight', 'five.weight'"
    assert f"llama.cpp does not read tensors of more than 4 dimensions{copied}: {deep}" in said
    after = read(tmp_path / "o.gguf")
    for name, (dimensions, kind, values) in before.items():
        assert after[name][0] == dimensions
        if name != "four.weight":
            assert after[name][1] == (kind if copied else "F32")
            np.testing.assert_array_equal(after[name][2], values)
    assert after["four.weight"][1] == ("Q8_0" if copied else "F32")


def test_no_type_is_suggested_for_what_is_copied(tmp_path):
    written(tmp_path / "m.gguf")
    result = invoke("suggest", tmp_path / "m.gguf", "--sqnr", "20", "--json")
    (entry,) = json.loads(result.stdout)["tensors"]
    assert entry["name"] == "four.weight"
    assert "not quantized by fastq gguf" in result.stderr
    (tmp_path / "types.json").write_text(result.stdout)
    options = ("--like", tmp_path / "types.json", "--json")
    made = json.loads(run("gguf", tmp_path / "m.gguf", tmp_path / "o.gguf", *options))
    assert [row["bytes"] for row in made["tensors"] if row["name"] == "four.weight"] == [entry["bytes"]]


def test_more_dimensions_than_arrays_have_are_refused(tmp_path):
    written(tmp_path / "m.gguf")
    content = (tmp_path / "m.gguf").read_bytes()
    place = content.index(b"five.weight") + len("five.weight")
    (tmp_path / "m.gguf").write_bytes(content[:place] + (65).to_bytes(4, "little") + content[place + 4 :])
    with pytest.raises(ValueError, match=r"tensor 'five.weight' has 65 dimensions, more than 64"):
        gguf_file.open_gguf(tmp_path / "m.gguf")
