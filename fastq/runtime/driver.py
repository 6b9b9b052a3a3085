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

from fastq.jit import njit
from fastq.runtime import threadpool
from fastq.runtime.cpython import (
    DATA,
    TYPE,
    VALUE,
    int_value,
    local,
    new_int,
    python_function,
    release_interpreter,
    take_interpreter,
    words_at,
)
from fastq.runtime.float_mode import enter_standard_mode, leave_standard_mode
from fastq.runtime.kernel_args import KERNEL_ARGS
from fastq.simd import advance, bitcast, cast_pointer, convert, pointer

Array = NDArray[Any]

# the operands of a plan in the order in which `run` takes them; NONE is a null pointer
X, OUT, SCALE, ZERO, SUMS, LO, HI, NONE = range(8)
VALUES = X, OUT, SCALE, ZERO, NONE  # what most kernels get

# words of a launch plan: how many launches; what operands have to be (see `Checks`); then the launches
LAUNCHES, NBYTES, SCALE_SIZE, SCALE_FLAGS, SCALE_TYPE = 0, 1, 5, 6, 7
ZERO_SIZE, ZERO_IS_FLOAT, LEAST_ZERO, MOST_ZERO, ZERO_TYPE = range(8, 13)
LOWEST = 13  # of x and out: bytes from its first element to its lowest one
ARRAY, FLOAT, DOUBLE, INT, NOTHING = range(15, 20)  # addresses of types and None, which only this process knows
HEAD = 20
# words of a launch: kernel, operands, units, and the words of its numeric arguments
LAUNCH_KERNEL, LAUNCH_OPERANDS = 0, 1
LAUNCH_ORIGIN, LAUNCH_START, LAUNCH_STOP, LAUNCH_CHUNK, LAUNCH_THREADS = 6, 7, 8, 9, 10
LAUNCH_WAKE_WORKERS, LAUNCH_BACKWARD, LAUNCH_STATUS_MASK, LAUNCH_ARGS = 11, 12, 13, 14
LAUNCH_DESCRIPTOR = LAUNCH_ARGS + KERNEL_ARGS.itemsize // 8  # address of what a tiler needs: `fastq.runtime.tiles`
LAUNCH = LAUNCH_DESCRIPTOR + 1
INNER = 0  # word of a descriptor: the kernel that the tiler calls

_ADDRESSES = [id(one) for one in (np.ndarray, float, np.float64, int, None)]
ALL_STATUS = -1  # mask of all bits
UNFIT = -1  # what the driver returns where a check failed; no kernel has run then


class Checks(NamedTuple):
    """What the driver checks of operands.

    Attributes
    ----------
    nbytes : tuple of int
        Bytes of x, out, scale and zero point, none of which may be missing if it has any; out may share none with the
        others. Of strided memory the bytes from the lowest to the highest one.
    scale : dtype, optional
        Scales of float32 or float64 must be positive and finite; others are not looked at.
    signed : bool
        Whether scales may be negative too.
    zero : bool
        Whether scales may be 0 too.
    zero_point : dtype, optional
        Zero points of float32 or float64 must be finite.
    codes : tuple of int, optional
        The first and last code that an integer zero point may be, which is looked at where it is a number or a byte.
    scalars : tuple of type
        Types of the NumPy scalars that may stand for a scale and for a zero point.
    lowest : tuple of int
        Of x and out, bytes from the first element to the lowest one: 0 or less.
    """

    nbytes: tuple[int, int, int, int]
    scale: np.dtype[Any] | None = None
    signed: bool = False
    zero_point: np.dtype[Any] | None = None
    codes: tuple[int, int] = (0, 0)
    scalars: tuple[type | None, type | None] = (None, None)
    lowest: tuple[int, int] = (0, 0)
    zero: bool = False

    def with_new(self, operand: int, nbytes: int) -> Checks:
        """Return checks in which one of x and out is new memory without gaps."""
        sizes, lowest = list(self.nbytes), list(self.lowest)
        sizes[operand], lowest[operand] = nbytes, 0
        return self._replace(nbytes=tuple(sizes), lowest=tuple(lowest))  # type: ignore[arg-type]

    @property
    def words(self) -> tuple[int, ...]:
        """The words of a plan from `NBYTES` on."""
        scale_type, zero_point_type = (0 if each is None else id(each) for each in self.scalars)
        float_zero = _float_size(self.zero_point)
        size = self.zero_point.itemsize if self.zero_point is not None else 0
        scale = _float_size(self.scale), int(self.signed) | int(self.zero) << 1, scale_type
        return *self.nbytes, *scale, size, int(float_zero > 0), *self.codes, zero_point_type, *self.lowest


def _float_size(dtype: np.dtype[Any] | None) -> int:
    """Return the bytes of float32 or float64, 0 for any other dtype."""
    return dtype.itemsize if dtype is not None and dtype.name in ("float32", "float64") else 0


