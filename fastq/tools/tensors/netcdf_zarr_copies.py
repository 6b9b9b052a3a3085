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
    attribute_names_in_hdf5,
    netcdf_file,
    special_type_of,
)

if TYPE_CHECKING:
    from xarray import Dataset, Variable


PIECE = 1 << 24  # most bytes that are copied at once
FILL = "_FillValue"
CONSOLIDATED = ".zmetadata"
ZARR_METADATA = "zarr.json"
FILES_OF_GROUP = V2, ".zattrs", ZARR_METADATA
# names that netCDF takes: they begin with a letter, a digit or an underscore, and end in no space
NETCDF_NAME = re.compile(r"[A-Za-z0-9_\u0080-\U0010ffff]([^\x00-\x1f/\x7f]*[^\x00-\x20/\x7f])?")
_ANY_BYTES = "latin-1"  # each byte is a character, so that texts in any encoding are read without a loss
_FILL_UNDER_ANOTHER_NAME = "fastq_fill_value"
Say = Callable[[str], None]  # called with a line on something that can't be written as it was


class ChangedDataset(NamedTuple):
    """The result of a command for a file or a store."""

    before: Dataset  # as stored
    after: Dataset
    changed: Collection[Any]  # names of variables that were changed, or are new
    dropped: Collection[Any]  # names of variables that are not written


ChangedDatasets = Mapping[str, ChangedDataset]  # by the paths of groups, each after the groups that it lies in
_VariableWithValues = tuple[Any, Any]  # a variable of netCDF4, and the array, lazy or not, that is written to it


def write(source: Path, out: Path, results: ChangedDatasets, level: int, say: Say) -> None:
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


def _netcdf_to_netcdf(source: Path, out: Path, results: ChangedDatasets, level: int, say: Say) -> None:
    """Copy a file, with changed variables in the places of those that they replace.

    Groups, types, dimensions and attributes come first; the values of changed variables are written at the end, for all
    groups at once.
    """
    to_write: list[_VariableWithValues] = []
    stored_attributes = attribute_names_in_hdf5(source)
    with netcdf_file(source) as before, netcdf_file(out, "w") as after:
        groups = {ROOT: (before, after)}
        groups |= {path: (before[path], after.createGroup(path)) for path in results if path != ROOT}
        types = {path: _copy_types(old_group, new_group, say) for path, (old_group, new_group) in groups.items()}
        # a group may use the types of any other; those of the nearest group around it come before these
        all_types = {name: user_type for types_of_group in types.values() for name, user_type in types_of_group.items()}
        for path, result in results.items():
            old_group, new_group = groups[path]
            types[path] = (all_types if path == ROOT else types[_parent_of(path)]) | types[path]
            for name, dimension in old_group.dimensions.items():
                new_group.createDimension(name, None if dimension.isunlimited() else len(dimension))
            owner = "the file" if path == ROOT else f"group {path}"
            _copy_attributes(old_group, new_group, old_group.ncattrs(), owner, say)
            to_write += _copy_or_create_variables(old_group, new_group, result, types[path], level, say)
            _say_which_attributes_are_lost(
                stored_attributes, path, result.dropped, _attribute_names_in_netcdf(old_group), say
            )
        _write_values(to_write)


def _copy_or_create_variables(
    old_group: Any, new_group: Any, result: ChangedDataset, types: dict[str, Any], level: int, say: Say
) -> list[_VariableWithValues]:
    """Copy the variables of a group that are neither changed nor dropped, and create the changed and the new ones.

    Return these with their values, which are written later, those of all groups at once.
    """
    created = []
    for name, variable in old_group.variables.items():
        if name in result.dropped:
            continue
        if name in result.changed:
            created.append(_create_changed(old_group, new_group, name, result, level, say))
        else:
            _copy_variable(variable, new_group, types, say)
    for name in result.changed:
        if name not in old_group.variables:
            created.append(_create_new(new_group, name, result.after.variables[name]))
    return created


