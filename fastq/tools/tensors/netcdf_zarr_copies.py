"""Write a netCDF file or a zarr store in which a command changed some variables; all others are copied.

A copy does not pass through xarray and dask, which have other ideas of types, attributes and fill values than the file:
netCDF to netCDF is copied variable by variable as stored, by netCDF4; zarr to zarr is copied file by file. From one
kind to the other xarray converts, and what the other kind can't hold is refused by the variable's name beforehand.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import shlex
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastq.tools.tensors.netcdf_zarr import (
    OF_DIMENSIONS,
    ROOT,
    V2,
    ZARR,
    attributes_in_hdf5,
    netcdf_file,
    special_type_of,
)

if TYPE_CHECKING:
    from xarray import Dataset, Variable


PIECE = 1 << 24  # most bytes that are copied at once
FILL = "_FillValue"
CONSOLIDATED = ".zmetadata"
ZARR_METADATA = "zarr.json"
OF_GROUPS = V2, ".zattrs", ZARR_METADATA
# names that netCDF takes: they begin with a letter, a digit or an underscore, and end in no space
IS_NAME = re.compile(r"[A-Za-z0-9_\u0080-\U0010ffff]([^\x00-\x1f/\x7f]*[^\x00-\x20/\x7f])?")
_ANY_BYTES = "latin-1"  # each byte is a character, so that texts in any encoding are read without a loss
_SCRATCH = "fastq_fill_value"  # first name of a _FillValue of another type than its variable


class ChangedDataset(NamedTuple):
    """The result of a command for a file or a store."""

    before: Dataset  # as stored
    after: Dataset
    changed: Collection[Any]  # names of variables that were changed, or are new
    dropped: Collection[Any]  # names of variables that are not written


ChangedDatasets = Mapping[str, ChangedDataset]  # by the paths of groups, each after the groups that it lies in


def write(source: Path, out: Path, results: ChangedDatasets, level: int, say: Callable[[str], None]) -> None:
    """Write results to a netCDF file or a zarr store, changed variables of netCDF compressed by zlib at a level.

    ValueError names a variable that the format of `out` can't hold; nothing is written then. `say` is told of what
    can't be written as it was.
    """
    if source.is_dir() and out.suffix == ZARR:
        _zarr_to_zarr(source, out, results)
    elif source.is_dir():
        _to_netcdf(out, results, level, say)
    elif out.suffix == ZARR:
        _to_zarr(source, out, results, say)
    else:
        _netcdf_to_netcdf(source, out, results, level, say)


# --- netCDF to netCDF -------------------------------------------------------------------------------------------------


def _netcdf_to_netcdf(
    source: Path, out: Path, results: ChangedDatasets, level: int, say: Callable[[str], None]
) -> None:
    """Copy a file, with changed variables in the places of those that they replace."""
    lazy: list[tuple[Any, Any]] = []
    stored = attributes_in_hdf5(source)
    with netcdf_file(source) as before, netcdf_file(out, "w") as after:
        groups = {ROOT: (before, after)}
        groups |= {path: (before[path], after.createGroup(path)) for path in results if path != ROOT}
        types = {path: _copy_types(ours, theirs, say) for path, (ours, theirs) in groups.items()}
        of_all = {name: each for own in types.values() for name, each in own.items()}  # groups may use those of others
        for path, result in results.items():
            ours, theirs = groups[path]
            types[path] = (of_all if path == ROOT else types[_parent_of(path)]) | types[path]
            for name, dimension in ours.dimensions.items():
                theirs.createDimension(name, None if dimension.isunlimited() else len(dimension))
            owner = "the file" if path == ROOT else f"group {path}"
            _copy_attributes(ours, theirs, ours.ncattrs(), owner, say)
            for name, variable in ours.variables.items():
                if name in result.dropped:
                    continue
                if name in result.changed:
                    lazy.append(_create_changed(ours, theirs, name, result, level, say))
                else:
                    _copy(variable, theirs, types[path], say)
            for name in result.changed:
                if name not in ours.variables:
                    lazy.append(_create_new(theirs, name, result.after.variables[name]))
            _say_what_is_lost(stored, path, result.dropped, _names_of_attributes(ours), say)
        _store(lazy)


def _names_of_attributes(group: Any) -> dict[str, list[str]]:
    """Return the attributes of the variables of a group of netCDF4 by name, those of the group by an empty name."""
    return {"": group.ncattrs()} | {name: variable.ncattrs() for name, variable in group.variables.items()}


def _say_what_is_lost(
    stored: Mapping[str, Sequence[str]],
    path: str,
    dropped: Collection[Any],
    known: Mapping[Any, Collection[str]],
    say: Callable[[str], None],
) -> None:
    """Report attributes of a group, and of its variables, that are `stored` but not `known`: their types are not read.

    `stored` has those of the whole file, by `attributes_in_hdf5`.
    """
    group = path.strip(ROOT)
    for name, keys in known.items():
        full = "/".join(part for part in (group, name) if part)
        lost = [key for key in stored.get(full, ()) if key not in keys and name not in dropped]
        for key in lost:
            say(f"{full or 'the file'}: its attribute {key} is left out, since netCDF4 can't read its type")


def _parent_of(group: str) -> str:
    """Return the path of the group around a group."""
    return group.rpartition("/")[0] or ROOT


def _copy_types(before: Any, after: Any, say: Callable[[str], None]) -> dict[str, Any]:
    """Define the types of a file in another one; return them by name. Report those that netCDF4 can't write."""
    types: dict[str, Any] = {}
    for name, enumeration in before.enumtypes.items():
        types[name] = after.createEnumType(enumeration.dtype, name, enumeration.enum_dict)
    for name, list_type in before.vltypes.items():
        types[name] = after.createVLType(list_type.dtype, name)
    for name, record in before.cmptypes.items():  # a type comes after those of its fields
        try:
            types[name] = after.createCompoundType(record.dtype, name)
        except RuntimeError:  # of long complex numbers, which no variable that netCDF4 reads has
            say(f"the type {name} is left out: netCDF4 can't write {record.dtype}")
    return types


