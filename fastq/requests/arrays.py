"""Checks of what callers pass: each returns the argument made ready, or raises an error that names it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.granularity import Axis
from fastq.formats.qtypes import QTYPES, QType, as_qtype
from fastq.system.arguments import as_array, as_choice, as_dtype, equal, is_a, is_out, native

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
FLOATS: frozenset[np.dtype[Any]] = frozenset((_FLOAT32, _FLOAT64, np.dtype(np.float16)))
INTEGERS: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
)
CODES = frozenset(row.storage for row in QTYPES.values() if not row.element)  # those of float codes need ml_dtypes

REAL = "float16, bfloat16, float32 or float64"

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
    wanted = FLOAT_FORMATS["bfloat16"].dtype if is_name else as_dtype(dtype, name, REAL)
    if not is_real(wanted):
        raise TypeError(f"{name} must be {REAL}, not {wanted}")
    return native(wanted)


def as_input(x: Any, name: str = "x") -> NDArray[Any]:
    """Return x as an ndarray of a dtype that can be quantized.

    Raises
    ------
    TypeError
        If its dtype is none of float16, bfloat16, float32, float64 and the integers, or it is a masked array.
    """
    array = as_array(x, name)
    check_input(array.dtype, name)
    return array


def check_input(dtype: np.dtype[Any], name: str = "x") -> np.dtype[Any]:
    """Return the compute type of an input dtype: float64 for float64 and integers wider than 16 bits, else float32.

    Raises
    ------
    TypeError
        If it is none of float16, bfloat16, float32, float64 and the integers.
    """
    found = _COMPUTE.get(native(dtype))
    if found is None and not is_real(dtype):
        raise TypeError(f"{name} must be float16, bfloat16, float32, float64 or an integer array, not {dtype}")
    return found or _FLOAT32


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the compute type of a dtype of values."""
    return _COMPUTE.get(native(dtype), _FLOAT32)


def check_approximation(dtype: np.dtype[Any]) -> None:
    """Pass if an array of a dtype can be compared with another one.

    Raises
    ------
    TypeError
        If not.
    """
    if not is_real(dtype):
        raise TypeError(f"q must be a QuantizedArray, or a float array, not {dtype}")


def format_of_codes(dtype: np.dtype[Any]) -> QType:
    """Return the format of codes one an element, those of ml_dtypes among them.

    Raises
    ------
    TypeError
        If the dtype is that of no format.
    """
    dtype = native(dtype)
    if dtype not in CODES and dtype.name not in QTYPES:
        raise TypeError(f"codes must be int8, uint8, int16, uint16 or of a dtype of ml_dtypes, not {dtype}")
    return as_qtype(dtype)


def dtype_of_values(dtype: Any, out: Any, default: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of decoded values: that asked for, else that of out, else the default.

    Raises
    ------
    TypeError
        If it is not that of values.
    """
    if dtype is not None:
        return as_real(dtype, "dtype")
    return as_real(out.dtype, "out") if is_out(out) else default


def dtype_of_fakes(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of fake quantized values: that of the input, or its compute type."""
    return native(dtype) if is_real(dtype) else compute_dtype(dtype)


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


# --- options of operations that take no parameters --------------------------------------------------------------------


class NoOptions(NamedTuple):
    """Options of `fastq.compare` with an array."""


class MinMaxOptions(NamedTuple):
    """Options of `fastq.minmax`."""

    axis: Axis = None
    block_size: int = 0
    nan: str = "raise"


class HistogramOptions(NamedTuple):
    """Options of the histograms of a calibrator."""

    axis: Axis
    bins: int
    nan: str


class BlockOptions(NamedTuple):
    """Options of `fastq.gguf.quantize` and `fastq.gguf.dequantize`."""

    qtype: object