def _attribute_names_in_netcdf(group: Any) -> dict[str, list[str]]:
    """Return the names of attributes that netCDF4 reads, of each variable of a group; its own are by an empty name."""
    return {"": group.ncattrs()} | {name: variable.ncattrs() for name, variable in group.variables.items()}


def _say_which_attributes_are_lost(
    stored: Mapping[str, Sequence[str]],
    path: str,
    dropped: Collection[Any],
    read: Mapping[Any, Collection[str]],
    say: Say,
) -> None:
    """Report attributes of a group, and of its variables, that are stored but not read: netCDF4 lacks their types.

    `stored` has the names of those of the file, by `attribute_names_in_hdf5`; `read` has those of the group at `path`.
    """
    group = path.strip(ROOT)
    for name, keys in read.items():
        full_name = "/".join(part for part in (group, name) if part)
        lost = [key for key in stored.get(full_name, ()) if key not in keys and name not in dropped]
        for key in lost:
            say(f"{full_name or 'the file'}: its attribute {key} is left out, since netCDF4 can't read its type")


def _parent_of(group: str) -> str:
    """Return the path of the group around a group."""
    return group.rpartition("/")[0] or ROOT


def _copy_types(before: Any, after: Any, say: Say) -> dict[str, Any]:
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


def _copy_variable(variable: Any, after: Any, types: dict[str, Any], say: Say) -> None:
    """Copy a variable into a group: its type, storage, attributes and values."""
    endian = variable.endian()
    if variable.dtype is str:
        own_type: Any = str
    elif endian == "native":
        own_type = np.dtype(variable.dtype).newbyteorder("=")
    else:
        own_type = np.dtype(variable.dtype)
    user_type = types.get(getattr(variable.datatype, "name", ""))
    copy = _without_decoding(
        after.createVariable(
            variable.name,
            own_type if user_type is None else user_type,
            variable.dimensions,
            fill_value=_fill_of_copy(variable),
            endian=endian,
            **_storage(variable),
        )
    )
    already_set = copy.ncattrs()  # a _FillValue
    keys = [key for key in variable.ncattrs() if key not in already_set]
    _copy_attributes(variable, copy, keys, variable.name, say)
    for region in _regions(variable):
        copy[region] = variable[region]


def _without_decoding(variable: Any) -> Any:
    """Return a variable of netCDF4 that from now on reads and writes values as they are stored."""
    variable.set_auto_maskandscale(False)
    variable.set_auto_chartostring(False)
    return variable


def _fill_of_copy(variable: Any) -> Any:
    """Return the fill_value of createVariable for a copy of a variable.

    It is the value of _FillValue; None for the default of netCDF, or for an attribute of another type, which is copied
    later; False if the original is not filled in advance.
    """
    dtype = None if variable.dtype is str else np.dtype(variable.dtype)
    if FILL in variable.ncattrs():
        fill = variable.getncattr(FILL)
        return fill if _is_fill(fill, dtype) else None
    if dtype is None or dtype.names or _is_of_variable_length(variable):  # for which netCDF4 has no get_fill_value
        return None
    return None if variable.get_fill_value() is not None else False


def _is_of_variable_length(variable: Any) -> bool:
    """Return whether the values of a variable are texts or lists."""
    return variable.dtype is str or type(variable.datatype).__name__ == "VLType"


def _is_fill(fill: Any, dtype: np.dtype[Any] | None) -> bool:
    """Return whether an attribute is a single value of the dtype of its variable; None is that of texts."""
    if dtype is None or fill is None:
        return isinstance(fill, str)
    if isinstance(fill, bytes):
        return dtype.kind == "S" and len(fill) == 1
    return isinstance(fill, np.generic) and fill.dtype == dtype.newbyteorder("=")


