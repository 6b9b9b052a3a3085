"""GGUF files: quantized and back, compared with the gguf package, which reads and writes them too."""

import json
import os
import re
import tracemalloc
import weakref
from pathlib import Path

import gguf
import gguf_files
import gguf_models
import numpy as np
import pytest
from commands import run, told
from gguf_blocks import some_blocks
from gguf_models import MODELS

import fastq.gguf
from fastq.formats.gguf import BLOCK_FORMATS, GridFormat
from fastq.tools.gguf_files import convert_gguf, imatrix
from fastq.tools.gguf_files.gguf_file import GgufSource, open_gguf
from fastq.tools.gguf_files.mixes import ALIASES, FLOAT_MIXES, MIXES, TypeOverrides
from fastq.tools.gguf_files.tensor_types import TENSOR_TYPES

SMALL = MODELS["narrow"]
DTYPES = ("float16", "float32", "bfloat16")


@pytest.fixture
def model(here):
    """A small model, in.gguf, in a folder of its own that is the current one."""
    return gguf_models.write(here / "in.gguf", SMALL)


def read(path):
    """What the gguf package reads: metadata as (key, types, value), tensors as (name, type, rows)."""
    reader = gguf.GGUFReader(path)
    fields = [
        (key, field.types, field.contents()) for key, field in reader.fields.items() if not key.startswith("GGUF.")
    ]
    return fields, {each.name: (each.tensor_type.name, np.array(each.data)) for each in reader.tensors}


def floats(values):
    """The float32 that stored weights stand for."""
    return (values.astype(np.uint32) << 16).view(np.float32) if values.dtype == np.uint16 else values.astype(np.float32)


# The tables


