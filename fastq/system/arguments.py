"""Convert arguments to integers, booleans, shapes and arrays, or raise an error that names the argument.

A caller's object may raise any error whenever it is used: a tensor that requires a gradient when it becomes an array,
one of several elements when it is compared, a proxy of nothing at any time. Here such an error becomes a TypeError, and
the message shows the object in a few characters, even if its `repr` fails.
"""

from __future__ import annotations

import math
import operator
import reprlib
import sys
import warnings
from array import array as PythonArray
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from operator import countOf
from typing import Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from fastq.system import imports
from fastq.system.dtypes import ML_FLOATS

Kind = TypeVar("Kind")

MOST_AXES = 64  # of an array of NumPy
_READ_BY_CPU = (1, 3, 11)  # devices of DLPack: kDLCPU, and memory of the host pinned for CUDA and ROCm
_OF_ML_DTYPES = (*ML_FLOATS.values(), "int4", "uint4")  # JAX has these two, one per byte; files do not
_PAIRS = "float4_e2m1fn_x2"  # a dtype of torch


class _Short(reprlib.Repr):
    """A `reprlib.Repr` that shows arrays as dtype and shape, and integers of any size."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        """Show an integer, or its width, since Python refuses to write long ones in decimal."""
        return repr(x) if x.bit_length() <= 128 else f"an integer of {x.bit_length()} bits"

    def repr_ndarray(self, x: NDArray[Any], level: int) -> str:
        """Show an array by its dtype and shape."""
        return f"an array of {x.dtype} of shape {x.shape}"


_short = _Short()


def shown(value: object) -> str:
    """Return a short text of one line for a value."""
    return _short.repr(value).replace("\n", " ")


def between(least: object, most: object) -> str:
    """Return the smallest and the largest of numbers as text, equal ones once."""
    return str(least) if least == most else f"{least}..{most}"


def is_python(numbers: Any) -> bool:
    """Return whether these are numbers without a NumPy dtype; np.float64 is a subclass of float."""
    return isinstance(numbers, (int, float, list, tuple)) and not isinstance(numbers, np.generic)


def as_int(value: Any, name: str, expected: str = "an int") -> int:
    """Return an integer of Python or NumPy, or another object with `__index__`, as an int."""
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be {expected}, not {value}")
    try:
        number = operator.index(value)
    except Exception as error:
        raise TypeError(f"{name} must be {expected}, not {shown(value)}") from error
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{name} must be {expected} that 64 bits hold, not {shown(number)}")
    return number


def as_float(value: Any, name: str, least: float, most: float) -> float:
    """Return a number of Python or NumPy as a float."""
    kind = type(value)
    if kind in (bool, np.timedelta64) or not issubclass(kind, int | float | np.integer | np.floating):
        raise TypeError(f"{name} must be a number, not {shown(value)}")
    # NumPy would round `least` and `most` to the type of a scalar
    number = value.item() if issubclass(kind, np.float16 | np.float32 | np.integer) else value
    if not least <= number <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {shown(value)}")
    try:
        return float(number)
    except OverflowError:  # an int too large for a float, if any number is in range
        return math.inf if value > 0 else -math.inf


def as_bool(value: object, name: str) -> bool:
    """Return a bool of Python or NumPy as a Python bool."""
    if value is not True and value is not False and not isinstance(value, np.bool_):
        raise TypeError(f"{name} must be a bool, not {shown(value)}")
    return bool(value)


def as_str(value: Any, name: str) -> str:
    """Return a string."""
    if not issubclass(type(value), str):
        raise TypeError(f"{name} must be a string, not {shown(value)}")
    return str.__str__(value)


_FIELDS: dict[Any, Callable[[Any, str], Any]] = {"bool": as_bool, "int": as_int, "str": as_str}


def check_fields(row: Any) -> None:
    """Convert the fields of a dataclass that are declared as bool, int or str to plain values."""
    for field in fields(row):
        if field.type in _FIELDS:
            vars(row)[field.name] = _FIELDS[field.type](getattr(row, field.name), field.name)


def as_choice(value: Any, name: str, choices: Collection[str]) -> str:
    """Return a string that is one of the choices."""
    if type(value) is str and value in choices:
        return value
    text = str.__str__(value) if isinstance(value, str) else ""
    if text in choices:
        return text
    hint = did_you_mean(value, choices, {})
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {shown(value)}{hint}")


def as_items(items: Any, name: str, expected: str) -> list[Any]:
    """Return the items of an iterable, at most as many as an array has axes, since an iterator may not end."""
    try:
        first_items = list(islice(items, MOST_AXES + 1))
    except Exception as error:
        raise TypeError(f"{name} must be {expected}, not {shown(items)}") from error
    if len(first_items) > MOST_AXES:
        raise ValueError(f"{name} must be {expected}, at most {MOST_AXES}, not {shown(items)}")
    return first_items


def as_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple of int."""
    expected = "a tuple of int"
    sizes = tuple(as_int(size, "shape", expected) for size in as_items(shape, "shape", expected))
    if min(sizes, default=0) < 0:
        raise ValueError(f"shape must not have negative sizes: {sizes}")
    return sizes


