"""numcodecs: BitRound, which rounds float32 in the memory that it is given."""

from __future__ import annotations

from functools import partial

from numcodecs.bitround import BitRound

from ..calls import KEEPBITS, Operands
from ..verify import EXACT
from . import Runner


def bitround(o: Operands) -> Runner:
    call = partial(BitRound(KEEPBITS).encode, o.first)
    return Runner(call, lambda: {"values": call().view("float32")}, EXACT)
