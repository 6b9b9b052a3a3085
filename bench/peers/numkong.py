"""NumKong: minmax, and astype to float8 after division by the scale; one thread, as it has no others."""

from __future__ import annotations

import ml_dtypes
import numkong
import numpy as np

from .. import data
from ..calls import Array, Operands
from ..verify import EXACT
from . import Runner

_NAMES = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def minmax(o: Operands) -> Runner:
    x = o.first.reshape(-1)

    def results() -> dict[str, np.float32]:
        low, _, high, _ = numkong.minmax(x)
        return {"lo": np.float32(low), "hi": np.float32(high)}

    return Runner(lambda: numkong.minmax(x), results)


def quantize_linear(o: Operands) -> Runner:
    x, name, qtype, scale = o.first, _NAMES[o.code], o.qtype, o.beside[0]
    largest = np.float32(ml_dtypes.finfo(qtype.storage).max)
    work = data.empty(x.shape, np.float32, aligned=True)

    def call() -> numkong.Tensor:
        np.divide(x, scale, out=work)
        np.clip(work, -largest, largest, out=work)
        return numkong.astype(work, name)

    def results() -> dict[str, Array]:
        return {"codes": np.frombuffer(memoryview(call()).cast("B"), qtype.storage)}

    return Runner(call, results, EXACT)
