"""netCDF files and zarr stores: their variables are decoded, and read part by part."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypeVar

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
_NOT_OF_DIMENSION = "_nc4_non_coord_"  # begins the stored name of a variable that is only called like a dimension
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
    with warnings.catch_warnings(action="ignore"), _naming_what_is_unopened(path):  # of variables that it skips
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
        with _naming_what_is_unopened(path):
            opened = netCDF4.Dataset(path)
        with opened as file:
            known = {*_names_in(file, "")}
    names = [match[1] for warning in caught if (match := _SKIPPED.search(str(warning.message)))]
    not_read = [name for name, is_read in _in_hdf5(path) if not is_read or name not in known]
    return list(dict.fromkeys((*names, *not_read)))


def _names_in(group: Any, parent: str) -> Iterator[str]:
    """Yield the names of variables and dimensions of a group of netCDF4, with their groups."""
    yield from (f"{parent}{name}" for name in (*group.variables, *group.dimensions))
    for name, child in group.groups.items():
        yield from _names_in(child, f"{parent}{name}/")


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


def _in_hdf5(path: Path) -> list[tuple[str, bool]]:
    """Return the names of arrays in an HDF5 file, and whether netCDF reads those of its kind; empty without h5py.

    netCDF skips some in silence. Others it ends the process on: floats of other widths than 4 and 8 bytes.
    """
    return _read_from_hdf5(path, 0 if path.is_dir() else path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _read_from_hdf5(path: Path, changed: int) -> list[tuple[str, bool]]:
    """Return what `_in_hdf5` returns, for a file that was last changed at some time."""
    arrays: list[tuple[str, bool]] = []

    def look(name: str | bytes, item: Any) -> None:
        if not _is_array(item):
            return
        parent, _, own = _as_text(name).rpartition("/")
        try:
            is_read = item.compression != "lzf" and not (item.dtype.kind == "f" and item.dtype.itemsize not in (4, 8))
        except TypeError:  # of a type that NumPy lacks, such as times of HDF5
            is_read = False
        arrays.append((f"{parent}/{own.removeprefix(_NOT_OF_DIMENSION)}".lstrip("/"), is_read))

    with _hdf5_file(path) as file:
        if file is not None:
            file.visititems(look)
    return arrays


def _as_text(name: str | bytes) -> str:
    """Return a name in HDF5 as text; h5py has bytes for one in another encoding than UTF-8."""
    return name if isinstance(name, str) else name.decode(errors="surrogateescape")


def _is_array(item: Any) -> bool:
    """Return whether an item of an HDF5 file is an array: a group has no shape."""
    return hasattr(item, "shape")


def _unopened(path: Path) -> list[str]:
    """Return what netCDF fails to open an HDF5 file for, if h5py is installed: links to nothing, and empty arrays."""
    names: list[str] = []

    with _hdf5_file(path) as file:

        def look(name: str | bytes, link: Any) -> None:
            if not isinstance(name, str):  # no UTF-8, which h5py finds nothing by
                return
            try:
                item = file[name]
                is_empty = _is_array(item) and item.shape is None
            except (KeyError, OSError, RuntimeError, SystemError):  # links in a circle are errors of h5py's own locks
                names.append(name)
            else:
                if is_empty:
                    names.append(name)

        if file is not None:
            file.visititems_links(look)
    return names


def _unknown_arrays(path: Path) -> list[str | bytes]:
    """Return the arrays of an HDF5 file whose types NumPy lacks, or whose names are no UTF-8."""
    names: list[str | bytes] = []

    def look(name: str | bytes, item: Any) -> None:
        try:
            is_known = isinstance(name, str) and (not _is_array(item) or item.dtype is not None)
        except TypeError:
            is_known = False
        if not is_known:
            names.append(name)

    with _hdf5_file(path) as file:
        if file is not None:
            file.visititems(look)
    return names


def attributes_in_hdf5(path: Path) -> dict[str, list[str]]:
    """Return the attributes of the groups and variables of an HDF5 file by their names, the root's by an empty one.

    Those with which HDF5 keeps dimensions are left out. Empty if h5py is not installed, or for other files.
    """
    names_of: dict[str, list[str]] = {}

    def look(name: str | bytes, item: Any) -> None:
        parent, _, own = _as_text(name).rpartition("/")
        full = f"{parent}/{own.removeprefix(_NOT_OF_DIMENSION)}".lstrip("/")
        names_of[full] = [key for key in item.attrs if not OF_DIMENSIONS.fullmatch(key)]

    with _hdf5_file(path) as file:
        if file is not None:
            look("", file)
            file.visititems(look)
    return names_of


def _unread_attributes(path: Path) -> list[tuple[str | bytes, str | bytes]]:
    """Return the owners and names of attributes in HDF5 with which netCDF or h5netcdf opens no file.

    netCDF fails at those of two axes or more, h5netcdf at a single reference to a part of the file, and both at types
    that h5py can't read.
    """
    found: list[tuple[str | bytes, str | bytes]] = []
    with _hdf5_file(path) as file:

        def look(name: str | bytes, item: Any) -> None:
            found.extend((name, key) for key in item.attrs if not _is_attribute_read(item.attrs, key))

        if file is not None:
            look(ROOT, file)
            file.visititems(look)
    return found


def _is_attribute_read(attributes: Any, key: str | bytes) -> bool:
    """Return whether netCDF and h5netcdf open a file with an attribute."""
    try:
        shape = attributes.get_id(key).shape
        is_reference = type(attributes[key]).__name__ in ("Reference", "RegionReference")
    except Exception:  # any that h5py has for types that it does not know
        return False
    return len(shape or ()) < 2 and not is_reference


class UnopenedError(ValueError):
    """netCDF can't open a file; it says what for."""


