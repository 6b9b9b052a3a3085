"""Emit LLVM of Python functions: Python runs them on types and records the instructions, as ``jax.jit`` does.

While a function is emitted, a `Value` stands for what only run time knows: its Numba type, and LLVM's name of it. Its
operators emit instructions, its attributes are those of its type, types that are arguments stand for themselves, and
functions that are not compiled are called with the types of values. So a function chooses by an `if` on types.

Statements that run-time values steer can't be run so: `if`, `while`, loops over `range`, `and`, `or`, `not`, and
conditional expressions. Their source is read, and they become branches and loops of LLVM (`statements`).

Each function is one of LLVM for each combination of types that it is called with. LLVM inlines those without a branch,
unless they are large: decision D71.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import operator
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types

from fastq.engine.jit import scalars
from fastq.engine.jit.scalars import UntraceableError, cast, llvm_of, truth, unified

# instructions of a function, with those of the functions it calls, up to which it is inlined at any rate: decision D71
_LIMIT = 150


Hints = dict[Any, Any]  # types of variables of loops that have to be wider than they are at first
Body = Callable[..., Any]  # emits a body into a `Function`, for arguments and `Hints`; returns the result


class Value:
    """What only run time knows: its Numba type, and LLVM's value."""

    __array_ufunc__ = None  # or NumPy's numbers would treat it as an array if they are the first operand

    def __init__(self, kind: types.Type, value: Any) -> None:
        self._kind = kind
        self._ir = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        kind = self._kind
        if isinstance(kind, types.Record) and name in kind.fields:
            return current().field(self, name)
        return replaced(getattr(kind, name))

    def __getitem__(self, index: Any) -> Any:
        return current().element(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        current().set_element(self, index, value)

    def __abs__(self) -> Value:
        magnitude: Value = current().operate(operator.abs, (self,))
        return magnitude

    def _untraceable(self, *_: Any) -> Any:
        raise UntraceableError("a value is known at run time only")

    __bool__ = __iter__ = __len__ = __index__ = __int__ = __float__ = _untraceable
    __hash__ = object.__hash__


def _operator(function: Callable[..., Any], *, reflected: bool = False) -> Any:
    def emitted(*operands: Any) -> Any:
        if not all(isinstance(each, Value | int | float | np.generic) for each in operands):
            return NotImplemented
        return current().operate(function, operands[::-1] if reflected else operands)

    return emitted


for _name in ("neg", "pos", "invert", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Value, f"__{_name}__", _operator(getattr(operator, _name)))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift"):
    setattr(Value, f"__{_name.rstrip('_')}__", _operator(getattr(operator, _name)))
    setattr(Value, f"__r{_name.rstrip('_')}__", _operator(getattr(operator, _name), reflected=True))


# --- what functions name ----------------------------------------------------------------------------------------------


class _Module:
    """A module that a function names."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = replaced(getattr(self._module, name))
        self.__dict__[name] = found
        return found


class _OfTypes:
    """A function that is not compiled, called with the types of values."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **named: Any) -> Any:
        return replaced(self._function(*map(_typed, args), **named))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __eq__(self, other: object) -> bool:
        return bool(self._function == original(other))

    def __hash__(self) -> int:
        return hash(self._function)


class Callee:
    """A compiled function as functions that are emitted call it."""

    def __init__(self, item: Any, function: Any, prepare: Callable[[FunctionType], Body]) -> None:
        self.item = item
        self.function = function
        self.prepare = prepare
        self.body: Body | None = None  # prepared at the first call

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Emit a call."""
        return current().call(self, args, named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.item, name)

    def __eq__(self, other: object) -> bool:
        return bool(self.item is original(other))

    def __hash__(self) -> int:
        return hash(self.item)


class Instruction:
    """A function that emits its calls itself."""

    def __init__(self, item: Any, typed: Callable[..., Any]) -> None:
        self.item = item
        self.typed = typed
        self.signature = inspect.signature(item)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Emit the instruction."""
        if named:
            args = self.signature.bind(*args, **named).args
        return current().instruct(self, args)

    def __eq__(self, other: object) -> bool:
        return bool(self.item is original(other))

    def __hash__(self) -> int:
        return hash(self.item)


def original(item: Any) -> Any:
    """Return what something stands for."""
    if isinstance(item, Callee | Instruction):
        return item.item
    if isinstance(item, _OfTypes):
        return item._function
    return item._module if isinstance(item, _Module) else item


known: dict[Any, Any] = {}  # compiled functions and instructions by what the package calls them


def replaced(item: Any) -> Any:
    """Return what stands for something that a function names: constants, types and named tuples for themselves."""
    if isinstance(item, Value | types.Type | int | float | str | _OfTypes | Callee | Instruction | None):
        return item
    if isinstance(item, tuple) and any(map(callable, item)):
        return type(item)(*map(replaced, item)) if hasattr(item, "_fields") else tuple(map(replaced, item))
    if isinstance(item, ModuleType):
        return _modules.setdefault(item.__name__, _Module(item))
    try:
        found = known.get(item) or _BUILTINS.get(item)
    except TypeError:  # not hashable
        return item
    if found is not None:
        return found
    if not callable(item) or isinstance(item, type | BuiltinFunctionType):
        return item
    return _OfTypes(item)


_modules: dict[str, _Module] = {}


def depends(item: Any) -> bool:
    """Return whether an item is, or has, what only run time knows."""
    return isinstance(item, Value) or (isinstance(item, tuple) and any(map(depends, item)))


def _typed(item: Any) -> Any:
    """Return what functions of types get."""
    if depends(item):
        return kind_of(item)
    if isinstance(item, tuple) and any(map(callable, item)):
        return type(item)(*map(original, item)) if hasattr(item, "_fields") else tuple(map(original, item))
    return original(item)


# --- types ------------------------------------------------------------------------------------------------------------


def kind_of(item: Any, *, literal: bool = False) -> types.Type:
    """Return the Numba type of a value, of a constant, or of a tuple of them."""
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
        kinds = tuple(kind_of(each, literal=literal) for each in item)
        return types.BaseTuple.from_types(kinds, type(item) if hasattr(item, "_fields") else None)
    if isinstance(item, str):
        return types.literal(item)
    if callable(item):
        raise UntraceableError(f"no value: {item}")
    return numba.typeof(item)


def emit(builder: Any, item: Any, kind: types.Type) -> Any:
    """Return LLVM's value of an item as one of a type."""
    if isinstance(item, Value):
        if scalars.is_nothing(item._kind):
            return scalars.DUMMY
        return cast(builder, item._ir, item._kind, kind)
    if isinstance(kind, types.BaseTuple):
        parts = [emit(builder, each, of) for each, of in zip(item, kind.types, strict=True)]
        return scalars.make_tuple(builder, kind, parts)
    if isinstance(kind, types.Number | types.Boolean | types.IntegerLiteral | types.BooleanLiteral):
        if not is_number(item):
            raise UntraceableError(f"no value: {item}")
        return ir.Constant(llvm_of(kind), scalars.python_value(item, kind))
    return scalars.DUMMY


def valued(builder: Any, kind: types.Type, value: Any) -> Any:
    """Return what stands for LLVM's value of a type."""
    if isinstance(kind, types.BaseTuple):
        fields = [valued(builder, each, builder.extract_value(value, k)) for k, each in enumerate(kind.types)]
        return kind.instance_class(*fields) if isinstance(kind, types.BaseNamedTuple) else tuple(fields)
    if kind is types.none or kind is types.void:
        return None
    if isinstance(kind, types.Literal):
        return kind.literal_value
    if isinstance(kind, types.TypeRef | types.NumberClass):
        return kind.instance_type
    return Value(kind, value)


def leaves(item: Any) -> Iterator[Any]:
    """Yield what is no tuple."""
    if isinstance(item, tuple):
        for each in item:
            yield from leaves(each)
    else:
        yield item


def rebuilt(item: Any, parts: Iterator[Any]) -> Any:
    """Return an item with other leaves."""
    if isinstance(item, tuple):
        fields = [rebuilt(each, parts) for each in item]
        return type(item)(*fields) if hasattr(item, "_fields") else tuple(fields)
    return next(parts)


def is_number(item: Any) -> bool:
    """Return whether a constant may become a value."""
    return isinstance(item, int | float | np.generic)


# --- functions --------------------------------------------------------------------------------------------------------


class Emitted:
    """A function of LLVM, and what its calls return; or one that is emitted at each of its calls."""

    def __init__(self, function: Any = None, result: Any = None, weight: int = 0, *, in_place: bool = False) -> None:
        self.function = function
        self.result = result
        self.weight = weight
        self.in_place = in_place


class Unit:
    """A module of LLVM, and the functions in it."""

    def __init__(self, module: ir.Module) -> None:
        self.module = module
        self.functions: dict[Any, Emitted | Exception] = {}  # by what they are called with; or why that can't be
        self.count = 0  # by which they are named


def _call_compiled(function: Any, kinds: tuple[types.Type, ...], values: tuple[Any, ...]) -> Any:
    """Emit the call of a compiled function from an instruction, on LLVM's values of these types."""
    inner = current()
    items = [valued(inner.builder, kind, value) for kind, value in zip(kinds, values, strict=True)]
    return replaced(function)(*items)


scalars.CONTEXT.call = _call_compiled
_stack: list[Function] = []


@contextlib.contextmanager
def emitting(function: Function) -> Iterator[None]:
    """Make a function the one that is being emitted."""
    _stack.append(function)
    try:
        yield
    finally:
        _stack.pop()


def current() -> Function:
    """Return the function that is being emitted."""
    if not _stack:
        raise UntraceableError("this exists in compiled code only")
    return _stack[-1]


class Function:
    """A function that is being emitted."""

    def __init__(self, unit: Unit, name: str, kinds: list[types.Type]) -> None:
        self.unit = unit
        self.weight = 0
        self.branches = False
        self.function = ir.Function(unit.module, ir.FunctionType(ir.VoidType(), [llvm_of(k) for k in kinds]), name)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.context = scalars.CONTEXT
        self.returns: list[tuple[Any, Any]] = []

    def set_result(self, kind: ir.Type) -> None:
        """Set the type of the result, which is known once the body is emitted."""
        function = self.function
        function.ftype = ir.FunctionType(kind, [each.type for each in function.args])
        function.type = function.ftype.as_pointer()
        function.return_value = ir.values.ReturnValue(function, kind)

    # calls

    def call(self, callee: Callee, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Emit the call of a function, for types without literals, or for literals where it cannot be emitted so."""
        code = callee.function.__code__
        if named or len(args) != code.co_argcount:
            bound = inspect.signature(callee.function).bind(*args, **named)
            bound.apply_defaults()
            args = bound.args
        failed: Exception | None = None
        for literal in (False, True):
            key = callee, literal, tuple(_key(each, literal) for each in args)
            found = self.unit.functions.get(key)
            if found is None:
                try:
                    found = self._emitted(callee, args, literal)
                except (MemoryError, RecursionError):
                    raise
                except Exception as error:
                    found = error
                self.unit.functions[key] = found
            if isinstance(found, Emitted):
                return self._called(callee, found, args, literal)
            failed = failed or found
            if not any(is_number(each) for each in leaves(args)):
                break
        raise UntraceableError(f"{callee.function.__qualname__}: {type(failed).__name__} {failed}") from failed

    def _called(self, callee: Callee, found: Emitted, args: tuple[Any, ...], literal: bool) -> Any:
        if found.in_place:
            passed = (
                Value(kind_of(each), emit(self.builder, each, kind_of(each))) if is_parameter(each, literal) else each
                for each in leaves(args)
            )
            return self.run(callee, rebuilt(args, passed), {})
        self.weight += found.weight
        if found.function is None:
            return found.result
        given = [emit(self.builder, each, kind_of(each)) for each in leaves(args) if is_parameter(each, literal)]
        value = self.builder.call(found.function, given)
        places = [each for each in leaves(found.result) if isinstance(each, Value)]
        if not places:
            return found.result
        one = len(places) == 1
        parts = [value] if one else [self.builder.extract_value(value, k) for k in range(len(places))]
        values = iter([Value(each._kind, part) for each, part in zip(places, parts, strict=True)])
        return rebuilt(found.result, (next(values) if isinstance(e, Value) else e for e in leaves(found.result)))

    def _emitted(self, callee: Callee, args: tuple[Any, ...], literal: bool) -> Emitted:
        hints: Hints = {}
        while True:
            with contextlib.suppress(Retry):
                return emitted(self.unit, callee, args, literal, hints)

    def run(self, callee: Callee, arguments: tuple[Any, ...], hints: Hints) -> Any:
        """Emit the body of a function here; return its result."""
        if callee.body is None:
            callee.body = callee.prepare(callee.function)
        result = callee.body(self, arguments, hints)
        return rebuilt(result, (original(each) for each in leaves(result)))

    def finish(self, result: Any) -> list[Value]:
        """Emit the return of a result; return its values."""
        returned = [each for each in leaves(result) if isinstance(each, Value)]
        kinds = [llvm_of(each._kind) for each in returned]
        if not returned:
            self.builder.ret_void()
            kind: ir.Type = ir.VoidType()
        elif len(returned) == 1:
            (kind,) = kinds
            self.builder.ret(returned[0]._ir)
        else:
            kind = ir.LiteralStructType(kinds)
            struct: Any = ir.Constant(kind, ir.Undefined)
            for k, each in enumerate(returned):
                struct = self.builder.insert_value(struct, each._ir, k)
            self.builder.ret(struct)
        self.set_result(kind)
        self.function.linkage = "internal"
        return returned

    def instruct(self, instruction: Instruction, args: tuple[Any, ...]) -> Any:
        """Emit an instruction."""
        failed = sig = None
        for literal in (False, True):
            kinds = tuple(kind_of(each, literal=literal) for each in args)
            try:
                found = instruction.typed(None, *kinds)
            except Exception as error:
                found = None
                failed = failed or error
            if found is not None:
                sig, lower = found
                break
        if sig is None:
            raise UntraceableError(f"{instruction.item.__name__} is not for {kinds}") from failed
        self.weight += 1
        given = [emit(self.builder, each, kind) for each, kind in zip(args, sig.args, strict=True)]
        return valued(self.builder, sig.return_type, lower(self.context, self.builder, sig, given))

    # operators

    def operate(self, symbol: Any, operands: tuple[Any, ...]) -> Any:
        """Emit an operator."""
        self.weight += 1
        kinds = [kind_of(each) for each in operands]
        if types.uint64 in kinds and symbol in scalars.COMPARISONS:  # a constant that is not negative has no sign
            kinds = [
                types.uint64 if type(each) is int and each >= 0 else kind
                for each, kind in zip(operands, kinds, strict=True)
            ]
        result, wanted, lower = scalars.operation(symbol, kinds)
        values = [emit(self.builder, each, kind) for each, kind in zip(operands, wanted, strict=True)]
        return Value(result, lower(self.builder, values))

    def field(self, record: Value, name: str) -> Any:
        """Emit the reading of a field of a record."""
        self.weight += 1
        kind = record._kind.typeof(name)
        builder = self.builder
        at = builder.gep(
            record._ir,
            [ir.Constant(ir.IntType(32), 0), ir.Constant(ir.IntType(32), record._kind.offset(name))],
            inbounds=True,
        )
        found = builder.load(builder.bitcast(at, llvm_of(kind).as_pointer()))
        found.align = 1 if not record._kind.aligned else max(kind.bitwidth // 8, 1)
        return Value(kind, found)

    def element(self, where: Value, index: Any) -> Any:
        """Emit the reading of an element."""
        self.weight += 1
        found = self.builder.load(self._place(where, index))
        return Value(where._kind.dtype, found)

    def set_element(self, where: Value, index: Any, value: Any) -> None:
        """Emit the writing of an element."""
        self.weight += 1
        self.builder.store(emit(self.builder, value, where._kind.dtype), self._place(where, index))

    def _place(self, where: Value, index: Any) -> Any:
        if not isinstance(where._kind, types.CPointer):
            raise UntraceableError(f"no pointer: {where}")
        kind = kind_of(index)
        if not isinstance(kind, types.Integer):
            raise UntraceableError(f"no index: {kind}")
        return self.builder.gep(where._ir, [emit(self.builder, index, types.int64)])

    # branches

    def join(self, block: Any, ends: list[tuple[Any, Any]]) -> Any:
        """Branch to a block from the ends of others, each with an item of the same form; return the item there."""
        items = [item for _, item in ends]
        forms = [list(leaves(item)) for item in items]
        if len({len(form) for form in forms}) > 1:
            raise UntraceableError("tuples of different lengths")
        merged: list[Any] = []
        for parts in zip(*forms, strict=True):
            if all(part is parts[0] for part in parts) or (
                not any(isinstance(p, Value) for p in parts) and _same(parts)
            ):
                merged.append(parts[0])
                continue
            if not all(isinstance(each, Value) or is_number(each) for each in parts):
                raise UntraceableError(f"different constants: {parts}")
            kind = unified([kind_of(each) for each in parts])
            values = []
            for (end, _), part in zip(ends, parts, strict=True):
                self.builder.position_at_end(end)
                values.append(emit(self.builder, part, kind))
            merged.append((kind, values))
        for end, _ in ends:
            self.builder.position_at_end(end)
            self.builder.branch(block)
        self.builder.position_at_end(block)
        for k, each in enumerate(merged):
            if isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], types.Type):
                phi = self.builder.phi(llvm_of(each[0]))
                for (end, _), value in zip(ends, each[1], strict=True):
                    phi.add_incoming(value, end)
                merged[k] = Value(each[0], phi)
        return rebuilt(items[0], iter(merged))

    def truth(self, item: Any) -> Any:
        """Return a condition: a bool of Python's where types tell, else a bit of LLVM's."""
        return truth(self.builder, item._kind, item._ir) if isinstance(item, Value) else bool(item)

    def choose(self, test: Any, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
        """Emit ``first() if test else second()``."""
        condition = self.truth(test)
        if isinstance(condition, bool):
            return first() if condition else second()
        ends = []
        self.branches = True
        blocks = [self.builder.append_basic_block() for _ in range(2)]
        self.builder.cbranch(condition, *blocks)
        for block, thunk in zip(blocks, (first, second), strict=True):
            self.builder.position_at_end(block)
            item = thunk()
            ends.append((self.builder.block, item))
        return self.join(self.builder.append_basic_block(), ends)

    def all_of(self, *thunks: Callable[[], Any]) -> Any:
        """Emit ``a and b and ...``, of which only whether it is true is used."""
        return self._shorted(True, thunks)

    def any_of(self, *thunks: Callable[[], Any]) -> Any:
        """Emit ``a or b or ...``, likewise."""
        return self._shorted(False, thunks)

    def _shorted(self, goes_on: bool, thunks: tuple[Callable[[], Any], ...]) -> Any:
        first = thunks[0]()
        condition = self.truth(first)
        if isinstance(condition, bool):
            return self._shorted(goes_on, thunks[1:]) if condition is goes_on and len(thunks) > 1 else first
        condition = Value(types.boolean, condition)
        if len(thunks) == 1:
            return condition

        def rest() -> Any:
            found = self._shorted(goes_on, thunks[1:])
            found = self.truth(found)
            return found if isinstance(found, bool) else Value(types.boolean, found)

        def decided() -> Any:
            return not goes_on

        return self.choose(condition, rest, decided) if goes_on else self.choose(condition, decided, rest)

    def none_of(self, item: Any) -> Any:
        """Emit ``not item``."""
        condition = self.truth(item)
        return (not condition) if isinstance(condition, bool) else Value(types.boolean, self.builder.not_(condition))

    def chain(self, symbols: tuple[Any, ...], *thunks: Callable[[], Any]) -> Any:
        """Emit ``a < b < c``."""

        def compared(left: Any, k: int) -> Any:
            right = thunks[k + 1]()
            first = getattr(operator, symbols[k])(left, right)
            if k + 1 == len(symbols):
                return first
            return self.all_of(lambda: first, lambda: compared(right, k + 1))

        return compared(thunks[0](), 0)


def _same(parts: Any) -> bool:
    first = parts[0]
    try:
        return all(type(part) is type(first) and bool(part == first) for part in parts)
    except UntraceableError:
        return False


class Retry(Exception):
    """Raised where a variable of a loop gets a wider type, by which the function is emitted again."""


def is_parameter(leaf: Any, literal: bool) -> bool:
    """Return whether a leaf of arguments is passed at run time."""
    if isinstance(leaf, Value):
        return llvm_of(leaf._kind) is not None and not scalars.is_nothing(leaf._kind)
    return is_number(leaf) and not (literal and isinstance(leaf, int))


def _key(item: Any, literal: bool) -> Any:
    if isinstance(item, tuple):
        return type(item), tuple(_key(each, literal) for each in item)
    if isinstance(item, Value) or is_parameter(item, literal):
        return kind_of(item)
    return type(item), item


def emitted(unit: Unit, callee: Callee, args: tuple[Any, ...], literal: bool, hints: Hints) -> Emitted:
    """Emit a function for arguments, as one of LLVM where that can be."""
    kinds = [kind_of(each) for each in leaves(args) if is_parameter(each, literal)]
    unit.count += 1
    name = f"{callee.function.__name__}.{unit.count}"
    inner = Function(unit, name, kinds)
    try:
        with emitting(inner):
            given = iter([Value(kind, value) for kind, value in zip(kinds, inner.function.args, strict=True)])
            parts = (next(given) if is_parameter(each, literal) else each for each in leaves(args))
            result = inner.run(callee, rebuilt(args, parts), hints)
            returned = inner.finish(result)
    except BaseException:
        unit.module.globals.pop(name)
        raise
    if inner.weight > _LIMIT or inner.branches:
        return Emitted(inner.function, result, 1)
    if not inner.weight and not returned:
        unit.module.globals.pop(name)
        return Emitted(None, result)
    if any(each.opname == "alloca" for each in inner.function.entry_basic_block.instructions):
        unit.module.globals.pop(name)  # memory on the stack is that of the caller
        return Emitted(in_place=True)
    inner.function.attributes.add("alwaysinline")
    return Emitted(inner.function, result, inner.weight)


# --- builtins ---------------------------------------------------------------------------------------------------------


def _extreme(symbol: Any, native: Any) -> Any:
    def emitted(*items: Any, **named: Any) -> Any:
        items = tuple(items[0]) if len(items) == 1 else items
        if not any(isinstance(each, Value) for each in items):
            return native(items, **named)
        kind = unified([kind_of(each) for each in items])
        found = items[0]
        builder = current().builder
        for each in items[1:]:
            a, b = Value(kind, emit(builder, found, kind)), Value(kind, emit(builder, each, kind))
            found = Value(kind, builder.select(symbol(b, a)._ir, b._ir, a._ir))
        return found

    return emitted


def _isinstance(item: Any, kind: Any) -> bool:
    return isinstance(item._kind if isinstance(item, Value) else original(item), kind)


def _float(item: Any) -> Any:
    return (
        Value(types.float64, emit(current().builder, item, types.float64)) if isinstance(item, Value) else float(item)
    )


def _int(item: Any) -> Any:
    return Value(types.int64, emit(current().builder, item, types.int64)) if isinstance(item, Value) else int(item)


_BUILTINS = {
    min: _extreme(operator.lt, min),
    max: _extreme(operator.gt, max),
    isinstance: _isinstance,
    float: _float,
    int: _int,
}


def names_of(code: CodeType) -> set[str]:
    """Return what a function names, and functions within it."""
    return {*code.co_names}.union(*(names_of(each) for each in code.co_consts if isinstance(each, CodeType)))


def globals_of(function: FunctionType) -> dict[str, Any]:
    """Return what stands for the names of a function."""
    names = function.__globals__
    wanted = names_of(function.__code__)
    found = {name: names[name] if name in names else vars(builtins).get(name) for name in wanted}
    return {name: replaced(item) for name, item in found.items() if name in names or item is not None}


def cells_of(function: FunctionType) -> dict[str, Any]:
    """Return what stands for the names that a function has from functions around it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: replaced(cell.cell_contents) for name, cell in cells}


def run_in_python(function: FunctionType) -> Body:
    """Return what emits a function by running it, with its names replaced by what stands for them."""
    cells = tuple(CellType(item) for item in cells_of(function).values())
    on_values = FunctionType(function.__code__, globals_of(function), function.__name__, function.__defaults__, cells)
    return lambda inner, arguments, hints: on_values(*arguments)
