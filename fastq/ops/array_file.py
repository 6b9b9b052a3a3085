"""Write quantized arrays and parameters to .safetensors files, and read them back exactly.

The tensors are `codes`, `scale`, `zero_point` and `tensor_scale` as they are in memory, so that any reader of
safetensors finds them. Their meaning is JSON under the key "fastq" of the file's metadata, with a "format" for this
kind of file. Files of many tensors, which `fastq quantize` writes, have records under the same key, without a "format"
(fastq/tools/files/records.py).
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType, check_stored_codes
from fastq.ops import file_parts
from fastq.ops.file_parts import convention_entry, convention_of, qtype_entry, qtype_of, read_array, with_tuples
from fastq.requests.parameters import check_qparams, rules_of
from fastq.results import QParams, QuantizedArray
from fastq.system import atomic
from fastq.system.arguments import MOST_AXES, as_shape, native, shown, without_duplicates
from fastq.system.arrays_of_callers import as_array, is_lazy
from fastq.system.dtypes import ML_FLOATS, NUMPY, Array, safetensors_header

KEY = "fastq"
VERSION = 1
_LONGEST_HEADER = 1 << 20
_OF_MANY = (".npy", ".npz", ".safetensors", ".gguf", ".nc", ".nc4", ".cdf", ".h5")


# --- write ------------------------------------------------------------------------------------------------------------


def save(path: Any, content: QuantizedArray | QParams) -> None:
    """Write an array or parameters to a file that a caller names."""
    write(file_parts.as_path_to_write(path, ".safetensors"), content)


def load(path: Any, result_class: type[QuantizedArray] | type[QParams]) -> Any:
    """Read an array or parameters from a file that a caller names."""
    return read(file_parts.as_path(path), result_class)


def write(path: Path, content: QuantizedArray | QParams) -> None:
    """Write a file that appears whole or not at all."""
    params = content.qparams if isinstance(content, QuantizedArray) else content
    meaning = {"format": _kind(type(content)), "version": VERSION, **_meaning(params)}
    arrays = {"scale": params.scale, "tensor_scale": params.tensor_scale, "zero_point": params.zero_point}
    if isinstance(content, QuantizedArray):
        arrays["codes"] = content.codes
        meaning["shape"] = content.shape
    if any(map(is_lazy, arrays.values())):
        raise TypeError(f"a {type(content).__name__} of dask is not loaded implicitly: save its compute()")
    if isinstance(content, QuantizedArray):
        _check(content.qparams, content.codes, content.shape)
    else:
        rules_of(params, params.compute_dtype).ready(params.scale, params.zero_point, params.tensor_scale)
    stored = {name: _as_tensor(as_array(array, name)) for name, array in arrays.items() if array is not None}
    stored = dict(sorted(stored.items(), key=lambda item: -item[1][1].itemsize))  # so that all are aligned
    with atomic.replacing(path) as file:
        tensors = {name: (dtype, array.shape, array.nbytes) for name, (dtype, array) in stored.items()}
        file.write(safetensors_header(tensors, {KEY: json.dumps(meaning)}))
        for _, array in stored.values():
            file.write(array.data)


def _kind(result_class: type) -> str:
    """Return the "format" of files with an object of a class."""
    return f"fastq.{result_class.__name__}"


def _meaning(params: QParams) -> dict[str, Any]:
    """Return all of the parameters but their numbers, for JSON."""
    qtype = params.dtype
    return {
        **qtype_entry(qtype),
        "axis": params.axis,
        "block_size": params.block_size,
        "symmetric": params.symmetric,
        "convention": convention_entry(params.convention),
        "computed": None if params.computed is None else params.computed.name,
    }


def _as_tensor(array: Array) -> tuple[str, Array]:
    """Return what safetensors calls the dtype of an array, and its elements in C order and little endian.

    Floats of ml_dtypes are written as their bits, under their name there, or as "U8" if it has none for them. Integers
    of fewer than 8 bits, such as int4 zero points of ml_dtypes, have no name there, and become int8 or uint8.
    """
    kind_of_integer = array.dtype.name.rstrip("0123456789")
    # "int4" without digits is "int", and so is NumPy's own "int16", but those of ml_dtypes have kind "V"
    if array.dtype.kind == "V" and kind_of_integer in ("int", "uint"):
        array = array.astype(f"{kind_of_integer}8")
    for name, dtype in NUMPY.items():
        if native(array.dtype) == native(np.dtype(dtype)):
            return name, np.array(array, dtype, order="C", copy=None)
    name = next((name for name, known in ML_FLOATS.items() if array.dtype.name == known), "U8")
    return name, np.array(array, order="C", copy=None).view(f"<u{array.dtype.itemsize}")


# --- read -------------------------------------------------------------------------------------------------------------


def read(path: Path, result_class: type[QuantizedArray] | type[QParams]) -> Any:
    """Read a file, and check each of its fields against the others; raise ValueError with one line otherwise."""
    with file_parts.open_to_read(path, result_class.__name__) as file:
        return _read(file, result_class)


def holds_many(path: Path) -> bool:
    """Return whether a file has tensors by name instead of one array; an unreadable header is judged by the suffix."""
    try:
        with path.open("rb") as file:
            meaning = json.loads(_read_header(file)["__metadata__"][KEY])
        return "tensors" in meaning and "format" not in meaning
    except Exception:  # damaged, written by another program, or missing: the reader says so
        return path.suffix in _OF_MANY


def _read(file: BinaryIO, result_class: type[QuantizedArray] | type[QParams]) -> Any:
    """Read what `meaning`, the metadata under fastq's key, says that the tensors are; each of its keys is used."""
    header = _read_header(file)
    meaning = _pop_meaning(header, result_class)
    shape = as_shape(with_tuples(meaning.pop("shape"))) if result_class is QuantizedArray else None
    names = {"scale", "zero_point"} | {"tensor_scale"} & header.keys() | ({"codes"} if shape is not None else set())
    if header.keys() != names:
        raise ValueError(f"it has tensors {sorted(header)} instead of {sorted(names)}")
    qtype = qtype_of(meaning.pop("dtype"), meaning.pop("bits"))
    arrays = {name: _as_elements(*stored) for name, stored in _tensors(file, header).items()}
    params = _params(meaning, qtype, arrays)
    if shape is None:  # numbers that no array checks
        rules_of(params, params.compute_dtype).ready(params.scale, params.zero_point, params.tensor_scale)
        return params
    _check(params, arrays["codes"], shape)
    return QuantizedArray(arrays["codes"], params, shape)


