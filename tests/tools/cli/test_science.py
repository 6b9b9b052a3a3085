"""`fastq bitround` and `fastq pack`: netCDF and zarr in and out, what stays, what is told, what is refused."""

import os
import sys

import numpy as np
import pytest
from catalogue import same_bytes
from commands import invoke, refused, run, told

import fastq

xarray = pytest.importorskip("xarray", reason="no xarray")
pytest.importorskip("netCDF4", reason="no netCDF4")
pytest.importorskip("zarr", reason="no zarr")


@pytest.fixture
def source(tmp_path):
    """A file with gaps, times, an unlimited dimension and a packed variable."""
    rng = np.random.default_rng(5)
    t = (283 + 10 * np.sin(np.arange(60) / 6)[:, None] + rng.normal(size=(60, 12))).astype(np.float32)
    t[:, 3] = np.nan
    times = np.datetime64("2024-01-01", "ns") + np.arange(60) * np.timedelta64(1, "h")
    ds = xarray.Dataset(
        {"t": (("time", "lon"), t, {"units": "K"}), "rain": (("time", "lon"), np.abs(t - 283)), "p": ("time", t[:, 0])},
        {"time": times, "lon": np.linspace(0, 330, 12)},
    )
    encoding = {"t": {"_FillValue": np.float32(-999.0)}, "p": {"dtype": "int16", "scale_factor": 0.1, "_FillValue": -1}}
    ds.to_netcdf(tmp_path / "a.nc", encoding=encoding, unlimited_dims="time")
    return tmp_path / "a.nc"


def opened(path):
    how = {"engine": "zarr", "consolidated": False} if path.suffix == ".zarr" else {}
    with xarray.open_dataset(path, **how) as ds:
        return ds.load()


def test_files_and_stores(source):
    before = opened(source)
    for option, number, name in (("digits", 3, "b.nc"), ("keepbits", 7, "c.zarr"), ("max_error", 0.1, "d.zarr")):
        out = source.with_name(name)
        text = run("bitround", source, out, f"--{option.replace('_', '-')}", number)
        assert "2 variables: " in text
        assert [line.split()[0] for line in text.splitlines() if "float32" in line] == ["t", "rain"]
        after = opened(out)
        for kept in ("time", "lon", "p"):
            assert after[kept].equals(before[kept])
        for rounded in ("t", "rain"):
            same_bytes(after[rounded].values, fastq.bitround(before[rounded].values, **{option: number}))
    again = source.with_name("e.nc")
    run("bitround", source.with_name("c.zarr"), again, "--keepbits", "t=5")
    assert opened(again).rain.equals(opened(source.with_name("c.zarr")).rain)
    assert opened(again).t.attrs["quantization_nsb"] == 5
    assert opened(source.with_name("b.nc")).encoding["unlimited_dims"] == {"time"}


def test_a_comparison_with_a_rounded_file_has_the_bytes_on_disk(source):
    """Its variables have as many bytes as before; those of the file are what rounding is for."""
    for name in ("b.nc", "b.zarr"):
        out = source.with_name(name)
        run("bitround", source, out, "--digits", 3)
        sizes = [
            sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())
            for path in (source, out)
        ]
        expected = f"{sizes[0]:,} -> {sizes[1]:,} bytes, {sizes[0] / sizes[1]:.2f} x"
        assert run("compare", source, out).splitlines()[-1].endswith(expected)
        assert "on disk" not in run("compare", source, out, "--json")


@pytest.mark.parametrize("command", [("bitround", "--keepbits", 1), ("pack",)])
@pytest.mark.parametrize("name", ["b.nc", "b.zarr"])
@pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3 specification")
def test_texts_and_missing_fill_values_stay(tmp_path, command, name):
    """Characters keep their axes, and no variable gets a _FillValue that it did not have."""
    texts = xarray.Variable("x", np.array([b"ab", b"c"], "S2"))
    floats = xarray.Variable("x", np.array([1.5, 2.7]), encoding={"_FillValue": None})
    flags = xarray.Variable("x", np.zeros(2), {"flag_meanings": "a b"}, {"_FillValue": None})
    ds = xarray.Dataset({"texts": texts, "given": floats, "flags": flags})
    ds.to_netcdf(tmp_path / "a.nc")
    option, *rest = command
    run(option, tmp_path / "a.nc", tmp_path / name, *rest)
    assert opened(tmp_path / name).texts.identical(opened(tmp_path / "a.nc").texts)
    how = {"engine": "zarr", "consolidated": False} if name == "b.zarr" else {}
    with xarray.open_dataset(tmp_path / name, decode_cf=False, **how) as stored:
        assert "_FillValue" not in stored.flags.attrs
        assert ("_FillValue" in stored.given.attrs) == (option == "pack")


