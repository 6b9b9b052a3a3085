"""NumPy, straightforwardly: a whole-array operation for each step, in place where there is an array to write to."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from .. import data
from ..calls import Array, Operands
from . import Runner

ROUNDED_ONCE = 1.5  # products of TensorFlow Lite are rounded twice: the next codes of 1.5 % of sums


def encode_into(work: Array, zero: Any, limits: tuple[Any, Any], codes: Array) -> None:
    """Make codes of quotients, which are in `work`, and change them there."""
    np.rint(work, out=work)
    if zero is not None:
        np.add(work, zero, out=work)
    np.clip(work, *limits, out=work)
    np.copyto(codes, work, casting="unsafe")


def dequantize_into(codes: Array, scale: Array, zero: Any, values: Array) -> None:
    centred = codes if zero is None else np.subtract(codes, zero, out=values, dtype=np.float32)
    np.multiply(centred, scale, out=values)


def of_range(o: Operands, x: Array, work: Array) -> tuple[Any, Any]:
    """A scale and a zero point that is not 0, of the range as DynamicQuantizeLinear takes them."""
    if o.symmetric:
        np.abs(x, out=work)
        return work.max(axis=o.shared, keepdims=True) / np.float32(127), None
    lo, hi = np.minimum(x.min(), np.float32(0)), np.maximum(x.max(), np.float32(0))
    scale = (hi - lo) / np.float32(255)
    return scale, np.clip(np.rint(-lo / scale), 0, 255)


def prepared(o: Operands) -> Runner:
    """Quantize, dequantize, or both."""
    encodes, decodes = not o.function.startswith("dequantize"), o.made == "values"
    x, out = o.grouped(o.first), o.result()
    result, memory = o.grouped(out), functools.partial(data.empty, x.shape, aligned=True)
    work = result if decodes else memory(np.float32)
    codes = (memory(o.qtype.storage) if decodes else result) if encodes else x
    limits, given = o.limits, o.beside if o.qparams is not None else None
    if given and o.symmetric:
        given = given[0], None

    def call() -> None:
        scale, zero = given or of_range(o, x, work)
        if encodes:
            np.divide(x, scale, out=work)
            encode_into(work, zero, limits, codes)
        if decodes:
            dequantize_into(codes, scale, zero, result)

    return Runner(call, lambda: {o.made: out})


def minmax(o: Operands) -> Runner:
    def call() -> tuple[Any, Any]:
        return o.first.min(), o.first.max()

    return Runner(call, lambda: dict(zip(("lo", "hi"), call(), strict=True)))


def requantize(o: Operands) -> Runner:
    acc, codes, work = o.first, o.result(), data.empty(o.shape, np.float64, aligned=True)

    def call() -> None:
        np.multiply(acc, data.MULTIPLIER, out=work)
        encode_into(work, data.ZERO_POINT, o.limits, codes)

    return Runner(call, lambda: {"codes": codes}, ROUNDED_ONCE)


def dequantize(o: Operands) -> Runner:
    """Look up both elements of each byte, then multiply."""
    packed, values, scale = o.first, o.result(), o.beside[0]
    pairs, groups = values.reshape(*packed.shape, 2), o.grouped(values)
    bits = np.arange(256)
    table = data.elements(o.code)[np.stack([bits & 15, bits >> 4], axis=-1)]

    def call() -> None:
        np.take(table, packed, axis=0, out=pairs, mode="clip")
        np.multiply(groups, scale.astype(np.float32, copy=False), out=groups)

    return Runner(call, lambda: {"values": values})


def compare(o: Operands) -> Runner:
    last, (scale, zero), codes = [np.empty(0)], o.beside, o.approximation
    assert codes is not None

    def call() -> None:
        last[0] = error_measures(o.first, codes, scale, zero)

    return Runner(call, lambda: {"measures": last[0]})


def error_measures(x: Array, codes: Array, scale: Array, zero: Array) -> Array:
    """Measure the straightforward way, temporaries and all."""
    wide = x.astype(np.float64)
    error = np.abs(wide - (codes.astype(np.float32) - zero) * scale)
    mse = np.mean(error**2)
    sqnr = 10 * np.log10(np.mean(wide**2) / mse)
    nonzero = x != 0
    relative = error[nonzero] / np.abs(wide[nonzero])
    unclipped = np.rint(x / scale) + zero
    clipped = np.count_nonzero((unclipped < 0) | (unclipped > 255))
    return np.array([mse, sqnr, error.max(), error.mean(), relative.max(), relative.mean(), clipped / x.size])


def pack(o: Operands) -> Runner:
    out, low, high = o.result(), o.first[:, 0::2].view(np.uint8), o.first[:, 1::2].view(np.uint8)

    def call() -> None:
        np.left_shift(high, 4, out=out)
        np.bitwise_or(out, low & 15, out=out)

    return Runner(call, lambda: {"codes": out})


def unpack(o: Operands) -> Runner:
    packed, codes = o.first.view(np.int8), o.result()

    def call() -> None:
        np.right_shift(packed, 4, out=codes[:, 1::2])
        np.right_shift(packed << 4, 4, out=codes[:, 0::2])

    return Runner(call, lambda: {"bytes": codes})
