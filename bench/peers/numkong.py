"""NumKong: minmax, and astype to float8 after division by the scale; one thread, as it has no others."""

from __future__ import annotations

from functools import partial

import numkong
import numpy as np

from ..calls import Operands
from ..verify import EXACT
from . import Runner
from .ml_dtypes import divided

_NAMES = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def minmax(o: Operands) -> Runner:
    call = partial(numkong.minmax, o.first.reshape(-1))  # with the places of both
    return Runner(call, lambda: dict(zip(("lo", "hi"), map(np.float32, call()[::2]), strict=True)))


def quantize_linear(o: Operands) -> Runner:
    call = divided(o, lambda work: numkong.astype(work, _NAMES[o.code]))
    return Runner(call, lambda: {"codes": np.frombuffer(memoryview(call()).cast("B"), o.qtype.storage)}, EXACT)
