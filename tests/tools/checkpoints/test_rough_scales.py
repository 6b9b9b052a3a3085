"""Scales that float16 holds with few digits or not at all: `fastq convert` names the matrices that lose by it."""

import numpy as np
import pytest
from commands import invoke
from model_folders import CONFIG, Q_PROJ, write_single

NAME = f"{Q_PROJ}.weight"


def said(folder, weight, scheme, dtype="float16"):
    write_single(folder / "model", {NAME: weight}, CONFIG | {"dtype": dtype})
    result = invoke("convert", folder / "model", folder / "out", "--scheme", scheme)
    assert result.exit_code == 0, result.output
    return result.stderr


def weight(**rows):
    x = np.random.default_rng(0).standard_normal((128, 128)).astype(np.float16)
    for row, value in rows.items():
        x[int(row.removeprefix("row"))] = value
    return x


@pytest.mark.slow("kernels of float16", quick=lambda scheme: scheme == "W4A16")
@pytest.mark.parametrize("scheme", ["W4A16", "W8A16"])
def test_rows_of_the_least_numbers_are_told(tmp_path, scheme):
    """A row of 2**-24, whose scale is 0 in float16; one of 2**-12, whose scale is subnormal; and one of zeros."""
    told = said(tmp_path, weight(row0=2.0**-24, row1=2.0**-12, row2=0), scheme)
    assert "scales below the normal numbers of float16, the dtype of the model" in told
    assert f"{Q_PROJ} (2); --ignore leaves a matrix as it is" in told


@pytest.mark.slow("kernels of float16", quick=lambda scheme: scheme == "W4A16")
@pytest.mark.parametrize("scheme", ["W4A16", "W8A16"])
def test_scales_with_all_their_digits_are_not(tmp_path, scheme):
    rows = {"row0": 0, "row1": np.linspace(-1, 1, 128), "row2": 0.125}  # whose scale is about the least above 1
    assert "normal numbers" not in said(tmp_path, weight(**rows), scheme)


def test_bfloat16_holds_them(tmp_path):
    assert "normal numbers" not in said(tmp_path, weight(row0=2.0**-24).astype(np.float32), "W8A16", "bfloat16")
