"""Loops over elements that are rounded at random, in pieces whose random numbers are drawn before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.operands import Units
from fastq.kernels.sizes import DRAWN_TOGETHER
from fastq.kernels.stochastic_rounding import SLACK, draw
from fastq.kernels.traversal.streaming import can_stream, elements_to_line

_ROOM = DRAWN_TOGETHER + 2 * v.LINE + SLACK  # and what precedes a line of the narrowest elements that are streamed


def in_pieces(run: Callable[..., Any]):
    """Make what calls ``run(kernel, operands, args, units)`` for one piece after the other."""

    @traced
    def run_pieces(kernel, operands, args, units):
        numbers = v.scratch(_ROOM, types.int16)
        i = units.start
        status = 0
        size = _unit_size(kernel)
        piece = _piece(kernel, args)
        end = i + _to_line(kernel, operands, units) + piece
        while i < units.stop:
            end = min(end, units.stop)
            draw(numbers, operands.noise, i * size, end * size)
            drawn = _with_numbers(operands, v.advance(numbers, -i * size))
            status |= run(kernel, drawn, args, Units(units.origin, i, end, units.slot))
            i = end
            end = end + piece
        return status

    return run_pieces


@traced
def _with_numbers(operands, numbers):
    """Return operands that have the numbers themselves in place of what these are drawn by."""
    return operands._replace(noise=numbers)


@traced
def _unit_size(kernel):
    """Return how many elements a unit has: a block where a loop is over blocks."""
    return kernel.spec.block if kernel.spec.block else 1


@traced
def _piece(kernel, args):
    """Return how many units a piece has: whole runs where their range is taken."""
    if kernel.spec.range_scheme and not kernel.spec.block:
        # blocks of the one row, or whole rows, which may end with a shorter block
        return DRAWN_TOGETHER - DRAWN_TOGETHER % v.select(args.outer == 1, args.block, args.length)
    return DRAWN_TOGETHER // _unit_size(kernel)


@traced
def _to_line(kernel, operands, units):
    """Return how many elements are before a line of the result, with which pieces begin where it may be streamed."""
    if kernel.spec.range_scheme or not can_stream(kernel.spec, operands.dst):
        return 0
    return elements_to_line(operands.dst, units.start - units.origin)