def as_axis(axis: Any) -> int | tuple[int, ...] | None:
    """Return axis as an int, a tuple of int or None, without checking that an array has it."""
    expected = "an int, a tuple of int or None"
    if axis is None:
        return None
    if issubclass(type(axis), tuple):
        return tuple(as_int(item, "axis", expected) for item in tuple.__iter__(axis))
    return as_int(axis, "axis", expected)


def as_block_size(block_size: Any, axis: Any) -> int:
    """Return block_size as an int."""
    size = as_int(block_size, "block_size")
    if size < 0:
        raise ValueError(f"block_size must be 0 (no blocks) or positive, not {size}")
    if size and (axis is None or type(axis) is tuple or isinstance(axis, tuple)):
        raise TypeError(f"block_size={size} needs axis to be the one int along which blocks run, not {shown(axis)}")
    return size


def as_dtype(dtype: Any, name: str, expected: str) -> np.dtype[Any]:
    """Return the NumPy dtype of an object; those of other libraries are recognized by name, such as torch.bfloat16."""
    try:
        if dtype is not None and not isinstance(dtype, (np.generic, np.ndarray)):
            return _dtype_named(_name_of(dtype)) if _is_foreign(dtype) else np.dtype(dtype)
    except Exception as error:
        raise TypeError(f"{name} must be {expected}, not {shown(dtype)}") from error
    raise TypeError(f"{name} must be {expected}, not {shown(dtype)}")


def _is_foreign(dtype: object) -> bool:
    """Return whether this is a dtype of another library, by the name of its class."""
    return type(dtype).__name__ in ("dtype", "DType") and not isinstance(dtype, np.dtype)


def _name_of(dtype: object) -> str:
    """Return the name of a dtype of another library, without the name of the library."""
    return str(dtype).rpartition(".")[2]


def _dtype_named(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(imports.ml_dtypes(), name) if name in _OF_ML_DTYPES else name)


def is_lazy(x: Any) -> bool:
    """Return whether this is lazy: an array of dask, or an object that contains one, as in xarray."""
    try:
        return x.__dask_graph__() is not None
    except Exception:
        return False


def as_array(x: Any, name: str) -> NDArray[Any]:
    """Return x as a plain ndarray, unless that would lose which of its elements are missing."""
    if type(x) is np.ndarray:
        return x
    if isinstance(x, getattr(sys.modules.get("xarray"), "Dataset", ())):
        raise TypeError(
            f"{name} is a Dataset: pass a variable of it, as {name}['t']; fastq.xarray has what takes Datasets"
        )
    if is_lazy(x):
        raise TypeError(
            f"{name} has yet to be computed by dask: pass {name}.compute(), which loads it, or see fastq.dask for "
            "functions that work chunk by chunk"
        )
    if has_named_dimensions(x):
        return as_array(_convert(x, name, _without_names), f"{name}.data")
    refuse_mask(x, name)
    _check_device(x, name)
    array: NDArray[Any] = _convert(_with_arrays(x, (name,)), name, _import_array)
    if array.dtype == object and not isinstance(x, np.ndarray):  # such as None, dicts and sparse matrices
        raise TypeError(f"{name} must be an array of numbers, not {shown(x)}{_hint_of_rows(x, array, name)}")
    _warn_of_unit(x, name)
    if type(array) is np.ndarray:
        return array
    refuse_mask(array, name, f"numpy.asanyarray({name})")
    return array.view(np.ndarray)


