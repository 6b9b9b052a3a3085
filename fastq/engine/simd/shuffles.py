"""Move and combine lanes of one Vec or two: shuffles, reductions, masks as bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine.jit import intrinsic
from fastq.engine.simd.arithmetic import Emit, emit_extreme
from fastq.engine.simd.vector import Vec, emit_shuffle, is_value, lane_count, lane_type, llvm_type


@intrinsic
def first(typingctx, x):
    """Extract lane 0."""

    def emit(context, builder, sig, args):
        return builder.extract_element(args[0], ir.IntType(32)(0))

    return x.dtype(x), emit


def _shuffled(doc: str, name: str, lanes_of: Callable[[int], list[int]]) -> Any:
    """Make an intrinsic that picks lanes of a Vec; `lanes_of` gives their indices for its number of lanes."""

    def across(typingctx, x):
        if not isinstance(x, Vec):
            return None
        lanes = lanes_of(x.n)

        def emit(context, builder, sig, args):
            return emit_shuffle(builder, args[0], lanes)

        return Vec(x.dtype, len(lanes))(x), emit

    across.__name__, across.__doc__ = name, doc
    return intrinsic(across)


lower = _shuffled("First half of the lanes.", "lower", lambda n: list(range(n // 2)))
upper = _shuffled("Second half of the lanes.", "upper", lambda n: list(range(n // 2, n)))
even = _shuffled("Lanes 0, 2, 4, ...", "even", lambda n: list(range(0, n, 2)))
odd = _shuffled("Lanes 1, 3, 5, ...", "odd", lambda n: list(range(1, n, 2)))


@intrinsic
def join(typingctx, a, b):
    """Return the lanes of a, then those of b."""
    if not isinstance(a, Vec) or a != b:
        return None

    def emit(context, builder, sig, args):
        return emit_shuffle(builder, args[0], list(range(2 * a.n)), args[1])

    return Vec(a.dtype, 2 * a.n)(a, b), emit


def emit_columns(builder, values):
    """Emit the columns of a matrix, as many as there are vectors, whose lanes are its rows, one after the other."""
    n, m = values[0].type.count, len(values)
    if m & m - 1:
        return [_emit_column(builder, values, range(k, n * m, m)) for k in range(m)]
    for _ in range(m.bit_length() - 1):  # each step halves what is left of the rows, and doubles the columns
        pairs = list(zip(values[::2], values[1::2], strict=True))
        values = [emit_shuffle(builder, a, list(range(first, 2 * n, 2)), b) for first in (0, 1) for a, b in pairs]
    return values


def _emit_column(builder, values, places):
    """Emit a vector of the lanes at some places, counted from the first vector on: one more vector at a time."""
    n, column = values[0].type.count, values[0]
    found = [place if place < n else 0 for place in places]
    for k, vector in enumerate(values[1:], 1):
        lanes = [n + place % n if place // n == k else at for place, at in zip(places, found, strict=True)]
        column, found = emit_shuffle(builder, column, lanes, vector), list(range(n))
    return column


@intrinsic
def transpose(typingctx, rows):
    """Transpose n Vecs of n lanes: Vec k of the result has lane k of each."""
    if not isinstance(rows, types.UniTuple) or not isinstance(rows.dtype, Vec) or rows.count != rows.dtype.n:
        return None
    n = rows.count
    assert n & n - 1 == 0

    def emit(context, builder, sig, args):
        columns = emit_columns(builder, [builder.extract_value(args[0], k) for k in range(n)])
        return context.make_tuple(builder, rows, columns)

    return rows(rows), emit


@intrinsic
def any_lane(typingctx, mask):
    """Return whether any lane of a mask is true."""

    def emit(context, builder, sig, args):
        if not isinstance(mask, Vec):
            return args[0]
        bits = builder.bitcast(args[0], ir.IntType(mask.n))
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return types.boolean(mask), emit


def _reduction(name: str, combine: Emit, doc: str):
    def reduce(typingctx, x):
        if not is_value(x):
            return None

        def emit(context, builder, sig, args):
            value, n = args[0], lane_count(x)
            while n > 1:
                n //= 2
                halves = [emit_shuffle(builder, value, list(range(first, first + n))) for first in (0, n)]
                value = combine(builder, x, halves)
            return builder.extract_element(value, ir.IntType(32)(0)) if isinstance(x, Vec) else value

        return lane_type(x)(types.unliteral(x)), emit

    reduce.__name__, reduce.__doc__ = name, doc
    return intrinsic(reduce)


reduce_min = _reduction("reduce_min", emit_extreme("<"), "Smallest lane; any lane where one is NaN.")
reduce_max = _reduction("reduce_max", emit_extreme(">"), "Largest lane; any lane where one is NaN.")


@intrinsic
def mask_to_bits(typingctx, mask):
    """Convert a mask of 8, 16, 32 or 64 lanes to an unsigned integer, lane 0 the lowest bit."""
    result = types.Integer.from_bitwidth(mask.n, signed=False)

    def emit(context, builder, sig, args):
        return builder.bitcast(args[0], llvm_type(result))

    return result(mask), emit
