"""The quantized weights of a model directory: what is stored of them, and the rows that it stands for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastq.formats.compressed_tensors import LayerScheme
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import as_qtype
from fastq.io.checkpoints.encoding import ROWS, row_chunks
from fastq.io.checkpoints.folder import ModelFolder
from fastq.io.containers import TensorSpec
from fastq.io.pipeline import naming
from fastq.layouts import LAYOUTS
from fastq.layouts.compressed_tensors import StoredForm, array_of, form_of
from fastq.layouts.tensors import Reading, with_positive_scales
from fastq.operations.packing import pack
from fastq.results import QuantizedArray
from fastq.system.dtypes import Array

ZERO_POINT, ORDER = "weight_zero_point", "weight_g_idx"  # the latter: which group each column belongs to
SUFFIXES = ("weight", "weight_packed", "weight_scale", ZERO_POINT, "weight_global_scale", "weight_shape")
SCALES = {"F32", "F16", "BF16"}  # dtypes of scales that are no part of a scheme
RECIPROCAL = "weight_scale_2"  # what modelopt stores for a global scale
POWERS = "F8_E8M0"  # dtype of scales that are powers of two, which some writers have for others too


@dataclass(frozen=True, kw_only=True)
class StoredWeight:
    """A quantized weight of a model: a matrix, or those of experts one below the other."""

    source: ModelFolder
    module: str
    name: str  # of the tensor that it was, and the shape of that
    shape: tuple[int, ...]
    found: dict[str, TensorSpec]  # the stored tensors, by what they are
    matrix: tuple[int, int]  # rows and columns of all
    codes: TensorSpec  # those in whose place the tensor is
    order: NDArray[np.intp] | None = None  # columns in the order of their groups, if that is not their own
    is_transposed: bool = False  # whether the tensor has the columns of each matrix for rows

    label: str  # how it is stored
    block_rows: int = 1  # rows that have scales together

    @property
    def compressed(self) -> CompressedWeight | None:
        """Itself, where compressed-tensors stores the matrix so, of no experts and in its own order; else None."""
        return self if isinstance(self, CompressedWeight) and len(self.shape) == 2 and self.order is None else None

    def _rows(self, start: int, stop: int) -> QuantizedArray:
        raise NotImplementedError

    def _naming(self) -> AbstractContextManager[None]:
        """Name the weight and its file in what is wrong with it."""
        return naming(lambda error: f"{self.module} in {self.source.files[self.codes.name]}: {error}")

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Cut the rows into chunks that can be decoded for themselves."""
        return row_chunks(self.matrix, self.shape[-1] if self.is_transposed else math.lcm(ROWS, self.block_rows))

    def rows(self, start: int, stop: int) -> QuantizedArray:
        """Return a chunk of rows, with columns in `order`; in blocks that zeros fill, where blocks have several rows.

        ValueError if they have a scale that no matrix has.
        """
        with self._naming():
            return with_positive_scales(self._rows(start, stop), "its weight")

    def values(self, start: int, stop: int) -> Array:
        """Return the values of a chunk of rows, in the order of the tensor."""
        decoded, columns = np.asarray(self.rows(start, stop).dequantize()), self.matrix[1]
        decoded = decoded.reshape(-1, math.prod(decoded.shape[decoded.ndim // 2 :]))[: stop - start, :columns]
        if self.order is not None:
            decoded = decoded[:, np.argsort(self.order)]
        if self.is_transposed:
            decoded = decoded.reshape(-1, self.shape[-1], columns).swapaxes(1, 2)
        return np.ascontiguousarray(decoded)

    @property
    def is_direct(self) -> bool:
        """Whether `whole` has the shape of the tensor, and its columns in their own order."""
        return self.order is None and len(self.shape) == 2 and self.block_rows == 1

    def all_values(self) -> Array:
        """Return the values of the tensor."""
        return np.concatenate([self.values(*chunk) for chunk in self.chunks()]).reshape(self.shape)

    def whole(self) -> QuantizedArray:
        """Return all rows, those of experts along a first axis; ValueError if columns are in another order."""
        with self._naming():
            if self.order is not None:
                raise ValueError("its columns are in the order of activations; fastq convert --dequantize undoes that")
        q = self.rows(0, self.matrix[0])
        return q if len(self.shape) == 2 else q.reshape(self.shape[0], -1, *q.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored."""
        return sum(spec.nbytes for spec in self.found.values())


@dataclass(frozen=True, kw_only=True)
class CompressedWeight(StoredWeight):
    """A weight as compressed-tensors stores it, be it under the names of another writer."""

    scheme: LayerScheme  # how it is stored
    specs: dict[str, TensorSpec]  # what should be stored, by the end of its name
    scale_rows: NDArray[np.intp] | None = None  # which row of scales each row of `specs` is, if that is not the same

    @property
    def form(self) -> StoredForm:
        """How codes and parameters lie in the tensors."""
        return form_of(self.scheme, self.matrix, "F32")

    def part(self, suffix: str) -> Array:
        """Return a stored tensor, in the dtype and shape that it should have."""
        spec, array = self.specs[suffix], self.source.load(self.found[suffix].name)
        if suffix == ZERO_POINT:
            return self.form.stored_zero_points(self.form.zero_points(array))
        if self.found[suffix].name.endswith(RECIPROCAL):
            with np.errstate(divide="ignore"):  # of an expert that calibration never met
                array = 1 / array
        elif spec.dtype == "U8":
            array = array.view(np.uint8)
        elif spec.dtype == "I64":
            array = array.astype(np.int64, copy=False)
        elif suffix == "weight_scale" and self.found[suffix].dtype in (POWERS, "U8"):
            array = array.view(FLOAT_FORMATS["float8_e8m0fnu"].dtype).astype(np.float32)
        if suffix == "weight_scale" and self.scale_rows is not None:
            array = array.reshape(-1, array.shape[-1])[self.scale_rows]
        return array.reshape(spec.shape)

    def _rows(self, start: int, stop: int) -> QuantizedArray:
        form, load = self.form.rows(self.part, start, stop)
        factor = float(self.part("weight_global_scale")[0]) if form.has_global_scale else 1.0
        if not factor > 0:  # by inf all is 0
            raise ValueError(f"its global scale is {factor}, which must be positive")
        codes, scale, zero_point = form.read(load)
        if form.has_global_scale and self.found["weight_global_scale"].name.endswith(RECIPROCAL):
            stored = self.source.load(self.found["weight_global_scale"].name)
            scale, factor = scale.astype(np.float32) * stored.reshape(()), 1.0  # as modelopt does, not rounded twice
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
    block_size: int  # 0: as the tensors tell

    def _rows(self, start: int, stop: int) -> QuantizedArray:
        words = slice(start * self.bits // 32, -(-stop * self.bits // 32))
        where = {"qweight": words if self.layout == "awq" else slice(start, stop), "qzeros": words}
        tensors = {end: self.source.load(spec.name) for end, spec in self.found.items()}
        if "g_idx" in tensors:  # int64 of some writers
            tensors["g_idx"] = tensors["g_idx"].astype(np.int32)
        parts = {
            end: array if array.ndim == 1 else array[:, where.get(end, slice(start, stop))]
            for end, array in tensors.items()
        }
        row = LAYOUTS[self.layout]
        return row.read(Reading(row, parts, as_qtype(f"uint{self.bits}"), None, self.block_size, True))
