"""(shape, granularity) -> Layout(outer, length, inner, ...): integers only."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from itertools import groupby

from fastq.formats.granularity import Granularity

NEVER = 1 << 62  # a cycle that no outer index reaches


@dataclass(frozen=True)
class Layout:
    """An array seen as (outer, length, inner) in C order, and which parameters belong to each part of it.

    Along `length` run blocks of `block` rows, the last one of each outer index perhaps shorter. Outer index o, block b
    and column i use parameter ``((o // cycle * kept + o % kept) * blocks + b) * inner + i``.

    Attributes
    ----------
    outer, length, inner : int
        The view.
    block, blocks : int
        Rows in a block, and blocks along `length`.
    cycle, kept : int
        Outer indices that share parameters: those that are the same modulo `kept` within a `cycle`.
    shape : tuple of int
        Shape of scale and zero point.
    """

    outer: int
    length: int
    inner: int
    block: int
    blocks: int
    cycle: int
    kept: int
    shape: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """Number of parameter sets."""
        return math.prod(self.shape)

    @property
    def owned(self) -> bool:
        """Whether each parameter belongs to one block of one outer index, and to no other part of the array."""
        return self.kept == self.outer


@functools.lru_cache(4096)
def make_layout(shape: tuple[int, ...], granularity: Granularity) -> Layout | None:
    """Return the layout of a C-contiguous array that has elements; None where no such view exists.

    That is so where more than five groups of kept and reduced axes alternate: then bring the kept axes to the front.
    """
    parameters, size = granularity.parameter_shape(shape), math.prod(shape)
    if math.prod(parameters) == 1:
        return Layout(1, size, 1, size, 1, NEVER, 1, parameters)
    if granularity.block_size:
        (axis,) = granularity.kept
        outer, length, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        return _in_blocks(outer, length, inner, min(granularity.block_size, length), parameters)
    # neighbouring axes of the same kind together; axes of one element belong to either kind
    wide = [(axis in granularity.kept, size) for axis, size in enumerate(shape) if size > 1]
    groups = [(kept, math.prod(size for _, size in group)) for kept, group in groupby(wide, operator.itemgetter(0))]
    return _in_channels(groups, parameters)


def _in_blocks(outer: int, length: int, inner: int, block: int, shape: tuple[int, ...]) -> Layout:
    if length % block == 0:
        outer, length = 1, outer * length
    return Layout(outer, length, inner, block, -(-length // block), NEVER, outer, shape)


def _in_channels(groups: list[tuple[bool, int]], shape: tuple[int, ...]) -> Layout | None:
    inner = groups.pop()[1] if groups[-1][0] else 1
    length = groups.pop()[1] if groups else 1
    first_kept = groups.pop(0)[1] if len(groups) == 3 or (groups and groups[0][0]) else 1
    reduced = groups.pop(0)[1] if groups else 1
    kept = groups.pop(0)[1] if groups else 1
    if groups:
        return None
    if reduced == 1:
        return _in_blocks(first_kept * kept, length, inner, length, shape)
    return Layout(first_kept * reduced * kept, length, inner, length, 1, reduced * kept, kept, shape)
