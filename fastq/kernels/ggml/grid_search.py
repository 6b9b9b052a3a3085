"""Numbers of blocks of GGUF whose codes are points of a grid, of sixteen blocks side by side.

Lane k of every Vec is of block k, as in the other searches; only the nearest of the neighbours of a position is found
block by block, with a lane for each neighbour.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.formats.gguf_grids import Grid
from fastq.kernels.codebooks import constant_array, permute
from fastq.kernels.ggml.scale_search import F32, I32, LANES, PART, SUBS, fit_positive, nearest, select_each
from fastq.kernels.ggml.spec import half
from fastq.kernels.ggml.weights import mean_square_for_weights, weigh

OFF = 1 << 30  # marks a point that is a neighbour of its position, not at it
_CODE = 16  # from this bit on a point has its code, below it which levels its coordinates are
_INFINITY = float("inf")


class SubBlocks(NamedTuple):
    """A sub-block of each block: magnitudes, weights, their products, and roots of weights; room for points."""

    x: Any
    w: Any
    products: Any
    roots: Any
    tried: Any
    chosen: Any


class Neighbours(NamedTuple):
    """Twice the number of the first neighbour of each position, plus 1 for a point; and all neighbours."""

    firsts: Any
    points: Any


@functools.cache
def _neighbours(grid: Grid, shells: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the tables of `Neighbours`: the nearest first, of as near ones that of the lowest code."""
    most = len(grid.levels)
    bits = (len(grid.levels) - 1).bit_length()
    points = np.searchsorted(grid.levels, grid.points).astype(np.float32)
    positions = (np.arange(most**grid.width)[:, None] // most ** np.arange(grid.width) % most).astype(np.float32)
    away = -2 * positions @ points.T
    away += (positions**2).sum(1)[:, None]
    away += (points**2).sum(1)
    away = away.astype(np.uint8)  # at most 4 * 7**2; all in float32 takes 0.5 s for the largest grid, this 0.2 s
    limit = away.min(axis=1, keepdims=True)
    is_point = limit == 0
    for _ in range(shells - 1):
        next_one = np.where(away > limit, away, np.uint8(255)).min(axis=1, keepdims=True)
        limit = np.where(is_point, limit, next_one)
    position, code = np.nonzero(away <= limit)
    order = np.lexsort((code, away[position, code], position))
    firsts = np.searchsorted(position, np.arange(len(positions) + 1))
    levels = (points.astype(np.int32) << bits * np.arange(grid.width)).sum(axis=1)
    codes_of_points = (code << _CODE | levels[code])[order]
    return (firsts << 1 | np.append(is_point, False)).astype("<i4"), np.append(codes_of_points, [0] * LANES).astype(
        "<i4"
    )


@v.instruction(lambda spec: types.NamedUniTuple(types.CPointer(types.int32), 2, Neighbours)(spec))
def neighbours_of(context, builder, sig, spec):
    """Return the tables of neighbours, which are part of the code."""
    tables = []
    block_format = sig.args[0].block_format
    for name, numbers in zip(
        Neighbours._fields, _neighbours(block_format.grid, block_format.search.shells), strict=True
    ):
        content = ir.Constant(ir.ArrayType(ir.IntType(8), numbers.nbytes), bytearray(numbers.tobytes()))
        tables.append(builder.bitcast(constant_array(builder, content, name), ir.IntType(32).as_pointer()))
    return context.make_tuple(builder, sig.return_type, tables)


@traced
def room_for_part():
    """Allocate what belongs to a sub-block of each block."""
    floats, points = ([v.scratch(PART, kind) for _ in range(n)] for kind, n in ((types.float32, 4), (types.int32, 2)))
    return SubBlocks(*floats, *points)


@traced
def quantize_points(spec, group, numbers):
    """Write the numbers of blocks: for each sub-block a scale, signs, and points of the grid for magnitudes.

    A scale that comes out negative turns all signs of its sub-block.
    """
    scales = v.scratch(SUBS, types.float32)
    zero = v.full(0.0, F32)
    part = room_for_part()
    mean = mean_square_for_weights(spec, group)
    most = zero
    for j in range(spec.size // spec.sub):
        weigh(spec, group, j * spec.sub, spec.sub, mean, part.w)
        signs = v.advance(numbers.signs, j * (spec.sub // 8) * LANES)
        largest = _magnitudes(spec, v.advance(group.x, j * spec.sub * LANES), part, signs)
        is_zero = largest < v.constant(spec.tiny, zero)
        scale = largest / v.constant(2 * spec.levels - 1, zero)
        if spec.steps_before:
            room = part.roots  # where the roots come later
            scale = fit_positive(part.x, part.w, room, spec.sub, spec.steps_before)
            largest = scale * v.constant(spec.levels, zero)
            is_zero = is_zero | ~(largest > zero)
        _store_roots(spec, part)
        scale = _fit_points(spec, part, largest, scale)
        turned = scale < zero
        scale = v.select(is_zero, zero, v.select(turned, -scale, scale))
        codes = v.advance(numbers.codes, j * (spec.sub // spec.width) * LANES)
        _store_codes(spec, part.chosen, is_zero, codes)
        _turn_signs(spec, is_zero, turned, signs)
        v.store(scales, j * LANES, scale)
        most = v.maximum(most, scale)
    unit = store_scales(spec, scales, most, numbers)
    v.store(numbers.d, 0, half(spec, unit * v.constant(spec.raised, zero)))


@traced
def store_scales(spec, scales, most, numbers):
    """Write the codes of scales of sub-blocks, and return their unit: a code stands for an odd number."""
    unit = most / v.constant(2 * spec.scale_steps + 1, most)
    inverse = v.constant(1, most) / unit
    for j in range(spec.size // spec.sub):
        code = _level(inverse * v.load(scales, j * LANES, F32), spec.scale_steps)
        v.store(numbers.scales, j * LANES, v.convert(code, types.uint8))
    return unit


@traced
def _level(multiple, most):
    """Return which of the odd numbers 1, 3, .. is nearest, from 0 on."""
    level = nearest(v.constant(0.5, multiple) * (multiple - v.constant(1, multiple)))
    return v.minimum(v.maximum(level, v.constant(0, level)), v.constant(most, level))


@traced
def _magnitudes(spec, x, part, signs):
    """Write magnitudes, products with weights and signs; return the largest magnitude.

    Formats that store seven signs have an even number of minus signs: if it is odd, the sign with the smallest weighted
    square is flipped.
    """
    zero = v.full(0.0, F32)
    one = v.full(1, I32)
    largest = v.full(-_INFINITY, F32)
    for k in range(0, spec.sub, 8):
        minus = none = v.full(0, I32)
        least = v.full(_INFINITY, F32)
        place = none
        for i in range(8):
            at = (k + i) * LANES
            value = v.load(x, at, F32)
            w = v.load(part.w, at, F32)
            is_minus = ~(value >= zero)
            square = w * value * value
            minus = minus ^ v.select(is_minus, v.full(1 << i, I32), none)
            less = square < least
            least = v.select(less, square, least)
            place = v.select(less, v.full(i, I32), place)
            v.store(part.x, at, v.select(is_minus, -value, value))
        odd = _is_odd(spec, minus)
        minus = minus ^ v.select(odd, one << place, none)
        v.store(signs, k // 8 * LANES, v.convert(minus & v.constant(_all_signs(spec), minus), types.uint8))
        for i in range(8):
            at = (k + i) * LANES
            value = v.load(part.x, at, F32)
            value = v.select(odd & (place == v.full(i, I32)), -value, value)
            v.store(part.x, at, value)
            v.store(part.products, at, v.load(part.w, at, F32) * value)
            largest = v.maximum(value, largest)
    return largest


@traced
def _store_roots(spec, part):
    """Write the roots of weights."""
    for i in range(0, spec.sub * LANES, LANES):
        v.store(part.roots, i, v.sqrt(v.load(part.w, i, F32)))


@traced
def _all_signs(spec):
    """Return a word with as many bits as signs are stored for eight values: the eighth one follows from seven."""
    return (1 << spec.sign_bits) - 1


@traced
def _is_odd(spec, minus):
    """Whether the number of minus signs has to be even and is not."""
    if spec.sign_bits == 8:
        return v.constant(0, minus) > minus  # never: all eight signs are stored
    for bits in (4, 2, 1):
        minus = minus ^ (minus >> v.constant(bits, minus))
    return (minus & v.constant(1, minus)) == v.constant(1, minus)


@traced
def _turn_signs(spec, is_zero, turned, signs):
    """Write the signs of sub-blocks of a negative scale, and of zeros."""
    for k in range(spec.sub // 8):
        stored = v.convert(v.load(signs, k * LANES, v.Vec(types.uint8, LANES)), types.int32)
        other = v.select(turned, stored ^ v.constant(_all_signs(spec), stored), stored)
        v.store(signs, k * LANES, v.convert(v.select(is_zero, v.full(0, I32), other), types.uint8))


@traced
def _store_codes(spec, points, is_zero, codes):
    """Write the codes of chosen points, 0 for sub-blocks of zeros."""
    for k in range(0, spec.sub // spec.width * LANES, LANES):
        code = code_of(v.load(points, k, I32))
        v.store(codes, k, v.convert(v.select(is_zero, v.full(0, I32), code), spec.code))


@traced
def code_of(point):
    """Return the codes of points: the bits above those of their levels, without the one that marks them as `OFF`."""
    return (point & v.constant(OFF - 1, point)) >> v.constant(_CODE, point)


@traced
def _fit_points(spec, part, largest, scale):
    """Write the points of sub-blocks, and return their scales: those given, if no candidate counts.

    Candidates give the largest magnitude a number close to the last one, `steps`. A point has the bit `OFF` if it is
    not at the position of its values: such points, or all where the format says so, are taken again by the best scale.
    """
    zero = v.full(0.0, F32)
    none = v.full(0, I32)
    codes = spec.sub // spec.width * LANES
    steps = 2 * spec.levels - 1
    off = v.full(OFF, I32)
    best = zero
    one = v.constant(1, zero)
    for k in range(0, codes, LANES):
        v.store(part.chosen, k, v.select(spec.takes_all_again, off, none))
    for n in range(-spec.last, spec.last + 1):
        more = v.constant(spec.delta, zero) * v.convert(n, types.float32)
        inverse = (v.constant(steps, zero) + more) / largest
        _take_points(spec, part, inverse, one / inverse)
        sum_xq, sum_q2 = _point_sums(spec, part, part.tried)
        better = (sum_q2 > zero) & (sum_xq * sum_xq > best * sum_q2)
        fitted = sum_xq / sum_q2
        scale, best = select_each(better, (fitted, fitted * sum_xq), (scale, best))
        for k in range(0, codes, LANES):
            point = v.load(part.tried, k, I32)
            point = point | off if spec.takes_always else point
            v.store(part.chosen, k, v.select(better, point, v.load(part.chosen, k, I32)))
    all_points = none
    for k in range(0, codes, LANES):
        all_points = all_points | v.load(part.chosen, k, I32)
    again = ((all_points & off) == off) & (scale > zero)
    if v.any_lane(again):
        _take_points(spec, part, one / scale, scale)
        for k in range(0, codes, LANES):
            point = v.load(part.chosen, k, I32)
            which = again & (v.select(spec.takes_all_again, off, point & off) == off)
            v.store(part.chosen, k, v.select(which, v.load(part.tried, k, I32), point))
        sum_xq, sum_q2 = _point_sums(spec, part, part.chosen)
        scale = v.select(again & (sum_q2 > zero), sum_xq / sum_q2, scale)
    return scale


@traced
def _point_sums(spec, part, points):
    """Return the weighted sums of products of values and points, and of squares of points."""
    width = spec.width
    bits = spec.level_bits
    sum_xq = sum_q2 = v.full(0.0, F32)
    for k in range(spec.sub // width):
        point = v.load(points, k * LANES, I32)
        for i in range(width):
            level = (point >> v.constant(bits * i, point)) & v.constant((1 << bits) - 1, point)
            q = v.convert(level + level + v.constant(1, level), types.float32)
            at = (k * width + i) * LANES
            sum_xq = sum_xq + v.load(part.products, at, F32) * q
            sum_q2 = sum_q2 + v.load(part.w, at, F32) * q * q
    return sum_xq, sum_q2


@traced
def _take_points(spec, part, inverse, step):
    """Write the nearest points to values: of the neighbours of their positions in units of a scale."""
    width = spec.width
    most = spec.levels
    steps = v.scratch(LANES, types.float32)
    bases = v.scratch(LANES, types.float32)
    v.store(steps, 0, step)
    v.store(bases, 0, v.full(1.0, F32))
    for k in range(spec.sub // width):
        x = v.advance(part.x, k * width * LANES)
        place = v.full(0, I32)
        for i in range(width):
            level = _level(inverse * v.load(x, (width - 1 - i) * LANES, F32), most - 1)
            place = place * v.constant(most, place) + level
        roots = v.advance(part.roots, k * width * LANES)
        take_points_at(spec, place, (x, roots, steps, bases), v.advance(part.tried, k * LANES))


@traced
def take_points_at(spec, place, own, points):
    """Write the points at positions, or the nearest to values of the neighbours of positions.

    `own` has the values, their weights in errors, and for each block the number of the lowest level, and the unit. All
    candidates for a scale come here, though many share their positions: decision D82.
    """
    table = neighbours_of(spec)
    places = v.scratch(LANES, types.int32)
    v.store(places, 0, place)
    x, weights, steps, bases = own
    for lane in range(LANES):
        first = table.firsts[places[lane]]
        point = table.points[first >> 1]
        if not first & 1:
            stop = table.firsts[places[lane] + 1] >> 1
            of_lane = v.advance(x, lane), v.advance(weights, lane), steps[lane], bases[lane]
            point = _nearest_point(spec, table.points, first >> 1, stop, of_lane) | OFF
        points[lane] = point


@traced
def _nearest_point(spec, points, start, stop, own):
    """Return the first of the points start..stop of the least weighted error of one block.

    An error is a sum, each term of which is one of few for each coordinate: those are computed, and looked up.
    """
    x, weights, step, base = own
    bits = spec.level_bits
    lanes = v.ramp(I32)
    beyond = v.full(_INFINITY, F32)
    level = lanes & v.constant((1 << bits) - 1, lanes)
    number = v.convert(level * v.constant(spec.pitch, level), types.float32) + v.full(base, F32)
    levels = v.full(step, F32) * number
    best = _INFINITY
    point = points[start]
    for n in range(start, stop, LANES):
        candidates = v.load(points, n, I32)
        error = v.full(0.0, F32)
        for i in range(spec.width):
            terms = _terms(levels, x[i * LANES], weights[i * LANES])
            error = error + permute(terms, candidates >> v.constant(bits * i, candidates))
        error = v.select(lanes < v.full(stop - n, I32), error, beyond)
        least = v.reduce_min(error)
        if least < best:
            best = least
            point = points[n + v.first_lane(error == v.full(least, F32))]
    return point


@traced
def _terms(levels, x, weight):
    """Return a term of errors for each level."""
    miss = levels - v.full(x, F32)
    return v.full(weight, F32) * miss * miss
