"""How arrays are seen by plain ways to do the work of a cell, and what these are called with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fastq.formats.qtypes import QTYPES, QType

from .arrays import Array, Operands, dtype_of, grouped
from .grid import NO_FORMAT, WORKS, Cell

AXES = 4


class LoopView(NamedTuple):
    """How arrays of the shape of the operand are seen: axes in this order, then this shape.

    Attributes
    ----------
    order : tuple of int
        The axes, blocks being an axis of their own, from the slowest in memory to the fastest.
    shape : tuple of int
        Shape of `AXES` axes: neighbouring ones that share parameters, or have their own, are one where no copy is
        needed.
    own : tuple of int
        The shape of parameters, 1 where they are shared.
    """

    order: tuple[int, ...]
    shape: tuple[int, ...]
    own: tuple[int, ...]

    def all(self, array: Array) -> Array:
        """Return the whole array, without a copy."""
        return array.transpose(self.order).reshape(self.shape)

    @property
    def in_groups(self) -> bool:
        """Whether neighbours share parameters, and nothing else has an axis but the groups of them."""
        return self.shape[1:-1] == self.own[1:-1] and self.own[1:] == (1,) * (AXES - 1)

    def parameters(self, array: Array, shape: list[int]) -> Array:
        """Return a copy of parameters, which have this shape to broadcast with the operand."""
        return np.ascontiguousarray(array.reshape(shape).transpose(self.order)).reshape(self.own)

    def repeated(self, *parameters: Array) -> list[Array]:
        """Return parameters along the whole first axis, also where it shares them."""
        return [np.broadcast_to(each, (self.shape[0], *self.own[1:])) for each in parameters]


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


class PlainInputs(NamedTuple):
    """What the loops of a cell are called with.

    Attributes
    ----------
    cell : Cell
        The cell.
    first : ndarray
        The operand, blocks being an axis of their own.
    shared : tuple of int
        The axes of it that share parameters.
    operands : Operands
        What the cell is called with.
    real : dtype
        What is computed in.
    """

    cell: Cell
    first: Array
    shared: tuple[int, ...]
    operands: Operands
    real: np.dtype[Any]

    @property
    def qtype(self) -> QType:
        """The format of the codes."""
        return QTYPES[self.cell.format]

    @property
    def symmetric(self) -> bool:
        """Whether zero points are the middle."""
        return WORKS[self.cell.work].parameters == "symmetric"

    @property
    def limits(self) -> tuple[Any, ...]:
        """The first and the last code; none without a format."""
        if self.cell.format == NO_FORMAT:
            return ()
        return tuple(map(self.real.type, self.qtype.code_range(self.symmetric)))

    @property
    def shape_of_parameters(self) -> list[int]:
        """The shape of parameters that broadcasts with that of the operand."""
        return [1 if a in self.shared else n for a, n in enumerate(self.first.shape)]

    def result(self) -> Array:
        """Return memory for codes or values, in the order of `out` where one is given."""
        floats = self.real if self.first.dtype.kind in "iu" else self.first.dtype
        name = WORKS[self.cell.work].function
        dtype = {
            "quantize": self.qtype.storage,
            "quantize_linear": self.qtype.storage,
            "requantize": self.qtype.storage,
            "fake_quantize": floats,
        }.get(name, dtype_of(self.cell.dtype))
        out = self.operands.out
        return np.ones(self.operands.shape, dtype) if out is None else np.ones_like(out, dtype)

    @property
    def beside(self) -> tuple[Array, Array]:
        """Scales and zero points that are given, with the axes of the operand."""
        p, shape = self.operands.qparams, self.shape_of_parameters
        assert p is not None
        return p.scale.reshape(shape), p.zero_point.astype(self.real).reshape(shape)

    def given(self, view: LoopView) -> list[Array]:
        """Return the same as loops take them."""
        return view.repeated(*(view.parameters(each, self.shape_of_parameters) for each in self.beside))


def plain_inputs(cell: Cell, o: Operands, first: Array | None = None) -> PlainInputs | None:
    """Return what a plain way to do the work of a cell is called with; None where blocks are ragged."""
    view = grouped(cell, o.first if first is None else first)
    real = np.result_type(o.first, np.float32) if o.qparams is None else o.qparams.scale.dtype
    return view and PlainInputs(cell, *view, o, real)
