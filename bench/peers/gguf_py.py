"""gguf-py: the NumPy code that defines the block formats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from gguf import GGMLQuantizationType, quants

from .. import data
from ..cases import Case
from ..verify import EXACT
from . import Runner

# what stands for a scheme of fastq: as many bits a code and elements a block
NEAREST = {"int4": "Q4_0", "mxfp4": "MXFP4"}
STEPS = 2.0


def quantize(case: Case) -> Runner:
    qtype = GGMLQuantizationType[NEAREST[case.work.code]]
    call = partial(quants.quantize, data.x(case, aligned=True), qtype)
    return Runner(call, lambda: {"values": quants.dequantize(call(), qtype)}, STEPS)


def gguf_quantize(case: Case) -> Runner:
    call = partial(quants.quantize, data.x(case, aligned=True), GGMLQuantizationType[case.work.code])
    return Runner(call, lambda: {"codes": call()}, EXACT)


def gguf_dequantize(case: Case) -> Runner:
    call = partial(quants.dequantize, data.blocks(case, aligned=True), GGMLQuantizationType[case.work.code])
    return Runner(call, lambda: {"values": np.asarray(call())}, EXACT)


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {
    ("quantize", ""): quantize,
    ("gguf_quantize", ""): gguf_quantize,
    ("gguf_dequantize", ""): gguf_dequantize,
}
