"""Schemes, by which tensors of a file are quantized, and records, by which stored tensors are read back.

Stored tensors have the layout of compressed-tensors (fastq/tools/layouts/compressed_tensors.py), with scales in the
dtype of the tensor. Records are JSON under the key "fastq" of the file's metadata; fastq/ops/array_file.py has another
kind of file under that key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fastq.formats.conventions.table import as_convention, check_format
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType, as_qtype
from fastq.ops.file_parts import SAVED
from fastq.results import Axis, QParams, QuantizedArray
from fastq.system.arguments import without_duplicates
from fastq.system.dtypes import Array, numpy_dtype, safetensors_dtype
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.tensor_specs import TensorSpec, spec_of
from fastq.tools.layouts.compressed_tensors import StoredForm

KEY = "fastq"
VERSION = 1
# errors that fields raise which contradict each other
CONTRADICTIONS = (TypeError, KeyError, IndexError, AttributeError, OverflowError, ZeroDivisionError)
FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Record:
    """The data that is needed to read a quantized tensor back, in addition to the stored tensors."""

    dtype: str
    axis: Axis
    block_size: int
    symmetric: bool
    convention: str
    original_dtype: str  # dtype of the original tensor, by its name in safetensors
    shape: tuple[int, ...]
    # the number that multiplies every scale, if the format has one. Its reciprocal, which is stored too, does not
    # determine it exactly
    tensor_scale: float | None = None

    @property
    def qtype(self) -> QType:
        """The code format."""
        return as_qtype(self.dtype)

    @property
    def stored_form(self) -> StoredForm:
        """The form in which the tensor is stored."""
        return StoredForm(
            qtype=self.qtype,
            shape=self.shape,
            axis=self.axis,
            block_size=self.block_size,
            symmetric=self.symmetric,
            scale_dtype=self._stored_scale_dtype,
            packing=self._packing,
            has_global_scale=self.tensor_scale is not None,
        )

    @property
    def _stored_scale_dtype(self) -> str:
        """The dtype of stored scales, by its name in safetensors: that of the tensor, unless the format has its own."""
        element = self.qtype.scale_element
        if not element:
            return self.original_dtype
        if element == "float8_e8m0fnu":  # safetensors has a name for it, but compressed-tensors stores bytes
            return "U8"
        return safetensors_dtype(FLOAT_FORMATS[element].dtype) or "U8"

    @property
    def _packing(self) -> str:
        """The packing of codes, as in `StoredForm`: compressed-tensors packs floats in bytes, integers in words.

        `element` is empty for integers.
        """
        if not self.qtype.packed:
            return ""
        return "bytes" if self.qtype.element else "words"


# The records of a file, as a string in its metadata


def to_metadata(records: Mapping[str, Record]) -> str:
    """Return the records as JSON."""
    tensors = {name: asdict(record) for name, record in records.items()}
    return json.dumps({"version": VERSION, "tensors": tensors}, separators=(",", ":"))


def from_metadata(metadata: Mapping[str, str]) -> dict[str, Record]:
    """Return the records in a file's metadata; raise ValueError if they are missing or cannot be read."""
    if KEY not in metadata:
        raise ValueError(f"holds nothing that fastq quantized (no {KEY!r} in its metadata)")
    unreadable = KeyError, IndexError, TypeError, AttributeError, ValueError, RecursionError
    with naming(lambda error: f"its {KEY!r} metadata cannot be read: {error}", unreadable):
        content = json.loads(metadata[KEY], object_pairs_hook=without_duplicates)
        saved = SAVED.get(content.get("format"))
        if saved is None:
            if content["version"] != VERSION:
                raise ValueError(f"version {content['version']} is not {VERSION}, the one that fastq reads")
            return {name: _record_of(entry) for name, entry in content["tensors"].items()}
    writer, reader = saved
    raise ValueError(f"{writer} wrote it, and {reader} reads it")


