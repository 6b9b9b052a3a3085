"""netCDF files and zarr stores: their variables are decoded, and read part by part.

A file of netCDF 4 is an HDF5 file. The netCDF library is silent about what it can't read there: it leaves out variables
and attributes, and if it opens no file at all, its error does not say why. So such files are also looked at by h5py, if
that is installed, to name what a copy would lose, and what a user has to remove.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np

import fastq
from fastq.system.dtypes import Array

if TYPE_CHECKING:
    from xarray import Variable

T = TypeVar("T")
Labels = Callable[[], Mapping[str, Any]]
Reader = Callable[[], contextlib.AbstractContextManager[Callable[[Any], Array]]]

NETCDF = (".nc", ".nc4", ".cdf", ".h5")
ZARR = ".zarr"
ROOT = "/"  # path of the group that has all others
V2 = ".zgroup"
MARKS = "zarr.json", V2  # files of zarr groups
PACKED = "scale_factor", "add_offset", "_FillValue"  # attributes of a packing
ROUNDED = "quantization_nsb", "quantization_nsd"  # attributes of a rounding
# times are numbers with units; bounds and coordinates are variables
_DECODED = dict.fromkeys(("decode_times", "decode_timedelta", "decode_coords"), False)
VARIABLE_LENGTH = "lists of variable length"
COMPOUND = "records of several fields"
# netCDF stores the coordinates of a dimension in HDF5 under the name of the dimension. Another variable of that name is
# stored with this in front of its name, which readers of netCDF do not see
_NOT_COORDINATES = "_nc4_non_coord_"
_SKIPPED = re.compile(r"variable '(.*)' has unsupported")  # a warning of netCDF4
# attributes of HDF5 files with which netCDF and HDF5 itself keep dimensions
OF_DIMENSIONS = re.compile(r"CLASS|NAME|DIMENSION_(LIST|LABELS)|REFERENCE_LIST|_Netcdf4\w+|_nc3_strict|_NC\w+")
# the start of a warning of xarray about a variable such as a covariance, which has one dimension twice: commands need
# no names that differ
ONE_DIMENSION_TWICE = "Duplicate dimension names"
_NEEDED = "this needs xarray with netCDF4 or zarr: pip install xarray dask netCDF4 zarr"


def is_store(path: Path) -> bool:
    """Return whether a path is that of a netCDF file or of a zarr store, by its name and its marks."""
    return path.suffix in NETCDF or any((path / mark).is_file() for mark in MARKS)


def import_xarray() -> Any:
    """Return xarray; raise ValueError if it is not installed."""
    try:
        import xarray
    except ModuleNotFoundError as error:
        raise ValueError(_NEEDED) from error
    return xarray


def netcdf_file(path: Path, mode: Literal["r", "w"] = "r") -> Any:
    """Open a file by netCDF4, whose variables are read as they are stored; raise ValueError if it is not installed."""
    try:
        import netCDF4
    except ModuleNotFoundError as error:
        raise ValueError(_NEEDED) from error
    with warnings.catch_warnings(action="ignore"), _explaining_failure_to_open(path):  # of variables that it skips
        file = netCDF4.Dataset(path, mode)
    file.set_auto_maskandscale(False)
    file.set_auto_chartostring(False)
    return file


def unreadable_variables(path: Path) -> list[str]:
    """Return the names of variables that netCDF4 leaves out since it can't read their types, with their groups."""
    if path.is_dir() or importlib.util.find_spec("netCDF4") is None:
        return []
    import netCDF4

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with _explaining_failure_to_open(path):
            opened = netCDF4.Dataset(path)
        with opened as file:
            read_names = {*_names_in(file, "")}
    warned_of = [match[1] for warning in caught if (match := _SKIPPED.search(str(warning.message)))]
    left_out_silently = [
        array.name for array in _arrays_in_hdf5(path) if not array.is_read_by_netcdf or array.name not in read_names
    ]
    return list(dict.fromkeys((*warned_of, *left_out_silently)))


