"""Importance matrices and options that fit or do not: what is used, what is said of the rest, exit codes."""

import json
import os
import re
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from commands import run, told
from gguf_files import decoded, encoded, read, values, write

import fastq
from fastq.formats.gguf import BLOCK_FORMATS, LEAST_ERROR
from fastq.tools.gguf_files.mixes import ONLY_IN_LLAMA

MODEL = {
    "token_embd.weight": values((8, 256)),
    "output_norm.weight": values((256,)),
    "blk.0.attn_q.weight": values((4, 256), 1),
    "blk.0.attn_k.weight": values((4, 256), 2),
    "blk.0.ffn_up_exps.weight": values((3, 2, 256), 3),
}
MATRICES = {name: (3 if "exps" in name else 1) for name in MODEL if "norm" not in name}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with in.gguf that is the current one."""
    monkeypatch.chdir(tmp_path)
    write("in.gguf", MODEL)


# Importance matrices, as one of the newer format and as one of the older


def entries(*names, width=256):
    """Importance and counts by name; of experts each has a count."""
    rows = {name: np.abs(values((MATRICES.get(name, 1), width), 9)) + np.float32(0.1) for name in names}
    return {name: (each, np.full(len(each), 7.0)) for name, each in rows.items()}


def newer(path, of):
    tensors = {f"{name}.in_sum2": np.float32(rows * counts[:, None]) for name, (rows, counts) in of.items()}
    tensors |= {f"{name}.counts": np.float32(counts).reshape(-1, 1) for name, (_, counts) in of.items()}
    write(path, tensors, fields={"general.type": "imatrix"})


def older(path, of):
    parts = [struct.pack("<i", len(of))]
    for name, (rows, counts) in of.items():
        calls = int(counts[0])
        parts += [struct.pack("<i", len(name)), name.encode(), struct.pack("<ii", calls, rows.size)]
        parts.append(np.float32(rows * max(calls, 1)).tobytes())
    Path(path).write_bytes(b"".join(parts))


ALL = entries(*MATRICES)
EMBEDDING, QUERIES, KEYS, EXPERTS = MATRICES
UNCOUNTED = ALL[EXPERTS][0], np.array([7.0, 0, 0])


def holed(first, last):
    rows, counts = ALL[KEYS]
    rows = rows.copy()
    rows[:, first:last] = 0
    return ALL | {KEYS: (rows, counts)}


OF_EXPERTS = "experts not counted"  # the older format has one count for all of them
LACKS, UNUSED = "lacks, or has with other columns: ", "has names that no tensor has, which are not used: "
ALIKE, OTHER, IDLE = "0 for all columns", "belongs to another model", "was not used"
WRONG = "^Error: in.gguf: the importance matrix has"

# what the matrix has, what is said of each line in order, options, and the exit code
CASES = {
    "all": (ALL, [], "Q4_0", 0),
    "an entry for a norm": (ALL | entries("output_norm.weight"), [], "Q4_0", 0),
    "no embedding": (entries(*list(MATRICES)[1:]), [f"{LACKS}'{EMBEDDING}'$"], "Q4_0", 0),
    "two lacking": (entries(QUERIES, EMBEDDING), [f"{LACKS}'{KEYS}', "], "Q4_0", 0),
    "one of three": (entries(QUERIES), [LACKS], "Q4_0", 0),
    "one too many": (ALL | entries("blk.7.attn_q.weight"), [f"{UNUSED}'blk.7.attn_q.weight'$"], "Q4_0", 0),
    "many too many": (ALL | entries(*"abcde"), [f"{UNUSED}'a', 'b', 'c' and 2 more$"], "Q4_0", 0),
    "too many and lacking": (entries(QUERIES, "a"), [LACKS, UNUSED], "Q4_0", 0),
    "of another model": (entries("blk.7.attn_q.weight"), [f"{OTHER}: it lacks all 4 tensors"], "Q4_0", 1),
    "a mix": (entries("a.weight", "b"), ["such as 'token_embd.weight', but has 'a.weight'"], "Q4_K_M", 1),
    "with the name of a module": (entries("blk.0.attn_q"), [LACKS], "Q4_0", 0),
    "with another suffix": (entries("blk.0.attn_q.bias"), [OTHER], "Q4_0", 1),
    "of kept tensors only": (entries("output_norm.weight"), [OTHER], "Q4_0", 1),
    "not needed": (ALL, [f"{IDLE}: no tensor is converted to a type that depends on it$"], "Q8_0", 0),
    "of another model, not needed": (entries("a"), [IDLE], "Q8_0", 0),
    "not needed for floats": (ALL, [IDLE], "F16", 0),
    "needed by one tensor": (ALL, [], "Q8_0 --tensor-type attn_q=Q4_K", 0),
    OF_EXPERTS: (ALL | {EXPERTS: UNCOUNTED}, [f"columns get equal weights: '{EXPERTS}, 2 of 3'"], "Q4_0", 0),
    "a column": (holed(3, 4), [], "Q4_0", 0),
    "half a block": (holed(32, 48), [], "Q4_0", 0),
    "a block": (holed(32, 64), [f"{ALIKE} of some blocks, which get equal weights, in '{KEYS}'$"], "Q4_0", 0),
    "across two blocks": (holed(48, 80), [], "Q4_0", 0),
    "sixteen columns of Q6_K": (holed(32, 48), [ALIKE], "Q6_K", 0),
    "half of Q4_K": (holed(0, 128), [], "Q4_K_S", 0),
    "all of Q4_K": (holed(0, 256), [ALIKE], "Q4_K_S --pure", 0),
    "all of Q5_1": (holed(0, 256), [], "Q5_1", 0),
    "other columns": (ALL | entries(KEYS, width=255), [f"{WRONG} 255 values for '{KEYS}', not 256$"], "Q4_0", 1),
    "other columns of the embedding": (ALL | entries(EMBEDDING, width=64), [f"{LACKS}'{EMBEDDING}'$"], "Q4_0", 0),
    "one row for experts": (ALL | {EXPERTS: ALL[KEYS]}, [f"{WRONG} 256 values for '{EXPERTS}', not 768"], "Q4_0", 1),
    "NaN": (ALL | {"a": (np.full((1, 4), np.nan), np.ones(1))}, ["'a' has values that are not finite"], "Q4_0", 1),
    "negative": (ALL | {"a": (np.full((1, 4), -1.0), np.ones(1))}, ["'a' has values that are negative"], "Q4_0", 1),
    "needed and there": (ALL, [], "Q2_K_S", 0),
    "needed and not there": (
        entries(EMBEDDING, QUERIES),
        [LACKS, "would be Q2_K: Q2_K_S needs an --imatrix with an entry for it"],
        "Q2_K_S",
        1,
    ),
}


@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name in CASES for form in (newer, older)[: 1 + (name != OF_EXPERTS)]]
)
def test_importance_matrices(name, form):
    """The metadata tell of those that were used."""
    of, said, options, exit_code = CASES[name]
    form("imatrix.dat", of)
    options = [*options.split(), "--imatrix", "imatrix.dat"]
    lines = told("gguf", "in.gguf", "out.gguf", *options, exit_code=exit_code).splitlines()
    assert len(lines) == len(said)
    for line, pattern in zip(lines, said, strict=True):
        assert re.search(pattern, line)
    assert Path("out.gguf").exists() == (exit_code == 0)
    if exit_code == 0:
        fields = {key: value for key, value in read("out.gguf")[0].items() if key.startswith("quantize.")}
        of_matrix = {"quantize.imatrix.file": "imatrix.dat", "quantize.imatrix.entries_count": len(of)}
        assert fields == ({} if any(IDLE in each for each in said) else of_matrix)


def test_calls_of_none_count_as_one():
    for calls in (0, -3):
        rows = ALL["blk.0.attn_q.weight"][0]
        older("imatrix.dat", {"blk.0.attn_q.weight": (rows, np.array([float(calls)]))})
        run("gguf", "in.gguf", "out.gguf", "Q4_0", "--imatrix", "imatrix.dat", "--force")
        blocks = read("out.gguf")[1]["blk.0.attn_q.weight"].data
        np.testing.assert_array_equal(
            blocks, fastq.gguf.quantize(MODEL["blk.0.attn_q.weight"], "Q4_0", importance=rows[0])
        )


def bytes_of_older(place=0, change=b""):
    """Two entries of one number each by the older format, with some bytes changed."""
    content = bytearray(b"\2\0\0\0" + 2 * (b"\1\0\0\0a" + b"\7\0\0\0" + b"\1\0\0\0" + b"\0\0\x80\x3f"))
    content[place : place + len(change)] = change
    return bytes(content)


ONES = np.ones((2, 3), np.float32)
CUT, HUGE = "it is not an importance matrix, or it is truncated", b"\xff\xff\xff\x7f"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", CUT),
        (b"GGUF", "imatrix.gguf is not a readable GGUF file: its header is longer than its 4 bytes"),
        (b"\0\0\0\0", "it has no entries"),
        (b"\xff\xff\xff\xff", "it has no entries"),
        (bytes_of_older(0, b"\3"), CUT),
        (bytes_of_older(4, b"\xff\xff\xff\xff"), CUT),
        (bytes_of_older(4, HUGE), CUT),
        (bytes_of_older(13, HUGE), "it is not an importance matrix: 'a' would have 2,147,483,647 values"),
        (bytes_of_older(13, b"\0"), "it is not an importance matrix: 'a' would have 0 values"),
        (bytes_of_older(34, b"\0\0\xc0\x7f"), "'a' has values that are not finite"),
        ({"a": ONES}, "it has no entries"),
        ({"a.counts": ONES}, "'a.counts' is there without 'a.in_sum2'"),
        ({"a.in_sum2": ONES}, "'a.in_sum2' is there without 'a.counts'"),
        ({"a.in_sum2": ONES, "a.counts": ONES[:0]}, "'a' has 0 counts for 6 sums"),
        ({"a.in_sum2": ONES, "a.counts": ONES.reshape(-1)[:4]}, "'a' has 4 counts for 6 sums"),
        ({"a.in_sum2": ONES, "a.counts": ONES.astype(np.float16)}, "'a.counts' is F16, not F32"),
        ({"a.in_sum2": ONES * np.inf, "a.counts": ONES}, "'a' has values that are not finite"),
    ],
)
def test_what_is_no_importance_matrix(content, message):
    Path("imatrix.gguf").write_bytes(content) if isinstance(content, bytes) else write("imatrix.gguf", content)
    line = told("gguf", "in.gguf", "out.gguf", "--type", "Q4_0", "--imatrix", "imatrix.gguf")
    assert line == f"Error: in.gguf: importance matrix imatrix.gguf: {message}\n"
    assert sorted(os.listdir()) == ["imatrix.gguf", "in.gguf"]


@pytest.mark.slow("compiles a kernel of each type", quick=lambda name: name in ("Q5_1", "Q4_K"))
@pytest.mark.parametrize("name", [name for name, form in BLOCK_FORMATS.items() if form.weighted])
def test_columns_without_importance_are_kept(name):
    form, x = BLOCK_FORMATS[name], values((3, 512))
    weights = np.abs(values((512,), 1)) + np.float32(0.1)
    for width in (form.group or form.size, 256, 512):
        holes, filled = weights.copy(), weights.copy()
        holes[:width], filled[:width] = 0, 1
        blocks = fastq.gguf.quantize(x, name, importance=holes)
        if form.group:
            np.testing.assert_array_equal(blocks, fastq.gguf.quantize(x, name, importance=filled))
        np.testing.assert_array_equal(blocks, fastq.reference.gguf.quantize(x, name, importance=holes))
        error = decoded(blocks, name)[:, :width] - x[:, :width]
        assert 10 * np.log10((x[:, :width] ** 2).sum() / (error**2).sum()) > 6  # 0 if they were lost; IQ1_S has 6.7


# Options


@pytest.mark.parametrize(
    ("options", "exit_code", "said"),
    [
        (
            "Q8_0 --tensor-type nothing=Q6_K",
            1,
            "--tensor-type nothing=Q6_K matches no tensor: none has a name in which 'nothing' is found",
        ),
        ("Q8_0 --tensor-type attn=Q6_K --tensor-type ^q=Q4_0", 1, "--tensor-type ^q=Q4_0 matches no tensor"),
        ("F16 --tensor-type nothing=Q6_K", 1, "matches no tensor"),
        ("Q8_0 --tensor-type norm=Q6_K", 4, "--tensor-type norm=Q6_K had no effect"),
        ("Q8_0 --tensor-type attn=Q6_K --tensor-type attn_q=Q4_0", 4, "--tensor-type attn_q=Q4_0 had no effect"),
        ("Q8_0 --tensor-type attn=Q6_K --tensor-type _=Q4_0", 0, ""),
        ("Q8_0 --output-tensor-type Q6_K", 0, ""),
        ("Q8_0 --token-embedding-type Q6_K", 0, ""),
        ("F16 --tensor-type attn_q=Q8_0", 0, ""),
        ("Q8_0 --range mse", 0, ""),
        ("Q6_K --range mse", 4, "--range mse had no effect: no tensor becomes one of Q4_0, Q4_1, "),
        ("F16 --range mse", 4, "--range mse had no effect"),
        ("Q8_0 --tensor-type attn_q=Q6_K --range mse", 0, f"which get the bytes of ggml: '{QUERIES}'"),
    ],
)
def test_options_that_change_nothing(options, exit_code, said):
    lines = told("gguf", "in.gguf", "out.gguf", *options.split(), exit_code=exit_code).splitlines()
    assert len(lines) == bool(said)
    assert all(said in line for line in lines)
    assert Path("out.gguf").exists() == (exit_code != 1)


@pytest.mark.slow(
    "compiles kernels of each type", quick=lambda kind, weighted: kind == ("Q5_1" if weighted else "Q4_0")
)
@pytest.mark.parametrize("kind", LEAST_ERROR)
@pytest.mark.parametrize("weighted", [False, True])
def test_tensors_of_least_error(kind, weighted):
    newer("imatrix.gguf", ALL)
    imatrix = ["--imatrix", "imatrix.gguf"] * weighted
    run("gguf", "in.gguf", "out.gguf", "Q8_0", "--tensor-type", f".={kind}", "--range", "mse", *imatrix)
    run("gguf", "in.gguf", "own.gguf", "Q8_0", "--tensor-type", f".={kind}", *imatrix)
    found, own = (read(path)[1] for path in ("out.gguf", "own.gguf"))
    for name in MATRICES:
        x, shape = MODEL[name], (-1, *(1,) * (MODEL[name].ndim - 2), 256)
        weights = ALL[name][0].reshape(shape) if weighted else None
        weights = weights[0] if weighted and x.ndim == 2 else weights
        expected = fastq.gguf.quantize(x, kind, range="mse", importance=weights)
        assert found[name].tensor_type.name == own[name].tensor_type.name == kind
        np.testing.assert_array_equal(found[name].data, expected)
        assert (found[name].data != own[name].data).any()


def test_the_way_back_has_no_range():
    assert "--dequantize can be combined with" in told(
        "gguf", "in.gguf", "out.gguf", "--dequantize", "--range", "mse", exit_code=2
    )


@pytest.mark.parametrize("option", ["--output-tensor-type", "--token-embedding-type"])
def test_types_of_tensors_that_are_not_there(option):
    write("in.gguf", {"blk.0.attn_q.weight": values((4, 64))})
    said = told("gguf", "in.gguf", "out.gguf", "Q8_0", option, "Q4_0", exit_code=4)
    assert said.startswith(f"{option} Q4_0 had no effect")


@pytest.mark.parametrize(
    "kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL"]
)
@pytest.mark.parametrize("target", ["Q4_K", "Q8_0", "Q4_0"])
def test_blocks_are_refused_or_quantized_again(kind, target):
    x = values((4, 256))
    blocks = encoded(x, kind)
    write("q.gguf", {"blk.0.attn_q.weight": (blocks, kind)})
    options = ["gguf", "q.gguf", "out.gguf", "--pure", target]
    if kind == target:
        run("gguf", "q.gguf", "again.gguf", target, exit_code=4)
        run("gguf", "again.gguf", "copy.gguf", target, exit_code=4)
        assert Path("copy.gguf").read_bytes() == Path("again.gguf").read_bytes()
    else:
        assert told(*options) == (
            f"Error: q.gguf: tensor 'blk.0.attn_q.weight' is {kind}; only F32, F16 and BF16 are quantized; take "
            "--dequantize first, or --allow-requantize, where both steps lose\n"
        )
        assert not Path("out.gguf").exists()
    run(*options, "--allow-requantize", exit_code=4 if kind == target else 0)  # the same type is copied
    (found,) = read("out.gguf")[1].values()
    again = encoded(decoded(blocks, kind), target)
    assert found.tensor_type.name == target
    np.testing.assert_array_equal(found.data, blocks if kind == target else again)


@pytest.mark.parametrize("kind", ["I32", "I8", "F64"])
def test_numbers_that_are_no_weights_are_refused_without_advice(kind):
    dtype = {"I32": np.int32, "I8": np.int8, "F64": np.float64}[kind]
    write("n.gguf", {"blk.0.attn_q.weight": np.ones((4, 32), dtype)})
    line = told("gguf", "n.gguf", "out.gguf", "Q8_0", "--allow-requantize")
    assert line.endswith(f"is {kind}; only F32, F16 and BF16 are quantized\n")
    run("gguf", "n.gguf", "out.gguf", "--dequantize", exit_code=4)  # copies it
    assert read("out.gguf")[1]["blk.0.attn_q.weight"].tensor_type.name == kind


@pytest.mark.parametrize("options", [["--dequantize"], ["Q8_0", "--allow-requantize"]])
def test_blocks_that_fastq_does_not_read(options):
    write("q.gguf", {"blk.0.attn_q.weight": (np.zeros((4, 292), np.uint8), "Q8_K")})
    line = told("gguf", "q.gguf", "out.gguf", *options)
    assert line.endswith("tensor 'blk.0.attn_q.weight' is Q8_K, which fastq does not dequantize\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [(name, "BF16; only llama-quantize makes it") for name in (*ONLY_IN_LLAMA, "copy")]
    + [(name, f"--tensor-type .={name} with one of them") for name in ("MXFP4", "NVFP4", "I8")]
    + [("Q4_9", "'Q4_9' is not one of Q4_0"), ("99", "'99' is not one of Q4_0")]
    + [("q4km", ": did you mean Q4_K_M?"), ("Q8_0 --output-tensor-type q6k", ": did you mean Q6_K?")],
)
def test_types_that_are_no_mix(text, message):
    assert message in " ".join(told("gguf", "in.gguf", "out.gguf", *text.split(), exit_code=2).split())


def test_rows_that_are_not_whole_blocks():
    """Each tensor that has another type than its mix gives it is named, with both types."""
    narrow = {name: x[..., :96] for name, x in MODEL.items() if "attn" in name or "norm" in name}
    write("in.gguf", narrow | {"blk.0.ffn_up.weight": values((4, 256)), "blk.0.ffn_gate.weight": values((4, 33))})
    said = told("gguf", "in.gguf", "out.gguf", "Q4_K_M", exit_code=0)
    others = f"'{KEYS}' (Q5_0, not Q4_K), '{QUERIES}' (Q5_0, not Q4_K), 'blk.0.ffn_gate.weight' (F16, not Q4_K)"
    assert said == f"another type, since their rows are not whole blocks: {others}\n"
    assert not told("gguf", "in.gguf", "out.gguf", "F16", "--force", exit_code=0)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_errors_of_blocks_that_become_floats(kind):
    """Values that F16 and BF16 round are measured; in F32 nothing is lost."""
    x = values((4, 256))
    blocks = encoded(x, "Q8_0")
    write("in.gguf", {"blk.0.attn_q.weight": (blocks, "Q8_0"), "blk.0.attn_norm.weight": x[0]})
    rows = json.loads(run("gguf", "in.gguf", "out.gguf", kind, "--dequantize", "--json"))["tensors"]
    (found,) = (row["sqnr_db"] for row in rows if row["from"] == "Q8_0")
    before = decoded(blocks, "Q8_0").astype(np.float64)
    dtype = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}[kind]
    noise = np.sum((before - before.astype(dtype).astype(np.float64)) ** 2)
    assert found == (pytest.approx(10 * np.log10(np.sum(before**2) / noise)) if noise else None)
    last = run("gguf", "in.gguf", "out.gguf", kind, "--dequantize", "--force").splitlines()[-1]
    assert "2 tensors, 1 converted: " in last
    assert ("equal" in last) == (kind == "F32")


@pytest.mark.parametrize("kind", ["MXFP4", "NVFP4", "IQ3_S"])
def test_single_tensors_of_types_that_are_no_mix(kind):
    run("gguf", "in.gguf", "out.gguf", "Q8_0", "--tensor-type", f".={kind}")
    for name, each in read("out.gguf")[1].items():
        if "norm" not in name:
            assert each.tensor_type.name == kind
            np.testing.assert_array_equal(each.data, fastq.gguf.quantize(MODEL[name], kind))
