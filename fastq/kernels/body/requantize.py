"""Requantize accumulators: runs of one channel, rows of neighbours of different channels; the words of channels."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.body import BODIES, Body
from fastq.kernels.load_store import prefetch_distance, prefetch_lanes
from fastq.kernels.pointers import RequantizeOperands
from fastq.kernels.requantization import first_word, requantize_lanes, second_word
from fastq.kernels.spec import status_of
from fastq.kernels.traversal.streaming import stream_by_lines, streams_row


@traced
def channels(spec, operands, args, units):
    """Write the words of channels start..stop; report a multiplier that is too large."""
    zero_point = operands.zero_point[0]
    fits = True
    for p in range(units.start, units.stop):
        multiplier = v.convert(operands.multiplier[p], types.float64)
        fits &= multiplier < spec.below
        operands.first[p] = first_word(spec, multiplier)
        operands.second[p] = second_word(spec, _bias_at(spec, operands, p), zero_point)
    return status_of(infinite=not fits)


@traced
def _lanes(pointer, n):
    """Vec type of n elements of a pointer."""
    return v.Vec(pointer.dtype, n)


@traced
def _bias_at(spec, operands, p):
    """Return the bias of channel p, None where there is none."""
    return operands.bias[p] if spec.bias else None


def _make_visitor(words):
    """Make what visits i..end; ``words(pointer, p, i, kind)`` gives the words of the lanes from i on."""

    @traced
    def piece(context, i, vec):
        """Return the codes of the lanes from i on, as `stream_by_lines` takes them: nothing is reported."""
        spec, operands, p, bounds = context
        prefetch_lanes(operands.src, i + prefetch_distance(operands.src), vec)
        kind = v.with_lane_type(vec, types.int64)
        first = words(operands.scale, p, i, kind)
        second = words(operands.zero_point, p, i, kind)
        codes = requantize_lanes(spec, v.load(operands.src, i, vec), first, second, *bounds)
        return v.convert(codes, operands.dst.dtype), False

    stream_lines = stream_by_lines(piece)

    @traced
    def visit_whole(context, i, end, kind):
        """Write the codes of whole Vecs from i on, and return where the rest begins."""
        while i + v.count(kind) <= end:
            v.store(context[1].dst, i, piece(context, i, kind)[0])
            i += v.count(kind)
        return i

    @traced
    def visit(spec, operands, p, bounds, i, end, streaming):
        src = operands.src
        dst = operands.dst
        context = (spec, operands, p, bounds)
        vec = v.lanes(src, src)
        line = v.lanes_of_line(src, dst)
        few = _lanes(src, 4)
        one = _lanes(src, 1)
        if streaming:
            i, _ = stream_lines(spec, context, src, dst, i, end, vec)
        i = visit_whole(context, i, end, line)
        i = visit_whole(context, i, end, vec)
        i = visit_whole(context, i, end, few)
        visit_whole(context, i, end, one)

    return visit


@traced
def _word_of_run(pointer, p, i, kind):
    """Return the word of the channel of a run, in each lane."""
    return v.full(pointer[p], kind)


@traced
def _words_of_row(pointer, p, i, kind):
    """Return the words of a row from element i on, each of another channel; element j has that at p + j."""
    return v.load(pointer, p + i, kind)


visit_run = _make_visitor(_word_of_run)
_visit_row = _make_visitor(_words_of_row)


@traced
def _bounds(args):
    """Return the first and the last code."""
    return v.bounded_to_integer(args.lowest, types.int32), v.bounded_to_integer(args.highest, types.int32)


@traced
def _requantize_run(spec, operands, args, p, i, end):
    """Requantize a run of one channel, whose words have index p; return the status."""
    visit_run(spec, operands, p, _bounds(args), i, end, args.streaming)
    return 0


@traced
def _requantize_row(spec, operands, args, p, i, end):
    """Requantize a piece of a row, in which element j has the words p + j; return the status."""
    _visit_row(spec, operands, p, _bounds(args), i, end, streams_row(spec, operands, args, i, end))
    return 0


BODIES[RequantizeOperands] = Body(_requantize_run, row=_requantize_row)
