"""Matrices that tell one arithmetic from another: values on and next to the borders between two codes."""

import ml_dtypes  # noqa: F401 - NumPy then knows bfloat16 by its name
import numpy as np
from oracle import by_fastq

import fastq
from fastq.formats.qtypes import as_qtype

SHAPES = {"array": (1, 65_536), "channel": (256, 1024), "block": (1024, 256)}
SPECIAL_SHAPE = (16, 4096)
ULPS = 2


def _ranges(rows, rng):
    """Ends of ranges of many magnitudes: on both sides of 0, on one side, and symmetric."""
    magnitude = 10.0 ** rng.uniform(-3, 3, (rows, 1))
    share = rng.random((rows, 1))
    ends = np.array([(-1, 1), (-1, 0.4), (-0.3, 1), (0.2, 1), (-1, -0.1), (0, 1)])[rng.integers(0, 6, rows)]
    return ends * magnitude * np.hstack([share, np.ones_like(share)])


def uniform(case, rng):
    """Return a matrix for a case, each parameter's elements spread evenly over a range of their own."""
    rows, columns = SHAPES[case.per]
    groups = rows * columns // case.block_size if case.block_size else rows
    lo, hi = (-1.0, 1.0) if case.unit else np.hsplit(_ranges(groups, rng), 2)
    x = (lo + (hi - lo) * rng.random((groups, rows * columns // groups))).astype(case.values)
    return _cut(x.reshape(rows, columns), case)


def _cut(x, case):
    return np.ascontiguousarray(x[:, :-5]) if case.ragged else x


def _spread(parameters, case, shape):
    """Return parameters, one for each element of a matrix."""
    if case.per == "block":
        return np.repeat(parameters, case.block_size, axis=1)[:, : shape[1]]
    return np.broadcast_to(np.reshape(parameters, (-1, 1)), shape)


def with_ties(x, case, system, rng):
    """Put half of the elements on borders between codes or within `ULPS` of them, without changing a range.

    Returns
    -------
    ndarray
        The matrix.
    int
        How many elements were put there.
    """
    ours = by_fastq(x, case, system.convention)
    lo, hi = (_spread(end, case, x.shape) for end in fastq.minmax(x, **case.granularity()))
    share = 0.55
    if as_qtype(case.dtype).block_size:  # more of whose borders lie beyond the range
        share = 0.7
        border = _borders_of_floats(ours, case, rng).astype(case.values)
    else:
        steps = rng.choice([-system.tie, system.tie], x.shape) * _spread(ours.scale, case, x.shape).astype(np.float64)
        border = (ours.values + steps).astype(case.values)
    for _ in range(ULPS):
        towards = np.array([-np.inf, 0, np.inf], case.values)[rng.integers(0, 3, x.shape)]
        border = np.where(towards == 0, border, np.nextafter(border, towards))
    moved = (rng.random(x.shape) < share) & (x != lo) & (x != hi) & (lo < border) & (border < hi)
    return np.where(moved, border, x), int(np.count_nonzero(moved))


def _borders_of_floats(ours, case, rng):
    """Return the middle between the value of each code and one of its neighbours, in formats with their own scales."""
    form = as_qtype(case.dtype).float_format
    positive = [form.number(code) for code in range(form.largest + 1)]
    numbers = np.array([*(-number for number in positive[:0:-1]), *positive])
    middles = (numbers[1:] + numbers[:-1]) / 2
    codes = ours.codes.view(form.dtype).astype(np.float64)
    place = np.searchsorted(numbers, codes) - rng.integers(0, 2, codes.shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        step = np.where(codes == 0, 0, ours.values / codes)
    step = step.reshape(len(step), -1, case.block_size).max(-1)
    return middles[np.clip(place, 0, len(middles) - 1)] * _spread(step, case, codes.shape)


def _scaled(magnitude):
    return lambda noise: noise * magnitude


def _outlier(noise):
    x = noise * 1e-3
    x[..., 5] = 1e4
    return x


SPECIAL = {
    "zeros": _scaled(0.0),
    "constant": lambda noise: np.full(noise.shape, 3.7),
    "negative constant": lambda noise: np.full(noise.shape, -0.2),
    "outlier": _outlier,
    "negative outlier": lambda noise: -_outlier(noise),
    "small": _scaled(1e-8),
    "very small": _scaled(1e-30),
    "subnormal scale": _scaled(1e-36),
    "subnormal": _scaled(1e-40),
    "large": _scaled(1e30),
    "nearly overflowing": _scaled(1.69e38),
}


def special(name, case, rng):
    """Return a special matrix for a case."""
    shape = np.minimum(SHAPES[case.per], SPECIAL_SHAPE)
    x = SPECIAL[name](rng.uniform(-1, 1, shape))
    return _cut((np.clip(x, -1, 1) if case.unit else x).astype(case.values), case)
