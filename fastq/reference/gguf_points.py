"""Numbers of blocks of GGUF whose codes are points of a grid (contract 21.3, 21.4, 21.5 and 21.6), in plain NumPy."""

from __future__ import annotations

import functools

import numpy as np

from fastq.formats.gguf import GridFormat
from fastq.formats.gguf_grids import Grid
from fastq.reference.gguf_fields import Numbers, half_bits
from fastq.reference.gguf_search import F, choose, fit_positive, nearest, total
from fastq.reference.gguf_super import sub_blocks, weights_of
from fastq.system.dtypes import Array


def quantize_points(x: Array, importance: Array | None, form: GridFormat) -> Numbers:
    """Return the numbers of blocks."""
    assert form.search is not None
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
    numbers = {"d": half_bits(unit * F(form.search.raised)), "scales": _levels(F(1) / unit * scales, 16).T}
    return numbers | {of: np.concatenate(each).T for of, each in (("codes", codes), ("signs", signs))}


def _levels(multiple: Array, count: int) -> Array:
    return np.clip(nearest(F(0.5) * (multiple - F(1))), 0, count - 1)


def _fit(x: Array, w: Array, form: GridFormat) -> tuple[Array, Array, Array]:
    """Scales, codes and signs of sub-blocks; axis 0 of x are the values of one."""
    search = form.search
    steps = F(2 * len(form.grid.levels) - 1)
    assert search is not None
    minus = ~(x >= 0).reshape(-1, 8, x.shape[1])
    if form.width("signs") == 7:
        least = (w * x * x).reshape(minus.shape).argmin(axis=1)[:, None]
        minus ^= (minus.sum(axis=1, keepdims=True) % 2 == 1) & (np.arange(8)[:, None] == least)
    magnitudes = np.where(minus.reshape(x.shape), -x, x)
    largest = magnitudes.max(axis=0)
    used = largest >= F(search.tiny)
    if search.steps_before:
        largest = fit_positive(magnitudes, w, search.steps_before)[0] * F(len(form.grid.levels))
        used &= largest > 0

    def nearest_points_by(inverse: Array, step: Array) -> tuple[Array, Array]:
        return _nearest_points(magnitudes, np.sqrt(w), inverse, step, form.grid, search.shells)

    def sums(codes: Array) -> tuple[Array, Array]:
        q = np.moveaxis(_odd(form.grid)[codes], 2, 1).reshape(x.shape)
        return total(w * magnitudes * q), total(w * q * q)

    codes = np.zeros((len(x) // form.grid.width, x.shape[1]), np.int64)
    off = np.full(codes.shape, search.takes_again != "off")
    scale = largest / steps
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


def _nearest_points(
    x: Array, roots: Array, inverse: Array, step: Array, grid: Grid, shells: int
) -> tuple[Array, Array]:
    """Codes of the points of least error of the neighbours of positions, and where a position is not a point."""
    count = len(grid.levels)
    shape = (-1, grid.width, x.shape[1])
    levels = _levels(inverse * x, count).reshape(shape)
    neighbours, is_point = _neighbours(grid, shells)
    place = (levels * count ** np.arange(grid.width)[:, None]).sum(axis=1)
    codes = neighbours[place]
    error = F(0)
    for i in range(grid.width):
        miss = step[:, None] * _odd(grid)[codes, i] - x.reshape(shape)[:, i, :, None]
        error = error + roots.reshape(shape)[:, i, :, None] * miss * miss
    nearest = np.take_along_axis(codes, error.argmin(axis=2)[:, :, None], axis=2)[:, :, 0]
    return nearest, ~is_point[place]


@functools.cache
def _odd(grid: Grid) -> Array:
    """Points whose levels are the odd numbers from 1 on, as the search has them."""
    return np.searchsorted(grid.levels, grid.points).astype(F) * F(2) + F(1)


@functools.cache
def _neighbours(grid: Grid, shells: int) -> tuple[Array, Array]:
    """Codes of the neighbours of each position, the nearest first, the first one again at the end; which are points."""
    positions = np.indices((len(grid.levels),) * grid.width).reshape(grid.width, -1).T[:, ::-1] * F(2) + F(1)
    points = _odd(grid)
    squares = (positions**2).sum(axis=1)[:, None] + (points**2).sum(axis=1) - F(2) * positions @ points.T
    codes = squares.argsort(axis=1, kind="stable")
    away = np.take_along_axis(squares, codes, axis=1)
    is_point = away[:, 0] == 0
    shell = np.cumsum(np.diff(away, axis=1, prepend=away[:, :1]) > 0, axis=1)
    is_neighbour = shell < np.where(is_point, 1, shells)[:, None]
    most = int(is_neighbour.sum(axis=1).max())
    return np.where(is_neighbour, codes, codes[:, :1])[:, :most], is_point
