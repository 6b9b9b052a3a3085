"""numexpr: one expression, evaluated block by block by its own threads."""

from __future__ import annotations

import numexpr
import numpy as np

from .. import data
from ..cases import Case
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


def dequantize(case: Case) -> Runner:
    """Two codes per byte: numexpr works with 32 bits and has no unsigned ones."""
    q = data.packed(case, aligned=True).view(np.int8)
    return run(case, ("(q << 28 >> 28) * scale", "(q >> 4) * scale"), "values", q=q)


def run(case: Case, expressions: str | tuple[str, ...], result: str, **arrays: np.ndarray) -> Runner:
    """Evaluate an expression, or several which give every second element in turn, without a zero point of 0."""
    numexpr.set_num_threads(own_threads())
    lowest, highest = data.limits(case)
    given = {"scale": data.scales_of(case), "zero": data.zero(case), "lowest": lowest, "highest": highest}
    operands = {name: data.grouped(array, case) for name, array in arrays.items()}
    operands |= {name: np.asarray(value, np.float32) for name, value in given.items()}
    out = data.out(case, result, aligned=True)
    groups = data.grouped(out, case)
    every = (expressions,) if isinstance(expressions, str) else expressions
    outs = [groups[..., k :: len(every)] for k in range(len(every))]
    every = every if data.zero(case) else [text.replace(" + zero", "").replace(" - zero", "") for text in every]

    def call() -> None:
        for expression, part in zip(every, outs, strict=True):
            numexpr.evaluate(expression, operands, out=part, casting="unsafe")

    return Runner(call, lambda: {result: out})