def _copy_attributes(before: Any, after: Any, keys: list[str], owner: str, say: Say) -> None:
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
    """Set an attribute of a variable or a file.

    netCDF refuses to set a _FillValue of another type than its variable, but not to rename an attribute to that.
    """
    if key != FILL:
        owner.setncattr(key, value)
        return
    owner.setncattr(_FILL_UNDER_ANOTHER_NAME, value)
    owner.renameAttribute(_FILL_UNDER_ANOTHER_NAME, FILL)


def _regions(variable: Any) -> Iterator[Any]:
    """Yield the indices of parts of a variable that are read and written at once: whole chunks if it has any.

    Of float64 of shape (10000, 1000), in chunks of (10, 100), a part has at most 16 MiB: 2090 rows, which are 209 rows
    of chunks.
    """
    shape = variable.shape
    if not shape:
        yield ...
        return
    if 0 in shape:
        return
    chunks = variable.chunking()
    smallest = chunks if isinstance(chunks, list) else [1] * len(shape)
    lengths = [min(chunk, size) for chunk, size in zip(smallest, shape, strict=True)]
    itemsize = 16 if variable.dtype is str else np.dtype(variable.dtype).itemsize
    for axis in reversed(range(len(shape))):  # whole axes from the last one on, as long as a part has few enough bytes
        nbytes_across = math.prod(lengths) // lengths[axis] * itemsize  # of one index on this axis
        chunks_in_piece = PIECE // nbytes_across // lengths[axis]
        lengths[axis] = min(max(chunks_in_piece, 1) * lengths[axis], shape[axis])
    starts = (range(0, size, length) for size, length in zip(shape, lengths, strict=True))
    for corner in itertools.product(*starts):
        # no further than the shape, since that of an unlimited dimension would grow
        sizes = zip(corner, lengths, shape, strict=True)
        yield tuple(slice(start, min(start + length, size)) for start, length, size in sizes)


def _create_changed(
    before: Any, after: Any, name: Any, result: ChangedDataset, level: int, say: Say
) -> _VariableWithValues:
    """Create a changed variable with its attributes; return it with its values, which are to be written."""
    stored = before[name]
    old = result.before.variables[name]
    new = result.after.variables[name]
    fill = new.attrs.get(FILL)
    variable = _without_decoding(
        after.createVariable(
            name,
            np.dtype(new.dtype).newbyteorder({"big": ">", "little": "<"}.get(stored.endian(), "=")),
            stored.dimensions,
            fill_value=fill if _is_fill(fill, new.dtype) else None,  # netCDF4 takes one only when a variable is created
            **_storage_of_changed(stored, level),
        )
    )
    already_set = variable.ncattrs()  # a _FillValue
    # An attribute that the command did not touch is still the object that xarray read. It is copied as it is stored,
    # since xarray's value may have another type; an equal value of another object is one that the command computed.
    untouched = {key for key in new.attrs if key in old.attrs and new.attrs[key] is old.attrs[key]}
    stored_keys = [key for key in stored.ncattrs() if key in untouched and key not in already_set]
    _copy_attributes(stored, variable, stored_keys, name, say)
    for key, value in new.attrs.items():
        if key not in untouched and key not in already_set:
            variable.setncattr(key, value)
    return variable, new.data


def _storage_of_changed(stored: Any, level: int) -> dict[str, Any]:
    """Return the options of createVariable for a changed variable: chunks as they were, compression as asked for."""
    options = {key: option for key, option in _storage(stored).items() if key in ("chunksizes", "fletcher32")}
    is_compressed = bool(level and stored.dimensions)  # netCDF does not compress scalars
    if is_compressed:
        options |= {"compression": "zlib", "complevel": level}
    return {**options, "shuffle": is_compressed, "endian": stored.endian()}


def _create_new(after: Any, name: Any, new: Variable) -> _VariableWithValues:
    """Create a variable that the source lacks; return it with its values, which are to be written."""
    variable = _without_decoding(after.createVariable(name, new.dtype, new.dims))
    variable.setncatts(new.attrs)
    return variable, new.data


