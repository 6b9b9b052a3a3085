"""numcodecs: BitRound, which rounds float32 in the memory that it is given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from numcodecs.bitround import BitRound

from .. import data
from ..calls import KEEPBITS
from ..cases import Case
from ..verify import EXACT
from . import Runner


def bitround(case: Case) -> Runner:
    call = partial(BitRound(KEEPBITS).encode, data.operands(case).first)
    return Runner(call, lambda: {"values": call().view("float32")}, EXACT)


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {("bitround", "BitRound"): bitround}
