"""Dtypes and headers of safetensors, and the floats of whole bytes that NumPy lacks and other libraries have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.system import imports

Array = NDArray[Any]  # of any dtype

INTEGERS: tuple[np.dtype[Any], ...] = tuple(
    np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
)
# how errors name the dtypes of numbers: those of ml_dtypes are integers and floats as well
INTEGER_DTYPES = "int8 to int64 or uint8 to uint64"
REAL_DTYPES = f"float16, bfloat16, float32, float64, {INTEGER_DTYPES}"

_SIZES = {"f": (2, 4, 8), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8)}
NUMPY = {f"{kind.upper()}{8 * size}": f"<{kind}{size}" for kind, sizes in _SIZES.items() for size in sizes}
DTYPES = {name: code for name, code in NUMPY.items() if name not in ("U32", "U64")}  # which files of weights have
READ = NUMPY | {"BOOL": "?", "C64": "<c8"}  # which files can have
# Names in safetensors, and in ml_dtypes and the libraries of the array API
ML_FLOATS = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
# names in safetensors of floats of less than a byte, whose shapes count elements, and their formats
PACKED_FLOATS = {"F4": "float4_e2m1fn", "F6_E2M3": "float6_e2m3fn", "F6_E3M2": "float6_e3m2fn"}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the little-endian dtype of a name of safetensors; one of ml_dtypes if NumPy lacks it."""
    return np.dtype(getattr(imports.ml_dtypes(), ML_FLOATS[name]) if name in ML_FLOATS else READ[name])


def safetensors_dtype(dtype: np.dtype[Any]) -> str | None:
    """Return the safetensors name of a NumPy dtype of any byte order; None without a known name."""
    for name, float_format in ML_FLOATS.items():
        if dtype.name == float_format:
            return name
    return next((name for name, code in DTYPES.items() if np.dtype(code) == dtype.newbyteorder("<")), None)


def safetensors_header(tensors: Mapping[str, tuple[str, tuple[int, ...], int]], metadata: Mapping[str, str]) -> bytes:
    """Return the start of a file with consecutive tensors, each given by dtype, shape and bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, (dtype, shape, nbytes) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, start + nbytes)}
        start += nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the first tensor begins at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text


def record(*fields: str | tuple[str, int]) -> np.dtype[Any]:
    """Return the dtype of a record of words, int64, and of several words where a field is a name and a number."""
    typed_fields = ((field, np.int64) if isinstance(field, str) else (field[0], np.int64, field[1]) for field in fields)
    return np.dtype([*typed_fields])
