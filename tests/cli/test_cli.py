"""The command line: what it prints, what it leaves on disk, how it ends."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

import fastq
from fastq import config, reference
from fastq.cli import demo, selfcheck
from fastq.cli.app import cli
from fastq.io.containers import open_source
from fastq.io.scheme import Scheme


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A small checkpoint, in.safetensors, in a folder of its own that is the current one."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    tensors = {
        "layer.weight": rng.standard_normal((160, 128)).astype(np.float32),
        "layer.bias": rng.standard_normal(160).astype(np.float32),
        "ids": np.arange(5),
    }
    save_file(tensors, "in.safetensors", {"format": "pt"})
    return tensors


def run(*arguments, exit_code=0):
    result = CliRunner().invoke(cli, [str(a) for a in arguments])
    assert result.exit_code == exit_code, result.output
    return result.output


def flipped(function):
    """`function` with one code changed."""

    def wrong(*arguments, **options):
        q = function(*arguments, **options)
        if q.codes.size:
            q.codes.reshape(-1)[:1] ^= 1
        return q

    return wrong


# Quantize and dequantize


def test_there_and_back(model):
    output = run("quantize", "in.safetensors", "q.safetensors", "--all")
    assert run("dequantize", "q.safetensors", "out.safetensors").startswith("2 tensors dequantized: ")
    read, stored = load_file("out.safetensors"), load_file("q.safetensors")
    rows = reference.quantize(model["layer.weight"], "int8", axis=0, symmetric=True)
    whole = reference.quantize(model["layer.bias"], "int8", symmetric=True)
    assert set(stored) == {"layer.weight", "layer.weight_scale", "layer.bias", "layer.bias_scale", "ids"}
    assert stored["layer.weight"].tobytes() == rows.codes.tobytes()
    assert read["layer.weight"].tobytes() == reference.dequantize(rows).tobytes()
    assert read["layer.bias"].tobytes() == reference.dequantize(whole).tobytes()
    assert read["ids"].tobytes() == model["ids"].tobytes()
    assert sorted(os.listdir()) == ["in.safetensors", "out.safetensors", "q.safetensors"]
    for word in ("tensor", "shape", "scheme", "bytes", "SQNR dB", "largest error"):
        assert word in output
    assert re.search(r"layer\.weight +160 x 128 +81,920 +int8 axis=0 symmetric +21,120 +[\d.]+ +[\d.]+", output)
    assert re.search(r"layer\.bias +160 +640 +int8 symmetric +164 +[\d.]+ +[\d.]+", output)
    assert re.search(r"ids +5 +40 +copied: I64 +40 +- +-", output)
    assert re.search(r"3 tensors +82,600 +total +21,324", output)


def test_vectors_are_left_alone_unless_all_are_wanted(model):
    output = run("quantize", "in.safetensors", "q.safetensors")
    assert re.search(r"layer\.bias +160 +640 +copied: a vector +640 +- +-", output)
    stored = load_file("q.safetensors")
    assert set(stored) == {"layer.weight", "layer.weight_scale", "layer.bias", "ids"}
    assert stored["layer.bias"].tobytes() == model["layer.bias"].tobytes()


def test_a_vector_of_a_npy_file_is_quantized(model):
    np.save("b.npy", model["layer.bias"])
    run("quantize", "b.npy", "b.safetensors")
    expected = reference.quantize(model["layer.bias"], "int8", symmetric=True)
    assert load_file("b.safetensors")["b"].tobytes() == expected.codes.tobytes()


def test_progress_is_for_terminals(model):
    result = CliRunner().invoke(cli, ["quantize", "in.safetensors", "q.safetensors"])
    assert not result.stderr


@pytest.mark.slow(
    "compiles kernels for each format", quick=lambda options, scheme: not options or scheme["dtype"] == "mxfp4"
)
@pytest.mark.parametrize(
    ("options", "scheme"),
    [
        ([], {"dtype": "int8", "axis": 0, "symmetric": True}),
        (["--dtype", "uint8", "--asymmetric"], {"dtype": "uint8", "axis": 0}),
        (["--axis", "none"], {"dtype": "int8", "symmetric": True}),
        (["--axis", "-1", "--dtype", "int16"], {"dtype": "int16", "axis": -1, "symmetric": True}),
        (["--block-size", "32"], {"dtype": "int8", "axis": -1, "block_size": 32, "symmetric": True}),
        (["--block-size", "32", "--axis", "0"], {"dtype": "int8", "axis": 0, "block_size": 32, "symmetric": True}),
        (["--dtype", "float8_e4m3fn"], {"dtype": "float8_e4m3fn", "axis": 0}),
        (["--dtype", "mxfp4"], {"dtype": "mxfp4"}),
        (["--dtype", "float8_e4m3fn", "--range", "mse"], {"dtype": "float8_e4m3fn", "axis": 0, "range": "mse"}),
        (["--dtype", "nvfp4", "--axis", "0", "--block-size", "16"], {"dtype": "nvfp4", "axis": 0}),
    ],
)
def test_options(model, options, scheme):
    run("quantize", "in.safetensors", "q.safetensors", *options)
    q = reference.quantize(model["layer.weight"], **scheme)
    stored = open_source(Path("q.safetensors"))
    assert stored.raw("layer.weight_packed" if q.dtype.packed else "layer.weight").tobytes() == q.codes.tobytes()
    assert stored.raw("layer.weight_scale").tobytes() == q.scale.tobytes()
    assert ("layer.weight_zero_point" in stored.tensors) is not q.symmetric


FLOAT8 = ["--dtype", "float8_e4m3fn"]


def test_convention(model):
    run("quantize", "in.safetensors", "q.safetensors", "--convention", "compressed-tensors")
    q = reference.quantize(model["layer.weight"], "int8", axis=0, symmetric=True, convention="compressed-tensors")
    assert load_file("q.safetensors")["layer.weight"].tobytes() == q.codes.tobytes()
    run("dequantize", "q.safetensors", "out.safetensors")
    assert load_file("out.safetensors")["layer.weight"].tobytes() == reference.dequantize(q).tobytes()
    run("quantize", "in.safetensors", "q.safetensors", "--force", *FLOAT8, "--convention", "compressed-tensors")
    q = reference.quantize(model["layer.weight"], "float8_e4m3fn", axis=0, convention="compressed-tensors")
    assert open_source(Path("q.safetensors")).raw("layer.weight").tobytes() == q.codes.tobytes()
    options = ["--convention", "torch", *FLOAT8]
    result = CliRunner().invoke(cli, ["quantize", "in.safetensors", "q.safetensors", "--force", *options])
    assert (result.exit_code, "convention must be 'onnx'" in result.stderr) == (2, True)


def test_include_and_exclude(model):
    names = ["--include", "layer.w*", "--include", "layer.*", "--exclude", "*.bias"]
    output = run("quantize", "in.safetensors", "q.safetensors", *names)
    assert re.search(r"layer\.bias +160 +640 +copied: by name", output)
    assert load_file("q.safetensors")["layer.bias"].tobytes() == model["layer.bias"].tobytes()


def test_npy_there_and_back(model):
    np.save("w.npy", model["layer.weight"])
    run("quantize", "w.npy", "q.safetensors")
    run("dequantize", "q.safetensors", "out.npy")
    expected = reference.dequantize(reference.quantize(model["layer.weight"], "int8", axis=0, symmetric=True))
    assert np.load("out.npy").tobytes() == expected.tobytes()


def test_force_replaces(model):
    run("quantize", "in.safetensors", "q.safetensors")
    run("quantize", "in.safetensors", "q.safetensors", "--dtype", "int16", "--force")
    assert load_file("q.safetensors")["layer.weight"].dtype == np.int16
    run("dequantize", "q.safetensors", "out.safetensors")
    run("dequantize", "q.safetensors", "out.safetensors", "--force")


def test_nan_zero(model):
    model["layer.bias"][3] = np.nan
    save_file(model, "in.safetensors")
    run("quantize", "in.safetensors", "q.safetensors", "--all", "--nan", "zero")
    assert load_file("q.safetensors")["layer.bias"][3] == 0


# Errors


def test_names_send_no_commands_to_terminals(model):
    save_file({"a\x1b[31m": model["layer.weight"]}, "in.safetensors")
    output = run("quantize", "in.safetensors", "q.safetensors")
    assert "\x1b" not in output
    assert "a?[31m" in output
    save_file({"a\x1b[31m": model["layer.bias"]}, "short.safetensors")
    output = run("compare", "in.safetensors", "short.safetensors", exit_code=1)
    assert output == "Error: short.safetensors: a?[31m has shape 160, but 160 x 128 in in.safetensors\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.npy", "q.safetensors"], "Invalid value for 'IN'"),
        ([".", "q.safetensors"], "Invalid value for 'IN'"),
        (
            ["note.txt", "q.safetensors"],
            "Invalid value for 'IN': 'note.txt' does not end in .npy, .npz or .safetensors",
        ),
        (["old.pt", "q.safetensors"], "or .safetensors; torch.load reads it, and safetensors.torch.save_file writes"),
        (["in.safetensors", "q.npy"], "Invalid value for 'OUT': 'q.npy' does not end in .safetensors"),
        (["in.safetensors", "no/q.safetensors"], "Invalid value for 'OUT': there is no folder 'no'"),
        (["in.safetensors", "in.safetensors", "--force"], "Invalid value for 'OUT': 'in.safetensors' is IN itself"),
        (["in.safetensors", "link.safetensors", "--force"], "Invalid value for 'OUT': 'link.safetensors' is IN itself"),
        (["in.safetensors", "old.safetensors"], "'OUT': 'old.safetensors' exists; --force replaces it"),
        (["in.safetensors", "dir.safetensors", "--force"], "'OUT': 'dir.safetensors' is not a file"),
        (["in.safetensors", "q.safetensors", "--dtype", "int9"], "Invalid value for '--dtype'"),
        (["in.safetensors", "q.safetensors", "--axis", "rows"], "'--axis': 'rows' is neither an integer nor 'none'"),
        (["in.safetensors", "q.safetensors", "--block-size", "-1"], "Invalid value for '--block-size'"),
        (["in.safetensors", "q.safetensors", "--nan", "keep"], "Invalid value for '--nan'"),
        (["in.safetensors", "q.safetensors", "--axis", "none", "--block-size", "8"], "--block-size needs an --axis"),
        (["in.safetensors", "q.safetensors", "--dtype", "mxfp4", "--asymmetric"], "those of mxfp4 are symmetric"),
        (["in.safetensors", "q.safetensors", "--dtype", "float8_e5m2", "--asymmetric"], "is for integer codes"),
        (["in.safetensors", "q.safetensors", "--dtype", "mxfp4", "--block-size", "16"], "has blocks of 32 along an"),
        (["in.safetensors", "q.safetensors", "--dtype", "nvfp4", "--axis", "none"], "has blocks of 16 along an"),
    ],
)
def test_bad_arguments(model, arguments, message):
    os.symlink("in.safetensors", "link.safetensors")
    os.mkdir("dir.safetensors")
    for name in ("note.txt", "old.pt", "old.safetensors"):
        with open(name, "w") as file:
            file.write("old")
    before = sorted(os.listdir())
    output = run("quantize", *arguments, exit_code=2)
    assert message in " ".join(output.split())
    assert sorted(os.listdir()) == before
    assert load_file("in.safetensors")["ids"].tobytes() == model["ids"].tobytes()


NO_SHAPES = ["(True,)", "(True, 4)", f"({2**70},)", f"(0, {2**70})", f"({2**62}, {2**62})", f"({10**4000},)", "(-1,)"]
NO_SHAPES += ["(1.5,)", "None", "[3]", "(3,) * 4", "(" * 3000 + ")" * 3000, f"({'1, ' * 65})"]


@pytest.mark.parametrize("shape", NO_SHAPES, ids=lambda shape: shape[:30])
def test_npy_of_a_shape_that_no_array_has(model, shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    with open("a.npy", "wb") as file:
        file.write(b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + bytes(48))
    before = sorted(os.listdir())
    output = run("quantize", "a.npy", "q.safetensors", exit_code=1)
    assert output.startswith("Error: a.npy is not a readable .npy file: ")
    assert output.count("\n") == 1
    assert len(output) < 300
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            {"layer.bias": np.full(3, np.nan, np.float32)},
            [],
            "tensor 'layer.bias' has 3 NaN; --nan zero takes them as 0",
        ),
        ({"layer.bias": np.array([np.inf], np.float32)}, [], "tensor 'layer.bias' can't be quantized: "),
        ({"ids_scale": np.ones(1), "ids": np.ones(1)}, [], "two tensors would be named 'ids_scale'"),
        ({}, ["--include", "ids"], "no tensor to quantize"),
        ({}, ["--axis", "2"], "tensor 'layer.weight': axis 2 is out of bounds for 2 dimensions"),
    ],
)
def test_data_that_can_not_be_quantized(model, change, options, message):
    save_file(model | change, "in.safetensors")
    output = run("quantize", "in.safetensors", "q.safetensors", "--all", *options, exit_code=1)
    assert output.startswith(f"Error: in.safetensors: {message}")
    assert output.count("\n") == 1
    assert os.listdir() == ["in.safetensors"]


def test_damaged_input(model):
    with open("in.safetensors", "r+b") as file:
        file.truncate(1000)
    for command in ("quantize", "dequantize"):
        output = run(command, "in.safetensors", "q.safetensors", exit_code=1)
        assert output.startswith("Error: in.safetensors is not a readable .safetensors file: ")
    assert os.listdir() == ["in.safetensors"]


def test_input_that_fastq_did_not_quantize(model):
    output = run("dequantize", "in.safetensors", "out.safetensors", exit_code=1)
    assert output == "Error: in.safetensors: holds nothing that fastq quantized (no 'fastq' in its metadata)\n"
    assert os.listdir() == ["in.safetensors"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError("64 GiB")])
def test_failure_in_the_middle(model, monkeypatch, error):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("fastq.io.containers.SafetensorsWriter.append", fail)
    output = run("quantize", "in.safetensors", "q.safetensors", exit_code=1)
    assert output.startswith("Error: ")
    assert output.count("\n") == 1
    assert os.listdir() == ["in.safetensors"]


def test_interrupt_in_the_middle(model, monkeypatch):
    def fail(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("fastq.io.containers.SafetensorsWriter.append", fail)
    assert run("quantize", "in.safetensors", "q.safetensors", exit_code=130) == "Interrupted\n"
    assert os.listdir() == ["in.safetensors"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_folder_that_is_not_writable(model, tmp_path):
    (tmp_path / "closed").mkdir(0o500)
    output = run("quantize", "in.safetensors", "closed/q.safetensors", exit_code=1)
    assert "Permission denied" in output


# Demo


def test_demo():
    output = run("demo", "--size", 200)
    for scheme in demo.SCHEMES:
        assert f"  {scheme} " in output
    for word in ("scheme", "bytes", "SQNR dB", "largest error", "Gelem/s", "x NumPy"):
        assert word in output
    assert "Every code, scale and zero point equals the reference's." in output


@pytest.mark.slow("compiles kernels again")
def test_demo_fails_when_a_code_differs(monkeypatch):
    monkeypatch.setattr(fastq, "quantize", flipped(fastq.quantize))
    output = run("demo", "--size", 64, exit_code=1)
    assert f"Error: {len(demo.SCHEMES)} codes, scales or zero points differ from the reference" in output


def test_demo_matrix_has_outlier_channels():
    x = demo.weight_matrix(400)
    deviations = x.std(axis=0)
    assert np.count_nonzero(deviations > 0.2) == 4
    assert np.median(deviations) == pytest.approx(0.02, rel=0.1)
    assert np.array_equal(x, demo.weight_matrix(400))


def test_mismatches_are_counted_bit_for_bit():
    q = reference.quantize(np.ones((4, 4), np.float32), "int8", axis=0)
    other = dataclasses.replace(q, codes=q.codes.copy(), qparams=dataclasses.replace(q.qparams, scale=q.scale.copy()))
    assert demo.count_mismatches(q, other) == 0
    other.codes[0, :2] -= 1
    other.scale[3] = np.nextafter(other.scale[3], 1)
    assert demo.count_mismatches(q, other) == 3


# Check


@pytest.mark.slow("compiles kernels of random cases")
def test_check():
    output = run("check", "--cases", 6, "--seed", 4)
    assert re.fullmatch(r"6 cases of seed 4, 0 with differences, [\d.]+ s\n", output)


@pytest.mark.slow("compiles kernels of random cases")
def test_check_prints_every_case():
    output = run("check", "--cases", 2, "--first", 7, "--verbose")
    assert [line.split(":")[0] for line in output.splitlines()[:-1]] == ["7", "8"]
    assert str(selfcheck.random_case(0, 8)) in output


@pytest.mark.slow("compiles 16 kernels")
def test_check_fails_with_the_command_that_repeats_the_case(monkeypatch):
    monkeypatch.setattr(fastq, "quantize", flipped(fastq.quantize))
    output = run("check", "--cases", 3, "--seed", 1, exit_code=1)
    assert re.search(r"3 cases of seed 1, [1-9]\d* with differences", output)
    command = re.search(r"^    fastq (check .*)$", output, re.MULTILINE)[1].split()
    again = run(*command, exit_code=1)
    assert again.splitlines()[1] == f"    fastq {' '.join(command)}"


@pytest.mark.slow("compiles 5 kernels")
def test_check_sees_an_error_that_only_one_side_raises(monkeypatch):
    def refuse(*arguments, **options):
        raise ValueError

    case = dataclasses.replace(selfcheck.random_case(0, 0), values="normal", shape=(3, 4), scheme=Scheme("int8"))
    assert selfcheck.mismatches(case) == []
    monkeypatch.setattr(fastq, "minmax", refuse)
    assert selfcheck.mismatches(case) == ["minmax"]


def test_cases_are_reproducible_and_varied():
    cases = [selfcheck.random_case(2, i) for i in range(300)]
    assert cases == [selfcheck.random_case(2, i) for i in range(300)]
    for seen, known in (
        ({case.dtype for case in cases}, selfcheck.INPUTS),
        ({case.layout for case in cases}, selfcheck.LAYOUTS),
        ({case.values for case in cases}, selfcheck.VALUES),
        ({len(case.shape) for case in cases}, range(5)),
        ({case.scheme.dtype for case in cases}, fastq.formats.qtypes.QTYPES),
    ):
        assert seen == set(known)


@pytest.mark.parametrize("layout", selfcheck.LAYOUTS)
def test_layouts_are_what_they_say(layout):
    case = dataclasses.replace(
        selfcheck.random_case(0, 1), dtype="float32", values="normal", layout=layout, shape=(4, 6)
    )
    x = selfcheck.input_of(case)
    facts = {
        "C order": x.flags.c_contiguous,
        "Fortran order": x.flags.f_contiguous,
        "strided": x.strides == (48, 8),
        "reversed": x.strides == (-24, -4),
        "broadcast": x.strides == (0, 4),
        "unaligned": not x.flags.aligned,
        "read-only": not x.flags.writeable,
        "big-endian": not x.dtype.isnative,
    }
    assert facts[layout]
    assert x.shape == (4, 6)


# Info


def test_info():
    output = run("info")
    for title in ("fastq", "python", "numpy", "numba", "llvmlite", "system", "cpu", "threads", "cache"):
        assert re.search(rf"^{title}\b", output, re.MULTILINE)
    assert np.__version__ in output


def test_collected_versions_are_text():
    assert all(isinstance(text, str) for text in config.versions().values())


def test_help_names_every_command():
    output = run("--help")
    for command in ("demo", "quantize", "dequantize", "check", "bench", "info"):
        assert re.search(rf"^  {command} ", output, re.MULTILINE)


# Bench


def test_bench():
    output = run("bench", "--list")
    assert "quantize_linear/float32/int8/tensor" in output
    assert "roofline" in output
    assert "Usage: fastq bench" in run("bench", "--help")


def test_without_its_extra_the_command_says_what_is_missing():
    for missing in ("click", "rich"):
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.modules['{missing}'] = None; from fastq.cli.app import main"],
            env=os.environ | {"PYTHONPATH": str(Path(fastq.__file__).parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        expected = f"The command fastq needs {missing}: pip install 'fastq-kernels[cli]'\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)
