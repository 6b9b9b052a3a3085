"""`fastq compare` of netCDF files and zarr stores: elements belong together by dimensions and coordinates."""

import json

import numpy as np
import pytest
from commands import invoke

from fastq.tools.cli.exit_codes import IN_PART, TOO_FAR

xarray = pytest.importorskip("xarray", reason="no xarray")
pytest.importorskip("netCDF4", reason="no netCDF4")

X = np.random.default_rng(3).standard_normal((4, 5, 6)).astype(np.float32)
TIMES = {"units": "hours since 2000-01-01"}
COORDS = {"time": ("time", np.arange(4.0), TIMES), "lat": np.arange(5.0), "lon": np.arange(6.0)}
A = xarray.Dataset({"t": (("time", "lat", "lon"), X), "mean": ("lat", X.mean(axis=(0, 2)))}, COORDS)


def write(ds, path):
    """Write a file or a store, the times of which are numbers as they are."""
    ds.to_zarr(path, consolidated=False) if path.suffix == ".zarr" else ds.to_netcdf(path)


def compared(tmp_path, other, name="b.nc", *options):
    """Exit code, measures by name and standard error of a comparison of A with another Dataset."""
    if not (tmp_path / "a.nc").exists():
        write(A, tmp_path / "a.nc")
    write(other, tmp_path / name)
    result = invoke("compare", tmp_path / "a.nc", tmp_path / name, "--json", *options)
    rows = {row["name"]: row for row in json.loads(result.stdout)["tensors"]} if result.stdout else {}
    return result.exit_code, rows, result.stderr


@pytest.mark.parametrize("name", ["b.nc", "b.zarr"])
@pytest.mark.parametrize("dims", [("lon", "lat", "time"), ("lat", "time", "lon"), ("lon", "time", "lat")])
def test_dimensions_in_another_order(tmp_path, dims, name):
    other = A.transpose(*dims).chunk({"lat": 2}) if name == "b.zarr" else A.transpose(*dims)
    code, rows, _ = compared(tmp_path, other, name)
    assert (code, rows["t"]["max_abs_error"], rows["t"]["mse"]) == (0, 0, 0)


OTHERS = {
    "in another order": (A.isel(lat=slice(None, None, -1)), "lat b.nc has the labels of a.nc in another order"),
    "others": (A.assign_coords(lat=A.lat + 10), "lat b.nc has 10.0, 11.0, 12.0, .. where a.nc has 0.0, 1.0, 2.0, .."),
    "others too": (A.assign_coords(lat=A.lat + 2), "lat b.nc has 3 of the 5 labels of a.nc, and 2 others"),
    "other times": (
        A.assign_coords(time=("time", np.arange(4.0), {"units": "hours since 2001-01-01"})),
        "time b.nc has 2001-01-01T00:00:00",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_coordinates_that_disagree(tmp_path, name):
    other, words = OTHERS[name]
    code, rows, told = compared(tmp_path, other)
    assert code == IN_PART
    assert f"t: not measured: along {words}" in " ".join(told.split())
    assert "t" not in rows
    dim = words.split()[0]
    assert rows[dim]["max_abs_error"] == abs(A[dim] - other[dim].values).max()  # a coordinate itself is measured
    assert ("mean" in rows) == (dim == "time")
    assert compared(tmp_path, other, "c.nc", "--at-least", 9)[0] == TOO_FAR


def test_the_same_times_in_other_units(tmp_path):
    days = A.assign_coords(time=("time", np.arange(4.0) / 24 + 1, {"units": "days since 1999-12-31"}))
    code, rows, _ = compared(tmp_path, days)
    assert (code, rows["t"]["max_abs_error"]) == (0, 0)
    strange = A.assign_coords(time=("time", np.arange(4.0), {"units": "moons since never"}))
    assert compared(tmp_path, strange, "c.nc")[0] == IN_PART


def test_coordinates_of_a_group_around(tmp_path):
    for name, ds in (("a.nc", A), ("b.nc", A.isel(lat=slice(None, None, -1)))):
        write(ds.coords.to_dataset(), tmp_path / name)
        ds.drop_vars(ds.coords).to_netcdf(tmp_path / name, group="inner/one", mode="a")
    result = invoke("compare", tmp_path / "a.nc", tmp_path / "b.nc")
    assert result.exit_code == IN_PART
    assert "inner/one/t: not measured: along lat b.nc has the labels of a.nc in another order" in " ".join(
        result.stderr.split()
    )


def test_other_dimensions(tmp_path):
    code, _, told = compared(tmp_path, A.rename(lat="y"))
    assert code == 1
    assert "t has the dimensions time, y, lon, but time, lat, lon in a.nc: rename those of one" in " ".join(
        told.split()
    )
    code, _, told = compared(tmp_path, A.isel(lat=slice(3)).transpose("lon", "lat", "time"), "c.nc")
    assert code == 1
    assert "has shape" in told


def test_files_without_coordinates(tmp_path):
    code, rows, _ = compared(tmp_path, A.drop_vars(COORDS))
    assert (code, rows["t"]["max_abs_error"]) == (IN_PART, 0)  # which lacks the coordinates


def test_coordinates_that_are_no_dimensions(tmp_path):
    """Places on a grid, and names: they tell in which order elements are where dimensions have no labels."""
    lat, lon = np.meshgrid(np.linspace(-50, 50, 5), np.arange(6.0), indexing="ij")
    places = {"lat": (("y", "x"), lat), "lon": (("y", "x"), lon), "level": ((), 500.0)}
    ds = xarray.Dataset({"t": (("time", "y", "x"), X), "u": ("time", X[:, 0, 0])}, places)
    ds.to_netcdf(tmp_path / "a.nc")
    assert compared(tmp_path, ds.transpose())[0] == 0
    assert compared(tmp_path, ds.assign_coords(level=850.0).astype(np.float32))[0] in (0, IN_PART)
    code, rows, told = compared(tmp_path, ds.isel(y=slice(None, None, -1)))
    assert code == IN_PART
    assert "t: not measured: b.nc has other values of the coordinate lat; bring both to the same labels" in told
    assert "t" not in rows
    assert rows["u"]["max_abs_error"] == 0
    named = xarray.Dataset({"t": ("station", X[0, :, 0])}, {"name": ("station", list("abcde"))})
    (tmp_path / "a.nc").unlink()
    named.to_netcdf(tmp_path / "a.nc")
    code, rows, told = compared(tmp_path, named.isel(station=slice(None, None, -1)))
    assert code == IN_PART
    assert "t: not measured: b.nc has other values of the coordinate name" in told
    labelled = named.assign_coords(station=range(5))
    (tmp_path / "a.nc").unlink()
    labelled.to_netcdf(tmp_path / "a.nc")
    code, rows, _ = compared(tmp_path, labelled.assign_coords(name=("station", list("ABCDE"))))
    assert rows["t"]["max_abs_error"] == 0  # the stations are in one order, whatever they are called
