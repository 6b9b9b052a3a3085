"""Machine code for AArch64, compiled here and not run: no instruction whose results differ from those of x86-64.

Nor do minima and maxima of contiguous elements need more registers than there are.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from catalogue import same_bytes
from edited import copy_of_package, edit

import fastq
from fastq import reference

# minimum and maximum: NaN of a signaling NaN, and -0.0 and 0.0 in order; right for a sum with 0.0, which is neither
EXTREME = re.compile(r"f(?:min|max)")
FUSED = re.compile(r"\bfn?m(?:add|sub|l[as])\b")
INFINITY = r"(?:splat \(\w+ )?0x[7F]FF0000000000000\)?|(?:splat \(half )?0xH[7F]C00\)?"


PACKAGE = Path(fastq.__file__).parents[1]


def kernels(folder, *chosen):
    """Return what the script prints: names of kernels, for a dtype with LLVM IR, assembly, and whether it is minmax."""
    script = Path(__file__).parents[1] / "support" / "other_cpu.py"
    environment = os.environ | {"PYTHONPATH": str(folder)}
    command = [sys.executable, script, *map(str, chosen)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def extremes_of_no_sum(asm):
    """Minima and maxima neither operand of which an addition has written last, line by line."""
    writers, found = {}, []
    for line in asm.splitlines():
        name, _, rest = line.strip().partition("\t")
        registers = [int(number) for number in re.findall(r"\b[vsdhqb](\d+)\b", rest)]
        if EXTREME.match(name) and "fadd" not in [writers.get(number) for number in registers[1:]]:
            found.append(name)
        if registers and not name.startswith("st"):
            writers[registers[0]] = name
    return found


def extremes_of_infinity(llvm):
    """Selects of the operands that are compared, the second an infinity: LLVM makes such an instruction of them."""
    compared = dict(re.findall(rf"(%\S+) = fcmp o[lg]t (?:<[^>]*>|\w+) (%\S+, (?:{INFINITY}))$", llvm, re.MULTILINE))
    kind = r"(?:<[^>]*>|\w+)"
    selects = re.findall(rf"= select {kind} (%\S+), {kind} (%\S+), {kind} (.*)$", llvm, re.MULTILINE)
    return [mask for mask, *operands in selects if compared.get(mask) == ", ".join(operands)]


def spilled(asm):
    """Places of the stack that an innermost loop both stores a vector register in and loads one from."""
    lines = asm.splitlines()
    labels = {line[:-1]: k for k, line in enumerate(lines) if re.fullmatch(r"\.\w+:", line)}
    jumps = [(k, re.search(r"\t(?:b\S*|cb\w+|tb\w+)\s.*?(\.\w+)$", line)) for k, line in enumerate(lines)]
    loops = [range(labels[to[1]], k) for k, to in jumps if to and labels.get(to[1], k) < k]
    for loop in loops:
        if any(other != loop and other.start in loop and other[-1] in loop for other in loops):
            continue
        places = {"st": set(), "ld": set()}
        for line in lines[loop.start : loop.stop]:
            if found := re.match(r"\t(st|ld)[rp]\tq.*(\[sp.*\])$", line):
                places[found[1]].add(found[2])
        yield from places["st"] & places["ld"]


def wrong(folder, dtype, shapes=5):
    """What is wrong with kernels: name and reason."""
    for name, llvm, asm, is_minmax in kernels(folder, dtype, shapes):
        if is_minmax:
            yield from ((name, each) for each in extremes_of_no_sum(asm))
        if is_minmax and name == "runs.runs" and any(spilled(asm)):
            yield name, "spilled"
        if extremes_of_infinity(llvm):
            yield name, "infinity"
        if "llvm.fma." not in llvm:
            yield from ((name, each) for each in FUSED.findall(asm))


@pytest.mark.slow("compiles 10 kernels each", quick=lambda dtype, shapes: shapes == 2)
@pytest.mark.parametrize(("dtype", "shapes"), [("float64", 2), ("float16", 5), ("float32", 5), ("float64", 5)])
def test_no_instruction_has_other_results(dtype, shapes):
    assert list(wrong(PACKAGE, dtype, shapes)) == []


@pytest.mark.slow("compiles 20 to 70 kernels each")
@pytest.mark.parametrize(("kind", "fewest"), [("written", 20), ("decoded", 20), ("quantized", 50)])
def test_kernels_of_all_formats_are_compiled(kind, fewest):
    """Among them what only CPUs without AVX2 need, which no kernel of this CPU has."""
    assert len(kernels(PACKAGE, kind)) > fewest


MUTANTS = {
    "a signaling NaN is met by infinity": (
        "nan.py",
        "v.select(x == x, x, lo), v.select(x == x, x, hi)",
        "v.minimum(x, lo), v.maximum(x, hi)",
        {("runs.runs", "fminnm"), ("runs.runs", "infinity")},
    ),
    "-0.0 is met by 0.0": (
        "nan.py",
        "_with_zero(los + zero, his + zero, nans)",
        "_with_zero(los, his, nans)",
        {("columns.columns", "fminnm"), ("runs.runs", "fminnm")},
    ),
    "minima and maxima are all registers": (
        "body/min_max.py",
        'FOUR_CHAINS = 4 if TARGET.has("avx512f") else 2',
        "FOUR_CHAINS = 4",
        {("runs.runs", "spilled")},
    ),
}


@pytest.mark.slow("compiles 10 kernels each")
@pytest.mark.parametrize("mutant", MUTANTS)
def test_such_instructions_are_found(mutant, tmp_path):
    file, right, other, expected = MUTANTS[mutant]
    folder = copy_of_package(tmp_path)
    edit(folder / "fastq" / "kernels" / file, right, other)
    assert expected <= set(wrong(folder, "float64"))


@pytest.mark.slow("compiles kernels for each dtype", quick=lambda dtype, bits, options: dtype == "float32")
@pytest.mark.parametrize(
    "options", [{}, {"axis": 0}, {"axis": 1}, {"axis": 1, "block_size": 32}, {"axis": 0, "block_size": 3}]
)
@pytest.mark.parametrize(
    ("dtype", "bits"), [("float16", 0x7C01), ("float32", 0x7F800001), ("float64", 0x7FF0000000000001)]
)
def test_signaling_nan(dtype, bits, options):
    rng = np.random.default_rng(0)
    for columns in (5, 64, 200):
        x = rng.standard_normal((12, columns)).astype(dtype)
        x[rng.random(x.shape) < 0.2] = -0.0
        x[:, 1] = np.abs(x[:, 1])
        x.view(f"u{x.itemsize}")[rng.random(x.shape) < 0.1] = bits
        for each in (x, x.T.copy().T):
            found, expected = (module.minmax(each, nan="zero", **options) for module in (fastq, reference))
            for one, other in zip(found, expected, strict=True):
                same_bytes(one, other)