@pytest.mark.parametrize("command", [("bitround", "--keepbits", 5), ("pack",)])
def test_stores_keep_their_version(source, command):
    store, out, (option, *rest) = source.with_name("old.zarr"), source.with_name("b.zarr"), command
    opened(source).drop_encoding().to_zarr(store, zarr_format=2, consolidated=False)
    run(option, store, out, *rest)
    assert (out / ".zgroup").is_file()
    assert opened(out).time.equals(opened(source).time)
    run(option, source, out, *rest, "--force")
    assert (out / "zarr.json").is_file()


def test_packed_files_are_unpacked_by_any_reader(source):
    before = opened(source)
    for name in ("b.nc", "c.zarr"):
        out = source.with_name(name)
        text = run("pack", source, out, "--max-error", "t=0.5", "--dtype", "uint16")
        rows = {line.split()[0]: line.split()[1] for line in text.splitlines() if "int" in line}
        assert rows == {"t": "uint8", "rain": "uint16"}
        with xarray.open_dataset(out, decode_cf=False) as stored:
            assert f" {np.float32(stored.t.attrs['scale_factor'])!s} " in text
        assert "2 variables: " in text
        after = opened(out)
        for kept in ("time", "lon", "p"):
            assert after[kept].equals(before[kept])
        step = float(after.rain.encoding["scale_factor"])
        for variable, most in (("t", 0.5), ("rain", 0.51 * step)):
            x, y = before[variable].values, after[variable].values
            np.testing.assert_array_equal(np.isnan(x), np.isnan(y))
            assert np.nanmax(np.abs(x - y)) <= most
    with xarray.open_dataset(source.with_name("b.nc"), decode_cf=False) as stored:
        assert (stored.t.dtype, stored.t.encoding["zlib"]) == (np.uint8, True)
        same_bytes(stored.t.values, fastq.xarray.pack(before, max_error={"t": 0.5}, dtype="uint16").t.values)


def test_what_pack_refuses(source):
    out = source.with_name("b.nc")
    for options, message in {
        ("--max-error", "0.5"): "'0.5' is not NAME=NUMBER",
        ("--max-error", "t=x"): "'t=x' is not NAME=NUMBER",
        ("--max-error", "t=1", "--max-error", "t=2"): "give NAME=NUMBER once for each of some variables",
        (
            "--max-error",
            "rian=1",
        ): "'--max-error': max_error names 'rian', which is not a float variable: did you mean rain",
        ("--max-error", "t=1e-9"): "; fastq bitround leaves it a float",
        ("--dtype", "int4"): "int4",
    }.items():
        assert message in refused("pack", source, out, *options)
        assert not out.exists()


def test_what_was_rounded_before_is_rounded_again(tmp_path):
    noted = {"actual_range": np.array([0.0, 2.7]), "valid_range": np.array([0.0, 9.0])}
    ds = xarray.Dataset({"a": ("x", np.array([0.0, 2.7]), noted), "b": ("x", np.array([0.0, 2.7]), noted)})
    ds.to_netcdf(tmp_path / "0.nc")
    for k in range(2):
        text = run("bitround", tmp_path / f"{k}.nc", tmp_path / f"{k + 1}.nc", "--keepbits", "a=3")
        assert "1 variable: " in text
        assert opened(tmp_path / f"{k + 1}.nc").a.encoding["zlib"]
    same_bytes(opened(tmp_path / "2.nc").a.attrs["actual_range"], np.array([0.0, 2.75]))


def test_information_along_a_dimension(source):
    out = source.with_name("b.nc")
    run("bitround", source, out, "--information", 0.95, "--dim", "time", "--convention", "netcdf")
    kept = fastq.bit_information(opened(source).t.values, axis=0).keepbits(0.95)
    assert opened(out).t.attrs["quantization_nsb"] == kept


