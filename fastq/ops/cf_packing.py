"""Pack floats as integers, and unpack them, as the CF conventions have it: the launches behind `fastq.xarray`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime import result_pool
from fastq.engine.runtime.boundary import in_standard_mode
from fastq.engine.runtime.driver import LaunchPlan, bind, plan_launch, run
from fastq.engine.runtime.tiling import WHOLE_BYTES
from fastq.kernels.pointers import PackOperands, UnpackOperands
from fastq.plan import policy
from fastq.plan.cache import BoundCall, Call, Operation
from fastq.plan.copies import copy_from
from fastq.plan.kernel_call import kernel_args, load_or_compile_cf_packing, load_or_compile_cf_unpacking
from fastq.plan.layout import NO_LAYOUT
from fastq.plan.policy import store_mode
from fastq.plan.result import result_of
from fastq.plan.slots import CONVERT
from fastq.requests.cf_unpacking import UnpackOptions, cf_unpack_request
from fastq.system.arguments import native

Array = NDArray[Any]

PACKED_INTEGERS = frozenset(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32))


@in_standard_mode
def pack_floats(
    x: Array, dtype: np.dtype[Any], *, code_range: tuple[int, int], scale: float, offset: float, fill: int
) -> Array:
    """Return ``rint((x - offset) / scale)``, clamped to a range, as one of `PACKED_INTEGERS`; NaN becomes `fill`.

    x is float16, float32 or float64. All is computed in float32, or in float64 where x or codes of 32 bits need it.
    """
    src = native(x.dtype)
    result: Array = result_pool.empty(x.shape, dtype)
    if not x.size:
        return result
    # float32 can't represent all bounds of 32 bits
    compute = np.dtype(np.float64 if dtype.itemsize == 4 or src.itemsize == 8 else np.float32)
    kernel = load_or_compile_cf_packing(PackOperands(src, dtype, compute, compute))
    args = kernel_args(NO_LAYOUT, code_range, nan_code=fill)
    gather = copy_from(x)
    source = x if gather is None else gather(x)
    run(_plan(kernel, args, x.size), source, result, np.array([scale], compute), np.array([offset], compute))
    return result


def _resolve_unpack_array(arguments: Call, codes: Array, out: None, scale_factor: Any, add_offset: Any) -> BoundCall:
    """Resolve `fastq.xarray.unpack_array`."""
    if native(codes.dtype) not in PACKED_INTEGERS:
        raise TypeError(f"codes must be integers of 8, 16 or 32 bits, not {codes.dtype}")
    request = cf_unpack_request(codes.dtype, arguments.options, scale_factor, add_offset)
    values = _bind_unpack(codes, dtype=request.dtype, computed=request.computed, gaps=request.gaps)
    ready = request.ready

    def unpack_array(codes: Array, out: None, scale_factor: Any, add_offset: Any, *_: object) -> Array:
        scale, offset = ready(scale_factor, add_offset)
        return values(codes, scale, offset)

    return unpack_array


UNPACK_ARRAY = Operation(
    name="UNPACK_ARRAY",
    function="xarray.unpack_array",
    resolve=_resolve_unpack_array,
    options=UnpackOptions,
    operands=("codes", "out", "scale_factor", "add_offset"),
)


@in_standard_mode
def unpack_integers(x: Array, dtype: np.dtype[Any], scale: Array, offset: Array, gaps: tuple[int, ...] = ()) -> Array:
    """Return ``x * scale + offset``, and NaN for gaps, of an array of `PACKED_INTEGERS` as float32 or float64.

    The product and the sum are each rounded to the dtype of scale and offset, arrays of one number, which is float32 or
    float64. `gaps` are numbers of the dtype of x.
    """
    return _bind_unpack(x, dtype=dtype, computed=scale.dtype, gaps=gaps)(x, scale, offset)


def _bind_unpack(
    x: Array, *, dtype: np.dtype[Any], computed: np.dtype[Any], gaps: tuple[int, ...]
) -> Callable[[Array, Array, Array], Array]:
    """Return what unpacks arrays of the dtype, shape and strides of x, given scale and offset."""
    src = native(x.dtype)
    new = result_of(x.shape, dtype, None).new
    if not x.size:
        return lambda x, scale, offset: new()
    # The kernel compares with two gaps: of one twice, and without gaps not at all. Any others are rare, and are marked
    # afterwards.
    first_gap, second_gap = (*gaps, *gaps, 0, 0)[:2]
    kernel = load_or_compile_cf_unpacking(UnpackOperands(src, dtype, computed, computed), bool(gaps))
    streaming = store_mode(x.size, src, dtype, codes=False)
    args = kernel_args(NO_LAYOUT, first_gap=first_gap, second_gap=second_gap, streaming=streaming)
    launch = bind(_plan(kernel, args, x.size))
    gather = copy_from(x)

    def values(x: Array, scale: Array, offset: Array) -> Array:
        result: Array = new()
        launch(x if gather is None else gather(x), result, scale, offset)
        for gap in gaps[2:]:
            result[x == gap] = np.nan
        return result

    return values


def _plan(kernel: int, args: Array, size: int) -> LaunchPlan:
    """Plan one launch on contiguous elements, by a scale and an offset for all of them."""
    threads = policy.threads_for(size)
    return plan_launch(kernel, CONVERT, args, size, threads, chunk_multiple=WHOLE_BYTES)
