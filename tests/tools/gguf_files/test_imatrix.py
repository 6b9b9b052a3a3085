"""Importance matrices in fastq.io, fastq convert and fastq quantize: files, names, what is weighed and what is said."""

import json
import re
import struct

import ml_dtypes
import numpy as np
import pytest
from commands import invoke, refused, run, told
from gguf.constants import TENSOR_NAMES
from gguf.tensor_mapping import TensorNameMap
from gguf_files import write as write_gguf
from model_folders import EXPERTS, HIDDEN, INNER, LAYER, Q_PROJ, all_of, tensors, write_model
from safetensors.numpy import save_file

import fastq
import fastq.io
from fastq.io import open_checkpoint
from fastq.tools.checkpoints.encoding import ScaleArithmetic
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.quantization import Quantization
from fastq.tools.checkpoints.rules import Rules
from fastq.tools.gguf_files.imatrix import Imatrix, MatrixToWeigh, read, weigh
from fastq.tools.gguf_files.llama_names import gguf_names
from fastq.tools.layouts.schemes import as_scheme

RNG = np.random.default_rng(0)
SEARCHED = {"axis": 1, "block_size": 32, "symmetric": True, "range": "mse"}


def columns(*shape):
    """Importance with columns that count much more than others."""
    return np.exp(3 * np.random.default_rng(shape[-1]).standard_normal(shape)).astype(np.float32)


MODULES = {
    f"{LAYER}.self_attn.q_proj": columns(HIDDEN),
    f"{LAYER}.self_attn.k_proj": columns(HIDDEN),
    f"{LAYER}.self_attn.v_proj": columns(HIDDEN),
} | {
    f"{LAYER}.mlp.experts.{k}.{name}": columns(INNER if name == "down_proj" else HIDDEN) * np.float32(k + 1)
    for k in range(EXPERTS)
    for name in ("gate_proj", "up_proj", "down_proj")
}
STACKS = {f"ffn_{name}_exps": np.stack([MODULES[f"{LAYER}.mlp.experts.{k}.{name}_proj"] for k in range(EXPERTS)])
          for name in ("gate", "up", "down")}  # fmt: skip
OF_LLAMA = {f"blk.0.attn_{name}.weight": MODULES[f"{LAYER}.self_attn.{name}_proj"] for name in "qkv"}
OF_LLAMA |= {f"blk.0.{name}.weight": rows for name, rows in STACKS.items()}


def older(path, entries):
    """The older format of llama-imatrix, by hand."""
    parts = [struct.pack("<i", len(entries))]
    for name, rows in entries.items():
        parts += [struct.pack("<i", len(name)), name.encode(), struct.pack("<ii", 1, rows.size), rows.tobytes()]
    path.write_bytes(b"".join(parts))
    return path


def newer(path, entries, counts=4, **fields):
    """The newer one, by the gguf package; rows of experts have counts of their own."""
    held = {}
    for name, rows in entries.items():
        each = np.atleast_2d(rows)
        held |= {f"{name}.in_sum2": each * counts, f"{name}.counts": np.full((len(each), 1), counts, np.float32)}
    write_gguf(path, held, fields={"general.type": "imatrix"} | fields)
    return path


def plain(path, entries):
    (save_file if path.suffix == ".safetensors" else lambda held, to: np.savez(to, **held))(entries, path)
    return path


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path / "model", tensors())


# Files


@pytest.mark.parametrize(("write", "name"), [(newer, "a.gguf"), (plain, "a.npz"), (plain, "a.safetensors")])
def test_each_format_is_read(tmp_path, write, name):
    path = write(tmp_path / name, OF_LLAMA)
    found, whole = fastq.io.load_imatrix(path), read(path)
    assert set(found) == set(OF_LLAMA)
    assert (whole.datasets, whole.chunks) == ([], 0)
    for key, rows in OF_LLAMA.items():
        assert (found[key].dtype, found[key].shape) == (np.float32, rows.shape)
        np.testing.assert_array_equal(found[key], rows)


