"""How a quantized tensor is stored: tensors under the names of compressed-tensors, and the record that reads them back.

A tensor `m.weight` becomes its codes `m.weight`, or for formats of fewer than 8 bits `m.weight_packed`: integers in
words of int32, beside `m.weight_shape`, floats in bytes. Then `m.weight_scale`, and unless the scheme is symmetric
`m.weight_zero_point`. The scale has the dtype of the tensor, and shape (1,) for the whole tensor, (C, 1) for the rows
of a matrix, (rows, groups) for groups along them; scales of float8_e8m0fnu are stored as bytes, the exponents of powers
of two, plus 127. Where scales are in units of one for the whole tensor (nvfp4), `m.weight_global_scale` is its
reciprocal, for other readers.

The records are JSON under the key "fastq" of the file's metadata. A file of `QuantizedArray.save` or `QParams.save`
(fastq/operations/array_file.py) has what its one array means under the same key, and names its "format" there.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.conventions import as_convention
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType, as_qtype
from fastq.io.containers import TensorSpec, numpy_dtype, safetensors_dtype, spec_of
from fastq.io.words import columns_from_words, columns_to_words, from_words, to_words, words_for
from fastq.operations.file_parts import SAVED
from fastq.results import Axis, QParams, QuantizedArray
from fastq.system.arguments import without_duplicates

Array = NDArray[Any]

KEY = "fastq"
VERSION = 1
NONSENSE = (TypeError, KeyError, IndexError, AttributeError, OverflowError, ZeroDivisionError)  # what lies end in
FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Record:
    """What reads a quantized tensor back, beside the stored tensors.

    Attributes
    ----------
    dtype : str
        Code format.
    axis, block_size, symmetric, convention
        As in `fastq.QParams`.
    original_dtype : str
        What the tensor was, as safetensors spells it.
    shape : tuple of int
        Of the tensor.
    tensor_scale : float, optional
        What every scale is multiplied with, where the format has such a number. Its reciprocal, which is stored too,
        does not give it back exactly.
    """

    dtype: str
    axis: Axis
    block_size: int
    symmetric: bool
    convention: str
    original_dtype: str
    shape: tuple[int, ...]
    tensor_scale: float | None = None

    @property
    def qtype(self) -> QType:
        """The code format."""
        return as_qtype(self.dtype)

    @property
    def param_shape(self) -> tuple[int, ...]:
        """Shape of the scale in a QuantizedArray."""
        return self._blocks() if self.block_size else tuple(self.shape[a] for a in self._kept())

    @property
    def stored_param_shape(self) -> tuple[int, ...]:
        """Shape of the scale in a file: as many dimensions as the tensor, or (1,) for the whole of it."""
        if self.axis is None:
            return (1,)
        return self._blocks() if self.block_size else tuple(n if a in self._kept() else 1 for a, n in self._axes())

    def _blocks(self) -> tuple[int, ...]:
        return tuple(-(-n // self.block_size) if a in self._kept() else n for a, n in self._axes())

    def _kept(self) -> list[int]:
        axes = () if self.axis is None else self.axis if isinstance(self.axis, tuple) else (self.axis,)
        return sorted(range(len(self.shape))[a] for a in axes)

    def _axes(self) -> enumerate[int]:
        return enumerate(self.shape)


# The records of a file, as a string in its metadata


def to_metadata(records: Mapping[str, Record]) -> str:
    """Return the records as JSON."""
    tensors = {name: asdict(record) for name, record in records.items()}
    return json.dumps({"version": VERSION, "tensors": tensors}, separators=(",", ":"))


def from_metadata(metadata: Mapping[str, str]) -> dict[str, Record]:
    """Return the records in a file's metadata.

    Raises
    ------
    ValueError
        If there are none, or they cannot be read.
    """
    if KEY not in metadata:
        raise ValueError(f"holds nothing that fastq quantized (no {KEY!r} in its metadata)")
    try:
        content = json.loads(metadata[KEY], object_pairs_hook=without_duplicates)
        saved = SAVED.get(content.get("format"))
        if saved is None:
            if content["version"] != VERSION:
                raise ValueError(f"version {content['version']} is not {VERSION}, the one known here")
            return {name: _record(entry) for name, entry in content["tensors"].items()}
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError(f"its {KEY!r} metadata cannot be read: {error}") from error
    raise ValueError(f"{saved[0]} wrote it, and {saved[1]} reads it")


def are_of_array(metadata: Mapping[str, str]) -> bool:
    """Return whether these are the metadata of a file of `QuantizedArray.save`."""
    try:
        return bool(json.loads(metadata[KEY])["format"] == "fastq.QuantizedArray")
    except (KeyError, IndexError, TypeError, ValueError, RecursionError):
        return False


def _record(entry: dict[str, Any]) -> Record:
    axis, shape = entry["axis"], tuple(entry["shape"])
    record = Record(**{**entry, "axis": tuple(axis) if isinstance(axis, list) else axis, "shape": shape})
    axes = record.axis if isinstance(record.axis, tuple) else () if record.axis is None else (record.axis,)
    if any(type(number) is not int for number in (*shape, *axes, record.block_size)):
        raise ValueError(
            f"shape {list(shape)}, axis {axis!r} and block_size {record.block_size!r} are not all integers"
        )
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {list(shape)} has a length below 0")
    as_convention(record.convention)
    if record.original_dtype not in FLOATS:
        raise ValueError(f"original_dtype {record.original_dtype!r} is not one of {', '.join(FLOATS)}")
    given, largest = record.tensor_scale, float(np.finfo(np.float32).max)
    fits = isinstance(given, float) and 0 < given <= largest if record.qtype.has_tensor_scale else given is None
    if not fits:
        raise ValueError(f"tensor_scale {given} does not fit {record.qtype}")
    return record


# What is stored for one tensor


@contextlib.contextmanager
def _told_of(name: str) -> Iterator[None]:
    """Turn errors that a record makes because its fields do not fit each other into one that tells of it."""
    try:
        yield
    except NONSENSE as error:
        raise ValueError(f"its {KEY!r} metadata for {name!r} makes no sense: {error}") from error


def stored_specs(name: str, record: Record) -> list[TensorSpec]:
    """Return the tensors that are stored for the tensor `name`.

    Raises
    ------
    ValueError
        If no tensor has such a record.
    """
    with _told_of(name):
        return _stored_specs(name, record)


def _stored_specs(name: str, record: Record) -> list[TensorSpec]:
    specs = [*_codes_specs(name, record), spec_of(f"{name}_scale", _scale_dtype(record), record.stored_param_shape)]
    if record.tensor_scale is not None:
        specs.append(spec_of(f"{name}_global_scale", "F32", (1,)))
    if record.symmetric:
        return specs
    dtype, shape = _plain_dtype(record.qtype), record.stored_param_shape
    if _packs_zero_point(record):
        dtype, shape = "I32", (*shape[:-2], words_for(shape[-2], record.qtype), shape[-1])
    return [*specs, spec_of(f"{name}_zero_point", dtype, shape)]


def encoded(name: str, q: QuantizedArray, record: Record) -> dict[str, Array]:
    """Return the contents of those tensors."""
    held = numpy_dtype(_scale_dtype(record))
    scale = q.scale.view(held) if record.qtype.scale_element else q.scale.astype(held)
    arrays: dict[str, Array] = {f"{name}_scale": scale.reshape(record.stored_param_shape)}
    if record.tensor_scale is not None:
        arrays[f"{name}_global_scale"] = np.array([1 / record.tensor_scale], np.float32)
    if _in_words(record.qtype):
        arrays[_codes_name(name, record)] = to_words(q.codes, _row_length(record), record.qtype)
        arrays[f"{name}_shape"] = np.array(record.shape, "<i8")
    else:
        arrays[_codes_name(name, record)] = q.codes.view(numpy_dtype(_codes_dtype(record.qtype)))
    if not record.symmetric:
        arrays[f"{name}_zero_point"] = _encoded_zero_point(q.zero_point, record)
    return arrays


def decoded(name: str, record: Record, load: Callable[[str], Array]) -> QuantizedArray:
    """Return the quantized array whose stored tensors `load` returns by name; ValueError if it could not be one."""
    with _told_of(name):
        return _decoded(name, record, load)


def _decoded(name: str, record: Record, load: Callable[[str], Array]) -> QuantizedArray:
    qtype, tensor_scale = record.qtype, None
    codes = load(_codes_name(name, record))
    if _in_words(qtype):
        codes = from_words(codes, _row_length(record), qtype)
    elif not qtype.packed:
        codes = codes.view(qtype.storage)
    scale = load(f"{name}_scale").reshape(record.param_shape)
    if qtype.scale_element:
        scale = scale.view(FLOAT_FORMATS[qtype.scale_element].dtype)
    elif scale.dtype.itemsize == 2:
        scale = scale.astype(np.float32)
    if record.tensor_scale is not None:
        tensor_scale = np.array(record.tensor_scale, np.float32)
    zero_point = _middle(record) if record.symmetric else _decoded_zero_point(load(f"{name}_zero_point"), record)
    _check(scale, zero_point, qtype)
    granularity = record.axis, record.block_size, record.symmetric
    qparams = QParams(scale, zero_point, qtype, *granularity, record.convention, tensor_scale)
    return QuantizedArray(codes, qparams, record.shape)


def _check(scale: Array, zero_point: Array, qtype: QType) -> None:
    scale = scale.astype(np.float64)
    if qtype.codebook and not np.isfinite(scale).all():
        raise ValueError("its scale is not finite")
    if not (qtype.codebook or ((scale > 0) & (scale < np.inf)).all()):
        raise ValueError("its scale is not positive and finite")
    if not qtype.element and (zero_point.min() < qtype.qmin or zero_point.max() > qtype.qmax):
        raise ValueError(f"its zero point is not within {qtype.qmin} .. {qtype.qmax}")


def _middle(record: Record) -> Array:
    return np.full(record.param_shape, record.qtype.middle, record.qtype.storage)


def _codes_specs(name: str, record: Record) -> list[TensorSpec]:
    qtype, shape = record.qtype, record.shape
    if qtype.packed:
        length = _row_length(record)
        row = words_for(length, qtype) if _in_words(qtype) else -(-length * qtype.bits // 8)
        shape = (*shape[:-1], row)
    codes = spec_of(_codes_name(name, record), _codes_dtype(qtype), shape)
    return [codes, spec_of(f"{name}_shape", "I64", (len(record.shape),))] if _in_words(qtype) else [codes]


def _codes_name(name: str, record: Record) -> str:
    return f"{name}_packed" if record.qtype.packed else name


def _in_words(qtype: QType) -> bool:
    """Whether rows of codes are stored in words of int32."""
    return qtype.packed and not qtype.element


def _codes_dtype(qtype: QType) -> str:
    if _in_words(qtype):
        return "I32"
    return "U8" if qtype.packed else _plain_dtype(qtype)


def _plain_dtype(qtype: QType) -> str:
    return safetensors_dtype(qtype.storage) or "U8"


def _scale_dtype(record: Record) -> str:
    if not record.qtype.scale_element:
        return record.original_dtype
    if record.qtype.scale_element == "float8_e8m0fnu":
        return "U8"  # as compressed-tensors stores them, though safetensors has a name for them
    return safetensors_dtype(FLOAT_FORMATS[record.qtype.scale_element].dtype) or "U8"


def _row_length(record: Record) -> int:
    return record.shape[-1] if record.shape else 1


# Zero points


def _packs_zero_point(record: Record) -> bool:
    """Whether zero points are packed too, along the rows: so it is done for channels and groups of a matrix."""
    return record.qtype.packed and len(record.stored_param_shape) > 1


def _encoded_zero_point(zero_point: Array, record: Record) -> Array:
    stored = zero_point.reshape(record.stored_param_shape)
    return columns_to_words(stored, record.qtype) if _packs_zero_point(record) else stored


def _decoded_zero_point(stored: Array, record: Record) -> Array:
    if _packs_zero_point(record):
        stored = columns_from_words(stored, record.stored_param_shape, record.qtype)
    return stored.reshape(record.param_shape)
