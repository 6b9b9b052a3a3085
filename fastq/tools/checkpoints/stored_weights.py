"""Stored weights of a model, and the rows that they decode to."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import as_qtype
from fastq.ops.packing import pack
from fastq.results import QuantizedArray
from fastq.system.dtypes import Array
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.row_chunks import ROWS, row_chunks
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.tensor_specs import TensorSpec
from fastq.tools.layouts import LAYOUTS
from fastq.tools.layouts.compressed_tensors import StoredForm, array_of, form_of
from fastq.tools.layouts.layout import Reading, without_zero_scales
from fastq.tools.layouts.schemes import LayerScheme

ZERO_POINT = "weight_zero_point"
ORDER = "weight_g_idx"  # the group of each column
SUFFIXES = ("weight", "weight_packed", "weight_scale", ZERO_POINT, "weight_global_scale", "weight_shape")
SCALES = {"F32", "F16", "BF16"}  # dtypes of scales that a scheme does not include
RECIPROCAL = "weight_scale_2"  # the global scale of modelopt
POWERS = "F8_E8M0"  # dtype of scales that are powers of two; some writers use it for other bytes, too


@dataclass(frozen=True, kw_only=True)
class StoredWeight(ABC):
    """A quantized weight of a model: a matrix, or the matrices of experts, stacked."""

    source: ModelFolder
    module: str  # the name of the layer
    name: str  # the name of the original tensor
    shape: tuple[int, ...]  # its shape
    roles: dict[str, TensorSpec]  # the stored tensors by their roles, as the layout names them
    matrix: tuple[int, int]  # rows and columns of all matrices
    codes: TensorSpec  # the stored tensor that the original tensor replaces
    label: str  # how it is stored, for tables
    order: NDArray[np.intp] | None = None  # columns in the order of their groups, if that differs from their own order
    is_transposed: bool = False  # whether the tensor has the columns of each matrix for rows
    block_rows: int = 1  # number of rows that share scales

    @property
    def compressed(self) -> CompressedWeight | None:
        """The weight if it is a single matrix that compressed-tensors can store with the same bytes; else None."""
        return self if isinstance(self, CompressedWeight) and len(self.shape) == 2 and self.order is None else None

    @abstractmethod
    def _rows(self, start: int, stop: int) -> QuantizedArray:
        """Return a chunk of rows as they are stored."""

    def _naming(self) -> AbstractContextManager[None]:
        """Name the weight and its file in an error about it."""
        return naming(lambda error: f"{self.module} in {self.source.files[self.codes.name]}: {error}")

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Cut the rows into chunks that can be decoded separately, and yield the start and stop of each.

        A transposed tensor has a matrix's rows along its last axis, so its chunks are whole matrices.
        """
        return row_chunks(self.matrix, self.shape[-1] if self.is_transposed else math.lcm(ROWS, self.block_rows))

    def rows(self, start: int, stop: int) -> QuantizedArray:
        """Return a chunk of rows, with columns in `order`; blocks of several rows are padded with zeros."""
        with self._naming():
            return without_zero_scales(self._rows(start, stop), "its weight")

    def values(self, start: int, stop: int) -> Array:
        """Return the values of a chunk of rows, in the order of the tensor, which `all_values` and writers append.

        Of a transposed tensor they are some of its matrices, each as (inputs, outputs).
        """
        decoded = np.asarray(self.rows(start, stop).dequantize())
        columns = self.matrix[1]
        # blocks of several rows have four axes, (rows / b, b, columns / b, b), and padding at their ends
        padded = decoded.reshape(-1, math.prod(decoded.shape[decoded.ndim // 2 :]))
        values = padded[: stop - start, :columns]
        if self.order is not None:
            values = values[:, np.argsort(self.order)]  # which undoes the order
        if self.is_transposed:
            values = values.reshape(-1, self.shape[-1], columns).swapaxes(1, 2)
        return np.ascontiguousarray(values)

    @property
    def is_equal_to_array(self) -> bool:
        """Whether `as_array` has the shape and the values of the tensor, with its columns in their own order."""
        return self.order is None and len(self.shape) == 2 and self.block_rows == 1

    def all_values(self) -> Array:
        """Return the values of the tensor."""
        return np.concatenate([self.values(*chunk) for chunk in self.chunks()]).reshape(self.shape)

    def as_array(self) -> QuantizedArray:
        """Return all rows, with experts along a first axis; raise ValueError if columns are in another order."""
        with self._naming():
            if self.order is not None:
                raise ValueError("its columns are in the order of activations; fastq convert --dequantize undoes that")
        q = self.rows(0, self.matrix[0])
        return q if len(self.shape) == 2 else q.reshape(self.shape[0], -1, *q.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors."""
        return sum(spec.nbytes for spec in self.roles.values())


@dataclass(frozen=True, kw_only=True)
class CompressedWeight(StoredWeight):
    """A weight in the layout of compressed-tensors, possibly under the names of another writer."""

    scheme: LayerScheme  # how it is stored
    specs: dict[str, TensorSpec]  # specs of the tensors that should be stored, by the ends of their names
    scale_rows: NDArray[np.intp] | None = None  # index of the row of scales for each row, if that is not the row itself

    @property
    def form(self) -> StoredForm:
        """The layout of codes and parameters in the tensors; to read them, the dtype of floats does not matter."""
        return form_of(self.scheme, self.matrix, "F32")

    def part(self, suffix: str) -> Array:
        """Return a stored tensor, by the end of its name, in the expected dtype and shape."""
        spec = self.specs[suffix]
        array = self.source.load(self.roles[suffix].name)
        if suffix == ZERO_POINT:
            return self.form.stored_zero_points(self.form.zero_points(array))
        expected = self._in_expected_dtype(array, suffix)
        if suffix == "weight_scale" and self.scale_rows is not None:
            expected = expected.reshape(-1, expected.shape[-1])[self.scale_rows]
        return expected.reshape(spec.shape)

    def _in_expected_dtype(self, array: Array, suffix: str) -> Array:
        """Return a stored tensor in the expected dtype; other writers have other dtypes, and a reciprocal.

        Scales that are expected in floats may be stored as the exponents of powers of two, as those of DeepSeek.
        """
        expected = self.specs[suffix].dtype
        if self.roles[suffix].name.endswith(RECIPROCAL):
            with np.errstate(divide="ignore"):  # of an expert that calibration never met
                global_scale: Array = 1 / array
            return global_scale
        if expected == "U8":
            return array.view(np.uint8)
        if expected == "I64":
            return array.astype(np.int64, copy=False)
        if suffix == "weight_scale" and self.roles[suffix].dtype in (POWERS, "U8"):
            return array.view(FLOAT_FORMATS["float8_e8m0fnu"].dtype).astype(np.float32)
        return array

    def _rows(self, start: int, stop: int) -> QuantizedArray:
        """Return a chunk of rows as they are stored, with columns in `order`."""
        form, load = self.form.rows(self.part, start, stop)
        factor = float(self.part("weight_global_scale")[0]) if form.has_global_scale else 1.0
        if not factor > 0:  # inf, as of a reciprocal of 0, is no error: its weight is 0 everywhere
            raise ValueError(f"its global scale is {factor}, which must be positive")
        codes, scale, zero_point = form.read(load)
        if form.has_global_scale and self.roles["weight_global_scale"].name.endswith(RECIPROCAL):
            reciprocal = self.source.load(self.roles["weight_global_scale"].name)
            # a product, as in modelopt: a division by the reciprocal of the reciprocal would round twice
            scale = scale.astype(np.float32) * reciprocal.reshape(())
            factor = 1.0
        q = array_of(codes, scale, zero_point, form, self.scheme.weights, factor)
        if self.order is None:
            return q
        codes = q.unpacked()[:, self.order]
        return QuantizedArray(pack(codes, q.dtype) if q.dtype.packed else codes, q.qparams, q.shape)


@dataclass(frozen=True, kw_only=True)
class PackedWeight(StoredWeight):
    """A weight in a layout of AWQ or GPTQ, whose tensors have outputs along their last axis."""

    layout: str
    bits: int
    block_size: int  # 0: derived from the tensors

    def _rows(self, start: int, stop: int) -> QuantizedArray:
        """Return a chunk of rows, which are columns of the tensors, or words of several of them.

        The rows 128..256 with 4 bits are the words 16..32. Chunks begin with whole words, since `ROWS` codes of any
        width fill them.
        """
        columns = slice(start, stop)
        words = slice(start * self.bits // 32, -(-stop * self.bits // 32))
        columns_of = {"qweight": words if self.layout == "awq" else columns, "qzeros": words, "scales": columns}
        tensors = {role: self.source.load(spec.name) for role, spec in self.roles.items()}
        chunk = {role: array[:, columns_of[role]] for role, array in tensors.items() if role != "g_idx"}
        if "g_idx" in tensors:  # int64 of some writers
            chunk["g_idx"] = tensors["g_idx"].astype(np.int32)
        layout = LAYOUTS[self.layout]
        reading = Reading(
            layout=layout,
            tensors=chunk,
            qtype=as_qtype(f"uint{self.bits}"),
            shape=None,
            block_size=self.block_size,
            sort_inputs=True,
        )
        return layout.read(reading)
