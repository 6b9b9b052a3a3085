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
    and column i use parameter ``((o // cycle * kept_outer + o % kept_outer) * blocks + b) * inner + i``.

    An array of shape (2, 3, 4, 5) with ``axis=(1, 3)`` has the parameters (3, 5), and two outer axes, of 2 and 3. So
    ``outer`` is 6, ``length`` 4, ``inner`` 5, and the whole array is one ``cycle`` of 6 with ``kept_outer`` 3: outer
    index 4, which is (1, 1), uses the parameters ``4 // 6 * 3 + 4 % 3 = 1`` of axis 1.
    """

    outer: int  # the view
    length: int
    inner: int
    block: int  # rows in a block, and blocks along `length`
    blocks: int
    # outer indices that share parameters: those that are the same modulo `kept_outer` within a `cycle`
    cycle: int
    kept_outer: int
    parameter_shape: tuple[int, ...]  # shape of scale and zero point
    parameters: int = 1  # number of parameter sets
    # chunks are multiples of this many elements, so that no block is in two of them; 0 if blocks share parameters
    chunk_unit: int = 0


NO_LAYOUT = Layout(outer=1, length=1, inner=1, block=1, blocks=1, cycle=1, kept_outer=1, parameter_shape=())


@functools.lru_cache(4096)
def make_layout(shape: tuple[int, ...], granularity: Granularity) -> Layout | None:
    """Return the layout of a C-contiguous array that has elements; None where no such view exists.

    This happens if more than five groups of kept and reduced axes alternate: then bring the kept axes to the front.
    """
    parameter_shape = granularity.parameter_shape(shape)
    block_size = granularity.block_size
    if (count := math.prod(parameter_shape)) == 1:
        size = math.prod(shape)
        return Layout(
            outer=1,
            length=size,
            inner=1,
            block=size,
            blocks=1,
            cycle=NEVER,
            kept_outer=1,
            parameter_shape=parameter_shape,
            chunk_unit=size,
        )
    groups = _alternating_groups(shape, granularity)
    if len(groups) > 5:
        return None
    inner, length, kept, reduced, kept_outermost = groups + [1] * (5 - len(groups))
    outer = kept_outermost * reduced * kept
    block = min(block_size or length, length)
    if reduced > 1:
        return Layout(
            outer=outer,
            length=length,
            inner=inner,
            block=block,
            blocks=1,
            cycle=reduced * kept,
            kept_outer=kept,
            parameter_shape=parameter_shape,
            parameters=count,
        )
    if length % block == 0:  # no block ends early, so the blocks of all outer indices are one sequence
        length = outer * length
        outer = 1
    return Layout(
        outer=outer,
        length=length,
        inner=inner,
        block=block,
        blocks=-(-length // block),
        cycle=NEVER,
        kept_outer=outer,
        parameter_shape=parameter_shape,
        parameters=count,
        chunk_unit=(block if outer == 1 else length) * inner,
    )


def _alternating_groups(shape: tuple[int, ...], granularity: Granularity) -> list[int]:
    """Return the elements of neighbouring axes of one kind, from the last axis on: even groups are kept, odd reduced.

    The parameters have the axes that are kept; elements along the others share them. Blocks run along a reduced axis,
    which stays one even with a single element. Other axes of one element belong to either kind, so they part no groups.

    Shape (2, 3, 4, 5) with ``axis=(0, 1)`` keeps 2 and 3, and reduces 4 and 5. Its last axis is no kept one, so group 0
    is empty: ``[1, 20, 6]``. With ``axis=(1, 3)`` every axis is a group: ``[5, 4, 3, 2]``. Blocks of 2 along axis 2
    reduce that axis alone: ``[5, 4, 6]``.
    """
    has_blocks = granularity.block_size > 0
    named_axes = granularity.kept
    groups = [1]
    for axis in reversed(range(len(shape))):
        is_kept = axis not in named_axes if has_blocks else axis in named_axes
        if shape[axis] == 1 and (is_kept or not has_blocks):
            continue
        last_is_kept = len(groups) % 2 == 1
        if is_kept != last_is_kept:
            groups.append(1)
        groups[-1] *= shape[axis]
    return groups
