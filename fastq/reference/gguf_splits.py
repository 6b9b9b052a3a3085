"""Numbers of blocks of GGUF whose sorted values are split into levels (contract 21.8), in plain NumPy."""

from __future__ import annotations

import itertools

import numpy as np

from fastq.formats.gguf import GridFormat, SplitSearch
from fastq.reference.gguf_fields import Numbers, half_bits
from fastq.reference.gguf_grid_search import levels_of, nearest_odd, nearest_points
from fastq.reference.gguf_search import F, choose, total
from fastq.reference.gguf_super import weights_of
from fastq.system.dtypes import Array

SHIFT = F(0.125)  # of levels, up or down


def quantize_splits(x: Array, importance: Array | None, form: GridFormat) -> Numbers:
    """Return the numbers of blocks whose values have three levels, shifted up or down by the sign of each part."""
    search = form.search
    assert isinstance(search, SplitSearch)
    weights = x * x if importance is None else weights_of(x, importance, 2)
    # one column for each sub-block
    scales, codes, shifts = _fit(x.reshape(-1, form.sub).T, weights.reshape(-1, form.sub).T, form)
    scales = scales.reshape(len(x), -1)
    largest = scales.max(axis=1, initial=0)
    # contract 21.11
    used = largest > 0
    steps = 1 << form.width("scales")
    unit = largest / F(2 * steps - 1)
    multiples = np.where(used[:, None], nearest_odd((F(1) / unit)[:, None] * scales, steps), 0)
    if search.fits_unit:
        q = _numbers(levels_of(codes, form.grid), shifts) * (F(2) * multiples.reshape(-1).astype(F) + F(1))
        sum_xq, sum_q2 = _sums(x.T, weights.T, q.T.reshape(x.shape).T)
        unit = np.where(sum_q2 > 0, sum_xq / sum_q2, unit)
    signs = shifts.T.reshape(len(x), -1) < 0
    return {
        "d": half_bits(np.where(used, unit * F(search.raised), F(0))),
        "scales": multiples,
        "codes": codes.T.reshape(len(x), -1),
        "signs": signs.astype(np.int64),
    }


def _numbers(levels: Array, shifts: Array) -> Array:
    """Numbers -1, 0 and 1 of levels with the shift of each part of a sub-block."""
    return (levels.astype(F) - F(1)) + shifts.repeat(len(levels) // len(shifts), axis=0)


def _sums(x: Array, w: Array, q: Array) -> tuple[Array, Array]:
    """Return the sums of w q x and of w q q of each sub-block: their quotient is the best scale for numbers q."""
    return total(w * q * x), total(w * q * q)


def _fit(x: Array, w: Array, form: GridFormat) -> tuple[Array, Array, Array]:
    """Return scales, codes and shifts of sub-blocks, of which each is a column of x and of the results.

    Where the best split has levels that are no point of the grid, the nearest point is taken, and the scale is fitted
    again. A negative scale turns levels and shifts.
    """
    search = form.search
    assert isinstance(search, SplitSearch)
    parts = form.count("signs") // form.count("scales")
    # contract 21.10
    levels, shifts, scale = _best_split(x, w, parts, search.from_total)
    used = (np.abs(x).max(axis=0) >= F(search.tiny)) & (shifts[0] != 0)
    levels = np.where(scale < 0, 2 - levels, levels)
    shifts, scale = choose(scale < 0, (-shifts, -scale), (shifts, scale))
    of_groups = shifts.repeat(form.sub // form.grid.width // parts, axis=0)[:, :, None]
    codes, off = nearest_points(
        x, w, levels, form.grid, search.shells, lambda level: scale[:, None] * (level.astype(F) - F(1) + of_groups)
    )
    sum_xq, sum_q2 = _sums(x, w, _numbers(levels_of(codes, form.grid), shifts))
    scale = np.where(off.any(axis=0) & (sum_xq > 0) & (sum_q2 > 0), sum_xq / sum_q2, scale)
    return np.where(used, scale, F(0)), np.where(used, codes, 0), np.where(used, shifts, SHIFT)


def _best_split(x: Array, w: Array, parts: int, from_total: bool) -> tuple[Array, Array, Array]:
    """Levels, a shift for each part of a sub-block, and the scale, of the first best split; shifts of 0 without any."""
    count = len(x)
    order = x.argsort(axis=0, kind="stable")  # contract 21.12: as in the qsort of glibc
    ranks = order.argsort(axis=0)
    x, w = (np.take_along_axis(each, order, axis=0) for each in (x, w))
    of_part = [order // (count // parts) == part for part in range(parts)]
    runs = [(_running_sum(np.where(own, w * x, F(0))), _running_sum(np.where(own, w, F(0)))) for own in of_part]
    sums_of = _sums_from_total if from_total else _sums_of_parts
    scale = np.abs(x).max(axis=0)
    best = np.full_like(scale, -np.finfo(F).max)
    low = high = np.zeros(x.shape[1], np.int64)
    shifts = np.zeros((parts, x.shape[1]), F)
    for i, j in itertools.combinations_with_replacement(range(count + 1), 2):
        sums = {
            (shift, part): sums_of(*runs[part], i, j, np.array([-1, 0, 1], F) + shift)
            for shift, part in itertools.product((SHIFT, -SHIFT), range(parts))
        }
        for tried in itertools.product((SHIFT, -SHIFT), repeat=parts):
            sum_xq, sum_q2 = map(sum, zip(*(sums[shift, part] for part, shift in enumerate(tried)), strict=True))
            fitted = sum_xq / sum_q2
            better = (sum_q2 > 0) & (sum_xq * sum_xq > best * sum_q2)
            scale, best, low, high = choose(better, (fitted, fitted * sum_xq, i, j), (scale, best, low, high))
            shifts = np.where(better, np.array(tried, F)[:, None], shifts)
    return (ranks >= low).astype(np.int64) + (ranks >= high), shifts, scale


def _running_sum(terms: Array) -> Array:
    """Return the sums of the first 0, 1, .. terms, all of them last."""
    return np.concatenate([np.zeros_like(terms[:1]), np.add.accumulate(terms)])


def _sums_of_parts(of_x: Array, of_w: Array, i: int, j: int, q: Array) -> tuple[Array, Array]:
    """Return sums of w x q and w q q, where sorted values below i, below j and from j on have the numbers q."""
    # contract 21.9
    xs, ws = ((run[i] - run[0], run[j] - run[i], run[-1] - run[j]) for run in (of_x, of_w))
    sum_xq = xs[0] * q[0] + xs[1] * q[1] + xs[2] * q[2]
    sum_q2 = ws[0] * q[0] * q[0] + ws[1] * q[1] * q[1] + ws[2] * q[2] * q[2]
    return sum_xq, sum_q2


def _sums_from_total(of_x: Array, of_w: Array, i: int, j: int, q: Array) -> tuple[Array, Array]:
    """Return the same sums, from those of all values with the number q[2]."""
    squares = q * q
    sum_xq = of_x[-1] * q[2] - (of_x[i] + of_x[j])
    sum_q2 = of_w[-1] * q[2] * q[2] + of_w[i] * (squares[0] - squares[1]) + of_w[j] * (squares[1] - squares[2])
    return sum_xq, sum_q2