def _storage(variable: Any) -> dict[str, Any]:
    """Return the options of createVariable by which a variable is chunked, compressed and checked."""
    chunks = variable.chunking()
    filters = variable.filters()
    options: dict[str, Any] = {"contiguous": True} if chunks == "contiguous" else {}
    if isinstance(chunks, list):
        options["chunksizes"] = chunks
    if filters is None:  # in a file of netCDF 3
        return options
    options |= {"complevel": filters["complevel"], "shuffle": filters["shuffle"], "fletcher32": filters["fletcher32"]}
    if filters["szip"]:
        details = filters["szip"]
        options |= {
            "compression": "szip",
            "szip_coding": details["coding"],
            "szip_pixels_per_block": details["pixels_per_block"],
        }
    elif filters["blosc"]:
        details = filters["blosc"]
        options |= {"compression": details["compressor"], "blosc_shuffle": details["shuffle"]}
    else:
        options["compression"] = next((kind for kind in ("zlib", "zstd", "bzip2") if filters[kind]), None)
    return options


def _copy(variable: Any, after: Any, types: dict[str, Any], say: Callable[[str], None]) -> None:
    """Copy a variable: its type, storage, attributes and values."""
    endian = variable.endian()
    name_of_type = getattr(variable.datatype, "name", "")
    dtype = None if variable.dtype is str else np.dtype(variable.dtype)
    if dtype is not None and endian == "native":
        dtype = dtype.newbyteorder("=")
    copy = _raw(
        after.createVariable(
            variable.name,
            types.get(name_of_type, str if dtype is None else dtype),
            variable.dimensions,
            fill_value=_fill_of(variable),
            endian=endian,
            **_storage(variable),
        )
    )
    already_set = copy.ncattrs()
    keys = [key for key in variable.ncattrs() if key not in already_set]
    _copy_attributes(variable, copy, keys, variable.name, say)
    for region in _regions(variable):
        copy[region] = variable[region]