def _write_values(pairs: list[_VariableWithValues]) -> None:
    """Write values to variables, chunk by chunk if they are lazy."""
    lazy = [(variable, values) for variable, values in pairs if hasattr(values, "to_delayed")]
    for variable, values in pairs:
        if not hasattr(values, "to_delayed"):
            variable[...] = np.asarray(values)
    if lazy:
        import dask.array

        targets = [variable for variable, _ in lazy]
        arrays = [values for _, values in lazy]
        # in one thread: netCDF reads and writes one chunk at a time, and compresses it meanwhile
        dask.array.store(arrays, targets, lock=False, scheduler="synchronous")


# --- zarr to zarr -----------------------------------------------------------------------------------------------------


def _zarr_to_zarr(source: Path, out: Path, results: ChangedDatasets) -> None:
    """Copy the files of a store, and let xarray write the variables that were changed.

    xarray writes the attributes of groups, too, in its own way: these are replaced by the files as they were.
    """
    import zarr

    def names_not_copied(folder: str, names: list[str]) -> list[str]:
        """Return the names in a folder that are written anew, or dropped; `copytree` calls this for each folder."""
        result = results.get(ROOT + Path(folder).relative_to(source).as_posix().strip("."))
        return [CONSOLIDATED, *map(str, result.changed), *result.dropped] if result else []

    shutil.copytree(source, out, ignore=names_not_copied)
    for path, result in results.items():
        group = path.strip(ROOT)
        if result.changed:
            changed = result.after[list(result.changed)]
            ds = _chunked_by_shards(_without_fills_of_xarray(changed.drop_vars(changed.coords)))
            ds.to_zarr(out, group=group or None, mode="a", consolidated=False)
        for name in FILES_OF_GROUP:  # xarray has written the attributes of the group as it decoded them
            (out / group / name).unlink(missing_ok=True)
            if (source / group / name).exists():
                shutil.copyfile(source / group / name, out / group / name)
        _remove_consolidated(out / group / ZARR_METADATA)
    with warnings.catch_warnings(action="ignore"):  # that format 3 does not specify consolidated metadata
        zarr.consolidate_metadata(out)


def _chunked_by_shards(ds: Dataset) -> Dataset:
    """Return a Dataset whose lazy variables have a chunk for each shard, which is written as a whole."""
    for name, variable in ds.variables.items():
        shards = variable.encoding.get("shards")
        if shards is not None and variable.chunks is not None:
            ds[name] = variable.chunk(dict(zip(variable.dims, shards, strict=True)))
    return ds


def _remove_consolidated(path: Path) -> None:
    """Remove the metadata of other arrays from those of a group, which would be out of date."""
    if path.is_file():
        metadata = json.loads(path.read_bytes())
        metadata.pop("consolidated_metadata", None)
        path.write_text(json.dumps(metadata, indent=2))


# --- from one kind to the other, by xarray ----------------------------------------------------------------------------


def _to_netcdf(out: Path, results: ChangedDatasets, level: int, say: Say) -> None:
    """Write what was read from a zarr store to a netCDF file."""
    for path, result in results.items():
        _group_to_netcdf(out, path, result, level, say)


def _group_to_netcdf(out: Path, path: str, result: ChangedDataset, level: int, say: Say) -> None:
    """Write a group of a zarr store to a netCDF file, after the groups that it lies in."""
    prefix = f"{path}/".lstrip(ROOT)
    ds = _without_fills_of_xarray(result.after.drop_vars(result.dropped).drop_encoding())
    _refuse_types_and_names_netcdf_lacks(ds, prefix)
    _make_attributes_fit_netcdf(f"group {path}: " if path != ROOT else "the file: ", ds.attrs, say)
    for name, variable in ds.variables.items():
        _make_attributes_fit_netcdf(f"{prefix}{name}: ", variable.attrs, say)
        if variable.dtype.kind in "bmM" and FILL in variable.attrs:  # stored as integers, of which none means that
            say(f"{name}: its _FillValue {variable.attrs.pop(FILL)} is left out: netCDF has none for {variable.dtype}")
    ds = _without_fills_of_xarray(ds)  # also for the variables whose _FillValue was left out
    compression = {"zlib": level > 0, "complevel": level, "shuffle": True}
    encoding = {name: compression for name in result.changed if ds[name].ndim}
    ds.to_netcdf(out, group=path.strip(ROOT) or None, mode="a" if out.exists() else "w", encoding=encoding)


