"""Shared parts of layouts: codes with their parameters as rows and blocks, tensors by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.formats.conventions import as_convention
from fastq.formats.granularity import granularity
from fastq.formats.qtypes import QType, as_qtype
from fastq.ops.nest_scale import NestedScale
from fastq.ops.packing import pack
from fastq.requests.parameters import check_qparams
from fastq.results import QParams, QuantizedArray
from fastq.system.arguments import as_array, native
from fastq.system.dtypes import Array


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The layout of quantized weights in a system."""

    name: str
    system: str  # the system that reads and writes it
    formats: tuple[str, ...]  # code formats that it supports, the usual one first
    write: Callable[[QuantizedArray, Writing], dict[str, Array]]  # returns the tensors of an array
    read: Callable[[Reading], QuantizedArray]  # returns the array in tensors
    has_g_idx: bool = False  # whether a tensor has the block of each input
    zero_points_less: int = 0  # number that is subtracted from zero points when they are stored
    nests_scales: bool = False  # whether scales may be quantized, too
    order: tuple[int, ...] = ()  # order of neighbours in a word from its lowest bits on, if it is not their own


def check_format(qtype: QType, row: Layout, name: str) -> None:
    """Raise ValueError unless a layout supports codes of a format, or their signed form of the same width."""
    if qtype.name not in (*row.formats, *(name[1:] for name in row.formats if name[0] == "u")):
        raise ValueError(f"{name} must be one of {', '.join(row.formats)} for layout {row.name!r}, not {qtype}")


class Writing(NamedTuple):
    """The options of writing: the layout, and the options of `to_tensors`."""

    row: Layout
    scale_dtype: np.dtype[Any] | None
    g_idx: ArrayLike | None
    nested: NestedScale | None


class Reading(NamedTuple):
    """The input of reading: the layout, tensors, and the options of `from_tensors`."""

    row: Layout
    tensors: dict[str, Array]
    qtype: QType
    shape: tuple[int, ...] | None
    block_size: int
    sort_inputs: bool

    def get(self, name: str, dtype: str = "") -> Array:
        """Return a tensor, of some dtype."""
        if name not in self.tensors:
            told = f"they have {sorted(self.tensors)}"
            raise ValueError(f"tensors must have {name!r} for layout {self.row.name!r}; {told}")
        array = self.tensors[name]
        if dtype and array.dtype.name != dtype:
            raise TypeError(f"{name} must be {dtype}, not {array.dtype}")
        return array.astype(native(array.dtype), copy=False)

    def scales(self, name: str) -> NDArray[np.float32]:
        """Return a tensor of finite floats in float32."""
        array = self.get(name)
        if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
            raise TypeError(f"{name} must be floats, not {array.dtype}")
        with np.errstate(over="ignore", under="ignore"):
            scales = array.astype(np.float32)
        if not np.isfinite(scales).all():
            raise ValueError(f"{name} has numbers that are not finite in float32")
        return scales

    def matrix(self, name: str, dtype: str = "") -> Array:
        """Return a tensor with two dimensions; raise ValueError if it has another number."""
        found = self.get(name, dtype)
        if found.ndim != 2 or not found.size:
            raise ValueError(f"{name} must be a matrix with elements, not of shape {found.shape}")
        return found

    def of_shape(self, name: str, dtype: str, *shape: int) -> Array:
        """Return a tensor of some dtype and shape."""
        array = self.get(name, dtype)
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, but the other tensors need shape {shape}")
        return array


class BlockedWeight(NamedTuple):
    """Unsigned codes of shape (N, K), scales and zero points of shape (N, G), and the number of inputs in a block."""

    codes: Array
    scale: Array
    zero_point: Array
    bits: int
    block_size: int

    @property
    def qtype(self) -> QType:
        """The code format."""
        return as_qtype(f"uint{self.bits}")

    def quantized(self) -> QuantizedArray:
        """Return the weight as a QuantizedArray; scales below 0 are those of ONNX Runtime, and auto-round's."""
        convention = "matmul-nbits" if (self.scale < 0).any() else "onnx"
        codes = pack(self.codes, self.qtype) if self.qtype.packed else self.codes
        zero_point = self.zero_point.astype(np.uint8)
        params = QParams(self.scale, zero_point, self.qtype, 1, self.block_size, convention=convention)
        return without_zero_scales(QuantizedArray(codes, params, self.codes.shape), "scales")


