"""Copy codes from one storage format to another, a byte or more each or several a byte; keep a bit of values."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels import load_store
from fastq.kernels.bitpack import Bits
from fastq.kernels.body import BODIES, Body, rebase
from fastq.kernels.nan import nan_mask, nan_mask_of_two
from fastq.kernels.pointers import CopyOperands
from fastq.kernels.status import HAS_NAN, OUT_OF_RANGE
from fastq.kernels.traversal.streaming import stream_by_lines


@traced
def repack(spec, operands, args, units):
    """Copy rows start..stop of `args.length` elements, each of which begins on a whole byte.

    src and dst hold those from row `origin` on.
    """
    length = args.length
    row = units.start - units.origin
    stop = units.stop - units.origin
    reported = False
    # zeros that fill up rows would get bits where zeros are not below the threshold
    if length <= MAX_GROUPED_ROW and spec.op not in ("above", "from"):
        row, reported = _repack_together(spec, operands, args, row, stop)
    while row < stop:
        src = row_at(operands.src, row, length)
        dst = row_at(operands.dst, row, length)
        reported |= _repack_row(spec, src, dst, length, args.streaming, args.threshold)
        row += 1
    return _status_of(spec, reported)


@traced
def repack_elements(spec, operands, args, units):
    """Copy elements start..stop, which begin on a whole byte; src and dst hold those from `origin` on."""
    operands = rebase(operands, args, units)
    src = v.advance(operands.src, units.start)
    dst = v.advance(operands.dst, units.start)
    return _status_of(spec, _repack_row(spec, src, dst, units.stop - units.start, args.streaming, args.threshold))


@traced
def row_bytes(pointer, length):
    """Return the bytes of a row of a number of elements, rounded up to whole bytes."""
    return (length * pointer.dtype.bitwidth + 7) >> 3


@traced
def row_at(pointer, row, length):
    """Return a pointer to a row; each row begins on a whole byte."""
    first = v.advance(v.cast_pointer(pointer, types.uint8), row * row_bytes(pointer, length))
    return v.cast_pointer(first, pointer.dtype)


@traced
def out_of_range(code, kind):
    """Mask of the codes that do not fit the elements of a type."""
    if not isinstance(kind, Bits):
        return False
    least = -(1 << (kind.bitwidth - 1)) if kind.signed else 0
    above = code > v.constant(least + (1 << kind.bitwidth) - 1, code)
    return (code < v.constant(least, code)) | above if v.lane_type(code).signed else above


@traced
def _status_of(spec, reported):
    """Return the status of a loop that has found elements to report."""
    return (OUT_OF_RANGE if spec.op == "repack" else HAS_NAN) * reported


@traced
def _has_bit(spec, x, threshold):
    """Mask of the values whose bit is 1: of those above 0, above a threshold, or from it on."""
    if spec.op == "binarize":
        return x > v.constant(0, x)
    if v.is_float(x) and not spec.refuses_nan:
        x = v.select(v.is_nan(x), v.constant(0, x), x)
    kind = v.lane_type(x)
    bound = v.convert(threshold, kind) if v.is_float(x) else v.bounded_to_integer(threshold, kind)
    return x > bound if spec.op == "above" else x >= bound


@traced
def _load_codes(context, i, kind):
    """Convert the elements of a Vec or scalar type from src[i] on; return the codes and a mask of those to report."""
    spec, src, dst, threshold = context
    if spec.op == "repack":
        codes = load_store.load_bits(src, i, kind)
        in_register = dst.dtype.code_type if isinstance(dst.dtype, Bits) else dst.dtype
        return v.convert(codes, in_register), out_of_range(codes, dst.dtype)
    if not isinstance(kind, v.Vec):
        x = load_store.load_elements(src, i, kind)
        return _has_bit(spec, x, threshold), nan_mask(spec, x)
    load_store.prefetch_lanes(src, i + load_store.prefetch_distance(src), kind)
    x = load_store.load_elements(src, i, kind)
    return _has_bit(spec, x, threshold), v.any_lane(nan_mask_of_two(spec, v.lower(x), v.upper(x)))


@traced
def _prefetch_and_load_codes(context, i, vec):
    """Do `_load_codes` for large arrays, whose elements far ahead are prefetched."""
    ahead = load_store.prefetch_ahead() * 4  # only here: in cache the loop has no room for it
    load_store.prefetch_lanes(context[1], i + ahead, vec)
    return _load_codes(context, i, vec)


_stream_lines = stream_by_lines(_prefetch_and_load_codes)


@traced
def _widest(spec, src, dst):
    """Vec type of the elements of a turn: a register of the wider ones, or 64 elements, whose bits fill a word."""
    return v.lanes(src, dst) if spec.op == "repack" else v.Vec(src.dtype, 64)


@traced
def _whole_bytes(src):
    """Vec type of as few elements as fill whole bytes whatever their bits."""
    return v.Vec(src.dtype, 8)


@traced
def _repack_row(spec, src, dst, size, streaming, threshold):
    """Copy `size` elements: past the cache, then by Vecs, then by whole bytes, and the last ones one by one.

    Return whether one was reported.
    """
    vec = _widest(spec, src, dst)
    context = (spec, src, dst, threshold)
    k = 0
    reported = False
    if streaming:
        k, reported = _stream_lines(spec, context, src, dst, 0, size, vec)
    k, more = _repack_lanes(context, k, size, vec)
    reported |= more
    if v.count(vec) > 8:
        k, more = _repack_lanes(context, k, size, _whole_bytes(src))
        reported |= more
    while k < size:
        code, more = _load_codes(context, k, v.dtype_of(src))
        reported |= more
        load_store.store_elements(dst, k, code)
        k += 1
    return reported


@traced
def _repack_lanes(context, k, size, vec):
    """Copy the elements of whole Vecs from k on; return where the rest begins, and whether one was reported."""
    n = v.count(vec)
    if k > size - n:
        return k, False
    _, reported = _load_codes(context, k, vec)
    while k <= size - n:
        codes, more = _load_codes(context, k, vec)
        load_store.store_elements(context[2], k, codes)
        reported = reported | more
        k += n
    return k, v.any_lane(reported)


# --- short rows, which are copied as one ------------------------------------------------------------------------------

# elements of a row that is copied with others: decision D61
MAX_GROUPED_ROW = 128
_QUARTER = v.Vec(types.uint8, v.LINE // 4)
_WHOLE = v.Vec(types.uint8, v.LINE)
_ROOM = 1 << 12  # bytes of rows that are copied at a time: what holds them stays in the L1 cache
_STACK = _ROOM + v.LINE


@traced
def _repack_together(spec, operands, args, row, stop):
    """Copy several short rows at a time, through buffers in which each row is padded to whole groups of codes.

    Registers reach past the end of a row, so the last rows before `stop` are left to the caller. Return the first row
    not copied, and whether an element was reported.
    """
    src = operands.src
    dst = operands.dst
    length = args.length
    reported = False
    group = load_store.group_of(src) * load_store.group_of(dst)
    padded = -(-length // group) * group
    in_bytes = row_bytes(src, length)
    in_padded = row_bytes(src, padded)
    out_bytes = row_bytes(dst, length)
    out_padded = row_bytes(dst, padded)
    stop -= v.LINE // min(in_bytes, out_bytes) + 1
    sources = v.scratch(_STACK, types.uint8)
    results = v.scratch(_STACK, types.uint8)
    padded_sources = v.cast_pointer(sources, v.dtype_of(src))
    padded_results = v.cast_pointer(results, v.dtype_of(dst))
    while row < stop:
        rows = min(_ROOM // max(in_padded, out_padded), stop - row)
        _move_rows(row_at(src, row, length), in_bytes, sources, in_padded, rows)
        reported |= _repack_row(spec, padded_sources, padded_results, rows * padded, 0, args.threshold)
        _move_rows(results, out_padded, row_at(dst, row, length), out_bytes, rows)
        row += rows
    return row, reported


@traced
def _move_rows(source, source_step, target, target_step, rows):
    """Copy rows to a stride in bytes, with zeros after each row up to the start of the next one.

    Up to a line is read and written beyond the last row.
    """
    source = v.cast_pointer(source, types.uint8)
    target = v.cast_pointer(target, types.uint8)
    nbytes = min(source_step, target_step)
    if max(source_step, target_step) <= v.count(_QUARTER):
        nothing = v.full(0, _QUARTER)
        beyond = v.lanes_from(nbytes, nothing)
        for _ in range(rows):
            v.store(target, 0, v.select(beyond, nothing, v.load(source, 0, _QUARTER)))
            source = v.advance(source, source_step)
            target = v.advance(target, target_step)
        return
    whole = (nbytes - 1) // v.LINE * v.LINE
    nothing = v.full(0, _WHOLE)
    beyond = v.lanes_from(nbytes - whole, nothing)
    for _ in range(rows):
        for k in range(0, whole, v.LINE):
            v.store(target, k, v.load(source, k, _WHOLE))
        v.store(target, whole, v.select(beyond, nothing, v.load(source, whole, _WHOLE)))
        source = v.advance(source, source_step)
        target = v.advance(target, target_step)


BODIES[CopyOperands] = Body()
