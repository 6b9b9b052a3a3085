"""Say where results are written, and what the driver has to look at in the parameters that callers give."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.strides import extent_of, inverse, memory_order
from fastq.engine.runtime import result_pool
from fastq.engine.runtime.cpython import keeps_value
from fastq.engine.runtime.driver import Checks
from fastq.formats.qtypes import QType
from fastq.requests.arrays import check_out
from fastq.requests.parameters import ParameterRules, Parameters
from fastq.results.storage import stored_as

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
        check_out(out, shape, dtype)
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
    return result_of(*stored_as(x.shape, qtype), out, like=None if qtype.packed else x)


# --- given parameters -------------------------------------------------------------------------------------------------


def in_bits(given: Parameters) -> Parameters:
    """Return parameters as kernels can read them."""
    return given._replace(scale=as_bits(given.scale), zero_point=as_bits(given.zero_point))


def as_bits(array: Array) -> Array:
    """Return an array of one-byte floats of ml_dtypes as the bits of its elements, any other as it is."""
    return array if array.dtype.kind in "iu" or array.dtype.itemsize > 1 else array.view(np.uint8)


def checks_of(rules: ParameterRules, x: Array, out: Array | None, result_nbytes: int, given: Parameters) -> Checks:
    """Return what the driver has to look at before it launches kernels; out is None for a result to be made.

    `given` are parameters that are ready.
    """
    (low_x, nbytes_x), (low_out, nbytes_out) = extent_of(x), (0, result_nbytes) if out is None else extent_of(out)
    qtype, (scale, zero_point, _) = rules.qtype, in_bits(given)
    return Checks(
        (nbytes_x, nbytes_out, scale.nbytes, zero_point.nbytes),
        scale.dtype,
        rules.convention.signed_scale or qtype.codebook is not None,
        zero_point.dtype,
        (0, 0) if qtype.element else (qtype.qmin, qtype.qmax),
        (given.scale.dtype.type, given.zero_point.dtype.type),
        (low_x, low_out),
        qtype.codebook is not None,
    )


def pass_as_they_are(rules: ParameterRules, scale: Any, zero_point: Any, ready: Parameters) -> bool:
    """Whether the driver can read parameters as the caller gave them once they are contiguous.

    `ready` are the same made ready.
    """
    if not _passes(scale, ready.scale, (float, np.float64)):
        return False
    zero, qtype = ready.zero_point, rules.qtype
    if zero_point is None:
        return zero.nbytes <= _KEPT_ZEROS
    if rules.convention.zero_point != "integer":
        return _passes(zero_point, zero, (float, np.float64))
    checked = zero.itemsize == 1 or (qtype.fills_storage and not qtype.element)  # the driver reads bytes
    return checked and _passes(zero_point, zero, (int,))


_KEPT_ZEROS = 1 << 16  # bytes of zero points that a plan may keep for callers who give none


def _passes(given: object, ready: Array, numbers: tuple[type, ...]) -> bool:
    if given is ready:
        return ready.flags.aligned and ready.dtype.isnative
    kind = type(given)
    return not ready.shape and (kind in numbers or (kind is ready.dtype.type and keeps_value(ready.dtype)))