def test_what_is_there_is_replaced_by_force_alone(source):
    for name in ("b.nc", "b.zarr"):
        out = source.with_name(name)
        run("bitround", source, out, "--digits", 2)
        assert "--force replaces it" in refused("bitround", source, out, "--digits", 3)
        run("bitround", source, out, "--digits", 3, "--force")
        assert opened(out).t.attrs["quantization_nsd"] == 3
    assert sorted(path.name for path in source.parent.iterdir()) == ["a.nc", "b.nc", "b.zarr"]
    store = source.with_name("b.zarr")
    assert "is FILE itself" in refused("bitround", store, store, "--digits", 3, "--force")
    assert "must not lie in FILE" in refused("bitround", store, store / "c.zarr", "--digits", 3)
    assert "nor FILE in it" in refused("bitround", store / "t", store, "--digits", 3, "--force")
    folder = source.with_name("other.zarr")
    folder.mkdir()
    assert "not a zarr store" in refused("bitround", source, folder, "--digits", 3, "--force")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["b.nc"], "one of --keepbits, --digits, --max-error and --information is missing"),
        (["b.nc", "--digits", 3, "--dim", "lon"], "--dim is for --information"),
        (["b.zarr", "--digits", 3, "--level", 9], "--level is for a netCDF file"),
        (["b.txt", "--digits", 3], "'b.txt' must end in .nc, .nc4, .cdf, .h5 or .zarr"),
        (["no/b.zarr", "--digits", 3], "there is no folder"),
        (["b.nc", "--digits", "x"], "'x' is not NUMBER, nor NAME=NUMBER"),
        (["b.nc", "--digits", 3, "--digits", "t=2"], "one number for all variables, or NAME=NUMBER"),
        (["b.nc", "--digits", "t=3", "--digits", "t=2"], "or NAME=NUMBER once for each of some variables"),
        (["b.nc", "--digits", 3, "--keepbits", 2], "'--digits': digits must be given by the names of variables"),
        (["b.nc", "--digits", "lon=3"], "digits names 'lon', which stays as it is: it is a coordinate"),
        (["b.nc", "--digits", 9], "digits of 't' must be from 1 to 7"),
    ],
)
def test_refusals(source, arguments, message):
    out, *options = arguments
    assert message in refused("bitround", source, source.parent / out, *options)
    assert [path.name for path in source.parent.iterdir()] == ["a.nc"]


def test_checksums_and_unused_dimensions_are_kept(source):
    path, out = source.with_name("sums.nc"), source.with_name("b.nc")
    opened(source).to_netcdf(path, encoding={"t": {"fletcher32": True}}, unlimited_dims="time")
    netcdf = pytest.importorskip("netCDF4")
    with netcdf.Dataset(path, "a") as file:
        file.createDimension("unused", None)
    for command in (("pack",), ("bitround", "--keepbits", 5)):
        run(command[0], path, out, *command[1:], "--force")  # fails on a warning
        with netcdf.Dataset(out) as file:
            assert [file[name].filters()["fletcher32"] for name in ("t", "rain")] == [True, False]
            assert [name for name, each in file.dimensions.items() if each.isunlimited()] == ["time", "unused"]


@pytest.fixture
def grouped(source):
    """A file with a group, one in it that uses its dimensions, and an empty one."""
    netcdf = pytest.importorskip("netCDF4")
    path = source.with_name("groups.nc")
    ds = opened(source)
    tree = xarray.DataTree.from_dict({"/": ds, "/more": ds.assign(c=ds.lon > 3), "/more/empty": xarray.Dataset()})
    tree.attrs["title"] = "groups"
    tree["more"].attrs["of"] = 3
    tree.to_netcdf(path)
    with netcdf.Dataset(path, "a") as file:
        kind = file["more"].createEnumType(np.uint8, "kind_t", {"a": 0, "b": 1})
        deep = file["more"].createGroup("deep")
        deep.createVariable("kind", kind, ("lon",))[:] = np.ones(12, np.uint8)
        deep.createVariable("u", "f4", ("lon",))[:] = np.arange(12) / 7
    return path


GROUPS = ["/", "/more", "/more/deep", "/more/empty"]


def groups_in(path):
    how = {"engine": "zarr", "consolidated": False} if path.suffix == ".zarr" else {}
    found = xarray.open_groups(path, **how)
    loaded = {name: each.load() for name, each in found.items()}
    for each in found.values():
        each.close()
    return loaded


