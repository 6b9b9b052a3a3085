"""numexpr: one expression, evaluated block by block by its own threads."""

from __future__ import annotations

import numexpr
import numpy as np

from ..calls import Array, Operands
from . import Runner, own_threads

# round is C's rint: ties to even
CODE = "where(q < lowest, lowest, where(q > highest, highest, q))".replace("q", "(round(x / scale) + zero)")
# several which give every second element in turn: of two codes per byte, as numexpr has 32 bits and no unsigned ones
EXPRESSIONS = {
    "quantize_linear": (CODE,),
    "fake_quantize": (f"({CODE} - zero) * scale",),
    "dequantize_linear": ("(x - zero) * scale",),
    "dequantize": ("(x << 28 >> 28) * scale", "(x >> 4) * scale"),
}


def prepared(o: Operands) -> Runner:
    """Evaluate expressions, without a zero point of 0."""
    numexpr.set_num_threads(own_threads())
    expressions = EXPRESSIONS[o.function]
    out, first = o.result(), o.first.view(np.int8) if o.first.dtype == np.uint8 else o.first
    x, groups = (o.grouped(array) if o.kept else array.ravel() for array in (first, out))
    given = dict(zip(("scale", "zero", "lowest", "highest"), (*o.beside, *map(np.asarray, o.limits)), strict=True))
    operands: dict[str, Array] = {"x": x}
    operands |= {name: each if each.size > 1 else each.reshape(()) for name, each in given.items()}
    outs = [groups[..., k :: len(expressions)] for k in range(len(expressions))]
    if o.symmetric:
        expressions = tuple(text.replace(" + zero", "").replace(" - zero", "") for text in expressions)

    def call() -> None:
        for expression, part in zip(expressions, outs, strict=True):
            numexpr.evaluate(expression, operands, out=part, casting="unsafe")

    return Runner(call, lambda: {o.made: out})
