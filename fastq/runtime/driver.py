"""A program: the kernels of one call in their order, as words that one compiled driver reads.

The driver gets the arrays of the call themselves. It goes through all steps without the interpreter, and ends after a
step that saw what the call refuses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
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
from fastq.runtime.kernel_args import KERNEL_ARGS
from fastq.simd import advance, bitcast, cast_pointer, convert, pointer

Array = NDArray[Any]

# the operands of a program in the order in which `run` takes them; NONE is a null pointer
X, OUT, SCALE, ZERO, SUMS, LO, HI, NONE = range(8)
VALUES = X, OUT, SCALE, ZERO, NONE  # what the kernels of most steps get

# words of a program: how many steps; what operands have to be (see `Checks`); then the steps
STEPS, NBYTES, SCALE_SIZE, SIGNED, ZERO_SIZE, LEAST_ZERO, MOST_ZERO = 0, 1, 5, 6, 7, 8, 9
ARRAY, FLOAT, DOUBLE, INT, NOTHING = 10, 11, 12, 13, 14  # addresses of types and None, which only this process knows
HEAD = 15
# words of a step: kernel, operands, units, and the words of the plan
KERNEL, OPERANDS, ORIGIN, START, STOP, CHUNK, THREADS, EAGER, BACKWARD, HEEDED, STEP_PLAN = 0, 1, *range(6, 15)
STEP = STEP_PLAN + KERNEL_ARGS.itemsize // 8

_ADDRESSES = [id(one) for one in (np.ndarray, float, np.float64, int, None)]
EVERYTHING = -1
UNFIT = -1  # what `run` returns where a check failed; no kernel has run then


class Checks(NamedTuple):
    """What the driver finds out about operands that Python has not looked at.

    Attributes
    ----------
    nbytes : tuple of int
        Bytes of x, out, scale and zero point; out may share none with the others.
    scale_size : int
        Bytes of a scale of float32 or float64, which must be positive and finite; 0: of another type, not looked at.
    signed : bool
        Whether scales may be negative too.
    zero_size : int
        Bytes of a zero point.
    zeros : tuple of int
        The smallest and the largest zero point.
    """

    nbytes: tuple[int, int, int, int]
    scale_size: int = 0
    signed: bool = False
    zero_size: int = 0
    zeros: tuple[int, int] = (0, 0)


class Program(NamedTuple):
    """Words of a program, and the most threads that a step of it has work for."""

    words: NDArray[np.int64]
    threads: int

    def then(self, *others: Program) -> Program:
        """Return this program with the steps of others after its own."""
        words = np.concatenate((self.words, *(other.words[HEAD:] for other in others)))
        words[STEPS] = (words.size - HEAD) // STEP
        return Program(words, max(each.threads for each in (self, *others)))

    def part(self, start: int, stop: int, origin: int = 0) -> Program:
        """Return this program of one step for other units, in one thread, of operands that begin with `origin`."""
        words = self.words.copy()
        words[HEAD + ORIGIN : HEAD + EAGER] = origin, start, stop, 0, 1
        return Program(words, 1)

    def with_tensor(self, tensor: float) -> Program:
        """Return this program for scales in units of one for the whole array, which is known only now; 0: of none."""
        if not tensor:
            return self
        words = self.words.copy()
        for step in words[HEAD:].reshape(-1, STEP):
            step[STEP_PLAN:].view(KERNEL_ARGS)["tensor"] = tensor
        return Program(words, self.threads)

    def checked(self, checks: Checks) -> Program:
        """Return this program with a look at its operands first."""
        words = self.words.copy()
        words[NBYTES:ARRAY] = *checks.nbytes, checks.scale_size, checks.signed, checks.zero_size, *checks.zeros
        return Program(words, self.threads)


def program(
    kernel: int,
    operands: tuple[int, int, int, int, int],
    plan: Array | None,
    stop: int,
    threads: int,
    *,
    origin: int = 0,
    size: int = 1,
    grain: int = 1,
    chunk: int = 0,
    backward: bool = False,
    eager: bool = False,
    heeded: int = EVERYTHING,
) -> Program:
    """Return a program of one step: a kernel on units 0..stop.

    Parameters
    ----------
    kernel : int
        Address.
    operands : tuple of int
        Which operands are src, dst, scale, zero point and sums.
    plan : ndarray, optional
        The plan, of dtype `KERNEL_ARGS`.
    stop : int
        Number of units.
    threads : int
        How many threads, as `threadpool.threads_for` says.
    origin : int
        The element that src and dst begin with.
    size : int
        Elements in a unit.
    grain : int
        Chunks are a multiple of so many units.
    chunk : int
        Units in a chunk, kept to by a single thread too; 0: as suits the number of threads.
    backward : bool
        Begin with the last chunk, which the step before this one has left in the cache.
    eager : bool
        Wake workers for fewer than `threadpool.EAGER_FROM` elements too.
    heeded : int
        Bits of what was seen that end the program and are returned.
    """
    if threads > 1 and not chunk:
        chunk = threadpool.chunk_for(stop, size, grain, threads)
    words = np.zeros(HEAD + STEP, np.int64)
    words[STEPS], words[ARRAY:HEAD] = 1, _ADDRESSES
    eager = eager or stop * size >= threadpool.EAGER_FROM
    words[HEAD : HEAD + STEP_PLAN] = kernel, *operands, origin, 0, stop, chunk, threads, eager, backward, heeded
    if plan is not None:
        words[HEAD + STEP_PLAN :] = plan.view(np.int64)
    return Program(words, threads)


# --- the compiled driver ----------------------------------------------------------------------------------------------

# words on the driver's stack: addresses of operands, then a scale and a zero point that came as numbers
GIVEN_SCALE, GIVEN_ZERO, OVERFLOW = NONE + 1, NONE + 2, NONE + 3


@njit
def _find(item, k, program, stack, base):  # type: ignore[no-untyped-def]
    """Write where operand k has its elements to the stack; a number becomes one of the dtype that kernels read."""
    fields = words_at(item)
    kind = fields[TYPE]
    if kind == program[ARRAY]:
        stack[k] = fields[DATA]
        return True
    stack[k] = item + 8 * VALUE if k in (SCALE, ZERO) else 0  # of a NumPy scalar, or of nothing
    if kind == program[FLOAT] or kind == program[DOUBLE]:
        if k != SCALE:
            return False
        if program[SCALE_SIZE] == 4:
            cast_pointer(advance(stack, GIVEN_SCALE), types.float32)[0] = convert(
                bitcast(fields[VALUE], types.float64), types.float32
            )
            stack[k] = base + 8 * GIVEN_SCALE
        return True
    if kind == program[INT]:
        stack[OVERFLOW] = 0
        value = int_value((item, base + 8 * OVERFLOW))
        stack[GIVEN_ZERO] = value  # its lowest bytes come first in memory
        stack[k] = base + 8 * GIVEN_ZERO
        return k == ZERO and stack[OVERFLOW] == 0 and program[LEAST_ZERO] <= value <= program[MOST_ZERO]
    return True


@njit
def _find_all(objects, operands, program, stack, base):  # type: ignore[no-untyped-def]
    found = True
    for k in range(operands):
        found = _find(objects[k], k, program, stack, base) and found
    return found


@njit
def _positive_finite(where, size, nbytes, signed):  # type: ignore[no-untyped-def]
    """Whether floats are positive and finite, which their bits as an integer tell."""
    good = True
    if size == 4:
        most, sign = 0x7F800000, 0x7FFFFFFF if signed else -1
        words = pointer(where, types.int32)
        for k in range(nbytes >> 2):
            good &= 0 < words[k] & sign < most
        return good
    most, sign = 0x7FF << 52, 0x7FFFFFFFFFFFFFFF if signed else -1
    longs = words_at(where)
    for k in range(nbytes >> 3):
        good &= 0 < longs[k] & sign < most
    return good


@njit
def _in_range(where, nbytes, least, most):  # type: ignore[no-untyped-def]
    """Whether codes of one byte, signed or not, are from least to most."""
    good, codes = True, pointer(where, types.uint8)
    for k in range(nbytes):
        good &= (codes[k] - least) & 0xFF <= most - least
    return good


@njit
def _fit(program, stack):  # type: ignore[no-untyped-def]
    """Whether operands are as `Checks` says."""
    start = stack[OUT]
    stop = start + program[NBYTES + OUT]
    for k in (X, SCALE, ZERO):
        if stack[k] < stop and start < stack[k] + program[NBYTES + k]:
            return False
    size = program[SCALE_SIZE]
    if size and not _positive_finite(stack[SCALE], size, program[NBYTES + SCALE], program[SIGNED]):
        return False
    if program[ZERO_SIZE] == 1 and program[MOST_ZERO] - program[LEAST_ZERO] < 0xFF:
        return _in_range(stack[ZERO], program[NBYTES + ZERO], program[LEAST_ZERO], program[MOST_ZERO])
    return True


@njit
def _pointers(stack, step, plan):  # type: ignore[no-untyped-def]
    """What a kernel gets: its operands and the plan, by their addresses."""
    k = advance(step, OPERANDS)
    return stack[k[0]], stack[k[1]], stack[k[2]], stack[k[3]], stack[k[4]], plan


@functools.cache
def _driver(looks: bool, shares: bool) -> Callable[..., int]:
    """Return a driver that looks at its operands, or not, and has other threads help, or not.

    One for each need, since each takes some tenths of a second to compile. They get the words of the pool, those of a
    program, and the operands.
    """

    def drive(_, arguments, count):  # type: ignore[no-untyped-def]
        objects, base = words_at(arguments), local()
        words, start = words_at(words_at(objects[0])[DATA]), words_at(objects[1])[DATA]
        program, stack = words_at(start), words_at(base)
        for k in range(NONE + 1):
            stack[k] = 0
        if looks:
            if not (_find_all(advance(objects, 2), count - 2, program, stack, base) and _fit(program, stack)):
                return new_int((UNFIT,))
        else:
            for k in range(count - 2):
                if objects[k + 2] != program[NOTHING]:  # an array, perhaps of a subclass
                    stack[k] = words_at(objects[k + 2])[DATA]
        interpreter, seen = release_interpreter(()), 0
        for k in range(program[STEPS]):
            at = HEAD + k * STEP
            step = advance(program, at)
            pointers = _pointers(stack, step, start + 8 * (at + STEP_PLAN))
            units = step[ORIGIN], step[START], step[STOP], step[CHUNK]
            if shares:
                how = step[THREADS], step[EAGER], step[BACKWARD]
                found = threadpool.run(words, step[KERNEL], pointers, units, *how)
            else:
                found = threadpool.run_alone(step[KERNEL], pointers, units)
            seen |= found & step[HEEDED]
            if seen:
                break
        take_interpreter((interpreter,))
        return new_int((seen,))

    return python_function(drive)


def bound(program: Program) -> Callable[..., int]:
    """Return a function that runs a checked program on operands, as long as threads do not change."""
    return functools.partial(_driver(True, True), threadpool.pool_for(program.threads), program.words)


def run(program: Program, *operands: Array | None) -> int:
    """Run a program; return the bits of what it saw.

    Operands are arrays without gaps, or None, in the order X, OUT, SCALE, ZERO, SUMS, LO, HI.
    """
    return _driver(False, program.threads > 1)(threadpool.pool_for(program.threads), program.words, *operands)