class LaunchPlan(NamedTuple):
    """Words of a plan, the most threads that a launch of it has work for, and the descriptors of its tilers."""

    words: NDArray[np.int64]
    threads: int
    descriptors: tuple[NDArray[np.int64], ...] = ()

    @property
    def launches(self) -> NDArray[np.int64]:
        """The words of each launch."""
        return self.words[HEAD:].reshape(-1, LAUNCH)

    def then(self, *others: LaunchPlan) -> LaunchPlan:
        """Return this plan with the launches of others after its own."""
        words = np.concatenate((self.words, *(other.words[HEAD:] for other in others)))
        words[LAUNCHES] = (words.size - HEAD) // LAUNCH
        plans = self, *others
        descriptors = tuple(descriptor for plan in plans for descriptor in plan.descriptors)
        return LaunchPlan(words, max(plan.threads for plan in plans), descriptors)

    def restricted_to(self, start: int, stop: int) -> LaunchPlan:
        """Return this plan of one launch for a part that stays in the cache: units start..stop."""
        words = self.words.copy()
        words[HEAD + LAUNCH_ARGS : HEAD + LAUNCH_DESCRIPTOR].view(KERNEL_ARGS)["streaming"] = 0
        words[HEAD + LAUNCH_ORIGIN : HEAD + LAUNCH_CHUNK] = 0, start, stop
        return self._replace(words=words)

    def with_tensor(self, tensor: float) -> LaunchPlan:
        """Return this plan for scales in units of one for the whole array, which is known only now; 0: of none."""
        if not tensor:
            return self
        plan = self._replace(words=self.words.copy())
        for launch in plan.launches:
            launch[LAUNCH_ARGS:LAUNCH_DESCRIPTOR].view(KERNEL_ARGS)["tensor"] = tensor
        return plan

    def checked(self, checks: Checks) -> LaunchPlan:
        """Return this plan with checks of its operands."""
        words = self.words.copy()
        words[NBYTES:ARRAY] = checks.words
        return self._replace(words=words)


def plan_launch(
    kernel: int,
    operands: tuple[int, int, int, int, int],
    args: Array | None,
    stop: int,
    threads: int,
    *,
    origin: int = 0,
    size: int = 1,
    chunk_multiple: int = 1,
    chunk: int = 0,
    backward: bool = False,
    wake_workers: bool = False,
    status_mask: int = ALL_STATUS,
    descriptor: NDArray[np.int64] | None = None,
) -> LaunchPlan:
    """Return a plan of one launch: a kernel on units 0..stop.

    Parameters
    ----------
    kernel : int
        Address.
    operands : tuple of int
        Which operands the kernel gets.
    args : ndarray, optional
        Its numeric arguments, of dtype `KERNEL_ARGS`.
    stop : int
        Number of units.
    threads : int
        How many threads, as `threadpool.threads_for` says.
    origin : int
        The element that arrays begin with.
    size : int
        Elements in a unit.
    chunk_multiple : int
        Chunks are a multiple of so many units.
    chunk : int
        Units in a chunk, kept to by a single thread too; 0: as suits the number of threads.
    backward : bool
        Begin with the last chunk, which the launch before this one has left in the cache.
    wake_workers : bool
        Wake workers for fewer than `threadpool.WAKE_FROM` elements too.
    status_mask : int
        Bits of the status that end the plan and are returned.
    descriptor : ndarray, optional
        What a tiler, which the kernel then is, needs to know.
    """
    if threads > 1 and not chunk:
        chunk = threadpool.chunk_for(stop, size, chunk_multiple, threads)
    words = np.zeros(HEAD + LAUNCH, np.int64)
    words[LAUNCHES], words[ARRAY:HEAD] = 1, _ADDRESSES
    wake_workers = wake_workers or stop * size >= threadpool.WAKE_FROM
    units = origin, 0, stop, chunk, threads, wake_workers, backward, status_mask
    words[HEAD : HEAD + LAUNCH_ARGS] = kernel, *operands, *units
    if args is not None:
        words[HEAD + LAUNCH_ARGS : HEAD + LAUNCH_DESCRIPTOR] = args.view(np.int64)
    if descriptor is None:
        return LaunchPlan(words, threads)
    words[HEAD + LAUNCH_DESCRIPTOR] = descriptor.ctypes.data
    return LaunchPlan(words, threads, (descriptor,))


# --- the compiled driver ----------------------------------------------------------------------------------------------

# words on the driver's stack: addresses of operands, then a scale and a zero point that came as numbers
GIVEN_SCALE, GIVEN_ZERO, OVERFLOW = NONE + 1, NONE + 2, NONE + 3


@njit
def _find(item, k, plan, stack, base):  # type: ignore[no-untyped-def]
    """Write the address of the elements of operand k to the stack; return whether it is of a type that is expected.

    A number of Python's becomes one of the dtype that kernels read.
    """
    fields = words_at(item)
    kind = fields[TYPE]
    if kind == plan[ARRAY]:
        stack[k] = fields[DATA]
        return True
    if item == plan[NOTHING]:
        return k > ZERO or plan[NBYTES + k] == 0
    if k == SCALE:
        return _find_number(item, kind, k, plan[SCALE_SIZE], plan[SCALE_TYPE], plan, stack, base)
    if k == ZERO:
        if plan[ZERO_IS_FLOAT] == 0 and kind == plan[INT]:
            return _find_code(item, plan, stack, base)
        size = plan[ZERO_SIZE] if plan[ZERO_IS_FLOAT] else 0
        return _find_number(item, kind, k, size, plan[ZERO_TYPE], plan, stack, base)
    return False


