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
# errors of records whose fields do not fit each other
NONSENSE = (TypeError, KeyError, IndexError, AttributeError, OverflowError, ZeroDivisionError)
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
    def form(self) -> StoredForm:
        """The stored form of the tensor."""
        qtype = self.qtype
        scales = self.original_dtype
        if qtype.scale_element:  # compressed-tensors stores powers of two as bytes, though safetensors has a name
            name = safetensors_dtype(FLOAT_FORMATS[qtype.scale_element].dtype) or "U8"
            scales = "U8" if qtype.scale_element == "float8_e8m0fnu" else name
        packing = "" if not qtype.packed else "bytes" if qtype.element else "words"
        return StoredForm(
            qtype=qtype,
            shape=self.shape,
            axis=self.axis,
            block_size=self.block_size,
            symmetric=self.symmetric,
            scale_dtype=scales,
            packing=packing,
            has_global_scale=self.tensor_scale is not None,
        )


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
            return {name: _record(entry) for name, entry in content["tensors"].items()}
    raise ValueError(f"{saved[0]} wrote it, and {saved[1]} reads it")


def is_saved_array(metadata: Mapping[str, str]) -> bool:
    """Return whether these are the metadata of a file of `QuantizedArray.save`."""
    try:
        return bool(json.loads(metadata[KEY])["format"] == "fastq.QuantizedArray")
    except (KeyError, IndexError, TypeError, ValueError, RecursionError):
        return False


def _record(entry: dict[str, Any]) -> Record:
    axis = entry["axis"]
    shape = tuple(entry["shape"])
    record = Record(**{**entry, "axis": tuple(axis) if isinstance(axis, list) else axis, "shape": shape})
    axes = record.axis if isinstance(record.axis, tuple) else () if record.axis is None else (record.axis,)
    if any(type(number) is not int for number in (*shape, *axes, record.block_size)):
        numbers = f"shape {list(shape)}, axis {axis!r} and block_size {record.block_size!r}"
        raise ValueError(f"{numbers} are not all integers")
    if min(shape, default=0) < 0:
        raise ValueError(f"shape {list(shape)} has a length below 0")
    check_format(as_convention(record.convention), record.qtype)
    if record.original_dtype not in FLOATS:
        raise ValueError(f"original_dtype {record.original_dtype!r} is not one of {', '.join(FLOATS)}")
    scale = record.tensor_scale
    largest = float(np.finfo(np.float32).max)
    fits = isinstance(scale, float) and 0 < scale <= largest if record.qtype.has_tensor_scale else scale is None
    if not fits:
        raise ValueError(f"tensor_scale {scale} does not fit {record.qtype}")
    return record


# What is stored for one tensor


def _naming_record(name: str) -> AbstractContextManager[None]:
    """Name the record in errors about fields that do not fit each other."""
    return naming(lambda error: f"its {KEY!r} metadata for {name!r} is invalid: {error}", NONSENSE)


def stored_specs(name: str, record: Record) -> list[TensorSpec]:
    """Return the tensors that are stored for the tensor `name`; raise ValueError if the record is invalid."""
    with _naming_record(name):
        specs = record.form.specs()
        return [spec_of(stored_name(name, part), dtype, shape) for part, (dtype, shape) in specs.items()]


def stored_name(name: str, part: str) -> str:
    """Return the name of a stored tensor; for `m.weight` layouts use weight, weight_scale, .."""
    return name + part.removeprefix("weight")


def encode(name: str, q: QuantizedArray, record: Record) -> dict[str, Array]:
    """Return the contents of the tensors that are stored for a quantized tensor."""
    form = record.form
    scale_dtype = numpy_dtype(record.form.scale_dtype)
    scale = q.scale.view(scale_dtype) if record.qtype.scale_element else q.scale.astype(scale_dtype)
    arrays = form.write(q.codes, scale, q.zero_point)
    arrays |= form.constants(None if record.tensor_scale is None else 1 / record.tensor_scale)
    return {stored_name(name, part): array for part, array in arrays.items()}


def decode(name: str, record: Record, load: Callable[[str], Array]) -> QuantizedArray:
    """Return the quantized array whose stored tensors `load` returns by name; raise ValueError if they are invalid."""
    with _naming_record(name):
        form = record.form
        qtype = record.qtype
        tensor_scale = None
        codes, scale, zero_point = form.read(lambda part: load(stored_name(name, part)))
        if qtype.scale_element:
            scale = scale.view(FLOAT_FORMATS[qtype.scale_element].dtype)
        elif scale.dtype.itemsize == 2:
            scale = scale.astype(np.float32)
        if record.tensor_scale is not None:
            tensor_scale = np.array(record.tensor_scale, np.float32)
        if zero_point is None:
            zero_point = np.full(form.parameter_shape, qtype.middle, qtype.storage)
        numbers = scale.astype(np.float64)
        if qtype.codebook and not np.isfinite(numbers).all():
            raise ValueError("its scale is not finite")
        size = np.abs(numbers) if as_convention(record.convention).signed_scale else numbers
        if not (qtype.codebook or ((size > 0) & (size < np.inf)).all()):
            raise ValueError("its scale is not positive and finite")
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
        """Return the keyword arguments for `fastq.quantize`."""
        return dict(vars(self))

    def arguments_for(self, dtype: np.dtype[Any]) -> dict[str, Any]:
        """Return the arguments for values of a dtype: scales are rounded to half precision, as in files."""
        convention = as_convention(self.convention)
        if convention.stored_type != "compute" or convention.half_precision_for(dtype).scale:
            return self.arguments()
        return {**self.arguments(), "convention": replace(convention, stored_type="input")}

    def columns_alike(self, shape: tuple[int, ...]) -> int:
        """Return how many neighbours along the last axis share a scale; 0 if each has its own scale."""
        is_along_last = isinstance(self.axis, int) and self.axis % len(shape) == len(shape) - 1
        if is_along_last != (self.block_size > 0):
            return 0
        return self.block_size if is_along_last and not shape[-1] % self.block_size else shape[-1]

    def for_dimensions(self, ndim: int) -> Scheme:
        """Return the scheme for `ndim` axes, with one scale for scalars, and for vectors that have no blocks."""
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