def _raw(variable: Any) -> Any:
    """Return a variable that reads and writes values as they are stored."""
    variable.set_auto_maskandscale(False)
    variable.set_auto_chartostring(False)
    return variable


def _fill_of(variable: Any) -> Any:
    """Return the fill_value of createVariable for a copy; False if the original is not filled in advance."""
    stored = None if variable.dtype is str else np.dtype(variable.dtype)
    if FILL in variable.ncattrs():
        fill = variable.getncattr(FILL)
        return fill if _is_fill(fill, stored) else None
    has_fill = (
        stored is None or stored.names or _is_of_variable_length(variable) or variable.get_fill_value() is not None
    )
    return None if has_fill else False


def _is_of_variable_length(variable: Any) -> bool:
    return variable.dtype is str or type(variable.datatype).__name__ == "VLType"


def _is_fill(fill: Any, stored: np.dtype[Any] | None) -> bool:
    """Return whether an attribute is a single value of the type of its variable; `stored` is None for texts."""
    if stored is None or fill is None:
        return isinstance(fill, str)
    if isinstance(fill, bytes):
        return stored.kind == "S" and len(fill) == 1
    return isinstance(fill, np.generic) and fill.dtype == stored.newbyteorder("=")


def _copy_attributes(before: Any, after: Any, keys: list[str], owner: str, say: Callable[[str], None]) -> None:
    """Copy attributes as they are stored; report those of types that netCDF4 can't read."""
    for key in keys:
        try:
            value = before.getncattr(key, encoding=_ANY_BYTES)
        except KeyError:
            say(f"{owner}: its attribute {key} is left out, since netCDF4 can't read its type")
            continue
        if isinstance(value, str):
            value = value.encode(_ANY_BYTES)
        elif isinstance(value, list):
            value = [text.encode(_ANY_BYTES).decode("utf-8", "replace") for text in value]
        _set_attribute(after, key, value)


def _set_attribute(owner: Any, key: str, value: Any) -> None:
    """Set an attribute of a variable or a file, a _FillValue in any type."""
    if key != FILL:
        owner.setncattr(key, value)
        return
    owner.setncattr(_SCRATCH, value)  # netCDF refuses a _FillValue of another type, but not a name
    owner.renameAttribute(_SCRATCH, FILL)


