"""Move and combine lanes of one Vec or two: shuffles, reductions, masks as bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine.simd.arithmetic import Emit, emit_extreme
from fastq.engine.simd.vector import (
    Vec,
    emit_shuffle,
    instruction,
    is_value,
    lane_count,
    lane_type,
    llvm_type,
    named_type,
    splat,
)


@instruction(lambda x: x.dtype(x))
def first(context, builder, sig, x):
    """Extract lane 0."""
    return builder.extract_element(x, ir.IntType(32)(0))


def _declare_shuffle(doc: str, name: str, lanes_of: Callable[[int], list[int]]) -> Any:
    """Make an instruction that picks lanes of a Vec; `lanes_of` gives their indices for its number of lanes."""

    @instruction(lambda x: Vec(x.dtype, len(lanes_of(x.n)))(x) if isinstance(x, Vec) else None, name, doc)
    def across(context, builder, sig, x):
        return emit_shuffle(builder, x, lanes_of(sig.args[0].n))

    return across


lower = _declare_shuffle("First half of the lanes.", "lower", lambda n: list(range(n // 2)))
upper = _declare_shuffle("Second half of the lanes.", "upper", lambda n: list(range(n // 2, n)))
even = _declare_shuffle("Lanes 0, 2, 4, ...", "even", lambda n: list(range(0, n, 2)))
odd = _declare_shuffle("Lanes 1, 3, 5, ...", "odd", lambda n: list(range(1, n, 2)))


@instruction(lambda a, b: Vec(a.dtype, 2 * a.n)(a, b) if isinstance(a, Vec) and a == b else None)
def join(context, builder, sig, a, b):
    """Return the lanes of a, then those of b."""
    return emit_shuffle(builder, a, list(range(sig.return_type.n)), b)


@instruction(lambda x, kind: vec(x, kind) if is_value(x) and (vec := named_type(kind)) else None)
def repeated(context, builder, sig, x, kind):
    """Fill the Vec type `kind` with a scalar, or with the lanes of a shorter Vec again and again."""
    if not isinstance(sig.args[0], Vec):
        return splat(builder, x, llvm_type(sig.return_type))
    return emit_shuffle(builder, x, [k % sig.args[0].n for k in range(sig.return_type.n)])


@instruction(lambda x, count: x(x, count) if isinstance(x, Vec) and isinstance(count, types.IntegerLiteral) else None)
def sum_neighbours(context, builder, sig, x, count):
    """Give each lane the sum of its group of `count` lanes, a literal and a power of two.

    Each step adds the lane at a distance of 1, 2, 4, ...: of 4 lanes a b c d, then a+b a+b c+d c+d, then the sum of all
    in each.
    """
    distance = 1
    while distance < sig.args[1].literal_value:
        x = builder.fadd(x, emit_shuffle(builder, x, [k ^ distance for k in range(sig.return_type.n)]))
        distance *= 2
    return x


def emit_columns(builder, values):
    """Emit the columns of a matrix, as many as there are vectors, whose lanes are its rows, one after the other.

    Of three columns the vectors of four lanes are ``a0 b0 c0 a1``, ``b1 c1 a2 b2`` and ``c2 a3 b3 c3``; they become
    ``a0 a1 a2 a3`` and so on. A power of two takes the even and the odd lanes of pairs of vectors again and again.
    """
    n = values[0].type.count
    m = len(values)
    if m & m - 1:
        return [_emit_column(builder, values, range(k, n * m, m)) for k in range(m)]
    for _ in range(m.bit_length() - 1):  # each step halves what is left of the rows, and doubles the columns
        pairs = list(zip(values[::2], values[1::2], strict=True))
        values = [emit_shuffle(builder, a, list(range(first, 2 * n, 2)), b) for first in (0, 1) for a, b in pairs]
    return values


def _emit_column(builder, values, places):
    """Emit a vector of the lanes at some places, counted from the first vector on: one more vector at a time."""
    n = values[0].type.count
    column = values[0]
    sources = [place if place < n else 0 for place in places]
    for k, vector in enumerate(values[1:], 1):
        lanes = [n + place % n if place // n == k else source for place, source in zip(places, sources, strict=True)]
        column = emit_shuffle(builder, column, lanes, vector)
        sources = list(range(n))
    return column


def _square(rows):
    """Return the signature of `transpose`, None unless there are as many Vecs as one has lanes."""
    is_square = isinstance(rows, types.UniTuple) and isinstance(rows.dtype, Vec) and rows.count == rows.dtype.n
    return rows(rows) if is_square else None


@instruction(_square)
def transpose(context, builder, sig, rows):
    """Transpose n Vecs of n lanes, a power of two: Vec k of the result has lane k of each."""
    values = [builder.extract_value(rows, k) for k in range(sig.return_type.count)]
    return context.make_tuple(builder, sig.return_type, emit_columns(builder, values))


@instruction(lambda mask: types.boolean(mask))
def any_lane(context, builder, sig, mask):
    """Return whether any lane of a mask is true."""
    if not isinstance(sig.args[0], Vec):
        return mask
    bits = builder.bitcast(mask, ir.IntType(sig.args[0].n))
    return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


def _reduction(name: str, combine: Emit, doc: str):
    """Make an instruction that combines all lanes into one: those of both halves, until one is left."""

    @instruction(lambda x: lane_type(x)(types.unliteral(x)) if is_value(x) else None, name, doc)
    def reduce(context, builder, sig, x):
        """Emit the combination of the lower half of the lanes with the upper one, down to one lane."""
        (kind,) = sig.args
        n = lane_count(kind)
        while n > 1:
            n //= 2
            x = combine(builder, kind, [emit_shuffle(builder, x, list(range(at, at + n))) for at in (0, n)])
        return builder.extract_element(x, ir.IntType(32)(0)) if isinstance(kind, Vec) else x

    return reduce


reduce_min = _reduction("reduce_min", emit_extreme("<"), "Smallest lane; any lane where one is NaN.")
reduce_max = _reduction("reduce_max", emit_extreme(">"), "Largest lane; any lane where one is NaN.")


@instruction(lambda mask: types.Integer.from_bitwidth(mask.n, signed=False)(mask))
def mask_to_bits(context, builder, sig, mask):
    """Convert a mask of 8, 16, 32 or 64 lanes to an unsigned integer, lane 0 the lowest bit."""
    return builder.bitcast(mask, llvm_type(sig.return_type))


@instruction(lambda mask: types.int64(mask))
def first_lane(context, builder, sig, mask):
    """Return the number of the first true lane of a mask, which must have one."""
    bits = builder.bitcast(mask, ir.IntType(sig.args[0].n))
    return builder.zext(builder.cttz(bits, ir.Constant(ir.IntType(1), 1)), ir.IntType(64))
