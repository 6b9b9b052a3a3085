"""The command line: what it prints, what it leaves on disk, how it ends."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import invoke, run, told
from safetensors.numpy import load_file, save_file

import fastq
from fastq import config, reference
from fastq.tools.cli import selfcheck
from fastq.tools.files.containers import open_source
from fastq.tools.files.records import Scheme


@pytest.fixture
def model(here):
    """A small checkpoint, in.safetensors, in a folder of its own that is the current one."""
    rng = np.random.default_rng(3)
    tensors = {
        "layer.weight": rng.standard_normal((160, 128)).astype(np.float32),
        "layer.bias": rng.standard_normal(160).astype(np.float32),
        "ids": np.arange(5),
    }
    save_file(tensors, "in.safetensors", {"format": "pt"})
    return tensors


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
    assert told("quantize", "in.safetensors", "q.safetensors", "--all", "--force", exit_code=0) == ""  # no progress
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


@pytest.mark.slow("compiles kernels for each format", quick=lambda dtype: dtype == "int8")
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "int8"])
def test_convention(model, dtype):
    options = ["quantize", "in.safetensors", "q.safetensors", "--force", "--convention"]
    run(*options, "compressed-tensors", "--dtype", dtype)
    given = {"symmetric": dtype == "int8", "convention": "compressed-tensors"}
    q = reference.quantize(model["layer.weight"], dtype, axis=0, **given)
    assert open_source(Path("q.safetensors")).raw("layer.weight").tobytes() == q.codes.tobytes()
    run("dequantize", "q.safetensors", "out.safetensors")
    assert load_file("out.safetensors")["layer.weight"].tobytes() == reference.dequantize(q).tobytes()
    assert "convention must be 'onnx'" in told(*options, "torch", "--dtype", "float8_e4m3fn", exit_code=2)


def test_include_and_exclude(model):
    names = ["--include", "layer.w*", "--include", "layer.*", "--exclude", "*.bias"]
    output = run("quantize", "in.safetensors", "q.safetensors", *names)
    assert re.search(r"layer\.bias +160 +640 +copied: by name", output)
    assert load_file("q.safetensors")["layer.bias"].tobytes() == model["layer.bias"].tobytes()


def test_force_replaces(model):
    run("quantize", "in.safetensors", "q.safetensors")
    run("quantize", "in.safetensors", "q.safetensors", "--dtype", "mxfp4", "--force")
    assert "layer.weight_packed" in open_source(Path("q.safetensors")).tensors
    run("dequantize", "q.safetensors", "out.safetensors")
    run("dequantize", "q.safetensors", "out.safetensors", "--force")


# Errors


def test_names_send_no_commands_to_terminals(model):
    save_file({"a\x1b[31m": model["layer.weight"]}, "in.safetensors")
    output = run("quantize", "in.safetensors", "q.safetensors")
    assert "\x1b" not in output
    assert "a?[31m" in output
    save_file({"a\x1b[31m": model["layer.bias"]}, "short.safetensors")
    line = told("compare", "in.safetensors", "short.safetensors")
    assert line == "Error: short.safetensors: a?[31m has shape 160, but 160 x 128 in in.safetensors\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OSError(28, "No space left on device"), 1, "Error: q.safetensors: No space left on device"),
        (MemoryError("64 GiB"), 1, "Error: "),
        (KeyboardInterrupt(), 130, "Interrupted"),
    ],
)
def test_failure_in_the_middle(model, monkeypatch, error, code, line):
    def fail(*arguments):
        raise error

    monkeypatch.setattr("fastq.tools.files.safetensors_files.SafetensorsWriter.append", fail)
    (said,) = told("quantize", "in.safetensors", "q.safetensors", exit_code=code).splitlines()
    assert said.startswith(line)
    assert os.listdir() == ["in.safetensors"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_folder_that_is_not_writable(model, tmp_path):
    (tmp_path / "closed").mkdir(0o500)
    assert "Permission denied" in told("quantize", "in.safetensors", "closed/q.safetensors")


# Demo


@pytest.mark.slow("compiles kernels for each scheme", quick=lambda count: count == 2)
@pytest.mark.parametrize("count", [2, len(selfcheck.SCHEMES)])
def test_demo(monkeypatch, count):
    monkeypatch.setattr(selfcheck, "SCHEMES", selfcheck.SCHEMES[:count])
    output = run("demo", "--size", 200)
    for scheme in selfcheck.SCHEMES:
        assert f"\n{scheme} " in output
    for word in ("scheme", "bytes", "SQNR dB", "Gelem/s", "x reference"):
        assert word in output
    assert "Every code, scale and zero point equals the reference's." in output


@pytest.mark.slow("compiles kernels again")
def test_demo_fails_when_a_code_differs(monkeypatch):
    monkeypatch.setattr(fastq, "quantize", flipped(fastq.quantize))
    said = told("demo", "--size", 64)
    assert f"Error: {len(selfcheck.SCHEMES)} codes, scales or zero points differ from the reference" in said


def test_demo_matrix_has_outlier_channels():
    x = selfcheck.weight_matrix(400)
    deviations = x.std(axis=0)
    assert np.count_nonzero(deviations > 0.2) == 4
    assert np.median(deviations) == pytest.approx(0.02, rel=0.1)
    assert np.array_equal(x, selfcheck.weight_matrix(400))


def test_mismatches_are_counted_bit_for_bit():
    q = reference.quantize(np.ones((4, 4), np.float32), "int8", axis=0)
    other = dataclasses.replace(q, codes=q.codes.copy(), qparams=dataclasses.replace(q.qparams, scale=q.scale.copy()))
    assert selfcheck.count_mismatches(q, other) == 0
    other.codes[0, :2] -= 1
    other.scale[3] = np.nextafter(other.scale[3], 1)
    assert selfcheck.count_mismatches(q, other) == 3


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
    output = invoke("check", "--cases", 3, "--seed", 1).output
    assert re.search(r"3 cases of seed 1, [1-9]\d* with differences", output)
    command = re.search(r"^    fastq (check .*)$", output, re.MULTILINE)[1].split()
    again = invoke(*command)
    assert again.exit_code == 1
    assert again.output.splitlines()[1] == f"    fastq {' '.join(command)}"


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
            [
                sys.executable,
                "-c",
                f"import sys; sys.modules['{missing}'] = None; from fastq.tools.cli.command import main; main()",
            ],
            env=os.environ | {"PYTHONPATH": str(Path(fastq.__file__).parents[2])},
            capture_output=True,
            text=True,
            check=False,
        )
        expected = f"The command fastq needs {missing}: pip install click rich safetensors ml_dtypes\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)
