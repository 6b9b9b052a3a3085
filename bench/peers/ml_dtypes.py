"""ml_dtypes: astype, which is how NumPy users get float8 and float4, after division by the scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from fastq import reference

from .. import data
from ..calls import Array, Operands
from ..verify import EXACT
from . import Runner


def divided(o: Operands, cast: Callable[[Array], Any]) -> Callable[[], Any]:
    """Cast the quotients within the range of the codes: casts do not saturate."""
    x, scale, largest = o.first, o.beside[0], np.float32(ml_dtypes.finfo(o.qtype.storage).max)
    work = data.empty(x.shape, np.float32, aligned=True)

    def call() -> Any:
        np.divide(x, scale, out=work)
        np.clip(work, -largest, largest, out=work)
        return cast(work)

    return call


def quantize_linear(o: Operands) -> Runner:
    call, is_packed = divided(o, lambda work: work.astype(o.qtype.storage)), o.qtype.packed
    return Runner(call, lambda: {"codes": reference.pack(call(), o.code) if is_packed else call()}, EXACT)
