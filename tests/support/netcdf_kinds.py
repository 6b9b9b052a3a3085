"""A netCDF file with variables of all kinds, and what netCDF4 reads of a file without interpreting anything."""

import warnings

import netCDF4
import numpy as np

RNG = np.random.default_rng(11)
TEMPERATURES = (270 + 20 * RNG.random((4, 3))).astype(np.float32)
HALF = "tmp"


def _misfit(variable, key, value):
    """Give a variable a _FillValue of another type than its own, as NCO does."""
    variable.setncattr(HALF, value)
    variable.renameAttribute(HALF, key)


def write_all_kinds(path):
    """Write a file with each type, storage and kind of attribute; "temp" and "rain" are the floats to change."""
    with netCDF4.Dataset(path, "w") as file:
        for name, size in {"x": 3, "n": 4, "t": None, "unused": 2, "never": None}.items():
            file.createDimension(name, size)
        names = {"clear": 0, "cumulus": 1, "missing": 255}
        cloud = file.createEnumType(np.uint8, "cloud_t", names)
        file.createEnumType(np.int64, "unused_t", {"low": -(2**60), "high": 2**60})
        ragged = file.createVLType(np.dtype("f4"), "ragged_t")
        counts = file.createVLType(np.dtype("i8"), "counts_t")
        inner = file.createCompoundType(np.dtype([("a", "i4"), ("b", "f8", (2,))]), "inner_t")
        outer = file.createCompoundType(np.dtype([("i", inner.dtype), ("s", "S1", (5,))]), "outer_t")

        times = file.createVariable("t", "f8", ("t",))
        times.setncatts({"units": "hours since 2000-01-01", "calendar": "noleap"})
        times[:] = np.arange(4)
        temp = file.createVariable("temp", "f4", ("t", "x"), zlib=True, fletcher32=True, chunksizes=(2, 3))
        temp.setncatts({"coordinates": "station scalar", "names": ["a", "ä"], "one": np.array([3], np.int16)})
        temp[:] = TEMPERATURES
        rain = file.createVariable("rain", "f8", ("x",), fill_value=-1.0)
        rain[:] = [0.1, -1.0, 2.2]

        file.createVariable("cloud", cloud, ("x",), fill_value=255)[:] = np.array([0, 1, 255], np.uint8)
        file.createVariable("cloud_chunked", cloud, ("t", "x"), zlib=True)[:] = np.ones((4, 3), np.uint8)
        lists = file.createVariable("ragged", ragged, ("x",))
        lists[0], lists[2] = np.arange(2, dtype="f4"), np.arange(3, dtype="f4")
        grid = np.empty((4, 3), object)
        for place in np.ndindex(grid.shape):
            grid[place] = np.arange(sum(place) % 3, dtype="i8")
        file.createVariable("counts", counts, ("t", "x"), zlib=True, chunksizes=(2, 2))[:] = grid
        file.createVariable("count", counts, ())[...] = np.arange(3)
        records = np.zeros(3, outer.dtype)
        records["i"]["a"], records["s"][:, 0] = [1, 2, 3], [b"x", b"y", b"z"]
        file.createVariable("records", outer, ("x",))[:] = records
        file.createVariable("record", inner, ())[...] = records["i"][1]

        station = file.createVariable("station", str, ("x",), fill_value="NA")
        station[:] = np.array(["a", "NA", "ümlaut"], object)
        file.createVariable("texts", str, ("t", "x"), zlib=True, chunksizes=(1, 3))[:] = np.full((4, 3), "é", object)
        file.createVariable("text", str, ())[...] = "hello"
        chars = file.createVariable("chars", "S1", ("x", "n"), fill_value=b"-")
        chars[:] = netCDF4.stringtochar(np.array(["abc", "de", ""], "S4"))
        encoded = file.createVariable("encoded", "S1", ("x", "n"))
        encoded.setncattr("_Encoding", "utf-8")
        encoded[:] = np.array(["abc", "dé", ""])
        file.createVariable("char", "S1", ())[...] = b"q"

        big = file.createVariable("big", ">i4", ("t", "x"), endian="big", zlib=True, complevel=7, shuffle=False)
        big[:] = np.arange(12).reshape(4, 3)
        file.createVariable("zstd", "i2", ("t", "x"), compression="zstd", complevel=3)[:] = 7
        file.createVariable("scalar", "f8", ()).setncatts({"units": "degrees_north", "pair": records["i"][0]})
        file["scalar"][...] = 2.5
        file.createVariable("hours", "f4", ("x",)).units = "hours"
        file.createVariable("unfilled", "i4", ("x",), fill_value=False)[:] = [1, 2, 3]
        file.createVariable("unwritten", "i2", ("x",))
        file.createVariable("empty", "i2", ("never", "x"))
        for kind in ("i1", "u1", "u2", "u4", "i8", "u8"):
            whole = file.createVariable(f"whole_{kind}", kind, ("x",))
            whole.setncatts({"top": np.iinfo(kind).max, "all": np.array([0, 1], kind)})
            whole[:] = [0, 1, np.iinfo(kind).max]

        misfits = {"far": np.float32(1e20), "near": np.float64(-999.0), "nan": np.float32(np.nan), "wide": np.int32(7)}
        for name, fill in misfits.items():
            packed = file.createVariable(f"packed_{name}", "i2", ("x",))
            packed.set_auto_maskandscale(False)
            _misfit(packed, "_FillValue", fill)
            packed.setncatts({"scale_factor": np.float32(0.5), "add_offset": 270.0})
            packed[:] = [-999, 7, 32767]
        file.createVariable("unused", "i2", ("x",))[:] = 3  # called like a dimension that it does not have
        several = file.createVariable("several", "i2", ("x",))
        several.set_auto_maskandscale(False)
        several.setncatts({"missing_value": np.array([-1.0, 1e20]), "valid_range": "0, 10", "scale_factor": 2.0})
        several[:] = [-1, 0, 5]

        file.setncatts({"title": "all kinds", "version": np.int16(4), "nothing": "", "sizes": np.arange(3.0)})
        file.setncattr("author", "J. Müller".encode("latin-1"))  # texts of old files are in any encoding


