"""Rounded floats compared with netCDF-C and numcodecs, bits and information compared with xbitinfo."""

import subprocess
import sys
import warnings

import numpy as np
import pytest
from catalogue import same_bytes

import fastq

NETCDF = """
import sys
import netCDF4, numpy as np
mode, folder, *digits = sys.argv[1:]
x = np.load(f"{folder}/x.npy")
for kept in digits:
    with netCDF4.Dataset(f"{folder}/x.nc", "w") as file:
        file.createDimension("x", x.size)
        variable = file.createVariable("x", x.dtype, "x", quantize_mode=mode, significant_digits=int(kept))
        variable.set_auto_maskandscale(False)
        variable[:] = x
    with netCDF4.Dataset(f"{folder}/x.nc") as file:
        file.set_auto_maskandscale(False)
        np.save(f"{folder}/{kept}.npy", file["x"][:])
"""


def numbers(dtype, size=200_000):
    """Finite numbers of any bits, and what is near to powers of two and of ten, where digits change."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(1)
    info, unsigned = np.finfo(dtype), np.dtype(f"u{dtype.itemsize}")
    tens = [float(f"1e{k}") for k in range(int(np.log10(info.tiny)) - 6, int(np.log10(info.max)) + 1)]
    twos = [2.0**k for k in range(info.minexp - info.nmant, info.maxexp)]
    with np.errstate(under="ignore"):
        known = np.array(tens + twos).astype(dtype).view(unsigned)
    steps = (*range(-40, 40), -3000, -1000, -100, 100, 1000, 3000, 9000)
    near = np.concatenate([known + np.array(step).astype(unsigned) for step in steps]).view(dtype)
    drawn = rng.integers(0, np.iinfo(unsigned).max, size, unsigned, endpoint=True).view(dtype)
    zeros = np.array([0.0, -0.0, info.max, -info.max], dtype)
    x = np.concatenate([drawn, near, -near, zeros, rng.normal(size=size).astype(dtype)])
    return x[np.isfinite(x)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["BitRound", "GranularBitRound"])
def test_netcdf(mode, dtype, tmp_path):
    """In a process of its own: the library is one that may end it."""
    pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
    x = numbers(dtype)
    np.save(tmp_path / "x.npy", x)
    most = {"BitRound": {"float32": 23, "float64": 52}, "GranularBitRound": {"float32": 6, "float64": 15}}[mode][dtype]
    option = "keepbits" if mode == "BitRound" else "digits"
    digits = range(1, most + 1, 3 if mode == "BitRound" else 1)
    subprocess.run([sys.executable, "-c", NETCDF, mode, tmp_path, *map(str, digits)], check=True, timeout=120)
    for kept in digits:
        same_bytes(fastq.bitround(x, **{option: kept}, convention="netcdf"), np.load(tmp_path / f"{kept}.npy"))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_netcdf_on_nan_and_infinities(dtype, tmp_path):
    """The rows of docs/howto/rounding.md: of infinities GranularBitRound makes zeros of the other sign."""
    pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
    width = np.dtype(dtype).itemsize
    quiet = {4: [0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7FFFFFFF], 8: [0x7FF8 << 48, 0xFFF8 << 48, (0x7FF8 << 48) + 1]}
    nans = np.array(quiet[width], f"u{width}").view(dtype)
    x = np.concatenate([nans, np.array([np.inf, -np.inf, 1.1, np.inf, -np.inf, -2.3], dtype)])
    np.save(tmp_path / "x.npy", x)
    rounded = {}
    for mode, kept in (("BitRound", 7), ("GranularBitRound", 3)):
        subprocess.run([sys.executable, "-c", NETCDF, mode, tmp_path, str(kept)], check=True, timeout=120)
        rounded[mode] = np.load(tmp_path / f"{kept}.npy")
    same_bytes(fastq.bitround(x, keepbits=7, convention="netcdf"), rounded["BitRound"])
    ours = fastq.bitround(x, digits=3, convention="netcdf")
    same_bytes(np.where(np.isinf(x), np.copysign(np.array(0, dtype), -x), ours), rounded["GranularBitRound"])


def test_netcdf_refuses_seven_digits_of_float32(tmp_path):
    pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
    np.save(tmp_path / "x.npy", np.float32([1.1]))
    command = [sys.executable, "-c", NETCDF, "GranularBitRound", tmp_path]
    assert subprocess.run([*command, "6"], capture_output=True, timeout=120).returncode == 0
    refused = subprocess.run([*command, "7"], capture_output=True, timeout=120)
    assert b"Invalid argument" in refused.stderr
    fastq.bitround(np.float32([1.1]), digits=7, convention="netcdf")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numcodecs(dtype):
    numcodecs = pytest.importorskip("numcodecs", reason="numcodecs is not installed")
    x = numbers(dtype, 50_000)
    x = np.concatenate([x, np.array([np.inf, -np.inf], dtype)])
    for kept in range(np.finfo(dtype).nmant + 1):
        same_bytes(fastq.bitround(x, keepbits=kept), numcodecs.BitRound(kept).encode(x.copy()).view(dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_xbitinfo(dtype):
    pytest.importorskip("xbitinfo", reason="xbitinfo is not installed")
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    import xbitinfo

    waves = np.sin(np.arange(40) / 9)[:, None] + np.cos(np.arange(50) / 7)
    for offset in (0.0, 280.0):
        x = (offset + 10 * waves + 0.05 * np.random.default_rng(2).normal(size=waves.shape)).astype(dtype)
        for axis in (0, 1):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ds = xarray.Dataset({"v": (("a", "b"), x)})
                info = xbitinfo.get_bitinformation(ds, axis=axis, implementation="python")
                levels = [0.9, 0.95, 0.99, 0.999, 1.0]
                kept = [int(xbitinfo.get_keepbits(info, level)["v"].values.ravel()[0]) for level in levels]
            found = fastq.bit_information(x, axis=axis)
            np.testing.assert_allclose(found.information, np.nan_to_num(info["v"].values), atol=1e-13)
            assert [found.keepbits(level) for level in levels] == [max(each, 0) for each in kept]
            rounded = xbitinfo.xr_bitround(ds, kept[2]).v.values
            same_bytes(fastq.bitround(x, keepbits=found.keepbits(0.99)), rounded)
