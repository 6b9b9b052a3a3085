"""What `fastq pack` and `fastq bitround` do not change: from file to file as it is stored, whatever its type."""

import json
import os
import re
import shlex
import shutil
import warnings

import numpy as np
import pytest
from commands import invoke, refused, run

from fastq.tools.cli.exit_codes import IN_PART
from fastq.tools.tensors.netcdf_zarr import ONE_DIMENSION_TWICE

netCDF4 = pytest.importorskip("netCDF4", reason="no netCDF4")
xarray = pytest.importorskip("xarray", reason="no xarray")
zarr = pytest.importorskip("zarr", reason="no zarr")
kinds = pytest.importorskip("netcdf_kinds")
h5py = pytest.importorskip("h5py", reason="no h5py")

COMMANDS = [("pack",), ("bitround", "--keepbits", "5")]
FLOATS = ["temp", "rain"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("kinds") / "all.nc"
    kinds.write_all_kinds(path)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_all_kinds_of_variables_are_copied_as_they_are(source, tmp_path, command):
    # contract 25.13
    out = tmp_path / "out.nc"
    run(command[0], source, out, *command[1:])
    (about, before), (copied, after) = kinds.read_raw(source), kinds.read_raw(out)
    assert copied == about
    assert [name for name in after if not name.startswith("quantization")] == list(before)
    for name in before:
        if name not in FLOATS:
            assert after[name] == before[name], name
    for name in FLOATS:
        of_both = before[name]["attributes"].keys() & after[name]["attributes"].keys() - {"_FillValue"}
        assert {key: after[name]["attributes"][key] for key in of_both} == {
            key: before[name]["attributes"][key] for key in of_both
        }
        assert after[name]["dimensions"] == before[name]["dimensions"]
        assert after[name]["values"] != before[name]["values"]


def decoded(path, **options):
    how = {"engine": "zarr", "consolidated": False} if path.suffix == ".zarr" else {}
    with warnings.catch_warnings(action="ignore"), xarray.open_dataset(path, **how, **options) as ds:
        return ds.load()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3 specification")
def test_netcdf_to_zarr_is_read_as_before(source, tmp_path, command):
    """zarr has no lists, no enumerations, and no _FillValue of another type: refused, described and moved."""
    out = tmp_path / "out.zarr"
    lists = ["ragged", "counts", "count", "records", "record"]
    result = invoke(command[0], source, out, *command[1:])
    assert result.exit_code == 1
    assert "'ragged' has lists of variable length, which zarr lacks; --drop ragged leaves it out" in result.stderr
    assert not out.exists()
    drops = [word for name in lists for word in ("--drop", name)]
    result = invoke(command[0], source, out, *command[1:], *drops)
    assert result.exit_code == 0, result.stderr
    for name, fill in {
        "station": "NA",
        "chars": "-",
        "packed_far": "1.0000000200408773e+20",
        "packed_nan": "nan",
    }.items():
        assert f"{name}: its _FillValue {fill} becomes its missing_value: it is no number of " in result.stderr
    assert "scalar: attribute pair is left out: it is a record, which zarr lacks" in result.stderr
    before, after = decoded(source, decode_times=False, drop_variables=lists), decoded(out, decode_times=False)
    assert set(before.variables) == {name for name in after.variables if not name.startswith("quantization")}
    for name in before.variables:
        if name not in FLOATS and name != "chars":
            xarray.testing.assert_equal(before[name].variable, after[name].variable)
    assert after.cloud.attrs == {"flag_values": [0, 1, 255], "flag_meanings": "clear cumulus missing"}
    with pytest.raises(KeyError):
        before["quantization"]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.filterwarnings("ignore:The data type .* does not have a Zarr V3 specification")
@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part")
@pytest.mark.parametrize("consolidated", [False, True])
def test_arrays_of_zarr_are_copied_file_by_file(tmp_path, command, zarr_format, consolidated):
    source, out = tmp_path / "a.zarr", tmp_path / "b.zarr"
    group = zarr.create_group(source, zarr_format=zarr_format, attributes={"title": "all", "list": [1, None]})
    noted = {"dimension_names": ["x"]} if zarr_format == 3 else {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}}
    for name, dtype in {
        "bool": bool,
        "complex": "c16",
        "half": "f2",
        "big": ">i4",
        "bytes": "S4",
        "stays": "f4",
    }.items():
        group.create_array(name, shape=(7,), chunks=(3,), dtype=dtype, **noted)[1:4] = np.arange(3).astype(dtype)
    group.create_array("dates", shape=(7,), chunks=(3,), dtype="M8[s]", **noted)
    group.create_array("t", shape=(7,), chunks=(3,), dtype="f4", **noted)[:] = np.linspace(0, 1, 7)
    if consolidated:
        zarr.consolidate_metadata(source)
    run(command[0], source, out, *command[1:], "--exclude", "half", "--exclude", "re:stay")
    files = {path.relative_to(source): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    copied = {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    of_arrays = [path for path in files if path.parts[0] != "t" and len(path.parts) > 1]
    assert of_arrays
    assert {path: copied.get(path) for path in of_arrays} == {path: files[path] for path in of_arrays}
    read = zarr.open_group(out, mode="r", use_consolidated=True)
    assert dict(read.attrs) == {"title": "all", "list": [1, None]}
    assert set(read.array_keys()) - {"quantization_bitround"} == set(group.array_keys())
    assert read["t"].chunks == (3,)
    assert (read["t"].dtype.kind == "i") == (command[0] == "pack")


@pytest.mark.parametrize("dtype", ["f2", "c8"])
def test_what_netcdf_lacks_is_refused_by_name(tmp_path, dtype):
    source, out = tmp_path / "a.zarr", tmp_path / "b.nc"
    group = zarr.create_group(source)
    for name in ("odd", "even"):
        group.create_array(name, shape=(3,), dtype=dtype if name == "odd" else "f4", dimension_names=["x"])[:] = 1
    result = invoke("bitround", source, out, "--keepbits", "even=3")
    assert f"'odd' is of {np.dtype(dtype)}, which netCDF lacks; --drop odd leaves it out" in result.stderr
    assert not out.exists()
    run("bitround", source, out, "--keepbits", "even=3", "--drop", "odd")
    assert set(decoded(out).variables) == {"even", "quantization_bitround"}


@pytest.mark.parametrize("dtype", ["bool", "M8[s]"])
def test_a_fill_value_that_netcdf_lacks_is_said(tmp_path, dtype):
    source, out = tmp_path / "a.zarr", tmp_path / "b.nc"
    group = zarr.create_group(source, zarr_format=2)
    noted = {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}}
    group.create_array("odd", shape=(3,), dtype=dtype, fill_value=0, **noted)[1:] = np.ones(2, dtype)
    group.create_array("t", shape=(3,), dtype="f4", fill_value=np.nan, **noted)[:] = 1
    result = invoke("pack", source, out)
    assert result.exit_code == 0, result.stderr
    assert f"is left out: netCDF has none for {np.dtype(dtype)}" in result.stderr
    np.testing.assert_array_equal(decoded(out).odd.values.astype(dtype), np.array([0, 1, 1]).astype(dtype))


def test_variables_that_are_named_stay_or_are_left_out(source, tmp_path):
    out = tmp_path / "b.nc"
    run("pack", source, out, "--exclude", "t*mp", "--drop", "re:packed", "--drop", "chars")
    (_, before), (about, after) = kinds.read_raw(source), kinds.read_raw(out)
    assert after["temp"] == before["temp"]
    assert set(before) - set(after) == {"packed_far", "packed_near", "packed_nan", "packed_wide", "chars"}
    assert "n" in about["dimensions"]
    for option in ("--exclude", "--drop"):
        result = invoke("pack", source, out, "--force", option, "tempp")
        assert f"Invalid value for '{option}': no variable has a name that matches 'tempp'" in result.stderr
        assert "the nearest are temp" in result.stderr


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_default_fill_value_is_named_with_advice_that_works(tmp_path, dtype):
    source, out = tmp_path / "a.nc", tmp_path / "b.nc"
    with netCDF4.Dataset(source, "w") as file:
        file.createDimension("x", 3)
        file.createVariable("dry", dtype, ("x",))[:2] = [1, 2]
        file.createVariable("wet", dtype, ("x",))[:] = [1, 2, 3]
    result = invoke("pack", source, out)
    assert "'a.nc' has 9.969209968386869e+36 in 'dry', netCDF's own fill value: ncatted -a" in result.stderr
    assert "--exclude dry leaves the variable as it is" in result.stderr
    assert " ds " not in result.stderr
    run("pack", source, out, "--exclude", "dry")
    assert kinds.read_raw(out)[1]["dry"] == kinds.read_raw(source)[1]["dry"]
    letter = {"f4": "f", "f8": "d"}[dtype]
    advised = result.stderr.replace("\n", " ").partition(f"_FillValue,dry,c,{letter},")[2].split()[0]
    with netCDF4.Dataset(source, "a") as file:  # as ncatted does
        file["dry"].setncattr("tmp", np.dtype(dtype).type(advised))
        file["dry"].renameAttribute("tmp", "_FillValue")
    run("pack", source, out, "--force")
    assert decoded(out).dry.isnull().values.tolist() == [False, False, True]


def test_types_that_netcdf4_does_not_read_are_refused_by_name(tmp_path):
    h5py = pytest.importorskip("h5py", reason="no h5py")
    source, out = tmp_path / "a.nc", tmp_path / "b.nc"
    with netCDF4.Dataset(source, "w") as file:
        file.createDimension("x", 3)
        file.createVariable("temp", "f4", ("x",))[:] = [1, 2, 3]
    with h5py.File(source, "a") as file:
        file["refs"] = np.array([file["temp"].ref], dtype=h5py.ref_dtype)
    result = invoke("pack", source, out)
    assert "netCDF4 can't read refs, which OUT would lack: --drop refs allows it" in result.stderr
    assert "refs: not read, since netCDF4 lacks its type" in invoke("inspect", source).stderr
    run("pack", source, out, "--drop", "refs")
    assert decoded(out).temp.shape == (3,)


@pytest.mark.slow("runs commands on all kinds of variables")
def test_lists_and_records_are_shown_and_compared(source, tmp_path):
    shown = run("inspect", source)
    for name, what in {"ragged": "lists of variable length", "records": "records of several fields"}.items():
        assert any(line.split()[:1] == [name] and what in line for line in shown.splitlines())
    out = tmp_path / "b.nc"
    run("bitround", source, out, "--keepbits", 20)
    result = invoke("compare", source, out)
    assert "ragged: not measured: lists of variable length, the same bytes in both" in result.stderr
    with netCDF4.Dataset(out, "a") as file:
        file["ragged"][0] = np.arange(5, dtype="f4")
    result = invoke("compare", source, out)
    assert "ragged: not measured: lists of variable length, and the bytes differ" in result.stderr


def test_variables_in_parts_are_copied_in_full(tmp_path, monkeypatch):
    monkeypatch.setattr("fastq.tools.tensors.netcdf_zarr_copies.PIECE", 64)
    source, out = tmp_path / "a.nc", tmp_path / "b.nc"
    numbers = np.arange(5 * 7 * 3).reshape(5, 7, 3)
    with netCDF4.Dataset(source, "w") as file:
        for name, size in {"t": None, "y": 7, "x": 3, "none": 0}.items():
            file.createDimension(name, size)
        file.createVariable("chunked", "i4", ("t", "y", "x"), chunksizes=(2, 3, 2))[:] = numbers
        file.createVariable("whole", "i8", ("y", "x"))[:] = numbers[0]
        file.createVariable("empty", "i8", ("none", "x"))
    run("pack", source, out, exit_code=IN_PART)
    assert kinds.read_raw(out) == kinds.read_raw(source)


@pytest.mark.parametrize(
    "version", ["NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA", "NETCDF4_CLASSIC"]
)
def test_files_of_other_versions(tmp_path, version):
    source, out = tmp_path / "a.nc", tmp_path / "b.nc"
    with netCDF4.Dataset(source, "w", format=version) as file:
        file.createDimension("t", None)
        file.createDimension("n", 4)
        file.createVariable("temp", "f4", ("t",))[:] = [1, 2, 3]
        file.createVariable("texts", "S1", ("t", "n"))[:] = netCDF4.stringtochar(np.array(["abc", "", "d"], "S4"))
        short = file.createVariable("short", "i2", ("t",))
        short.setncattr("missing_value", np.float32(1e20))
        short.setncatts({"units": "m s-1", "factors": np.array([1, 2], "f4"), "one": np.int8(3)})
        short.set_auto_maskandscale(False)
        short[:] = [1, 2, 3]
    run("pack", source, out)
    (_, before), (_, after) = kinds.read_raw(source), kinds.read_raw(out)
    for name in ("texts", "short"):
        for part in ("dimensions", "attributes"):
            assert after[name][part] == before[name][part]
        with netCDF4.Dataset(source) as a, netCDF4.Dataset(out) as b:
            for file in (a, b):
                file.set_auto_maskandscale(False)
            np.testing.assert_array_equal(a[name][:], b[name][:])


def test_groups_have_types_of_their_own_and_of_others(tmp_path):
    source, out = tmp_path / "a.nc", tmp_path / "b.nc"
    with netCDF4.Dataset(source, "w") as file:
        file.createDimension("x", 2)
        first, second = file.createGroup("a"), file.createGroup("b/deep")
        own = first.createEnumType(np.uint8, "kind_t", {"low": 0, "high": 1})
        other = second.createEnumType(np.uint8, "kind_t", {"no": 0, "yes": 1})
        far = second.createEnumType(np.int16, "far_t", {"near": -1, "far": 1})
        first.createVariable("own", own, ("x",))[:] = np.array([0, 1], np.uint8)
        first.createVariable("far", far, ("x",))[:] = np.array([-1, 1], np.int16)
        second.createVariable("other", other, ("x",))[:] = np.array([1, 1], np.uint8)
        second.createVariable("t", "f4", ("x",))[:] = [1, 2]
    run("pack", source, out)
    with netCDF4.Dataset(source) as before, netCDF4.Dataset(out) as after:
        for name in ("a/own", "a/far", "b/deep/other"):
            assert after[name].datatype.enum_dict == before[name].datatype.enum_dict
            np.testing.assert_array_equal(after[name][:], before[name][:])


def write_hdf5(path, kind):
    """A file of HDF5 with an array that netCDF lacks, and one that it reads."""
    with h5py.File(path, "w") as file:
        file["t"] = np.linspace(0, 1, 12, dtype=np.float32)
        group = file.create_group("g") if kind == "half precision in a group" else file
        if kind.startswith("half precision"):
            group["odd"] = np.ones(3, np.float16)
        elif kind == "long floats":
            file["odd"] = np.ones(3, np.longdouble)
        elif kind == "long complex numbers":
            file["odd"] = np.ones(3, np.clongdouble)
        elif kind == "bits":
            h5py.h5d.create(file.id, b"odd", h5py.h5t.STD_B8LE, h5py.h5s.create_simple((3,)))
        elif kind == "lzf":
            file.create_dataset("odd", data=np.arange(100), compression="lzf")
        elif kind == "empty":
            file["odd"] = h5py.Empty("f4")
        elif kind == "link":
            file["odd"] = h5py.SoftLink("/nothing")
        else:
            file["odd"] = h5py.ExternalLink("nothing.h5", "/x")


DROPPED = ["half precision", "half precision in a group", "long floats", "long complex numbers", "bits", "lzf"]
UNOPENED = ["empty", "link", "external link"]


@pytest.mark.parametrize("kind", DROPPED)
def test_arrays_of_hdf5_that_netcdf_lacks_are_refused_by_name(tmp_path, kind):
    """netCDF ends the process that reads some of them."""
    write_hdf5(tmp_path / "a.h5", kind)
    name = "g/odd" if kind.endswith("group") else "odd"
    line = refused("pack", tmp_path / "a.h5", tmp_path / "b.nc")
    assert f"netCDF4 can't read {name}, which OUT would lack: --drop {name} allows it" in line
    run("pack", tmp_path / "a.h5", tmp_path / "b.nc", "--drop", name)
    assert set(decoded(tmp_path / "b.nc").variables) == {"t"}
    result = invoke("inspect", tmp_path / "a.h5")
    assert result.exit_code in (0, IN_PART)
    assert " t " in result.stdout
    assert (f" {name} " in result.stdout) != (f"{name}: not read" in result.stderr)  # h5netcdf reads more types


@pytest.mark.parametrize("command", [("inspect",), ("compare", "a.h5"), ("pack", "b.nc"), ("pack", "b.zarr")])
def test_what_netcdf_opens_no_file_with_is_named_beside_types_that_it_lacks(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    write_hdf5(tmp_path / "a.h5", "half precision")
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["none"] = h5py.Empty("f4")
    name, *more = command
    assert "since it has no values or a link to nothing: none; with h5py " in refused(name, "a.h5", *more)


@pytest.mark.parametrize("kind", UNOPENED)
def test_what_netcdf_opens_no_file_with_is_named(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    write_hdf5(tmp_path / "a.h5", kind)
    line = refused("pack", "a.h5", "b.nc")
    assert "netCDF can't open it, since it has no values or a link to nothing: odd; with h5py " in line
    way, opened = re.search(r"with h5py (.*) removes that, where file = (.*)$", line).groups()
    with eval(opened, {"h5py": h5py}) as file:
        exec(way, {"file": file})
    run("pack", "a.h5", "b.nc")
    assert set(decoded(tmp_path / "b.nc").variables) == {"t"}


def pair():
    return np.array((1, 2.5), dtype=[("a", "i4"), ("b", "f4")])


# attributes of HDF5 that netCDF lacks, and whether h5netcdf, which reads half precision, opens a file with them
LACKING = {
    "reference": (lambda file: file["t"].ref, False),
    "region": (lambda file: file["t"].regionref[:2], False),
    "references": (lambda file: np.array([file["t"].ref] * 2, dtype=h5py.ref_dtype), True),
    "record": (lambda file: pair(), True),
    "bytes": (lambda file: np.void(b"abc"), True),
    "half precision": (lambda file: np.float16(1.5), True),
    "complex": (lambda file: 1 + 2j, True),
}


@pytest.mark.parametrize("owner", ["t", "/"])
@pytest.mark.parametrize("kind", LACKING)
def test_attributes_of_hdf5_that_netcdf_lacks_are_told(tmp_path, monkeypatch, kind, owner):
    monkeypatch.chdir(tmp_path)
    write_hdf5("a.h5", "half precision")
    value, opens = LACKING[kind]
    with h5py.File("a.h5", "a") as file:
        file[owner].attrs["note"] = value(file)
        file[owner].attrs["kept"] = 3
    if opens:
        run("inspect", "a.h5")
    else:
        line = refused("inspect", "a.h5")
        assert f"it can't read attributes: note of {owner}; with h5py del file[{owner!r}].attrs['note'] " in line
    with h5py.File("a.h5", "a") as file:
        del file["odd"]
    run("inspect", "a.h5")
    for out in ("b.nc", "b.zarr"):
        result = invoke("pack", "a.h5", out)
        assert result.exit_code == 0, result.stderr
        named = "the file" if owner == "/" else "t"
        assert result.stderr == f"{named}: its attribute note is left out, since netCDF4 can't read its type\n"
        found = decoded(tmp_path / out)
        attributes = found.attrs if owner == "/" else found.t.attrs
        assert ("note" in attributes, attributes["kept"]) == (False, 3)


@pytest.mark.parametrize("kind", [kind for kind, (_, opens) in LACKING.items() if opens])
def test_attributes_that_zarr_lacks_are_told(tmp_path, monkeypatch, kind):
    """h5netcdf reads them."""
    monkeypatch.chdir(tmp_path)
    write_hdf5("a.h5", "half precision")
    value, _ = LACKING[kind]
    with h5py.File("a.h5", "a") as file:
        file["t"].attrs["note"] = value(file)
    result = invoke("pack", "a.h5", "b.zarr", "--drop", "odd")
    assert result.exit_code == 0, result.stderr
    is_lost = kind != "half precision"
    assert ("t: attribute note is left out" in result.stderr) == is_lost
    assert ("note" in decoded(tmp_path / "b.zarr").t.attrs) == (not is_lost)


def write_unknown(file, kind):
    """Add what h5py itself has no words for."""
    of_two, time = h5py.h5s.create_simple((2, 2)), h5py.h5t.UNIX_D32LE
    owner = file if kind.endswith("of the file") else file["t"]
    if kind.startswith("array of"):
        name = b"od\xff" if kind == "array of another encoding" else b"odd"
        dtype = time if kind == "array of times" else h5py.h5t.IEEE_F32LE
        h5py.h5d.create(file.id, name, dtype, h5py.h5s.create_simple((3,)))
    elif kind == "links in a circle":
        file["odd"], file["even"] = h5py.SoftLink("/even"), h5py.SoftLink("/odd")
    elif kind == "attribute of another encoding":
        h5py.h5a.create(owner.id, b"no\xff", h5py.h5t.IEEE_F32LE, of_two)
    else:
        form = h5py.h5t.array_create(time, (2,)) if "arrays" in kind else time
        h5py.h5a.create(owner.id, b"note", form, of_two if "axes" in kind else h5py.h5s.create(h5py.h5s.SCALAR))


UNKNOWN = ["array of times", "array of another encoding", "links in a circle", "attribute of another encoding"]
UNKNOWN += [
    f"{attribute} of {owner}" for attribute in ("time", "arrays of times", "two axes") for owner in ("t", "the file")
]


@pytest.mark.parametrize("command", [("inspect",), ("pack", "b.nc")])
@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_h5py_does_not_know_is_named(tmp_path, monkeypatch, kind, command):
    """The handler of netCDF's error looks for the reason by h5py, which may raise an error of its own."""
    monkeypatch.chdir(tmp_path)
    write_hdf5("a.h5", "bits" if kind == "time of t" else "lzf")
    with h5py.File("a.h5", "a") as file:
        del file["odd"]
        write_unknown(file, kind)
    name, *more = command
    (tmp_path / "copy").mkdir()
    shutil.copy("a.h5", "copy")
    line = refused(name, "a.h5", *more)
    assert line.startswith("Error: a.h5: netCDF can't open it, since it "), line
    monkeypatch.chdir("copy")  # netCDF4 leaves a file open that it can't read
    way, opened = re.search(r"with h5py (.*) removes that, where file = (.*)$", line).groups()
    with eval(opened, {"h5py": h5py}) as file:
        exec(way, {"file": file})
    run(name, "a.h5", *more)


def test_a_damaged_file_has_netcdfs_own_error(tmp_path):
    write_hdf5(tmp_path / "a.h5", "lzf")
    data = (tmp_path / "a.h5").read_bytes()
    (tmp_path / "a.h5").write_bytes(data[: len(data) // 2])
    assert "a.h5" in refused("inspect", tmp_path / "a.h5")


def test_attributes_of_two_axes_are_named(tmp_path, monkeypatch):
    """netCDF opens no file with them."""
    monkeypatch.chdir(tmp_path)
    write_hdf5("a.h5", "half precision")
    with h5py.File("a.h5", "a") as file:
        del file["odd"]
        file["t"].attrs["matrix"] = np.ones((2, 2))
    for command in (["inspect", "a.h5"], ["pack", "a.h5", "b.nc"], ["compare", "a.h5", "a.h5"]):
        line = refused(*command)
        assert "it can't read attributes: matrix of t; with h5py " in line
    shutil.copy("a.h5", "copy.h5")  # netCDF keeps a file locked that it fails to open, as long as the process runs
    os.replace("copy.h5", "a.h5")
    way, opened = re.search(r"with h5py (.*) removes that, where file = (.*)$", line).groups()
    with eval(opened, {"h5py": h5py}) as file:
        exec(way, {"file": file})
    run("pack", "a.h5", "b.nc")


OF_JSON = [{"b": 1}, None, True, [1, "a"], [[1, 2], [3, 4]], [[1], [2, 3]], [True, False], 2**70, [{"a": None}]]
OF_BOTH = [1, 1.5, "a", ["a", "b"], [1, 2], []]


@pytest.mark.parametrize("version", [2, 3])
def test_attributes_of_zarr_that_netcdf_lacks_become_their_json(tmp_path, version):
    source, out = tmp_path / "a.zarr", tmp_path / "b.nc"
    x = np.linspace(0, 1, 12, dtype=np.float32)
    xarray.Dataset({"t": ("x", x)}).to_zarr(source, zarr_format=version, consolidated=False)
    group = zarr.open_group(source, mode="a")
    for place in (group, group["t"]):
        place.attrs.update({f"json{k}": value for k, value in enumerate(OF_JSON)})
        place.attrs.update({f"kept{k}": value for k, value in enumerate(OF_BOTH)})
    result = invoke("pack", source, out)
    assert result.exit_code == 0, result.stderr
    with netCDF4.Dataset(out) as file:
        for place, name in ((file, "the file"), (file["t"], "t")):
            for k, value in enumerate(OF_JSON):
                assert json.loads(place.getncattr(f"json{k}")) == value
                assert f"{name}: its attribute json{k} becomes a text, its JSON" in result.stderr
            for k, value in enumerate(OF_BOTH):
                np.testing.assert_array_equal(place.getncattr(f"kept{k}"), value)
                assert f"kept{k}" not in result.stderr


NO_NAMES = ["a/b", " x", "x ", ".x", "(x)", "a\tb"]  # of netCDF
TAKEN = ["CLASS", "NAME", "DIMENSION_LIST", "_Netcdf4Dimid"]  # by HDF5 and netCDF for dimensions
NAMES = ["1x", "é", "x (2 m)", "a:b", "_x"]


def test_attributes_of_zarr_whose_names_netcdf_lacks_are_told(tmp_path):
    source, out = tmp_path / "a.zarr", tmp_path / "b.nc"
    xarray.Dataset({"t": ("x", np.linspace(0, 1, 12, dtype=np.float32))}).to_zarr(source, consolidated=False)
    group = zarr.open_group(source, mode="a")
    for place in (group, group["t"]):
        place.attrs.update(dict.fromkeys((*NO_NAMES, *TAKEN, *NAMES), 1))
    result = invoke("pack", source, out)
    assert result.exit_code == 0, result.stderr
    with netCDF4.Dataset(out) as file:
        for place, owner in ((file, "the file"), (file["t"], "t")):
            for name in (*NO_NAMES, *TAKEN):
                assert f"{owner}: its attribute {name!r} is left out: netCDF takes no such name" in result.stderr
            assert {*NAMES} <= {*place.ncattrs()}
    assert result.stderr.count("\n") == 2 * len(NO_NAMES + TAKEN)


@pytest.mark.parametrize("name", [name for name in NO_NAMES if "/" not in name])
def test_variables_of_zarr_whose_names_netcdf_lacks_are_refused_by_name(tmp_path, name):
    x = np.linspace(0, 1, 12, dtype=np.float32)
    for k, odd in enumerate(({name: ("x", x)}, {"odd": (name, x)})):
        source = tmp_path / f"a{k}.zarr"
        xarray.Dataset({"t": ("x", x), **odd}).to_zarr(source, consolidated=False)
        line = refused("pack", source, tmp_path / "b.nc")
        assert f"{name!r} is no name for variables and dimensions of netCDF; --drop " in line
        drop = shlex.split(line.split("; ")[-1])[1]
        run("pack", source, tmp_path / f"b{k}.nc", "--drop", drop)
        assert set(decoded(tmp_path / f"b{k}.nc").variables) == {"t"}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("order", ["big", "little"])
def test_the_order_of_bytes_is_kept(tmp_path, command, order):
    values = np.linspace(1, 2, 12)
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 12)
        for dtype in ("f4", "f8", "i4"):
            file.createVariable(dtype, np.dtype(dtype).newbyteorder(order), ("x",), endian=order)[:] = values
    run(command[0], tmp_path / "a.nc", tmp_path / "b.nc", *command[1:])
    with netCDF4.Dataset(tmp_path / "b.nc") as file:
        for dtype in ("f4", "f8", "i4"):
            assert file[dtype].endian() == order
            np.testing.assert_allclose(file[dtype][:], values.astype(dtype), atol=0.02, rtol=0)


def test_one_dimension_twice_is_no_fault(tmp_path, monkeypatch):
    """xarray warns of it, with the path of its own code."""
    monkeypatch.chdir(tmp_path)
    x = np.linspace(0, 1, 16, dtype=np.float32)
    with netCDF4.Dataset("a.nc", "w") as file:
        file.createDimension("x", 4)
        file.createVariable("covariance", "f4", ("x", "x"))[:] = x.reshape(4, 4)
    with pytest.warns(UserWarning, match=ONE_DIMENSION_TWICE), xarray.open_dataset("a.nc"):
        pass
    for command in ("pack a.nc b.nc", "pack a.nc b.zarr", "inspect a.nc", "compare a.nc b.nc"):
        result = invoke(*command.split())
        assert (result.exit_code, result.stderr) == (0, "")
    with netCDF4.Dataset("b.nc") as file:
        np.testing.assert_allclose(file["covariance"][:], x.reshape(4, 4), atol=0.01)


def test_dimensions_without_names_are_no_labels(tmp_path, monkeypatch):
    """netCDF and h5netcdf, which reads half precision, number them in another order."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("a.h5", "w") as file:
        file["a"] = np.ones(3, np.float16)
        file["b"] = np.ones((4, 5), np.float32)
        file["t"] = np.linspace(0, 1, 12, dtype=np.float32)
    run("bitround", "a.h5", "b.nc", "--keepbits", "5", "--drop", "a")
    result = invoke("compare", "a.h5", "b.nc")
    assert result.exit_code == IN_PART
    assert result.stderr == "a: only in a.h5\n"
    assert {"b", "t"} <= {line.split()[0] for line in result.stdout.splitlines() if line.strip()}


def test_shards_of_zarr_are_written_as_a_whole(tmp_path):
    numbers = np.linspace(0, 1, 60, dtype=np.float32).reshape(6, 10)
    group = zarr.create_group(tmp_path / "a.zarr")
    options = {"shape": (6, 10), "chunks": (2, 5), "shards": (4, 10), "dtype": "f4", "dimension_names": ["y", "x"]}
    group.create_array("t", **options)[:] = numbers
    for command in COMMANDS:
        out = tmp_path / f"{command[0]}.zarr"
        run(command[0], tmp_path / "a.zarr", out, *command[1:])
        assert zarr.open_group(out, mode="r")["t"].shards == (4, 10)
        np.testing.assert_allclose(decoded(out).t, numbers, atol=0.02, rtol=0)