@pytest.mark.parametrize(
    ("noted", "datasets", "chunks"),
    [({}, [], 0), ({"datasets": "a", "chunk_count": "3"}, ["a"], 0), ({"datasets": [1], "chunk_count": 3}, ["1"], 3)],
)
def test_notes_of_the_newer_format_of_any_type(tmp_path, noted, datasets, chunks):
    found = read(newer(tmp_path / "a.gguf", OF_LLAMA, 1, **{f"imatrix.{key}": value for key, value in noted.items()}))
    assert (found.datasets, found.chunks) == (datasets, chunks)
    assert not any(found.uncounted.values())  # matrices that were counted once


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_suffixes_in_capitals(tmp_path, suffix):
    path = plain(tmp_path / f"a{suffix}", OF_LLAMA).rename(tmp_path / f"A{suffix.upper()}")
    assert set(fastq.io.load_imatrix(path)) == set(OF_LLAMA)


def test_the_older_format_has_matrices_in_turn(tmp_path):
    found = fastq.io.load_imatrix(str(older(tmp_path / "a.dat", OF_LLAMA)))
    for key, rows in OF_LLAMA.items():
        np.testing.assert_array_equal(found[key], rows.reshape(-1))


def test_the_older_format_is_read_whole_or_refused(tmp_path):
    """Cut anywhere but before the number of chunks and the text, which not every program writes."""
    path = older(tmp_path / "a.dat", {"": columns(3), "b": columns(1)})
    entries, chunks, text = path.read_bytes(), struct.pack("<i", 7), struct.pack("<i", 4) + b"text"
    whole, found = entries + chunks + text, {}
    ends = len(entries), len(entries + chunks), len(whole)
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        if size in ends:
            found[size] = read(path)
        else:
            with pytest.raises(ValueError, match="it is not an importance matrix"):
                read(path)
    assert [(found[size].chunks, found[size].datasets) for size in ends] == [(0, []), (7, []), (7, ["text"])]
    assert all(each.values.keys() == {"", "b"} for each in found.values())
    path.write_bytes(entries + chunks + struct.pack("<i", 0))
    assert read(path).datasets == [""]


@pytest.mark.parametrize("dtype", ["f8", "f2", "bfloat16"])
def test_floats_of_any_width(tmp_path, dtype):
    rows = np.arange(6.0).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    found = fastq.io.load_imatrix(plain(tmp_path / "a.safetensors", {"a": rows}))
    np.testing.assert_array_equal(found["a"], np.arange(6, dtype=np.float32))


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({}, "it has no entries"),
        ({"a": np.arange(3)}, r"'a' is I64 of shape \(3,\), not floats for columns"),
        ({"a": np.float32(3)}, r"'a' is F32 of shape \(\), not floats for columns"),
        ({"a": np.ones((2, 2, 2), np.float32)}, r"'a' is F32 of shape \(2, 2, 2\), not floats for columns"),
        ({"a": np.ones((0,), np.float32)}, r"'a' is F32 of shape \(0,\), not floats for columns"),
        ({"a": np.float32([1, np.nan])}, "'a' has values that are not finite"),
        ({"a": np.float64([1, 1e99])}, "'a' has values that are not finite"),
        ({"a": np.float32([1, -1])}, "'a' has values that are negative"),
    ],
)
def test_what_is_no_importance(tmp_path, held, message):
    with pytest.raises(ValueError, match=f"^importance matrix a.npz: {message}$"):
        fastq.io.load_imatrix(plain(tmp_path / "a.npz", held))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"^importance matrix a\.npz is not a file$"):
        fastq.io.load_imatrix(tmp_path / "a.npz")
    with pytest.raises(TypeError, match="path must be"):
        fastq.io.load_imatrix(3)


# Names


