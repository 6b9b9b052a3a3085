"""Launch plans: the kernels of one call in their order, as words that one compiled driver reads.

The driver gets the operands of the call as Python has them. It checks what only their elements and addresses tell,
launches kernels one after the other without the interpreter lock, and stops after one whose status the call refuses.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from fastq.engine import simd as v
from fastq.engine.jit import njit
from fastq.engine.runtime import threadpool
from fastq.engine.runtime.boundary import (
    DATA,
    TYPE,
    VALUE,
    enter_standard_mode,
    int_value,
    leave_standard_mode,
    local,
    new_int,
    python_function,
    release_interpreter,
    take_interpreter,
    words_at,
)

Array = NDArray[Any]

# the operands of a plan in the order in which `run` takes them; NONE is a null pointer
X, OUT, SCALE, ZERO, SUMS, LO, HI, NONE = range(8)
VALUES = X, OUT, SCALE, ZERO, NONE  # what most kernels get

# what a plan begins with: how many launches it has, what operands have to be (see `Checks`), and the addresses of types
# and None, which only this process knows
HEAD = v.record(
    "launches",
    ("nbytes", 4),
    *("scale_size", "scale_flags", "scale_type"),
    *("zero_size", "zero_is_float", "least_zero", "most_zero", "zero_type"),
    *("lowest_x", "lowest_out"),  # bytes from the first element to the lowest one
    *("array", "float", "double", "int", "nothing"),
)
LAUNCH = v.record(
    "kernel",
    ("operands", 5),
    *("origin", "start", "stop", "chunk", "threads", "wake_workers", "backward", "status_mask"),
    "args",  # address of the record that the kernel gets
)
_NBYTES, _OPERANDS = HEAD.fields["nbytes"][1] // 8, LAUNCH.fields["operands"][1] // 8  # type: ignore[index]
_HEAD_WORDS = HEAD.itemsize // 8
_HEAD_BYTES, _LAUNCH_BYTES = HEAD.itemsize, LAUNCH.itemsize

_TYPES = tuple(map(id, (np.ndarray, float, np.float64, int, None)))

ALL_STATUS = -1  # mask of all bits
UNFIT = -1  # what the driver returns where a check failed; no kernel has run then


class Checks(NamedTuple):
    """What the driver checks of operands."""

    # bytes of x, out, scale and zero point, none of which may be missing if it has any; out may share none with the
    # others. Of strided memory the bytes from the lowest to the highest one
    nbytes: tuple[int, int, int, int]
    # scales of float32 or float64 must be positive and finite; others are not looked at
    scale: np.dtype[Any] | None = None
    signed: bool = False  # whether scales may be negative too
    zero_point: np.dtype[Any] | None = None  # zero points of float32 or float64 must be finite
    # the first and last code that an integer zero point may be, which is looked at where it is a number or a byte
    codes: tuple[int, int] = (0, 0)
    # types of the NumPy scalars that may stand for a scale and for a zero point
    scalars: tuple[type | None, type | None] = (None, None)
    lowest: tuple[int, int] = (0, 0)  # of x and out, bytes from the first element to the lowest one: 0 or less
    zero: bool = False  # whether scales may be 0 too

    def with_new(self, operand: int, nbytes: int) -> Checks:
        """Return checks in which one of x and out is new memory without gaps."""
        sizes, lowest = list(self.nbytes), list(self.lowest)
        sizes[operand], lowest[operand] = nbytes, 0
        return self._replace(nbytes=tuple(sizes), lowest=tuple(lowest))  # type: ignore[arg-type]

    def head(self, launches: int) -> NDArray[np.int64]:
        """Return the words that a plan of `launches` launches begins with."""
        scale_type, zero_type = self.scalars
        scale = _float_size(self.scale), int(self.signed) | int(self.zero) << 1, id(scale_type) if scale_type else 0
        size = self.zero_point.itemsize if self.zero_point is not None else 0
        zero = size, _float_size(self.zero_point) > 0, *self.codes, id(zero_type) if zero_type else 0
        return np.array([(launches, self.nbytes, *scale, *zero, *self.lowest, *_TYPES)], HEAD).view(np.int64)


def _float_size(dtype: np.dtype[Any] | None) -> int:
    """Return the bytes of float32 or float64, 0 for any other dtype."""
    return dtype.itemsize if dtype is not None and dtype.name in ("float32", "float64") else 0


class Tiles(NamedTuple):
    """What a tiler gets: a record, with the `kernel` and `args` of the launch that it cuts, and its axes."""

    tile: Array
    axes: Array

    def around(self, args: Array | None) -> Tiles:
        """Return the same tiles for other numeric arguments of the kernel."""
        tile = self.tile.copy()
        tile["args"] = 0 if args is None else args.ctypes.data
        return self._replace(tile=tile)


class LaunchPlan(NamedTuple):
    """Words of a plan, the most threads that a launch of it has work for, and what its launches hand to kernels."""

    words: NDArray[np.int64]  # a record `HEAD`, then one `LAUNCH` for each launch
    threads: int
    args: tuple[Array | None, ...] = ()  # the numeric arguments of each launch's kernel: a record of the kernel's own
    tiles: tuple[Tiles | None, ...] = ()  # how each launch is cut into tiles, None where it is not

    @property
    def launches(self) -> Array:
        """The records of the launches."""
        return self.words[_HEAD_WORDS:].view(LAUNCH)

    def then(self, *others: LaunchPlan) -> LaunchPlan:
        """Return this plan with the launches of others after its own."""
        plans = self, *others
        words = np.concatenate((self.words, *(other.words[_HEAD_WORDS:] for other in others)))
        args, tiles = (sum(each, ()) for each in zip(*((plan.args, plan.tiles) for plan in plans), strict=True))
        words[0] = len(args)
        return LaunchPlan(words, max(plan.threads for plan in plans), args, tiles)

    def part(self, start: int, stop: int) -> LaunchPlan:
        """Return this plan of one launch for units start..stop."""
        plan = self._replace(words=self.words.copy())
        plan.launches[["origin", "start", "stop"]] = 0, start, stop
        return plan

    def with_args(self, **numbers: float) -> LaunchPlan:
        """Return this plan with other numbers in these fields of the arguments of all its kernels."""
        args = tuple(None if each is None else each.copy() for each in self.args)
        for each in args:
            if each is not None:
                for name, number in numbers.items():
                    each[name] = number
        tiles = tuple(each and each.around(of) for each, of in zip(self.tiles, args, strict=True))
        plan = LaunchPlan(self.words.copy(), self.threads, args, tiles)
        plan.launches["args"] = [_address(of, each) for of, each in zip(args, tiles, strict=True)]
        return plan

    def checked(self, checks: Checks) -> LaunchPlan:
        """Return this plan with checks of its operands."""
        return self._replace(words=np.concatenate((checks.head(len(self.args)), self.words[_HEAD_WORDS:])))

    @property
    def kernels(self) -> list[int]:
        """Addresses of the functions that it launches, tilers and what they call among them."""
        return [*self.launches["kernel"].tolist(), *(int(each.tile["kernel"][0]) for each in self.tiles if each)]


def _address(args: Array | None, tiles: Tiles | None) -> int:
    """Return the address that a kernel, or a tiler, gets."""
    given = args if tiles is None else tiles.tile
    return 0 if given is None else given.ctypes.data


def plan_launch(
    kernel: int,  # its address
    operands: tuple[int, int, int, int, int],  # which operands it gets
    args: Array | None,  # its numeric arguments: a record
    stop: int,  # number of units
    threads: int,  # how many, as `threadpool.threads_for` says
    *,
    origin: int = 0,  # the element that arrays begin with
    size: int = 1,  # elements in a unit
    chunk_multiple: int = 1,  # chunks are a multiple of so many units
    chunk: int = 0,  # units in a chunk, kept to by a single thread too; 0: as suits the number of threads
    backward: bool = False,  # begin with the last chunk, which the launch before this one has left in the cache
    wake_workers: bool = False,  # wake workers for fewer than `threadpool.WAKE_FROM` elements too
    status_mask: int = ALL_STATUS,  # bits of the status that end the plan and are returned
    tiles: Tiles | None = None,  # what a tiler needs to know; the address is then that of the tiler
) -> LaunchPlan:
    """Return a plan of one launch: a kernel on units 0..stop."""
    if threads > 1 and not chunk:
        chunk = threadpool.chunk_for(stop, size, chunk_multiple, threads)
    wake_workers = wake_workers or stop * size >= threadpool.WAKE_FROM
    units = origin, 0, stop, chunk, threads, wake_workers, backward, status_mask
    launch = np.array([(kernel, operands, *units, _address(args, tiles))], LAUNCH)
    words = np.concatenate((_UNCHECKED, launch.view(np.int64)))
    return LaunchPlan(words, threads, (args,), (tiles,))


_UNCHECKED = Checks((0, 0, 0, 0)).head(1)


# --- the compiled driver ----------------------------------------------------------------------------------------------

# words on the driver's stack: addresses of operands, then a scale and a zero point that came as numbers
GIVEN_SCALE, GIVEN_ZERO, OVERFLOW = NONE + 1, NONE + 2, NONE + 3


@njit
def _find(item, k, plan, nbytes, stack, base):  # type: ignore[no-untyped-def]
    """Write the address of the elements of operand k to the stack; return whether it is of a type that is expected.

    A number of Python's becomes one of the dtype that kernels read.
    """
    fields = words_at(item)
    kind = fields[TYPE]
    if kind == plan.array:
        stack[k] = fields[DATA]
        return True
    if item == plan.nothing:
        return k > ZERO or nbytes[k] == 0
    if k == SCALE:
        return _find_number(item, kind, k, plan.scale_size, plan.scale_type, plan, stack, base)
    if k == ZERO:
        if plan.zero_is_float == 0 and kind == plan.int:
            return _find_code(item, plan, stack, base)
        size = plan.zero_size if plan.zero_is_float else 0
        return _find_number(item, kind, k, size, plan.zero_type, plan, stack, base)
    return False


@njit
def _find_number(item, kind, k, size, scalar, plan, stack, base):  # type: ignore[no-untyped-def]
    """Find a NumPy scalar of the expected type, or a float that stands for a float of `size` bytes, 0: for none."""
    if kind == scalar:
        stack[k] = item + 8 * VALUE
        return True
    if size == 0 or (kind != plan.float and kind != plan.double):
        return False
    value = words_at(item)[VALUE]
    given = k - SCALE + GIVEN_SCALE
    if size == 4:
        single = v.convert(v.bitcast(value, types.float64), types.float32)
        v.cast_pointer(v.advance(stack, given), types.float32)[0] = single
    else:
        stack[given] = value
    stack[k] = base + 8 * given
    return True


@njit
def _find_code(item, plan, stack, base):  # type: ignore[no-untyped-def]
    """Find an int that is a code."""
    stack[OVERFLOW] = 0
    value = int_value((item, base + 8 * OVERFLOW))
    stack[GIVEN_ZERO] = value  # its lowest bytes come first in memory
    stack[ZERO] = base + 8 * GIVEN_ZERO
    return stack[OVERFLOW] == 0 and plan.least_zero <= value <= plan.most_zero


@njit
def _find_all(objects, operands, plan, nbytes, stack, base):  # type: ignore[no-untyped-def]
    """Find the elements of all operands that were given; return whether each is of a type that is expected."""
    found = True
    for k in range(operands):
        found = _find(objects[k], k, plan, nbytes, stack, base) and found
    return found


def _finite_check(word: types.Type, magnitude: int, infinity: int) -> Callable[..., bool]:
    """Make the loop of `_are_finite` for floats whose bits are of an integer type."""

    @njit
    def check(where, count, above, signed):  # type: ignore[no-untyped-def]
        good, mask, words = True, magnitude if signed else -1, v.pointer(where, word)
        for k in range(count):
            good &= above < words[k] & mask < infinity
        return good

    return check  # type: ignore[no-any-return]


_are_finite_singles = _finite_check(types.int32, 0x7FFFFFFF, 0x7F800000)
_are_finite_doubles = _finite_check(types.int64, 0x7FFFFFFFFFFFFFFF, 0x7FF << 52)


@njit
def _are_finite(where, size, nbytes, above, signed):  # type: ignore[no-untyped-def]
    """Return whether floats are finite and above 0, or from 0 on, which their bits as an integer tell.

    `above` is 0 or -1; with `signed` their magnitudes are meant.
    """
    if size == 4:
        return _are_finite_singles(where, nbytes >> 2, above, signed)
    return _are_finite_doubles(where, nbytes >> 3, above, signed)


@njit
def _are_codes(where, nbytes, least, most):  # type: ignore[no-untyped-def]
    """Return whether codes of one byte, signed or not, are from least to most."""
    good, codes = True, v.pointer(where, types.uint8)
    for k in range(nbytes):
        good &= (codes[k] - least) & 0xFF <= most - least
    return good


@njit
def _pass(plan, nbytes, stack):  # type: ignore[no-untyped-def]
    """Return whether operands are as `Checks` says."""
    start = stack[OUT] + plan.lowest_out
    stop = start + nbytes[OUT]
    for k in (X, SCALE, ZERO):
        first = stack[k] + (plan.lowest_x if k == X else 0)
        if first < stop and start < first + nbytes[k]:
            return False
    size, flags = plan.scale_size, plan.scale_flags
    if size and not _are_finite(stack[SCALE], size, nbytes[SCALE], -(flags >> 1), flags & 1):
        return False
    if plan.zero_is_float:
        return _are_finite(stack[ZERO], plan.zero_size, nbytes[ZERO], -1, 1)
    if plan.zero_size == 1 and plan.most_zero - plan.least_zero < 0xFF:
        return _are_codes(stack[ZERO], nbytes[ZERO], plan.least_zero, plan.most_zero)
    return True


@njit
def _pointers(stack, operands, args):  # type: ignore[no-untyped-def]
    """Return the addresses that a kernel gets: of its operands and of its numeric arguments."""
    k = operands
    return stack[k[0]], stack[k[1]], stack[k[2]], stack[k[3]], stack[k[4]], args


def _drive(_, arguments, count):  # type: ignore[no-untyped-def]
    """Check operands and launch a plan; the arguments are the words of the thread pool, the plan, and the operands."""
    objects, base, mode = words_at(arguments), local(), enter_standard_mode()
    pool, start = words_at(words_at(objects[0])[DATA]), words_at(objects[1])[DATA]
    plan, nbytes, stack = v.record_at(start, HEAD), v.advance(words_at(start), _NBYTES), words_at(base)
    for k in range(NONE + 1):
        stack[k] = 0
    if not (_find_all(v.advance(objects, 2), count - 2, plan, nbytes, stack, base) and _pass(plan, nbytes, stack)):
        leave_standard_mode(mode)
        return new_int((UNFIT,))
    interpreter, status, at = release_interpreter(()), 0, start + _HEAD_BYTES
    for _ in range(plan.launches):
        launch = v.record_at(at, LAUNCH)
        pointers = _pointers(stack, v.advance(words_at(at), _OPERANDS), launch.args)
        units = launch.origin, launch.start, launch.stop, launch.chunk
        how = launch.threads, launch.wake_workers, launch.backward
        status |= threadpool.run(pool, launch.kernel, pointers, units, *how) & launch.status_mask
        if status:
            break
        at += _LAUNCH_BYTES
    leave_standard_mode(mode)
    take_interpreter((interpreter,))
    return new_int((status,))


@functools.cache
def _driver() -> Callable[..., int]:
    return python_function(_drive)


def bind(plan: LaunchPlan) -> Callable[..., int]:
    """Return a function that launches a plan on operands, as long as threads do not change.

    It takes ndarrays of exactly that type, contiguous, or None, in the order X, OUT, SCALE, ZERO, SUMS, LO, HI; a scale
    or zero point may also be a number. It returns the status, or `UNFIT` where a check failed and nothing was done.
    """
    for kernels in _recordings:
        kernels += plan.kernels
    launch = functools.partial(_driver(), threadpool.pool_for(plan.threads), plan.words)
    vars(launch)["plan"] = plan  # whose records live as long as the words that have their addresses
    return launch


def never_fits(*operands: object) -> int:
    """Return `UNFIT`, as a bound plan does that no operands fit."""
    return UNFIT


def run(plan: LaunchPlan, *operands: Array | None) -> int:
    """Launch a plan once on valid operands; return the status."""
    status = bind(plan)(*operands)
    assert status != UNFIT
    return status


_recordings: list[list[int]] = []


@contextlib.contextmanager
def recorded_kernels() -> Iterator[list[int]]:
    """Record the addresses of kernels that calls launch meanwhile, in whatever thread; a kernel may come twice.

    Plans that were bound before are forgotten, so that calls like earlier ones are recorded too.
    """
    kernels: list[int] = []
    threadpool.forget_plans()
    try:
        _recordings.append(kernels)
        yield kernels
    finally:
        _recordings[:] = [each for each in _recordings if each is not kernels]
