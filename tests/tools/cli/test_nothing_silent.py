"""What a user named and a command did not use, find, read or compare is said on standard error, and is an exit code."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands import invoke, run, told
from gguf_files import write as write_gguf
from safetensors.numpy import save_file

import fastq
from fastq import reference
from fastq.tools.cli.exit_codes import EXIT_CODES, IN_PART, TOO_FAR

RNG = np.random.default_rng(2)
W, BIAS, IDS = RNG.standard_normal((8, 32)).astype(np.float32), RNG.standard_normal(8).astype(np.float32), np.arange(5)
SPOILED = np.where(np.arange(8) < 2, np.nan, BIAS).astype(np.float32)


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory):
    """A folder with files of each kind."""
    before, folder = os.getcwd(), tmp_path_factory.mktemp("files")
    os.chdir(folder)
    save_file({"a.weight": W, "a.bias": BIAS, "ids": IDS}, "in.safetensors")
    save_file({"a.weight": W, "a.bias": SPOILED}, "nan.safetensors")
    save_file({"a.bias": np.where(np.arange(8) < 1, np.float32(-np.inf), BIAS)}, "inf.safetensors")
    save_file({"a": BIAS, "a_scale": IDS}, "collide.safetensors")
    save_file({"a.weight": W, "more": W}, "both.safetensors")
    save_file({"b": BIAS, "ids": IDS}, "vectors.safetensors")
    save_file({"a.weight": W}, "less.safetensors")
    save_file({"a.weight": W, "mask": W > 0}, "mask.safetensors")
    save_file({"a.weight": W, "mask": W < 0}, "other.safetensors")
    save_file({"a.weight": W + 1}, "far.safetensors")
    save_file({"z": W}, "renamed.safetensors")
    arrays = {"v": BIAS, "ints": IDS, "complex": IDS * 1j, "text": np.array("text"), "nothing": W[:0], "flag": W > 0}
    for name, array in (arrays | {"big": IDS.astype(">u4"), "little": IDS.astype("<u4"), "flag2": W < 0}).items():
        np.save(f"{name}.npy", array)
    for name in ("taken.safetensors", "taken.gguf", "note.txt", "old.pt"):
        (folder / name).write_text("taken")
    (folder / "cut.safetensors").write_bytes((folder / "in.safetensors").read_bytes()[:1000])
    os.symlink("in.safetensors", "link.safetensors")
    os.mkdir("dir.safetensors")
    invoke("quantize", "in.safetensors", "q.safetensors")
    tensors = {"x.weight": W, **dict.fromkeys(["more_1", "more_2", "more_3", "more_4", "more_5"], BIAS)}
    save_file(tensors, "many.safetensors")
    save_file({"only.weight": W, "a.bias": BIAS}, "floats.safetensors")
    invoke("quantize", "floats.safetensors", "renamed-q.safetensors")
    os.mkdir("missing")
    (folder / "missing" / "config.json").write_text("{}")
    (folder / "missing" / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"dtype": "float32"}')
    save_file({"a.weight": W.repeat(16, 0), "a.bias": BIAS}, "model/model.safetensors")
    (folder / "like.json").write_text(run("suggest", "in.safetensors", "--sqnr", 40, "--json"))
    (folder / "of-ids.json").write_text((folder / "like.json").read_text().replace("a.weight", "ids"))
    (folder / "empty.json").write_text("{}")
    (folder / "nothing.json").write_text('{"tensors": []}')
    (folder / "types.json").write_text('{"tensors": [{"name": "blk.0.attn_q.weight", "scheme": "q4_0"}]}')
    (folder / "presets.json").write_text('{"tensors": [{"name": "a.weight", "scheme": "W8A16"}]}')
    for name, held in {"folder": ("a.gguf", "b.gguf", "w.npy"), "nothing": ("c.gguf",)}.items():
        (folder / name).mkdir()
        for each in held:
            shutil.copy("v.npy", f"{name}/{each}")
    (folder / "full").mkdir()
    (folder / "full" / "here").write_text("")
    (folder / "damaged").mkdir()
    shutil.copy("cut.safetensors", "damaged")
    write_gguf("in.gguf", {"blk.0.attn_q.weight": W, "output_norm.weight": BIAS})
    yield
    os.chdir(before)


TO, ERROR, CAN_NOT = "quantize in.safetensors o.safetensors ", "Error: ", "tensor 'a.bias' can't be quantized"
NAN = "quantize nan.safetensors o.safetensors --all"
CUT, NO_FLOATS = "cut.safetensors is not a readable .safetensors file: ", ("ints", "complex", "text", "nothing")
CASES = [
    # patterns that are for nothing, with the nearest names
    (TO + "--include nothing", 1, "no tensor to quantize has a name that matches 'nothing'"),
    (TO + "--include weight", 1, "matches 'weight'; --include '*weight*' matches 1 of them: a.weight"),
    (TO + "--include *.weigt_", 1, "matches '*.weigt_'; the nearest are a.weight"),
    (TO + "--include *.weight --include x", 1, "has a name that matches 'x'"),
    (TO + "--exclude nothing", 1, "no tensor has a name that matches 'nothing'"),
    (TO + "--include ids --include a.*", 1, "nothing that matches 'ids' is quantized: 'ids' is I64"),
    (TO + "--include *.bias --include a.*", 1, "nothing that matches '*.bias' is quantized: 'a.bias' is a vector"),
    (TO + "--include *.bias --include a.* --exclude *.bias --all", 1, "'a.bias' is excluded"),
    (TO + "--include *.bias --include a.* --all", 0, ""),
    (TO + "--exclude *.bias", 0, ""),
    # options that have no effect, alone or together
    ("quantize v.npy o.safetensors --axis 0", 2, "--axis is for arrays of two axes or more"),
    ("quantize vectors.safetensors o.safetensors --all --axis 0", 2, "--axis is for arrays of two axes or more"),
    ("quantize v.npy o.safetensors --axis none", 0, ""),
    ("quantize v.npy o.safetensors --axis 0 --block-size 4", 0, ""),
    (TO + "--dtype mxfp4 --asymmetric", 2, "--asymmetric is for integer codes"),
    (TO + "--dtype mxfp4 --block-size 16", 2, "mxfp4 has blocks of 32"),
    (TO + "--dtype mxfp4 --axis none", 2, "mxfp4 has blocks of 32 along an --axis"),
    (TO + "--axis none --block-size 8", 2, "--block-size needs an --axis"),
    (TO + "--dtype float8_e4m3fn --convention torch", 2, "convention must be 'onnx'"),
    (TO + "--axis 2", 1, "tensor 'a.weight': axis 2 is out of bounds for 2 dimensions"),
    (TO + "--like like.json", 0, ""),
    (TO + "--like like.json --exclude *.bias", 0, ""),
    (TO + "--like like.json --dtype int4", 2, "--like has the schemes; it cannot be combined with --dtype"),
    (TO + "--block-size 8 --like like.json", 2, "--like has the schemes; it cannot be combined with --block-size"),
    (TO + "--like empty.json", 2, "'empty.json' is not the output of suggest --json for such a file: 'tensors'"),
    (TO + "--like in.gguf", 2, "'in.gguf' is not the output of suggest --json"),
    (TO + "--like presets.json", 2, "'W8A16' is a scheme of another command"),
    ("gguf in.gguf o.gguf --like like.json", 2, "'like.json' is not the output of suggest --json for such a file: "),
    ("gguf in.gguf o.gguf --dequantize --like types.json", 2, "--dequantize can be combined with F32, F16"),
    ("convert folder o --like like.json", 2, "'like.json' is not the output of suggest --json for such a file: "),
    ("convert folder o --like empty.json", 2, "'empty.json' is not the output of suggest --json for such a file: "),
    ("convert folder o --like nothing.json", 2, "--scheme is missing"),
    ("convert folder o --like presets.json --scheme W8A8", 2, "--like has the schemes; it cannot be combined with"),
    ("convert folder o --like presets.json --dequantize", 2, "--like has the schemes; it cannot be combined with"),
    (TO + "--like missing.json", 2, "'missing.json' does not exist"),
    (TO + "--like of-ids.json", 1, "no tensor to quantize"),
    (
        "quantize renamed.safetensors o.safetensors --like like.json",
        1,
        "it has no tensor 'a.weight', which has a scheme",
    ),
    # arguments
    ("quantize missing.npy o.safetensors", 2, "Invalid value for 'IN'"),
    ("quantize . o.safetensors", 2, "Invalid value for 'IN'"),
    ("quantize note.txt o.safetensors", 2, "'IN': 'note.txt' does not end in .npy, .npz or .safetensors"),
    ("quantize old.pt o.safetensors", 2, "or .safetensors; torch.load reads it, and safetensors.torch.save_file"),
    ("quantize in.safetensors q.npy", 2, "Invalid value for 'OUT': 'q.npy' does not end in .safetensors"),
    ("quantize in.safetensors no/q.safetensors", 2, "Invalid value for 'OUT': there is no folder 'no'"),
    ("quantize in.safetensors in.safetensors --force", 2, "Invalid value for 'OUT': 'in.safetensors' is IN itself"),
    ("quantize in.safetensors link.safetensors --force", 2, "'OUT': 'link.safetensors' is IN itself"),
    ("quantize in.safetensors dir.safetensors --force", 2, "'OUT': 'dir.safetensors' is not a file"),
    (TO + "--dtype int9", 2, "Invalid value for '--dtype'"),
    (TO + "--axis rows", 2, "'--axis': 'rows' is neither an integer nor 'none'"),
    (TO + "--block-size -1", 2, "Invalid value for '--block-size'"),
    (TO + "--nan keep", 2, "Invalid value for '--nan'"),
    (TO + "--dtype mxfp4 --asymmetric", 2, "those of mxfp4 are symmetric"),
    (TO + "--dtype float8_e5m2 --asymmetric", 2, "is for integer codes"),
    (TO + "--dtype nvfp4 --axis none", 2, "nvfp4 has blocks of 16 along an --axis"),
    ("gguf in.gguf o.gguf --type Q4_9", 2, "Invalid value for 'TYPE': 'Q4_9' is not one of Q4_0"),
    ("gguf in.gguf o.gguf Q4_K_M --type Q4_K_S", 2, "TYPE is given twice, as Q4_K_M and as --type Q4_K_S"),
    ("gguf in.gguf o.gguf 4", 2, "Invalid value for 'TYPE': '4' is not one of Q4_0"),
    ("gguf in.gguf o.gguf --dequantize --pure", 2, "--dequantize can be combined with F32, F16 or BF16 only"),
    (
        "gguf in.gguf o.gguf --dequantize --allow-requantize",
        2,
        "--dequantize can be combined with F32, F16 or BF16 only",
    ),
    ("gguf in.gguf o.npy --type Q8_0", 2, "Invalid value for 'OUT': 'o.npy' does not end in .gguf"),
    ("gguf in.gguf q4_k_m", 2, "Invalid value for 'OUT': 'q4_k_m' is a TYPE, which follows OUT"),
    ("gguf note.txt o.gguf --type Q8_0", 2, "Invalid value for 'IN': 'note.txt' does not end in .gguf"),
    ("gguf in.gguf taken.gguf --type Q8_0", 2, "'OUT': 'taken.gguf' exists; --force replaces it"),
    ("gguf in.gguf o.gguf --type Q8_0 --tensor-type Q8_0", 2, "'Q8_0' is not PATTERN=TYPE"),
    ("gguf in.gguf o.gguf --type Q8_0 --tensor-type (=Q8_0", 2, "'(' is not a regular expression"),
    ("gguf in.gguf o.gguf --type Q8_0 --tensor-type a=b", 2, "'b' is not a type of tensors: F32"),
    ("gguf in.gguf o.gguf --type Q8_0 --tensor-type a=Q8", 2, "MXFP4, NVFP4, Q1_0, Q2_0: did you mean Q8_0?"),
    ("gguf in.gguf o.gguf --type Q8_0 --output-tensor-type Q9", 2, "'Q9' is not a type of tensors"),
    ("gguf in.gguf o.gguf --type Q8_0 --imatrix none", 2, "Invalid value for '--imatrix'"),
    ("inspect note.txt", 2, "'note.txt'"),
    ("suggest less.safetensors --sqnr nan", 2, "Invalid value for '--sqnr': 'nan' is not a number of decibels"),
    ("compare less.safetensors far.safetensors --at-least nan", 2, "'--at-least': 'nan' is not a number of decibels"),
    ("compare less.safetensors", 2, "Missing argument 'B'"),
    # what can't be quantized
    *((f"quantize {name}.npy o.safetensors", 1, "no tensor to quantize") for name in NO_FLOATS),
    ("quantize inf.safetensors o.safetensors --all --nan zero", 1, f"{ERROR}inf.safetensors: {CAN_NOT}: x has 1 inf"),
    ("quantize collide.safetensors o.safetensors --all", 1, f"{ERROR}collide.safetensors: two tensors would be named"),
    *((f"{command} cut.safetensors o.safetensors", 1, f"{ERROR}{CUT}") for command in ("quantize", "dequantize")),
    ("inspect cut.safetensors", 1, f"{ERROR}{CUT}"),
    ("inspect missing", 1, "model-1.safetensors, which is missing"),
    # what is in the way, or can't be read by this command
    ("quantize in.safetensors taken.safetensors", 2, "'taken.safetensors' exists; --force replaces it"),
    ("dequantize q.safetensors taken.safetensors", 2, "'taken.safetensors' exists; --force replaces it"),
    ("gguf in.gguf in.gguf --type Q8_0 --force", 2, "'in.gguf' is IN itself"),
    ("gguf in.gguf taken.gguf Q4_0 --imatrix taken.gguf --force", 2, "'taken.gguf' is --imatrix itself"),
    (
        "quantize in.safetensors taken.safetensors --like taken.safetensors --force",
        2,
        "'taken.safetensors' is --like itself",
    ),
    ("dequantize q.safetensors o.npy", 1, "a .npy file holds one array, not 3; write .safetensors"),
    (
        "dequantize in.safetensors o.safetensors",
        1,
        f"{ERROR}in.safetensors: holds nothing that fastq quantized (no 'fa",
    ),
    ("quantize q.safetensors o.safetensors", 1, "it is quantized already; fastq dequantize restores it"),
    ("quantize model o.safetensors", 2, "'model' is a folder; fastq convert model OUT --scheme W8A16"),
    ("quantize in.gguf o.safetensors", 2, "'in.gguf' is a .gguf file; fastq gguf in.gguf OUT.gguf"),
    ("dequantize in.gguf o.gguf", 2, "metadata, too: fastq gguf IN OUT.gguf --dequantize writes one"),
    ("quantize org/model-1.5 o.safetensors", 2, "fastq downloads nothing: hf download org/model-1.5 --local-dir"),
    ("inspect https://host/w.npy", 2, "'https://host/w.npy' does not exist; fastq downloads nothing"),
    ("inspect org/name", 2, "fastq downloads nothing: hf download org/name --local-dir name"),
    ("compare in.safetensors org/name", 2, "fastq downloads nothing: hf download org/name --local-dir name"),
    ("inspect model/missing.safetensors", 2, "'model/missing.safetensors' does not exist"),
    ("convert model/model.safetensors o --scheme W8A16", 2, "name the folder that has it and config.json"),
    ("convert in.gguf o --scheme W8A16", 2, "'in.gguf' is a .gguf file; fastq gguf reads it"),
    ("convert note.txt o --scheme W8A16", 2, "'note.txt' is not a folder"),
    ("convert org/name o --scheme W8A16", 2, "fastq downloads nothing: hf download org/name --local-dir name"),
    ("convert model full --scheme W8A8", 2, "full is not empty; --force replaces the files in the way"),
    ("convert model model --scheme W8A8", 2, "model is SRC itself; name another one"),
    ("convert model o --scheme W8A16 --ignore nothing", 1, "nothing"),
    ("convert model o --scheme W8A16 --scheme-for nothing=W4A16", 1, "nothing"),
    ("convert model o --scheme FP8_DYNAMIC --group-size 32", 2, "--group-size applies to integers in groups"),
    ("convert model o --scheme W8A16 --dtype float16", 2, "--dtype needs --dequantize"),
    (
        "convert model o --dequantize --group-size 32",
        2,
        "--dequantize can be combined with --dtype, --force and the options of the table only",
    ),
    ("gguf model o.gguf Q8_0", 2, "'model' is a folder; convert_hf_to_gguf.py of llama.cpp makes GGUF"),
    ("gguf in.safetensors o.gguf Q8_0", 2, "is a .safetensors file; convert_hf_to_gguf.py of llama.cpp makes GGUF"),
    ("gguf in.gguf o.gguf Q8_0 --tensor-type nothing=Q4_0", 1, "nothing"),
    ("gguf in.gguf o.gguf Q8_0 --dequantize", 2, "'Q8_0' is not one of F32, F16, BF16"),
    ("gguf in.gguf o.gguf", 2, "TYPE is missing"),
    # values that were changed
    (NAN, 1, f"{ERROR}nan.safetensors: tensor 'a.bias' has 2 NaN; --nan zero treats them as 0"),
    (NAN + " --nan zero", 0, "a.bias: 2 NaN as 0"),
    # what was not compared
    ("compare in.safetensors q.safetensors", 0, ""),
    ("compare in.safetensors less.safetensors", IN_PART, "a.bias: only in in.safetensors"),
    ("compare less.safetensors in.safetensors --json", IN_PART, "ids: only in in.safetensors"),
    ("compare less.safetensors in.safetensors --at-least 1", TOO_FAR, "ids: only in in.safetensors"),
    ("compare in.safetensors renamed-q.safetensors", IN_PART, "no quantized tensor is among the 1 that were compared"),
    ("compare in.safetensors cut.safetensors", 1, f"{ERROR}cut.safetensors is not a readable .safetensors file: "),
    ("compare in.safetensors renamed.safetensors", 1, "has no tensor whose name is in in.safetensors"),
    ("compare mask.safetensors mask.safetensors", 0, "mask: not measured: BOOL, the same bytes in both"),
    ("compare mask.safetensors other.safetensors", IN_PART, "mask: not measured: BOOL, and the bytes differ"),
    ("compare mask.safetensors other.safetensors --at-least 9", TOO_FAR, "BOOL, and the bytes differ"),
    ("compare in.safetensors both.safetensors", IN_PART, "more: only in both.safetensors"),
    ("compare in.safetensors both.safetensors", IN_PART, "ids: only in in.safetensors"),
    ("compare flag.npy flag.npy --at-least 9", 0, "flag: not measured: bool, the same bytes in both"),
    ("compare flag.npy flag2.npy --at-least 9", TOO_FAR, "flag: not measured: bool, and the bytes differ"),
    ("compare big.npy little.npy", 0, "the same bytes in both"),
    ("compare less.safetensors far.safetensors", 0, ""),
    ("compare less.safetensors far.safetensors --at-least=-5", 0, ""),
    ("compare less.safetensors far.safetensors --at-least 50", TOO_FAR, "below 50 dB: a.weight ("),
    ("compare less.safetensors far.safetensors --report page.html", 0, ""),
    # what was left out, or not reached
    ("suggest in.safetensors --sqnr 9", 0, "left out: 1 (I64), 1 (vectors)"),
    ("suggest less.safetensors --sqnr 90", TOO_FAR, "no scheme reaches 90 dB: a.weight ("),
    ("suggest v.npy --sqnr 25", 0, "fastq quantize --like FILE takes them"),
    ("suggest vectors.safetensors", 1, "1 (vectors)"),
    ("suggest vectors.safetensors", 1, "no tensor of two axes or more of F64, F32, F16, BF16; left out: 1 (I64)"),
    ("suggest q.safetensors", 1, "1 (quantized already)"),
    ("inspect folder", 0, "not read in folder: a.gguf, b.gguf; give a .gguf file itself"),
    ("inspect nothing", 1, "not read in nothing: c.gguf"),
    ("inspect damaged", 1, f"{ERROR}damaged: cut.safetensors is not a readable .safetensors file: "),
    # the others
    ("bench -o nothing", 2, "no work fits nothing; --list prints them"),
    ("bench -o minmax,nothing", 2, "no work fits nothing; --list prints them"),
    ("bench -c nobody", 2, "nobody: choose from fastq"),
    ("bench --list -o nothing", 2, "no work fits nothing"),
    ("check --cases 0", 2, "0 is not in the range x>=1"),
    ("demo --size 0", 2, "0 is not in the range x>=1"),
    ("info extra", 2, "unexpected extra argument"),
    ("conventions texbook", 2, "'texbook' is not one of 'onnx'"),
    ("completion tcsh", 2, "'tcsh' is not one of"),
]


@pytest.mark.parametrize(("line", "code", "told"), CASES, ids=lambda value: value if isinstance(value, str) else "")
def test_what_was_named_and_not_used_is_said(line, code, told):
    before = files()
    result = invoke(*line.split())
    assert result.exit_code == code, result.output
    said = " ".join(result.stderr.split())
    assert told in said
    assert bool(said) == bool(told), said
    assert not re.search(r"(\S+): \1 |\b1 \w+(tensors|files|cases)\b", said)
    assert code not in (1, 2) or result.stdout == ""
    for name in ("o.safetensors", "page.html") if code == 0 else ():
        Path(name).unlink(missing_ok=True)
    assert files() == before


def files():
    """All existing files, with the facts that change when one is written."""
    return {path: (*path.lstat()[:7], path.lstat().st_mtime_ns) for path in Path().rglob("*") if path.is_file()}


def test_nan_that_was_replaced_is_in_the_table():
    output = run("quantize", "nan.safetensors", "nan-q.safetensors", "--all", "--nan", "zero")
    assert re.search(r"a\.bias .* int8 symmetric, 2 NaN as 0 ", output)
    assert fastq.load("nan-q.safetensors")["a.bias"].dequantize()[0] == 0


@pytest.mark.slow("compiles the kernels of suggestions", quick=lambda least: least == 40)
@pytest.mark.parametrize("least", [15, 25, 40])
def test_what_was_suggested_is_what_is_quantized(least):
    rows = RNG.standard_normal((64, 64)).astype(np.float32) * np.exp(RNG.uniform(-5, 5, 64)).astype(np.float32)[:, None]
    save_file({"even": W, "rows": rows, "half": W.astype(np.float16), "bias": BIAS}, "four.safetensors")
    Path("four.json").write_text(run("suggest", "four.safetensors", "--sqnr", least, "--json"))
    output = run("quantize", "four.safetensors", "four-q.safetensors", "--like", "four.json", "--force")
    assert re.search(r"bias .* copied: not suggested ", output)
    for entry in json.loads(Path("four.json").read_text())["tensors"]:
        found, scheme = fastq.load("four-q.safetensors")[entry["name"]], entry["scheme"]
        x = fastq.load("four.safetensors")[entry["name"]]
        assert found.dtype.name == scheme["dtype"]
        assert found.unpacked().tobytes() == reference.quantize(x, **scheme).unpacked().tobytes()
        assert reference.compare(x, found).sqnr_db >= least


def test_of_many_names_some_are_told_and_the_others_counted():
    run("compare", "many.safetensors", "in.safetensors", exit_code=1)
    save_file({"x.weight": W}, "x.safetensors")
    lines = [f"{name}: only in many.safetensors" for name in ("more_1", "more_2", "more_3", "2 more")]
    assert told("compare", "many.safetensors", "x.safetensors", exit_code=IN_PART).splitlines() == lines


def test_what_is_said_does_not_get_into_the_output():
    output = run("compare", "less.safetensors", "in.safetensors", "--json", exit_code=IN_PART)
    assert [line["name"] for line in json.loads(output)["tensors"]] == ["a.weight"]


# commands with a table of tensors
TABLES = {
    "quantize": "quantize in.safetensors table.safetensors --force",
    "gguf": "gguf in.gguf table.gguf Q8_0 --force",
    "convert": "convert model table --scheme W8A8 --force",
    "compare": "compare less.safetensors in.safetensors",
    "suggest": "suggest less.safetensors",
    "inspect": "inspect in.safetensors",
    "inspect GGUF": "inspect in.gguf",
}


@pytest.mark.parametrize("line", TABLES.values(), ids=TABLES)
def test_json_is_one_object_in_all_commands(line, tmp_path):
    """`--json` takes no value, and `--report` takes a file of any of three kinds; shapes are lists."""
    result = invoke(*line.split(), "--json")
    table = json.loads(result.stdout)
    shapes = [entry["shape"] for entry in table["tensors"]]
    assert shapes
    assert all(isinstance(shape, list) for shape in shapes)
    shown = " ".join(run(line.split()[0], "--help").split())
    assert "--json Print JSON instead of the table." in shown
    if "--report" in shown:
        for suffix in ("json", "csv", "html"):
            invoke(*line.split(), "--report", tmp_path / f"r.{suffix}")
            assert (tmp_path / f"r.{suffix}").stat().st_size
        assert json.loads((tmp_path / "r.json").read_text()) == table


def test_sums_are_one_line_in_all_commands():
    pattern = r"^3 tensors, 1 quantized: 1,096 -> 360 bytes, 3\.04 x, (\d+\.\d\d) dB, worst \1 dB: a\.weight$"
    for command, *force in (["quantize", "--force"], ["compare"]):
        assert re.search(pattern, run(command, "in.safetensors", "sums.safetensors", *force), re.MULTILINE), command


def test_exit_codes_are_one_table():
    page = (Path(__file__).parents[3] / "docs" / "howto" / "files.md").read_text("utf-8")
    table = dict(re.findall(r"^\| (\d+) \| (.*) \|$", page, re.MULTILINE))
    assert table == {str(code): meaning for code, meaning in EXIT_CODES.items()}
    shown = " ".join(run("--help").split())
    for code, meaning in EXIT_CODES.items():
        assert f" {code}: {meaning.replace('`', '')}." in shown
    assert {code for _, code, _ in CASES} == EXIT_CODES.keys() - {130}