def test_types_of_tensors_are_those_of_the_gguf_package():
    theirs = {kind.name: (kind.value, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    ours = {row.name: (row.number, row.block, row.nbytes) for row in TENSOR_TYPES.values()}
    newer = {"Q2_0": (42, 64, 18)}  # of llama.cpp, in ggml/include/ggml.h; gguf 0.19 lacks it
    assert newer | theirs == newer | ours


def test_types_of_tensors_are_those_of_blocks():
    ours = {name: (row.number, row.nbytes) for name, row in BLOCK_FORMATS.items()}
    assert {name: (TENSOR_TYPES[name].number, TENSOR_TYPES[name].nbytes) for name in ours} == ours


def test_numbers_of_mixes_are_those_of_the_gguf_package():
    theirs = {member.name.replace("MOSTLY_", "").replace("ALL_", ""): member.value for member in gguf.LlamaFileType}
    newer = {"Q2_0": 41}  # of llama.cpp, in include/llama.h; gguf 0.19 lacks it
    ours = {row.name: row.number for row in (*MIXES.values(), *FLOAT_MIXES.values())}
    assert ours.items() <= (newer | theirs).items()
    assert set(ALIASES.values()) <= set(MIXES)


# Reading


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_file_is_read_as_the_gguf_package_reads_it(here, dtype):
    model = gguf_models.Model("llama", 2, (4, 4), SMALL.tensors, dtype=dtype)
    path = gguf_models.write(here / "in.gguf", model)
    source, (fields, tensors) = open_gguf(path), read(path)
    assert list(source.fields) == [key for key, *_ in fields]
    for key, types, value in fields:
        assert source.get(key) == value, key
        assert source.fields[key].type_name.partition("[")[0] == types[-1].name.lower(), key
    assert list(source.tensors) == list(tensors)
    for name, weights in gguf_models.weights_of(model):
        assert source.tensors[name].shape == weights.shape
        assert source.load(name).tobytes() == weights.tobytes() == tensors[name][1].tobytes()
        assert not source.load(name).flags.writeable


def test_a_header_with_large_arrays_is_read_without_objects(here):
    def vocabulary(writer):
        writer.add_token_merges([f"a {i}" for i in range(20_000)])

    path = gguf_models.write(here / "in.gguf", SMALL, extra=vocabulary)
    tracemalloc.start()
    source = open_gguf(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.2e6  # 280 KB of text; the strings as objects are 1.1 MB more
    assert source.get("tokenizer.ggml.merges")[19_999] == "a 19999"


# Quantizing


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_are_those_of_the_gguf_package(here, dtype):
    model = gguf_models.Model("llama", 2, (4, 4), SMALL.tensors, dtype=dtype)
    source = gguf_models.write(here / "in.gguf", model)
    run("gguf", source, "out.gguf", "--type", "Q8_0")
    _, tensors = read("out.gguf")
    assert {name: kind for name, (kind, _) in tensors.items()} == {
        name: "Q8_0" if len(shape) > 1 else "F32" for name, shape in model.tensors.items()
    }
    for name, weights in gguf_models.weights_of(model):
        expected = weights
        if weights.ndim > 1:
            expected = gguf.quants.quantize(floats(weights), gguf.GGMLQuantizationType.Q8_0)
        assert tensors[name][1].tobytes() == expected.tobytes(), name


def test_metadata_is_kept_and_the_type_set_at_its_end(model):
    run("gguf", model, "out.gguf", "--type", "q8_0")
    (before, _), (after, _) = read(model), read("out.gguf")
    uint32 = [gguf.GGUFValueType.UINT32]
    added = [("general.quantization_version", uint32, 2), ("general.file_type", uint32, 7)]
    assert after == [field for field in before if field[0] != "general.file_type"] + added


def test_tensors_are_in_order_of_layers_and_aligned(here):
    path = gguf_models.write(here / "in.gguf", MODELS["odd"])
    run("gguf", path, "out.gguf", "--type", "Q8_0")
    reader = gguf.GGUFReader("out.gguf")
    names = [each.name for each in reader.tensors]
    layers = [int(found[1]) if (found := re.match(r"blk\.(\d+)\.", name)) else -1 for name in names]
    assert names == [name for _, name in sorted(zip(layers, names, strict=True))]
    assert names.index("blk.2.attn_v.weight") < names.index("blk.10.attn_v.weight")
    assert [each.data_offset % 32 for each in reader.tensors] == [0] * len(names)
    assert os.path.getsize("out.gguf") % 32 == 0


def test_alignment_of_the_source_is_kept(here):
    path = gguf_models.write(here / "in.gguf", SMALL, extra=lambda writer: writer.add_custom_alignment(4096))
    run("gguf", path, "out.gguf", "--type", "Q4_0")
    reader = gguf.GGUFReader("out.gguf")
    assert reader.alignment == 4096
    assert [each.data_offset % 4096 for each in reader.tensors] == [0] * len(SMALL.tensors)


def test_options_change_types(model):
    options = r"--tensor-type blk\.0\.ffn=q5_0 --tensor-type (?=ffn_up)=Q4_0 --token-embedding-type f16"
    run("gguf", model, "out.gguf", "--type", "Q8_0", *options.split())
    types = {name: kind for name, (kind, _) in read("out.gguf")[1].items()}
    assert types == {
        "token_embd.weight": "F16",
        "output_norm.weight": "F32",
        "blk.0.attn_v.weight": "Q8_0",
        "blk.0.ffn_down.weight": "Q5_0",
        "blk.0.ffn_up.weight": "Q5_0",
        "blk.1.attn_v.weight": "Q8_0",
        "blk.1.ffn_down.weight": "Q8_0",
        "blk.1.ffn_up.weight": "Q4_0",
    }


def test_chunks_do_not_change_a_byte(here, monkeypatch):
    path = gguf_models.write(here / "in.gguf", MODELS["odd"])
    for name, chunk in {"a.gguf": 1 << 22, "b.gguf": 1, "c.gguf": 3 * 256}.items():
        monkeypatch.setattr(convert_gguf, "CHUNK", chunk)
        run("gguf", path, name, "--type", "Q8_0")
    assert len({Path(name).read_bytes() for name in ("a.gguf", "b.gguf", "c.gguf")}) == 1


def test_progress_counts_all_bytes_and_tensors(model):
    source, seen = open_gguf(model), []
    request = convert_gguf.GgufConversion(MIXES["Q8_0"], TypeOverrides())
    convert_gguf.convert_gguf(source, Path("out.gguf"), request, say=pytest.fail, progress=lambda *n: seen.append(n))
    assert np.sum(seen, axis=0).tolist() == [sum(spec.nbytes for spec in source.tensors.values()), len(source.tensors)]


def test_figures_of_the_table(model):
    output = json.loads(run("gguf", model, "out.gguf", "--type", "Q5_0", "--pure", "--json"))
    signal = noise = 0
    for (name, weights), (_, stored) in zip(
        sorted(gguf_models.weights_of(SMALL)), sorted(read("out.gguf")[1].items()), strict=True
    ):
        row = next(row for row in output["tensors"] if row["name"] == name)
        assert row["shape"] == list(weights.shape)
        assert (row["bytes_before"], row["bytes"]) == (weights.nbytes, stored[1].nbytes)
        if weights.ndim == 1:
            assert (row["from"], row["to"], row["sqnr_db"]) == ("F32", "F32", None)
            continue
        x = weights.astype(np.float64)
        error = x - gguf.quants.dequantize(stored[1], gguf.GGMLQuantizationType.Q5_0)
        assert (row["from"], row["to"]) == ("F16", "Q5_0")
        assert row["sqnr_db"] == pytest.approx(10 * np.log10(np.sum(x**2) / np.sum(error**2)))
        signal, noise = signal + np.sum(x**2), noise + np.sum(error**2)
    assert output["sqnr_db"] == pytest.approx(10 * np.log10(signal / noise))
    text = run("gguf", model, "again.gguf", "--type", "Q5_0", "--pure")
    assert re.search(r"blk\.0\.attn_v\.weight +4 x 96 +F16 +768 +Q5_0 +264 +5\.500 +[\d.]+", text)
    assert re.search(r"output_norm\.weight +96 +F32 +384 +F32 +384 +32\.000 +-", text)
    assert re.search(
        rf"8 tensors +{output['bytes_before']:,} +total +{output['bytes']:,} +[\d.]+ +{output['sqnr_db']:.2f}", text
    )


# Back


@pytest.mark.parametrize("kind", list(FLOAT_MIXES))
def test_dequantized_values_are_those_of_the_gguf_package(model, kind):
    run("gguf", model, "q.gguf", "--type", "Q4_1", "--pure")
    run("gguf", "--dequantize", "q.gguf", "out.gguf", "--type", kind)
    before, (fields, after) = read("q.gguf")[1], read("out.gguf")
    assert fields[-1][2] == FLOAT_MIXES[kind].number
    for name, (stored, rows) in before.items():
        if stored == "F32":
            assert after[name][1].tobytes() == rows.tobytes()
            continue
        values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType.Q4_1)
        expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
        assert after[name][0] == kind
        assert after[name][1].tobytes() == expected.tobytes()


def test_files_of_types_of_grids(here):
    x = np.random.default_rng(0).standard_normal((6, 512)).astype(np.float32)
    kinds = [name for name, row in BLOCK_FORMATS.items() if isinstance(row, GridFormat)]
    tensors = {f"blk.{i}.{name}.weight": (some_blocks(x, name), name) for i, name in enumerate(kinds)}
    gguf_files.write("q.gguf", tensors)
    run("gguf", "--dequantize", "q.gguf", "out.gguf")
    run("gguf", "q.gguf", "q8.gguf", "Q8_0", "--allow-requantize")
    assert "IQ1_M" in run("inspect", "q.gguf")
    assert "equal" in run("compare", "q.gguf", "out.gguf")
    opened = fastq.load("q.gguf")
    for name, (blocks, kind) in tensors.items():
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
        assert read("out.gguf")[1][name][1].tobytes() == expected.tobytes()
        assert np.asarray(opened[name]).tobytes() == expected.tobytes()
        assert read("q8.gguf")[1][name][1].tobytes() == fastq.gguf.quantize(expected, "Q8_0").tobytes()


def test_nothing_to_convert_is_told(model):
    run("gguf", "--dequantize", model, "floats.gguf")
    line = "nothing was converted: no tensor of floats.gguf gets another type\n"
    assert told("gguf", "--dequantize", "floats.gguf", "out.gguf", exit_code=4) == line


def test_dequantize_is_to_float32_by_default(model):
    run("gguf", "--dequantize", model, "out.gguf")
    assert {kind for kind, _ in read("out.gguf")[1].values()} == {"F32"}
    for name, weights in gguf_models.weights_of(SMALL):
        assert read("out.gguf")[1][name][1].tobytes() == weights.astype(np.float32).tobytes()


# Importance matrices


@pytest.mark.parametrize("write", [gguf_models.write_imatrix, gguf_models.write_legacy])
def test_an_importance_matrix_is_read(here, write):
    model = MODELS["llama"]  # one matrix a tensor: the older format has one count for all
    loaded = imatrix.read(write(here / "imatrix", model))
    expected = gguf_models.means(model)
    assert set(loaded.values) == set(expected)
    for name, values in loaded.values.items():
        assert values.tobytes() == expected[name].tobytes(), name
    assert (loaded.datasets, loaded.chunks) == (["some text.txt"], 5)


def test_each_matrix_of_a_tensor_has_its_own_importance(here):
    loaded = imatrix.read(gguf_models.write_imatrix(here / "imatrix.gguf", MODELS["many"]))
    values = loaded.values["blk.0.ffn_down_exps.weight"].reshape(8, 256)
    assert (values[1] == 1).all()  # never chosen
    assert values.tobytes() == gguf_models.means(MODELS["many"])["blk.0.ffn_down_exps.weight"].tobytes()


def test_importance_goes_to_the_tensors_of_its_name(here, monkeypatch):
    model, seen = MODELS["many"], []
    original = fastq.gguf.quantize

    def quantize(x, kind, importance=None, **options):
        seen.append((x.shape, kind, None if importance is None else importance.tobytes()))
        return original(x, kind)

    monkeypatch.setattr(fastq.gguf, "quantize", quantize)
    path = gguf_models.write(here / "in.gguf", model)
    of_columns = gguf_models.write_imatrix(here / "some imatrix.gguf", model)
    output = run("gguf", path, "out.gguf", "--type", "Q4_0", "--pure", "--imatrix", of_columns, "--json")
    expected = []
    for row in json.loads(output)["tensors"]:
        name = row["name"]
        if row["to"] == "Q4_0":
            matrices = gguf_models.means(model)[name]
            rows = int(np.prod(model.tensors[name][:-1])) // len(matrices)
            expected += [((rows, 256), "Q4_0", values.tobytes()) for values in matrices]
        assert row["imatrix"] is (row["to"] == "Q4_0")
    assert seen == expected
    count = len(gguf_models.means(model))
    assert [(key, value) for key, _, value in read("out.gguf")[0][-4:]] == [
        ("quantize.imatrix.file", str(of_columns)),
        ("quantize.imatrix.dataset", "some text.txt"),
        ("quantize.imatrix.entries_count", count),
        ("quantize.imatrix.chunks_count", 5),
    ]


def test_names_of_modules_and_of_transformers_are_those_of_tensors(here):
    """The same file, whatever an importance matrix calls its entries; a wrong name is told with the nearest one."""
    path = gguf_models.write(here / "in.gguf", SMALL)
    names = {"attn_v": "self_attn.v_proj", "ffn_down": "mlp.down_proj"}
    rows = {each: np.random.default_rng(k).random(SMALL.tensors[f"blk.0.{each}.weight"][-1], np.float32)
            for k, each in enumerate(names)}  # fmt: skip
    spelled = {
        "llama.cpp": {f"blk.0.{each}.weight": row for each, row in rows.items()},
        "modules": {f"blk.0.{each}": row for each, row in rows.items()},
        "transformers": {f"model.layers.0.{names[each]}.weight": row for each, row in rows.items()},
        "modules of transformers": {f"model.layers.0.{names[each]}": row for each, row in rows.items()},
    }
    made = []
    for entries in spelled.values():
        np.savez("i.npz", **entries)
        said = told("gguf", path, "o.gguf", "Q4_0", "--pure", "--imatrix", "i.npz", "--force", exit_code=0)
        assert "has names that no tensor has" not in said
        made.append({name: data.tobytes() for name, (_, data) in read("o.gguf")[1].items()})
    assert all(each == made[0] for each in made)
    run("gguf", path, "o.gguf", "Q4_0", "--pure", "--force")
    assert {name: data.tobytes() for name, (_, data) in read("o.gguf")[1].items()} != made[0]
    np.savez("i.npz", **spelled["modules"], **{"blk.0.fn_up": rows["attn_v"]})
    said = told("gguf", path, "o.gguf", "Q4_0", "--pure", "--imatrix", "i.npz", "--force", exit_code=0)
    assert "the nearest are blk.0.fn_up\n" in said


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_a_file_of_tensors_is_made_of_one_in_blocks(model, suffix):
    """Every block as the gguf package decodes it, and all that is not in blocks as it is."""
    run("gguf", model, "q.gguf", "Q5_0", "--pure")
    out = f"plain{suffix}"
    assert re.search(r"^\d tensors dequantized: [\d,]+ -> [\d,]+ bytes", run("dequantize", "q.gguf", out))
    found, tensors = fastq.load(out), read("q.gguf")[1]
    assert found.keys() == tensors.keys()
    for name, (kind, data) in tensors.items():
        blocks = kind not in ("F32", "F16")
        expected = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]) if blocks else data
        assert (found[name].dtype, found[name].tobytes()) == (expected.dtype, expected.tobytes())


