"""The oracle can fail: each deliberately wrong kernel differs from the reference."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fastq

ORACLE = """
import itertools
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from catalogue import same_bytes, same_quantized, specials, ties, values
import fastq
from fastq import reference

assert fastq.__file__.startswith(sys.argv[2]), fastq.__file__
tiny = np.finfo(np.float32).tiny
x = np.concatenate([ties(np.float32, 0.1, 140), specials(np.float32), values("float32", 99)])
for scale, zero_point in ((np.float32(0.1), 3), (np.float32(1), -128)):
    codes = fastq.quantize_linear(x, scale, zero_point, "int8")
    same_bytes(codes, reference.quantize_linear(x, scale, zero_point, "int8"))
    each = np.full(x.shape, scale)
    codes = fastq.quantize_linear(x, each, np.full(x.shape, zero_point), "int8", axis=0)
    same_bytes(codes, reference.quantize_linear(x, scale, zero_point, "int8"))
    values_ = fastq.dequantize_linear(codes, scale, zero_point)
    same_bytes(values_, reference.dequantize_linear(codes, scale, zero_point))
for seed, symmetric in itertools.product((0, 2, 4), (False, True)):
    y = values("float32", 3 * 5 * 70, seed).reshape(3, 5, 70)
    y[0] = 0
    y[0, 0, 0] = tiny * 127 if symmetric else tiny * 255
    y[2] = np.abs(y[2]) + 1
    for options in ({"axis": 0}, {"axis": (0, 1)}, {"axis": 1}):
        options = options | {"symmetric": symmetric}
        same_quantized(fastq.quantize(y, "int8", **options), reference.quantize(y, "int8", **options))
z = values("float32", 700, 6).reshape(7, 100)
z[3, ::3] = np.nan
for options in ({"axis": 0}, {"axis": 1}):
    for actual, expected in zip(fastq.minmax(z, nan="zero", **options), reference.minmax(z, nan="zero", **options)):
        same_bytes(actual, expected)
"""

FLOOR = ("formulas.py", "    rint,\n", "    floor,\n    rint,\n")

MUTANTS = {
    "floor for round, one scale a run": [
        FLOOR,
        (
            "formulas.py",
            "nearest(quotient(minimum(maximum(x, s.below), s.above), s))",
            "nearest(floor(quotient(minimum(maximum(x, s.below), s.above), s)))",
        ),
    ],
    "floor for round, one scale a lane": [FLOOR, ("formulas.py", "rint(x / scale)", "floor(x / scale)")],
    "reciprocal for quotient": [
        ("formulas.py", "return fma(fma(-first, s.scale, x), s.reciprocal, first)", "return first")
    ],
    "no upper clamp": [("formulas.py", "minimum(maximum(x, s.below), s.above)", "maximum(x, s.below)")],
    "no lower clamp, one scale a lane": [
        ("formulas.py", "maximum(unclamped_code(x, scale, zero_point), lowest)", "unclamped_code(x, scale, zero_point)")
    ],
    "zero point inside the rounding": [("formulas.py", "rint(x / scale) + zero_point", "rint(x / scale + zero_point)")],
    "< for <= at the smallest scale": [
        ("formulas.py", "scale >= smallest_normal(scale)", "scale > smallest_normal(scale)")
    ],
    "zero point rounded down": [FLOOR, ("formulas.py", "rint(lowest - lo / scale)", "floor(lowest - lo / scale)")],
    "range not widened to zero": [
        ("formulas.py", "lo, hi = minimum(lo, zero), maximum(hi, zero)", "lo, hi = minimum(lo, hi), maximum(hi, lo)")
    ],
    "largest value for largest magnitude": [
        ("formulas.py", "maximum(maximum(-lo, hi), constant(0, lo))", "maximum(hi, constant(0, lo))")
    ],
    "products before the difference": [
        ("formulas.py", "return (code - zero_point) * scale", "return code * scale - zero_point * scale")
    ],
    "tail dropped": [
        (
            "spans.py",
            "i = min(i + n, last)\n        return any_lane(nans)",
            "i = min(i + n, last)\n            if i == last:\n                break\n        return any_lane(nans)",
        )
    ],
    "NaN kept in a minimum": [("spans.py", "minimum(x, los), maximum(x, his)", "minimum(los, x), maximum(his, x)")],
    "neighbour's parameter": [("lanes.py", "p = (p - row) * plan.inner  #", "p = (p - row) * plan.inner + 1  #")],
}


def run_oracle(folder: Path, tmp_path: Path, oracle: str = ORACLE, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", oracle, str(Path(__file__).parent), str(folder), *arguments]
    return subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def copy_of_package(tmp_path: Path) -> Path:
    package = tmp_path / "house"
    shutil.copytree(Path(fastq.__file__).parent, package / "fastq", ignore=shutil.ignore_patterns("__pycache__"))
    return package


def test_the_oracle_accepts_the_kernels_as_they_are(tmp_path):
    done = run_oracle(copy_of_package(tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", MUTANTS)
def test_the_oracle_refuses(name, tmp_path):
    check_refused(tmp_path, MUTANTS[name])


def check_refused(tmp_path, changes, *oracle):
    package = copy_of_package(tmp_path)
    for file, right, wrong in changes:
        path = package / "fastq" / "kernels" / file
        source = path.read_text()
        assert right in source
        path.write_text(source.replace(right, wrong))
    done = run_oracle(package, tmp_path, *oracle)
    assert done.returncode == 1, done.stderr
    assert "AssertionError: different" in done.stderr
