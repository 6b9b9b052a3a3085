"""NCO, CDO and GDAL read what `fastq pack` and `fastq bitround` write, and fastq reads what they pack and round."""

import shutil
import subprocess

import numpy as np
import pytest
import xarray
from commands import run

import fastq

netCDF4 = pytest.importorskip(
    "netCDF4", reason="netCDF4 is not installed; its files are not given to NCO, CDO and GDAL"
)
NAMES = "t", "p"


def tool(name):
    """Skip without a program, which apt calls nco or cdo."""
    if shutil.which(name) is None:
        pytest.skip(
            f"{name} is not installed (apt install {'cdo' if name == 'cdo' else 'nco'}); it does not read files"
        )

    def call(*arguments):
        found = subprocess.run([name, *map(str, arguments)], capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
        return found.stdout

    return call


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A file with temperatures, of which two are missing, and rain, of which none is."""
    rng = np.random.default_rng(0)
    temperature = (280 + 10 * rng.standard_normal((3, 13, 12))).astype(np.float32)
    temperature[0, 2:4, 3] = np.nan
    rain = np.abs(rng.standard_normal((3, 13, 12))).astype(np.float32)
    dims = "time", "lat", "lon"
    coords = {
        "time": ("time", np.arange(3.0), {"units": "days since 2000-01-01", "calendar": "standard"}),
        "lat": ("lat", np.linspace(60, -60, 13), {"units": "degrees_north", "standard_name": "latitude"}),
        "lon": ("lon", np.arange(0, 360, 30.0), {"units": "degrees_east", "standard_name": "longitude"}),
    }
    dataset = xarray.Dataset(
        {"t": (dims, temperature, {"units": "K", "standard_name": "air_temperature"}), "p": (dims, rain)}, coords
    )
    for name in NAMES:
        dataset[name].encoding["_FillValue"] = np.float32(-9999)
    path = tmp_path_factory.mktemp("tools") / "in.nc"
    dataset.to_netcdf(path)
    return path


def values(path):
    """The values of a file as netCDF4 reads them, missing ones as NaN."""
    with netCDF4.Dataset(path) as file:
        return {name: np.ma.filled(file[name][:].astype(np.float64), np.nan) for name in NAMES}


def decoded(path):
    with xarray.open_dataset(path) as dataset:
        return {name: dataset[name].values.astype(np.float64) for name in NAMES}


def by_nco(path, folder):
    tool("ncpdq")("-O", "-U", path, folder / "nco.nc")
    return values(folder / "nco.nc")


def by_cdo(path, folder):
    tool("cdo")("-s", "-f", "nc4", "-b", "F64", "copy", path, folder / "cdo.nc")
    return values(folder / "cdo.nc")


def by_gdal(path, folder):
    rasterio = pytest.importorskip("rasterio", reason="rasterio is not installed; GDAL does not read files")
    found = {}
    for name in NAMES:
        with rasterio.open(f"netcdf:{path}:{name}") as bands:
            codes = bands.read(masked=True).astype(np.float64)
            scale, offset = (np.array(each)[:, None, None] for each in (bands.scales, bands.offsets))
            found[name] = np.ma.filled(codes * scale + offset, np.nan)
    return found


READERS = {"nco": by_nco, "cdo": by_cdo, "gdal": by_gdal}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("dtype", ["int16", "int8"])
def test_packed_files_are_read_alike(source, tmp_path, dtype, reader):
    """To the last digits of float32, in which netCDF4 computes and CDO and GDAL do not; with the same gaps."""
    run("pack", source, tmp_path / "p.nc", "--dtype", dtype)
    expected = decoded(tmp_path / "p.nc")
    found = READERS[reader](tmp_path / "p.nc", tmp_path)
    original = values(source)
    for name in NAMES:
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-7, atol=1e-6)
        assert np.array_equal(np.isnan(found[name]), np.isnan(original[name]))


@pytest.mark.parametrize("reader", READERS)
def test_rounded_files_are_read_alike(source, tmp_path, reader):
    run("bitround", source, tmp_path / "b.nc", "--keepbits", "7")
    expected = {name: fastq.bitround(x.astype(np.float32), keepbits=7) for name, x in values(source).items()}
    found = READERS[reader](tmp_path / "b.nc", tmp_path)
    for name in NAMES:
        np.testing.assert_array_equal(found[name], expected[name])


WAYS = {f"BitRound, {k} bits": ("--baa=8", k, {"keepbits": k, "convention": "netcdf"}) for k in (1, 3, 7, 16)}
WAYS |= {f"Granular BitRound, {k} digits": ("--baa=4", k, {"digits": k}) for k in (1, 2, 3, 5)}


@pytest.mark.parametrize("way", WAYS)
def test_nco_rounds_to_the_same_bits(source, tmp_path, way):
    algorithm, count, options = WAYS[way]
    tool("ncks")("-O", "-4", algorithm, f"--ppc=default={count}", source, tmp_path / "nco.nc")
    found = values(tmp_path / "nco.nc")
    for name, x in values(source).items():
        np.testing.assert_array_equal(found[name], fastq.bitround(x.astype(np.float32), **options))


@pytest.mark.filterwarnings("ignore:variable .* has non-conforming '_FillValue'")  # of NCO
@pytest.mark.parametrize("writer", ["ncpdq", "cdo"])
def test_files_that_they_packed_are_unpacked_and_stay(source, tmp_path, writer):
    options = ("-O", "-P", "all_new") if writer == "ncpdq" else ("-s", "pack")
    tool(writer)(*options, source, tmp_path / "p.nc")
    expected = decoded(tmp_path / "p.nc")
    with xarray.open_dataset(tmp_path / "p.nc", decode_cf=False) as dataset:
        unpacked = fastq.xarray.unpack(dataset)
        for name in NAMES:
            np.testing.assert_array_equal(unpacked[name].values, expected[name].astype(unpacked[name].dtype))
    for command in (("pack",), ("bitround", "--keepbits", "7")):
        name, *more = command
        run(name, tmp_path / "p.nc", tmp_path / "o.nc", *more, "--force", exit_code=4)  # nothing was to change
        with netCDF4.Dataset(tmp_path / "p.nc") as before, netCDF4.Dataset(tmp_path / "o.nc") as after:
            for each in NAMES:
                before[each].set_auto_maskandscale(False)
                after[each].set_auto_maskandscale(False)
                assert before[each][:].tobytes() == after[each][:].tobytes()
                assert repr(sorted(vars(before[each]).items())) == repr(sorted(vars(after[each]).items()))


def test_attributes_of_ncos_rounding_go_with_the_old_values(source, tmp_path):
    tool("ncks")("-O", "-4", "--baa=8", "--ppc=default=12", source, tmp_path / "nco.nc")
    run("bitround", tmp_path / "nco.nc", tmp_path / "b.nc", "--keepbits", "5")
    with netCDF4.Dataset(tmp_path / "b.nc") as file:
        for name in NAMES:
            attributes = file[name].ncattrs()
            assert "QuantizeBitRoundNumberOfSignificantBits" not in attributes
    found = values(tmp_path / "b.nc")
    for name, x in values(tmp_path / "nco.nc").items():
        np.testing.assert_array_equal(found[name], fastq.bitround(x.astype(np.float32), keepbits=5))
