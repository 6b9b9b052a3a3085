"""The same work as formulas of arrays, for every library that has NumPy's names: `xp` is torch or jax.numpy.

Parameters have the axes of the operand, blocks being an axis of their own, and length 1 where it shares them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .calls import Operands

Tensor = Any


class Rule(NamedTuple):
    """The axes that share parameters, whether zero points are the middle, the first and the last code."""

    axes: tuple[int, ...]
    symmetric: bool
    lowest: int = 0
    highest: int = 0


def rule_of(o: Operands) -> Rule:
    """Return the rule of a work; codes that are floats have a symmetric scheme."""
    symmetric = o.symmetric or bool(o.qtype.element)
    return Rule(o.shared, symmetric, *map(int, o.qtype.code_range(symmetric)))


def ranges_of(xp: Any, x: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    return xp.amin(x, axis=rule.axes, keepdims=True), xp.amax(x, axis=rule.axes, keepdims=True)


def parameters_of(xp: Any, x: Tensor, rule: Rule) -> tuple[Tensor, Tensor]:
    steps = rule.highest - rule.lowest
    if rule.symmetric:
        scale = xp.amax(xp.abs(x), axis=rule.axes, keepdims=True) / (steps / 2)
        return xp.where(scale == 0, 1, scale), xp.full_like(scale, (rule.lowest + rule.highest) / 2)
    lo, hi = ranges_of(xp, x, rule)
    lo, hi = xp.clip(lo, None, 0), xp.clip(hi, 0, None)
    scale = xp.where(hi == lo, 1, (hi - lo) / steps)
    return scale, xp.clip(xp.round(rule.lowest - lo / scale), rule.lowest, rule.highest)


def encode(xp: Any, x: Tensor, scale: Tensor, zero: Tensor, rule: Rule) -> Tensor:
    return xp.clip(xp.round(x / scale) + zero, rule.lowest, rule.highest)


def decode(xp: Any, codes: Tensor, scale: Tensor, zero: Tensor, rule: Rule) -> Tensor:
    return (codes - zero) * scale


def encode_and_decode(xp: Any, x: Tensor, scale: Tensor, zero: Tensor, rule: Rule) -> Tensor:
    return decode(xp, encode(xp, x, scale, zero, rule), scale, zero, rule)


# function -> what becomes of an element
ELEMENTS = {
    **dict.fromkeys(("quantize", "quantize_linear"), encode),
    **dict.fromkeys(("dequantize", "dequantize_linear"), decode),
    "fake_quantize": encode_and_decode,
}
