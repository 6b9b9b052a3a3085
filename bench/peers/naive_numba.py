"""Numba as one would write it first: the plain loops of loops.py, with memory for their results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import get_num_threads, njit, prange

from .. import data
from ..calls import Array, Operands
from . import Runner, loops
from .loops import ELEMENTS, GROUPS_WITH_GIVEN, GROUPS_WITH_OWN, WITH_GIVEN, WITH_OWN

Call = Callable[[], Any]
AXES = 4


class LoopView(NamedTuple):
    """How arrays of the shape of the operand are seen: axes in this order, then this shape of `AXES` axes.

    Neighbouring axes that share parameters, or have their own, are one where no copy is needed. Blocks are an axis of
    their own.
    """

    order: tuple[int, ...]  # from the slowest in memory to the fastest
    shape: tuple[int, ...]
    own: tuple[int, ...]  # the shape of parameters, 1 where they are shared

    def all(self, array: Array) -> Array:
        """Return the whole array, without a copy."""
        return array.transpose(self.order).reshape(self.shape)

    @property
    def in_groups(self) -> bool:
        """Whether neighbours share parameters, and nothing else has an axis but the groups of them."""
        return self.shape[1:-1] == self.own[1:-1] and self.own[1:] == (1,) * (AXES - 1)

    def parameters(self, array: Array) -> Array:
        """Return a copy of parameters, which have the axes of the operand."""
        return np.ascontiguousarray(array.transpose(self.order)).reshape(self.own)

    def repeated(self, *parameters: Array) -> list[Array]:
        """Return parameters along the whole first axis, also where it shares them."""
        return [np.broadcast_to(each, (self.shape[0], *self.own[1:])) for each in parameters]

    def given(self, o: Operands) -> list[Array]:
        """Return the parameters of a call as loops take them."""
        return self.repeated(*(self.parameters(each) for each in o.beside))


def loop_view(arrays: list[Array], shared: tuple[int, ...]) -> LoopView:
    """Return how to see arrays of one shape in the order of the first one; the `shared` axes share parameters."""
    first = arrays[0]
    order = sorted(range(first.ndim), key=lambda a: (first.strides[a] != 0, -abs(first.strides[a])))
    axes = [([a], first.shape[a]) for a in order if first.shape[a] > 1]
    for place in reversed(range(1, len(axes))):
        (before, outer), (here, inner) = axes[place - 1 : place + 1]
        alike = (before[-1] in shared) == (here[0] in shared)
        joined = all(x.strides[before[-1]] == x.strides[here[0]] * x.shape[here[0]] for x in arrays)
        if len(axes) > 2 and alike and joined:
            axes[place - 1 : place + 1] = [([*before, *here], outer * inner)]
    kept = [1 if among[0] in shared else n for among, n in axes]
    between = [1] * (AXES - len(axes))
    shape = [axes[0][1], *between, *(n for _, n in axes[1:])]
    return LoopView(tuple(order), tuple(shape), (kept[0], *between, *kept[1:]))


class Ranges:
    """Memory for ranges and parameters, in the shape of these, and the calls that fill it."""

    def __init__(self, o: Operands, view: LoopView, low: Any, high: Any) -> None:
        self.x = x = view.all(o.grouped(o.first))
        self.view, self.start = view, (x.dtype.type(low), x.dtype.type(high))
        self.lows, self.highs = np.ones(view.own, x.dtype), np.ones(view.own, x.dtype)
        self.scale, self.zero = np.ones(view.own, o.real), np.ones(view.own, o.real)
        self.end_within = view.own[0] == len(x)  # ranges within the first axis
        self.rule = o.symmetric, *o.limits
        self.starts, self.of_slices = np.arange(len(x) + 1), [self.lows, self.highs]
        if not self.end_within:
            self.starts = _slices(len(x))
            self.of_slices = [np.ones((len(self.starts) - 1, *view.own[1:]), x.dtype) for _ in self.start]

    def find(self) -> tuple[Array, Array]:
        """Find the ranges."""
        if self.end_within and self.view.in_groups:
            loops.find_ranges_of_groups(_groups(self.x), *self.start, self.lows.ravel(), self.highs.ravel())
        else:
            loops.find_ranges(self.x, self.starts, *self.start, *self.of_slices)
        if not self.end_within:
            np.min(self.of_slices[0], 0, keepdims=True, out=self.lows)
            np.max(self.of_slices[1], 0, keepdims=True, out=self.highs)
        return self.lows, self.highs

    def choose(self) -> tuple[Array, Array]:
        """Find the ranges, and take parameters from them."""
        loops.find_parameters(*self.find(), *self.rule, self.scale, self.zero)
        return self.scale, self.zero

    def use(self, element: Any, result: Array) -> None:
        """Compute all elements with parameters of their ranges."""
        if self.end_within and self.view.in_groups:
            loop, parameters = GROUPS_WITH_OWN[element], (self.scale.ravel(), self.zero.ravel())
            loop(_groups(self.x), *self.start, *self.rule, *parameters, _groups(result))
        elif self.end_within:
            memory = self.lows, self.highs, self.scale, self.zero
            WITH_OWN[element](self.x, *self.start, *self.rule, *memory, result)
        else:
            use_given(element, self.x, self.view, self.view.repeated(*self.choose()), self.rule[1:], result)


def use_given(
    element: Any, x: Array, view: LoopView, given: list[Array], limits: tuple[Any, ...], result: Array
) -> None:
    """Compute all elements with given parameters."""
    if view.in_groups:
        GROUPS_WITH_GIVEN[element](_groups(x), *(each[:, 0, 0, 0] for each in given), *limits, _groups(result))
    else:
        WITH_GIVEN[element](_slices(len(x)), x, *given, *limits, result)


def _groups(array: Array) -> Array:
    return array[:, 0, 0, :]


def _slices(length: int) -> Array:
    """Return the first index of each thread's part, and the end."""
    parts = min(get_num_threads(), length)
    return np.arange(parts + 1) * length // parts