@contextlib.contextmanager
def _naming_what_is_unopened(path: Path) -> Iterator[None]:
    """Raise ValueError with what netCDF and h5netcdf fail to open a file for, instead of their errors."""
    try:
        yield
    except (OSError, RuntimeError, TypeError, AttributeError, SystemError, UnicodeError) as error:
        if names := _as_far_as_read(_unopened, path):
            reason = f"it has no values or a link to nothing: {', '.join(names)}"
            _raise_with_ways(error, path, reason, [f"del file[{name!r}]" for name in names])
        if attributes := _as_far_as_read(_unread_attributes, path):
            named = ", ".join(f"{_as_text(key)} of {_as_text(owner)}" for owner, key in attributes)
            ways = [f"del file[{owner!r}].attrs[{key!r}]" for owner, key in attributes]
            _raise_with_ways(error, path, f"it can't read attributes: {named}", ways)
        if unknown := _as_far_as_read(_unknown_arrays, path):
            reason = f"it can't read the types or names of: {', '.join(map(_as_text, unknown))}"
            _raise_with_ways(error, path, reason, [f"del file[{name!r}]" for name in unknown])
        raise


def _as_far_as_read(look: Callable[[Path], list[T]], path: Path) -> list[T]:
    """Return what is looked for in a file that netCDF can't open; empty if h5py fails, too, as in a damaged file."""
    try:
        return look(path)
    except Exception:  # the error of netCDF tells more
        return []


def _raise_with_ways(error: Exception, path: Path, reason: str, ways: list[str]) -> NoReturn:
    """Raise ValueError with a reason and the ways to remove it by h5py."""
    raise UnopenedError(
        f"netCDF can't open it, since {reason}; with h5py {'; '.join(ways)} removes that, where file = "
        f"h5py.File({path.name!r}, 'a')"
    ) from error


def special_variables(path: Path) -> dict[str, str]:
    """Return the types of variables of a netCDF file whose values are neither numbers nor texts, by their names.

    The values are lists of variable length, or records of several fields. A name includes those of its groups.
    """
    if path.is_dir():
        return {}
    with netcdf_file(path) as file:
        return dict(_special_of(file, ""))


def _special_of(group: Any, parent: str) -> Iterator[tuple[str, str]]:
    """Yield the names and types of such variables of a group and of the groups in it; `parent` is its path."""
    for name, variable in group.variables.items():
        if special_type := special_type_of(variable):
            yield f"{parent}{name}", special_type
    for name, inner_group in group.groups.items():
        yield from _special_of(inner_group, f"{parent}{name}/")


def special_type_of(variable: Any) -> str:
    """Return what a variable of netCDF4 has if it is no array of numbers or texts; empty if it is one."""
    class_name = type(variable.datatype).__name__
    if class_name == "CompoundType":
        return COMPOUND
    return VARIABLE_LENGTH if class_name == "VLType" and variable.dtype is not str else ""


