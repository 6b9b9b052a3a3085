"""Cast floats to integers, and unpack integers to floats: the launches behind `fastq.zarr` and `fastq.xarray`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.copies import copy_from
from fastq.dispatch.planner import kernel_args, store_mode
from fastq.dispatch.strides import NO_LAYOUT
from fastq.engine.runtime import result_pool, threadpool
from fastq.engine.runtime.boundary import in_standard_mode
from fastq.engine.runtime.driver import VALUES, plan_launch, run
from fastq.engine.runtime.tiling import WHOLE_BYTES
from fastq.kernels.addresses import cast_address, unpack_address
from fastq.kernels.args import CastOperands, UnpackOperands
from fastq.system.arguments import native

Array = NDArray[Any]

SOURCES = frozenset(map(np.dtype, ("float16", "float32", "float64")))
TARGETS = frozenset(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32))


@in_standard_mode
def cast_floats(
    x: Array,
    dtype: np.dtype[Any],
    rounding: str = "half_even",
    *,
    wraps: bool = False,
    code_range: tuple[int, int] | None = None,
    scale: float = 1.0,
    offset: float = 0.0,
    fill: int | None = None,
) -> tuple[Array, int]:
    """Cast an array of `SOURCES` to one of `TARGETS`; return it and the status.

    ``(x - offset) / scale`` is cast, in the type to compute in, rounded by a key of
    ``fastq.kernels.formulas.ROUNDING``. With `wraps` values out of range wrap around; else they are clamped to
    `code_range`, by default all integers, and the status reports them. `fill` is the integer for NaN, and infinities
    are then out of range; by default the status reports both.
    """
    src, result = native(x.dtype), result_pool.empty(x.shape, dtype)
    if not x.size:
        return result, 0
    # float32 can't represent all bounds of 32 bits
    compute = np.dtype(np.float64 if dtype.itemsize == 4 or src.itemsize == 8 else np.float32)
    info, scaled = np.iinfo(dtype), (scale, offset) != (1.0, 0.0)
    least, most = code_range or (info.min, info.max)
    spec = rounding, wraps, "raise" if fill is None else "keep", scaled
    kernel = cast_address(CastOperands(src, dtype, compute, compute), *spec)
    args = kernel_args(NO_LAYOUT, (least, most), size=fill or 0)
    return result, _launched(kernel, args, x, result, np.array([scale], compute), np.array([offset], compute))


@in_standard_mode
def unpack_integers(x: Array, dtype: np.dtype[Any], scale: Array, offset: Array, gaps: Sequence[int] = ()) -> Array:
    """Return ``x * scale + offset``, and NaN for gaps, of an array of `TARGETS` as float32 or float64.

    The product and the sum are each rounded to the dtype of scale and offset, arrays of one number, which is float32 or
    float64. `gaps` are numbers of the dtype of x.
    """
    src, result = native(x.dtype), result_pool.empty(x.shape, dtype)
    if not x.size:
        return result
    first, second = (*gaps, *gaps, 0, 0)[:2]
    kernel = unpack_address(UnpackOperands(src, dtype, scale.dtype, offset.dtype), bool(gaps))
    streaming = store_mode(x.size, src, dtype, codes=False)
    args = kernel_args(NO_LAYOUT, size=first, partials=second, streaming=streaming)
    _launched(kernel, args, x, result, scale, offset)
    for gap in gaps[2:]:
        result[x == gap] = np.nan
    return result


def _launched(kernel: int, args: Array, x: Array, result: Array, *units: Array) -> int:
    """Launch a kernel on arrays of any memory; return the status."""
    if gather := copy_from(x):
        x = gather(x)
    threads = threadpool.threads_for(x.size)
    return run(plan_launch(kernel, VALUES, args, x.size, threads, chunk_multiple=WHOLE_BYTES), x, result, *units)