def _elements(o: Operands) -> Call:
    element, result, first = ELEMENTS[o.function], o.result(), o.grouped(o.first)
    beside = o.grouped(result)
    view = loop_view([first, beside], o.shared)
    x, made = view.all(first), view.all(beside)
    if o.qparams is None:
        ranges = Ranges(o, view, 0, 0)
        return lambda: ranges.use(element, made) or result
    given, limits = view.given(o), o.limits
    return lambda: use_given(element, x, view, given, limits, made) or result


def _minmax(o: Operands) -> Call:
    dtype = o.first.dtype
    nothing = (np.iinfo(dtype).max, np.iinfo(dtype).min) if dtype.kind in "iu" else (np.inf, -np.inf)
    return Ranges(o, loop_view([o.grouped(o.first)], o.shared), *nothing).find


def _three_axes(array: Array) -> Array:
    return array.reshape(-1, *(1,) * (3 - array.ndim), *array.shape[1:])


def _pack(o: Operands) -> Call:
    packed = np.ones((*o.shape[:-1], -(-o.shape[-1] // 2)), np.uint8) if o.out is None else o.out
    arrays = _three_axes(o.first.view(np.uint8)), _three_axes(packed)
    return lambda: loops.pack_pairs(*arrays) or packed


def _unpack(o: Operands) -> Call:
    codes, sign = o.result(), 8 if o.qtype.signed else 0
    arrays = _three_axes(o.first.view(codes.dtype)), sign, _three_axes(codes)
    return lambda: loops.unpack_pairs(*arrays) or codes


_LOOPS: dict[str, Callable[[Operands], Call]] = {
    **dict.fromkeys(ELEMENTS, _elements),
    "minmax": _minmax,
    "pack": _pack,
    "unpack": _unpack,
}


# --- cases ------------------------------------------------------------------------------------------------------------

E2M1 = data.elements("mxfp4")
HALF_BYTES = {"int4": njit(lambda bits: (bits ^ 8) - 8), "mxfp4": njit(lambda bits: E2M1[bits])}


@cache
def dequantize_packed_loop(code: str) -> Any:
    element = HALF_BYTES[code]

    @njit(parallel=True)
    def loop(packed, scales, values):
        for block in prange(packed.shape[0]):
            for i in range(packed.shape[1]):
                values[block, 2 * i] = element(np.int32(packed[block, i] & 15)) * scales[block]
                values[block, 2 * i + 1] = element(np.int32(packed[block, i] >> 4)) * scales[block]

    return loop


def dequantize(o: Operands) -> Runner:
    loop, values, scales = dequantize_packed_loop(o.code), o.result(), o.beside[0].ravel()
    packed, groups = (array.reshape(scales.size, -1) for array in (o.first, values))
    return Runner(lambda: loop(packed, scales.astype(np.float32, copy=False), groups), lambda: {"values": values})


def prepared(o: Operands) -> Runner:
    call = _LOOPS[o.function](o)
    if o.function == "minmax":
        return Runner(call, lambda: dict(zip(("lo", "hi"), call(), strict=True)))
    return Runner(call, lambda: {o.made: call()})