def _hint_of_rows(x: Any, array: NDArray[Any], name: str) -> str:
    """Return how to pass rows that an object has as objects, as columns of pandas, polars and Arrow do; or nothing."""
    if callable(_attribute(x, "collect")):  # a query of polars
        return f": call {name}.collect() first"
    written = f"numpy.asarray({name})"
    if array.ndim == 2:  # a table: of its columns item is an array, or has rows
        names = _attribute(x, "column_names") or _attribute(x, "columns")
        column = next((str(item) for item in list(names if names is not None else ())), None)
        written = f"numpy.asarray({name}[{column!r}])"
        array = array[:, 0] if column is not None and array.shape[1] else array
    try:
        rows = [np.asarray(row) for row in array]
        stacked = np.stack(rows)
    except Exception:  # rows of several lengths, or no rows
        return ""
    if array.ndim != 1 or stacked.ndim < 2 or stacked.dtype.kind not in "iuf":
        return ""
    return f": pass the rows as one array, numpy.stack({written})"


def _convert(x: Any, name: str, convert: Callable[[Any], Any]) -> Any:
    """Return what a function makes of a caller's object, whose errors become errors that name the argument."""
    try:
        return convert(x)
    except MemoryError:
        raise
    except Exception as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(
            f"{name} must be an object that NumPy can turn into an array; {type(x).__name__}: {reason(error)}"
        ) from error


# --- masks, units and names -------------------------------------------------------------------------------------------


def has_mask(x: Any) -> bool:
    """Return whether this is an array that has a mask, also one of another library.

    A netCDF4.Variable has a `mask`, too, which says whether it makes masked arrays; so a mask must have the shape of x.
    """
    return isinstance(x, np.ma.MaskedArray) or _is_mask(_attribute(x, "mask"), x)


def refuse_mask(x: Any, name: str, written: str = "") -> None:
    """Raise TypeError for an array that has a mask; `written` is how the caller can get at it."""
    if not has_mask(x):
        return
    written = written or name
    filled = f"{written}.filled(value)"
    if not callable(_attribute(x, "filled")):
        filled = f"numpy.where({written}.mask, value, {written})"
    raise TypeError(
        f"{name} is a masked array, whose mask would be lost; pass {filled}, or numpy.asarray({name}) to ignore the "
        "mask"
    )


def _is_mask(mask: Any, x: Any) -> bool:
    """Return whether this is an array of bools in the shape of another array."""
    try:
        return mask.dtype == np.bool_ and tuple(mask.shape) == tuple(x.shape)
    except Exception:  # not an array, or one of strange dtypes
        return False


def _warn_of_unit(x: Any, name: str) -> None:
    """Warn of the unit of an array of astropy, unyt or the like, which results will not have; pint warns by itself."""
    unit = _attribute(x, "unit")
    if unit is None and isinstance(x, np.ndarray):
        unit = _attribute(x, "units")
    # not a column of a table, nor a label, which attributes of pandas may be
    if unit is None or isinstance(unit, (str, int, float)) or callable(unit) or _attribute(unit, "dtype") is not None:
        return
    try:
        text = str(unit)
    except Exception:
        return
    if text not in ("", "dimensionless"):
        warnings.warn(f"{name} has the unit {text}, which results will not have", UserWarning, stacklevel=5)


def has_named_dimensions(x: Any) -> bool:
    """Return whether this is a DataArray or a Variable of xarray."""
    xarray = sys.modules.get("xarray")
    return any(isinstance(x, getattr(xarray, kind, ())) for kind in ("DataArray", "Variable"))


def _without_names(x: Any) -> Any:
    """Return the array inside an object of xarray."""
    return x.data


def _attribute(x: Any, name: str) -> Any:
    """Return an attribute of a caller's object; None if it has no such attribute, or raises any other error."""
    try:
        return getattr(x, name, None)
    except Exception:
        return None


# --- sequences --------------------------------------------------------------------------------------------------------

_TEXTS = (str, bytes, bytearray, memoryview)
_NUMBERS = (int, float, complex, np.generic, type(None), *_TEXTS)
_PLAIN = frozenset((int, float, complex, bool, type(None), str, bytes, np.float32, np.float64, np.int64))
_PROTOCOLS = "__array__", "__array_interface__", "__array_struct__", "__dlpack__"


