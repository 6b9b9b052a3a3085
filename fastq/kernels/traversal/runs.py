"""Loops over contiguous runs with one scale and zero point each (inner == 1)."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.body import batch_size, rebase, visit_batch, visit_run
from fastq.kernels.operands import with_results
from fastq.kernels.pointers import ElementOperands, NoisyOperands
from fastq.kernels.sizes import PIECE_BYTES
from fastq.kernels.traversal.geometry import next_row_end
from fastq.kernels.traversal.streaming import FLUSH_BYTES, advance, can_stream, stage_at, store_tail, write_pointer

_STAGE_BYTES = PIECE_BYTES + FLUSH_BYTES + 2 * v.LINE


@traced
def runs(spec, operands, args, units):
    """Visit elements start..stop, run by run; src and dst hold the elements from `origin` on."""
    return visit_runs_staged_or_not(spec, rebase(operands, args, units), args, units.start, units.stop)


@traced
def visit_runs_staged_or_not(spec, operands, args, start, stop):
    """Visit the runs of elements start..stop, by way of the stack where results may go past the cache so."""
    can_stage = isinstance(operands, ElementOperands | NoisyOperands) and can_stream(spec, operands.dst)
    return (_by_way_of_the_stack if can_stage else _visit_runs)(spec, operands, args, start, stop)


@traced
def _by_way_of_the_stack(spec, operands, args, start, stop):
    """Visit runs a piece at a time, whose results are written past the cache if the call outgrows it."""
    if not args.staging:
        return _visit_runs(spec, operands, args, start, stop)
    dst = operands.dst
    piece = _piece(spec, dst, args)
    i = start
    status = 0
    stage = stage_at(v.scratch(_STAGE_BYTES, types.uint8), v.advance(dst, start))
    while i < stop:
        end = min(i + piece, stop)
        staged = v.advance(v.cast_pointer(write_pointer(stage), v.dtype_of(dst)), -i)
        status |= _visit_runs(spec, with_results(operands, staged), args, i, end)
        stage = advance(stage, (end - i) * v.bits_of(dst) + 7 >> 3)  # of an odd number of codes the last byte too
        i = end
    store_tail(stage)
    return status


@traced
def _piece(spec, dst, args):
    """Return how many elements of dst are staged at a time: whole blocks where their range is taken.

    In several rows that means whole rows, each of which may end with a shorter block.
    """
    most = 8 * PIECE_BYTES // dst.dtype.bitwidth
    if not spec.range_scheme:
        return most
    return most - most % v.select(args.outer == 1, args.block, args.length)


@traced
def _visit_runs(spec, operands, args, start, stop):
    """Visit elements start..stop, run by run, or several short ones at once; return the status.

    Parameters of consecutive runs follow each other up to the end of the outer axes that are kept, so p is computed
    once for these. Of shape (2, 3, 8) with a parameter for each index of axis 1, `kept_outer` is 3: element 20 is in
    outer index 2, with parameter 2, and at element 24, in outer index 3, it is parameter 0 again.
    """
    i = start
    status = 0
    while i < stop:
        outer = i // args.length
        first = outer * args.length
        block = (i - first) // args.block
        p = (outer // args.cycle * args.kept_outer + outer % args.kept_outer) * args.blocks + block
        # loops go by where a row ends, not by how many blocks it has left, by which minima of bytes took
        # 3.5 times as long
        row_end = first + args.length
        end = first + (block + 1) * args.block
        # so far parameters follow each other
        limit = min(first + (args.kept_outer - outer % args.kept_outer) * args.length, stop)
        again = p  # where it may pay to take short runs together again: not at once after some of which one refused
        while i < limit:
            end = min(end, row_end, limit)
            if p >= again and end - i == args.block:
                done, i, row_end, reported = visit_batch(spec, operands, args, p, i, row_end, limit)
                p = p + done
                end = i + args.block
                status = status | reported
                again = p + batch_size(spec, operands)
                if done:
                    continue
            status |= visit_run(spec, operands, args, p, i, end)
            i = end
            end = end + args.block
            p = p + 1
            row_end = next_row_end(args, i, row_end)
    return status
