"""Count the bits of neighbouring floats, position by position: of the first, of the second, and those that both have.

Carry-save adders add sixteen vectors at once: what is counted bit by bit are their carries, one in sixteen. Exponents
are counted by sign and magnitude: then bits next to each other in value are alike.
"""

from __future__ import annotations

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.formats.bitrounding import of_width
from fastq.kernels.body import BODIES, Body, rebase
from fastq.kernels.load_store import prefetch_ahead, prefetch_lanes
from fastq.kernels.pointers import BitPairOperands

# vectors that are added at once, and the sums of weights 1, 2, 4 and 8 that are kept
TOGETHER = 16
LEVELS = 4
STREAMS = 3  # bits of the first element, of the second and of both
MOST = 1 << 10  # carries that lanes of 16 bits hold
# elements: a vector of counts for each position, lanes times positions are a register; vectors of the least type
_COUNTS = STREAMS * v.REGISTER_BITS
_WORDS = v.REGISTER_BITS // 16
_PADDED = TOGETHER * v.REGISTER_BITS // 16


@traced
def _magnitude(bits, src):
    """Return the bits of floats without that of the sign."""
    return bits & v.constant((1 << src.dtype.bitwidth - 1) - 1, bits)


@traced
def _with_signed_exponent(bits, src):
    """Return the bits of a float with its exponent as a sign and a magnitude."""
    mantissa, bias = of_width(src.dtype.bitwidth)
    exponent = (_magnitude(bits, src) >> v.constant(mantissa, bits)) - v.constant(bias, bits)
    sign = v.select(exponent < v.constant(0, bits), v.constant(bias + 1 << mantissa, bits), v.constant(0, bits))
    rest = bits & v.constant(~(2 * bias + 1 << mantissa), bits)
    return rest | sign | (v.absolute(exponent) << v.constant(mantissa, bits))


@traced
def _pair_at(first, second, i, vec):
    """Return the words of a vector of pairs, 0 where either is NaN, and which are."""
    mantissa, bias = of_width(first.dtype.bitwidth)
    a, b = v.load(first, i, vec), v.load(second, i, vec)
    infinity = v.constant(2 * bias + 1 << mantissa, a)
    nan = (_magnitude(a, first) > infinity) | (_magnitude(b, first) > infinity)
    zero = v.constant(0, a)
    words = (v.select(nan, zero, _with_signed_exponent(x, first)) for x in (a, b))
    return (*words, v.select(nan, v.constant(1, a), zero))


@traced
def _add_and_carry(sums, vectors):
    """Add sixteen vectors to sums of weights 1, 2, 4 and 8, bit by bit; return these and the carry of weight 16."""
    sums = list(sums)
    for level in v.unrolled(LEVELS):
        carries = []
        for a, b in zip(vectors[::2], vectors[1::2], strict=True):
            either = sums[level] ^ a
            carries.append((sums[level] & a) | (either & b))
            sums[level] = either ^ b
        vectors = carries
    return tuple(sums), vectors[0]


@traced
def _add_pairs(first, second, i, vec, sums, omitted):
    """Add sixteen vectors of pairs from i on; return sums of each stream, their carries and counts of NaN."""
    pairs = tuple(_pair_at(first, second, i + k * v.count(vec), vec) for k in range(TOGETHER))
    prefetch_lanes(first, i + TOGETHER * v.count(vec) + prefetch_ahead(), vec)
    prefetch_lanes(second, i + TOGETHER * v.count(vec) + prefetch_ahead(), vec)
    of_streams = (tuple(a for a, _, _ in pairs), tuple(b for _, b, _ in pairs), tuple(a & b for a, b, _ in pairs))
    sums_and_carries = tuple(_add_and_carry(sums[k], vectors) for k, vectors in enumerate(of_streams))
    for _, _, nan in pairs:
        omitted = omitted + nan
    return (
        tuple(sums_of_stream for sums_of_stream, _ in sums_and_carries),
        tuple(carry for _, carry in sums_and_carries),
        omitted,
    )


@traced
def _nothing(vec):
    """Return the sums of each stream, and the count of NaN, before the first pair."""
    zero = v.full(0, vec)
    return ((zero,) * LEVELS,) * STREAMS, zero


@traced
def _add_carry(room, carry, vec, width):
    """Add the bits of a carry to counts of their positions, lane by lane."""
    one = v.constant(1, carry)
    for position in range(width):
        at = position * v.count(vec)
        v.store(room, at, v.load(room, at, vec) + ((carry >> v.constant(position, carry)) & one))


@traced
def _count_bits(counts, words, n, width, weight):
    """Add the bits of n words, times a weight, to the counts of their positions."""
    for k in range(n):
        for position in range(width):
            counts[position] += weight * ((words[k] >> position) & 1)


@traced
def _finish(counts, stream, sums, words, room, vec, width):
    """Add what was counted in a stream: carries, each of which stands for sixteen, and what is left in the sums."""
    counts = v.advance(counts, stream * width)
    room = v.advance(room, stream * width * v.count(vec))
    n = v.count(vec)
    weight = 1
    for lanes in sums:
        v.store(words, 0, lanes)
        _count_bits(counts, words, n, width, weight)
        weight *= 2
    for position in range(width):
        for lane in range(n):
            counts[position] += TOGETHER * room[position * n + lane]


@traced
def _count_blocks(first, second, counts, blocks, vec):
    """Count the pairs of `blocks` blocks of sixteen vectors."""
    n = v.count(vec)
    width = v.bits_of(first)
    room = v.scratch(_COUNTS, v.dtype_of(first))
    words = v.scratch(_WORDS, v.dtype_of(first))
    sums, omitted = _nothing(vec)
    size = width * n
    for k in range(STREAMS * width):
        v.store(room, k * n, omitted)
    for k in range(blocks):
        sums, carries, omitted = _add_pairs(first, second, k * TOGETHER * n, vec, sums, omitted)
        _add_carry(room, carries[0], vec, width)
        _add_carry(v.advance(room, size), carries[1], vec, width)
        _add_carry(v.advance(room, 2 * size), carries[2], vec, width)
    for stream, total in enumerate(sums):
        _finish(counts, stream, total, words, room, vec, width)
    v.store(words, 0, omitted)
    for lane in range(n):
        counts[STREAMS * width] += words[lane]


@traced
def count_pairs(spec, operands, args, units):
    """Count pairs start..stop; src and following hold those from `origin` on."""
    operands = rebase(operands, args, units)
    first = operands.src
    second = operands.following
    counts = operands.counts
    i = units.start
    stop = units.stop
    vec = v.lanes(first)
    step = TOGETHER * v.count(vec)
    while i <= stop - step:
        blocks = min((stop - i) // step, MOST)
        _count_blocks(v.advance(first, i), v.advance(second, i), counts, blocks, vec)
        i += blocks * step
    if i < stop:
        a, b = v.scratch(_PADDED, v.dtype_of(first)), v.scratch(_PADDED, v.dtype_of(first))
        # filled up with pairs of NaN, which are left out; those added are taken from the count of such pairs again
        for k in range(step):
            a[k] = -1
            b[k] = -1
        for k in range(stop - i):
            a[k], b[k] = first[i + k], second[i + k]
        _count_blocks(a, b, counts, 1, vec)
        counts[STREAMS * v.bits_of(first)] -= step - (stop - i)
    return 0


# no `run`: `count_pairs` visits the elements itself
BODIES[BitPairOperands] = Body(partials={"counts": "counts"})
