"""Calls as text, in the notation of Python: names, numbers, texts, and calls of names and their methods with them.

A text has no more than these, so it can be data: it says which of the given functions is called with what.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.FloorDiv: operator.floordiv,
    ast.Mult: operator.mul,
}


def result_of(text: str, names: Mapping[str, Any]) -> Any:
    """Make the call that a text says, and return its result.

    Raises
    ------
    ValueError
        If the text has anything else than calls, and what they are made with.
    NameError
        If it has a name that is not among `names`.
    """
    return _value(ast.parse(text, mode="eval").body, names)


def _value(node: ast.expr | None, names: Mapping[str, Any]) -> Any:
    """Return what a part of a call stands for."""
    match node:
        case None:
            return None
        case ast.Constant():
            return node.value
        case ast.Name():
            try:
                return names[node.id]
            except KeyError:
                raise NameError(f"no name of calls: {node.id}") from None
        case ast.Attribute() if not node.attr.startswith("_"):
            return getattr(_value(node.value, names), node.attr)
        case ast.Call():
            args = [_value(arg, names) for arg in node.args]
            options = {keyword.arg: _value(keyword.value, names) for keyword in node.keywords if keyword.arg}
            return _value(node.func, names)(*args, **options)
        case ast.Tuple():
            return tuple(_value(item, names) for item in node.elts)
        case ast.Subscript():
            return _value(node.value, names)[_value(node.slice, names)]
        case ast.Slice():
            return slice(_value(node.lower, names), _value(node.upper, names), _value(node.step, names))
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, names)
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](_value(node.left, names), _value(node.right, names))
        case ast.BoolOp(op=ast.Or(), values=[first, second]):
            return _value(first, names) or _value(second, names)
    raise ValueError(f"no part of a call: {ast.unparse(node)}")
