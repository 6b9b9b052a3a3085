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

Call = Callable[..., Any]


def numbers(code: str) -> tuple[np.float32, Any]:
    return scale(code), zero_point(code)[()]


def quantize_linear(case: Case) -> Call:
    return partial(fastq.quantize_linear, data.x(case), *numbers(case.work.code), case.work.code)


def dequantize_linear(case: Case) -> Call:
    codes, p = data.codes(case), data.qparams(case)
    if case.work.symmetric:
        return partial(fastq.dequantize_linear, codes, p.scale, axis=p.axis, block_size=p.block_size)
    return partial(fastq.dequantize_linear, codes, *numbers(case.work.code))


def dequantize(case: Case) -> Call:
    return partial(fastq.dequantize, fastq.QuantizedArray(data.packed(case), data.qparams(case), case.shape))


def requantize(case: Case) -> Call:
    return partial(fastq.requantize, data.x(case), data.MULTIPLIER, data.ZERO_POINT, case.work.code)


def compare(case: Case) -> Call:
    x = data.x(case)
    return partial(fastq.compare, x, fastq.quantize(x, case.work.code))


# operation -> what makes its call, without out=, and the name that an array it returns has in verify.py
CALLS: dict[str, tuple[Callable[[Case], Call], str]] = {
    "quantize_linear": (quantize_linear, "codes"),
    "dequantize_linear": (dequantize_linear, "values"),
    "dequantize": (dequantize, "values"),
    "quantize": (lambda case: partial(fastq.quantize, data.x(case), case.work.code, **data.granularity(case)), "codes"),
    "fake_quantize": (lambda case: partial(fastq.fake_quantize, data.x(case), qparams=data.qparams(case)), "values"),
    "fake_quantize_range": (lambda case: partial(fastq.fake_quantize, data.x(case), case.work.code), "values"),
    "minmax": (lambda case: partial(fastq.minmax, data.x(case)), ""),
    "requantize": (requantize, "codes"),
    "compare": (compare, ""),
    "pack": (lambda case: partial(fastq.pack, data.codes(case), case.work.code), "codes"),
    "unpack": (lambda case: partial(fastq.unpack, data.packed(case), case.work.code, shape=case.shape), "bytes"),
    "bitround": (lambda case: partial(fastq.bitround, data.x(case), keepbits=data.KEEPBITS), "values"),
    "gguf_quantize": (lambda case: partial(fastq.gguf.quantize, data.x(case), case.work.code), "codes"),
    "gguf_dequantize": (lambda case: partial(fastq.gguf.dequantize, data.blocks(case), case.work.code), "values"),
}
WITHOUT_OUT = ("minmax", "compare", "pack", "unpack")


def results(name: str, result: Any, case: Case) -> dict[str, Any]:
    """What is compared; the zero point of a symmetric scheme says nothing."""
    if isinstance(result, fastq.QuantizedArray):
        return {"codes": result.codes, "scale": result.scale, "zero_point": result.zero_point}
    if isinstance(result, tuple):
        return dict(zip(("lo", "hi"), result, strict=True))
    return {name: result} if name else {"measures": measures(result, case)}


def runner(operation: str, allocates: bool, case: Case) -> Runner:
    """A call into out=, or one that returns memory of its own."""
    make, name = CALLS[operation]
    call = make(case) if allocates else partial(make(case), out=data.out(case, name))
    return Runner(call, lambda: results(name, call(), case), EXACT)


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {
    (operation, variant): partial(runner, operation, bool(variant) or operation in WITHOUT_OUT)
    for operation in CALLS
    for variant in ("", "allocating")
}