def is_saved_array(metadata: Mapping[str, str]) -> bool:
    """Return whether these are the metadata of a file of `QuantizedArray.save`, which other functions read."""
    try:
        return bool(json.loads(metadata[KEY])["format"] == "fastq.QuantizedArray")
    except (KeyError, IndexError, TypeError, ValueError, RecursionError):
        return False


def _record_of(entry: dict[str, Any]) -> Record:
    """Return the record in an entry of JSON; raise an error if the entry, which anyone may have written, is none."""
    axis = tuple(entry["axis"]) if isinstance(entry["axis"], list) else entry["axis"]
    shape = tuple(entry["shape"])
    record = Record(**{**entry, "axis": axis, "shape": shape})
    if any(type(number) is not int for number in (*shape, *_axes_in(axis), record.block_size)):
        numbers = f"shape {list(shape)}, axis {entry['axis']!r} and block_size {record.block_size!r}"
        raise ValueError(f"{numbers} are not all integers")
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {list(shape)} has a length below 0")
    check_format(as_convention(record.convention), record.qtype)
    if record.original_dtype not in FLOATS:
        raise ValueError(f"original_dtype {record.original_dtype!r} is not one of {', '.join(FLOATS)}")
    if not _is_tensor_scale(record.tensor_scale, record.qtype):
        raise ValueError(f"tensor_scale {record.tensor_scale} does not fit {record.qtype}")
    return record


def _axes_in(axis: Any) -> tuple[Any, ...]:
    """Return the axes that an entry names: none, one, or several."""
    if axis is None:
        return ()
    return axis if isinstance(axis, tuple) else (axis,)


def _is_tensor_scale(scale: Any, qtype: QType) -> bool:
    """Return whether a value can be the scale of a tensor of a format: a number of float32, or None without one."""
    if not qtype.has_tensor_scale:
        return scale is None
    return isinstance(scale, float) and 0 < scale <= float(np.finfo(np.float32).max)


# What is stored for one tensor


def _naming_record(name: str) -> AbstractContextManager[None]:
    """Name the record in errors about fields that do not fit each other.

    A ValueError says itself what is wrong, and stays as it is.
    """
    return naming(lambda error: f"its {KEY!r} metadata for {name!r} is invalid: {error}", CONTRADICTIONS)


def stored_specs(name: str, record: Record) -> list[TensorSpec]:
    """Return the tensors that are stored for the tensor `name`; raise ValueError if the record is invalid."""
    with _naming_record(name):
        specs = record.stored_form.specs()
        return [spec_of(stored_name(name, part), dtype, shape) for part, (dtype, shape) in specs.items()]


def stored_name(name: str, part: str) -> str:
    """Return the name of a stored part of a tensor: "weight_scale" of "m.weight" is "m.weight_scale"."""
    return name + part.removeprefix("weight")


def encode(name: str, q: QuantizedArray, record: Record) -> dict[str, Array]:
    """Return the contents of the tensors that are stored for a quantized tensor."""
    form = record.stored_form
    scale_dtype = numpy_dtype(form.scale_dtype)
    # scales of a format with a type for them are stored as they are, powers of two as bytes
    scale = q.scale.view(scale_dtype) if record.qtype.scale_element else q.scale.astype(scale_dtype)
    arrays = form.write(q.codes, scale, q.zero_point)
    arrays |= form.constants(None if record.tensor_scale is None else 1 / record.tensor_scale)
    return {stored_name(name, part): array for part, array in arrays.items()}


