"""Importance matrices and options that fit or do not: what is used, what is said of the rest, exit codes."""

import re
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from gguf_files import encoded, read, values, write

import fastq
from fastq.cli.app import cli
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.io.gguf.mixes import OTHERS

MODEL = {
    "token_embd.weight": (values((8, 256)), None),
    "output_norm.weight": (values((256,)), None),
    "blk.0.attn_q.weight": (values((4, 256), 1), None),
    "blk.0.attn_k.weight": (values((4, 256), 2), None),
    "blk.0.ffn_up_exps.weight": (values((3, 2, 256), 3), None),
}
MATRICES = {name: (3 if "exps" in name else 1) for name in MODEL if "norm" not in name}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with in.gguf that is the current one."""
    monkeypatch.chdir(tmp_path)
    write("in.gguf", MODEL)


def run(*arguments, exit_code=0):
    result = CliRunner().invoke(cli, [str(each) for each in arguments])
    assert result.exit_code == exit_code, result.output
    return result


# Importance matrices, as one of the newer format and as one of the older


def entries(*names, width=256, **more):
    """Importance and counts by name; of experts each has a count."""
    found = {name: (np.abs(values((MATRICES.get(name, 1), width), 9)) + np.float32(0.1), 1) for name in names}
    return {name: (rows, np.full(len(rows), 7.0)) for name, (rows, _) in found.items()} | more


def newer(path, of):
    tensors = {f"{name}.in_sum2": (np.float32(rows * counts[:, None]), None) for name, (rows, counts) in of.items()}
    tensors |= {f"{name}.counts": (np.float32(counts).reshape(-1, 1), None) for name, (_, counts) in of.items()}
    write(path, tensors, fields={"general.type": "imatrix"})


def older(path, of):
    parts = [struct.pack("<i", len(of))]
    for name, (rows, counts) in of.items():
        calls = int(counts[0])
        parts += [struct.pack("<i", len(name)), name.encode(), struct.pack("<ii", calls, rows.size)]
        parts.append(np.float32(rows * max(calls, 1)).tobytes())
    Path(path).write_bytes(b"".join(parts))


ALL = entries(*MATRICES)
UNCOUNTED = ALL["blk.0.ffn_up_exps.weight"][0], np.array([7.0, 0, 0])


def holed(first, last):
    rows, counts = ALL["blk.0.attn_k.weight"]
    rows = rows.copy()
    rows[:, first:last] = 0
    return ALL | {"blk.0.attn_k.weight": (rows, counts)}


OF_EXPERTS = "experts not counted"  # the older format has one count for all of them
LACKS, UNUSED, ALIKE = (
    "lacks, or has with other columns: ",
    "has what no tensor is called, which is not used: ",
    "0 for all columns",
)
# what the matrix has, options, exit code, what is said of each line in order, whether the metadata tells of it
CASES = {
    "all": (ALL, ["Q4_0"], 0, [], True),
    "an entry for a norm": (ALL | entries("output_norm.weight"), ["Q4_0"], 0, [], True),
    "no embedding": (entries(*list(MATRICES)[1:]), ["Q4_0"], 0, [f"{LACKS}'token_embd.weight'$"], True),
    "two lacking": (
        entries("blk.0.attn_q.weight", "token_embd.weight"),
        ["Q4_0"],
        0,
        [f"{LACKS}'blk.0.attn_k.weight', "],
        True,
    ),
    "one of three": (entries("blk.0.attn_q.weight"), ["Q4_0"], 0, [LACKS], True),
    "one too many": (ALL | entries("blk.7.attn_q.weight"), ["Q4_0"], 0, [f"{UNUSED}'blk.7.attn_q.weight'$"], True),
    "many too many": (ALL | entries(*"abcde"), ["Q4_0"], 0, [f"{UNUSED}'a', 'b', 'c' and 2 more$"], True),
    "too many and lacking": (entries("blk.0.attn_q.weight", "a"), ["Q4_0"], 0, [LACKS, UNUSED], True),
    "of another model": (
        entries("blk.7.attn_q.weight"),
        ["Q4_0"],
        1,
        ["that of another model: it has none of 4 tensors"],
        False,
    ),
    "of another model, a mix": (
        entries("a.weight", "b"),
        ["Q4_K_M"],
        1,
        ["such as 'token_embd.weight', but has 'a.weight'"],
        False,
    ),
    "with a suffix": (entries("blk.0.attn_q"), ["Q4_0"], 1, ["that of another model"], False),
    "of kept tensors only": (entries("output_norm.weight"), ["Q4_0"], 1, ["that of another model"], False),
    "not needed": (ALL, ["Q8_0"], 0, ["was not used: no tensor is converted to a type that depends on it$"], False),
    "of another model, not needed": (entries("a"), ["Q8_0"], 0, ["was not used"], False),
    "not needed for floats": (ALL, ["F16"], 0, ["was not used"], False),
    "needed by one tensor": (ALL, ["Q8_0", "--tensor-type", "attn_q=Q4_K"], 0, [], True),
    OF_EXPERTS: (
        ALL | {"blk.0.ffn_up_exps.weight": UNCOUNTED},
        ["Q4_0"],
        0,
        ["weighed alike: 'blk.0.ffn_up_exps.weight, 2 of 3'"],
        True,
    ),
    "a column": (holed(3, 4), ["Q4_0"], 0, [], True),
    "half a block": (holed(32, 48), ["Q4_0"], 0, [], True),
    "a block": (
        holed(32, 64),
        ["Q4_0"],
        0,
        [f"{ALIKE} of some blocks, which are weighed alike, in 'blk.0.attn_k.weight'$"],
        True,
    ),
    "across two blocks": (holed(48, 80), ["Q4_0"], 0, [], True),
    "sixteen columns of Q6_K": (holed(32, 48), ["Q6_K"], 0, [ALIKE], True),
    "half of Q4_K": (holed(0, 128), ["Q4_K_S"], 0, [], True),
    "all of Q4_K": (holed(0, 256), ["Q4_K_S", "--pure"], 0, [ALIKE], True),
    "all of Q5_1": (holed(0, 256), ["Q5_1"], 0, [], True),
    "other columns": (
        ALL | entries("blk.0.attn_k.weight", width=255),
        ["Q4_0"],
        1,
        ["has 255 values for 'blk.0.attn_k.weight', not 256"],
        False,
    ),
    "other columns of the embedding": (
        ALL | entries("token_embd.weight", width=64),
        ["Q4_0"],
        0,
        [f"{LACKS}'token_embd.weight'$"],
        True,
    ),
    "one row for experts": (
        ALL | {"blk.0.ffn_up_exps.weight": ALL["blk.0.attn_k.weight"]},
        ["Q4_0"],
        1,
        ["has 256 values for 'blk.0.ffn_up_exps.weight', not 768"],
        False,
    ),
    "NaN": (
        ALL | {"a": (np.full((1, 4), np.nan), np.ones(1))},
        ["Q4_0"],
        1,
        ["'a' has values that are not finite"],
        False,
    ),
    "negative": (
        ALL | {"a": (np.full((1, 4), -1.0), np.ones(1))},
        ["Q4_0"],
        1,
        ["'a' has values that are negative"],
        False,
    ),
    "needed and there": (ALL, ["Q2_K_S"], 0, [], True),
    "needed and not there": (
        entries("token_embd.weight", "blk.0.attn_q.weight"),
        ["Q2_K_S"],
        1,
        [LACKS, "would be Q2_K: Q2_K_S needs an --imatrix that has it"],
        False,
    ),
}


@pytest.mark.parametrize(
    ("name", "form"), [(name, form) for name in CASES for form in (newer, older)[: 1 + (name != OF_EXPERTS)]]
)
def test_importance_matrices(name, form):
    of, options, exit_code, said, told = CASES[name]
    form("imatrix.dat", of)
    result = run("gguf", "in.gguf", "out.gguf", *options, "--imatrix", "imatrix.dat", exit_code=exit_code)
    lines = result.stderr.splitlines()
    assert len(lines) == len(said)
    for line, pattern in zip(lines, said, strict=True):
        assert re.search(pattern, line)
    assert Path("out.gguf").exists() == (exit_code == 0)
    if exit_code == 0:
        fields = {key: value for key, value in read("out.gguf")[0].items() if key.startswith("quantize.")}
        of_matrix = {"quantize.imatrix.file": "imatrix.dat", "quantize.imatrix.entries_count": len(of)}
        assert fields == (of_matrix if told else {})


def test_calls_of_none_count_as_one():
    for calls in (0, -3):
        rows = ALL["blk.0.attn_q.weight"][0]
        older("imatrix.dat", {"blk.0.attn_q.weight": (rows, np.array([float(calls)]))})
        run("gguf", "in.gguf", "out.gguf", "Q4_0", "--imatrix", "imatrix.dat", "--force")
        blocks = read("out.gguf")[1]["blk.0.attn_q.weight"].data
        np.testing.assert_array_equal(
            blocks, fastq.gguf.quantize(MODEL["blk.0.attn_q.weight"][0], "Q4_0", imatrix=rows[0])
        )


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"a.counts": (1, 1)}, "'a.counts' is there without 'a.in_sum2'"),
        ({"a.in_sum2": (1, 4)}, "'a.in_sum2' is there without 'a.counts'"),
        ({"a.in_sum2": (1, 4), "a.counts": (0, 1)}, "'a' has 0 counts for 4 sums"),
        ({"a.in_sum2": (1, 4), "a.counts": (3, 1)}, "'a' has 3 counts for 4 sums"),
        ({"a.other": (1, 4)}, "it has no entries"),
    ],
)
def test_matrices_that_do_not_fit_their_counts(tensors, message):
    write("imatrix.gguf", {name: (np.ones(shape, np.float32), None) for name, shape in tensors.items()})
    result = run("gguf", "in.gguf", "out.gguf", "Q4_0", "--imatrix", "imatrix.gguf", exit_code=1)
    assert result.stderr == f"Error: in.gguf: importance matrix imatrix.gguf: {message}\n"


@pytest.mark.parametrize("name", [name for name, form in BLOCK_FORMATS.items() if form.weighted])
def test_columns_without_importance_are_kept(name):
    form, x = BLOCK_FORMATS[name], values((3, 512))
    weights = np.abs(values((512,), 1)) + np.float32(0.1)
    for width in (form.group or form.size, 256, 512):
        holes, filled = weights.copy(), weights.copy()
        holes[:width], filled[:width] = 0, 1
        blocks = fastq.gguf.quantize(x, name, imatrix=holes)
        if form.group:
            np.testing.assert_array_equal(blocks, fastq.gguf.quantize(x, name, imatrix=filled))
        np.testing.assert_array_equal(blocks, fastq.reference.gguf.quantize(x, name, imatrix=holes))
        error = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])[:, :width] - x[:, :width]
        assert 10 * np.log10((x[:, :width] ** 2).sum() / (error**2).sum()) > 8


# Options


@pytest.mark.parametrize(
    ("options", "exit_code", "said"),
    [
        (
            ["Q8_0", "--tensor-type", "nothing=Q6_K"],
            1,
            ["--tensor-type nothing=Q6_K is for no tensor: none has a name in "],
        ),
        (
            ["Q8_0", "--tensor-type", "attn=Q6_K", "--tensor-type", "^q=Q4_0"],
            1,
            ["--tensor-type ^q=Q4_0 is for no tensor"],
        ),
        (["F16", "--tensor-type", "nothing=Q6_K"], 1, ["is for no tensor"]),
        (["Q8_0", "--tensor-type", "norm=Q6_K"], 4, ["--tensor-type norm=Q6_K gave no tensor its type"]),
        (
            ["Q8_0", "--tensor-type", "attn=Q6_K", "--tensor-type", "attn_q=Q4_0"],
            4,
            ["--tensor-type attn_q=Q4_0 gave no"],
        ),
        (["Q8_0", "--tensor-type", "attn=Q6_K", "--tensor-type", "_=Q4_0"], 0, []),
        (["Q8_0", "--output-tensor-type", "Q6_K"], 0, []),
        (["Q8_0", "--token-embedding-type", "Q6_K"], 0, []),
        (["F16", "--tensor-type", "attn_q=Q8_0"], 0, []),
    ],
)
def test_options_that_change_nothing(options, exit_code, said):
    lines = run("gguf", "in.gguf", "out.gguf", *options, exit_code=exit_code).stderr.splitlines()
    assert len(lines) == len(said)
    assert all(part in line for part, line in zip(said, lines, strict=True))
    assert Path("out.gguf").exists() == (exit_code != 1)


@pytest.mark.parametrize("option", ["--output-tensor-type", "--token-embedding-type"])
def test_types_of_tensors_that_are_not_there(option):
    write("in.gguf", {"blk.0.attn_q.weight": (values((4, 64)), None)})
    said = run("gguf", "in.gguf", "out.gguf", "Q8_0", option, "Q4_0", exit_code=4).stderr
    assert said.startswith(f"{option} Q4_0 gave no tensor its type")


@pytest.mark.parametrize(
    "kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL"]
)
@pytest.mark.parametrize("target", ["Q4_K", "Q8_0", "Q4_0"])
def test_blocks_are_refused_or_quantized_again(kind, target):
    x = values((4, 256))
    blocks = encoded(x, kind)
    write("q.gguf", {"blk.0.attn_q.weight": (blocks, kind)})
    options = ["gguf", "q.gguf", "out.gguf", "--pure", target]
    if kind != target:
        line = run(*options, exit_code=1).stderr
        assert re.search(f"'blk.0.attn_q.weight' is {kind}; only .*--dequantize first, or --allow-requantize", line)
    run(*options, "--allow-requantize")
    (found,) = read("out.gguf")[1].values()
    again = encoded(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind]), target)
    assert found.tensor_type.name == target
    np.testing.assert_array_equal(found.data, blocks if kind == target else again)


@pytest.mark.parametrize("kind", ["I32", "I8", "F64"])
def test_numbers_that_are_no_weights_are_refused_without_advice(kind):
    dtype = {"I32": np.int32, "I8": np.int8, "F64": np.float64}[kind]
    write("n.gguf", {"blk.0.attn_q.weight": (np.ones((4, 32), dtype), None)})
    line = run("gguf", "n.gguf", "out.gguf", "Q8_0", "--allow-requantize", exit_code=1).stderr
    assert line.endswith(f"is {kind}; only F32, F16 and BF16 are quantized\n")
    run("gguf", "n.gguf", "out.gguf", "--dequantize")  # copies it
    assert read("out.gguf")[1]["blk.0.attn_q.weight"].tensor_type.name == kind


@pytest.mark.parametrize("options", [["--dequantize"], ["Q8_0", "--allow-requantize"]])
def test_blocks_that_fastq_does_not_read(options):
    write("q.gguf", {"blk.0.attn_q.weight": (np.zeros((4, 66), np.uint8), "IQ2_XXS")})
    line = run("gguf", "q.gguf", "out.gguf", *options, exit_code=1).stderr
    assert line.endswith("tensor 'blk.0.attn_q.weight' is IQ2_XXS, which fastq does not dequantize\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [(name, "but one that llama-quantize has and fastq lacks") for name in (*OTHERS, "iq2_xs")]
    + [(name, f"--tensor-type .={name} with one of them") for name in ("MXFP4", "NVFP4", "I8")]
    + [("Q4_9", "'Q4_9' is not one of Q4_0"), ("99", "'99' is not one of Q4_0")]
    + [("q4km", ": did you mean Q4_K_M?"), ("Q8_0 --output-tensor-type q6k", ": did you mean Q6_K?")],
)
def test_types_that_are_no_mix(text, message):
    assert message in " ".join(run("gguf", "in.gguf", "out.gguf", *text.split(), exit_code=2).stderr.split())


@pytest.mark.parametrize("kind", ["MXFP4", "NVFP4"])
def test_single_tensors_of_types_that_are_no_mix(kind):
    run("gguf", "in.gguf", "out.gguf", "Q8_0", "--tensor-type", f".={kind}")
    for name, each in read("out.gguf")[1].items():
        if "norm" not in name:
            assert each.tensor_type.name == kind
            x = MODEL[name][0]
            np.testing.assert_array_equal(each.data, fastq.gguf.quantize(x, kind))