@pytest.mark.slow(
    "half a second each",
    quick=lambda command, kinds: (command[0], *kinds) in {("pack", "nc", "nc"), ("bitround", "zarr", "zarr")},
)
@pytest.mark.parametrize("kinds", [("nc", "nc"), ("nc", "zarr"), ("zarr", "zarr"), ("zarr", "nc")], ids="-".join)
@pytest.mark.parametrize("command", [("bitround", "--max-error", "0.05"), ("pack",)])
def test_groups_are_converted_one_by_one(grouped, command, kinds):
    before = groups_in(grouped)
    path, out = grouped, grouped.with_name(f"out.{kinds[1]}")
    if kinds[0] == "zarr":
        path = grouped.with_name("groups.zarr")
        xarray.DataTree.from_dict(before).to_zarr(path, consolidated=False)
        before = groups_in(path)
    option, *rest = command
    text = run(option, path, out, *rest)
    assert {"t", "rain", "more/t", "more/rain", "more/deep/u"} == {
        line.split()[0] for line in text.splitlines() if "float32" in line or "int16" in line
    }
    after = groups_in(out)
    assert sorted(after) == GROUPS
    for name, ds in before.items():
        assert after[name].attrs == ds.attrs
        for key, variable in ds.variables.items():
            if variable.dtype.kind == "f":
                np.testing.assert_allclose(after[name][key], variable, atol=0.051, rtol=0)
            else:
                np.testing.assert_array_equal(after[name][key], variable)
    if kinds == ("nc", "nc"):
        with pytest.importorskip("netCDF4").Dataset(out) as file:
            assert file["more/deep/kind"].datatype.enum_dict == {"a": 0, "b": 1}


def test_variables_of_groups_are_named_with_their_paths(grouped):
    before = groups_in(grouped)
    out = grouped.with_name("b.nc")
    run("pack", grouped, out, "--max-error", "more/t=0.5", "--exclude", "more/d*", "--drop", "more/rain")
    after = groups_in(out)
    assert after["/more"].t.encoding["dtype"] == np.int8
    assert after["/"].t.encoding["dtype"] == np.int16
    assert after["/more/deep"].identical(before["/more/deep"])
    assert "rain" in after["/"]
    assert "rain" not in after["/more"]
    run("bitround", grouped, out, "--keepbits", "more/deep/u=2", "--force")
    after = groups_in(out)
    assert after["/"].identical(before["/"])
    same_bytes(after["/more/deep"].u.values, fastq.bitround(before["/more/deep"].u.values, keepbits=2))
    for name in ("more/nothing", "nowhere/t"):
        line = refused("bitround", grouped, out, "--keepbits", f"{name}=2", "--force")
        assert f"{name.removeprefix('more/')!r}" in line
    with pytest.importorskip("netCDF4").Dataset(grouped, "a") as file:
        file["more"].createVariable("w", "f4", ("lon",))[3:] = np.inf
    line = refused("pack", grouped, out, "--force")
    assert "has infinite values in 'more/w'" in line
    assert line.endswith("; --exclude more/w leaves the variable as it is")
    run("pack", grouped, out, "--force", "--exclude", "more/w")


@pytest.mark.parametrize("command", [("bitround", "--keepbits", 5), ("pack",)])
def test_nothing_to_change_is_told(source, command):
    option, *rest = command
    run("pack", source, source.with_name("b.nc"))
    text = told(option, source.with_name("b.nc"), source.with_name("c.nc"), *rest, exit_code=4)
    assert "'b.nc' has no floats to change: 'c.nc' has its variables as they are" in text
    assert opened(source.with_name("c.nc")).equals(opened(source.with_name("b.nc")))


@pytest.mark.parametrize("which", [1, 2])
def test_an_interrupt_at_a_move_keeps_the_old_store(source, monkeypatch, which):
    run("pack", source, source.with_name("b.zarr"))
    before, replace, moves = opened(source.with_name("b.zarr")), os.replace, []

    def interrupted(a, b):
        if str(b).endswith(("b.zarr", "replaced")):
            moves.append(a)
            if len(moves) == which:
                raise KeyboardInterrupt
        return replace(a, b)

    monkeypatch.setattr(os, "replace", interrupted)
    invoke("bitround", source, source.with_name("b.zarr"), "--keepbits", 3, "--force")
    assert len(moves) >= which
    assert opened(source.with_name("b.zarr")).identical(before)


@pytest.mark.filterwarnings("error")
def test_stores_are_read_without_a_warning(source):
    run("pack", source, source.with_name("b.zarr"))
    told("bitround", source.with_name("b.zarr"), source.with_name("c.zarr"), "--keepbits", 3, exit_code=4)
    for name in ("b.zarr", "c.zarr"):
        xarray.open_zarr(source.with_name(name)).close()


def test_without_xarray(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    message = told("bitround", source, source.with_name("b.nc"), "--digits", 3)
    assert "this needs xarray with netCDF4 or zarr: pip install" in message


def test_a_function_without_xarray(monkeypatch, source):
    ds = opened(source)
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ModuleNotFoundError, match=r"fastq\.xarray\.bitround needs xarray: pip install"):
        fastq.xarray.bitround(ds, keepbits=3)
