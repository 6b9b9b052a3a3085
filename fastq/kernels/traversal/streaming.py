"""How large results are stored past the cache: from where arrays begin, or in whole cache lines.

Whether they are, says `store_mode` of fastq/plan/policy.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.load_store import group_of, in_granules, store_elements, stream_elements


def can_stream(spec, dst) -> bool:
    """Return whether results of this width can be streamed.

    Codes of 3, 5, 6 and 7 bits do not fill a cache line, and a line has more codes of 1 or 2 bits than fit in
    registers.
    """
    return spec.streams and dst.dtype.bitwidth in (4, 8, 16, 32, 64)


@traced
def streaming_if_possible(spec, dst, streaming):
    """Return `streaming`, whether the call is large enough; False where results of this width can't be streamed."""
    return streaming if can_stream(spec, dst) else False


@traced
def elements_to_line(pointer, index):
    """Return how many elements ``pointer[index]`` is before the beginning of a cache line."""
    return -v.address_of(v.advance(pointer, index)) % v.LINE * 8 // v.bits_of(pointer)


@traced
def is_whole_lines(src, dst, i, end):
    """Return whether elements i..end can be streamed from the first to the last: as many as lines, from a granule on.

    Where a whole row can be, so can its neighbours, and no line of theirs is shared with a store into the cache.
    """
    if not in_granules(dst.dtype):
        return False
    begins_granule = v.address_of(v.advance(dst, i)) % v.GRANULE == 0
    return begins_granule & ((end - i) % v.lanes_of_line(src, dst).n == 0)


@traced
def streams_row(spec, operands, args, i, end):
    """Return whether results of a row of columns go past the cache straight from registers."""
    if "dst" not in operands._fields or not can_stream(spec, operands.dst):
        return False
    return args.streaming | (args.whole_rows & is_whole_lines(operands.src, operands.dst, i, end))


# --- straight from registers ------------------------------------------------------------------------------------------


@traced
def _of_any_lane(reported):
    """Return whether a lane of a mask is true; a status, which has no lanes, as it is."""
    return v.any_lane(reported) if isinstance(reported, v.Vec) else reported


def stream_by_lines(piece: Callable[..., Any]):
    """Make the loop that writes past the cache what ``piece(context, i, vec)`` gives for the lanes from i on.

    A piece is the lanes as `store_elements` takes them, and a mask of those that have something to report, or a status.
    `vec` must not have more lanes than a line has elements: the elements stored before the first line may reach into
    it, not beyond.
    """

    @traced
    def stream_all(spec, context, src, dst, i, end, vec):
        """Write pieces into the cache up to the first line, which the last may reach into; then lines past it."""
        line = v.lanes_of_line(src, dst)
        first = i if is_whole_lines(src, dst, i, end) else i + elements_to_line(dst, i)
        if first + v.count(line) > end or first % group_of(src) != 0:  # packed codes are read from whole bytes on
            return i, False
        any_reported = False
        while i < first:
            y, reported = piece(context, i, vec)
            store_elements(dst, i, y)
            any_reported |= _of_any_lane(reported)
            i += v.count(vec)
        i = first
        while i <= end - v.count(line):
            y, reported = piece(context, i, line)
            stream_elements(dst, i, y)
            any_reported |= _of_any_lane(reported)
            i += v.count(line)
        return i, any_reported

    @traced
    def stream_lines(spec, context, src, dst, i, end, vec):
        """Write i..end, or up to the last whole line; return where that ended, and what was reported."""
        return stream_all(spec, context, src, dst, i, end, vec) if can_stream(spec, dst) else (i, False)

    return stream_lines


# --- by way of the stack ----------------------------------------------------------------------------------------------

# Granules that follow each other become one store of a line on their way to memory. They begin where arrays do, 16
# bytes after a line, so what is loaded from the stack is what one store wrote: a load of two stores waits for both
# (decision D13)
_LINE = v.Vec(types.uint8, v.LINE)
_GRANULE = v.Vec(types.uint8, v.GRANULE)
FLUSH_BYTES = 16 * v.LINE  # bytes that are written at a time


class StagingBuffer(NamedTuple):
    """Buffer of bytes for `target`, the start of a granule; bytes `first` to `filled` of it are written."""

    memory: Any
    target: Any
    first: Any
    filled: Any


@traced
def stage_at(memory, dst):
    """Return an empty buffer for bytes to dst; memory has room for two lines more than are staged at a time."""
    target = v.cast_pointer(dst, types.uint8)
    past = v.address_of(target) % v.GRANULE
    return StagingBuffer(memory, v.advance(target, -past), past, past)


@traced
def write_pointer(stage):
    """Return the address of the next bytes to write."""
    return v.advance(stage.memory, stage.filled)


@traced
def flush(stage, added):
    """Write whole granules after `added` bytes, at least one, came to `write_pointer`; return the buffer."""
    memory = stage.memory
    target = stage.target
    first = stage.first
    filled = stage.filled + added
    k = 0
    if first > 0:  # the first granule is not all ours
        v.store(target, first, v.load(memory, first, _GRANULE))
        k = v.GRANULE
    while k <= filled - v.LINE:
        v.stream_granules(target, k, v.load(memory, k, _LINE))
        k += v.LINE
    while k <= filled - v.GRANULE:
        v.stream_granules(target, k, v.load(memory, k, _GRANULE))
        k += v.GRANULE
    v.store(memory, 0, v.load(memory, k, _GRANULE))
    return StagingBuffer(memory, v.advance(target, k), 0, filled - k)


@traced
def advance(stage, added):
    """Return the stage after bytes were written to `write_pointer`, flushed if it has `FLUSH_BYTES` of them."""
    memory, target, first, filled = stage
    if filled + added >= FLUSH_BYTES:
        return flush(stage, added)
    return StagingBuffer(memory, target, first, filled + added)


@traced
def store_tail(stage):
    """Write what is left in the buffer, byte by byte: others may write what follows."""
    for k in range(stage.first, stage.filled):
        stage.target[k] = stage.memory[k]