def _names_in(group: Any, parent: str) -> Iterator[str]:
    """Yield the names of variables and dimensions of a group of netCDF4, with their groups.

    A dimension without coordinates is an array of HDF5, too.
    """
    yield from (f"{parent}{name}" for name in (*group.variables, *group.dimensions))
    for name, child in group.groups.items():
        yield from _names_in(child, f"{parent}{name}/")


# --- HDF5 by h5py: what netCDF does not read --------------------------------------------------------------------------


@contextlib.contextmanager
def _hdf5_file(path: Path) -> Iterator[Any]:
    """Open an HDF5 file by h5py; yield None if it is no such file, or if h5py is not installed."""
    if path.is_dir() or importlib.util.find_spec("h5py") is None:
        yield None
        return
    import h5py

    if not h5py.is_hdf5(path):
        yield None
        return
    with h5py.File(path) as file:
        yield file


class _Hdf5Array(NamedTuple):
    """An array of an HDF5 file."""

    name: str  # with its groups, as netCDF has it
    is_read_by_netcdf: bool  # whether netCDF reads arrays of its kind


def _arrays_in_hdf5(path: Path) -> list[_Hdf5Array]:
    """Return the arrays of an HDF5 file, also those that netCDF does not read; empty without h5py."""
    return _arrays_at_time(path, 0 if path.is_dir() else path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _arrays_at_time(path: Path, modified_ns: int) -> list[_Hdf5Array]:
    """Return what `_arrays_in_hdf5` returns; the cache serves a command that asks several times.

    The time of the last change is part of the cache's key alone, so that a changed file is read again.
    """
    arrays: list[_Hdf5Array] = []

    def visit(name: str | bytes, item: Any) -> None:
        """Add an item to the list, if it is an array; h5py calls this for each item of the file."""
        if _is_array(item):
            arrays.append(_Hdf5Array(name=_name_in_netcdf(name), is_read_by_netcdf=_is_array_read(item)))

    with _hdf5_file(path) as file:
        if file is not None:
            file.visititems(visit)
    return arrays


def _is_array_read(array: Any) -> bool:
    """Return whether netCDF reads an array of HDF5.

    It skips some types, and arrays that are compressed by LZF, in silence. On floats of other widths than 4 and 8 bytes
    it ends the process.
    """
    try:
        is_other_float = array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8)
        return array.compression != "lzf" and not is_other_float
    except TypeError:  # of a type that NumPy lacks, such as times of HDF5
        return False


def _name_in_netcdf(name: str | bytes) -> str:
    """Return the name, with its groups, that netCDF has for an item of an HDF5 file."""
    parent, _, own_name = _as_text(name).rpartition("/")
    return f"{parent}/{own_name.removeprefix(_NOT_COORDINATES)}".lstrip("/")


def _as_text(name: str | bytes) -> str:
    """Return a name in HDF5 as text; h5py has bytes for one in another encoding than UTF-8."""
    return name if isinstance(name, str) else name.decode(errors="surrogateescape")


def _is_array(item: Any) -> bool:
    """Return whether an item of an HDF5 file is an array: a group has no shape."""
    return hasattr(item, "shape")


def attribute_names_in_hdf5(path: Path) -> dict[str, list[str]]:
    """Return the names of the attributes of the groups and variables of an HDF5 file, also those netCDF does not read.

    They are by the names of groups and variables in netCDF, those of the file itself by an empty name. The attributes
    with which HDF5 stores dimensions are left out. Empty if h5py is not installed, or for other files.
    """
    names_of: dict[str, list[str]] = {}

    def visit(name: str | bytes, item: Any) -> None:
        """Add the names of an item's attributes; h5py calls this for each item but the file itself."""
        names_of[_name_in_netcdf(name)] = [key for key in item.attrs if not OF_DIMENSIONS.fullmatch(key)]

    with _hdf5_file(path) as file:
        if file is not None:
            visit("", file)
            file.visititems(visit)
    return names_of


