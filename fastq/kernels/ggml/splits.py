"""Numbers of blocks of GGUF whose sorted values are split into three levels, of sixteen blocks side by side.

Lane k of every Vec is of block k. Values are not moved when they are sorted: each gets its rank, and what is summed up
is written where its rank says.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.ggml.grid_search import OFF, code_of, store_scales, take_points_at
from fastq.kernels.ggml.scale_search import F32, I32, LANES, PART, SUBS, U8, select_each
from fastq.kernels.ggml.spec import half
from fastq.kernels.ggml.weights import mean_square_for_weights, weigh

_SHIFT = 0.125
_RUN = 34 * LANES  # running sums of the parts of a sub-block, each with a 0 before
_LEAST = -3.4028234663852886e38  # float32
_HIGH = 8  # a split is ``low | high << 8 | shifts << 16``
_SHIFTS = 16


class Sums(NamedTuple):
    """Sums of products of weights, values and numbers, and of weights and squares of numbers."""

    xq: Any
    q2: Any


class Runs(NamedTuple):
    """Running sums of weighted values and of weights, in the order of values."""

    x: Any
    w: Any


@traced
def quantize_splits(spec, group, numbers):
    """Write the numbers of blocks whose values have three levels, shifted up or down in each part of a sub-block."""
    zero = v.full(0.0, F32)
    scales = v.scratch(SUBS, types.float32)
    w = v.scratch(PART, types.float32)
    points = v.scratch(PART, types.int32)
    mean = mean_square_for_weights(spec, group)
    most = zero
    codes = spec.sub // spec.width * LANES
    for j in range(spec.size // spec.sub):
        x = v.advance(group.x, j * spec.sub * LANES)
        weigh(spec, group, j * spec.sub, spec.sub, mean, w)
        points_of_sub = v.advance(points, j * codes)
        scale = _fit_split(spec, x, w, points_of_sub, v.advance(numbers.signs, j * spec.parts * LANES))
        v.store(scales, j * LANES, scale)
        most = v.maximum(most, scale)
    unit = store_scales(spec, scales, most, numbers)
    for k in range(spec.block_format.count("codes")):
        point = v.load(points, k * LANES, I32)
        v.store(numbers.codes, k * LANES, v.convert(code_of(point), spec.code))
    if spec.fits_unit:
        unit = v.select(most > zero, _fit_unit(spec, group, numbers, (mean, w, points), unit), zero)
    v.store(numbers.d, 0, half(spec, unit * v.constant(spec.raised, zero)))


@traced
def _fit_split(spec, x, w, points, signs):
    """Write the points and signs of sub-blocks, and return their scales.

    The best split gives each value a level; where no point of the grid has these levels, the nearest one is taken, and
    the scale is fitted again. A negative scale turns levels and signs.
    """
    zero = v.full(0.0, F32)
    none = v.full(0, I32)
    one = v.full(1, I32)
    ranks = v.scratch(PART, types.int32)
    steps = v.scratch(LANES, types.float32)
    bases = v.scratch(LANES, types.float32)
    largest = _store_ranks(spec, x, ranks)
    splits = v.scratch(LANES, types.int32)
    runs = Runs(v.scratch(_RUN, types.float32), v.scratch(_RUN, types.float32))
    _sum_up(spec, x, w, ranks, runs)
    _best_split(spec, runs, steps, splits)
    scale = v.load(steps, 0, F32)
    split = v.load(splits, 0, I32)
    is_zero = (largest < v.constant(spec.tiny, zero)) | (split < none)
    turned = scale < zero
    scale = v.select(turned, -scale, scale)
    low = split & v.constant(0xFF, split)
    high = (split >> v.constant(_HIGH, split)) & v.constant(0xFF, split)
    downwards = split >> v.constant(_SHIFTS, split)
    v.store(steps, 0, scale)
    all_points = none
    for k in range(spec.sub // spec.width):
        place = none
        for i in range(spec.width):
            rank = v.load(ranks, (k * spec.width + spec.width - 1 - i) * LANES, I32)
            level = v.select(rank >= low, one, none) + v.select(rank >= high, one, none)
            place = place * v.constant(spec.levels, place) + v.select(turned, v.constant(2, level) - level, level)
        part = k * spec.width * spec.parts // spec.sub
        is_down = ((downwards >> v.constant(spec.parts - 1 - part, none)) & one) == one
        is_down = (is_down & ~turned) | (turned & ~is_down)
        v.store(signs, part * LANES, v.convert(v.select(is_zero | ~is_down, none, one), types.uint8))
        v.store(bases, 0, _base(is_down))
        own = v.advance(x, k * spec.width * LANES), v.advance(w, k * spec.width * LANES), steps, bases
        take_points_at(spec, place, own, v.advance(points, k * LANES))
        all_points = all_points | v.load(points, k * LANES, I32)
    sums = _point_sums(spec, x, w, points, signs, Sums(zero, zero), v.full(1.0, F32))
    again = ((all_points & v.constant(OFF, all_points)) != none) & (sums.xq > zero) & (sums.q2 > zero)
    scale = v.select(again, sums.xq / sums.q2, scale)
    for k in range(0, spec.sub // spec.width * LANES, LANES):
        v.store(points, k, v.select(is_zero, v.full(spec.first_point, I32), v.load(points, k, I32)))
    return v.select(is_zero, zero, scale)


@traced
def _base(is_down):
    """Return the number of the lowest level."""
    return v.select(is_down, v.full(-1.0 - _SHIFT, F32), v.full(-1.0 + _SHIFT, F32))


@traced
def _point_sums(spec, x, w, points, signs, sums, multiple):
    """Add the sums for the points of a sub-block, whose numbers are multiplied."""
    sum_xq, sum_q2 = sums
    for k in range(spec.sub // spec.width):
        point = v.load(points, k * LANES, I32)
        sign = v.load(signs, k * spec.width * spec.parts // spec.sub * LANES, U8)
        base = _base(sign > v.constant(0, sign))
        for i in range(spec.width):
            level = (point >> v.convert(spec.level_bits * i, types.int32)) & v.constant(
                (1 << spec.level_bits) - 1, point
            )
            q = (v.convert(level, types.float32) + base) * multiple
            at = (k * spec.width + i) * LANES
            weighted = v.load(w, at, F32) * q
            sum_xq = sum_xq + weighted * v.load(x, at, F32)
            sum_q2 = sum_q2 + weighted * q
    return Sums(sum_xq, sum_q2)


@traced
def _fit_unit(spec, group, numbers, memory, unit):
    """Return the unit that fits points and codes of scales best."""
    mean, w, points = memory
    zero = v.full(0.0, F32)
    sums = Sums(zero, zero)
    for j in range(spec.size // spec.sub):
        weigh(spec, group, j * spec.sub, spec.sub, mean, w)
        code = v.convert(v.load(numbers.scales, j * LANES, U8), types.int32)
        odd = v.convert(code + code + v.constant(1, code), types.float32)
        x = v.advance(group.x, j * spec.sub * LANES)
        points_of_sub = v.advance(points, j * (spec.sub // spec.width) * LANES)
        sums = _point_sums(spec, x, w, points_of_sub, v.advance(numbers.signs, j * spec.parts * LANES), sums, odd)
    return v.select(sums.q2 > zero, sums.xq / sums.q2, unit)


# --- splits -----------------------------------------------------------------------------------------------------------


@traced
def _store_ranks(spec, x, ranks):
    """Write the places of values in their order, of equal ones the first first; return the largest magnitude."""
    none = v.full(0, I32)
    one = v.full(1, I32)
    largest = v.full(0.0, F32)
    for i in range(spec.sub):
        value = v.load(x, i * LANES, F32)
        largest = v.maximum(largest, v.absolute(value))
        rank = none
        for k in range(i):
            rank = rank + v.select(v.load(x, k * LANES, F32) <= value, one, none)
        for k in range(i, spec.sub):
            rank = rank + v.select(v.load(x, k * LANES, F32) < value, one, none)
        v.store(ranks, i * LANES, rank)
    return largest


@traced
def _sum_up(spec, x, w, ranks, runs):
    """Write running sums, those of each part of a sub-block after the other, each of them from a 0 on.

    A value of another part adds nothing at its rank. With two parts of 8 values, a run has 17 sums: the value of rank 3
    in part 1 is written at place 17 + 1 + 3, and is in all sums from there on.
    """
    part_size = spec.sub // spec.parts
    size = (spec.sub + 1) * LANES
    for i in range(0, spec.parts * size, LANES):
        v.store(runs.x, i, v.full(0.0, F32))
        v.store(runs.w, i, v.full(0.0, F32))
    products = v.scratch(LANES, types.float32)
    for i in range(spec.sub):
        start = LANES + i // part_size * size
        v.store(products, 0, v.load(w, i * LANES, F32) * v.load(x, i * LANES, F32))
        for lane in range(LANES):
            place = start + ranks[i * LANES + lane] * LANES + lane
            runs.x[place] = products[lane]
            runs.w[place] = w[i * LANES + lane]
    for part in range(spec.parts):
        for i in range(part * size, (part + 1) * size - LANES, LANES):
            for run in (runs.x, runs.w):
                v.store(run, i + LANES, v.load(run, i, F32) + v.load(run, i + LANES, F32))


@traced
def _best_split(spec, runs, scales, splits):
    """Write scales and splits, -1 without any: the first one of the largest ``(sum of w x q)^2 / sum of w q^2``.

    A register holds the lanes that are looked at together: so all that does not change from split to split is in some.
    """
    kind = v.lanes(scales)
    sums_of = _sums_from_total if spec.from_total else _sums_of_parts
    upper = [v.scratch(_RUN, types.float32) for _ in range(4)]
    for lane in range(0, LANES, kind.n):
        memory_of_lanes = tuple([v.advance(each, lane) for each in (runs.x, runs.w, *upper)])
        _store_upper(spec, memory_of_lanes, kind)
        zero = v.full(0.0, kind)
        scale = zero
        best = v.full(_LEAST, kind)
        split = v.full(-1, v.lanes(splits))
        for low in range(spec.sub + 1):
            lower = _lower(spec, memory_of_lanes, low, kind)
            for high in range(low, spec.sub + 1):
                sums_of_shifts = sums_of(spec, memory_of_lanes, lower, high, kind)
                better = _is_better(sums_of_shifts[0], best)
                for sums in sums_of_shifts[1:]:
                    better = better | _is_better(sums, best)
                if v.any_lane(better):
                    for shifts, sums in enumerate(sums_of_shifts):
                        better = (sums.q2 > zero) & _is_better(sums, best)
                        fitted = sums.xq / sums.q2
                        candidate = v.full(low | high << _HIGH | shifts << _SHIFTS, v.lanes(splits))
                        new = fitted, fitted * sums.xq, candidate
                        scale, best, split = select_each(better, new, (scale, best, split))
        v.store(scales, lane, scale)
        v.store(splits, lane, split)


@traced
def _is_better(sums, best):
    """Mask of the blocks in which sums have less error than the best so far: quotients, compared by products."""
    return sums.xq * sums.xq > best * sums.q2


# What does not depend on both places of a split is computed before: `lower` depends on the first; `upper`, in memory,
# depends on the second. Numbers of opposite shifts have opposite signs, and so do their products, which are the same.


@traced
def _numbers(kind):
    """Return the magnitudes of the numbers of levels: those of 0, those of less than 1, and those of more."""
    return tuple([v.full(number, kind) for number in (_SHIFT, 1 - _SHIFT, 1 + _SHIFT)])


@traced
def _store_upper(spec, own, kind):
    """Write what depends on the second place of splits.

    `own` has pointers for the lanes that are looked at together: to the running sums of x and of w, and to memory for
    up to four terms, which `_sums_of_parts` and `_sums_from_total` read.
    """
    _, less, more = _numbers(kind)
    x, w, *upper = own
    size = (spec.sub + 1) * LANES
    for part in range(spec.parts):
        for i in range(part * size, (part + 1) * size, LANES):
            if spec.from_total:
                terms = [v.load(w, i, kind) * _difference(kind, number) for number in (more, less)]
            else:
                above = v.load(x, size - LANES, kind) - v.load(x, i, kind)
                weight = v.load(w, size - LANES, kind) - v.load(w, i, kind)
                terms = [above * more, above * less, weight * more * more, weight * less * less]
            for memory, term in zip(upper, terms, strict=False):
                v.store(memory, i, term)


@traced
def _difference(kind, number):
    """Return what the square of a number has above that of the middle level."""
    return number * number - v.full(_SHIFT * _SHIFT, kind)


@traced
def _lower(spec, own, low, kind):
    """Return what depends on the first place of splits, for each part.

    That is the running sums of x and w up to there, and the sums for numbers shifted up and for those shifted down.
    """
    _, less, more = _numbers(kind)
    size = (spec.sub + 1) * LANES
    parts = []
    for part in (0, 1)[: spec.parts]:
        x, w = [v.load(run, part * size + low * LANES, kind) for run in own[:2]]
        if spec.from_total:
            total_x, total_w = [v.load(run, (part + 1) * size - LANES, kind) for run in own[:2]]
            up = total_x * more, total_w * more * more + w * _difference(kind, less)
            down = total_x * less, total_w * less * less + w * _difference(kind, more)
        else:
            up = x * less, w * less * less
            down = x * more, w * more * more
        parts.append((x, w, Sums(*up), Sums(*down)))
    return tuple(parts)


@traced
def _sums_of_parts(spec, own, lower, high, kind):
    """Add up the sums of the three parts of values."""
    shift, _, _ = _numbers(kind)
    x_run, w_run, *upper = own
    ((x, w, up, down),) = lower
    x_up, x_down, w_up, w_down = [v.load(memory, high * LANES, kind) for memory in upper]
    middle = (v.load(x_run, high * LANES, kind) - x) * shift
    weight = (v.load(w_run, high * LANES, kind) - w) * shift * shift
    upwards = Sums(middle - up.xq + x_up, up.q2 + weight + w_up)
    return upwards, Sums(x_down - (down.xq + middle), down.q2 + weight + w_down)


@traced
def _sums_from_total(spec, own, lower, high, kind):
    """Take what lower values have less from the sums of all with the number of the highest level."""
    x_run, _, w_up, w_down, *_ = own
    size = (spec.sub + 1) * LANES
    parts = []
    for part, (x, _, up, down) in enumerate(lower):
        at = part * size + high * LANES
        less = x + v.load(x_run, at, kind)
        parts.append(
            (
                Sums(up.xq - less, up.q2 - v.load(w_up, at, kind)),
                Sums(down.xq - less, down.q2 - v.load(w_down, at, kind)),
            )
        )
    return tuple([_added(each) for each in itertools.product(*parts)])


@traced
def _added(sums):
    """Add the sums of the parts of a sub-block."""
    total = sums[0]
    for each in sums[1:]:
        total = Sums(total.xq + each.xq, total.q2 + each.q2)
    return total