def open_options(path: Path) -> dict[str, Any]:
    """Return the options by which xarray opens a file or a store."""
    if path.is_dir():
        return {"engine": "zarr", "consolidated": False}
    beyond_netcdf = importlib.util.find_spec("h5netcdf") and not all(is_read for _, is_read in _in_hdf5(path))
    return {"engine": "h5netcdf", "phony_dims": "sort"} if beyond_netcdf else {}


def groups_of(path: Path, **decoding: bool) -> dict[str, Any]:
    """Return the Datasets of all groups of a file or a store; raise ValueError if xarray can't open it."""
    xarray = import_xarray()
    if path.is_dir():
        with contextlib.suppress(ModuleNotFoundError):  # without zarr xarray has its own error
            fastq.zarr.register()
    try:
        # attributes that xarray decodes in its own way
        with warnings.catch_warnings(action="ignore"), _naming_what_is_unopened(path):
            groups: dict[str, Any] = xarray.open_groups(path, **decoding, **open_options(path))
    except UnopenedError:
        raise
    except (ValueError, KeyError, RuntimeError, TypeError, AttributeError, SystemError) as error:
        reason = str(error.args[0] if error.args else error).partition(". ")[0]
        if type(error).__name__ == "UnknownCodecError":
            reason += "; install the package that has it for zarr"
        if type(error).__name__ == "ContainsArrayError":
            is_in_store = any((path.parent / mark).is_file() for mark in MARKS)
            way = "name the store that it lies in" if is_in_store else "zarr.open_array reads it, in Python"
            reason = f"it is an array of zarr; {way}"
        raise ValueError(f"xarray can't open it: {reason}") from error
    return dict(sorted(groups.items()))


class StoredVariable(NamedTuple):
    """A variable of a file or a store, decoded except for times."""

    name: str  # with its groups
    variable: Variable  # its metadata
    reader: Reader  # reads its values
    labels: Labels  # reads the coordinates of its dimensions
    special: str  # what it has that is no array of numbers or texts; then it is read as stored


def variables_of(path: Path) -> Iterator[StoredVariable]:
    """Yield the variables of all groups of a file or a store."""
    groups = groups_of(path, **_DECODED)
    others = special_variables(path) if importlib.util.find_spec("netCDF4") else {}
    for group, ds in groups.items():
        descriptions = {variable.attrs.get("quantization") for variable in ds.variables.values()}  # without data
        for name, variable in ds.variables.items():
            if name in descriptions:
                continue
            full = f"{group}/{name}".lstrip("/")
            decoded = functools.partial(_open_variable, path, group, name)
            as_stored = functools.partial(_open_as_stored, path, full)
            labelled_dims = () if variable.dims == (name,) else variable.dims
            beside = str((variable.encoding | variable.attrs).get("coordinates", "")).split()
            yield StoredVariable(
                name=full,
                variable=variable,
                reader=as_stored if full in others else decoded,
                labels=functools.partial(read_labels, path, group, labelled_dims, beside),
                special=others.get(full, ""),
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


def read_labels(path: Path, group: str, dims: tuple[str, ...], beside: Iterable[str] = ()) -> dict[str, Variable]:
    """Return the coordinates of dimensions, from a group or the nearest group around it; times are decoded.

    `beside` has the names of other coordinates, such as those of places on a grid; scalars are left out.
    """
    xarray = import_xarray()
    labels: dict[str, Variable] = {}
    names = group.strip("/").split("/")
    for depth in range(len(names), -1, -1):
        with warnings.catch_warnings(action="ignore"):  # of attributes that xarray decodes in its own way
            opened = xarray.open_dataset(path, group="/".join(names[:depth]) or None, **_DECODED, **open_options(path))
        with opened as ds:
            own = [dim for dim in dims if dim in ds.variables and ds.variables[dim].dims == (dim,)]
            known = [name for name in beside if name in ds.variables]
            others = [name for name in known if set() < set(ds.variables[name].dims) <= set(dims)]
            for name in (*own, *others):
                if name not in labels:
                    labels[name] = _with_decoded_times(ds[[name]]).variables[name].load()
        if not names[0]:
            break
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
    """Return a NumPy number as a Python number; a float has the fewest digits that identify it in its dtype."""
    return float(str(value)) if isinstance(value, np.floating) else getattr(value, "tolist", lambda: value)()