# The command


def test_a_type_that_fastq_does_not_know_is_one_line(here):
    path = gguf_models.write(here / "in.gguf", MODELS["odd"])
    line = told("gguf", path, "out.gguf", "--type", "Q8_0", "--tensor-type", "attn_q=Q8_K")
    assert line == "Error: in.gguf: tensor 'blk.0.attn_qkv.weight' would be Q8_K, which fastq does not quantize to\n"
    assert os.listdir() == ["in.gguf"]


def test_inspect(model):
    output = run("inspect", model)
    assert re.search(r"general\.name +string +a model, für Tests", output)
    assert re.search(
        r"tokenizer\.ggml\.tokens +string\[16\] +<unk>, <s>, </s>, <0x00>, <0x01>, <0x02>, <0x03>, <0x04>, \.\.\.",
        output,
    )
    assert re.search(r"blk\.0\.ffn_down\.weight +F16 +4 x 160 +1,280 +16\.000", output)
    assert re.search(r"F32 +1 +96 +384 +32\.000", output)
    assert re.search(r"total +8 +[\d,]+ +[\d,]+ +16\.\d+", output)


def test_inspect_json(here):
    path = gguf_models.write(here / "in.gguf", MODELS["odd"])
    found = json.loads(run("inspect", path, "--json"))
    fields, tensors = read(path)
    assert {key: entry["value"] for key, entry in found["metadata"].items()} == {key: value for key, _, value in fields}
    assert found["metadata"]["tokenizer.ggml.tokens"]["type"] == "string[16]"
    assert [(row["name"], row["type"]) for row in found["tensors"]] == [(n, kind) for n, (kind, _) in tensors.items()]
    for row in found["tensors"]:
        size = int(np.prod(MODELS["odd"].tensors[row["name"]]))
        assert tuple(row["shape"]) == MODELS["odd"].tensors[row["name"]] or row["name"] == "blk.1.ffn_down.weight"
        assert row["bytes"] * 8 == row["bits"] * size


def test_memory_does_not_grow_with_the_tensor(here, monkeypatch):
    monkeypatch.setattr(convert_gguf, "CHUNK", 1 << 14)
    path = gguf_models.write(here / "in.gguf", gguf_models.Model("llama", 1, (1, 1), {"output.weight": (4096, 256)}))
    run("gguf", path, "warm.gguf", "--type", "Q8_0")
    tracemalloc.start()
    run("gguf", path, "out.gguf", "--type", "Q8_0")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.5e6  # the tensor is 2 MB, 4 MB in float32


def test_pages_that_were_read_do_not_stay_mapped(model, monkeypatch):
    """Pages of a map count as memory of the process from the moment they are read until the map is gone."""
    monkeypatch.setattr(convert_gguf, "CHUNK", 1 << 10)
    raw, maps, alive = GgufSource.raw, [], []

    def mapped(source, name):
        alive.append([each for each in maps if each() is not None])
        array = raw(source, name)
        maps.append(weakref.ref(array.base))
        return array

    monkeypatch.setattr(GgufSource, "raw", mapped)
    run("gguf", model, "out.gguf", "--type", "Q8_0")
    assert len(alive) > 2 * len(SMALL.tensors)
    assert not any(alive)
