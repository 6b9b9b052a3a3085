"""Calls that were made before: what was found out about them is not found out again.

A call is known by its facts (`kernels.facts`): everything about it but the elements of its arrays. If one like it went
well, its program runs at once, 0.5 us after the call instead of 4.5. The driver of programs looks at what may still be
wrong, the values of scale and zero point and memory that input and output share. Whatever it finds, the call takes the
long way, which knows the error.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq import buffers
from fastq.forms import Call, Parameters, in_bits
from fastq.qarray import QParams
from fastq.qtypes import QType

if TYPE_CHECKING:
    from fastq.kernels.program import Program

Array = NDArray[Any]

MOST = 1024  # calls that are known; then all are forgotten
# Calls after which it begins: that takes 1.5 s if there is no machine code on disk yet, else 30 ms, and saves 4 us.
AFTER = 100


class Known(NamedTuple):
    """A call that was made before.

    Attributes
    ----------
    run : callable
        Runs its program on operands; 0 if all went well.
    new : callable
        Makes an array for the result.
    given : Any
        What else the function that was called needs.
    kept : tuple
        What its facts tell by the address; not its arrays.
    """

    run: Callable[..., int]
    new: Callable[[], Array]
    given: Any
    kept: tuple[object, ...]


def _count(*arguments: object) -> bytes:
    """Take the place of `kernels.facts` until there were so many calls that it is worth being compiled or loaded."""
    global _calls
    _calls += 1
    if _calls == AFTER:
        start()
    return b""


facts: Callable[..., bytes] = _count
_calls = 0
_known: dict[bytes, Known] = {}
find = _known.get


def start() -> None:
    """Begin to tell facts."""
    global facts
    from fastq.kernels import parallel
    from fastq.kernels.facts import facts as compiled

    if facts is _count:
        parallel.when_changed(_known.clear)
        facts = compiled()


def remember(key: bytes, arguments: tuple[object, ...], program: Program, result: Array, given: Any = None) -> None:
    """Know a call again by its facts, which are those of these arguments."""
    from fastq.kernels.program import bound

    if len(_known) >= MOST:
        _known.clear()
    dtypes = tuple(one.dtype for one in arguments if isinstance(one, np.ndarray))
    empty = buffers.empty if result.nbytes >= buffers.LARGE else np.empty
    new = functools.partial(empty, result.shape, result.dtype)
    _known[key] = Known(bound(program), new, given, (arguments[4:], dtypes))


def remember_extents(
    key: bytes, arguments: tuple[object, ...], x: Array, axes: tuple[int, ...] | None, block_size: int, nan: str
) -> None:
    """Know a reduction to minima and maxima again, of an array that holds them in its own dtype."""
    if not key:
        return
    from fastq import execute

    extents = execute.prepare_extents_as_is(x, axes, block_size, nan)
    if extents is not None and extents.dtype == x.dtype:
        remember(key, arguments, extents.whole, x, extents)


def remember_ranged(
    key: bytes, arguments: tuple[object, ...], call: Call, x: Array, result: Array, params: QParams
) -> None:
    """Know a call again that takes its parameters from ranges, and got these."""
    if not key:
        return
    from fastq import execute
    from fastq.kernels.program import Checks

    ranged = execute.prepare_ranged_as_is(call, x, result)
    if ranged is not None:
        program = ranged.program.checked(Checks((x.nbytes, result.nbytes, 0, 0)))
        scale, zero_point = params.scale, params.zero_point
        new_scale = functools.partial(np.empty, scale.shape, scale.dtype)
        new_zero_point = functools.partial(np.zeros, zero_point.shape, zero_point.dtype)
        without = params.with_values(np.empty(0), np.empty(0))
        remember(key, arguments, program, result, (ranged, new_scale, new_zero_point, without))


def remember_given(
    key: bytes,
    arguments: tuple[object, ...],
    call: Call,
    x: Array,
    result: Array,
    ready: Parameters,
    qtype: QType,
    signed: bool,
) -> None:
    """Know a call with given parameters again, if those that it got are ready for its kernel."""
    if not key or not x.size or ready.tensor:
        return
    from fastq import execute
    from fastq.kernels.program import Checks

    scale, zero = ready.scale, ready.zero
    if not _passes(arguments[2], scale, (float, np.float64)) or not _passes_zero(arguments[3], zero, qtype):
        return
    ready = ready.in_bits
    prepared = execute.prepare_as_is(call, in_bits(x), result, ready.scale.dtype, ready.zero.dtype)
    if prepared is None or prepared.repeat > 1:
        return
    checks = Checks(
        (x.nbytes, result.nbytes, scale.nbytes, zero.nbytes),
        scale.itemsize if scale.dtype.kind == "f" else 0,
        signed,
        zero.itemsize,
        (0, 0) if qtype.element else (qtype.qmin, qtype.qmax),
    )
    remember(key, arguments, prepared.program.checked(checks), result, ready.zero if arguments[3] is None else None)


def _passes(given: object, ready: Array, numbers: tuple[type, ...]) -> bool:
    """Whether kernels can read what was given, or the driver makes it so, as Python made it `ready`."""
    if given is ready:
        return True
    kind = type(given)
    return not ready.shape and (kind in numbers or (kind is ready.dtype.type and _scalars_are_as_expected(ready.dtype)))


def _passes_zero(given: object, ready: Array, qtype: QType) -> bool:
    if given is None:
        return True
    is_number = bool(qtype.element) or ready.dtype.kind in "iu"
    checked = ready.itemsize == 1 or (qtype.fills_storage and not qtype.element)  # the driver looks at bytes
    return is_number and checked and _passes(given, ready, (int,))


@functools.cache
def _scalars_are_as_expected(dtype: np.dtype[Any]) -> bool:
    """Whether scalars of NumPy or ml_dtypes have their value where the driver reads it: first of what is their own."""
    one = dtype.type(1)
    value = np.array(one).tobytes()
    return ctypes.string_at(id(one) + object.__basicsize__, len(value)) == value
