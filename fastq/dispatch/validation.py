"""Checks of what callers pass: each returns the argument made ready, or raises an error that names it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QTYPES, QType, as_qtype
from fastq.system.arguments import as_array, as_choice, as_dtype, equal, is_a, is_out, is_python, native

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
FLOATS: frozenset[np.dtype[Any]] = frozenset((_FLOAT32, _FLOAT64, np.dtype(np.float16)))
INTEGERS: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
)
CODES = frozenset(row.storage for row in QTYPES.values() if not row.element)  # those of float codes need ml_dtypes

_REAL = "float16, bfloat16, float32 or float64"

_COMPUTE: dict[np.dtype[Any], np.dtype[Any]] = {
    dtype: np.dtype(np.float64 if dtype.itemsize > 2 else np.float32) for dtype in INTEGERS
}
_COMPUTE |= {dtype: _FLOAT64 if dtype == _FLOAT64 else _FLOAT32 for dtype in FLOATS}


def is_real(dtype: np.dtype[Any]) -> bool:
    """Whether values are of this dtype: float16, float32, float64, or bfloat16, which is known by its name."""
    return native(dtype) in FLOATS or dtype.name == "bfloat16"


def as_real(dtype: Any, name: str) -> np.dtype[Any]:
    """Return the dtype of values that a dtype or its name stands for.

    Raises
    ------
    TypeError
        If it is none of float16, bfloat16, float32 and float64.
    """
    is_name = is_a(dtype, str) and equal(dtype, "bfloat16")  # a dtype beside a string would be parsed: 1 us
    wanted = FLOAT_FORMATS["bfloat16"].dtype if is_name else as_dtype(dtype, name, _REAL)
    if not is_real(wanted):
        raise TypeError(f"{name} must be {_REAL}, not {wanted}")
    return native(wanted)


def as_input(x: Any, name: str = "x") -> NDArray[Any]:
    """Return x as an ndarray of a dtype that can be quantized.

    Raises
    ------
    TypeError
        If its dtype is none of float16, bfloat16, float32, float64 and the integers, or it is a masked array.
    """
    array = as_array(x, name)
    if native(array.dtype) not in _COMPUTE and not is_real(array.dtype):
        raise TypeError(f"{name} must be float16, bfloat16, float32, float64 or an integer array, not {array.dtype}")
    return array


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the compute type of an input dtype: float64 for float64 and integers wider than 16 bits, else float32."""
    return _COMPUTE.get(native(dtype), _FLOAT32)


def as_codes(codes: Any) -> tuple[NDArray[Any], QType]:
    """Return codes as an ndarray with one code an element, of ml_dtypes as they are, and their format.

    Raises
    ------
    TypeError
        If their dtype is that of no format.
    """
    array = as_array(codes, "codes")
    dtype = native(array.dtype)
    if dtype not in CODES and dtype.name not in QTYPES:
        raise TypeError(f"codes must be int8, uint8, int16, uint16 or of a dtype of ml_dtypes, not {array.dtype}")
    return array, as_qtype(dtype)


def check_nan(nan: str, qtype: QType | None = None, given: bool = False) -> str:
    """Return nan if it is one of the policies; "keep" is one for codes that have a NaN, and for scales not `given`.

    Raises
    ------
    ValueError
        If it is not.
    """
    nan = as_choice(nan, "nan", ("raise", "zero") if qtype is None else ("raise", "zero", "keep"))
    if qtype is None or nan != "keep":
        return nan
    if given and qtype.scale_element:
        raise ValueError(f"nan='keep' marks the scales of blocks, but the scales of {qtype} are given")
    if not qtype.scale_element and (qtype.float_format is None or qtype.float_format.nan is None):
        raise ValueError(f"nan='keep' needs codes that have a NaN, which {qtype} has not")
    return nan


