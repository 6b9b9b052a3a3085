"""Copy arrays between contiguous and other memory, tile by tile on all threads; pack and unpack codes of few bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.planner import plan_copy, plan_repack
from fastq.dispatch.strides import StridedOperands, memory_of, memory_of_out, with_last
from fastq.engine.runtime import result_pool
from fastq.engine.runtime.driver import UNFIT, LaunchPlan, bind
from fastq.kernels.storage import StorageFormat
from fastq.system.arguments import native

Array = NDArray[Any]


def copy_from(x: Array) -> Callable[[Array], Array] | None:
    """Return what copies arrays like this one to contiguous memory; None where kernels can work on them as they are."""
    memory, shape, dtype = memory_of(x), x.shape, native(x.dtype)
    if memory is None:
        return None
    copy = _copy(plan_copy(shape, dtype, StridedOperands(x=memory)))

    def gather(x: Array) -> Array:
        result = result_pool.empty(shape, dtype)
        copy(x, result)
        return result

    return gather


def copy_to(target: Array) -> Callable[[Array, Array], int] | None:
    """Return what copies contiguous memory to arrays like this one; None where kernels can work on them as they are."""
    memory = memory_of_out(target)
    if memory is None:
        return None
    return _copy(plan_copy(target.shape, native(target.dtype), StridedOperands(out=memory)))


def _copy(plan: LaunchPlan) -> Callable[[Array, Array], int]:
    """Return what launches a plan again and again, on arrays that fit it."""
    launch = bind(plan)

    def copy(source: Array, target: Array) -> int:
        status = launch(source, target)
        assert status != UNFIT
        return status

    return copy


# --- codes of few bits, along an axis ---------------------------------------------------------------------------------


def packer(
    codes: Array,
    packed: Array | None,
    code_format: StorageFormat,
    axis: int = -1,
    source: StorageFormat | None = None,
    op: str = "repack",
    nan: str = "raise",
) -> Callable[[Array, Array], int]:
    """Return what packs codes, or values of which one bit is kept, along an axis, and returns the status.

    It takes arrays of the same dtype, shape and strides as these; without `packed` one in C order. Codes lie in memory
    as `source` says, None: as their dtype does.
    """
    if not codes.size:
        return lambda codes, packed: 0
    order, kind = with_last(axis, codes.ndim), source or native(codes.dtype)
    rows, where = codes.transpose(order), None if packed is None else packed.transpose(order)

    def plan(part: Array) -> LaunchPlan | None:
        return plan_repack(part.shape, code_format, kind, code_format, StridedOperands(x=memory_of(part)), op, nan)

    launch, by_rows = _launcher(rows, plan)
    spread = None if where is None else copy_to(where)
    if spread is None and not by_rows:
        return launch

    def pack_rows(codes: Array, packed: Array) -> int:
        rows, where = codes.transpose(order) if by_rows else codes, packed.transpose(order)
        if spread is None:
            return launch(rows, where)
        result = np.empty(where.shape, np.uint8)
        status = launch(rows, result)
        spread(result, where)
        return status

    return pack_rows


def unpacker(
    packed: Array, codes: Array, code_format: StorageFormat, axis: int = -1
) -> Callable[[Array, Array], object]:
    """Return what writes packed codes along an axis one in a byte, for arrays of the same dtype, shape and strides."""
    if not codes.size:
        return lambda packed, codes: None
    order, target = with_last(axis, codes.ndim), native(codes.dtype)
    where, rows = packed.transpose(order), codes.transpose(order)

    def plan(part: Array) -> LaunchPlan | None:
        return plan_repack(part.shape, code_format, code_format, target, StridedOperands(out=memory_of_out(part)))

    launch, by_rows = _launcher(rows, plan)
    gather = copy_from(where)
    if gather is None and not by_rows:
        return launch

    def unpack_rows(packed: Array, codes: Array) -> None:
        where = packed.transpose(order)
        launch(where if gather is None else gather(where), codes.transpose(order) if by_rows else codes)

    return unpack_rows


def _launcher(rows: Array, plan: Callable[[Array], LaunchPlan | None]) -> tuple[Callable[[Array, Array], int], bool]:
    """Return what takes operands like these rows and returns the status, and whether it takes them row by row.

    So it does where rows are too long for a plan of all.
    """
    whole = plan(rows)
    if whole is not None:
        return bind(whole), False
    of_row = plan(rows[(0,) * (rows.ndim - 1)])
    assert of_row is not None  # one row alone ends where the array does
    launch, indices = bind(of_row), list(np.ndindex(rows.shape[:-1]))

    def launch_rows(x: Array, y: Array) -> int:
        status = 0
        for index in indices:
            status |= launch(x[index], y[index])
        return status

    return launch_rows, True
