"""numexpr: one expression, evaluated block by block by its own threads."""

from __future__ import annotations

from collections.abc import Callable

import numexpr
import numpy as np

from .. import data
from ..cases import Case
from ..data import SCALE, zero_point
from . import Runner, own_threads

CODE = "where(q < lowest, lowest, where(q > highest, highest, q))"
ROUNDED = "round(x / scale) + zero"  # round is C's rint: ties to even


def quantize_linear(case: Case) -> Runner:
    return run(case, CODE.replace("q", f"({ROUNDED})"), "codes", x=data.x(case, aligned=True))


def fake_quantize(case: Case) -> Runner:
    code = CODE.replace("q", f"({ROUNDED})")
    return run(case, f"({code} - zero) * scale", "values", x=data.x(case, aligned=True))


def dequantize_linear(case: Case) -> Runner:
    return run(case, "(q - zero) * scale", "values", q=data.codes(case, aligned=True))


def run(case: Case, expression: str, result: str, **arrays: np.ndarray) -> Runner:
    numexpr.set_num_threads(own_threads())
    limits = np.iinfo(case.work.code)
    numbers = {"scale": SCALE, "zero": zero_point(case.work.code), "lowest": limits.min, "highest": limits.max}
    scalars = {name: np.float32(value) for name, value in numbers.items() if name in expression}
    out = data.out(case, result, aligned=True)

    def call() -> None:
        numexpr.evaluate(expression, arrays | scalars, out=out, casting="unsafe")

    return Runner(call, lambda: {result: out})


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {
    ("quantize_linear", ""): quantize_linear,
    ("dequantize_linear", ""): dequantize_linear,
    ("fake_quantize", ""): fake_quantize,
}
