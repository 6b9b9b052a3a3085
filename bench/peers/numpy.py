"""NumPy, straightforwardly: a whole-array operation for each step, in place where there is an array to write to."""

from __future__ import annotations

import numpy as np

from .. import data
from ..cases import Case
from ..data import Array
from . import Runner

ROUNDED_ONCE = 1.5  # products of TensorFlow Lite are rounded twice: the next codes of 1.5 % of sums


def quantize_into(x: Array, scale: Array, zero: float, lowest: int, highest: int, work: Array, codes: Array) -> None:
    """Quantize by way of `work`, which has the dtype of the division."""
    np.divide(x, scale, out=work)
    np.rint(work, out=work)
    np.add(work, zero, out=work)
    np.clip(work, lowest, highest, out=work)
    np.copyto(codes, work, casting="unsafe")


def dequantize_into(codes: Array, scale: Array, zero: float, values: Array) -> None:
    centred = np.subtract(codes, np.float32(zero), out=values, dtype=np.float32) if zero else codes
    np.multiply(centred, scale, out=values)


def range_parameters(x: Array) -> tuple[np.float32, np.uint8]:
    """Choose uint8 parameters as DynamicQuantizeLinear does."""
    lo, hi = np.minimum(x.min(), np.float32(0)), np.maximum(x.max(), np.float32(0))
    scale = (hi - lo) / np.float32(255)
    return scale, np.uint8(np.clip(np.rint(-lo / scale), 0, 255))


def minmax(case: Case) -> Runner:
    x = data.x(case, aligned=True)

    def call() -> tuple[Array, Array]:
        return x.min(), x.max()

    return Runner(call, lambda: dict(zip(("lo", "hi"), call(), strict=True)))


def quantize_linear(case: Case) -> Runner:
    x, codes = data.x(case, aligned=True), data.out(case, "codes", aligned=True)
    work, scale = data.empty(x.shape, np.float32, aligned=True), data.scales_of(case)
    zero, limits = data.zero(case), data.limits(case)

    def call() -> None:
        quantize_into(x, scale, zero, *limits, work, codes)

    return Runner(call, lambda: {"codes": codes})


def requantize(case: Case) -> Runner:
    acc, codes = data.x(case, aligned=True), data.out(case, "codes", aligned=True)
    work = data.empty(acc.shape, np.float64, aligned=True)

    def call() -> None:
        np.multiply(acc, data.MULTIPLIER, out=work)
        np.rint(work, out=work)
        np.add(work, data.ZERO_POINT, out=work)
        np.clip(work, *data.limits(case), out=work)
        np.copyto(codes, work, casting="unsafe")

    return Runner(call, lambda: {"codes": codes}, ROUNDED_ONCE)


def dequantize_linear(case: Case) -> Runner:
    codes, values = (data.grouped(a, case) for a in (data.codes(case, aligned=True), values_out(case)))
    scale, zero = data.scales_of(case), data.zero(case)

    def call() -> None:
        dequantize_into(codes, scale, zero, values)

    return Runner(call, lambda: {"values": values})


def values_out(case: Case) -> Array:
    return data.out(case, "values", aligned=True)


def dequantize(case: Case) -> Runner:
    """Look up both elements of each byte, then multiply."""
    packed, values, scale = data.packed(case, aligned=True), values_out(case), data.scales_of(case)
    pairs, groups = values.reshape(*packed.shape, 2), data.grouped(values, case)
    bits = np.arange(256)
    table = data.elements(case.work.code)[np.stack([bits & 15, bits >> 4], axis=-1)]

    def call() -> None:
        np.take(table, packed, axis=0, out=pairs, mode="clip")
        np.multiply(groups, scale.astype(np.float32, copy=False), out=groups)

    return Runner(call, lambda: {"values": values})


def fake_quantize(case: Case) -> Runner:
    arrays = data.x(case, aligned=True), values_out(case), data.out(case, "codes", aligned=True)
    x, values, codes = (data.grouped(array, case) for array in arrays)
    scale, zero, limits = data.scales_of(case), data.zero(case), data.limits(case)

    def call() -> None:
        quantize_into(x, scale, zero, *limits, values, codes)
        dequantize_into(codes, scale, zero, values)

    return Runner(call, lambda: {"values": values})


def quantize(case: Case) -> Runner:
    return symmetric(case) if case.work.symmetric else by_range(case)


def by_range(case: Case, values: Array | None = None) -> Runner:
    x, codes = data.x(case, aligned=True), data.out(case, "codes", aligned=True)
    work = data.empty(x.shape, np.float32, aligned=True) if values is None else values

    def call() -> tuple[np.float32, np.uint8]:
        scale, zero = range_parameters(x)
        quantize_into(x, scale, np.float32(zero), 0, 255, work, codes)
        if values is not None:
            dequantize_into(codes, scale, np.float32(zero), values)
        return scale, zero

    made = {"codes": codes} if values is None else {"values": values}
    return Runner(call, lambda: dict(zip(("scale", "zero_point"), call(), strict=True)) | made)


def fake_quantize_range(case: Case) -> Runner:
    return by_range(case, values_out(case))


def symmetric(case: Case) -> Runner:
    arrays = data.x(case, aligned=True), data.out(case, "codes", aligned=True)
    groups, codes = (data.grouped(array, case) for array in arrays)
    work = data.empty(groups.shape, np.float32, aligned=True)
    reduced = 0 if case.work.granularity == "columns" else -1

    def call() -> Array:
        np.abs(groups, out=work)
        scale = work.max(reduced, keepdims=True) / np.float32(127)
        quantize_into(groups, scale, np.float32(0), -127, 127, work, codes)
        return scale

    return Runner(call, lambda: {"codes": codes, "scale": call()})


def compare(case: Case) -> Runner:
    x = data.x(case, aligned=True)
    scale, zero = range_parameters(x)
    codes = np.clip(np.rint(x / scale) + np.float32(zero), 0, 255).astype(np.uint8)
    last = [np.empty(0)]

    def call() -> None:
        last[0] = error_measures(x, codes, scale, np.float32(zero))

    return Runner(call, lambda: {"measures": last[0]})


def error_measures(x: Array, codes: Array, scale: np.float32, zero: np.float32) -> Array:
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


def pack(case: Case) -> Runner:
    codes, out = data.codes(case, aligned=True), data.out(case, "codes", aligned=True)
    low, high = codes[:, 0::2].view(np.uint8), codes[:, 1::2].view(np.uint8)

    def call() -> None:
        np.left_shift(high, 4, out=out)
        np.bitwise_or(out, low & 15, out=out)

    return Runner(call, lambda: {"codes": out})


def unpack(case: Case) -> Runner:
    packed, codes = data.packed(case, aligned=True).view(np.int8), data.out(case, "bytes", aligned=True)

    def call() -> None:
        np.right_shift(packed, 4, out=codes[:, 1::2])
        np.right_shift(packed << 4, 4, out=codes[:, 0::2])

    return Runner(call, lambda: {"bytes": codes})
