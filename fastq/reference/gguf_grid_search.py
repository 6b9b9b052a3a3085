"""Numbers of blocks of GGUF whose codes are points of a grid (contract 21.3, 21.4, 21.5 and 21.6), in plain NumPy."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from fastq.formats.gguf import GridFormat, PointSearch
from fastq.formats.gguf_grids import Grid
from fastq.reference.gguf_fields import Numbers, half_bits
from fastq.reference.gguf_search import F, choose, fit_positive, nearest, total
from fastq.reference.gguf_super import sub_blocks, weights_of
from fastq.system.dtypes import Array


def quantize_points(x: Array, importance: Array | None, form: GridFormat) -> Numbers:
    """Return the numbers of blocks whose codes are points of a grid, for magnitudes, and whose values have signs.

    The scale of a sub-block is an odd multiple of the unit.
    """
    assert isinstance(form.search, PointSearch)
    if importance is not None:
        weights = weights_of(x, importance, form.search.spread)
    elif form.search.of_mean:
        mean = F(2) * total(np.ascontiguousarray((x * x).T)) / F(form.size)
        weights = F(form.search.of_mean) * mean[:, None] + x * x
    else:
        weights = x * x
    pairs = zip(sub_blocks(x, form.sub), sub_blocks(weights, form.sub), strict=True)
    scales, codes, signs = map(np.stack, zip(*(_fit(part, w, form) for part, w in pairs), strict=True))
    unit = scales.max(axis=0, initial=0) / F(31)
    numbers = {"d": half_bits(unit * F(form.search.raised)), "scales": nearest_odd(F(1) / unit * scales, 16).T}
    return numbers | {of: np.concatenate(each).T for of, each in (("codes", codes), ("signs", signs))}


def nearest_odd(multiple: Array, count: int) -> Array:
    """Which of the first odd numbers is nearest, from 0 on."""
    return np.clip(nearest(F(0.5) * (multiple - F(1))), 0, count - 1)


def _fit(x: Array, w: Array, form: GridFormat) -> tuple[Array, Array, Array]:
    """Return scales, codes and signs of sub-blocks, of which each is a column of x and of the results.

    Magnitudes get the nearest points under each candidate of a scale. Points that are off their positions, or all, are
    taken again by the best scale, which is fitted to them. A negative scale turns all signs.
    """
    search = form.search
    steps = F(2 * len(form.grid.levels) - 1)
    assert isinstance(search, PointSearch)
    minus = ~(x >= 0).reshape(-1, 8, x.shape[1])
    if form.width("signs") == 7:
        least = (w * x * x).reshape(minus.shape).argmin(axis=1)[:, None]
        minus ^= (minus.sum(axis=1, keepdims=True) % 2 == 1) & (np.arange(8)[:, None] == least)
    magnitudes = np.where(minus.reshape(x.shape), -x, x)
    largest = magnitudes.max(axis=0)
    used = largest >= F(search.tiny)
    scale = largest / steps
    if search.steps_before:
        scale = fit_positive(magnitudes, w, search.steps_before)[0]
        largest = scale * F(len(form.grid.levels))
        used &= largest > 0

    def nearest_points_by(inverse: Array, step: Array) -> tuple[Array, Array]:
        levels = nearest_odd(inverse * magnitudes, len(form.grid.levels))
        return nearest_points(
            magnitudes, np.sqrt(w), levels, form.grid, search.shells, lambda level: step[:, None] * _odd(level)
        )

    def sums(codes: Array) -> tuple[Array, Array]:
        q = _odd(levels_of(codes, form.grid))
        return total(w * magnitudes * q), total(w * q * q)

    codes = np.zeros((len(x) // form.grid.width, x.shape[1]), np.int64)
    off = np.full(codes.shape, search.takes_again != "off")
    best = np.zeros_like(largest)
    for k in range(-search.last, search.last + 1):
        inverse = (steps + F(search.delta) * F(k)) / largest
        tried, tried_off = nearest_points_by(inverse, F(1) / inverse)
        sum_xq, sum_q2 = sums(tried)
        fitted = sum_xq / sum_q2
        better = (sum_q2 > 0) & (sum_xq * sum_xq > best * sum_q2)
        new = (fitted, fitted * sum_xq, tried, tried_off | (search.takes_again == "always"))
        scale, best, codes, off = choose(better, new, (scale, best, codes, off))
    again = off.any(axis=0) & (scale > 0)
    codes = np.where(again & (off | (search.takes_again != "off")), nearest_points_by(F(1) / scale, scale)[0], codes)
    sum_xq, sum_q2 = sums(codes)
    scale = np.where(again & (sum_q2 > 0), sum_xq / sum_q2, scale)
    turned = scale < 0
    bits = ((minus ^ turned) << np.arange(8)[:, None]).sum(axis=1) & (1 << form.width("signs")) - 1
    return np.where(used, np.abs(scale), F(0)), np.where(used, codes, 0), np.where(used, bits, 0)


def _odd(level: Array) -> Array:
    """Odd numbers from 1 on, which the search has in place of levels."""
    return level.astype(F) * F(2) + F(1)


def levels_of(codes: Array, grid: Grid) -> Array:
    """Which of the levels the coordinates of points are, in the order of values."""
    levels = np.moveaxis(_levels_of_points(grid)[codes], 2, 1)
    return levels.reshape(-1, codes.shape[1])


def nearest_points(
    x: Array, weights: Array, levels: Array, grid: Grid, shells: int, number_of: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Return codes of the points of least error of the neighbours of positions, and where a position is not a point.

    `number_of` gives for levels of blocks the numbers that stand for them, one row of levels for each block and group.
    """
    shape = (-1, grid.width, x.shape[1])
    neighbours, is_point = _neighbours(grid, shells)
    place = (levels.reshape(shape) * len(grid.levels) ** np.arange(grid.width)[:, None]).sum(axis=1)
    codes = neighbours[place]
    error = F(0)
    for i in range(grid.width):
        miss = number_of(_levels_of_points(grid)[codes, i]) - x.reshape(shape)[:, i, :, None]
        error = error + weights.reshape(shape)[:, i, :, None] * miss * miss
    nearest = np.take_along_axis(codes, error.argmin(axis=2)[:, :, None], axis=2)[:, :, 0]
    return nearest, ~is_point[place]


