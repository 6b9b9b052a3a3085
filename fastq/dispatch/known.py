"""Calls that were made before: what was found out about them is not found out again.

A call is known by its facts (`kernels.facts`): everything about it but the elements of its arrays. If two like it went
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

from fastq.dispatch.spec import Call, Parameters, in_bits
from fastq.formats.conventions import Convention
from fastq.formats.qtypes import QType
from fastq.results import QParams
from fastq.runtime import result_pool
from fastq.system import lazy

if TYPE_CHECKING:
    from fastq.runtime.driver import Program

Array = NDArray[Any]

MOST = 1024  # calls that are known; then the oldest is forgotten
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
    """Take the place of what tells facts until there were so many calls that it is worth being compiled or loaded."""
    global _calls, facts
    _calls += 1
    if _calls >= AFTER:
        try:
            start()
        except Exception:  # calls take the long way, as before
            facts = _nothing
    return b""


def _nothing(*arguments: object) -> bytes:
    return b""


facts: Callable[..., bytes] = _count
_calls = 0
_generation = 1  # counts how often all calls became unknown
_known: dict[bytes, Known] = {}
_seen: set[bytes] = set()  # calls that would be known if they came again
find = _known.get


def start() -> None:
    """Begin to tell facts."""
    global facts
    parallel, teller = lazy.module("fastq.runtime.threadpool"), lazy.module("fastq.kernels.facts").teller
    if facts is _count:
        parallel.when_changed(forget)
        facts = teller(QType, Convention)


def forget() -> None:
    """Make all calls unknown."""
    global _generation
    _generation += 1
    _known.clear()
    _seen.clear()


def again(key: bytes, x: Any, out: Array | None = None, scale: Any = None, zero_point: Any = None) -> Array | None:
    """Do what was done before, with given parameters; None if it was not, or something is wrong this time."""
    if (found := find(key)) is None:
        return None
    result = found.new() if out is None else out
    return None if found.run(x, result, scale, found.given if zero_point is None else zero_point) else result


def is_new(key: bytes) -> int:
    """Whether a call that took the long way is to be known from now on: it came twice and is not known yet.

    Not 0 then, but what `remember` takes, to notice that what is prepared from now on has become outdated meanwhile.
    """
    if not key or key in _known:
        return 0
    if key in _seen:
        return _generation
    if len(_seen) >= 4 * MOST:
        _seen.clear()
    _seen.add(key)
    return 0


def remember(
    key: bytes, generation: int, arguments: tuple[object, ...], program: Program, result: Array, given: Any = None
) -> None:
    """Know a call again by its facts, which are those of these arguments."""
    from fastq.runtime.driver import bound

    dtypes = tuple(one.dtype for one in arguments if isinstance(one, np.ndarray))
    empty = result_pool.empty if result.nbytes >= result_pool.LARGE else np.empty
    new = functools.partial(empty, result.shape, result.dtype)
    one = Known(bound(program), new, given, (arguments[4:], dtypes))
    if generation == _generation:  # else the program may be for other threads
        if len(_known) >= MOST:
            _known.pop(next(iter(_known), b""), None)
        _known[key] = one


def remember_extents(
    key: bytes, arguments: tuple[object, ...], x: Array, axes: tuple[int, ...] | None, block_size: int, nan: str
) -> None:
    """Know a reduction to minima and maxima again, of an array that holds them in its own dtype."""
    if not (generation := is_new(key)):
        return
    from fastq.dispatch import execute

    extents = execute.prepare_extents_as_is(x, axes, block_size, nan)
    if extents is not None and extents.dtype == x.dtype:
        remember(key, generation, arguments, extents.whole, x, extents)


def remember_ranged(
    key: bytes, arguments: tuple[object, ...], call: Call, x: Array, result: Array, params: QParams
) -> None:
    """Know a call again that takes its parameters from ranges, and got these."""
    if not (generation := is_new(key)):
        return
    from fastq.dispatch import execute
    from fastq.runtime.driver import Checks

    ranged = execute.prepare_ranged_as_is(call, x, result)
    if ranged is not None:
        program = ranged.program.checked(Checks((x.nbytes, result.nbytes, 0, 0)))
        scale, zero_point = params.scale, params.zero_point
        new_scale = functools.partial(np.empty, scale.shape, scale.dtype)
        new_zero_point = functools.partial(np.zeros, zero_point.shape, zero_point.dtype)
        without = params.with_values(np.empty(0), np.empty(0))
        remember(key, generation, arguments, program, result, (ranged, new_scale, new_zero_point, without))


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
    if not x.size or qtype.has_tensor_scale or not (generation := is_new(key)):
        return
    from fastq.dispatch import execute
    from fastq.runtime.driver import Checks

    if not _passes(arguments[2], ready.scale, (float, np.float64)) or not _passes_zero(arguments[3], ready.zero, qtype):
        return
    ready = ready.in_bits
    if call.does == "compare":
        program = execute.prepare_errors_as_is(call, x, in_bits(result), ready.scale.dtype, ready.zero.dtype)
    else:
        prepared = execute.prepare_as_is(call, in_bits(x), result, ready.scale.dtype, ready.zero.dtype)
        program = prepared.program if prepared is not None and prepared.repeat == 1 else None
    if program is None:
        return
    checks = Checks(
        (x.nbytes, result.nbytes if call.does != "compare" else 0, ready.scale.nbytes, ready.zero.nbytes),
        ready.scale.itemsize if ready.scale.dtype.kind == "f" else 0,
        signed,
        ready.zero.itemsize,
        (0, 0) if qtype.element else (qtype.qmin, qtype.qmax),
    )
    zero = ready.zero if arguments[3] is None else None
    remember(key, generation, arguments, program.checked(checks), result, zero)


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
