"""Shared parts of layouts: codes with their parameters as rows and blocks, tensors by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.formats.conventions.table import as_convention
from fastq.formats.floats import are_subnormal
from fastq.formats.granularity import granularity
from fastq.formats.qtypes import QType, as_qtype
from fastq.ops.nest_scale import NestedScale
from fastq.ops.packing import pack
from fastq.requests.parameters import check_qparams
from fastq.results import QParams, QuantizedArray
from fastq.system.arguments import native
from fastq.system.arrays_of_callers import as_array
from fastq.system.callers import warn_caller
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


def check_format(qtype: QType, layout: Layout, name: str) -> None:
    """Raise ValueError unless a layout supports a format, which may also be signed: int4 where the layout has uint4.

    `name` is what the error calls the format.
    """
    if qtype.name not in (*layout.formats, *(name[1:] for name in layout.formats if name[0] == "u")):
        raise ValueError(f"{name} must be one of {', '.join(layout.formats)} for layout {layout.name!r}, not {qtype}")


class Writing(NamedTuple):
    """The layout to write, and the options of `to_tensors`."""

    layout: Layout
    scale_dtype: np.dtype[Any] | None
    g_idx: ArrayLike | None
    nested: NestedScale | None


class Reading(NamedTuple):
    """The layout and the tensors to read, and the options of `from_tensors`."""

    layout: Layout
    tensors: dict[str, Array]
    qtype: QType
    shape: tuple[int, ...] | None
    block_size: int
    sort_inputs: bool

    def get(self, name: str, dtype: str = "") -> Array:
        """Return a tensor in the byte order of the machine; raise an error if it is missing or has another dtype.

        An empty `dtype` allows any.
        """
        if name not in self.tensors:
            names = sorted(self.tensors)
            raise ValueError(f"tensors must have {name!r} for layout {self.layout.name!r}; they have {names}")
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
        matrix = self.get(name, dtype)
        if matrix.ndim != 2 or not matrix.size:
            raise ValueError(f"{name} must be a matrix with elements, not of shape {matrix.shape}")
        return matrix

    def of_shape(self, name: str, dtype: str, *shape: int) -> Array:
        """Return a tensor; raise an error unless it has a dtype, or any if that is empty, and a shape."""
        array = self.get(name, dtype)
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape}, but the other tensors need shape {shape}")
        return array


class BlockedWeight(NamedTuple):
    """The parts of a weight of N outputs and K inputs, in G blocks of inputs."""

    codes: Array  # unsigned, of shape (N, K)
    scale: Array  # of shape (N, G)
    zero_point: Array  # of shape (N, G)
    bits: int
    block_size: int  # inputs in a block

    @property
    def qtype(self) -> QType:
        """The code format."""
        return as_qtype(f"uint{self.bits}")

    def as_array(self) -> QuantizedArray:
        """Return the weight as a QuantizedArray.

        ONNX Runtime and auto-round have scales below 0, which only the convention "matmul-nbits" allows.
        """
        convention = "matmul-nbits" if (self.scale < 0).any() else "onnx"
        codes = pack(self.codes, self.qtype) if self.qtype.packed else self.codes
        zero_point = self.zero_point.astype(np.uint8)
        params = QParams(
            scale=self.scale,
            zero_point=zero_point,
            dtype=self.qtype,
            axis=1,
            block_size=self.block_size,
            convention=convention,
        )
        return without_zero_scales(QuantizedArray(codes, params, self.codes.shape), "scales")


def without_zero_scales(q: QuantizedArray, name: str) -> QuantizedArray:
    """Return a stored array; where a scale is 0, with the codes of zeros, or of the offset, and a scale of 1.

    The values are the same as ``(code - zero_point) * 0``, or ``offset + code * 0``. Groups of zeros have such scales,
    and experts that calibration never met. Raise ValueError, with the name of the scales, if other scales are not
    positive and finite.
    """
    scale = as_array(q.scale, "q.scale").astype(np.float32, copy=False)
    convention = as_convention(q.convention)
    magnitude = np.abs(scale) if convention.signed_scale else scale
    bad = scale[~((magnitude >= 0) & (magnitude < np.inf))]
    if bad.size:
        raise ValueError(f"{name} has a scale of {bad[0]}, which must be 0 or more and finite")
    is_zero = scale == 0
    if not is_zero.any():
        return q
    zeros = 0 if convention.zero_point == "offset" else _for_elements(q.zero_point, q)
    codes = np.where(_for_elements(is_zero, q), zeros, q.unpacked()).astype(q.dtype.storage)
    params = q.qparams.with_values(np.where(is_zero, np.ones_like(q.scale), q.scale), q.zero_point)
    return QuantizedArray(pack(codes, q.dtype) if q.dtype.packed else codes, params, q.shape)


def _for_elements(parameters: Array, q: QuantizedArray) -> Array:
    """Return the parameter of each element of an array, in a shape that broadcasts with it."""
    kept = granularity(q.axis, q.block_size, q.ndim).kept
    if q.block_size:
        axis_of_blocks = kept[0]
        in_whole_blocks = np.repeat(parameters, q.block_size, axis_of_blocks)
        return in_whole_blocks.take(range(q.shape[axis_of_blocks]), axis_of_blocks)  # the last block may be cut off
    return parameters.reshape([n if axis in kept else 1 for axis, n in enumerate(q.shape)])


def parameters_of(q: QuantizedArray) -> tuple[Array, Array]:
    """Return the scale and the zero point of each block of an array; single numbers serve for all."""
    params = check_qparams(q.qparams, q.shape, q.qparams.compute_dtype)
    shape = granularity(q.axis, q.block_size, q.ndim).parameter_shape(q.shape)
    return _broadcast_parameter(params.scale, shape), _broadcast_parameter(params.zero_point, shape)


def _broadcast_parameter(parameter: Array, shape: tuple[int, ...]) -> Array:
    """Return a parameter in a shape; a single number in any shape serves for all elements."""
    return np.broadcast_to(parameter if parameter.size > 1 else parameter.reshape(()), shape)


def weight_of(q: QuantizedArray, layout: Layout) -> BlockedWeight:
    """Return an array as layouts of integers store it: unsigned codes, and parameters by outputs and blocks.

    A row with one scale is one block. Raise ValueError if a layout has no place for the array.
    """
    check_format(q.dtype, layout, "the dtype of q")
    if q.ndim != 2:
        raise ValueError(f"q must have 2 dimensions, outputs and inputs, for layout {layout.name!r}, not {q.ndim}")
    kept = granularity(q.axis, q.block_size, q.ndim).kept
    # the axis along which blocks run, or the one with a scale for each index
    if kept != ((1,) if q.block_size else (0,)):
        raise ValueError(
            f"q must have blocks along axis 1, or a scale for each row (axis=0), for layout {layout.name!r}"
        )
    convention = as_convention(q.convention)
    if convention.zero_point != "integer" or convention.decode != "point":
        formula = f"(code - zero_point) * scale, as layout {layout.name!r} requires"
        raise ValueError(f"convention {convention.name!r} does not decode as {formula}")
    scale, zero_point = parameters_of(q)
    outputs, inputs = q.shape
    return BlockedWeight(
        codes=as_unsigned(q.unpacked(), q.dtype),
        scale=scale.reshape(outputs, -1),
        zero_point=as_unsigned(zero_point.reshape(outputs, -1), q.dtype),
        bits=q.dtype.bits,
        block_size=q.block_size or inputs,
    )


def as_unsigned(codes: Array, qtype: QType) -> NDArray[np.uint8]:
    """Return codes, or zero points, as numbers from 0 on: int4 from -8 to 7 becomes 0 to 15."""
    return (codes.astype(np.int16) - qtype.qmin).astype(np.uint8)


def stored_scale(scale: Array, dtype: np.dtype[Any] | None, default: str = "") -> Array:
    """Return scales in C order in the requested dtype, else in the default, else in their own.

    Raise ValueError if one becomes infinite or 0 there; warn if one becomes subnormal and is rounded. Others do other
    things with such scales: see `are_subnormal`.
    """
    dtype = dtype or (np.dtype(default) if default else scale.dtype)
    with np.errstate(over="ignore", under="ignore"):
        stored = np.ascontiguousarray(scale, dtype)
    values = stored.astype(np.float64)
    is_lost = ~np.isfinite(values) | ((stored == 0) & (scale != 0))
    if is_lost.any():
        count = f"{np.count_nonzero(is_lost)} scales overflow or underflow in {dtype}, for example {scale[is_lost][0]}"
        raise ValueError(f'{count}; pass scale_dtype="float32"')
    is_rough = are_subnormal(values, dtype) & (values != scale.astype(np.float64))
    if is_rough.any():
        count = f"{np.count_nonzero(is_rough)} scales are subnormal in {dtype}, for example {scale[is_rough][0]}"
        warn_caller(
            f'{count}, and are rounded more than others: values become less precise; pass scale_dtype="float32"'
        )
    return stored


def checked_block_size(block_size: int, inputs: int, blocks: int) -> int:
    """Return the number of inputs in a block, as asked for or, if that is 0, by the number of blocks.

    Raise ValueError if it does not cut the inputs into that number of blocks.
    """
    size = block_size or -(-inputs // blocks)
    if -(-inputs // size) != blocks:
        raise ValueError(f"block_size {size} does not cut {inputs} inputs into {blocks} blocks")
    return size
