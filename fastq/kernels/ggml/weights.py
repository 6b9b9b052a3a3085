"""Weights with which scales of GGUF blocks are searched for, sixteen blocks side by side."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.formats.gguf import WEIGHTED_CANDIDATES, SuperFormat
from fastq.kernels.ggml.search import F32, LANES, fit_range, sum_of_squares


class BlockGroup(NamedTuple):
    """Pointers to values, to the importance of their columns, and to the mean square of the row of each block."""

    x: Any
    importance: Any
    means: Any


@traced
def mean_square_of_weights(spec, group):
    """Return the mean square that is combined with the importance of columns: of the row, or of the block."""
    row = spec.row
    if not spec.weighted and not spec.of_mean:
        return v.full(0.0, F32)
    if row.of_rows:
        return v.load(group.means, 0, F32)
    total = sum_of_squares(group.x, row.size)
    return total * v.constant(spec.spread, total) / v.constant(row.size, total)


@traced
def weigh(spec, group, first, count, mean, w):
    """Write the weights of values `first` to `first` + count."""
    x = v.advance(group.x, first * LANES)
    root = root_of(spec, x, count)
    for i in range(0, count * LANES, LANES):
        importance = v.load(v.advance(group.importance, first * LANES), i, F32)
        v.store(w, i, weight_of(spec, v.load(x, i, F32), importance, mean, root))


def _is_magnitude(row) -> bool:
    return isinstance(row, SuperFormat) and row.has_minimum


@traced
def root_of(spec, x, count):
    """Return the root of the mean square of sub-blocks, where weights are that and magnitudes."""
    if spec.weighted or not _is_magnitude(spec.row) or spec.row.bits == 2:
        return v.full(0.0, F32)
    total = sum_of_squares(x, count)
    return v.sqrt(total / v.constant(count, total))


@traced
def weight_of(spec, value, importance, mean, root):
    """Return the weight of a value."""
    if spec.weighted:
        return importance if spec.row.bits == 6 else importance * v.sqrt(mean + value * value)
    if not _is_magnitude(spec.row):
        square = value * value
        return v.constant(spec.of_mean, mean) * mean + square if spec.of_mean else square
    return v.absolute(value) if spec.row.bits == 2 else root + v.absolute(value)


@traced
def range_of(spec, x, w, room):
    """Fit scale and smallest value of sub-blocks."""
    row = spec.row
    first, delta, last = WEIGHTED_CANDIDATES if spec.weighted else row.candidates
    squared = spec.weighted or row.bits > 2
    return fit_range(x, w, room, row.sub, row.steps, first, delta, last, squared)