def test_names_are_those_of_llama():
    """As convert_hf_to_gguf.py of llama.cpp maps them, by the table of the gguf package."""
    known = {}
    for table in (TensorNameMap.block_mappings_cfg, TensorNameMap.mappings_cfg):
        for tensor, names in table.items():
            for name in names:
                module = name.format(bid=7, xid=5)
                module = re.sub(r"(?<!_)experts\.(?!\d|mlp)", "experts.5.", module)
                known.setdefault(module, set()).add(TENSOR_NAMES[tensor].format(bid=7) + ".weight")
    mapped = {module: gguf_names(module) for module in known if gguf_names(module)}
    assert len(mapped) > 80
    for module, ((first, expert), *_) in mapped.items():
        assert first in known[module] or all("time_mix" in name for name in known[module]), module  # RWKV's own
        assert expert == (5 if "experts.5" in module else None)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("model.layers.12.self_attn.q_proj", [("blk.12.attn_q.weight", None), ("blk.12.attn_qkv.weight", None)]),
        ("model.language_model.layers.3.mlp.down_proj", [("blk.3.ffn_down.weight", None)]),
        ("bert.encoder.layer.0.attention.output.dense", [("blk.0.attn_output.weight", None)]),
        ("encoder.layer.0.output.dense", [("blk.0.ffn_down.weight", None)]),
        ("model.layers.1.mlp.experts.7.down_proj", [("blk.1.ffn_down_exps.weight", 7)]),
        ("model.layers.1.block_sparse_moe.experts.7.w3",
         [("blk.1.ffn_up_exps.weight", 7), ("blk.1.ffn_gate_up_exps.weight", 7)]),
        ("lm_head", [("output.weight", None)]),
        ("vision_tower.encoder.layers.3.self_attn.q_proj", []),
        ("model.decoder.layers.3.self_attn.q_proj", []),
        ("model.visual.blocks.3.attn.qkv_proj", []),
        ("model.layers.3.linear_attn.dt_proj", []),
        ("pooler.dense", []),
    ],
)  # fmt: skip
def test_names_of_layers(module, names):
    assert gguf_names(module) == names


# Model directories


