"""What only run time knows, while a function is emitted: its Numba type, and LLVM's name of it."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types

from fastq.engine.jit import scalars
from fastq.engine.jit.scalars import UntraceableError, cast, llvm_of


class RunTimeChoiceError(UntraceableError):
    """Raised where Python would have to choose by a value that only run time knows."""


class Value:
    """What only run time knows: its Numba type, and LLVM's value.

    Operators emit instructions. Attributes are those of the type, except for the fields of records.
    """

    __array_ufunc__ = None  # or NumPy's numbers would treat it as an array if they are the first operand

    def __init__(self, kind: types.Type, value: Any) -> None:
        self._kind = kind
        self._ir = value

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the type, or emit the reading of a field; Python calls this for names not found."""
        if name.startswith("__"):
            raise AttributeError(name)
        return function_being_emitted().attribute(self, name)

    def __getitem__(self, index: Any) -> Any:
        return function_being_emitted().element(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        function_being_emitted().set_element(self, index, value)

    def __abs__(self) -> Value:
        magnitude: Value = function_being_emitted().operate(operator.abs, (self,))
        return magnitude

    def __bool__(self) -> bool:
        """Refuse to choose by the value; the function is then emitted from its source."""
        raise RunTimeChoiceError("a value is known at run time only")

    def _python_value(self, *_: Any) -> Any:
        """Refuse what Python asks a number or a sequence for, such as ``int(value)``."""
        raise UntraceableError("a value is known at run time only")

    __iter__ = __len__ = __index__ = __int__ = __float__ = _python_value
    __hash__ = object.__hash__


def _operator(function: Callable[..., Any], *, reflected: bool = False) -> Any:
    """Return the method of an operator, which emits it; a reflected one has its operands in the other order."""

    def emit(*operands: Any) -> Any:
        """Emit the operator; NotImplemented for operands of other types, so that Python raises its usual error."""
        if not all(isinstance(operand, Value | int | float | np.generic) for operand in operands):
            return NotImplemented
        return function_being_emitted().operate(function, operands[::-1] if reflected else operands)

    return emit


for _name in ("neg", "pos", "invert", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Value, f"__{_name}__", _operator(getattr(operator, _name)))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift"):
    setattr(Value, f"__{_name.rstrip('_')}__", _operator(getattr(operator, _name)))
    setattr(Value, f"__r{_name.rstrip('_')}__", _operator(getattr(operator, _name), reflected=True))


# --- the function that is being emitted -------------------------------------------------------------------------------

_stack: list[Any] = []  # of `emission.Function`, each called by the one before it


@contextlib.contextmanager
def emitting(function: Any) -> Iterator[None]:
    """Make a function the one that is being emitted."""
    _stack.append(function)
    try:
        yield
    finally:
        _stack.pop()


def function_being_emitted() -> Any:
    """Return the function that is being emitted."""
    if not _stack:
        raise NotImplementedError("values exist in compiled code only")
    return _stack[-1]


def is_emitting() -> bool:
    """Return whether a function is being emitted."""
    return bool(_stack)


# --- types of items, which are values, constants, or tuples of items --------------------------------------------------


def has_values(item: Any) -> bool:
    """Return whether an item is, or has, what only run time knows."""
    return isinstance(item, Value) or (isinstance(item, tuple) and any(map(has_values, item)))


def is_number(item: Any) -> bool:
    """Return whether a constant may become a value."""
    return isinstance(item, int | float | np.generic)


def kind_of(item: Any, *, literal: bool = False) -> types.Type:
    """Return the Numba type of a value, of a constant, or of a tuple of them.

    With `literal` the type of an integer or a bool is that of this one number, for instructions that need a constant.
    """
    if isinstance(item, Value):
        return item._kind
    if isinstance(item, bool):
        return types.literal(item) if literal else types.boolean
    if isinstance(item, int):
        return types.literal(item) if literal else types.int64 if item < 1 << 63 else types.uint64
    if isinstance(item, float):
        return types.float64
    if item is None:
        return types.none
    if isinstance(item, types.Type):
        return types.NumberClass(item) if isinstance(item, types.Number) else types.TypeRef(item)
    if isinstance(item, tuple):
        kinds = tuple(kind_of(part, literal=literal) for part in item)
        return types.BaseTuple.from_types(kinds, type(item) if hasattr(item, "_fields") else None)
    if isinstance(item, str):
        return types.literal(item)
    if callable(item):
        raise UntraceableError(f"no value: {item}")
    return numba.typeof(item)


def llvm_value(builder: Any, item: Any, kind: types.Type) -> Any:
    """Return LLVM's value of an item, converted to a type: a value is cast, a constant becomes one of LLVM."""
    if isinstance(item, Value):
        if scalars.is_nothing(item._kind):
            return scalars.DUMMY
        return cast(builder, item._ir, item._kind, kind)
    if isinstance(kind, types.BaseTuple):
        parts = [llvm_value(builder, part, of) for part, of in zip(item, kind.types, strict=True)]
        return scalars.make_tuple(builder, kind, parts)
    if isinstance(kind, types.Number | types.Boolean | types.IntegerLiteral | types.BooleanLiteral):
        if not is_number(item):
            raise UntraceableError(f"no value: {item}")
        return ir.Constant(llvm_of(kind), scalars.python_value(item, kind))
    return scalars.DUMMY  # of a type, a text or None, which is nothing at run time


def item_of(builder: Any, kind: types.Type, value: Any) -> Any:
    """Return the item that stands for LLVM's value of a type: tuples are tuples of items, a literal is its constant."""
    if isinstance(kind, types.BaseTuple):
        fields = [item_of(builder, part, builder.extract_value(value, k)) for k, part in enumerate(kind.types)]
        return kind.instance_class(*fields) if isinstance(kind, types.BaseNamedTuple) else tuple(fields)
    if kind is types.none or kind is types.void:
        return None
    if isinstance(kind, types.Literal):
        return kind.literal_value
    if isinstance(kind, types.TypeRef | types.NumberClass):
        return kind.instance_type
    return Value(kind, value)


def leaves(item: Any) -> Iterator[Any]:
    """Yield the parts of an item that are no tuples."""
    if isinstance(item, tuple):
        for part in item:
            yield from leaves(part)
    else:
        yield item


def with_leaves(item: Any, parts: Iterator[Any]) -> Any:
    """Return an item of the same form with other leaves: the next ones of `parts`, in the order of `leaves`."""
    if isinstance(item, tuple):
        fields = [with_leaves(part, parts) for part in item]
        return type(item)(*fields) if hasattr(item, "_fields") else tuple(fields)
    return next(parts)