def _regions(variable: Any) -> Iterator[Any]:
    """Yield the indices of parts of a variable that are read and written at once: whole chunks if it has any."""
    shape = variable.shape
    if not shape:
        yield ...
        return
    if 0 in shape:
        return
    chunks = variable.chunking()
    least = chunks if isinstance(chunks, list) else [1] * len(shape)
    steps = [min(chunk, size) for chunk, size in zip(least, shape, strict=True)]
    itemsize = 16 if variable.dtype is str else np.dtype(variable.dtype).itemsize
    for axis in reversed(range(len(shape))):  # whole axes from the last one on, as long as they fit
        others = math.prod(steps) // steps[axis] * itemsize
        steps[axis] = min(max(PIECE // others // steps[axis], 1) * steps[axis], shape[axis])
    starts = (range(0, size, step) for size, step in zip(shape, steps, strict=True))
    for corner in itertools.product(*starts):
        # no further than the shape, since that of an unlimited dimension would grow
        sizes = zip(corner, steps, shape, strict=True)
        yield tuple(slice(start, min(start + step, size)) for start, step, size in sizes)


def _create_changed(
    before: Any, after: Any, name: Any, result: ChangedDataset, level: int, say: Callable[[str], None]
) -> tuple[Any, Any]:
    """Create a changed variable with its attributes; return it with its values, which are to be written."""
    stored = before[name]
    old = result.before.variables[name]
    new = result.after.variables[name]
    options = {key: option for key, option in _storage(stored).items() if key in ("chunksizes", "fletcher32")}
    is_compressed = bool(level and stored.dimensions)
    options |= {"compression": "zlib", "complevel": level} if is_compressed else {}
    options |= {"shuffle": is_compressed, "endian": stored.endian()}
    fill = new.attrs.get(FILL)
    fill_value = fill if _is_fill(fill, new.dtype) else None
    dtype = np.dtype(new.dtype).newbyteorder({"big": ">", "little": "<"}.get(stored.endian(), "="))
    variable = _raw(after.createVariable(name, dtype, stored.dimensions, fill_value=fill_value, **options))
    is_set = {FILL} if fill_value is not None else set()
    is_unchanged = {key for key in new.attrs if key in old.attrs and new.attrs[key] is old.attrs[key]}
    for key in stored.ncattrs():
        if key in is_unchanged and key not in is_set:
            _copy_attributes(stored, variable, [key], name, say)
    for key, value in new.attrs.items():
        if key not in is_unchanged and key not in is_set:
            variable.setncattr(key, value)
    return variable, new.data


def _create_new(after: Any, name: Any, new: Variable) -> tuple[Any, Any]:
    """Create a variable that the source lacks; return it with its values, which are to be written."""
    variable = _raw(after.createVariable(name, new.dtype, new.dims))
    variable.setncatts(new.attrs)
    return variable, new.data


def _store(pairs: list[tuple[Any, Any]]) -> None:
    """Write values to variables, chunk by chunk if they are lazy."""
    chunked = [(variable, data) for variable, data in pairs if hasattr(data, "to_delayed")]
    for variable, data in pairs:
        if not hasattr(data, "to_delayed"):
            variable[...] = np.asarray(data)
    if chunked:
        targets = [variable for variable, _ in chunked]
        arrays = [data for _, data in chunked]
        # in one thread: netCDF reads and writes one chunk at a time, and compresses it meanwhile
        import dask.array

        dask.array.store(arrays, targets, lock=False, scheduler="synchronous")


# --- zarr to zarr -----------------------------------------------------------------------------------------------------


def _zarr_to_zarr(source: Path, out: Path, results: ChangedDatasets) -> None:
    """Copy the files of a store, and let xarray write the variables that were changed."""
    import zarr

    def left_out(folder: str, names: list[str]) -> list[str]:
        result = results.get(ROOT + Path(folder).relative_to(source).as_posix().strip("."))
        return [CONSOLIDATED, *map(str, result.changed), *result.dropped] if result else []

    shutil.copytree(source, out, ignore=left_out)
    for path, result in results.items():
        if result.changed:
            made = result.after[list(result.changed)]
            _by_shards(_with_own_fills(made.drop_vars(made.coords))).to_zarr(
                out, group=path.strip(ROOT) or None, mode="a", consolidated=False
            )
        group = path.strip(ROOT)
        for name in OF_GROUPS:  # xarray's attributes of a group are those that it decoded
            (out / group / name).unlink(missing_ok=True)
            if (source / group / name).exists():
                shutil.copyfile(source / group / name, out / group / name)
        _without_consolidated(out / group / ZARR_METADATA)
    with warnings.catch_warnings(action="ignore"):  # that format 3 does not specify consolidated metadata
        zarr.consolidate_metadata(out)


def _by_shards(ds: Dataset) -> Dataset:
    """Return a Dataset whose lazy variables have a chunk for each shard, which is written as a whole."""
    for name, variable in ds.variables.items():
        shards = variable.encoding.get("shards")
        if shards is not None and variable.chunks is not None:
            ds[name] = variable.chunk(dict(zip(variable.dims, shards, strict=True)))
    return ds


def _without_consolidated(path: Path) -> None:
    """Remove the metadata of other arrays from those of a group, which would be out of date."""
    if path.is_file():
        metadata = json.loads(path.read_bytes())
        metadata.pop("consolidated_metadata", None)
        path.write_text(json.dumps(metadata, indent=2))


# --- from one kind to the other, by xarray ----------------------------------------------------------------------------


def _to_netcdf(out: Path, results: ChangedDatasets, level: int, say: Callable[[str], None]) -> None:
    """Write what was read from a zarr store to a netCDF file."""
    for path, result in results.items():
        _group_to_netcdf(out, path, result, level, say)


def _group_to_netcdf(out: Path, path: str, result: ChangedDataset, level: int, say: Callable[[str], None]) -> None:
    """Write a group of a zarr store to a netCDF file, after the groups that it lies in."""
    prefix = f"{path}/".lstrip(ROOT)
    ds = _with_own_fills(result.after.drop_vars(result.dropped).drop_encoding())
    for name, variable in ds.variables.items():
        if variable.dtype.kind not in "biufSUOTmM" or variable.dtype in (np.float16, np.longdouble):
            full = f"{prefix}{name}"
            raise ValueError(f"{full!r} is of {variable.dtype}, which netCDF lacks; --drop {full} leaves it out")
    for name, variable in ds.variables.items():
        unfit = [str(each) for each in (name, *variable.dims) if not IS_NAME.fullmatch(str(each))]
        if unfit:
            full = f"{prefix}{name}"
            fault = f"{unfit[0]!r} is no name for variables and dimensions of netCDF"
            raise ValueError(f"{full!r}: {fault}; --drop {shlex.quote(full)} leaves the variable out")
    _fit_netcdf(f"group {path}: " if path != ROOT else "the file: ", ds.attrs, say)
    for name, variable in ds.variables.items():
        _fit_netcdf(f"{prefix}{name}: ", variable.attrs, say)
        if variable.dtype.kind in "bmM" and FILL in variable.attrs:  # stored as integers, of which none means that
            say(f"{name}: its _FillValue {variable.attrs.pop(FILL)} is left out: netCDF has none for {variable.dtype}")
    ds = _with_own_fills(ds)
    packed = {"zlib": level > 0, "complevel": level, "shuffle": True}
    encoding = {name: packed for name in result.changed if ds[name].ndim}
    ds.to_netcdf(out, group=path.strip(ROOT) or None, mode="a" if out.exists() else "w", encoding=encoding)


def _fit_netcdf(owner: str, attributes: dict[Any, Any], say: Callable[[str], None]) -> None:
    """Replace attributes of a zarr store whose types netCDF lacks by their JSON; remove those with other names."""
    for key, value in list(attributes.items()):
        if not IS_NAME.fullmatch(key) or OF_DIMENSIONS.fullmatch(key):
            del attributes[key]
            say(f"{owner}its attribute {key!r} is left out: netCDF takes no such name")
        elif key != FILL and not _fits_netcdf(value):
            attributes[key] = json.dumps(value)
            say(f"{owner}its attribute {key} becomes a text, its JSON: netCDF has no such type")


def _fits_netcdf(value: Any) -> bool:
    """Return whether netCDF has the type of an attribute: a text, a number, or a list of one of these kinds."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of several lengths
        return False
    are_texts = isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))
    integers = isinstance(value, list) and all(isinstance(item, int) for item in value)
    are_rounded = bool(value) and integers and array.dtype.kind == "f"  # NumPy has no integer dtype for all of them
    return array.ndim < 2 and (are_texts or array.dtype.kind in "iufS") and not are_rounded


def _to_zarr(source: Path, out: Path, results: ChangedDatasets, say: Callable[[str], None]) -> None:
    """Write what was read from a netCDF file to a zarr store."""
    import zarr

    stored = attributes_in_hdf5(source)
    for path, result in results.items():
        _group_to_zarr(source, out, path, result, stored, say)
    with warnings.catch_warnings(action="ignore"):  # that format 3 does not specify consolidated metadata
        zarr.consolidate_metadata(out)


def _group_to_zarr(
    source: Path,
    out: Path,
    path: str,
    result: ChangedDataset,
    stored: Mapping[str, Sequence[str]],
    say: Callable[[str], None],
) -> None:
    """Write a group of a netCDF file, whose attributes in HDF5 are `stored`, to a zarr store."""
    prefix = f"{path}/".lstrip(ROOT)
    ds = _with_own_fills(result.after.drop_vars(result.dropped).drop_encoding())
    with netcdf_file(source) as file:
        group = file if path == ROOT else file[path]
        for name, variable in group.variables.items():
            if name in result.dropped:
                continue
            if special_type := special_type_of(variable):
                full = f"{prefix}{name}"
                raise ValueError(f"{full!r} has {special_type}, which zarr lacks; --drop {full} leaves it out")
            if type(variable.datatype).__name__ == "EnumType":
                _name_flags(ds.variables[name], variable.datatype.enum_dict)
    for name, variable in ds.variables.items():
        _leave_out_what_json_lacks(f"{name}: ", variable.attrs, say)
        _set_zarr_fill(name, variable, say)
        if variable.dtype.kind == "O":
            variable.load()  # as xarray does, with a warning
    _leave_out_what_json_lacks("", ds.attrs, say)
    before = result.before
    known = {"": {*before.attrs, *before.encoding}}
    known |= {name: {*variable.attrs, *variable.encoding} for name, variable in before.variables.items()}
    _say_what_is_lost(stored, path, result.dropped, known, say)
    ds.to_zarr(out, group=path.strip(ROOT) or None, mode="a", consolidated=False)


def _with_own_fills(ds: Dataset) -> Dataset:
    """Return a Dataset whose floats get no _FillValue from xarray."""
    for variable in ds.variables.values():
        variable.encoding |= {} if FILL in variable.attrs else {FILL: None}
    return ds


def _name_flags(variable: Variable, numbers_of: dict[str, int]) -> None:
    """Describe the numbers of an enumeration, which zarr lacks, as CF describes flags."""
    texts = ["_".join(text.split()) for text in numbers_of]
    flags = {"flag_values": np.array(list(numbers_of.values()), variable.dtype), "flag_meanings": " ".join(texts)}
    variable.attrs = {**flags, **variable.attrs}


def _leave_out_what_json_lacks(owner: str, attributes: dict[Any, Any], say: Callable[[str], None]) -> None:
    """Remove attributes that JSON lacks: records, complex numbers, bytes and references."""
    for key, value in list(attributes.items()):
        values = np.asarray(value)
        kind = "a record" if values.dtype.names else f"of {values.dtype}"
        if key != FILL and (values.dtype.kind not in "biufUO" or not _fits_json(values)):
            del attributes[key]
            say(f"{owner}attribute {key} is left out: it is {kind}, which zarr lacks")


def _fits_json(values: Any) -> bool:
    try:
        json.dumps(values.tolist())
    except (TypeError, ValueError):
        return False
    return True


def _set_zarr_fill(name: Any, variable: Variable, say: Callable[[str], None]) -> None:
    """Set the fill value of zarr from a _FillValue. If the dtype can't hold it, it becomes a missing_value."""
    if FILL not in variable.attrs:
        return
    fill = np.ravel(variable.attrs[FILL])
    dtype_kind = variable.dtype.kind
    with np.errstate(over="ignore", invalid="ignore"):
        stored = fill.astype(variable.dtype) if dtype_kind in "iuf" and fill.dtype.kind in "iuf" else fill[:0]
    if stored.size == fill.size == 1 and (dtype_kind == "f" or (np.isfinite(fill).all() and stored == fill)):
        variable.attrs[FILL] = stored[0]
        variable.encoding["fill_value"] = stored[0]
        return
    del variable.attrs[FILL]
    values = [value.decode(_ANY_BYTES) if isinstance(value, bytes) else value for value in fill.tolist()]
    has_missing_value = "missing_value" in variable.attrs
    if not has_missing_value:
        variable.attrs["missing_value"] = values[0] if len(values) == 1 else values
    result = "is left out" if has_missing_value else "becomes its missing_value"
    say(f"{name}: its _FillValue {', '.join(map(str, values))} {result}: it is no number of {variable.dtype}")