WAYS = {
    "newer": lambda folder: newer(folder / "i.gguf", OF_LLAMA),
    "older": lambda folder: older(folder / "i.dat", OF_LLAMA),
    "modules": lambda folder: plain(folder / "i.safetensors", MODULES),
    "weights": lambda folder: plain(folder / "i.npz", {f"{name}.weight": rows for name, rows in MODULES.items()}),
    "fused": lambda folder: plain(
        folder / "i.npz",
        {"blk.0.attn_qkv.weight": columns(HIDDEN), "blk.0.ffn_gate_up_exps.weight": STACKS["ffn_gate_exps"],
         f"{LAYER}.mlp.experts.down_proj": STACKS["ffn_down_exps"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_each_matrix_has_the_importance_of_its_columns(model, tmp_path, way):
    lines = told("convert", model, tmp_path / "q", "--scheme", "W4A16", "--group-size", "32",
                 "--imatrix", WAYS[way](tmp_path), exit_code=0).splitlines()  # fmt: skip
    assert not [line for line in lines if "importance" in line]
    found, before = open_checkpoint(tmp_path / "q"), all_of(model)
    rule = ScaleArithmetic("BF16").convention(as_scheme("W4A16").weights)
    for name, importance in MODULES.items():
        if "experts" in name:
            parent, expert, part = name.rsplit(".", 2)
            stack = before[f"{parent}.{'down_proj' if part == 'down_proj' else 'gate_up_proj'}"][int(expert)]
            x = stack if part == "down_proj" else stack[:INNER] if part == "gate_proj" else stack[INNER:]
        else:
            x = before[f"{name}.weight"]
        scale = fastq.reference.choose_qparams(x, "int4", importance=importance, convention=rule, **SEARCHED).scale
        np.testing.assert_array_equal(np.float32(found[name].qparams.scale), np.float32(scale), err_msg=name)


@pytest.mark.slow("compiles kernels of each scheme", quick=lambda scheme: scheme == "W4A16_ASYM")
@pytest.mark.parametrize("scheme", ["W8A16", "W8A8", "W4A16_ASYM", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16", "MXFP4A16"])
def test_importance_lessens_the_weighed_error(model, tmp_path, scheme):
    # contract 27.5
    """Of all schemes, blocks with several rows too."""
    path = plain(tmp_path / "i.npz", MODULES)
    options = [] if scheme in ("W8A8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16", "MXFP4A16") else ["--group-size", "32"]
    for name, more in (("plain", ["--range", "mse"]), ("weighed", ["--imatrix", path])):
        run("convert", model, tmp_path / name, "--scheme", scheme, *options, *more)
        run("convert", tmp_path / name, tmp_path / f"{name}-back", "--dequantize", "--dtype", "float32")
    x, errors = all_of(model), {}
    for name in ("plain", "weighed"):
        values = all_of(tmp_path / f"{name}-back")
        pairs = [(f"{LAYER}.self_attn.{each}_proj", f"{LAYER}.self_attn.{each}_proj.weight") for each in "qkv"]
        errors[name] = sum(
            float((MODULES[module] * (np.float64(x[key]) - values[key]) ** 2).sum()) for module, key in pairs
        )
    assert errors["weighed"] <= errors["plain"] * (1 if scheme in ("FP8_DYNAMIC", "FP8_BLOCK", "MXFP4A16") else 0.97)


def without(*ends):
    return {name: rows for name, rows in MODULES.items() if not name.endswith(ends)}


SAID = {
    "lacking": (without("k_proj"), rf"lacks, or has with other columns: '{LAYER}.self_attn.k_proj'$"),
    "unused": (MODULES | {"b.0": columns(4)}, "has names that no tensor has, which are not used: 'b.0'$"),
    "zeros": (MODULES | {Q_PROJ: columns(HIDDEN) * (np.arange(HIDDEN) >= 32)}, f"get equal weights, in '{Q_PROJ}'$"),
    "an entry of a tensor that stays": (
        MODULES | {"lm_head": columns(HIDDEN), "blk.0.ffn_gate_inp.weight": columns(HIDDEN)},
        None,
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_what_is_lacking_or_not_used_is_said(model, tmp_path, case):
    entries, said = SAID[case]
    path = plain(tmp_path / "i.npz", {name: np.float32(rows) for name, rows in entries.items()})
    arguments = ("convert", model, tmp_path / "q", "--scheme", "W4A16", "--group-size", "32", "--imatrix", path)
    lines = [line for line in told(*arguments, exit_code=0).splitlines() if "importance" in line]
    assert len(lines) == (said is not None)
    assert said is None or re.search(f"the importance matrix {said}" if "equal" not in said else said, lines[0])


def test_experts_that_were_never_counted(model, tmp_path):
    # contract 27.5
    path = newer(tmp_path / "i.gguf", OF_LLAMA, counts=np.float32(0))
    arguments = ("convert", model, tmp_path / "q", "--scheme", "W4A16", "--group-size", "32", "--imatrix", path)
    (line,) = (line for line in told(*arguments, exit_code=0).splitlines() if "importance" in line)
    assert "never counted, whose columns get equal weights: 'blk.0.attn_k.weight, 1 of 1'" in line


WRONG = {
    "another model": ({"blk.7.attn_q.weight": columns(HIDDEN)}, "belongs to another model: it lacks all 9 tensors"),
    "other columns": (MODULES | {Q_PROJ: columns(5)}, f"has 5 values for '{Q_PROJ}', not {HIDDEN}"),
    "too few experts": (
        {"blk.0.ffn_down_exps.weight": columns(1, INNER)},
        f"has {INNER} values for 'blk.0.ffn_down_exps.weight', not {INNER}",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_matrix_of_another_model_is_refused(model, tmp_path, case):
    entries, said = WRONG[case]
    line = refused("convert", model, tmp_path / "q", "--scheme", "W4A16", "--group-size", "32",
                   "--imatrix", plain(tmp_path / "i.npz", entries))  # fmt: skip
    assert said in line
    assert not (tmp_path / "q").exists()


def test_importance_belongs_to_the_search(model, tmp_path):
    path = plain(tmp_path / "i.npz", MODULES)
    line = refused("convert", model, tmp_path / "q", "--scheme", "W4A16", "--imatrix", path, "--range", "minmax")
    assert "--imatrix weighs the errors in the search of --range mse; it cannot be combined with --range minmax" in line
    line = refused("convert", model, tmp_path / "q", "--dequantize", "--imatrix", path)
    assert "--dequantize can be combined with" in line


def test_another_matrix_is_another_conversion(model):
    """So a run that was interrupted goes on with the importance that it had."""

    def key(entries):
        rules = Rules(as_scheme("W4A16"))
        return Quantization(ModelFolder.open(model), rules, method="mse", imatrix=entries and Imatrix(entries)).key

    keys = [key(MODULES), key(MODULES | {Q_PROJ: columns(HIDDEN) + 1}), key(None)]
    keys += [key({f"{LAYER}.self_attn.{each}_proj": np.ones((1, HIDDEN))}) for each in "qk"]  # the same inputs
    assert [keys.count(each) for each in keys] == [1] * 5
    assert key({f"{name}.weight": rows for name, rows in MODULES.items()}) == keys[0]


def test_a_matrix_of_several_has_its_row_alone():
    rows = columns(3, 4)
    rows[1, 2] = 0
    to_weigh = {"one": MatrixToWeigh((("e", 1),), (5, 4)), "all": MatrixToWeigh((("e", None),), (3, 5, 4))}
    found = weigh(Imatrix({"e": rows}), to_weigh, (), print)
    np.testing.assert_array_equal(found["one"], rows[1:2])
    np.testing.assert_array_equal(found["all"], rows)


# Files of tensors


def test_quantize_weighs_columns_of_tensors(tmp_path):
    rows = {"blk.3.attn_q.weight": columns(64), "b": columns(96), "c": columns(2, 96)}
    x = {"model.layers.3.self_attn.q_proj.weight": (8, 64), "b": (5, 96), "c": (2, 3, 96), "d": (4, 32), "bias": (64,)}
    x = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in x.items()}
    save_file(x, tmp_path / "in.safetensors")
    path = plain(tmp_path / "i.npz", rows)
    lines = told("quantize", tmp_path / "in.safetensors", tmp_path / "out.safetensors", "--dtype", "int4",
                 "--block-size", "32", "--imatrix", path, exit_code=0)  # fmt: skip
    assert lines == "the importance matrix lacks, or has with other columns: 'd'\n"
    found = fastq.load(tmp_path / "out.safetensors")
    weights = [*list(rows.values())[:2], np.broadcast_to(rows["c"][:, None], (2, 3, 96)), None]
    options = SEARCHED | {"axis": -1}
    for name, importance in zip(x, weights, strict=False):
        expected = fastq.reference.quantize(x[name], "int4", importance=importance, **options)
        np.testing.assert_array_equal(found[name].codes, expected.codes, err_msg=name)


@pytest.mark.parametrize("options", [["--axis", "0"], ["--axis", "1"], ["--axis", "none"],
                                     ["--axis", "0", "--block-size", "2"], ["--dtype", "nvfp4"]])  # fmt: skip
def test_any_granularity_takes_the_importance_of_columns(tmp_path, options):
    x, importance = RNG.standard_normal((6, 64)).astype(np.float32), columns(64)
    np.save(tmp_path / "w.npy", x)
    path = plain(tmp_path / "i.npz", {"w": importance})
    run("quantize", tmp_path / "w.npy", tmp_path / "out.safetensors", *options, "--imatrix", path)
    found, p = fastq.load(tmp_path / "out.safetensors")["w"], fastq.load(tmp_path / "out.safetensors")["w"].qparams
    how = {"axis": p.axis, "block_size": p.block_size} if p.dtype.name != "nvfp4" else {"axis": p.axis}
    how |= {"range": "mse", "importance": np.broadcast_to(importance, x.shape)}
    how |= {"symmetric": p.symmetric} if p.dtype.name != "nvfp4" else {}
    np.testing.assert_array_equal(found.codes, fastq.reference.quantize(x, p.dtype, **how).codes)


def test_schemes_of_a_file_say_which_ranges_are_searched_for(tmp_path):
    x = {name: RNG.standard_normal((4, 64)).astype(np.float32) for name in "ab"}
    save_file(x, tmp_path / "in.safetensors")
    path = plain(tmp_path / "i.npz", {name: columns(64) for name in x})
    scheme = {"dtype": "int8", "axis": 1, "block_size": 32, "symmetric": True, "convention": "onnx"}
    for ranges, code in ((("mse", "minmax"), 0), (("minmax", "minmax"), 1)):
        held = [{"name": name, "scheme": scheme | {"range": way}} for name, way in zip("ab", ranges, strict=True)]
        (tmp_path / "like.json").write_text(json.dumps({"tensors": held}))
        result = invoke("quantize", tmp_path / "in.safetensors", tmp_path / "out.safetensors", "--like",
                        tmp_path / "like.json", "--imatrix", path, "--force")  # fmt: skip
        assert result.exit_code == code
    assert "is used by --range mse only, which no tensor of two dimensions or more has" in result.stderr
    found = fastq.load(tmp_path / "out.safetensors")  # of the first run
    for name, importance in (("a", columns(64)), ("b", None)):
        options = SEARCHED | {"range": "mse" if name == "a" else "minmax"}
        expected = fastq.reference.quantize(x[name], "int8", importance=importance, **options)
        np.testing.assert_array_equal(found[name].codes, expected.codes)
