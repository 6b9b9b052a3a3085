"""Stored weights of a model: rows encoded by a scheme, and the rows that a stored weight decodes to.

compressed-tensors computes in the dtype of the model, which is bit for bit its convention. Otherwise ranges are divided
in float32, the scale is rounded, and codes are computed from it in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.formats.conventions import CONVENTIONS, DEFAULT, Convention
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import as_qtype
from fastq.ops.packing import pack
from fastq.results import QuantizedArray
from fastq.system.dtypes import Array, numpy_dtype
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.files.containers import TensorSpec
from fastq.tools.files.pipeline import naming
from fastq.tools.layouts import LAYOUTS
from fastq.tools.layouts.compressed_tensors import BIAS, StoredForm, array_of, form_of, scale_values
from fastq.tools.layouts.schemes import E8M0, MICROSCALING, LayerScheme, WeightScheme
from fastq.tools.layouts.tensors import Reading, without_zero_scales

Shape = tuple[int, int]

STORED_TYPES = {"F32": "compute", "F16": "float16", "BF16": "bfloat16"}  # names of the dtypes of scales in conventions
NVFP4_LARGEST = FLOAT_FORMATS["float8_e4m3fn"].max * FLOAT_FORMATS["float4_e2m1fn"].max  # by the largest scale
LEAST_E4M3 = 0.125  # replaces a scale of 0 in float8
BUMP = 0.875  # significands from 1.75 on take the next power of two
CHUNK = 1 << 21  # values in memory at a time: enough that threads do not wait for each other, few enough for a cache
ROWS = 128  # chunks of a multiple of this end with words of zero points and with blocks of rows
# the latter has the group of each column
ZERO_POINT = "weight_zero_point"
ORDER = "weight_g_idx"
SUFFIXES = ("weight", "weight_packed", "weight_scale", ZERO_POINT, "weight_global_scale", "weight_shape")
SCALES = {"F32", "F16", "BF16"}  # dtypes of scales that a scheme does not include
RECIPROCAL = "weight_scale_2"  # the global scale of modelopt
POWERS = "F8_E8M0"  # dtype of scales that are powers of two; some writers use it for other bytes, too


def row_chunks(shape: Shape, multiple: int = ROWS) -> Iterator[tuple[int, int]]:
    """Cut rows into chunks that can be encoded and decoded separately; chunks have a multiple of `multiple` rows."""
    step = max(1, CHUNK // max(1, shape[1]) // multiple) * multiple
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])


@dataclass(frozen=True)
class ScaleArithmetic:
    """The computation of scales from ranges."""

    dtype: str  # dtype of stored scales, unless the scheme has its own: F32, BF16 or F16
    bit_exact: bool = False  # whether operations are those of compressed-tensors, on values in `dtype`
    method: str = "minmax"  # the method for ranges, as in `fastq.quantize`

    def convention(self, weights: WeightScheme) -> str | Convention:
        """Return the convention for scales and codes."""
        row = CONVENTIONS["compressed-tensors"]
        if weights.qtype.name not in row.formats or (weights.scale_dtype and not self.bit_exact):
            return DEFAULT
        return row if self.bit_exact else replace(row, operation_type="compute", stored_type=STORED_TYPES[self.dtype])

    def computed(self, values: Array) -> Array:
        """Return the float32 result of an operation, rounded as in the arithmetic."""
        if not self.bit_exact or self.dtype == "F32":
            return values
        with np.errstate(over="ignore"):  # an infinite scale is refused when codes are computed
            return values.astype(numpy_dtype(self.dtype)).astype(np.float32)


def encode(
    x: Array,
    scheme: LayerScheme,
    arithmetic: ScaleArithmetic,
    factor: float = 1.0,
    importance: NDArray[np.float32] | None = None,
) -> tuple[dict[str, Array], Array, QuantizedArray]:
    """Quantize rows of a matrix, of float16, bfloat16 or float32; `factor` is the `global_scale` of a tensor group.

    `importance` has a weight for each column, for the errors in a search for scales. Return the stored tensors by the
    ends of their names; the rows, in blocks if blocks have several rows; and the codes.
    """
    weights = scheme.weights
    form = form_of(scheme, x.shape, arithmetic.dtype)
    values = held = form.folded(x)
    if arithmetic.bit_exact and not weights.scale_dtype:
        with np.errstate(over="ignore"):  # an infinity is refused below
            held = values.astype(numpy_dtype(arithmetic.dtype), copy=False)
    if importance is not None:  # for blocks with several rows, one for each element, since rows are folded
        importance = form.folded(np.broadcast_to(importance, x.shape)) if form.block else importance[0]
    stored, zero_point = choose(held, form, weights, arithmetic, factor, importance)
    options: dict[str, Any] = {"axis": form.axis, "block_size": form.block_size}
    options["convention"] = arithmetic.convention(weights)
    scale = scale_values(stored, weights, factor)
    codes = fastq.quantize_linear(held, scale, zero_point, weights.qtype, **options)
    arrays = form.write(codes, stored, zero_point)
    return arrays, values, array_of(codes, stored, zero_point, form, weights, factor)


def rough_scales(x: Array, q: QuantizedArray) -> int:
    """Return how many parts, not all 0, have scales that float16 holds with few digits, or not at all.

    Those that it does not hold are the distance of 1 to the next number, as in compressed-tensors.
    """
    least = np.finfo(np.float16).smallest_normal
    scale = np.asarray(q.scale, np.float32)
    doubtful = (np.abs(scale) < least) | (scale == np.finfo(np.float16).eps)
    if not doubtful.any():
        return 0
    lo, hi = fastq.minmax(x, axis=q.axis, block_size=q.block_size, nan="zero")
    largest = np.maximum(-lo.astype(np.float32), hi.astype(np.float32)).reshape(scale.shape)
    first, last = q.dtype.code_range(False)
    return int(np.count_nonzero(doubtful & (largest > 0) & (largest < least * max(-first, last))))


def choose(
    x: Array,
    form: StoredForm,
    weights: WeightScheme,
    arithmetic: ScaleArithmetic,
    factor: float,
    importance: Array | None = None,
) -> tuple[Array, Array | None]:
    """Compute scales, in the dtype in which they are stored, and zero points from ranges."""
    granularity: dict[str, Any] = {"axis": form.axis, "block_size": form.block_size}
    ranges: dict[str, Any] = {"range": arithmetic.method} | ({} if importance is None else {"importance": importance})
    if not weights.scale_dtype:
        options: dict[str, Any] = {"symmetric": weights.symmetric, "convention": arithmetic.convention(weights)}
        p = fastq.choose_qparams(x, weights.qtype, **granularity, **options, **ranges)
        return p.scale.astype(numpy_dtype(arithmetic.dtype)), None if weights.symmetric else p.zero_point
    if arithmetic.method != "minmax":
        if weights.scale_dtype == E8M0:
            p = fastq.choose_qparams(x, MICROSCALING[weights.bits], axis=form.axis, **ranges)
            return p.scale.view(np.uint8), None
        # a row with the largest magnitude of all matrices that share the factor; the search rounds scales by it
        last = np.full_like(x[:1], NVFP4_LARGEST / factor)
        p = fastq.choose_qparams(np.concatenate([x, last]), "nvfp4", axis=form.axis, **ranges)
        return _in_e4m3(p.scale[:-1].astype(np.float32)), None
    lo, hi = fastq.minmax(x, **granularity)
    largest = np.maximum(-np.minimum(lo.astype(np.float32), 0), hi.astype(np.float32))
    if not np.isfinite(largest).all():
        raise ValueError(f"x has {np.count_nonzero(np.isinf(x))} infinite values: their range has no scale")
    if weights.scale_dtype == E8M0:
        # floor(log2(largest)) minus that of the largest code. Magnitudes from 1.75 times a power on take the next one,
        # as in compressed-tensors and the reference of vLLM: no code of float4 is clipped by more than half a step
        significand, exponent = np.frexp(largest)
        top = np.frexp(weights.qtype.code_range(False)[1])[1]
        biased = np.where(largest > 0, exponent - top + (significand >= BUMP) + BIAS, 0)
        return np.clip(biased, 0, 254).astype(np.uint8), None
    scale = arithmetic.computed(largest / np.float32(weights.qtype.code_range(False)[1]))
    return _in_e4m3(scale * np.float32(factor)), None


def _in_e4m3(scale: Array) -> Array:
    """Round scales to float8, but never to 0."""
    form = FLOAT_FORMATS["float8_e4m3fn"]
    rounded = np.minimum(scale, np.float32(form.max)).astype(form.dtype)
    rounded[rounded.astype(np.float32) == 0] = LEAST_E4M3
    return rounded


def largest_magnitude(x: Array) -> float:
    """Return the largest magnitude of an array, ignoring NaN, which is refused when the matrix is encoded."""
    lo, hi = fastq.minmax(x, nan="zero")
    return max(-float(lo), float(hi), 0.0)


def global_scale(largest: float, arithmetic: ScaleArithmetic) -> float:
    """Return the factor that makes the largest scale of a matrix, or of fused ones, the largest float8.

    It is 448 * 6 times the reciprocal of the largest magnitude, as torch divides a number; 1 if that is not finite.
    """
    least = np.maximum(np.float32(largest), np.finfo(np.float32).tiny)
    with np.errstate(over="ignore"):
        scale = arithmetic.computed(arithmetic.computed(np.array(1 / least)) * np.float32(NVFP4_LARGEST))
    return float(scale) if np.isfinite(scale) else 1.0


@dataclass(frozen=True, kw_only=True)
class StoredWeight:
    """A quantized weight of a model: a matrix, or the matrices of experts one below the other."""

    source: ModelFolder
    module: str
    name: str  # name and shape of the original tensor
    shape: tuple[int, ...]
    found: dict[str, TensorSpec]  # the stored tensors, by their roles
    matrix: tuple[int, int]  # rows and columns of all matrices
    codes: TensorSpec  # stored tensors that the original tensor replaces
    order: NDArray[np.intp] | None = None  # columns in the order of their groups, if that differs from their own order
    is_transposed: bool = False  # whether the tensor has the columns of each matrix for rows

    label: str  # how it is stored
    block_rows: int = 1  # number of rows that share scales

    @property
    def compressed(self) -> CompressedWeight | None:
        """The weight, if compressed-tensors stores the matrix like this, in order, without experts; else None."""
        return self if isinstance(self, CompressedWeight) and len(self.shape) == 2 and self.order is None else None

    def _rows(self, start: int, stop: int) -> QuantizedArray:
        raise NotImplementedError

    def _naming(self) -> AbstractContextManager[None]:
        """Name the weight and its file in an error about it."""
        return naming(lambda error: f"{self.module} in {self.source.files[self.codes.name]}: {error}")

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Cut the rows into chunks that can be decoded separately."""
        return row_chunks(self.matrix, self.shape[-1] if self.is_transposed else math.lcm(ROWS, self.block_rows))

    def rows(self, start: int, stop: int) -> QuantizedArray:
        """Return a chunk of rows, with columns in `order`; blocks of several rows are padded with zeros."""
        with self._naming():
            return without_zero_scales(self._rows(start, stop), "its weight")

    def values(self, start: int, stop: int) -> Array:
        """Return the values of a chunk of rows, in the order of the tensor."""
        decoded = np.asarray(self.rows(start, stop).dequantize())
        columns = self.matrix[1]
        decoded = decoded.reshape(-1, math.prod(decoded.shape[decoded.ndim // 2 :]))[: stop - start, :columns]
        if self.order is not None:
            decoded = decoded[:, np.argsort(self.order)]
        if self.is_transposed:
            decoded = decoded.reshape(-1, self.shape[-1], columns).swapaxes(1, 2)
        return np.ascontiguousarray(decoded)

    @property
    def is_direct(self) -> bool:
        """Return whether `whole` has the shape of the tensor, with its columns in their own order."""
        return self.order is None and len(self.shape) == 2 and self.block_rows == 1

    def all_values(self) -> Array:
        """Return the values of the tensor."""
        return np.concatenate([self.values(*chunk) for chunk in self.chunks()]).reshape(self.shape)

    def whole(self) -> QuantizedArray:
        """Return all rows, with experts along a first axis; raise ValueError if columns are in another order."""
        with self._naming():
            if self.order is not None:
                raise ValueError("its columns are in the order of activations; fastq convert --dequantize undoes that")
        q = self.rows(0, self.matrix[0])
        return q if len(self.shape) == 2 else q.reshape(self.shape[0], -1, *q.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors."""
        return sum(spec.nbytes for spec in self.found.values())


@dataclass(frozen=True, kw_only=True)
class CompressedWeight(StoredWeight):
    """A weight in the layout of compressed-tensors, possibly under the names of another writer."""

    scheme: LayerScheme  # how it is stored
    specs: dict[str, TensorSpec]  # specs of the tensors that should be stored, by the ends of their names
    scale_rows: NDArray[np.intp] | None = None  # index of the row of scales for each row, if that is not the row itself

    @property
    def form(self) -> StoredForm:
        """The layout of codes and parameters in the tensors."""
        return form_of(self.scheme, self.matrix, "F32")

    def part(self, suffix: str) -> Array:
        """Return a stored tensor in the expected dtype and shape."""
        spec = self.specs[suffix]
        array = self.source.load(self.found[suffix].name)
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
        if not factor > 0:  # division by inf would make everything 0
            raise ValueError(f"its global scale is {factor}, which must be positive")
        codes, scale, zero_point = form.read(load)
        if form.has_global_scale and self.found["weight_global_scale"].name.endswith(RECIPROCAL):
            stored = self.source.load(self.found["weight_global_scale"].name)
            # as modelopt does, not rounded twice
            scale = scale.astype(np.float32) * stored.reshape(())
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
        words = slice(start * self.bits // 32, -(-stop * self.bits // 32))
        where = {"qweight": words if self.layout == "awq" else slice(start, stop), "qzeros": words}
        tensors = {end: self.source.load(spec.name) for end, spec in self.found.items()}
        if "g_idx" in tensors:  # int64 of some writers
            tensors["g_idx"] = tensors["g_idx"].astype(np.int32)
        rows = slice(start, stop)
        parts = {end: x if x.ndim == 1 else x[:, where.get(end, rows)] for end, x in tensors.items()}
        row = LAYOUTS[self.layout]
        return row.read(Reading(row, parts, as_qtype(f"uint{self.bits}"), None, self.block_size, True))
