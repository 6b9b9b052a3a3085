"""Cast floats to integers: the launches behind `fastq.zarr` and `fastq.xarray`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.copies import copy_from
from fastq.dispatch.planner import kernel_args
from fastq.dispatch.strides import Layout
from fastq.engine.runtime import result_pool, threadpool
from fastq.engine.runtime.boundary import in_standard_mode
from fastq.engine.runtime.driver import VALUES, plan_launch, run
from fastq.engine.runtime.tiling import WHOLE_BYTES
from fastq.kernels.addresses import cast_address
from fastq.kernels.args import ElementOperands
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
    `code_range`, by default all integers, and the status says that there are some. `fill` is the integer of NaN, and
    infinities are then out of range; by default the status tells of both.
    """
    src, result = native(x.dtype), result_pool.empty(x.shape, dtype)
    if not x.size:
        return result, 0
    if gather := copy_from(x):
        x = gather(x)
    # float32 has not all bounds of 32 bits
    compute = np.dtype(np.float64 if dtype.itemsize == 4 or src.itemsize == 8 else np.float32)
    info, scaled = np.iinfo(dtype), (scale, offset) != (1.0, 0.0)
    least, most = code_range or (info.min, info.max)
    spec = rounding, wraps, "raise" if fill is None else "keep", scaled
    args = kernel_args(Layout(1, x.size, 1, x.size, 1, 1, 1, ()), (least, most), size=fill or 0)
    threads = threadpool.threads_for(x.size)
    kernel = cast_address(ElementOperands(src, dtype, compute, compute), *spec)
    plan = plan_launch(kernel, VALUES, args, x.size, threads, chunk_multiple=WHOLE_BYTES)
    units = (np.array([scale], compute), np.array([offset], compute))
    return result, run(plan, x, result, *units)
