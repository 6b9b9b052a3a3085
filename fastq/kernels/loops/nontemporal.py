"""Streaming stores of large results: whole cache lines past the cache, wherever in an array these begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import types

from fastq.jit import njit, specialize
from fastq.kernels.load_store import group_of, store_elements, stream_elements
from fastq.simd import (
    GRANULE,
    LINE,
    Vec,
    address_of,
    advance,
    any_lane,
    bits_of,
    cast_pointer,
    count,
    lanes_of_line,
    load,
    store,
    stream_granules,
)


def goes_in_lines(spec, dst) -> bool:
    """Return whether results may go past the cache: a line is not whole elements of 3 bits, and too many of 1 or 2."""
    return spec.streams and dst.dtype.bitwidth in (4, 8, 16, 32, 64)


@specialize
def in_lines_if(spec, dst, streaming):
    """Return `streaming`, whether the call is large enough, where its results may go past the cache; else False."""
    if goes_in_lines(spec, dst):
        return lambda spec, dst, streaming: streaming
    return lambda spec, dst, streaming: False


@njit
def to_line(where, index):
    """Return how many elements ``where[index]`` is before the beginning of a cache line."""
    return -address_of(advance(where, index)) % LINE * 8 // bits_of(where)


# --- straight from registers ------------------------------------------------------------------------------------------


def in_lines(piece: Callable[..., Any]):
    """Make the loop that writes past the cache what ``piece(context, i, vec)`` gives for the lanes from i on.

    A piece is the lanes as `store_elements` takes them, and a mask of those that have something to report. `vec` must
    not have more lanes than a line has elements: what is stored before the first line may reach into it, not beyond.
    """

    @njit
    def stream_all(spec, context, src, dst, i, end, vec):
        line = lanes_of_line(src, dst)
        first = i + to_line(dst, i)
        if first + count(line) > end or first % group_of(src) != 0:  # packed codes are read from whole bytes on
            return i, False
        found = False
        while i < first:
            y, reported = piece(context, i, vec)
            store_elements(dst, i, y)
            found |= any_lane(reported)
            i += count(vec)
        i = first
        while i <= end - count(line):
            y, reported = piece(context, i, line)
            stream_elements(dst, i, y)
            found |= any_lane(reported)
            i += count(line)
        return i, found

    @specialize
    def stream_lines(spec, context, src, dst, i, end, vec):
        """Write i..end up to the last whole line of dst; return where that is, and whether a lane was reported."""
        if goes_in_lines(spec, dst):
            return stream_all
        return lambda spec, context, src, dst, i, end, vec: (i, False)

    return stream_lines


# --- by way of the stack ----------------------------------------------------------------------------------------------

# Granules of a line that follow each other become one store of a line on their way to memory. They can be stored from
# where arrays begin, 16 bytes after a line, so that a load from the stack is of what one store wrote: a load of two
# stores waits for both. 2**25 int8 to float32 in blocks of 32 and of GGUF on one thread of a Zen 4, beside whole lines:
# 1.5 and 1.6 times as fast.
_LINE, _GRANULE = Vec(types.uint8, LINE), Vec(types.uint8, GRANULE)
ENOUGH = 16 * LINE  # bytes that are written at a time


class Stage(NamedTuple):
    """Buffer of what goes to `target`, the beginning of a granule; bytes `first` to `filled` of it are written."""

    memory: Any
    target: Any
    first: Any
    filled: Any


@njit
def stage_at(memory, dst):
    """Return an empty stage for what goes to dst; memory has room for what is staged at a time and two lines more."""
    target = cast_pointer(dst, types.uint8)
    past = address_of(target) % GRANULE
    return Stage(memory, advance(target, -past), past, past)


@njit
def place(stage):
    """Return where the next bytes are to be written."""
    return advance(stage.memory, stage.filled)


@njit
def flush(stage, added):
    """Write whole granules, after `added` bytes, at least one, were written to `place`; return what is left."""
    memory, target, first, filled = stage.memory, stage.target, stage.first, stage.filled + added
    k = 0
    if first > 0:  # the first granule is not all ours
        store(target, first, load(memory, first, _GRANULE))
        k = GRANULE
    while k <= filled - LINE:
        stream_granules(target, k, load(memory, k, _LINE))
        k += LINE
    while k <= filled - GRANULE:
        stream_granules(target, k, load(memory, k, _GRANULE))
        k += GRANULE
    store(memory, 0, load(memory, k, _GRANULE))
    return Stage(memory, advance(target, k), 0, filled - k)


@njit
def grown(stage, added):
    """Return a stage after so many bytes were written to `place`, whole granules of it written if it has `ENOUGH`."""
    memory, target, first, filled = stage
    if filled + added >= ENOUGH:
        return flush(stage, added)
    return Stage(memory, target, first, filled + added)


@njit
def finish(stage):
    """Write what is left."""
    for k in range(stage.first, stage.filled):
        stage.target[k] = stage.memory[k]
