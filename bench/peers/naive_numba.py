"""Numba as one would write it first: @njit(parallel=True) around the obvious loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit, prange

from .. import data
from ..cases import Case
from ..data import SCALE, zero_point
from . import Runner
from .numpy import grouped


@njit(parallel=True)
def quantize_loop(x, scale, zero, lowest, highest, codes):
    for i in prange(x.size):
        codes[i] = min(max(round(x[i] / scale) + zero, lowest), highest)


@njit(parallel=True)
def dequantize_loop(codes, scale, zero, values):
    for i in prange(codes.size):
        values[i] = (codes[i] - zero) * scale


@njit(parallel=True)
def fake_quantize_loop(x, scale, zero, lowest, highest, values):
    for i in prange(x.size):
        code = min(max(round(x[i] / scale) + zero, lowest), highest)
        values[i] = (code - zero) * scale


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


def limits(case: Case) -> tuple[np.float32, np.int32, np.int32, np.int32]:
    info = np.iinfo(case.work.code)
    return np.float32(SCALE), np.int32(zero_point(case.work.code)), np.int32(info.min), np.int32(info.max)


def quantize_linear(case: Case) -> Runner:
    x, codes = data.x(case, aligned=True).ravel(), data.out(case, "codes", aligned=True).ravel()
    return Runner(lambda: quantize_loop(x, *limits(case), codes), lambda: {"codes": codes})


def dequantize_linear(case: Case) -> Runner:
    codes, values = data.codes(case, aligned=True).ravel(), data.out(case, "values", aligned=True).ravel()
    scale, zero, *_ = limits(case)
    return Runner(lambda: dequantize_loop(codes, scale, zero, values), lambda: {"values": values})


def fake_quantize(case: Case) -> Runner:
    x, values = data.x(case, aligned=True).ravel(), data.out(case, "values", aligned=True).ravel()
    return Runner(lambda: fake_quantize_loop(x, *limits(case), values), lambda: {"values": values})


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
    groups = data.x(case, aligned=True).reshape(grouped(case))
    codes = data.out(case, "codes", aligned=True).reshape(groups.shape)
    if case.work.granularity == "columns":
        groups, codes = groups.T, codes.T
    flat, flat_codes = (a.reshape(-1, a.shape[-1]) if a.ndim == 3 else a for a in (groups, codes))
    scales = np.empty(len(flat), np.float32)
    return Runner(lambda: symmetric_loop(flat, flat_codes, scales), lambda: results(case, codes, scales))


def results(case: Case, codes: np.ndarray, scales: np.ndarray) -> dict[str, np.ndarray]:
    return {"codes": codes.T if case.work.granularity == "columns" else codes, "scale": scales}


def pack(case: Case) -> Runner:
    codes, packed = data.codes(case, aligned=True).ravel(), data.out(case, "codes", aligned=True).ravel()
    return Runner(lambda: pack_loop(codes, packed), lambda: {"codes": packed})


def unpack(case: Case) -> Runner:
    packed, codes = data.packed(case, aligned=True).view(np.int8).ravel(), data.out(case, "bytes", aligned=True).ravel()
    return Runner(lambda: unpack_loop(packed, codes), lambda: {"bytes": codes})


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {
    ("minmax", ""): minmax,
    ("quantize_linear", ""): quantize_linear,
    ("dequantize_linear", ""): dequantize_linear,
    ("quantize", ""): quantize,
    ("fake_quantize", ""): fake_quantize,
    ("fake_quantize_range", ""): fake_quantize_range,
    ("pack", ""): pack,
    ("unpack", ""): unpack,
}