@njit
def _find_number(item, kind, k, size, scalar, plan, stack, base):  # type: ignore[no-untyped-def]
    """Find a NumPy scalar of the expected type, or a float that stands for a float of `size` bytes, 0: for none."""
    if kind == scalar:
        stack[k] = item + 8 * VALUE
        return True
    if size == 0 or (kind != plan[FLOAT] and kind != plan[DOUBLE]):
        return False
    value = words_at(item)[VALUE]
    given = k - SCALE + GIVEN_SCALE
    if size == 4:
        cast_pointer(advance(stack, given), types.float32)[0] = convert(bitcast(value, types.float64), types.float32)
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
    return stack[OVERFLOW] == 0 and plan[LEAST_ZERO] <= value <= plan[MOST_ZERO]


@njit
def _find_all(objects, operands, plan, stack, base):  # type: ignore[no-untyped-def]
    """Find the elements of all operands that were given; return whether each is of a type that is expected."""
    found = True
    for k in range(operands):
        found = _find(objects[k], k, plan, stack, base) and found
    return found


def _finite_check(word: types.Type, magnitude: int, infinity: int) -> Callable[..., bool]:
    """Make the loop of `_are_finite` for floats whose bits are of an integer type."""

    @njit
    def check(where, count, above, signed):  # type: ignore[no-untyped-def]
        good, mask, words = True, magnitude if signed else -1, pointer(where, word)
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
    good, codes = True, pointer(where, types.uint8)
    for k in range(nbytes):
        good &= (codes[k] - least) & 0xFF <= most - least
    return good


@njit
def _pass(plan, stack):  # type: ignore[no-untyped-def]
    """Return whether operands are as `Checks` says."""
    start = stack[OUT] + plan[LOWEST + OUT]
    stop = start + plan[NBYTES + OUT]
    for k in (X, SCALE, ZERO):
        first = stack[k] + (plan[LOWEST] if k == X else 0)
        if first < stop and start < first + plan[NBYTES + k]:
            return False
    size, flags = plan[SCALE_SIZE], plan[SCALE_FLAGS]
    if size and not _are_finite(stack[SCALE], size, plan[NBYTES + SCALE], -(flags >> 1), flags & 1):
        return False
    size = plan[ZERO_SIZE]
    if plan[ZERO_IS_FLOAT]:
        return _are_finite(stack[ZERO], size, plan[NBYTES + ZERO], -1, 1)
    if size == 1 and plan[MOST_ZERO] - plan[LEAST_ZERO] < 0xFF:
        return _are_codes(stack[ZERO], plan[NBYTES + ZERO], plan[LEAST_ZERO], plan[MOST_ZERO])
    return True


@njit
def _pointers(stack, launch, args):  # type: ignore[no-untyped-def]
    """Return the addresses that a kernel gets: of its operands and of its numeric arguments."""
    k = advance(launch, LAUNCH_OPERANDS)
    return stack[k[0]], stack[k[1]], stack[k[2]], stack[k[3]], stack[k[4]], args


def _drive(_, arguments, count):  # type: ignore[no-untyped-def]
    """Check operands and launch a plan; the arguments are the words of the thread pool, the plan, and the operands."""
    objects, base, mode = words_at(arguments), local(), enter_standard_mode()
    pool, start = words_at(words_at(objects[0])[DATA]), words_at(objects[1])[DATA]
    plan, stack = words_at(start), words_at(base)
    for k in range(NONE + 1):
        stack[k] = 0
    if not (_find_all(advance(objects, 2), count - 2, plan, stack, base) and _pass(plan, stack)):
        leave_standard_mode(mode)
        return new_int((UNFIT,))
    interpreter, status = release_interpreter(()), 0
    for k in range(plan[LAUNCHES]):
        at = HEAD + k * LAUNCH
        launch = advance(plan, at)
        pointers = _pointers(stack, launch, start + 8 * (at + LAUNCH_ARGS))
        units = launch[LAUNCH_ORIGIN], launch[LAUNCH_START], launch[LAUNCH_STOP], launch[LAUNCH_CHUNK]
        how = launch[LAUNCH_THREADS], launch[LAUNCH_WAKE_WORKERS], launch[LAUNCH_BACKWARD]
        status |= threadpool.run(pool, launch[LAUNCH_KERNEL], pointers, units, *how) & launch[LAUNCH_STATUS_MASK]
        if status:
            break
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
        kernels += plan.launches[:, LAUNCH_KERNEL].tolist()
        kernels += [int(descriptor[INNER]) for descriptor in plan.descriptors]
    launch = functools.partial(_driver(), threadpool.pool_for(plan.threads), plan.words)
    vars(launch)["descriptors"] = plan.descriptors  # which live as long as the words that have their addresses
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
