"""What a call is, apart from the elements of its arrays: bytes that are equal only if the calls are alike."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from numba import types

from fastq.jit import njit
from fastq.runtime.cpython import (
    DATA,
    DIMENSIONS,
    DTYPE,
    FLAGS,
    LOCAL,
    NDIM,
    TYPE,
    int_value,
    local,
    new_bytes,
    python_function,
    tuple_item,
    tuple_size,
    words_at,
)
from fastq.simd import advance, cast_pointer

N_VALUES = 4  # how many of the arguments are values; the rest are options
C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400  # flags of an ndarray
# what begins the words of an argument that is more than one word; no address is so small
IS_ARRAY, IS_INT, IS_TUPLE = 1, 2, 3
# types and objects by their addresses, which only this process knows
ARRAY, INT, TUPLE, NOTHING, DTYPE_META, KINDS = range(6)
ROOM = LOCAL - 8  # words that an array or a tuple may fill up to


@njit
def _write_array(fields, facts, at):
    """Write dtype, shape and flags of an ndarray; the next place, or 0 if it has gaps or too many dimensions."""
    ndim = cast_pointer(advance(fields, NDIM), types.int32)[0]
    flags = cast_pointer(advance(fields, FLAGS), types.int32)[0]
    if flags & C_CONTIGUOUS == 0 or flags & ALIGNED == 0 or at + 3 + ndim > ROOM:
        return 0
    facts[at], facts[at + 1], facts[at + 2] = IS_ARRAY, fields[DTYPE], (flags & WRITEABLE) << 32 | ndim
    dimensions = words_at(fields[DIMENSIONS])
    for axis in range(ndim):
        facts[at + 3 + axis] = dimensions[axis]
    return at + 3 + ndim


@njit
def _write_int(item, facts, at, base):
    """Write an int; the next place, or 0 if it needs more than a word."""
    if at + 2 > ROOM:
        return 0
    facts[LOCAL - 1] = 0
    facts[at], facts[at + 1] = IS_INT, int_value((item, base + 8 * (LOCAL - 1)))
    return at + 2 if facts[LOCAL - 1] == 0 else 0


@njit
def _write_tuple(item, facts, at, base, addresses):
    """Write a tuple of ints; the next place, or 0 if it is another or too long."""
    size = tuple_size((item,))
    if at + 2 + 2 * size > ROOM:
        return 0
    facts[at], facts[at + 1] = IS_TUPLE, size
    at += 2
    for k in range(size):
        one = tuple_item((item, k))
        if words_at(one)[TYPE] != addresses[INT]:
            return 0
        at = _write_int(one, facts, at, base)
        if at == 0:
            return 0
    return at


@njit
def _write(item, k, facts, at, base, addresses):
    fields = words_at(item)
    kind = fields[TYPE]
    if k < N_VALUES:
        if kind == addresses[ARRAY]:
            return _write_array(fields, facts, at)
        if k == 0 or (k == 1 and item != addresses[NOTHING]) or at + 1 > ROOM:
            return 0
        facts[at] = kind
        return at + 1
    if kind == addresses[INT]:
        return _write_int(item, facts, at, base)
    if kind == addresses[TUPLE]:
        return _write_tuple(item, facts, at, base, addresses)
    if at + 1 > ROOM or not _stays_the_same(kind, addresses):
        return 0
    facts[at] = item
    return at + 1


@njit
def _stays_the_same(kind, addresses):
    """Whether an object of this type cannot come to hold something else: a dtype, or of a type that is listed."""
    if words_at(kind)[TYPE] == addresses[DTYPE_META]:
        return True
    stays = False
    for k in range(addresses[KINDS]):
        stays |= kind == addresses[KINDS + 1 + k]
    return stays


def _facts(_, arguments, count):
    objects, base = words_at(arguments), local()
    addresses, facts, at = words_at(words_at(objects[0])[DATA]), words_at(base), 1
    facts[0] = count
    for k in range(count - 1):
        at = _write(objects[k + 1], k, facts, at, base, addresses)
        if at == 0:
            return new_bytes((base, 0))
    return new_bytes((base, 8 * at))


def teller(*immutable: type) -> Callable[..., bytes]:
    """Return the function that tells facts of a call from x, out, scale and zero point, and then its options.

    Arrays are told by dtype, shape and whether they can be written to, other values by their type, options that are
    ints or tuples of ints by what they are, all else by its address, so who keeps the bytes has to keep that alive. No
    bytes at all: x is no array, or one of the arrays has gaps, or an option is of a type that is not among `immutable`
    and those of Python and NumPy that are meant, or something is too large.
    """
    kinds = (type(None), bool, str, type, np.bool_, *immutable)
    meant = (np.ndarray, int, tuple, None, type(np.dtype))
    addresses = np.array([*map(id, meant), len(kinds), *map(id, kinds)], np.int64)
    return functools.partial(python_function(_facts), addresses)
