"""The codes and parameters of a part of an array, and of a reshaped one, in its granularity: integers only."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.formats.granularity import ARRAY, Axis, Granularity, granularity
from fastq.formats.qtypes import QType, packed_length
from fastq.system.arguments import MOST_AXES, as_int, shown
from fastq.system.arrays_of_callers import as_array

Pick = int | slice | NDArray[Any]  # the indices that are taken along an axis

WHOLE = slice(None)


class PartedShape(NamedTuple):
    """The shape of an array, and the elements that share parameters."""

    shape: tuple[int, ...]
    granularity: Granularity  # the elements that share a parameter

    @property
    def axes(self) -> tuple[int, ...]:
        """Axes with their own parameters, counted from the front."""
        return self.granularity.kept

    @property
    def block_size(self) -> int:
        """Number of elements in a block along the one axis; 0 without blocks."""
        return self.granularity.block_size

    @property
    def parameter_shape(self) -> tuple[int, ...]:
        """Shape of scale and zero point."""
        return self.granularity.parameter_shape(self.shape)


def parts_of(scale_shape: tuple[int, ...], shape: tuple[int, ...], axis: Axis, block_size: int) -> PartedShape:
    """Return which elements of an array share parameters, whose scale has a shape.

    These are the channels or blocks that `axis` and `block_size` name. A single scale may stand for all channels: then
    all elements share it.
    """
    parts = PartedShape(shape, granularity(axis, block_size, len(shape), "q"))
    if scale_shape == parts.parameter_shape:
        return parts
    if math.prod(scale_shape) != 1:
        needed = parts.parameter_shape
        raise ValueError(f"qparams.scale has shape {scale_shape}, but this axis and block_size need shape {needed}")
    return parts if block_size else PartedShape(shape, ARRAY)


def axis_like(axis: Axis, axes: tuple[int, ...], ndim: int) -> Axis:
    """Return axes of an array as `axis` names them, if it does; else as one int or a tuple, or None for no axes."""
    if not axes:
        return None
    axes_by_name = axis if isinstance(axis, tuple) else () if axis is None else (axis,)
    if all(-ndim <= a < ndim for a in axes_by_name) and sorted(a % ndim for a in axes_by_name) == list(axes):
        return axis
    return axes if isinstance(axis, tuple) or len(axes) > 1 else axes[0]


# Indexing


class Selection(NamedTuple):
    """A part of an array."""

    picks: tuple[Pick, ...]  # the indices that it takes along each axis
    parameters: tuple[Pick, ...]  # the indices that it takes along each axis of the parameters
    parts: PartedShape


def part_at(index: object, whole: PartedShape) -> Selection:
    """Return the part of an array at an index."""
    picks = picks_of(index, whole.shape)
    of_axis = [
        _blocks_taken(pick, whole, a) if whole.block_size and a in whole.axes else pick for a, pick in enumerate(picks)
    ]
    parameters = of_axis if whole.block_size else [of_axis[a] for a in whole.axes]
    remaining = [a for a, pick in enumerate(picks) if not isinstance(pick, int)]  # axes that the part still has
    shape = tuple(_count(picks[a], whole.shape[a]) for a in remaining)
    axes = tuple(remaining.index(a) for a in whole.axes if a in remaining)
    return Selection(tuple(picks), tuple(parameters), PartedShape(shape, Granularity(axes, whole.block_size)))


def picks_of(index: object, shape: tuple[int, ...]) -> list[Pick]:
    """Return what an index takes along each axis: all of those that it does not name."""
    items_of_index = list(index) if isinstance(index, tuple) else [index]
    dots = [k for k, each in enumerate(items_of_index) if each is Ellipsis]
    if len(items_of_index) - len(dots) > len(shape):
        raise IndexError(f"q has {len(shape)} axes, but the index is for {len(items_of_index) - len(dots)}")
    if len(dots) > 1:
        raise IndexError("an index has one '...' at most")
    unnamed = [WHOLE] * (len(shape) - len(items_of_index) + len(dots))
    place_of_dots = dots[0] if dots else len(items_of_index)
    items = [*items_of_index[:place_of_dots], *unnamed, *items_of_index[place_of_dots + 1 :]]
    picks = [_pick(item, axis, n) for axis, (item, n) in enumerate(zip(items, shape, strict=True))]
    arrays = sum(isinstance(pick, np.ndarray) for pick in picks)
    if arrays > 1 or (arrays and any(isinstance(pick, int) for pick in picks)):
        raise TypeError("an array in the index of q can be combined with slices only: index twice, q[rows][:, columns]")
    return picks


def _pick(item: Any, axis: int, n: int) -> Pick:
    """Return what an item of an index takes along an axis of n elements: a slice, or places from the front."""
    if isinstance(item, slice):
        try:
            item.indices(n)
        except (TypeError, ValueError) as error:
            raise type(error)(f"index {shown(item)}: {error}") from error
        return item
    if isinstance(item, list) or (isinstance(item, np.ndarray) and item.ndim):
        return _as_mask_or_places(as_array(item, "index"), axis, n)
    try:
        place = as_int(item, "index")
    except TypeError as error:
        expected = "ints, slices, '...' and one list or array of bools or ints for an axis"
        raise TypeError(f"q takes an index of {expected}, not {shown(item)}; q.dequantize() takes any") from error
    except ValueError:  # integers of more than 64 bits
        place = n
    if not -n <= place < n:
        raise IndexError(f"index {shown(item)} is out of bounds for axis {axis} with size {n}")
    return place % n


def _as_mask_or_places(array: NDArray[Any], axis: int, n: int) -> NDArray[Any]:
    """Return the places that an array of bools or ints takes along an axis of n elements."""
    if array.ndim != 1 or (array.dtype.kind not in "iub" and array.size):
        raise TypeError(
            f"an array in the index of q has one axis, of bools or ints; this is {shown(array)}: "
            "for others index q.dequantize()"
        )
    if array.dtype.kind == "b":
        if array.size != n:
            raise IndexError(f"a mask of {array.size} bools is for axis {axis} with size {n}")
        return np.flatnonzero(array)
    if array.size and not -n <= int(array.min()) <= int(array.max()) < n:
        raise IndexError(f"indices {array.min()} to {array.max()} are out of bounds for axis {axis} with size {n}")
    return array.astype(np.intp)


def _count(pick: Pick, n: int) -> int:
    """Return how many places are taken along an axis of n elements."""
    return 1 if isinstance(pick, int) else len(range(n)[pick]) if isinstance(pick, slice) else len(pick)


def _blocks_taken(pick: Pick, whole: PartedShape, axis: int) -> slice:
    """Return the blocks of the elements that are taken along their axis; raise ValueError if one would be cut.

    The last block may be: its elements share the scale of all of it. 64:100 takes blocks 2 and 3 of 32.
    """
    size = whole.block_size
    places = range(whole.shape[axis])[pick] if isinstance(pick, slice) else range(0)
    if not isinstance(pick, slice) or (places and (places.step != 1 or places.start % size)):
        indices = f"{places.start}:{places.stop}:{places.step}" if isinstance(pick, slice) else shown(pick)
        raise ValueError(
            f"index {indices} cuts blocks of {size} along axis {axis}: a slice there begins at a multiple of {size} "
            "and has step 1; or index q.dequantize()"
        )
    return slice(places.start // size, -(-places.stop // size)) if places else slice(0, 0)


# Codes that share bytes


def packed_picks(picks: tuple[Pick, ...], shape: tuple[int, ...], qtype: QType) -> tuple[Pick, ...] | None:
    """Return the bytes that a part takes of packed codes, if its rows begin and end with whole bytes; else None."""
    if not picks:
        return (WHOLE,)
    *others, last = picks
    if not isinstance(last, slice):
        return None
    places = range(shape[-1])[last] or range(0)
    length = shape[-1]
    whole_bytes = not places.start * qtype.bits % 8 and (places.stop == length or not places.stop * qtype.bits % 8)
    if places.step != 1 or not whole_bytes:
        return None
    return (*others, slice(places.start * qtype.bits // 8, packed_length(places.stop, qtype)))


# Other shapes


def as_new_shape(sizes: tuple[Any, ...], size: int) -> tuple[int, ...]:
    """Return the shape that was passed to `reshape`, as sizes or as one tuple; -1 is the size that is left."""
    sizes_of_axes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)) else sizes
    new_shape = [as_int(size_of_axis, "shape", "ints") for size_of_axis in sizes_of_axes]
    if new_shape.count(-1) == 1:
        others = math.prod(n for n in new_shape if n != -1)
        new_shape[new_shape.index(-1)] = size // others if others else -1
    if len(new_shape) > MOST_AXES:
        raise ValueError(f"shape must have at most {MOST_AXES} axes, as in NumPy, not {len(new_shape)}")
    if min(new_shape, default=0) < 0 or math.prod(new_shape) != size:
        raise ValueError(f"shape must have {size} elements, not {shown(sizes_of_axes)}")
    return tuple(new_shape)


def reshape_parts(shape: tuple[int, ...], whole: PartedShape) -> PartedShape:
    """Return the granularity of an array in another shape, in which each parameter belongs to the same elements."""
    if not whole.axes:
        return PartedShape(shape, whole.granularity)
    axes = _block_axis(shape, whole) if whole.block_size else _channel_axes(shape, whole)
    if axes is None:
        kind_of_parts = f"blocks of {whole.block_size} along axis" if whole.block_size else "channels of axis"
        axes_of_parts = whole.axes[0] if len(whole.axes) == 1 else whole.axes
        raise ValueError(
            f"shape {shape} joins parts of shape {whole.shape} with their own parameters, "
            f"{kind_of_parts} {axes_of_parts}; q.dequantize().reshape takes any shape"
        )
    return PartedShape(shape, Granularity(axes, whole.block_size))


def _block_axis(shape: tuple[int, ...], whole: PartedShape) -> tuple[int, ...] | None:
    """Return the axis along which blocks run in another shape: of the same length, or both of whole blocks."""
    (axis,) = whole.axes
    size = whole.block_size
    length = whole.shape[axis]
    inner = math.prod(whole.shape[axis + 1 :])
    places = [a for a in range(len(shape)) if math.prod(shape[a + 1 :]) == inner]
    alike = [a for a in places if shape[a] == length]
    whole_blocks = [a for a in places if not (shape[a] % size or length % size)]
    return next(((a,) for a in (*alike, *reversed(whole_blocks))), None)


def _channel_axes(shape: tuple[int, ...], whole: PartedShape) -> tuple[int, ...] | None:
    """Return the axes of another shape that lie within axes of channels; None if an axis lies in both kinds of axes.

    Axes of a kind that follow each other are a run. Of shape (6, 4), with channels along axis 0, they are runs of 6 and
    of 4. In shape (2, 3, 4) axes 0 and 1 lie in the first; in shape (3, 8) axis 1 has a part of both.
    """
    runs = _runs(whole)
    kept = []
    has_parameters = False
    left_in_run = 1  # elements, beside those of the axes before
    for axis, n in enumerate(shape):
        while left_in_run == 1 and n != 1:
            if (run := next(runs, None)) is None:
                return None
            has_parameters, left_in_run = run
        if n and left_in_run % n:
            return None
        kept += [axis] if has_parameters and n != 1 else []
        left_in_run = left_in_run // n if n else 1
    parameters = math.prod(shape[a] for a in kept)
    return tuple(kept) if parameters == math.prod(whole.parameter_shape) else None


def _runs(whole: PartedShape) -> Iterator[tuple[bool, int]]:
    """Yield whether neighbouring axes of a kind have parameters, and the number of their elements."""
    kinds = [(axis in whole.axes, n) for axis, n in enumerate(whole.shape) if n != 1]
    for has_parameters, run in groupby(kinds, key=operator.itemgetter(0)):
        yield has_parameters, math.prod(n for _, n in run)
