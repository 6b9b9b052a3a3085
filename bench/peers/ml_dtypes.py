"""ml_dtypes: astype, which is how NumPy users get float8 and float4, after division by the scale."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from .. import data
from ..calls import Operands
from ..verify import EXACT
from . import Runner


def quantize_linear(o: Operands) -> Runner:
    x, qtype, scale = o.first, o.qtype, o.beside[0]
    largest = np.float32(ml_dtypes.finfo(qtype.storage).max)
    work = data.empty(x.shape, np.float32, aligned=True)

    def call() -> np.ndarray:
        np.divide(x, scale, out=work)
        np.clip(work, -largest, largest, out=work)
        return work.astype(qtype.storage)

    return Runner(call, lambda: {"codes": packed(call()) if qtype.packed else call()}, EXACT)


def packed(codes: np.ndarray) -> np.ndarray:
    """Two 4-bit codes per byte; only for the comparison, and not timed."""
    codes = codes.view(np.uint8)
    return codes[:, 0::2] | codes[:, 1::2] << 4
