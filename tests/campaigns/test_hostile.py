"""Files that lie: one line that says what is wrong, the old file or the whole new one."""

import os
from pathlib import Path

import commands
import hostile
import numpy as np
import pytest
from safetensors.numpy import save_file

from fastq.tools.files.safetensors_files import LONGEST_HEADER, Header
from fastq.tools.files.tensor_specs import spec_of


def attempt(name, suffix, content, command="quantize", out="out.safetensors"):
    """Run a command on contents; assert that it did what it should, return whether it worked."""
    why, worked = hostile.attempt(command, content, Path(f"in{suffix}"), Path(out))
    assert not why, name
    return worked


# contents


@pytest.mark.parametrize(
    ("files", "suffix", "command", "works"),
    [
        (hostile.npy_files, ".npy", "quantize", False),
        (hostile.safetensors_files, ".safetensors", "quantize", False),
        (hostile.safetensors_files, ".safetensors", "dequantize", False),
        (hostile.odd_names, ".safetensors", "quantize", True),
    ],
)
def test_every_file(here, files, suffix, command, works):
    for name, content in files():
        assert attempt(name, suffix, content, command) == works, name
    assert not (here / "executed").exists()


def test_a_npy_file_that_does_not_lie(here):
    assert attempt("the truth", ".npy", hostile.npy(hostile.npy_header()))
    assert attempt("the truth and more", ".npy", hostile.npy(hostile.npy_header(), bytes(99)))


@pytest.mark.slow("compiles kernels for each format", quick=lambda scheme, out: "nvfp4" not in scheme)
@pytest.mark.parametrize(
    ("scheme", "out"),
    [
        ([], "out.npy"),
        (["--dtype", "int4", "--asymmetric", "--block-size", "8"], "out.safetensors"),
        (["--dtype", "nvfp4"], "out.safetensors"),
    ],
    ids=["int8", "int4", "nvfp4"],
)
def test_every_lie_of_a_record(here, scheme, out):
    save_file({"w": np.arange(128, dtype=np.float32).reshape(4, 32)}, "w.safetensors")
    commands.run("quantize", "w.safetensors", "q.safetensors", *scheme)
    assert attempt("right", ".safetensors", (here / "q.safetensors").read_bytes(), "dequantize", out)
    for name, content in hostile.record_files(here / "q.safetensors"):
        attempt(name, ".safetensors", content, "dequantize", out)


def test_a_name_that_no_tensor_can_have(here):
    np.save("__metadata__.npy", np.ones((4, 4), np.float32))
    result = commands.invoke("quantize", "__metadata__.npy", "out.safetensors")
    assert (result.exit_code, sorted(os.listdir())) == (1, ["__metadata__.npy"])
    assert result.output == ("Error: __metadata__.npy: a .safetensors file can't hold a tensor named '__metadata__'\n")


def test_a_header_that_nobody_would_read():
    with pytest.raises(ValueError, match=r"^a \.safetensors file can't hold a header of 100,000,\d\d\d bytes$"):
        Header([spec_of("x", "F32", (1,))], {"text": "x" * LONGEST_HEADER})
