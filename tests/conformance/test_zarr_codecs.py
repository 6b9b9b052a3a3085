"""zarr's own tests of cast_value and scale_offset, with the codecs of fastq in their place; and cast-value-rs."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from catalogue import same_bytes
from fuzzing.combinations import CASTS

import fastq
from fastq.adapters.zarr.casting import ROUNDINGS

zarr = pytest.importorskip("zarr", reason="zarr is not installed")
cast_value_rs = pytest.importorskip("cast_value_rs", reason="cast-value-rs, with which zarr casts, is not installed")
COMPILED = ("float16 uint8", "float32 int16", "float64 int32")
NOT_OF_CODECS = (
    "backend",  # which cast-value-rs zarr takes
    "min_version",
    "construction_rejects",  # here it is refused when the array is made
    "zero_itemsize",  # of strings, which are refused before
    "test_compute_encoded_size",  # by the name of an argument
)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The folder of zarr's sources, of the installed version; wheels have no tests."""
    folder, of_zarr = tmp_path_factory.mktemp("zarr"), f"zarr=={zarr.__version__}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "zarr", of_zarr]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode:
        pytest.skip(f"the sources of {of_zarr} can't be had: {result.stderr.strip()[-200:]}")
    shutil.unpack_archive(next(folder.glob("*.tar.gz")), folder, filter="data")
    return folder / f"zarr-{zarr.__version__}"


@pytest.mark.parametrize(
    "name", ["test_codecs/test_cast_value", "test_codecs/test_scale_offset", "test_codec_pipeline"]
)
def test_tests_of_zarr(name, sources):
    options = ["-q", "-p", "zarr_with_fastq", "-p", "no:cacheprovider", "-o", "addopts=", "-W", "ignore"]
    chosen = ["-k", " and ".join(f"not {each}" for each in NOT_OF_CODECS)]
    command = [sys.executable, "-m", "pytest", *options, *chosen, f"tests/{name}.py"]
    here = os.pathsep.join([str(Path(__file__).parent), str(Path(fastq.__file__).parents[1])])
    result = subprocess.run(command, cwd=sources, env=os.environ | {"PYTHONPATH": here}, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    assert "skipped" not in result.stdout


def _values(source):
    rng, kind = np.random.default_rng(3), np.dtype(source)
    if kind.kind == "f":
        wide = np.concatenate([rng.standard_normal(300) * 2.0**power for power in (-26, -3, 3, 8, 15, 24, 40, 64)])
        with np.errstate(over="ignore"):
            values = np.concatenate([wide, np.arange(-300, 300) / 4]).astype(source)
        return values[np.isfinite(values)]
    info = np.iinfo(source)
    ends = [
        each for end in (info.min, info.max) for each in range(end - 300, end + 300) if info.min <= each <= info.max
    ]
    return np.array([*ends, *rng.integers(info.min, info.max, 300, source).tolist()], source)


def _is_quick(source, dtype):
    """Whether NumPy casts it, or it is the one pair of its source for which kernels are compiled."""
    return source[0] != "f" or dtype[0] == "f" or dtype in ("int64", "uint64") or f"{source} {dtype}" in COMPILED


@pytest.mark.slow("compiles ten kernels", quick=_is_quick)
@pytest.mark.parametrize("dtype", CASTS)
@pytest.mark.parametrize("source", CASTS)
def test_casts_of_zarr(source, dtype):
    """What it refuses is refused, and all numbers are the same."""
    x = _values(source)
    for rounding, mode in itertools.product(ROUNDINGS, (None, "clamp") if dtype[0] == "f" else (None, "clamp", "wrap")):
        options = {"target_dtype": np.dtype(dtype), "rounding_mode": rounding, "out_of_range_mode": mode}
        try:
            expected = cast_value_rs.cast_array(x, **options)
        except ValueError:
            with pytest.raises(ValueError, match="x has values out of range"):
                fastq.zarr.cast_value(x, dtype, rounding=rounding, out_of_range=mode)
            continue
        same_bytes(fastq.zarr.cast_value(x, dtype, rounding=rounding, out_of_range=mode), expected)
