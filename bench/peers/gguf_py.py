"""gguf-py: the NumPy code that defines the block formats."""

from __future__ import annotations

from functools import partial

import numpy as np
from gguf import GGMLQuantizationType, quants

from ..calls import Array, Operands
from ..verify import EXACT, SAME
from . import Runner

# what stands for a scheme of fastq: as many bits a code and elements a block
NEAREST = {"int8": "Q8_0", "int4": "Q4_0", "mxfp4": "MXFP4"}
STEPS = 2.0
# of 4 bits: what is added to a code; the first half of a block is in the low bits
ADDED = {"int4": 8, "mxfp4": 0}


def quantize(o: Operands) -> Runner:
    qtype = GGMLQuantizationType[NEAREST[o.code]]
    call = partial(quants.quantize, o.first, qtype)
    return Runner(call, lambda: {"values": quants.dequantize(call(), qtype)}, STEPS)


def same_blocks(o: Operands) -> Array:
    """Blocks with the codes and scales of a call."""
    assert o.qparams is not None
    codes, scale = o.first.view(np.uint8), o.qparams.scale
    if o.code in ADDED:
        codes = np.stack((codes & 15, codes >> 4), axis=-1)
    codes = codes.reshape(*scale.shape, -1)
    if o.code in ADDED:
        low, high = np.split((codes + np.uint8(ADDED[o.code])) & 15, 2, axis=-1)
        codes = low | high << 4
    stored = scale.astype(np.float16) if scale.dtype == np.float32 else scale
    return np.concatenate([stored[..., None].view(np.uint8), codes], axis=-1).reshape(len(codes), -1)


def dequantize(o: Operands) -> Runner:
    return decoder(NEAREST[o.code], same_blocks(o))


def decoder(qtype: str, blocks: Array) -> Runner:
    call = partial(quants.dequantize, blocks, GGMLQuantizationType[qtype])
    return Runner(call, lambda: {"values": np.asarray(call())}, exactness(qtype))


def exactness(qtype: str) -> float:
    """A zero of MXFP4 has no sign here."""
    return SAME if qtype == "MXFP4" else EXACT


def gguf_quantize(o: Operands) -> Runner:
    call = partial(quants.quantize, o.first, GGMLQuantizationType[o.code])
    return Runner(call, lambda: {"codes": call()}, EXACT)


def gguf_dequantize(o: Operands) -> Runner:
    return decoder(o.code, o.first)


dequantize_linear = dequantize