def _refuse_types_and_names_netcdf_lacks(ds: Dataset, prefix: str) -> None:
    """Raise ValueError if netCDF lacks the type of a variable, or takes no such name for it or one of its dimensions.

    `prefix` is what the names of variables begin with in errors: the path of their group.
    """
    for name, variable in ds.variables.items():
        if variable.dtype.kind not in "biufSUOTmM" or variable.dtype in (np.float16, np.longdouble):
            full_name = f"{prefix}{name}"
            raise ValueError(
                f"{full_name!r} is of {variable.dtype}, which netCDF lacks; --drop {full_name} leaves it out"
            )
    for name, variable in ds.variables.items():
        for text in map(str, (name, *variable.dims)):
            if not NETCDF_NAME.fullmatch(text):
                full_name = f"{prefix}{name}"
                fault = f"{text!r} is no name for variables and dimensions of netCDF"
                raise ValueError(f"{full_name!r}: {fault}; --drop {shlex.quote(full_name)} leaves the variable out")


def _make_attributes_fit_netcdf(owner: str, attributes: dict[Any, Any], say: Say) -> None:
    """Replace attributes of a zarr store whose types netCDF lacks by their JSON; remove those with other names.

    `owner` is what lines about them begin with, such as "t: ".
    """
    for key, value in list(attributes.items()):
        if not NETCDF_NAME.fullmatch(key) or OF_DIMENSIONS.fullmatch(key):
            del attributes[key]
            say(f"{owner}its attribute {key!r} is left out: netCDF takes no such name")
        elif key != FILL and not _is_type_of_netcdf(value):
            attributes[key] = json.dumps(value)
            say(f"{owner}its attribute {key} becomes a text, its JSON: netCDF has no such type")


def _is_type_of_netcdf(value: Any) -> bool:
    """Return whether netCDF has the type of an attribute: a text, a number, or a list of one of these kinds."""
    try:
        array = np.asarray(value)
    except ValueError:  # lists of several lengths
        return False
    items = value if isinstance(value, list) else [value]
    is_of_texts = all(isinstance(item, str) for item in items)
    # integers for which NumPy has no common dtype of integers become floats, and would be rounded
    is_rounded = array.dtype.kind == "f" and bool(value) and all(isinstance(item, int) for item in items)
    return array.ndim < 2 and (is_of_texts or array.dtype.kind in "iufS") and not is_rounded


def _to_zarr(source: Path, out: Path, results: ChangedDatasets, say: Say) -> None:
    """Write what was read from a netCDF file to a zarr store."""
    import zarr

    stored_attributes = attribute_names_in_hdf5(source)
    for path, result in results.items():
        _group_to_zarr(source, out, path, result, stored_attributes, say)
    with warnings.catch_warnings(action="ignore"):  # that format 3 does not specify consolidated metadata
        zarr.consolidate_metadata(out)