def check_out(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return out if a result of this shape and dtype can be written to it.

    Raises
    ------
    TypeError
        If it is not an ndarray, or of another dtype.
    ValueError
        If it has another shape or is read-only.
    """
    if not is_out(out):
        raise TypeError(f"out must be an ndarray, not {type(out).__name__}")
    if native(out.dtype) != dtype:
        raise TypeError(f"out has dtype {out.dtype}, but the result has dtype {dtype}")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, but the result has shape {shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    return out


def as_scale(scale: Any, compute: np.dtype[Any], signed: bool = False) -> NDArray[np.floating[Any]]:
    """Return scale in the compute type, every value positive and finite there; signed: negative ones pass too.

    Raises
    ------
    TypeError
        If it does not hold real numbers.
    ValueError
        If a value is zero, negative, NaN or infinite, or becomes so when it is rounded to the compute type.
    """
    if (type(scale) is float or type(scale) is np.float32) and 2.0**-126 < scale < 2.0**127:
        return np.array(scale, compute)
    given, ready = _scale_in(scale, compute)
    size = np.abs(ready) if signed else ready
    if size.size == 1:
        if 0.0 < size.item() < np.inf:
            return ready
    elif _all_positive_finite(size):
        return ready
    bad, wanted = ~((size > 0) & (size < np.inf)), "finite and not zero" if signed else "positive and finite"
    raise ValueError(
        f"scale must be {wanted} in {compute}; {np.count_nonzero(bad)} of {bad.size} are not, "
        f"the first is {given[bad].flat[0]}"
    )


def as_finite_scale(scale: Any, compute: np.dtype[Any]) -> NDArray[np.floating[Any]]:
    """Return scale in the compute type, every value finite there: what codebooks are multiplied with.

    Raises
    ------
    TypeError
        If it does not hold real numbers.
    ValueError
        If a value is NaN or infinite, or becomes so when it is rounded to the compute type.
    """
    given, ready = _scale_in(scale, compute)
    finite = np.isfinite(ready)
    if not finite.all():
        raise ValueError(f"scale must be finite in {compute}, not {given[~finite].flat[0]}")
    return ready


def _scale_in(scale: Any, compute: np.dtype[Any]) -> tuple[NDArray[Any], NDArray[np.floating[Any]]]:
    """Return scale as an array, and in the compute type.

    Raises
    ------
    TypeError
        If it does not hold real numbers.
    """
    given = as_array(scale, "scale")
    if given.dtype not in FLOATS:
        if given.dtype.kind in "iu" and is_python(scale):
            given = given.astype(np.float64)
        if not is_real(given.dtype):
            raise TypeError(f"scale must be {_REAL}, not {given.dtype}")
        given = given.astype(native(given.dtype))
    if given.dtype == compute:
        return given, given
    with np.errstate(over="ignore", under="ignore"):
        return given, given.astype(compute)


def _all_positive_finite(scale: NDArray[Any]) -> bool:
    """Return whether all scales are positive and finite, in pieces that keep temporaries in the cache."""
    flat = scale.reshape(-1)  # a copy if strided; scales are
    return all(
        bool(np.min(piece) > 0 and np.max(piece) < np.inf)  # false for NaN too, which both propagate
        for piece in (flat[k : k + 65536] for k in range(0, flat.size, 65536))
    )


def as_zero_point(zero_point: Any, qtype: QType, shape: tuple[int, ...]) -> NDArray[np.integer[Any]]:
    """Return zero points in the storage dtype of the code format.

    Raises
    ------
    TypeError
        If they are not integers.
    ValueError
        If one is not a code of the format, or their shape is not that of the scale.
    """
    if qtype.element:
        return _as_float_zero(zero_point, qtype, shape)
    if not shape and type(zero_point) in (int, qtype.storage.type) and qtype.qmin <= zero_point <= qtype.qmax:
        return np.array(zero_point, qtype.storage)  # a sixth of the time of what follows
    given = as_array(zero_point, "zero_point")
    if given.dtype == qtype.storage and given.shape == shape and qtype.fills_storage:
        return given
    given = _in_storage(given)
    if given.dtype.kind not in "iu":
        raise TypeError(f"zero_point must be of an integer dtype, not {given.dtype}")
    _check_beside_scale(given, shape)
    if given.size and (given.dtype != qtype.storage or not qtype.fills_storage):
        least, most = int(given.min()), int(given.max())
        if least < qtype.qmin or most > qtype.qmax:
            raise ValueError(f"zero_point must be from {qtype.qmin} to {qtype.qmax} for {qtype}, not {least}..{most}")
    return given.astype(qtype.storage, copy=False)


def storage_of(integers: Any) -> np.dtype[Any] | None:
    """Return the dtype of a byte for an array of integers of fewer than 8 bits of ml_dtypes, None for anything else."""
    if not isinstance(integers, np.ndarray) or integers.dtype.kind != "V":
        return None
    row = QTYPES.get(integers.dtype.name)
    return None if row is None or row.element else row.storage


def _in_storage(integers: NDArray[Any]) -> NDArray[Any]:
    """Return integers of fewer than 8 bits of ml_dtypes in a byte each, others as they are."""
    storage = storage_of(integers)
    return integers if storage is None else integers.astype(storage)


def _check_beside_scale(zero_point: NDArray[Any], shape: tuple[int, ...]) -> None:
    if zero_point.shape != shape and not zero_point.size == math.prod(shape) == 1:
        raise ValueError(f"zero_point has shape {zero_point.shape}, but scale has shape {shape}")


def _as_float_zero(zero_point: Any, qtype: QType, shape: tuple[int, ...]) -> NDArray[Any]:
    given = _in_storage(as_array(zero_point, "zero_point"))
    if given.dtype.kind not in "iu" and given.dtype != qtype.storage:
        raise TypeError(f"zero_point must be {qtype.storage} or integers for {qtype}, not {given.dtype}")
    _check_beside_scale(given, shape)
    if given.dtype == qtype.storage and given.itemsize == 1 and not np.any(given.view(np.uint8)):
        return given
    if np.any(given.astype(np.float32) != 0):
        raise ValueError(f"zero_point must be 0 for {qtype}: float codes have no other")
    return np.zeros(given.shape, qtype.storage)


def as_own_scale(scale: Any, qtype: QType, block_size: int) -> NDArray[Any]:
    """Return the scales of a format that prescribes their dtype; a NaN among them marks a block.

    Raises
    ------
    TypeError
        If they are of another dtype.
    ValueError
        If the block size is another, or a scale is not positive.
    """
    wanted = FLOAT_FORMATS[qtype.scale_element].dtype
    if block_size != qtype.block_size:
        raise ValueError(f"block_size must be {qtype.block_size} for {qtype}, not {block_size}")
    given = as_array(scale, "scale")
    if given.dtype != wanted:
        raise TypeError(f"scale must be {wanted} for {qtype}, not {given.dtype}")
    if qtype.has_tensor_scale:
        codes = given.view(np.int8)  # a tenth of the time of float32: -1 and 127 are NaN, other negative ones below 0
        if np.any((codes <= 0) & (codes != -1)):
            raise ValueError(f"scale must be positive for {qtype}")
    return given


# within these a scale of a block times that of the array, and the reciprocal of both, is a normal number
TENSOR_SCALES = 2.0**-120, 2.0**119


def check_tensor_scale(tensor_scale: Any, qtype: QType) -> float:
    """Return the scale of the whole array as a number, if the format has one, and this one is usable.

    Raises
    ------
    TypeError
        If it is not float32.
    ValueError
        If the format has none, it is not one number, or out of the limits.
    """
    scale = as_array(tensor_scale, "tensor_scale")
    if not qtype.has_tensor_scale:
        raise ValueError(f"tensor_scale must be None for {qtype}")
    if native(scale.dtype) != np.float32:
        raise TypeError(f"tensor_scale must be float32, not {scale.dtype}")
    if scale.shape:
        raise ValueError(f"tensor_scale has shape {scale.shape}, but it is one number: shape ()")
    least, most = TENSOR_SCALES
    if not least <= scale <= most:
        raise ValueError(f"tensor_scale must be from {least} to {most}, not {scale}")
    return float(scale)


def as_float_zero_point(zero_point: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[np.floating[Any]]:
    """Return zero points of a convention that has floats for them, in a dtype.

    Raises
    ------
    TypeError
        If they are not real numbers.
    ValueError
        If one is not finite, or their shape is not that of the scale.
    """
    given = _in_storage(as_array(zero_point, "zero_point"))
    if given.dtype.kind not in "iu" and not is_real(given.dtype):
        raise TypeError(f"zero_point must be of a float or integer dtype, not {given.dtype}")
    _check_beside_scale(given, shape)
    with np.errstate(over="ignore", under="ignore"):
        ready = given.astype(dtype, copy=False)
    if not np.isfinite(ready).all():
        raise ValueError(f"zero_point must be finite in {dtype}, not {given[~np.isfinite(ready)].flat[0]}")
    return ready


def check_parameter_shape(name: str, given: tuple[int, ...], size: int, wanted: tuple[int, ...]) -> None:
    """Raise ValueError unless parameters have the shape wanted, or are one number.

    Raises
    ------
    ValueError
        If not, naming both shapes.
    """
    if given != wanted and size != 1:
        raise ValueError(f"{name} has shape {given}, but this axis and block_size need shape {wanted}")


def copy_if_overlapping(out: NDArray[Any], *arrays: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return arrays, copied where out shares memory with them.

    A copy has the strides of its original where that has no gaps and goes forward, so that a plan holds for it.
    """
    for array in arrays:  # a loop, since this is part of every call: a generator takes 0.6 us longer
        if not array.flags.owndata or array is out or not out.flags.owndata:
            return tuple(array.copy("K") if _share_memory(array, out) else array for array in arrays)
    return arrays  # each owns its memory: one without a base need not, as where compiled code made it of an address


def _share_memory(x: NDArray[Any], out: NDArray[Any]) -> bool:
    if not np.may_share_memory(x, out):
        return False
    try:
        return np.shares_memory(x, out, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
