"""Convert arrays of callers, of whatever library, to ndarrays without a copy where possible, or refuse them.

Errors name the argument, as those of `fastq.system.arguments`. Masks are refused, since they would be lost, and units
are warned of.
"""

from __future__ import annotations

import sys
from array import array as PythonArray
from collections.abc import Callable, Sequence
from operator import countOf
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from fastq.system.arguments import (
    MOST_AXES,
    OF_ML_DTYPES,
    dtype_named,
    is_python,
    name_of_foreign,
    native,
    reason,
    shown,
)
from fastq.system.callers import warn_caller
from fastq.system.declared_gaps import check_attributes, gaps_of, refuse_gaps

_READ_BY_CPU = (1, 3, 11)  # devices of DLPack: kDLCPU, and memory of the host pinned for CUDA and ROCm
_PAIRS = "float4_e2m1fn_x2"  # a dtype of torch


def is_lazy(x: Any) -> bool:
    """Return whether this is lazy: an array of dask, or an object that contains one, as in xarray."""
    try:
        return x.__dask_graph__() is not None
    except Exception:
        return False


def as_array(x: Any, name: str, *, has_gaps: bool = False) -> NDArray[Any]:
    """Return x as a plain ndarray, unless that would lose which of its elements are missing.

    `has_gaps` says that x may have numbers that its attributes call missing.
    """
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
        data = as_array(_convert(x, name, _without_names), f"{name}.data")
        return data if has_gaps else refuse_gaps(data, gaps_of(x), name, f"{name}.data")
    refuse_mask(x, name)
    _check_device(x, name)
    array: NDArray[Any] = _convert(_with_arrays(x, (name,), has_gaps), name, _import_array)
    if array.dtype == object and not isinstance(x, np.ndarray):  # such as None, dicts and sparse matrices
        raise TypeError(f"{name} must be an array of numbers, not {shown(x)}{_hint_of_rows(x, array, name)}")
    _warn_of_unit(x, name)
    if not (has_gaps or isinstance(x, np.ndarray)):
        check_attributes(x, array, name)
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
        error_class = ValueError if isinstance(error, ValueError) else TypeError
        raise error_class(
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
        warn_caller(f"{name} has the unit {text}, which results will not have")


def has_named_dimensions(x: Any) -> bool:
    """Return whether this is a DataArray or a Variable of xarray."""
    xarray = sys.modules.get("xarray")
    return any(isinstance(x, getattr(xarray, class_name, ())) for class_name in ("DataArray", "Variable"))


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


def _with_arrays(x: Any, path: tuple[Any, ...], has_gaps: bool) -> Any:
    """Return nested sequences with arrays in place of what becomes an array in them.

    NumPy itself would take the elements of a masked array out of a list, without their mask. `path` has the name of the
    argument and the indices of x in it.
    """
    if len(path) > MOST_AXES or not _is_sequence(x):
        return x
    try:
        items = x if type(x) is list or type(x) is tuple else list(x)
        item_type = type(items[0]) if items else float
        if item_type in _PLAIN and countOf(map(type, items), item_type) == len(items):  # less time than a set takes
            return x
        if set(map(type, items)) <= _PLAIN:
            return x
    except Exception:  # NumPy tells why
        return x
    return [_element(item, (*path, k), has_gaps) for k, item in enumerate(items)]


def _element(x: Any, path: tuple[Any, ...], has_gaps: bool) -> Any:
    """Return an element of a sequence: an array if it becomes one, or a sequence of arrays."""
    if type(x) is list or type(x) is tuple:
        return _with_arrays(x, path, has_gaps)
    if isinstance(x, _NUMBERS):
        return x
    if any(_attribute(x, protocol) is not None for protocol in _PROTOCOLS):
        name, *indices = path
        return as_array(x, name + "".join(f"[{k}]" for k in indices), has_gaps=has_gaps)
    return _with_arrays(x, path, has_gaps)


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
    if name_of_foreign(_attribute(x, "dtype")) == _PAIRS:
        shape = *x.shape[:-1], 2 * x.shape[-1]
        raise TypeError(
            f"{_PAIRS} has two codes in a byte: fastq.unpack(x.view(torch.uint8), 'float4_e2m1fn', shape={shape}) has "
            "one in each element, and fastq.QuantizedArray takes the codes x.view(torch.uint8)"
        )
    tensor = getattr(sys.modules.get("torch"), "Tensor", None)
    if (
        tensor is not None
        and isinstance(x, tensor)
        and not x.requires_grad
        and name_of_foreign(x.dtype) in OF_ML_DTYPES
    ):
        integers = getattr(sys.modules["torch"], f"int{8 * x.itemsize}")  # torch gives NumPy none of these dtypes
        return np.asarray(x.view(integers)).view(dtype_named(name_of_foreign(x.dtype)))
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
    if name not in OF_ML_DTYPES:
        return None
    data = memory if memory.c_contiguous else memory.tobytes()
    return np.frombuffer(data, f"u{memory.itemsize}").reshape(memory.shape).view(dtype_named(name))


def dtype_of(numbers: Any, name: str) -> np.dtype[Any] | None:
    """Return the dtype of a caller's numbers in native byte order; None for Python numbers."""
    if numbers is None or is_python(numbers):
        return None
    return native((numbers if isinstance(numbers, np.generic) else as_array(numbers, name)).dtype)


def is_out(out: object) -> TypeGuard[NDArray[Any]]:
    """Return whether a result can be written to this: an ndarray that is neither masked nor a matrix."""
    if type(out) is np.ndarray:
        return True
    return isinstance(out, np.ndarray) and not (isinstance(out, np.matrix) or has_mask(out))