def decode(name: str, record: Record, load: Callable[[str], Array]) -> QuantizedArray:
    """Return the quantized array whose stored tensors `load` returns by name; raise ValueError if they are invalid."""
    with _naming_record(name):
        form = record.stored_form
        qtype = record.qtype
        codes, scale, zero_point = form.read(lambda part: load(stored_name(name, part)))
        if qtype.scale_element:
            scale = scale.view(FLOAT_FORMATS[qtype.scale_element].dtype)
        elif scale.dtype.itemsize == 2:  # float16 and bfloat16, in which nothing is computed
            scale = scale.astype(np.float32)
        if zero_point is None:
            zero_point = np.full(form.parameter_shape, qtype.middle, qtype.storage)
        _check_scale(scale, record)
        tensor_scale = None if record.tensor_scale is None else np.array(record.tensor_scale, np.float32)
        qparams = QParams(
            scale=scale,
            zero_point=zero_point,
            dtype=qtype,
            axis=record.axis,
            block_size=record.block_size,
            symmetric=record.symmetric,
            convention=record.convention,
            tensor_scale=tensor_scale,
        )
        return QuantizedArray(codes, qparams, record.shape)


def _check_scale(scale: Array, record: Record) -> None:
    """Raise ValueError unless scales are positive and finite; those of a table of numbers may also be 0 or negative."""
    numbers = scale.astype(np.float64)
    if record.qtype.codebook:
        if not np.isfinite(numbers).all():
            raise ValueError("its scale is not finite")
        return
    magnitudes = np.abs(numbers) if as_convention(record.convention).signed_scale else numbers
    if not ((magnitudes > 0) & (magnitudes < np.inf)).all():
        raise ValueError("its scale is not positive and finite")


@dataclass(frozen=True)
class Scheme:
    """Arguments of `fastq.quantize`: the code format and which elements share a scale."""

    dtype: str  # name of the code format
    axis: Axis = None  # channel axis, or the axis along which blocks run
    block_size: int = 0  # elements in a block; 0 without blocks
    symmetric: bool = False  # whether zero lies in the middle of the codes
    range: str = "minmax"  # the method for ranges
    convention: str = "onnx"  # name of the convention

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `fastq.quantize`, whose names are those of the fields."""
        return dict(vars(self))

    def arguments_for(self, dtype: np.dtype[Any]) -> dict[str, Any]:
        """Return the arguments for values of a dtype: scales are rounded to half precision, as in files."""
        convention = as_convention(self.convention)
        if convention.stored_type != "compute" or convention.half_precision_for(dtype).scale:
            return self.arguments()
        return {**self.arguments(), "convention": replace(convention, stored_type="input")}

    def columns_sharing_scale(self, shape: tuple[int, ...]) -> int:
        """Return how many neighbours along the last axis share a scale; 0 if each has its own scale.

        Blocks along the last axis that do not fill it count as the whole axis, and so does a scale for each index of
        another axis, or for the whole tensor. For shape (8, 64) it is 32 with blocks of 32 along axis 1, 64 with axis 0
        or without an axis, and 0 with axis 1.
        """
        is_along_last = isinstance(self.axis, int) and self.axis % len(shape) == len(shape) - 1
        has_blocks = self.block_size > 0
        if is_along_last != has_blocks:  # a scale for each column, or blocks along another axis
            return 0
        return self.block_size if has_blocks and shape[-1] % self.block_size == 0 else shape[-1]

    def for_dimensions(self, ndim: int) -> Scheme:
        """Return the scheme for `ndim` axes, with one scale for scalars, and for vectors that have no blocks.

        Biases and norms are vectors: with a scale for each row they would have one for each number.
        """
        if ndim < (1 if self.block_size else 2):
            return replace(self, axis=None, block_size=0)
        if isinstance(self.axis, int) and not -ndim <= self.axis < ndim:
            raise ValueError(f"axis {self.axis} is out of bounds for {ndim} dimensions")
        return self

    def __str__(self) -> str:
        blocks = f" blocks of {self.block_size}" if self.block_size else ""
        method = "" if self.range == "minmax" else f" {self.range}"
        convention = "" if self.convention == "onnx" else f" {self.convention}"
        axis = "" if self.axis is None else f" axis={self.axis}"
        return f"{self.dtype}{axis}{blocks}{' symmetric' if self.symmetric else ''}{method}{convention}"
