"""Weights with which scales of GGUF blocks are searched for, sixteen blocks side by side."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastq.engine import simd as v
from fastq.engine.jit import specialize
from fastq.formats.gguf import WEIGHTED_CANDIDATES, SuperFormat
from fastq.kernels.ggml.search import F32, LANES, fit_range, sum_of_squares


class BlockGroup(NamedTuple):
    """Pointers to values, to the importance of their columns, and to the mean square of the row of each block."""

    x: Any
    importance: Any
    means: Any


@specialize
def spread(spec, group):
    """Return the mean square that goes with the importance of columns: of the row, or of the block."""
    row = spec.row
    if not spec.weighted:
        return lambda spec, group: v.full(0.0, F32)
    if row.of_rows:
        return lambda spec, group: v.load(group.means, 0, F32)
    n, factor = row.size, 1.0 if row.bits == 2 else 2.0

    def of_block(spec, group):
        total = sum_of_squares(group.x, n)
        return total * v.constant(factor, total) / v.constant(n, total)

    return of_block


@specialize
def weigh(spec, group, first, count, mean, w):
    """Write the weights of values `first` to `first` + count."""
    row = spec.row

    def by_importance(spec, group, first, count, mean, w):
        for i in range(count):
            value = v.load(group.x, (first + i) * LANES, F32)
            v.store(w, i * LANES, v.load(group.importance, (first + i) * LANES, F32) * v.sqrt(mean + value * value))

    def importance(spec, group, first, count, mean, w):
        for i in range(count):
            v.store(w, i * LANES, v.load(group.importance, (first + i) * LANES, F32))

    def squares(spec, group, first, count, mean, w):
        for i in range(count):
            value = v.load(group.x, (first + i) * LANES, F32)
            v.store(w, i * LANES, value * value)

    def magnitudes(spec, group, first, count, mean, w):
        for i in range(count):
            v.store(w, i * LANES, v.absolute(v.load(group.x, (first + i) * LANES, F32)))

    def raised(spec, group, first, count, mean, w):
        total = sum_of_squares(v.advance(group.x, first * LANES), count)
        root = v.sqrt(total / v.constant(count, total))
        for i in range(count):
            v.store(w, i * LANES, root + v.absolute(v.load(group.x, (first + i) * LANES, F32)))

    if spec.weighted:
        return importance if row.bits == 6 else by_importance
    if isinstance(row, SuperFormat) and row.has_minimum:
        return magnitudes if row.bits == 2 else raised
    return squares


@specialize
def range_of(spec, x, w, room):
    """Fit scale and smallest value of sub-blocks."""
    row = spec.row
    count, steps = row.sub, row.steps
    first, delta, last = WEIGHTED_CANDIDATES if spec.weighted else row.candidates
    squared = spec.weighted or row.bits > 2
    return lambda spec, x, w, room: fit_range(x, w, room, count, steps, first, delta, last, squared)
