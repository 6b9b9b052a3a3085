"""Numba as one would write it first: @njit(parallel=True) around the obvious loops, those of the scan (loops.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
from numba import njit, prange

from .. import data
from ..cases import Case
from ..data import Array
from ..scan.loops import GROUPS_WITH_GIVEN, GROUPS_WITH_OWN, decode, encode, encode_and_decode, pack_pairs, unpack_pairs
from . import Runner

E2M1 = data.elements("mxfp4")


@njit(parallel=True)
def decode_columns(codes, scales, zeros, lowest, highest, values):
    for row in prange(codes.shape[0]):
        for column in range(codes.shape[1]):
            values[row, column] = decode(codes[row, column], scales[column], zeros[column], lowest, highest)


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
    return scale, np.float32(min(max(np.rint(-lo / scale), 0), 255))


def groups(array: Array, case: Case) -> Array:
    """A view with a row for each row or block."""
    return array.reshape(case.shape) if case.work.granularity == "tensor" else _rows(data.grouped(array, case))


def _rows(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def both(source: str, result: str, case: Case) -> tuple[Array, Array]:
    """The groups of an operand and of the memory for a result."""
    arrays = getattr(data, source)(case, aligned=True), data.out(case, result, aligned=True)
    return groups(arrays[0], case), groups(arrays[1], case)


def elementwise(element: Any, source: str, result: str, case: Case) -> Runner:
    """Each element by the scale and the zero point that are given, one for each group."""
    x, out = both(source, result, case)
    columns = case.work.granularity == "columns"
    count = x.shape[1] if columns else len(x)
    scales = np.broadcast_to(data.qparams(case, aligned=True).scale.ravel(), count).copy()
    numbers = scales, np.full(count, data.zero(case), np.float32), *map(np.float32, data.limits(case))
    loop = decode_columns if columns else GROUPS_WITH_GIVEN[element]
    return Runner(lambda: loop(x, *numbers, out), lambda: {result: out})


def dequantize(case: Case) -> Runner:
    packed, values = both("packed", "values", case)
    loop, scales = dequantize_packed_loop(case.work.code), data.qparams(case, aligned=True).scale.ravel()
    return Runner(lambda: loop(packed, scales.astype(np.float32, copy=False), values), lambda: {"values": values})


def minmax(case: Case) -> Runner:
    x = data.x(case, aligned=True).ravel()
    return Runner(lambda: minmax_loop(x), lambda: dict(zip(("lo", "hi"), minmax_loop(x), strict=True)))


def quantize(case: Case) -> Runner:
    return symmetric(case) if case.work.symmetric else by_range(encode, "codes", case)


def by_range(element: Any, result: str, case: Case) -> Runner:
    x, out = both("x", result, case)
    loop, numbers, ends = GROUPS_WITH_GIVEN[element], np.empty((2, len(x)), np.float32), np.float32([0, 255])

    def call() -> Array:
        numbers[0], numbers[1] = range_parameters(x.ravel())
        loop(x, *numbers, *ends, out)
        return numbers[:, 0]

    if result == "values":
        return Runner(call, lambda: {"values": out})
    return Runner(call, lambda: {"codes": out} | dict(zip(("scale", "zero_point"), call(), strict=True)))


def symmetric(case: Case) -> Runner:
    x, codes = made = both("x", "codes", case)
    if case.work.granularity == "columns":
        x, codes = x.T, codes.T
    loop, (scales, zeros) = GROUPS_WITH_OWN[encode], np.empty((2, len(x)), np.float32)
    rule = np.float32(0), np.float32(0), True, *map(np.float32, data.limits(case))
    return Runner(lambda: loop(x, *rule, scales, zeros, codes), lambda: {"codes": made[1], "scale": scales})


def pack(case: Case) -> Runner:
    codes, packed = data.codes(case, aligned=True)[:, None].view(np.uint8), data.out(case, "codes", aligned=True)
    return Runner(lambda: pack_pairs(codes, packed[:, None]), lambda: {"codes": packed})


def unpack(case: Case) -> Runner:
    packed, codes = data.packed(case, aligned=True)[:, None].view(np.int8), data.out(case, "bytes", aligned=True)
    return Runner(lambda: unpack_pairs(packed, 8, codes[:, None]), lambda: {"bytes": codes})


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {
    ("quantize_linear", ""): partial(elementwise, encode, "x", "codes"),
    ("dequantize_linear", ""): partial(elementwise, decode, "codes", "values"),
    ("fake_quantize", ""): partial(elementwise, encode_and_decode, "x", "values"),
    ("fake_quantize_range", ""): partial(by_range, encode_and_decode, "values"),
}