def _with_arrays(x: Any, path: tuple[Any, ...]) -> Any:
    """Return nested sequences with arrays in place of what becomes an array in them.

    NumPy itself would take the elements of a masked array out of a list, without their mask. `path` has the name of the
    argument and the indices of x in it.
    """
    if len(path) > MOST_AXES or not _is_sequence(x):
        return x
    try:
        items = x if type(x) is list or type(x) is tuple else list(x)
        first = type(items[0]) if items else float
        if first in _PLAIN and countOf(map(type, items), first) == len(items):  # less time than a set takes
            return x
        if set(map(type, items)) <= _PLAIN:
            return x
    except Exception:  # NumPy tells why
        return x
    return [_element(item, (*path, k)) for k, item in enumerate(items)]


def _element(x: Any, path: tuple[Any, ...]) -> Any:
    """Return an element of a sequence: an array if it becomes one, or a sequence of arrays."""
    if type(x) is list or type(x) is tuple:
        return _with_arrays(x, path)
    if isinstance(x, _NUMBERS):
        return x
    if any(_attribute(x, protocol) is not None for protocol in _PROTOCOLS):
        name, *indices = path
        return as_array(x, name + "".join(f"[{k}]" for k in indices))
    return _with_arrays(x, path)


def _is_sequence(x: Any) -> bool:
    """Return whether NumPy looks at the elements of this one by one."""
    if type(x) is list or type(x) is tuple:
        return True
    return isinstance(x, Sequence) and not isinstance(x, (*_TEXTS, range, PythonArray))


def _check_device(x: Any, name: str) -> None:
    """Refuse an array that the CPU can't read, which other libraries would copy implicitly."""
    try:
        kind, number = x.__dlpack_device__()
    except Exception:  # it has no such method, or the method fails
        return
    if kind not in _READ_BY_CPU:
        raise TypeError(
            f"{name} lies in the memory of a device, {shown(kind)} {number} of DLPack: copy it first, as x.cpu() of "
            "torch, x.get() of CuPy and jax.device_get(x) do"
        )


def _import_array(x: Any) -> NDArray[Any]:
    """Return an array with the memory of an object with `__array__`, the buffer protocol or DLPack; else a new one."""
    if _name_of(_attribute(x, "dtype")) == _PAIRS:
        shape = *x.shape[:-1], 2 * x.shape[-1]
        raise TypeError(
            f"{_PAIRS} has two codes in a byte: fastq.unpack(x.view(torch.uint8), 'float4_e2m1fn', shape={shape}) has "
            "one in each element, and fastq.QuantizedArray takes the codes x.view(torch.uint8)"
        )
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if tensor is not None and isinstance(x, tensor) and not x.requires_grad and _name_of(x.dtype) in _OF_ML_DTYPES:
        integers = getattr(sys.modules["torch"], f"int{8 * x.itemsize}")  # torch gives NumPy none of these dtypes
        return np.asarray(x.view(integers)).view(_dtype_named(_name_of(x.dtype)))
    if hasattr(x, "__dlpack__"):
        floats = _floats_in_buffer(x)
        if floats is not None:
            return floats
        if not hasattr(x, "__array__") and not hasattr(x, "__buffer__"):
            return np.from_dlpack(x)
    return np.asanyarray(x)


def _floats_in_buffer(x: Any) -> NDArray[Any] | None:
    """Return an array with the floats in a buffer whose format NumPy lacks, as MLX names bfloat16; None without any.

    NumPy has them from neither its buffer nor DLPack. Those that are not side by side are copied.
    """
    try:
        memory = memoryview(x)
    except Exception:  # it has no buffer, or none of a known format
        return None
    name = memory.format
    if name not in _OF_ML_DTYPES:
        return None
    data = memory if memory.c_contiguous else memory.tobytes()
    return np.frombuffer(data, f"u{memory.itemsize}").reshape(memory.shape).view(_dtype_named(name))


@imports.late
def _get_close_matches() -> Callable[..., list[str]]:
    from difflib import get_close_matches

    return get_close_matches