def _items_without_values(path: Path) -> list[str]:
    """Return the names of links to nothing, and of arrays without a shape: netCDF opens no file with one of them."""
    names: list[str] = []

    with _hdf5_file(path) as file:

        def visit(name: str | bytes, link: Any) -> None:
            """Add the name of a link that leads to no values; h5py calls this for each link."""
            if not isinstance(name, str):  # no UTF-8, which h5py finds nothing by
                return
            try:
                item = file[name]
                has_no_values = _is_array(item) and item.shape is None
            except (KeyError, OSError, RuntimeError, SystemError):  # links in a circle are errors of h5py's own locks
                has_no_values = True
            if has_no_values:
                names.append(name)

        if file is not None:
            file.visititems_links(visit)
    return names


def _unreadable_arrays(path: Path) -> list[str | bytes]:
    """Return the names of arrays whose types NumPy lacks, and names of arrays and groups that are no UTF-8."""
    names: list[str | bytes] = []

    def visit(name: str | bytes, item: Any) -> None:
        """Add the name of an item that can't be read; h5py calls this for each item."""
        try:
            is_readable = isinstance(name, str) and (not _is_array(item) or item.dtype is not None)
        except TypeError:
            is_readable = False
        if not is_readable:
            names.append(name)

    with _hdf5_file(path) as file:
        if file is not None:
            file.visititems(visit)
    return names


def _unreadable_attributes(path: Path) -> list[tuple[str | bytes, str | bytes]]:
    """Return the owner and the name of each attribute with which netCDF or h5netcdf opens no file."""
    found: list[tuple[str | bytes, str | bytes]] = []
    with _hdf5_file(path) as file:

        def visit(name: str | bytes, item: Any) -> None:
            """Add the attributes of an item that can't be read; h5py calls this for each item."""
            found.extend((name, key) for key in item.attrs if not _is_attribute_read(item.attrs, key))

        if file is not None:
            visit(ROOT, file)
            file.visititems(visit)
    return found


def _is_attribute_read(attributes: Any, key: str | bytes) -> bool:
    """Return whether netCDF and h5netcdf open a file with an attribute.

    netCDF fails at those of two axes or more, h5netcdf at a single reference to a part of the file, and both at types
    that h5py can't read.
    """
    try:
        shape = attributes.get_id(key).shape
        is_reference = type(attributes[key]).__name__ in ("Reference", "RegionReference")
    except Exception:  # any that h5py has for types that it does not know
        return False
    return len(shape or ()) < 2 and not is_reference


class UnopenedError(ValueError):
    """netCDF can't open a file; it says what for."""


@contextlib.contextmanager
def _explaining_failure_to_open(path: Path) -> Iterator[None]:
    """Turn an error of netCDF or h5netcdf at opening a file into one that names what in the file they fail at.

    An error is raised as it is if h5py is not installed, or finds no reason.
    """
    try:
        yield
    except (OSError, RuntimeError, TypeError, AttributeError, SystemError, UnicodeError) as error:
        if names := _or_empty(_items_without_values, path):
            reason = f"it has no values or a link to nothing: {', '.join(names)}"
            raise _unopened_error(path, reason, [f"del file[{name!r}]" for name in names]) from error
        if attributes := _or_empty(_unreadable_attributes, path):
            named = ", ".join(f"{_as_text(key)} of {_as_text(owner)}" for owner, key in attributes)
            statements = [f"del file[{owner!r}].attrs[{key!r}]" for owner, key in attributes]
            raise _unopened_error(path, f"it can't read attributes: {named}", statements) from error
        if arrays := _or_empty(_unreadable_arrays, path):
            reason = f"it can't read the types or names of: {', '.join(map(_as_text, arrays))}"
            raise _unopened_error(path, reason, [f"del file[{name!r}]" for name in arrays]) from error
        raise


def _or_empty(find: Callable[[Path], list[T]], path: Path) -> list[T]:
    """Return what is found in a file that netCDF can't open; empty if h5py fails, too, as in a damaged file."""
    try:
        return find(path)
    except Exception:  # the error of netCDF tells more
        return []


def _unopened_error(path: Path, reason: str, statements: list[str]) -> UnopenedError:
    """Return the error with the reason why netCDF can't open a file, and the statements that remove it by h5py."""
    return UnopenedError(
        f"netCDF can't open it, since {reason}; with h5py {'; '.join(statements)} removes that, where file = "
        f"h5py.File({path.name!r}, 'a')"
    )


