"""Make scale and zero point ready for kernels, and say where results are written."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch import validation
from fastq.dispatch.spec import Parameters, as_bits
from fastq.dispatch.strides import extent_of, inverse, memory_order
from fastq.engine.runtime import result_pool
from fastq.engine.runtime.cpython import keeps_value
from fastq.engine.runtime.driver import Checks
from fastq.formats.conventions import Convention
from fastq.formats.qtypes import QType
from fastq.results.storage import packed_shape
from fastq.system.arguments import native

Array = NDArray[Any]


# --- results ----------------------------------------------------------------------------------------------------------


class Result(NamedTuple):
    """Shape and dtype of a result, and what makes an array for it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    new: Callable[[], Array]

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return math.prod(self.shape) * self.dtype.itemsize


def result_of(shape: tuple[int, ...], dtype: np.dtype[Any], out: Any, like: Array | None = None) -> Result:
    """Return shape, dtype and allocator of a result in C order, or in the memory order of an array; check out.

    Raises
    ------
    TypeError, ValueError
        If out is not as described.
    MemoryError
        If the result has more bytes than an array of NumPy can have, as that of a broadcast array may.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    if out is not None:
        validation.check_out(out, shape, dtype)
    elif nbytes > np.iinfo(np.intp).max:
        raise MemoryError(f"a result of shape {shape} and dtype {dtype} has {nbytes} bytes, more than any memory")
    if like is not None and not like.flags.c_contiguous:
        order = memory_order(like)
        in_memory = tuple(shape[axis] for axis in order)
        return Result(shape, dtype, functools.partial(_empty_in_order, in_memory, dtype, inverse(order)))
    large = nbytes >= result_pool.LARGE
    return Result(shape, dtype, functools.partial(result_pool.empty if large else np.empty, shape, dtype))


def _empty_in_order(in_memory: tuple[int, ...], dtype: np.dtype[Any], axes: tuple[int, ...]) -> Array:
    """Return an array of anything, of a shape in memory, with its axes in another order."""
    return result_pool.empty(in_memory, dtype).transpose(axes)


def codes_result(x: Array, qtype: QType, out: Any) -> Result:
    """Return shape, dtype and allocator of the codes of an array."""
    if qtype.packed:
        return result_of(packed_shape(x.shape, qtype), np.dtype(np.uint8), out)
    return result_of(x.shape, qtype.storage, out, like=x)


def values_result(x: Array, out: Any) -> Result:
    """Return shape, dtype and allocator of the fake quantized values of an array: of its dtype, or the compute type."""
    dtype = native(x.dtype) if validation.is_real(x.dtype) else validation.compute_dtype(x.dtype)
    return result_of(x.shape, dtype, out, like=x)


# --- given parameters -------------------------------------------------------------------------------------------------


class ParameterRules(NamedTuple):
    """What scale and zero point must be for a code format under a convention.

    Attributes
    ----------
    qtype : QType
        The code format.
    convention : Convention
        Whose scales may be negative, and whose zero points may be floats.
    scale_dtype : dtype
        Type of scales, where the format does not prescribe it.
    block_size : int
        Elements in a block.
    """

    qtype: QType
    convention: Convention
    scale_dtype: np.dtype[Any]
    block_size: int = 0

    def ready(self, scale: Any, zero_point: Any, tensor_scale: Any = None) -> Parameters:
        """Return parameters in the dtypes that kernels read.

        Raises
        ------
        TypeError, ValueError
            If an argument is not what it must be; the message names it.
        """
        scale, tensor = self.ready_scale(scale), self.ready_tensor_scale(tensor_scale)
        return Parameters(scale, self.ready_zero_point(zero_point, scale), tensor)

    def ready_scale(self, scale: Any) -> Array:
        """Return scales in the dtype that kernels read."""
        if self.qtype.scale_element:
            return validation.as_own_scale(scale, self.qtype, self.block_size)
        if self.qtype.codebook:
            return validation.as_finite_scale(scale, self.scale_dtype)
        return validation.as_scale(scale, self.scale_dtype, self.convention.signed_scale)

    def ready_tensor_scale(self, tensor_scale: Any) -> float:
        """Return the scale of the whole array, 0 where there is none."""
        return 0.0 if tensor_scale is None else validation.check_tensor_scale(tensor_scale, self.qtype)

    def ready_zero_point(self, zero_point: Any, scale: Array) -> Array:
        """Return zero points in the dtype that kernels read, beside scales that are ready."""
        if zero_point is None:
            return np.zeros(scale.shape, self.convention.zero_point_dtype(self.qtype, scale.dtype))
        if self.convention.zero_point == "integer":
            return validation.as_zero_point(zero_point, self.qtype, scale.shape)
        return validation.as_float_zero_point(zero_point, scale.dtype, scale.shape)

    def checks(self, x: Array, out: Array | None, result_nbytes: int, given: Parameters) -> Checks:
        """Return what the driver has to look at before it launches kernels; out is None for a result to be made."""
        (low_x, nbytes_x), (low_out, nbytes_out) = (
            (0, nbytes) if each is None else extent_of(each) for each, nbytes in ((x, 0), (out, result_nbytes))
        )
        scale, zero_point = as_bits(given.scale), as_bits(given.zero_point)
        return Checks(
            (nbytes_x, nbytes_out, scale.nbytes, zero_point.nbytes),
            scale.dtype,
            self.convention.signed_scale or self.qtype.codebook is not None,
            zero_point.dtype,
            (0, 0) if self.qtype.element else (self.qtype.qmin, self.qtype.qmax),
            (given.scale.dtype.type, given.zero_point.dtype.type),
            (low_x, low_out),
            self.qtype.codebook is not None,
        )

    def pass_as_they_are(self, scale: Any, zero_point: Any, given: Parameters) -> bool:
        """Whether the driver can read parameters as the caller gave them once they are contiguous.

        `given` are the same made ready.
        """
        if not _passes(scale, given.scale, (float, np.float64)):
            return False
        if zero_point is None:
            return given.zero_point.nbytes <= _KEPT_ZEROS
        ready = given.zero_point
        if self.convention.zero_point != "integer":
            return _passes(zero_point, ready, (float, np.float64))
        checked = ready.itemsize == 1 or (self.qtype.fills_storage and not self.qtype.element)  # the driver reads bytes
        return checked and _passes(zero_point, ready, (int,))


_KEPT_ZEROS = 1 << 16  # bytes of zero points that a plan may keep for callers who give none


def _passes(given: object, ready: Array, numbers: tuple[type, ...]) -> bool:
    if given is ready:
        return ready.flags.aligned and ready.dtype.isnative
    kind = type(given)
    return not ready.shape and (kind in numbers or (kind is ready.dtype.type and keeps_value(ready.dtype)))