def did_you_mean(spelling: object, known: Collection[str], aliases: Mapping[str, str]) -> str:
    """Return the end of an error message: the name that was probably meant, or an empty text."""
    if not isinstance(spelling, str):
        return ""
    lower = str.lower(spelling)
    spelled = {name.lower(): name for name in known}
    similar = _get_close_matches()(lower, spelled, 1)
    likely = aliases.get(lower, *[spelled[name] for name in similar] or [""])
    return f": did you mean {likely}?" if likely else ""


def as_importance_of_columns(importance: Any, shape: tuple[int, ...], group: int) -> tuple[NDArray[Any], int]:
    """Return the importance of columns as an array, and the number of rows in a shape that share each of its rows.

    If `group` neighbours are all 0, ggml would store zeros for them; here they get equal weights.
    """
    weights = as_array(importance, "importance")
    if native(weights.dtype) != np.float32 and not (is_python(importance) and weights.dtype.kind in "iuf"):
        raise TypeError(f"importance must be float32, not {weights.dtype}")
    with np.errstate(over="ignore", under="ignore"):  # numbers beyond float32 are refused below
        weights = np.require(weights, np.float32, "A")
    rows = shape[:-1]
    kept = next(
        (k for k in range(len(rows), -1, -1) if weights.shape == (*rows[:k], *(1,) * (len(rows) - k), *shape[-1:])), -1
    )
    if weights.shape == shape[-1:]:
        kept = 0
    if kept < 0 or not shape:
        raise ValueError(
            f"importance has shape {weights.shape}, but for data of shape {shape} it must be one row, {shape[-1:]}, a "
            "row for each row, or for each index of the first axes, with 1 for the others"
        )
    if weights.size and not (weights.min() >= 0 and weights.max() < np.inf):
        raise ValueError("importance must be finite and not negative")
    return counting(weights, group), math.prod(rows[kept:])


def counting(weights: NDArray[Any], group: int) -> NDArray[Any]:
    """Return importance with ones for groups of neighbours that are all 0; itself without such groups."""
    if not group or weights.all():
        return weights
    groups = weights.reshape(-1, group)
    counts = groups.any(axis=1, keepdims=True)
    return weights if counts.all() else np.where(counts, groups, np.float32(1)).reshape(weights.shape)


def as_scales(scale: Any, block_size: Any, offset: Any) -> tuple[NDArray[np.float32], int, float | None]:
    """Return the arguments of `nest_scale`: float32 scales, the number in a block, and the offset."""
    scales = as_array(scale, "scale")
    if native(scales.dtype) != np.float32:
        raise TypeError(f"scale must be float32, not {scales.dtype}")
    if not scales.size or not np.isfinite(scales).all():
        raise ValueError("scale must be finite numbers, at least one")
    if (size := as_int(block_size, "block_size")) < 1:
        raise ValueError(f"block_size must be 1 or more, not {shown(block_size)}")
    return scales.astype(np.float32, copy=False), size, None if offset is None else as_offset(offset)


def as_offset(offset: Any) -> float:
    """Return the offset of scales, which must be finite in float32, as a float."""
    most = float(np.finfo(np.float32).max)
    return as_float(offset, "offset", -most, most)


def dtype_of(numbers: Any, name: str) -> np.dtype[Any] | None:
    """Return the dtype of a caller's numbers in native byte order; None for Python numbers."""
    if numbers is None or is_python(numbers):
        return None
    return native((numbers if isinstance(numbers, np.generic) else as_array(numbers, name)).dtype)


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a dtype in the byte order of the machine; a dtype without byte order is unchanged."""
    return dtype if dtype.isnative else dtype.newbyteorder("=")


def is_out(out: object) -> TypeGuard[NDArray[Any]]:
    """Return whether a result can be written to this: an ndarray that is neither masked nor a matrix."""
    if type(out) is np.ndarray:
        return True
    return isinstance(out, np.ndarray) and not (isinstance(out, np.matrix) or has_mask(out))


def reason(error: Exception) -> str:
    """Return the message of an error in one line; the error of a tensor says to detach it."""
    try:
        return str(error).replace("\n", " ")[:200]
    except Exception:
        return type(error).__name__


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the entries of a JSON object; Python's reader would keep only the last one of a name."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return entries