# --- Variables --------------------------------------------------------------------------------------------------------


def special_variables(path: Path) -> dict[str, str]:
    """Return the types of variables of a netCDF file whose values are neither numbers nor texts, by their names.

    The values are lists of variable length, or records of several fields. A name includes those of its groups.
    """
    if path.is_dir():
        return {}
    with netcdf_file(path) as file:
        return dict(_special_variables_in(file, ""))


def _special_variables_in(group: Any, parent: str) -> Iterator[tuple[str, str]]:
    """Yield the names and types of special variables in a group and in the groups within it; `parent` is its path."""
    for name, variable in group.variables.items():
        if special_type := special_type_of(variable):
            yield f"{parent}{name}", special_type
    for name, inner_group in group.groups.items():
        yield from _special_variables_in(inner_group, f"{parent}{name}/")


def special_type_of(variable: Any) -> str:
    """Return what a variable of netCDF4 has if it is no array of numbers or texts; empty if it is one."""
    class_name = type(variable.datatype).__name__
    if class_name == "CompoundType":
        return COMPOUND
    return VARIABLE_LENGTH if class_name == "VLType" and variable.dtype is not str else ""


def open_options(path: Path) -> dict[str, Any]:
    """Return the options by which xarray opens a file or a store: by h5netcdf if netCDF does not read all its arrays.

    Consolidated metadata of zarr may be out of date, and name other arrays than the store has.
    """
    if path.is_dir():
        return {"engine": "zarr", "consolidated": False}
    has_h5netcdf = importlib.util.find_spec("h5netcdf") is not None
    if has_h5netcdf and not all(array.is_read_by_netcdf for array in _arrays_in_hdf5(path)):
        return {"engine": "h5netcdf", "phony_dims": "sort"}
    return {}


def groups_of(path: Path, **decoding: bool) -> dict[str, Any]:
    """Return the Datasets of all groups of a file or a store; raise ValueError if xarray can't open it."""
    xarray = import_xarray()
    if path.is_dir():
        with contextlib.suppress(ModuleNotFoundError):  # without zarr xarray has its own error
            fastq.zarr.register()
    try:
        # of attributes that xarray decodes in its own way
        with warnings.catch_warnings(action="ignore"), _explaining_failure_to_open(path):
            groups: dict[str, Any] = xarray.open_groups(path, **decoding, **open_options(path))
    except UnopenedError:
        raise
    except (ValueError, KeyError, RuntimeError, TypeError, AttributeError, SystemError) as error:
        raise ValueError(f"xarray can't open it: {_reason_of_xarray(error, path)}") from error
    return dict(sorted(groups.items()))


def _reason_of_xarray(error: Exception, path: Path) -> str:
    """Return the first sentence of an error of xarray, with advice for errors of zarr, which is not imported here."""
    if type(error).__name__ == "ContainsArrayError":
        is_in_store = any((path.parent / mark).is_file() for mark in MARKS)
        way = "name the store that it lies in" if is_in_store else "zarr.open_array reads it, in Python"
        return f"it is an array of zarr; {way}"
    reason = str(error.args[0] if error.args else error).partition(". ")[0]
    if type(error).__name__ == "UnknownCodecError":
        reason += "; install the package that has it for zarr"
    return reason


class StoredVariable(NamedTuple):
    """A variable of a file or a store, decoded except for times."""

    name: str  # with its groups
    variable: Variable  # its metadata
    reader: Reader  # reads its values
    labels: Labels  # reads the coordinates of its dimensions
    special: str  # what it has that is no array of numbers or texts; then it is read as stored