def _pop_meaning(header: dict[str, Any], result_class: type[QuantizedArray] | type[QParams]) -> dict[str, Any]:
    """Take the metadata out of a header; return what they say beside format and version, which must be these."""
    metadata = header.pop("__metadata__", {})
    if KEY not in metadata:
        raise ValueError("it was not saved by fastq")
    meaning: dict[str, Any] = json.loads(metadata[KEY], object_pairs_hook=without_duplicates)
    if "tensors" in meaning and "format" not in meaning:
        raise ValueError("fastq quantize wrote it, and fastq.load reads it")
    if (meaning.pop("format"), repr(meaning.pop("version"))) != (_kind(result_class), repr(VERSION)):
        raise ValueError(f"its {KEY!r} metadata does not say {_kind(result_class)}, version {VERSION}")
    return meaning


def _read_header(file: BinaryIO) -> dict[str, Any]:
    """Read the JSON object that a file of safetensors begins with, after its length in 8 bytes."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(_LONGEST_HEADER, os.fstat(file.fileno()).st_size - 8):
        raise ValueError("it has no safetensors header")
    header = json.loads(file.read(length), object_pairs_hook=without_duplicates)
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    return header


def _tensors(file: BinaryIO, header: dict[str, Any]) -> dict[str, tuple[str, Array]]:
    """Return the tensors, which must fill the rest of the file in the order of the header."""
    arrays: dict[str, tuple[str, Array]] = {}
    start_of_data = file.tell()
    start = 0
    size = os.fstat(file.fileno()).st_size - start_of_data
    for name, entry in header.items():
        dtype = entry["dtype"]
        shape = as_shape(with_tuples(entry["shape"]))
        elements = np.dtype(NUMPY[dtype] if dtype in NUMPY else f"<u{_width(dtype)}")
        stop = start + math.prod(shape) * elements.itemsize
        if len(shape) > MOST_AXES or entry["data_offsets"] != [start, stop]:
            raise ValueError(f"the position of tensor {name} does not follow from its shape and the tensors before it")
        if stop > size:
            raise ValueError(
                f"it was cut off: tensor {name} ends at byte {start_of_data + stop}, the file at {start_of_data + size}"
            )
        arrays[name] = (dtype, read_array(file, shape, elements))
        start = stop
    if start != size:
        raise ValueError(f"{size - start} bytes are left over")
    return arrays


def _width(dtype: str) -> int:
    """Return the bytes of a float of safetensors that NumPy lacks; raise ValueError for an unknown dtype."""
    if dtype not in ML_FLOATS:
        raise ValueError(f"a tensor has dtype {shown(dtype)}, which is not one of {', '.join((*NUMPY, *ML_FLOATS))}")
    return 2 if dtype == "BF16" else 1


def _as_elements(dtype: str, array: Array) -> Array:
    """Return a tensor in its dtype, floats of ml_dtypes from the bits that were read."""
    return array.view(FLOAT_FORMATS[ML_FLOATS[dtype]].dtype) if dtype in ML_FLOATS else array


def _params(meaning: dict[str, Any], qtype: QType, arrays: dict[str, Array]) -> QParams:
    """Return the parameters of a file; `meaning` may have no keys beside those that are used."""
    convention = convention_of(meaning.pop("convention"))
    computed = meaning.pop("computed")
    axis, block_size, symmetric = (meaning.pop(name) for name in ("axis", "block_size", "symmetric"))
    if meaning:
        raise ValueError(f"its {KEY!r} metadata has unknown keys: {', '.join(meaning)}")
    zero_point = arrays["zero_point"]
    # safetensors has no name for such floats, so they were written as bytes: see `_as_tensor`
    if qtype.element and qtype.packed and not zero_point.any():
        zero_point = np.zeros(zero_point.shape, qtype.storage)
    return QParams(
        arrays["scale"],
        zero_point,
        qtype,
        axis=with_tuples(axis),
        block_size=block_size,
        symmetric=symmetric,
        convention=convention,
        tensor_scale=arrays.get("tensor_scale"),
        computed=None if computed is None else np.dtype(computed),
    )


def _check(params: QParams, codes: Array, shape: tuple[int, ...]) -> None:
    """Raise TypeError or ValueError unless codes and parameters belong to an array of the shape."""
    check_qparams(params, shape, params.compute_dtype)
    check_stored_codes(codes, params.dtype, shape)
    qtype = params.dtype
    if qtype.container and codes.size and not qtype.qmin <= codes.min() <= codes.max() <= qtype.qmax:
        raise ValueError(f"codes must be from {qtype.qmin} to {qtype.qmax} for {qtype}")
