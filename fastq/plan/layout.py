"""An array seen as (outer, length, inner), and which parameters belong to each part of it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from fastq.formats.granularity import Granularity

NEVER = 1 << 62  # a cycle that no outer index reaches


@dataclass(frozen=True)
class Layout:
    """An array seen as (outer, length, inner) in C order, and which parameters belong to each part of it.

    Along `length` run blocks of `block` rows, the last one of each outer index perhaps shorter. Outer index o, block b
    and column i use parameter ``((o // cycle * kept + o % kept) * blocks + b) * inner + i``.
    """

    outer: int  # the view
    length: int
    inner: int
    block: int  # rows in a block, and blocks along `length`
    blocks: int
    cycle: int  # outer indices that share parameters: those that are the same modulo `kept` within a `cycle`
    kept: int
    shape: tuple[int, ...]  # shape of scale and zero point
    parameters: int = 1  # number of parameter sets
    # chunks are multiples of this many elements, so that no block is in two of them; 0 if blocks share parameters
    unit: int = 0


NO_LAYOUT = Layout(outer=1, length=1, inner=1, block=1, blocks=1, cycle=1, kept=1, shape=())


@functools.lru_cache(4096)
def make_layout(shape: tuple[int, ...], granularity: Granularity) -> Layout | None:
    """Return the layout of a C-contiguous array that has elements; None where no such view exists.

    This happens if more than five groups of kept and reduced axes alternate: then bring the kept axes to the front.
    """
    parameters = granularity.parameter_shape(shape)
    block = granularity.block_size
    if (count := math.prod(parameters)) == 1:
        size = math.prod(shape)
        return Layout(
            outer=1, length=size, inner=1, block=size, blocks=1, cycle=NEVER, kept=1, shape=parameters, unit=size
        )
    # the products of neighbouring axes of the same kind, from the last axis on: inner, length, kept, reduced, first
    groups = [1] * 5
    at = 0
    named_axes = granularity.axes or ()
    for axis in range(len(shape) - 1, -1, -1):
        is_kept = (axis in named_axes) != bool(block)  # blocks run along the one axis that is named
        if shape[axis] > 1 or (block and not is_kept):  # other axes of one element belong to either kind
            at += is_kept == at % 2
            if at == len(groups):
                return None
            groups[at] *= shape[axis]
    inner, length, kept, reduced, first = groups
    outer = first * reduced * kept
    block = min(block or length, length)
    if reduced > 1:
        return Layout(
            outer=outer,
            length=length,
            inner=inner,
            block=block,
            blocks=1,
            cycle=reduced * kept,
            kept=kept,
            shape=parameters,
            parameters=count,
        )
    if length % block == 0:
        length = outer * length
        outer = 1
    unit = (block if outer == 1 else length) * inner
    return Layout(
        outer=outer,
        length=length,
        inner=inner,
        block=block,
        blocks=-(-length // block),
        cycle=NEVER,
        kept=outer,
        shape=parameters,
        parameters=count,
        unit=unit,
    )
