"""Memory layouts of an operand of three axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..calls import Array


class Layout(NamedTuple):
    """What lays an array out so.

    How many bytes are `touched` for each byte of the array, and whether its elements are `dense`: all of a block of
    memory and as they are, in another order only. Dense layouts are compared with C order, the others with a copy.
    """

    lay: Callable[[Array], Array]
    touched: float = 1.0
    dense: bool = False


def _ordered(*order: int) -> Layout:
    """Lay out with the axes in this order in memory, the slowest first."""
    back = tuple(np.argsort(order))
    return Layout(lambda x: np.ascontiguousarray(x.transpose(order)).transpose(back), dense=True)


def _gaps(x: Array) -> Array:
    memory = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    memory[..., ::2] = x
    return memory[..., ::2]


def _unaligned(x: Array) -> Array:
    memory = np.zeros(x.nbytes + 1, np.uint8)
    view = memory[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


LAYOUTS = {
    "c": Layout(lambda x: x),
    "fortran": _ordered(2, 1, 0),
    "transposed": _ordered(0, 2, 1),
    "permuted": _ordered(1, 2, 0),
    "reversed": Layout(lambda x: np.flip(np.ascontiguousarray(np.flip(x))), dense=True),
    "gaps": Layout(_gaps, 2.0),
    # counts as if it were there: its elements are computed all the same
    "broadcast": Layout(lambda x: np.broadcast_to(x[:1].copy(), x.shape)),
    "swapped": Layout(lambda x: x.astype(x.dtype.newbyteorder("S"))),
    "unaligned": Layout(_unaligned),
}
