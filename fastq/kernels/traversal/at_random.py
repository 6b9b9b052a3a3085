"""Loops over elements that are rounded at random, in pieces whose random numbers are drawn before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import njit, traced
from fastq.kernels.noise import SLACK, draw
from fastq.kernels.operands import Units
from fastq.kernels.traversal.stores import can_stream, elements_to_line

_PIECE = 4096  # elements: their numbers, of two bytes, stay in the first cache
_ROOM = _PIECE + 2 * v.LINE + SLACK  # and what precedes a line of the narrowest elements that are streamed


def in_pieces(run: Callable[..., Any]):
    """Make what calls ``run(kernel, operands, args, units)`` for one piece after the other."""

    @njit
    def run_pieces(kernel, operands, args, units):
        numbers, i, status = v.scratch(_ROOM, types.int16), units.start, 0
        end = i + _to_line(kernel, operands, units) + _PIECE
        while i < units.stop:
            end = min(end, units.stop)
            draw(numbers, operands.noise, i, end)
            drawn = _with_numbers(operands, v.advance(numbers, -i))
            status |= run(kernel, drawn, args, Units(units.origin, i, end, units.slot))
            i, end = end, end + _PIECE
        return status

    return run_pieces


@traced
def _with_numbers(operands, numbers):
    return operands._replace(noise=numbers)


@traced
def _to_line(kernel, operands, units):
    """Return how many elements are before a line of the result, with which pieces begin where it may be streamed."""
    return elements_to_line(operands.dst, units.start - units.origin) if can_stream(kernel.spec, operands.dst) else 0
