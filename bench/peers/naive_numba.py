"""Numba as one would write it first: @njit(parallel=True) around the obvious loops."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import njit, prange

from .. import data
from ..cases import Case
from ..data import Array
from . import Runner

E2M1 = data.elements("mxfp4")


@njit
def code_of(x, scale, zero, lowest, highest):
    return min(max(round(x / scale) + zero, lowest), highest)


@njit
def value_of(code, scale, zero):
    return (code - zero) * scale


@njit(parallel=True)
def quantize_loop(x, scale, zero, lowest, highest, codes):
    for i in prange(x.size):
        codes[i] = code_of(x[i], scale, zero, lowest, highest)


@njit(parallel=True)
def dequantize_loop(codes, scale, zero, values):
    for i in prange(codes.size):
        values[i] = value_of(codes[i], scale, zero)


@njit(parallel=True)
def dequantize_groups_loop(codes, scales, zero, values):
    for group in prange(codes.shape[0]):
        for i in range(codes.shape[1]):
            values[group, i] = value_of(codes[group, i], scales[group], zero)


@njit(parallel=True)
def dequantize_columns_loop(codes, scales, zero, values):
    for row in prange(codes.shape[0]):
        for column in range(codes.shape[1]):
            values[row, column] = value_of(codes[row, column], scales[column], zero)


@njit(parallel=True)
def fake_quantize_loop(x, scale, zero, lowest, highest, values):
    for i in prange(x.size):
        values[i] = value_of(code_of(x[i], scale, zero, lowest, highest), scale, zero)


@njit(parallel=True)
def fake_quantize_groups_loop(x, scales, zero, lowest, highest, values):
    for group in prange(x.shape[0]):
        for i in range(x.shape[1]):
            code = code_of(x[group, i], scales[group], zero, lowest, highest)
            values[group, i] = value_of(code, scales[group], zero)


ELEMENTS = {"int4": njit(lambda bits: (bits ^ 8) - 8), "mxfp4": njit(lambda bits: E2M1[bits])}


@cache
def dequantize_packed_loop(code: str) -> Any:
    element = ELEMENTS[code]

    @njit(parallel=True)
    def loop(packed, scales, values):
        for block in prange(packed.shape[0]):
            for i in range(packed.shape[1]):
                values[block, 2 * i] = element(np.int32(packed[block, i] & 15)) * scales[block]
                values[block, 2 * i + 1] = element(np.int32(packed[block, i] >> 4)) * scales[block]

    return loop


@njit(parallel=True)
def minmax_loop(x):
    lo = hi = x[0]
    for i in prange(x.size):
        lo = min(lo, x[i])
        hi = max(hi, x[i])
    return lo, hi


@njit
def range_parameters(x):
    lo, hi = minmax_loop(x)
    lo, hi = min(lo, np.float32(0)), max(hi, np.float32(0))
    scale = (hi - lo) / np.float32(255)
    return scale, np.int32(min(max(round(-lo / scale), 0), 255))


@njit(parallel=True)
def symmetric_loop(groups, codes, scales):
    for group in prange(groups.shape[0]):
        most = np.float32(0)
        for i in range(groups.shape[1]):
            most = max(most, abs(groups[group, i]))
        scale = most / np.float32(127)
        scales[group] = scale
        for i in range(groups.shape[1]):
            codes[group, i] = min(max(round(groups[group, i] / scale), -127), 127)


@njit(parallel=True)
def pack_loop(codes, packed):
    for i in prange(packed.size):
        packed[i] = (codes[2 * i] & 15) | (codes[2 * i + 1] << 4)


@njit(parallel=True)
def unpack_loop(packed, codes):
    for i in prange(packed.size):
        codes[2 * i] = np.int8(packed[i] << 4) >> 4
        codes[2 * i + 1] = packed[i] >> 4


def given(case: Case) -> tuple[Any, np.int32, np.int32, np.int32]:
    """The scale or the scales, the zero point, the lowest and the highest code."""
    scale = data.qparams(case, aligned=True).scale
    return scale.ravel() if scale.ndim else scale[()], *map(np.int32, (data.zero(case), *data.limits(case)))


def groups(array: Array, case: Case) -> Array:
    """A view with one axis, or with a row for each row or block."""
    array = data.grouped(array, case)
    return array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array


def quantize_linear(case: Case) -> Runner:
    x, codes = data.x(case, aligned=True).ravel(), data.out(case, "codes", aligned=True).ravel()
    numbers = given(case)
    return Runner(lambda: quantize_loop(x, *numbers, codes), lambda: {"codes": codes})


LOOPS = {
    "dequantize_linear": {
        "tensor": dequantize_loop,
        "rows": dequantize_groups_loop,
        "columns": dequantize_columns_loop,
        "blocks32": dequantize_groups_loop,
    },
    "fake_quantize": {"tensor": fake_quantize_loop, "blocks32": fake_quantize_groups_loop},
}


def dequantize_linear(case: Case) -> Runner:
    codes, values = (groups(a, case) for a in (data.codes(case, aligned=True), data.out(case, "values", aligned=True)))
    loop, (scale, zero, *_) = LOOPS["dequantize_linear"][case.work.granularity], given(case)
    return Runner(lambda: loop(codes, scale, zero, values), lambda: {"values": values})


def dequantize(case: Case) -> Runner:
    packed, values = (
        groups(a, case) for a in (data.packed(case, aligned=True), data.out(case, "values", aligned=True))
    )
    loop, scales = dequantize_packed_loop(case.work.code), data.qparams(case, aligned=True).scale.ravel()
    return Runner(lambda: loop(packed, scales.astype(np.float32, copy=False), values), lambda: {"values": values})


def fake_quantize(case: Case) -> Runner:
    x, values = (groups(a, case) for a in (data.x(case, aligned=True), data.out(case, "values", aligned=True)))
    loop, numbers = LOOPS["fake_quantize"][case.work.granularity], given(case)
    return Runner(lambda: loop(x, *numbers, values), lambda: {"values": values})


def minmax(case: Case) -> Runner:
    x = data.x(case, aligned=True).ravel()
    return Runner(lambda: minmax_loop(x), lambda: dict(zip(("lo", "hi"), minmax_loop(x), strict=True)))


def quantize(case: Case) -> Runner:
    return symmetric(case) if case.work.symmetric else by_range(case)


def by_range(case: Case) -> Runner:
    x, codes = data.x(case, aligned=True).ravel(), data.out(case, "codes", aligned=True).ravel()

    def call() -> tuple[np.float32, np.int32]:
        scale, zero = range_parameters(x)
        quantize_loop(x, scale, zero, np.int32(0), np.int32(255), codes)
        return scale, zero

    return Runner(call, lambda: {"codes": codes} | dict(zip(("scale", "zero_point"), call(), strict=True)))


def fake_quantize_range(case: Case) -> Runner:
    x, values = data.x(case, aligned=True).ravel(), data.out(case, "values", aligned=True).ravel()

    def call() -> None:
        scale, zero = range_parameters(x)
        fake_quantize_loop(x, scale, zero, np.int32(0), np.int32(255), values)

    return Runner(call, lambda: {"values": values})


def symmetric(case: Case) -> Runner:
    x, codes = (groups(a, case) for a in (data.x(case, aligned=True), data.out(case, "codes", aligned=True)))
    if case.work.granularity == "columns":
        x, codes = x.T, codes.T
    scales = np.empty(len(x), np.float32)
    return Runner(lambda: symmetric_loop(x, codes, scales), lambda: results(case, codes, scales))


def results(case: Case, codes: np.ndarray, scales: np.ndarray) -> dict[str, np.ndarray]:
    return {"codes": codes.T if case.work.granularity == "columns" else codes, "scale": scales}


def pack(case: Case) -> Runner:
    codes, packed = data.codes(case, aligned=True).ravel(), data.out(case, "codes", aligned=True).ravel()
    return Runner(lambda: pack_loop(codes, packed), lambda: {"codes": packed})


def unpack(case: Case) -> Runner:
    packed, codes = data.packed(case, aligned=True).view(np.int8).ravel(), data.out(case, "bytes", aligned=True).ravel()
    return Runner(lambda: unpack_loop(packed, codes), lambda: {"bytes": codes})
