"""Launch plans on arrays of callers: what the driver refuses is explained, or made ready and launched again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime.boundary import in_standard_mode, keeps_value
from fastq.engine.runtime.driver import UNFIT, refuse_all_operands

Array = NDArray[Any]
# Runs on x, a result and other operands, and returns the status. The others are the parameters, as those of slots.py.
# Operations that take these from ranges have three more *beside* them, each None where there is none: the scale of the
# whole array, the importance of elements, and the noise by which codes are rounded.
Execute = Callable[..., int]


def run_on_no_elements(*operands: Any) -> int:
    """Return the status of a launch on an array without elements, for which there is nothing to do."""
    return 0


def operands_unchanged(*operands: Any) -> tuple[Any, ...]:
    """Return operands as they are: the `ready` of operations whose operands need no conversion."""
    return operands


class BoundLaunch(NamedTuple):
    """A plan that is bound to the driver: closures of the plan cache call `launch`, and `settle` for a status but 0."""

    refuse: Callable[..., None]  # raises the error of a status, if any, with the operands that were read
    execute: Execute  # runs on prepared operands
    # the compiled driver on operands as they are given, with its checks; by default it refuses all
    launch: Execute = refuse_all_operands
    # returns the remaining operands, converted; raises errors about their elements
    ready: Callable[..., tuple[Any, ...]] = operands_unchanged
    # `execute` for a copy of x, which may have other strides, and a result. None if nothing is written with which x may
    # share memory
    execute_for: Callable[[Array, Array], Execute] | None = None
    strides: tuple[int, ...] | None = None  # the strides of x for `execute`

    @in_standard_mode
    def settle(self, status: int, x: Array, out: Any, *operands: Any) -> None:
        """Launch again what the driver has refused, and raise the error of the status.

        x and operands that share memory with the result are copied first, and the copies explain the error, since the
        result is written by then.
        """
        if status == UNFIT:
            status, x, *operands = self._again(x, out, *operands)  # type: ignore[assignment]
        if status:
            self.refuse(status, x, out, *operands)

    def _again(self, x: Array, out: Any, *operands: Any) -> tuple[Any, ...]:
        """Run on converted operands, and on copies of those that share memory with out.

        Return the status, and then x and the operands that were read.
        """
        operands = self.ready(*operands)
        target = np.asarray(out)
        execute = self.execute
        if self.execute_for is not None:
            x, *operands = _copy_if_overlapping(target, x, *operands)  # type: ignore[assignment]
            execute = execute if x.strides == self.strides else self.execute_for(x, target)
        return execute(x, target, *operands), x, *operands


def is_read_as_it_is(number: object, dtype: np.dtype[Any], numbers: tuple[type, ...]) -> bool:
    """Whether the driver can read a number that is not in an array: of a dtype, or of one of some types."""
    number_type = type(number)
    return number_type in numbers or (number_type is dtype.type and keeps_value(dtype))


def _copy_if_overlapping(out: Array, *arrays: Any) -> tuple[Any, ...]:
    """Return operands, of which arrays are copied where out shares memory with them.

    A copy has the strides of its original where that has no gaps and goes forward, so that a plan holds for it.
    """
    return tuple(x.copy("K") if isinstance(x, np.ndarray) and _share_memory(x, out) else x for x in arrays)


def _share_memory(x: Array, out: Array) -> bool:
    """Whether arrays have an element's byte in common, or may have, where that takes too long to find out."""
    # each owns its memory: an array without a base may not, for example if compiled code made it from an address
    if x.flags.owndata and out.flags.owndata:
        return x is out
    if not np.may_share_memory(x, out):
        return False
    try:
        return np.shares_memory(x, out, max_work=10_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True