def read_raw(path):
    """Return all that netCDF4 reads of a file: types, dimensions, and for each variable a dict of comparable texts."""
    with netCDF4.Dataset(path) as file:
        file.set_auto_maskandscale(False)
        file.set_auto_chartostring(False)
        types = {name: (str(each.dtype), each.enum_dict) for name, each in file.enumtypes.items()}
        types |= {name: str(each.dtype) for name, each in (file.vltypes | file.cmptypes).items()}
        about = {"types": types, "attributes": _attributes(file)}
        about["dimensions"] = {name: (len(each), each.isunlimited()) for name, each in file.dimensions.items()}
        return about, {name: _variable(each) for name, each in file.variables.items()}


def _attributes(owner):
    found = {key: owner.getncattr(key, encoding="latin-1") for key in owner.ncattrs()}
    return {key: (str(getattr(each, "dtype", type(each))), repr(each)) for key, each in found.items()}


def _variable(variable):
    kind = getattr(variable.datatype, "name", str(variable.dtype))
    with warnings.catch_warnings(action="ignore"):
        values = variable[...]
    return {
        "type": (kind, str(variable.dtype), variable.endian()),
        "dimensions": variable.dimensions,
        "storage": (variable.chunking(), variable.filters()),
        "fill": repr(variable.get_fill_value()),
        "attributes": _attributes(variable),
        "values": _bytes(values),
    }


def _bytes(values):
    """Return values as bytes; those that are texts or lists one by one."""
    if isinstance(values, str) or values.dtype.kind == "O":
        return [(str(getattr(each, "dtype", type(each))), repr(each)) for each in np.ravel(np.array(values, object))]
    return str(values.dtype), values.shape, values.tobytes()