def variables_of(path: Path) -> Iterator[StoredVariable]:
    """Yield the variables of all groups of a file or a store, without their values.

    Each has functions that open the file once more for its values and for its coordinates, when they are called.
    """
    groups = groups_of(path, **_DECODED)
    special_type_by_name = special_variables(path) if importlib.util.find_spec("netCDF4") else {}
    for group, ds in groups.items():
        # CF describes a rounding by the attributes of a variable without data, which the rounded variables name
        descriptions = {variable.attrs.get("quantization") for variable in ds.variables.values()}
        for name, variable in ds.variables.items():
            if name in descriptions:
                continue
            full_name = f"{group}/{name}".lstrip("/")
            if full_name in special_type_by_name:
                reader = functools.partial(_open_as_stored, path, full_name)
            else:
                reader = functools.partial(_open_variable, path, group, name)
            is_coordinate = variable.dims == (name,)
            labelled_dims = () if is_coordinate else variable.dims
            other_coordinates = str((variable.encoding | variable.attrs).get("coordinates", "")).split()
            yield StoredVariable(
                name=full_name,
                variable=variable,
                reader=reader,
                labels=functools.partial(read_labels, path, group, labelled_dims, other_coordinates),
                special=special_type_by_name.get(full_name, ""),
            )
        ds.close()


@contextlib.contextmanager
def _open_as_stored(path: Path, name: str) -> Iterator[Callable[[Any], Array]]:
    """Open a netCDF file for the values of a variable of any type, which a function returns at an index."""
    with netcdf_file(path) as file:
        variable = file[name]
        yield lambda index: np.asarray(variable[index if variable.ndim else ...])


@contextlib.contextmanager
def _open_variable(path: Path, group: str, name: str) -> Iterator[Callable[[Any], Array]]:
    """Open a file for the values of a variable, which a function returns at an index.

    It is closed at the end: netCDF fails to open a file of which the garbage collector has yet to close another.
    """
    with warnings.catch_warnings(action="ignore"):
        opened = import_xarray().open_dataset(path, group=group, **_DECODED, **open_options(path))
    with opened as ds:
        variable = ds.variables[name]
        yield lambda index: np.asarray(variable[index].values)


def read_labels(path: Path, group: str, dims: tuple[str, ...], others: Iterable[str] = ()) -> dict[str, Variable]:
    """Return the coordinates of dimensions, from a group or the nearest group around it; times are decoded.

    `others` has the names of other coordinates, such as those of places on a grid; scalars are left out.
    """
    xarray = import_xarray()
    labels: dict[str, Variable] = {}
    names = group.strip("/").split("/")
    if names == [""]:
        names = []
    for depth in range(len(names), -1, -1):
        with warnings.catch_warnings(action="ignore"):  # of attributes that xarray decodes in its own way
            opened = xarray.open_dataset(path, group="/".join(names[:depth]) or None, **_DECODED, **open_options(path))
        with opened as ds:
            of_dims = [dim for dim in dims if dim in ds.variables and ds.variables[dim].dims == (dim,)]
            in_group = [name for name in others if name in ds.variables]
            # coordinates along these dimensions only, and at least one of them: scalars say nothing about places
            of_grid = [name for name in in_group if set() < set(ds.variables[name].dims) <= set(dims)]
            for name in (*of_dims, *of_grid):
                if name not in labels:
                    labels[name] = _with_decoded_times(ds[[name]]).variables[name].load()
    return labels


def _with_decoded_times(ds: Any) -> Any:
    """Return a Dataset of a coordinate with its times decoded, or as it is if they can't be."""
    try:
        with warnings.catch_warnings(action="ignore"):
            return import_xarray().decode_cf(ds)
    except (ValueError, OverflowError):
        return ds


def packing_of(variable: Variable) -> dict[str, Any]:
    """Return the attributes of a packing or a rounding of a decoded variable, as Python numbers."""
    attributes = {key: variable.encoding.get(key) for key in PACKED if is_packed(variable)}
    attributes |= {key: variable.attrs.get(key) for key in ROUNDED}
    return {key: shortest_number(value) for key, value in attributes.items() if value is not None}


def is_packed(variable: Variable) -> bool:
    """Return whether a decoded variable is stored with a scale or an offset."""
    return any(key in variable.encoding for key in PACKED[:2])


def shortest_number(value: Any) -> Any:
    """Return a NumPy number as a Python number; a float has the fewest digits that identify it in its dtype.

    np.float32(0.1) becomes 0.1, and not 0.10000000149011612.
    """
    if isinstance(value, np.floating):
        return float(str(value))
    return value.tolist() if hasattr(value, "tolist") else value