def without_zero_scales(q: QuantizedArray, name: str) -> QuantizedArray:
    """Return a stored array; where a scale is 0, with the codes of zeros and a scale of 1.

    The values are the same as ``(code - zero_point) * 0``. Groups of zeros have such scales, and experts that
    calibration never met. Raise ValueError, with the name of the scales, if other scales are not positive and finite.
    """
    scale = as_array(q.scale, "q.scale").astype(np.float32, copy=False)
    size = np.abs(scale) if as_convention(q.convention).signed_scale else scale
    bad = scale[~((size >= 0) & (size < np.inf))]
    if bad.size:
        raise ValueError(f"{name} has a scale of {bad[0]}, which must be 0 or more and finite")
    empty = scale == 0
    if not empty.any():
        return q
    codes = np.where(_of_elements(empty, q), _of_elements(q.zero_point, q), q.unpacked()).astype(q.dtype.storage)
    params = q.qparams.with_values(np.where(empty, np.ones_like(q.scale), q.scale), q.zero_point)
    return QuantizedArray(pack(codes, q.dtype) if q.dtype.packed else codes, params, q.shape)


def _of_elements(parameters: Array, q: QuantizedArray) -> Array:
    """Return the parameter of each element of an array, in a shape that broadcasts with it."""
    where = granularity(q.axis, q.block_size, q.ndim)
    if q.block_size:
        axis = where.kept[0]
        return np.repeat(parameters, q.block_size, axis).take(range(q.shape[axis]), axis)
    return parameters.reshape([n if axis in where.kept else 1 for axis, n in enumerate(q.shape)])


def parameters_of(q: QuantizedArray) -> tuple[Array, Array]:
    """Return the scale and the zero point of each block of an array; single numbers serve for all."""
    params = check_qparams(q.qparams, q.shape, q.qparams.compute_dtype)
    wanted = granularity(q.axis, q.block_size, q.ndim).parameter_shape(q.shape)
    each = (one if one.size > 1 else one.reshape(()) for one in (params.scale, params.zero_point))
    scale, zero_point = (np.broadcast_to(one, wanted) for one in each)
    return scale, zero_point


def weight_of(q: QuantizedArray, row: Layout) -> BlockedWeight:
    """Return the input of the layouts of integers."""
    check_format(q.dtype, row, "the dtype of q")
    if q.ndim != 2:
        raise ValueError(f"q must have 2 dimensions, outputs and inputs, for layout {row.name!r}, not {q.ndim}")
    kept = granularity(q.axis, q.block_size, q.ndim).kept
    if kept != ((1,) if q.block_size else (0,)):
        raise ValueError(f"q must have blocks along axis 1, or a scale for each row (axis=0), for layout {row.name!r}")
    convention = as_convention(q.convention)
    if convention.zero_point != "integer" or convention.decode != "point":
        wanted = f"(code - zero_point) * scale, as layout {row.name!r} requires"
        raise ValueError(f"convention {convention.name!r} does not decode as {wanted}")
    scale, zero_point = (each.reshape(q.shape[0], -1) for each in parameters_of(q))
    codes, zero_point = ((a.astype(np.int16) - q.dtype.qmin).astype(np.uint8) for a in (q.unpacked(), zero_point))
    return BlockedWeight(codes, scale, zero_point, q.dtype.bits, q.block_size or q.shape[1])


def stored_scale(scale: Array, dtype: np.dtype[Any] | None, default: str = "") -> Array:
    """Return scales in C order in the requested dtype, else in the default, else in their own."""
    wanted = dtype or (np.dtype(default) if default else scale.dtype)
    with np.errstate(over="ignore", under="ignore"):
        stored = np.ascontiguousarray(scale, wanted)
    lost = ~np.isfinite(stored.astype(np.float64)) | ((stored == 0) & (scale != 0))
    if lost.any():
        found = f"{np.count_nonzero(lost)} scales overflow or underflow in {wanted}, for example {scale[lost][0]}"
        raise ValueError(f'{found}; pass scale_dtype="float32"')
    least = float(np.finfo("float32" if wanted.name == "bfloat16" else wanted).tiny)  # bfloat16 has the same exponents
    rough = (np.abs(stored.astype(np.float64)) < least) & (stored.astype(np.float64) != scale.astype(np.float64))
    if rough.any():
        found = f"{np.count_nonzero(rough)} scales are subnormal in {wanted}, for example {scale[rough][0]}"
        warnings.warn(
            f'{found}, and are rounded more than others: values become less precise; pass scale_dtype="float32"',
            stacklevel=4,
        )
    return stored


def checked_block_size(given: int, inputs: int, blocks: int) -> int:
    """Return the number of inputs in a block, as given or from the number of blocks; else raise ValueError."""
    size = given or -(-inputs // blocks)
    if -(-inputs // size) != blocks:
        raise ValueError(f"block_size {size} does not cut {inputs} inputs into {blocks} blocks")
    return size