@functools.cache
def _levels_of_points(grid: Grid) -> Array:
    """Return which of the grid's levels each coordinate of each point is."""
    return np.searchsorted(grid.levels, grid.points)


@functools.cache
def _neighbours(grid: Grid, shells: int) -> tuple[Array, Array]:
    """Return the codes of the neighbours of each position of the grid, and which positions are points themselves.

    Each position has a row of codes, the nearest point first, filled up with the first one.
    """
    positions = np.indices((len(grid.levels),) * grid.width).reshape(grid.width, -1).T[:, ::-1] * F(2) + F(1)
    points = _odd(_levels_of_points(grid))
    squares = (positions**2).sum(axis=1)[:, None] + (points**2).sum(axis=1) - F(2) * positions @ points.T
    squares = squares.astype(np.uint16)  # whole numbers below 1000, sorted in a third of the time
    codes = squares.argsort(axis=1, kind="stable")
    squares_in_order = np.take_along_axis(squares, codes, axis=1)
    is_point = squares_in_order[:, 0] == 0
    shell = np.cumsum(np.diff(squares_in_order, axis=1, prepend=squares_in_order[:, :1]) > 0, axis=1)
    is_neighbour = shell < np.where(is_point, 1, shells)[:, None]
    longest_row = int(is_neighbour.sum(axis=1).max())
    return np.where(is_neighbour, codes, codes[:, :1])[:, :longest_row], is_point
