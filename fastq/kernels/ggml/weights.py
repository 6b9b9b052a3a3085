"""Weights with which scales of GGUF blocks are searched for, sixteen blocks side by side."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.formats.gguf import SuperFormat
from fastq.kernels.ggml.scale_search import F32, LANES, sum_of_squares

_TOO_HEAVY = 2.0**90  # single sums of a search would overflow; products of sums do from about 2**56 on, as in ggml


class BlockGroup(NamedTuple):
    """Pointers to values, to the importance of their columns, and to the mean square of the row of each block."""

    x: Any
    importance: Any
    means: Any


@traced
def mean_square_for_weights(spec, group):
    """Return the mean square that weights are made with: of the row, or of the block times its spread."""
    if not spec.weighted and not spec.of_mean:
        return v.full(0.0, F32)
    if spec.of_rows:
        return v.load(group.means, 0, F32)
    return _multiply_then_divide(spec, group)


@traced
def _multiply_then_divide(spec, group):
    """Return the mean square of the block times its spread, in ggml's order: tiny sums have other bits in another."""
    total = sum_of_squares(group.x, spec.size)
    return total * v.constant(spec.spread, total) / v.constant(spec.size, total)


@traced
def _divide(spec, group):
    """Return the mean square of the block, without its spread: the bound on importance is no part of the weights."""
    total = sum_of_squares(group.x, spec.size)
    return total / v.constant(spec.size, total)


@traced
def outweighs(spec, group):
    """Whether the importance of columns is so large that single sums of a search may overflow in one of the blocks."""
    if not spec.weighted or not spec.block_format.searches(spec.weighted):
        return False
    largest = v.full(0.0, F32)
    for i in range(0, spec.size * LANES, LANES):
        largest = v.maximum(largest, v.load(group.importance, i, F32))
    mean = v.load(group.means, 0, F32) if spec.of_rows else _divide(spec, group)
    # not `>=`, which would pass over NaN
    return v.any_lane(~(largest * (v.constant(1, mean) + mean) < v.constant(_TOO_HEAVY, mean)))


@traced
def weigh(spec, group, first, count, mean, w):
    """Write the weights of values `first` to `first` + count."""
    x = v.advance(group.x, first * LANES)
    root = root_of(spec, x, count)
    for i in range(0, count * LANES, LANES):
        importance = v.load(v.advance(group.importance, first * LANES), i, F32)
        v.store(w, i, weight_of(spec, v.load(x, i, F32), importance, mean, root))


def _is_magnitude(block_format) -> bool:
    """Return whether, without importance, the weight of a value grows with its magnitude, and not with its square."""
    return isinstance(block_format, SuperFormat) and block_format.has_minimum


@traced
def root_of(spec, x, count):
    """Return the root of the mean square of sub-blocks, where weights are that and magnitudes."""
    if spec.weighted or not _is_magnitude(spec.block_format) or spec.block_format.bits == 2:
        return v.full(0.0, F32)
    total = sum_of_squares(x, count)
    return v.sqrt(total / v.constant(count, total))


@traced
def weight_of(spec, value, importance, mean, root):
    """Return the weight of the error of a value, which ggml has of its own for each kind of format.

    With importance it is that alone for Q6_K, the one of 6 bits, else that times the root of the mean square plus the
    value's own square. Without, grids and other formats around 0 have the square, to which some grids add a share of
    the mean; formats with minima have the magnitude, to which all but Q2_K, the one of 2 bits, add the root of the mean
    square.
    """
    if spec.weighted:
        return importance if spec.block_format.bits == 6 else importance * v.sqrt(mean + value * value)
    if not _is_magnitude(spec.block_format):
        square = value * value
        return v.constant(spec.of_mean, mean) * mean + square if spec.of_mean else square
    return v.absolute(value) if spec.block_format.bits == 2 else root + v.absolute(value)
