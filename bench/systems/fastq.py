"""fastq itself: the public calls, into out= wherever they take it, on memory as NumPy hands it out.

FASTQ_BENCH_ALIGNED=1 gives it memory aligned to 64 bytes, which is what the peers get.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import works
from works import BLOCK, SCALE, ZERO_POINT, Array, Results, Runner

import fastq

ALIGNED = os.environ.get("FASTQ_BENCH_ALIGNED") == "1"


def flat(size: str) -> Array:
    return works.flat(size, aligned=ALIGNED)


def like(array: Array, dtype: Any) -> Array:
    return works.like(array, dtype, aligned=ALIGNED)


def parameters() -> tuple[np.float32, np.int8]:
    return np.float32(SCALE), np.int8(ZERO_POINT)


def given_qparams() -> Any:
    """Make QParams of exactly SCALE and ZERO_POINT, which no range gives to the last bit."""
    chosen = fastq.choose_qparams(np.array([-1, 1], np.float32), "int8")
    scale, zero_point = parameters()
    return replace(chosen, scale=np.array(scale), zero_point=np.array(zero_point))


def quantized(q: Any) -> Results:
    return {"codes": q.codes, "scale": q.scale, "zero_point": q.zero_point}


def quantize_linear(size: str) -> Runner:
    x = flat(size)
    codes = like(x, np.int8)
    return Runner(partial(fastq.quantize_linear, x, *parameters(), out=codes), lambda: {"codes": codes})


def dequantize_linear(size: str) -> Runner:
    codes = works.flat_codes(size, aligned=ALIGNED)
    y = like(codes, np.float32)
    return Runner(partial(fastq.dequantize_linear, codes, *parameters(), out=y), lambda: {"values": y})


def minmax(size: str) -> Runner:
    call = partial(fastq.minmax, flat(size))
    return Runner(call, lambda: dict(zip(("lo", "hi"), call(), strict=True)))


def quantize(size: str) -> Runner:
    x = flat(size)
    call = partial(fastq.quantize, x, "uint8", out=like(x, np.uint8))
    return Runner(call, lambda: quantized(call()))


def quantize_allocating(size: str) -> Runner:
    call = partial(fastq.quantize, flat(size), "uint8")
    return Runner(call, lambda: quantized(call()))


def quantize_strided(size: str) -> Runner:
    rows, columns = works.SHAPES[size]
    x = works.empty((rows, 2 * columns), np.float32)[:, ::2]
    x[...] = works.values(size)
    codes = works.empty(x.shape, np.int8)
    return Runner(partial(fastq.quantize_linear, x, *parameters(), out=codes), lambda: {"codes": codes.reshape(-1)})


def fake_quantize(size: str) -> Runner:
    x = flat(size)
    y = like(x, np.float32)
    return Runner(partial(fastq.fake_quantize, x, qparams=given_qparams(), out=y), lambda: {"values": y})


def fake_quantize_range(size: str) -> Runner:
    x = flat(size)
    y = like(x, np.float32)
    return Runner(partial(fastq.fake_quantize, x, "uint8", out=y), lambda: {"values": y})


def symmetric(axis: int, block_size: int, size: str) -> Runner:
    x = flat(size).reshape(works.SHAPES[size])
    options = {"axis": axis, "block_size": block_size, "symmetric": True, "out": like(x, np.int8)}
    call = partial(fastq.quantize, x, "int8", **options)
    return Runner(call, lambda: without_zero_point(call()))


def without_zero_point(q: Any) -> Results:
    return {"codes": q.codes, "scale": q.scale}


def compare(size: str) -> Runner:
    x = flat(size)
    call = partial(fastq.compare, x, fastq.quantize(x, "uint8"))
    return Runner(call, lambda: {"measures": measures(call())})


def measures(c: Any) -> Array:
    absolute = [c.mse, c.sqnr_db, c.max_abs_error, c.mean_abs_error]
    return np.array([*absolute, c.max_relative_error, c.mean_relative_error, c.clipped])


BUILDERS: dict[tuple[str, str], Callable[[str], Runner]] = {
    ("quantize_linear", ""): quantize_linear,
    ("quantize_linear", "strided"): quantize_strided,
    ("dequantize_linear", ""): dequantize_linear,
    ("minmax", ""): minmax,
    ("quantize", ""): quantize,
    ("quantize", "allocating"): quantize_allocating,
    ("fake_quantize", ""): fake_quantize,
    ("fake_quantize_range", ""): fake_quantize_range,
    ("rows", ""): partial(symmetric, 0, 0),
    ("columns", ""): partial(symmetric, -1, 0),
    ("blocks", ""): partial(symmetric, -1, BLOCK),
    ("compare", ""): compare,
}
