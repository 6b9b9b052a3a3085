"""Trace functions that have no branch at run time: Python runs them on types, and their callers emit what they call.

Numba takes 10 ms for a function of one line: it translates bytecode, infers types and makes a module of LLVM.
Most functions of a kernel have no loop, so Python itself can run them, with a `Value` in place of each argument. Each
call and operator is typed and noted down as it is met, and emitted into the caller when that is translated. A branch
or a loop that depends on a value can't be run so: Numba compiles such functions.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from types import CellType, FunctionType, ModuleType
from typing import Any

from numba import types

# what a value may be: memory of Numba's runtime, whose references are counted, is not
_PLAIN = (
    types.Number,
    types.Boolean,
    types.CPointer,
    types.Record,
    types.Opaque,
    types.TypeRef,
    types.NumberClass,
    types.Callable,
)
# Calls of a function, with those of what it calls: larger ones Numba compiles, and LLVM inlines them if it pays. With
# no limit blocks of 64 and 128 float32 by their own ranges took 1.15 times as long.
_LIMIT = 150


class UntraceableError(Exception):
    """Raised where Python cannot go on without the value of an argument."""


class Value:
    """What stands for a value while a function is traced: its Numba type, and the step that gives it."""

    __array_ufunc__ = None  # or NumPy's numbers would take it for an array where they are the first operand

    def __init__(self, trace: _Trace, kind: types.Type, place: int) -> None:
        self._trace, self._kind, self._place = trace, kind, place

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._trace.attribute(self, name)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._trace.call(operator.setitem, (self, index, value))

    def _untraceable(self, *_: Any) -> Any:
        raise UntraceableError

    __bool__ = __iter__ = __len__ = __index__ = __int__ = __float__ = _untraceable
    __hash__ = object.__hash__


def _operator(function: Callable[..., Any], *, reflected: bool = False) -> Any:
    def traced(*operands: Any) -> Any:
        return operands[0]._trace.call(function, operands[::-1] if reflected else operands)

    return traced


for _name in ("getitem", "neg", "pos", "invert", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Value, f"__{_name}__", _operator(getattr(operator, _name)))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift"):
    _plain = _name.rstrip("_")
    setattr(Value, f"__{_plain}__", _operator(getattr(operator, _name)))
    setattr(Value, f"__r{_plain}__", _operator(getattr(operator, _name), reflected=True))


class _Named:
    """A function, type or module that a traced function names."""

    def __init__(self, trace: _Trace, item: Any) -> None:
        self._trace, self._item = trace, item

    def __getattr__(self, name: str) -> Any:
        return self._trace.named(getattr(self._item, name))

    def __call__(self, *args: Any) -> Any:
        return self._trace.call(self._item, args)

    def __eq__(self, other: object) -> bool:
        return bool(self._item == (other._item if isinstance(other, _Named) else other))

    def __hash__(self) -> int:
        return hash(self._item)


class _Trace:
    """The steps of one function, in their order; a step emits a value from those before it."""

    def __init__(self, context: Any) -> None:
        self.context, self.weight = context, 0
        self.steps: list[Callable[..., Any]] = []

    def value(self, kind: types.Type, emit: Callable[..., Any]) -> Any:
        """Add a step; return its value, of a tuple the values in it."""
        if isinstance(kind, types.BaseTuple):
            self.steps.append(emit)
            place = len(self.steps) - 1
            fields = [self.value(each, _extracting(place, k)) for k, each in enumerate(kind.types)]
            return kind.instance_class(*fields) if isinstance(kind, types.BaseNamedTuple) else tuple(fields)
        if kind is types.none:
            self.steps.append(emit)
            return None
        if isinstance(kind, types.IntegerLiteral | types.BooleanLiteral):
            self.steps.append(emit)
            return kind.literal_value
        if not isinstance(kind, _PLAIN) and not hasattr(kind, "n"):
            raise UntraceableError
        self.steps.append(emit)
        return Value(self, kind, len(self.steps) - 1)

    def named(self, item: Any) -> Any:
        """Return what stands for what a function names: constants and named tuples for themselves."""
        is_record = isinstance(item, type) and issubclass(item, tuple) and hasattr(item, "_fields")
        wrapped = isinstance(item, ModuleType) or (callable(item) and not is_record)
        return _Named(self, item) if wrapped else item

    def call(self, function: Any, args: tuple[Any, ...]) -> Any:
        """Add the step of a call."""
        args = tuple(arg._item if isinstance(arg, _Named) else arg for arg in args)
        kinds = tuple(map(self.kind_of, args))
        callee = function if isinstance(function, types.Type) else self.context.resolve_value_type(function)
        if callee is None or not isinstance(callee, types.Callable):
            raise UntraceableError
        sig = callee.get_call_type(self.context, kinds, {})
        if sig is None or len(sig.args) != len(args):
            raise UntraceableError
        self.weight += getattr(callee.get_impl_key(sig), "weight", 1)
        if self.weight > _LIMIT:
            raise UntraceableError

        def emit(context: Any, builder: Any, values: list[Any], given: Any) -> Any:
            _ = function  # which its type does not keep alive
            operands = zip(args, kinds, sig.args, strict=True)
            cast = [context.cast(builder, _emitted(context, builder, a, k, values), k, to) for a, k, to in operands]
            return context.get_function(callee, sig)(builder, cast)

        return self.value(sig.return_type, emit)

    def attribute(self, value: Value, name: str) -> Any:
        """Add the step that reads an attribute."""
        kind = self.context.resolve_getattr(value._kind, name)
        if kind is None:
            raise UntraceableError

        def emit(context: Any, builder: Any, values: list[Any], given: Any) -> Any:
            read = context.get_getattr(value._kind, name)
            return read(context, builder, value._kind, values[value._place], name)

        return self.value(kind, emit)

    def kind_of(self, item: Any) -> types.Type:
        """Return the Numba type of a value, of a constant, or of a tuple of them."""
        if isinstance(item, Value):
            return item._kind
        if isinstance(item, tuple):
            kinds = tuple(map(self.kind_of, item))
            return types.BaseTuple.from_types(kinds, type(item) if hasattr(item, "_fields") else None)
        if isinstance(item, _Named):
            item = item._item
        kind = self.context.resolve_value_type_prefer_literal(item)
        if kind is None:
            raise UntraceableError
        return kind


def _extracting(place: int, k: int) -> Callable[..., Any]:
    return lambda context, builder, values, given: builder.extract_value(values[place], k)


def _argument(k: int) -> Callable[..., Any]:
    return lambda context, builder, values, given: given[k]


def _emitted(context: Any, builder: Any, item: Any, kind: types.Type, values: list[Any]) -> Any:
    """Emit a value that a step gave, a constant, or a tuple of them."""
    if isinstance(item, Value):
        return values[item._place]
    if isinstance(kind, types.BaseTuple):
        parts = [_emitted(context, builder, each, of, values) for each, of in zip(item, kind.types, strict=True)]
        return context.make_tuple(builder, kind, parts)
    if isinstance(kind, types.Number | types.Boolean | types.IntegerLiteral | types.BooleanLiteral):
        return context.get_constant_generic(builder, types.unliteral(kind), item)
    return context.get_dummy_value()


def _on_values(function: FunctionType, trace: _Trace) -> FunctionType:
    """Return a function with what it names replaced by what stands for that."""
    names, code = function.__globals__, function.__code__
    found = {name: names[name] if name in names else vars(builtins).get(name) for name in code.co_names}
    replaced = {name: trace.named(item) for name, item in found.items() if item is not None}
    cells = tuple(CellType(trace.named(cell.cell_contents)) for cell in function.__closure__ or ())
    return FunctionType(code, replaced, function.__name__, function.__defaults__, cells)


def trace(context: Any, function: Any, kinds: tuple[types.Type, ...]) -> tuple[Any, Callable[..., Any]] | None:
    """Run a function on types; return its signature and what emits it, None where it has to be compiled."""
    tracing = _Trace(context)
    try:
        arguments = [tracing.value(kind, _argument(k)) for k, kind in enumerate(kinds)]
        result = _on_values(function, tracing)(*arguments)
        kind = tracing.kind_of(result)
    except (MemoryError, RecursionError):  # of the caller, which must not decide how the function is compiled
        raise
    except Exception:  # whatever it was, Numba says it better
        return None
    returned = types.unliteral(kind)

    def emit(builder_context: Any, builder: Any, sig: Any, given: Any) -> Any:
        values: list[Any] = []
        for step in tracing.steps:
            values.append(step(builder_context, builder, values, given))
        value = _emitted(builder_context, builder, result._item if isinstance(result, _Named) else result, kind, values)
        return builder_context.cast(builder, value, kind, returned)

    vars(emit)["weight"] = tracing.weight
    return returned(*kinds), emit
