"""Copy arrays between contiguous and other memory: tile by tile, on all threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from fastq.dispatch.planner import StridedOperands, plan_copy
from fastq.dispatch.strides import memory_of, memory_of_out
from fastq.engine.runtime import result_pool
from fastq.engine.runtime.driver import UNFIT, LaunchPlan, bind
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
