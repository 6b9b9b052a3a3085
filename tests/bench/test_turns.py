"""Two fastqs measured in turns."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmark import part

turns, worker = part("turns"), part("worker")
ROOT = Path(__file__).parents[2]


def test_a_ratio_is_how_many_times_as_fast_the_other_one_is():
    slower, faster = turns.Turns("a", [1.0, 9.0, 2.0], [4.0, 8.0, 3.0]), turns.Turns("b", [8.0], [1.0])
    assert (slower.ratio, faster.ratio) == (0.5, 8.0)
    assert turns.mean_ratio([slower, faster]) == pytest.approx(2.0)


@pytest.mark.slow("measures in processes of its own")
@pytest.mark.parametrize(("limits", "exit_code"), [((), 0), (("--least", 1e9), 1), (("--mean", 1e9), 1)])
def test_an_installed_fastq_takes_turns_and_what_it_lacks_is_said(tmp_path, limits, exit_code):
    """The other Python is a script that imports this checkout, and has two works of it alone."""
    lines = ["import sys; from bench import cases", f"sys.argv[1:] = [{worker.OURS!r}]"]
    lines += ["cases.EVERY_WORK = cases.WORKS = cases.WORKS[:2]", "from bench.worker import main; main(*sys.argv[1:])"]
    other = tmp_path / "python"
    other.write_text(f"#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -P -c {chr(34)}{'; '.join(lines)}{chr(34)}\n")
    other.chmod(0o755)
    command = [sys.executable, "-m", "bench", "turns", other, "--rounds", 2, "--sizes", 10]
    command += ["-o", "minmax,unpack", *limits]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == exit_code, done.stderr
    first, second, last = done.stdout.splitlines()
    assert float(first.split()[0]) > 0
    assert first.endswith("  minmax/float32/int8/tensor/2^10")
    assert second.startswith("ValueError: case must be a name")
    assert last.startswith("geometric mean of 1: ")