def _group_to_zarr(
    source: Path,
    out: Path,
    path: str,
    result: ChangedDataset,
    stored_attributes: Mapping[str, Sequence[str]],
    say: Say,
) -> None:
    """Write a group of a netCDF file to a zarr store."""
    ds = _without_fills_of_xarray(result.after.drop_vars(result.dropped).drop_encoding())
    with netcdf_file(source) as file:
        group = file if path == ROOT else file[path]
        stored = {name: variable for name, variable in group.variables.items() if name not in result.dropped}
        for name, variable in stored.items():
            if special_type := special_type_of(variable):
                full_name = f"{path}/{name}".lstrip(ROOT)
                raise ValueError(
                    f"{full_name!r} has {special_type}, which zarr lacks; --drop {full_name} leaves it out"
                )
            if type(variable.datatype).__name__ == "EnumType":
                _describe_flags(ds.variables[name], variable.datatype.enum_dict)
    for name, variable in ds.variables.items():
        _remove_attributes_json_lacks(f"{name}: ", variable.attrs, say)
        _set_zarr_fill(name, variable, say)
        if variable.dtype.kind == "O":
            variable.load()  # as xarray does, with a warning
    _remove_attributes_json_lacks("", ds.attrs, say)
    before = result.before
    # xarray moves some attributes into `encoding`
    read_attributes = {"": {*before.attrs, *before.encoding}}
    read_attributes |= {name: {*variable.attrs, *variable.encoding} for name, variable in before.variables.items()}
    _say_which_attributes_are_lost(stored_attributes, path, result.dropped, read_attributes, say)
    ds.to_zarr(out, group=path.strip(ROOT) or None, mode="a", consolidated=False)


def _without_fills_of_xarray(ds: Dataset) -> Dataset:
    """Return a Dataset whose variables have the _FillValue that they have now, or none: xarray adds NaN to floats."""
    for variable in ds.variables.values():
        if FILL not in variable.attrs:
            variable.encoding[FILL] = None
    return ds


def _describe_flags(variable: Variable, number_by_text: dict[str, int]) -> None:
    """Describe the numbers of an enumeration, which zarr lacks, as CF describes flags."""
    texts = ["_".join(text.split()) for text in number_by_text]
    flags = {"flag_values": np.array(list(number_by_text.values()), variable.dtype), "flag_meanings": " ".join(texts)}
    variable.attrs = {**flags, **variable.attrs}


def _remove_attributes_json_lacks(owner: str, attributes: dict[Any, Any], say: Say) -> None:
    """Remove attributes that JSON lacks: records, complex numbers, bytes and references.

    `owner` is what lines about them begin with, such as "t: ".
    """
    for key, value in list(attributes.items()):
        values = np.asarray(value)
        kind = "a record" if values.dtype.names else f"of {values.dtype}"
        if key != FILL and (values.dtype.kind not in "biufUO" or not _is_type_of_json(values)):
            del attributes[key]
            say(f"{owner}attribute {key} is left out: it is {kind}, which zarr lacks")


def _is_type_of_json(values: Any) -> bool:
    """Return whether JSON has the type of an attribute."""
    try:
        json.dumps(values.tolist())
    except (TypeError, ValueError):
        return False
    return True


def _set_zarr_fill(name: Any, variable: Variable, say: Say) -> None:
    """Set the fill value of zarr from a _FillValue. If the dtype can't hold it, it becomes a missing_value."""
    if FILL not in variable.attrs:
        return
    fill = np.ravel(variable.attrs[FILL])
    converted = _fill_in_dtype(fill, variable.dtype)
    if converted is not None:
        variable.attrs[FILL] = converted
        variable.encoding["fill_value"] = converted
        return
    del variable.attrs[FILL]
    values = [value.decode(_ANY_BYTES) if isinstance(value, bytes) else value for value in fill.tolist()]
    has_missing_value = "missing_value" in variable.attrs
    if not has_missing_value:
        variable.attrs["missing_value"] = values[0] if len(values) == 1 else values
    result = "is left out" if has_missing_value else "becomes its missing_value"
    say(f"{name}: its _FillValue {', '.join(map(str, values))} {result}: it is no number of {variable.dtype}")


def _fill_in_dtype(fill: Any, dtype: np.dtype[Any]) -> Any:
    """Return the only number of a _FillValue in the dtype of its variable; None if that lacks it, or there are more.

    Any number becomes a float, rounded or infinite, but only a number of its own becomes an integer.
    """
    if dtype.kind not in "iuf" or fill.dtype.kind not in "iuf" or fill.size != 1:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        converted = fill.astype(dtype)
    is_exact = np.isfinite(fill).all() and (converted == fill).all()
    return converted[0] if dtype.kind == "f" or is_exact else None
