"""Trace functions that have no branch at run time: Python runs them on types, and their callers emit what they call.

Numba takes 10 ms for a function of one line: it translates bytecode, infers types and makes a module of LLVM.
Most functions of a kernel have no loop, so Python itself can run them, with a `Value` in place of each argument. Each
call and operator is typed and noted down as it is met, and emitted into the caller when that is translated. A branch
or a loop that depends on a value can't be run so: Numba compiles such functions.

What types tell is known: attributes of a `Value` are those of its type, types that are arguments stand for themselves,
and functions that are not compiled are called with the types of values. So a function chooses by an `if`.
"""

from __future__ import annotations

import builtins
import contextlib
import operator
from collections.abc import Callable
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, errors

# what a value may be; an array, whose references are counted, is what callers hold, or what a call gives to them
_PLAIN = (
    types.Array,
    types.Number,
    types.Boolean,
    types.CPointer,
    types.Record,
    types.Opaque,
    types.TypeRef,
    types.NumberClass,
    types.Callable,
)
# Calls of a function, including those of the functions it calls: larger ones are functions of LLVM, which inlines them
# if it pays: decision D71
_LIMIT = 150


class UntraceableError(Exception):
    """Raised where Python cannot go on without the value of an argument."""


class Value:
    """The symbol of a value while a function is traced: its Numba type, and the step that gives it."""

    __array_ufunc__ = None  # or NumPy's numbers would treat it as an array if they are the first operand

    def __init__(self, trace: _Trace, kind: types.Type, place: int) -> None:
        self._trace = trace
        self._kind = kind
        self._place = place

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if isinstance(self._kind, types.Record) or not hasattr(self._kind, name):
            return self._trace.attribute(self, name)
        return self._trace.named(getattr(self._kind, name))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._trace.operate(operator.setitem, (self, index, value))

    def _untraceable(self, *_: Any) -> Any:
        raise UntraceableError

    __bool__ = __iter__ = __len__ = __index__ = __int__ = __float__ = _untraceable
    __hash__ = object.__hash__


def _operator(function: Callable[..., Any], *, reflected: bool = False) -> Any:
    def traced(*operands: Any) -> Any:
        return operands[0]._trace.operate(function, operands[::-1] if reflected else operands)

    return traced


for _name in ("getitem", "neg", "pos", "invert", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Value, f"__{_name}__", _operator(getattr(operator, _name)))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift"):
    setattr(Value, f"__{_name.rstrip('_')}__", _operator(getattr(operator, _name)))
    setattr(Value, f"__r{_name.rstrip('_')}__", _operator(getattr(operator, _name), reflected=True))


class _Named:
    """A function, class or module that a traced function names."""

    def __init__(self, trace: _Trace, item: Any) -> None:
        self._trace = trace
        self._item = item

    def __getattr__(self, name: str) -> Any:
        return self._trace.named(getattr(self._item, name))

    def __call__(self, *args: Any, **named: Any) -> Any:
        item = self._item
        known = not any(map(_depends, args))
        if item in _OF_TUPLES:
            return self._trace.named(item(*(arg._item if isinstance(arg, _Named) else arg for arg in args), **named))
        if (known and isinstance(item, type | BuiltinFunctionType)) or item is isinstance:
            return self._trace.named(item(*map(_plain, args), **named))
        callee = None
        with contextlib.suppress(ValueError):  # a function that is not compiled
            callee = self._trace.context.resolve_value_type(item)
        if callee is None and (known or not isinstance(item, type)):
            return self._trace.named(item(*map(self._trace.typed, args), **named))
        return self._trace.call(item, callee, args)

    def __eq__(self, other: object) -> bool:
        return bool(self._item == (other._item if isinstance(other, _Named) else other))

    def __hash__(self) -> int:
        return hash(self._item)


_OF_TUPLES = frozenset((dict, enumerate, getattr, len, list, tuple, zip))  # which look at no value


