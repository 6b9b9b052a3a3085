"""pi-quant: its context with threads of its own, on memory by address; codes are unsigned."""

from __future__ import annotations

from functools import partial

import numpy as np
import piquant
from piquant import DataType, ReduceOp, RoundMode

from .. import data
from ..calls import SCALE, ZERO_POINT, Operands
from . import Runner, own_threads

ZERO = ZERO_POINT + 128  # of unsigned codes


def quantize_linear(o: Operands) -> Runner:
    x, codes = o.first, o.result()
    where = x.ctypes.data, DataType.F32, codes.ctypes.data, DataType.UINT8
    run = piquant.Context(own_threads()).quantize_ptr
    call = partial(run, *where, x.size, SCALE, ZERO, RoundMode.NEAREST)
    return Runner(call, lambda: {"codes": (codes.view(np.uint8) ^ 128).view(np.int8)}, keep=(x, codes))


def dequantize_linear(o: Operands) -> Runner:
    values, codes = o.result(), data.empty(o.shape, np.uint8, aligned=True)
    np.bitwise_xor(o.first.view(np.uint8), np.uint8(128), out=codes)
    where = codes.ctypes.data, DataType.UINT8, values.ctypes.data, DataType.F32
    run = piquant.Context(own_threads()).dequantize_ptr
    call = partial(run, *where, codes.size, SCALE, ZERO, ReduceOp.SET)
    return Runner(call, lambda: {"values": values}, keep=(codes, values))
