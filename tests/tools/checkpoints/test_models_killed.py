"""Conversions that are killed at random moments and go on when they are repeated."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from model_folders import BF16, INDEX, write_model

from fastq.tools.checkpoints.journal import JOURNAL

KILLS = 50


def command(model, out):
    code = "from fastq.tools.cli.command import main; main()"
    return [sys.executable, "-c", code, "convert", str(model), str(out), "--scheme", "W4A16"]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def model(tmp_path):
    """Eight shards of 8 MiB."""
    rng = np.random.default_rng(3)
    names = [f"model.layers.{k}.mlp.up_proj.weight" for k in range(8)]
    return write_model(tmp_path / "model", [{name: rng.standard_normal((2048, 2048)).astype(BF16)} for name in names])


@pytest.mark.slow("starts a process for each kill")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills are of POSIX")
def test_killed_at_random_moments(model, tmp_path):
    subprocess.run(command(model, tmp_path / "whole"), check=True, stdout=subprocess.DEVNULL)
    start = time.monotonic()
    subprocess.run(command(model, tmp_path / "timed"), check=True, stdout=subprocess.DEVNULL)
    seconds, expected = time.monotonic() - start, contents(tmp_path / "whole")
    assert contents(tmp_path / "timed") == expected
    moments, out, killed, interrupted = random.Random(4), tmp_path / "out", 0, 0
    while killed < KILLS:
        if (out / INDEX).exists() and not (out / JOURNAL).exists():
            assert contents(out) == expected
            shutil.rmtree(out)
        process = subprocess.Popen(command(model, out), stdout=subprocess.DEVNULL)
        try:
            process.wait(moments.uniform(0.3, 1) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
            interrupted += out.exists() and not (out / INDEX).exists()
        else:
            assert process.returncode == 0
    if (out / JOURNAL).exists() or not out.exists():
        subprocess.run(command(model, out), check=True, stdout=subprocess.DEVNULL)
    assert contents(out) == expected
    assert interrupted > KILLS // 10
