"""Check what callers pass, and turn it into arrays and formats; an error names the argument."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.formats.qtypes import QTYPES, QType, as_qtype
from fastq.formats.range_methods import as_range_method
from fastq.system.arguments import as_array, as_bool, as_choice, dtype_of, equal, native

Array = NDArray[Any]
BitOrder = Literal["little", "big"]

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")


def as_input(x: ArrayLike, name: str) -> Array:
    """Return `x` as an array of one of the input dtypes, in native byte order."""
    x = as_array(x, name)
    if x.dtype.kind not in "iu" and x.dtype.name not in FLOATS:
        raise TypeError(f"{name} must be float16, bfloat16, float32, float64 or integers, not {x.dtype}")
    return x.astype(native(x.dtype), copy=False)


@np.errstate(invalid="ignore")  # signalling NaN
def widened(x: Array) -> Array:
    """Return 16-bit floats as float32, which holds them all; other dtypes as they are."""
    return x.astype(np.float32) if x.dtype.name in HALVES else x


def as_integers(a: ArrayLike, name: str) -> Array:
    """Return `a` as an array of integers, those of ml_dtypes among them."""
    a = as_array(a, name)
    if not holds_integers(a):
        raise TypeError(f"{name} must be integers, not {a.dtype}")
    # The 4-bit and 2-bit dtypes of ml_dtypes refuse to be compared with Python integers beyond int8.
    return a.astype(np.int16) if a.dtype.kind == "V" else a


def holds_integers(a: Array) -> bool:
    """Return whether the dtype of an array is one of integers, those of ml_dtypes among them."""
    return a.dtype.kind in "iu" or (a.dtype.name in QTYPES and not QTYPES[a.dtype.name].element)


def as_numbers(a: ArrayLike, name: str) -> Array:
    """Return `a` as an array of integers or floats."""
    a = as_array(a, name)
    if not (holds_integers(a) or a.dtype.name in FLOATS):
        raise TypeError(f"{name} must be floats or integers, not {a.dtype}")
    return a


def as_floats(a: ArrayLike, name: str) -> Array:
    """Return `a` as an array of floats."""
    a = as_array(a, name)
    if a.dtype.name not in FLOATS:
        raise TypeError(f"{name} must be floats, not {a.dtype}")
    return a


def as_float_codes(a: ArrayLike, qtype: QType) -> Array:
    """Return `a` as an array of float codes of a format."""
    a = as_array(a, "codes")
    if a.dtype != qtype.storage:
        raise TypeError(f"codes must be {qtype.storage} for dtype {qtype}, not {a.dtype}")
    return a


def compute_type(dtype: np.dtype[Any]) -> type[np.floating[Any]]:
    """Return the compute type F of an input dtype."""
    wide = dtype.itemsize > 2 if dtype.kind in "iu" else dtype.name == "float64"
    return np.float64 if wide else np.float32


def check_nan(nan: str, qtype: QType | None = None) -> str:
    """Return `nan` if it is a policy, and one that the format allows."""
    nan = as_choice(nan, "nan", ("raise", "zero") if qtype is None else ("raise", "zero", "keep"))
    if nan == "keep" and qtype is not None and not (qtype.block_size or _nan_code(qtype) is not None):
        raise ValueError(f"nan='keep' needs a format with a NaN, and {qtype} has none")
    return nan


def _nan_code(qtype: QType) -> int | None:
    return qtype.float_format.nan if qtype.float_format else None


def nan_as_zero(x: Array, nan: str) -> Array:
    """Return `x` with 0 in place of NaN, which the policy "raise" refuses."""
    if nan == "raise":
        check_no_nan(x, "x has {} NaN; pass nan='zero' to take them as 0")
    return np.where(np.isnan(x), x.dtype.type(0), x)


def ready_to_encode(x: Array, nan: str, qtype: QType) -> Array:
    """Return `x` as its codes are taken from; a block with a NaN to keep has a scale that makes it zeros."""
    number = nan_as_zero(x, check_nan(nan, qtype))
    return x if nan == "keep" and not qtype.block_size else number


def check_no_nan(x: Array, message: str) -> None:
    """Raise ValueError if `x` has NaN; `message` is formatted with their number."""
    count = np.count_nonzero(np.isnan(x))
    if count:
        raise ValueError(message.format(count))


def check_symmetric(qtype: QType, symmetric: bool) -> None:
    """Raise ValueError if a format has too few codes for a symmetric scheme."""
    if symmetric and qtype.bits == 1:
        raise ValueError(f"symmetric codes need at least 2 bits, and {qtype} has 1")


def check_saturates(saturate: object, method: object) -> None:
    """Raise ValueError if values beyond a range that is searched for are not to saturate."""
    if not as_bool(saturate, "saturate") and as_range_method(method) is not None:
        raise ValueError("saturate must be True where range is searched for: what lies beyond it would be infinite")


DEFAULTS: dict[str, object] = {"axis": None, "block_size": 0, "symmetric": False, "convention": "onnx", "bits": None}
DEFAULTS |= {"range": "minmax"}


def check_defaults(**options: object) -> None:
    """Raise TypeError for an option that is given beside qparams, which has its own."""
    for name, value in options.items():
        if not equal(value, DEFAULTS[name]):
            raise TypeError(f"{name} can't be given together with qparams, which has its own")


def code_format(dtype: object, bits: int | None) -> QType:
    """Return the code format of `dtype`, with `bits` codes of so many bits in its storage."""
    qtype = as_qtype(dtype)
    return qtype if bits is None else qtype.with_bits(bits)


def linear_format(dtype: object, zero_point: ArrayLike | None, out: Array | None) -> QType:
    """Return the format to quantize to: `dtype`, else that of the zero point, else that of `out`, else uint8."""
    if dtype is not None:
        return as_qtype(dtype)
    given = dtype_of(zero_point, "zero_point"), dtype_of(out, "out")
    return next((QTYPES[d.name] for d in given if d is not None and d.name in QTYPES), QTYPES["uint8"])


def packed_format(dtype: object, bitorder: BitOrder) -> QType:
    """Return the code format of packed codes, if the bit order is one that it has."""
    qtype = as_qtype(dtype)
    if not qtype.packed:
        raise TypeError(f"dtype must be a format of fewer than 8 bits, not {qtype}")
    if as_choice(bitorder, "bitorder", ("little", "big")) == "big" and qtype.bits > 1:
        raise ValueError(f"bitorder='big' is for formats of 1 bit, not {qtype}")
    return qtype


def check_shape(a: Array, name: str, shape: tuple[int, ...]) -> None:
    """Raise ValueError naming both shapes unless `a` has the shape that is needed."""
    if a.shape != shape:
        raise ValueError(f"{name} has shape {a.shape}, but {shape} is needed")


def within(codes: Array, qtype: QType) -> NDArray[np.bool_]:
    """Return which integers are codes of the format."""
    return (codes >= qtype.qmin) & (codes <= qtype.qmax)
