"""fastq itself: the public calls, into out= wherever they take it, on memory as NumPy hands it out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import fastq

from .. import data
from ..cases import Case
from ..data import scale, zero_point
from ..verify import EXACT, measures
from . import Runner

Runs = Callable[[Case], Runner]


def into(call: Callable[..., Any], result: str, out: Any) -> Runner:
    """A call that writes into out."""
    return Runner(partial(call, out=out), lambda: {result: out}, EXACT)


def fresh(call: Callable[..., Any], result: str) -> Runner:
    """The same without out=."""
    return Runner(call, lambda: {result: call()}, EXACT)


def quantized(call: Callable[[], Any]) -> Runner:
    """A call that returns a QuantizedArray."""
    return Runner(call, lambda: results(call()), EXACT)


def results(q: fastq.QuantizedArray) -> dict[str, Any]:
    """What is compared; the zero point of a symmetric scheme says nothing."""
    return {"codes": q.codes, "scale": q.scale, "zero_point": q.zero_point}


def quantize_linear(case: Case) -> Callable[..., Any]:
    code = case.work.code
    return partial(fastq.quantize_linear, data.x(case), *numbers(code), code)


def numbers(code: str) -> tuple[np.float32, Any]:
    return scale(code), zero_point(code)[()]


def dequantize_linear(case: Case) -> Callable[..., Any]:
    codes, p = data.codes(case), data.qparams(case)
    if case.work.symmetric:
        return partial(fastq.dequantize_linear, codes, p.scale, axis=p.axis, block_size=p.block_size)
    return partial(fastq.dequantize_linear, codes, *numbers(case.work.code))


def dequantize(case: Case) -> Callable[..., Any]:
    return partial(fastq.dequantize, fastq.QuantizedArray(data.packed(case), data.qparams(case), case.shape))


def quantize(case: Case) -> Callable[..., Any]:
    return partial(fastq.quantize, data.x(case), case.work.code, **data.granularity(case))


def fake_quantize(case: Case) -> Callable[..., Any]:
    return partial(fastq.fake_quantize, data.x(case), qparams=data.qparams(case))


def fake_quantize_range(case: Case) -> Callable[..., Any]:
    return partial(fastq.fake_quantize, data.x(case), case.work.code)


def minmax(case: Case) -> Runner:
    call = partial(fastq.minmax, data.x(case))
    return Runner(call, lambda: dict(zip(("lo", "hi"), call(), strict=True)), EXACT)


def compare(case: Case) -> Runner:
    x = data.x(case)
    q = fastq.quantize(x, case.work.code)
    call = partial(fastq.compare, x, q)
    return Runner(call, lambda: {"measures": measures(call(), case)}, EXACT)


def pack(case: Case) -> Runner:
    return fresh(partial(fastq.pack, data.codes(case), case.work.code), "codes")


def unpack(case: Case) -> Runner:
    return fresh(partial(fastq.unpack, data.packed(case), case.work.code, shape=case.shape), "bytes")


def gguf_quantize(case: Case) -> Callable[..., Any]:
    return partial(fastq.gguf.quantize, data.x(case), case.work.code)


def gguf_dequantize(case: Case) -> Callable[..., Any]:
    return partial(fastq.gguf.dequantize, data.blocks(case), case.work.code)


SIMPLE: dict[str, tuple[Callable[[Case], Callable[..., Any]], str]] = {
    "quantize_linear": (quantize_linear, "codes"),
    "dequantize_linear": (dequantize_linear, "values"),
    "dequantize": (dequantize, "values"),
    "fake_quantize": (fake_quantize, "values"),
    "fake_quantize_range": (fake_quantize_range, "values"),
    "gguf_quantize": (gguf_quantize, "codes"),
    "gguf_dequantize": (gguf_dequantize, "values"),
}


def simple_into(operation: str, case: Case) -> Runner:
    make, result = SIMPLE[operation]
    return into(make(case), result, data.out(case, result))


def simple_fresh(operation: str, case: Case) -> Runner:
    make, result = SIMPLE[operation]
    return fresh(make(case), result)


BUILDERS: dict[tuple[str, str], Runs] = {
    **{(operation, ""): partial(simple_into, operation) for operation in SIMPLE},
    **{(operation, "allocating"): partial(simple_fresh, operation) for operation in SIMPLE},
    ("quantize", ""): lambda case: quantized(partial(quantize(case), out=data.out(case, "codes"))),
    ("quantize", "allocating"): lambda case: quantized(quantize(case)),
    ("minmax", ""): minmax,
    ("compare", ""): compare,
    ("pack", ""): pack,
    ("unpack", ""): unpack,
}