def _depends(item: Any) -> bool:
    """Return whether an item is, or has, what only run time knows."""
    return isinstance(item, Value) or (isinstance(item, tuple) and any(map(_depends, item)))


def _plain(item: Any) -> Any:
    if isinstance(item, tuple) and not _depends(item):
        return tuple(map(_plain, item)) if any(isinstance(each, _Named) for each in item) else item
    return item._item if isinstance(item, _Named) else item._kind if isinstance(item, Value) else item


_signatures: dict[tuple[types.Function, tuple[types.Type, ...]], Any] = {}


def signature_of(context: Any, callee: Any, args: tuple[types.Type, ...]) -> Any:
    """Return the signature of a call; that of an operator or a function of Numba is looked for once for these types.

    Numba goes through all candidates each time that it comes by a call, nine times on average: decision D76.
    """
    if type(callee) is not types.Function:  # of ours, which know theirs, or one that is compiled
        return callee.get_call_type(context, args, {})
    found = _signatures.get((callee, args))
    if found is None:
        found = _signatures[callee, args] = callee.get_call_type(context, args, {})
    return found


class _Trace:
    """The steps of one function, in their order; a step emits a value from those before it."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.weight = 0
        self.steps: list[Callable[..., Any]] = []

    def value(self, kind: types.Type, emit: Callable[..., Any]) -> Any:
        """Add a step; return its value, of a tuple the values in it."""
        if isinstance(kind, types.BaseTuple):
            self.steps.append(emit)
            place = len(self.steps) - 1
            fields = [self.value(each, _extracting(place, k)) for k, each in enumerate(kind.types)]
            return kind.instance_class(*fields) if isinstance(kind, types.BaseNamedTuple) else tuple(fields)
        self.steps.append(emit)
        if kind is types.none:
            return None
        if isinstance(kind, types.Literal):
            return kind.literal_value
        if isinstance(kind, types.TypeRef | types.NumberClass):
            return kind.instance_type
        if not isinstance(kind, _PLAIN) and not hasattr(kind, "n"):
            raise UntraceableError
        return Value(self, kind, len(self.steps) - 1)

    def named(self, item: Any) -> Any:
        """Return the replacements of names in a function: constants, types and named tuples stand for themselves."""
        if isinstance(item, tuple) and any(map(callable, item)):
            return type(item)(*map(self.named, item)) if hasattr(item, "_fields") else tuple(map(self.named, item))
        is_record = isinstance(item, type) and issubclass(item, tuple) and hasattr(item, "_fields")
        wrapped = isinstance(item, ModuleType) or (callable(item) and not isinstance(item, types.Type | Value | _Named))
        return _Named(self, item) if wrapped and not is_record else item

    def typed(self, item: Any) -> Any:
        """Return what functions of types get: the type of a value, or of a tuple that has some."""
        return self.kind_of(item) if _depends(item) else _plain(item)

    def operate(self, function: Any, args: tuple[Any, ...]) -> Any:
        """Add the step of an operator."""
        return self.call(function, self.context.resolve_value_type(function), args)

    def call(self, function: Any, callee: Any, args: tuple[Any, ...]) -> Any:
        """Add the step of a call; what it returns is a constant where types alone decide it."""
        args = tuple(arg._item if isinstance(arg, _Named) else arg for arg in args)
        kinds = tuple(map(self.kind_of, args))
        if callee is None or not isinstance(callee, types.Callable):
            raise UntraceableError
        sig = signature_of(self.context, callee, kinds)
        if sig is None or len(sig.args) != len(args):
            raise UntraceableError
        key = callee.get_impl_key(sig)
        constant = getattr(key, "constant", None)
        if constant is not None:
            return self.named(constant[0])
        self.weight += getattr(key, "weight", 1)
        is_ours = hasattr(key, "weight") or hasattr(callee, "emitters")  # see `trace`, and `Emitted` of `pipeline`

        def emit(context: Any, builder: Any, values: list[Any], given: Any) -> Any:
            _ = function  # which its type does not keep alive
            operands = zip(args, kinds, sig.args, strict=True)
            cast = [context.cast(builder, _emitted(context, builder, a, k, values), k, to) for a, k, to in operands]
            # Numba would search its tables for ours, and read their parameters
            return key(context, builder, sig, cast) if is_ours else context.get_function(callee, sig)(builder, cast)

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
    """Return a function with its names replaced by their replacements."""
    names = function.__globals__
    code = function.__code__
    found = {name: names[name] if name in names else vars(builtins).get(name) for name in _names(code)}
    replaced = {name: trace.named(item) for name, item in found.items() if item is not None}
    cells = tuple(CellType(trace.named(cell.cell_contents)) for cell in function.__closure__ or ())
    return FunctionType(code, replaced, function.__name__, function.__defaults__, cells)


def _names(code: CodeType) -> set[str]:
    """Return what a function names, and functions within it."""
    return {*code.co_names}.union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))


def traced_or_none(context: Any, function: Any, kinds: tuple[types.Type, ...]) -> Any:
    """Return what `trace` does, None of a function that has to be compiled."""
    try:
        return trace(context, function, kinds)
    except errors.TypingError:
        return None


def trace(context: Any, function: Any, kinds: tuple[types.Type, ...]) -> tuple[Any, Callable[..., Any]]:
    """Run a function on types; return its signature and what emits it."""
    tracing = _Trace(context)
    try:
        arguments = [tracing.value(kind, _argument(k)) for k, kind in enumerate(kinds)]
        result = _on_values(function, tracing)(*arguments)
        if any(result is each for each in arguments if isinstance(each, Value)) and isinstance(
            result._kind, types.Array
        ):
            raise UntraceableError
        kind = tracing.kind_of(result)
    except (MemoryError, RecursionError):  # of the caller, which must not decide how the function is compiled
        raise
    except Exception as error:
        raise errors.TypingError(f"{function.__qualname__}: {type(error).__name__} {error}") from error
    result = result._item if isinstance(result, _Named) else result
    returned = types.unliteral(kind)
    own = tracing.weight > _LIMIT

    def emit(context: Any, builder: Any, sig: Any, given: Any) -> Any:
        values: list[Any] = []
        for step in tracing.steps:
            values.append(step(context, builder, values, given))
        return context.cast(builder, _emitted(context, builder, result, kind, values), kind, returned)

    def call(context: Any, builder: Any, sig: Any, given: Any) -> Any:
        return _call(context, builder, returned(*kinds), f"{function.__qualname__}.{id(emit)}", given, emit)

    found = call if own else emit
    vars(found)["weight"] = 1 if own else tracing.weight
    if not tracing.weight and not _depends(result) and result is not None:
        vars(found)["constant"] = (result,)
    return returned(*kinds), found


def _call(context: Any, builder: Any, sig: Any, name: str, given: Any, emit: Callable[..., Any]) -> Any:
    """Emit a call of a function of LLVM, in the same module, that has what `emit` emits."""
    convention = context.call_conv
    module = builder.module
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, convention.get_function_type(sig.return_type, sig.args), name)
        function.linkage = "internal"
        convention.decorate_function(function, [f"arg{k}" for k in range(len(sig.args))], sig.args, noalias=False)
        inner = ir.IRBuilder(function.append_basic_block("entry"))
        raw = convention.get_arguments(function)
        values = context.get_arg_packer(sig.args).from_arguments(inner, raw)
        value = context.get_return_value(inner, sig.return_type, emit(context, inner, sig, values))
        convention.return_value(inner, value)
    status, value = convention.call_function(builder, function, sig.return_type, sig.args, given)
    with cgutils.if_unlikely(builder, status.is_error):
        convention.return_status_propagate(builder, status)
    return value
