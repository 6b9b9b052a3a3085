"""Tell kernels where in its array each element is that they visit, by which its random number is drawn."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from fastq.kernels.sizes import ENDLESS
from fastq.plan.arrange import inverse
from fastq.requests.stochastic_rounding import Noise, steps_of


def words_of(noise: Noise, shape: tuple[int, ...], order: tuple[int, ...] | None) -> NDArray[np.int64]:
    """Return what kernels draw the numbers of elements by, `NOISE_KEY`, whose axes they see in an order."""
    axes = _axes(shape, order, noise.steps)
    return np.array((noise.key - (noise.key >> 63 << 64), noise.first, *axes), np.int64)


@functools.lru_cache(4096)
def _axes(shape: tuple[int, ...], order: tuple[int, ...] | None, steps: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return elements and steps of the axes of a traversal, the fastest first; those that follow on are one."""
    order = order or tuple(range(len(shape)))
    if steps is None:
        steps = steps_of(tuple(shape[k] for k in inverse(order)))
    axes = [(1, 1)]
    for size, axis in zip(reversed(shape), reversed(order), strict=True):
        extent, step = axes[-1]
        if size > 1 and (extent == 1 or steps[axis] == extent * step):
            axes[-1] = extent * size, steps[axis] if extent == 1 else step
        elif size > 1:
            axes.append((size, steps[axis]))
    axes[-1] = ENDLESS, axes[-1][1]
    return tuple(word for axis in axes for word in axis)
