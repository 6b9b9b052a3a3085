"""Emit LLVM of Python functions: Python runs them on types and records the instructions, as ``jax.jit`` does.

While a function is emitted, a `Value` stands for what only run time knows (`value`), and each name of the function has
a stand-in (`names`). A function is run as it is written until Python would have to choose by a value; it is then read
from its source, and what run-time values decide becomes branches and loops of LLVM (`statements`).

Each function is one of LLVM for each combination of types that it is called with, a *variant*. LLVM inlines those
without a branch, unless they are large: decision D71.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from types import CellType, FunctionType
from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine.jit import scalars
from fastq.engine.jit.functions import Instruction, TracedFunction
from fastq.engine.jit.names import cells_of, globals_of, original, stand_in
from fastq.engine.jit.scalars import UntraceableError, joint_type, llvm_of, truth
from fastq.engine.jit.statements import FunctionSource, Hints, WiderTypeError, has_loops
from fastq.engine.jit.value import (
    RunTimeChoiceError,
    Value,
    emitting,
    function_being_emitted,
    is_number,
    item_of,
    kind_of,
    leaves,
    llvm_value,
    with_leaves,
)

# instructions of a function, with those of the functions it calls, up to which it is inlined at any rate: decision D71
_LIMIT = 150


class Python:
    """The body of a function as Python runs it, its names replaced by their stand-ins."""

    def __init__(self, function: FunctionType) -> None:
        """Make a function of the same code, whose global names and cells are stand-ins."""
        cells = tuple(CellType(item) for item in cells_of(function).values())
        code = function.__code__
        self._function = FunctionType(code, globals_of(function), function.__name__, function.__defaults__, cells)

    def emit(self, inner: Function, arguments: tuple[Any, ...], hints: Hints) -> Any:
        """Emit it into a function that is being emitted; return the result.

        `inner` and `hints` are for `FunctionSource.emit`, in whose place this stands: the code of Python finds the
        former by itself.
        """
        return self._function(*arguments)


class Variant:
    """A function for one combination of types.

    Attributes
    ----------
    function : ir.Function | None
        The function of LLVM; None where the result is a constant, or the body is emitted at each call.
    result : Any
        The result of a call, whose values stand for those that the function of LLVM returns.
    weight : int
        The instructions that a call adds to its caller.
    emitted_at_calls : bool
        Whether the body is emitted at each call: its memory on the stack is that of the caller.
    """

    def __init__(self, function: Any, result: Any, weight: int, *, emitted_at_calls: bool = False) -> None:
        self.function = function
        self.result = result
        self.weight = weight
        self.emitted_at_calls = emitted_at_calls


class _Definition:
    """A function in a module, which others who change instructions of the module do not see.

    Numba adds fast-math flags to all functions of a module that it compiles, where its user asks for them.
    """

    def __init__(self, function: ir.Function) -> None:
        self.name = function.name
        self._function = function

    def __str__(self) -> str:
        return str(self._function)


class Unit:
    """A module of LLVM, and the functions of ours in it."""

    def __init__(self, module: ir.Module, prefix: str = "") -> None:
        self.module = module
        self.prefix = prefix  # of names
        self.variants: dict[Any, Variant | Exception] = {}  # by what they are called with; or why that can't be
        self.entries: dict[Any, ir.Function] = {}  # functions that are called from others than ours
        self.count = 0  # by which functions are named

    def variant(self, callee: TracedFunction, args: tuple[Any, ...], literal: bool) -> Variant | Exception:
        """Return the variant of a function for arguments, or the error for which there is none.

        With `literal` each integer among the arguments is a constant of the code, else a parameter of its type. An
        error is kept, too: the function is not emitted again to find the same one.
        """
        key = callee.body, literal, tuple(_argument_key(arg, literal) for arg in args)
        variant = self.variants.get(key)
        if variant is None:
            try:
                variant = self._make_variant(callee, args, literal)
            except (MemoryError, RecursionError):
                raise
            except Exception as error:
                variant = error
            self.variants[key] = variant
        return variant

    def _make_variant(self, callee: TracedFunction, args: tuple[Any, ...], literal: bool) -> Variant:
        """Emit a function until no variable of a loop needs a wider type.

        Each attempt that finds one adds it to `hints` before it raises `WiderTypeError`, and the next one begins with
        it.
        """
        hints: Hints = {}
        while True:
            try:
                return self._emit_variant(callee, args, literal, hints)
            except WiderTypeError:
                continue

    def _emit_variant(self, callee: TracedFunction, args: tuple[Any, ...], literal: bool, hints: Hints) -> Variant:
        """Emit a function for arguments, as one of LLVM where that can be.

        A large one, or one with branches, is called. One without instructions or values is its result alone. One that
        has memory on the stack is emitted at each call anew. All others are inlined.
        """
        kinds = [kind_of(leaf) for leaf in leaves(args) if is_parameter(leaf, literal)]
        self.count += 1
        inner = Function(self, f"{self.prefix}{callee.function.__name__}.{self.count}", kinds)
        try:
            with emitting(inner):
                values = iter([Value(kind, value) for kind, value in zip(kinds, inner.function.args, strict=True)])
                parts = (next(values) if is_parameter(leaf, literal) else leaf for leaf in leaves(args))
                result = inner.emit_body(callee, with_leaves(args, parts), hints)
                returned = inner.finish(result)
        except BaseException:
            inner.remove()
            raise
        if inner.weight > _LIMIT or inner.branches:
            # it is not inlined, so a call adds one instruction to its caller
            return Variant(inner.function, result, 1)
        if not inner.weight and not returned:
            inner.remove()
            return Variant(None, result, 0)
        if any(instruction.opname == "alloca" for instruction in inner.function.entry_basic_block.instructions):
            inner.remove()
            return Variant(None, None, 0, emitted_at_calls=True)
        inner.function.attributes.add("alwaysinline")
        return Variant(inner.function, result, inner.weight)

    def emit_entry(
        self,
        name: str,
        function: Any,
        result: types.Type,
        arguments: tuple[types.Type, ...],
        constants: Sequence[Value] = (),
        *,
        in_structure: bool = False,
    ) -> ir.Function:
        """Emit a function of this name and of these types, which calls a function with constants before its arguments.

        It returns a value of the type of the result; with `in_structure` a structure whose one field is that value.
        """
        callee = function if isinstance(function, TracedFunction) else TracedFunction(function)
        entry = Function(self, name, list(arguments))
        with emitting(entry):
            values = zip(arguments, entry.function.args, strict=True)
            items = [item_of(entry.builder, kind, value) for kind, value in values]
            returned = entry.call(callee, (*constants, *items), {})
            value = llvm_value(entry.builder, returned, result)
            if in_structure:
                value = entry.builder.insert_value(
                    ir.Constant(ir.LiteralStructType([value.type]), ir.Undefined), value, 0
                )
            entry.builder.ret(value)
        entry.set_result(value.type)
        return entry.function


def is_parameter(leaf: Any, literal: bool) -> bool:
    """Return whether a leaf of arguments is passed at run time.

    A constant bool never is: it is a choice of the code, and LLVM would compute both ways and select.
    """
    if isinstance(leaf, Value):
        return llvm_of(leaf._kind) is not None and not scalars.is_nothing(leaf._kind)
    return is_number(leaf) and not isinstance(leaf, bool) and not (literal and isinstance(leaf, int))


def _argument_key(item: Any, literal: bool) -> Any:
    """Return what of an argument decides the code: the type of a value, a constant itself."""
    if isinstance(item, tuple):
        return type(item), tuple(_argument_key(part, literal) for part in item)
    if isinstance(item, Value) or is_parameter(item, literal):
        return kind_of(item)
    return type(item), item


class Function:
    """A function that is being emitted."""

    def __init__(self, unit: Unit, name: str, kinds: list[types.Type]) -> None:
        self.unit = unit
        self.weight = 0  # instructions so far, with those of functions that are inlined
        self.branches = False  # whether it has more than one block
        self.function = ir.Function(unit.module, ir.FunctionType(ir.VoidType(), [llvm_of(k) for k in kinds]), name)
        unit.module.globals[name] = _Definition(self.function)
        self.builder = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.context = scalars.CONTEXT

    def remove(self) -> None:
        """Remove it from its module."""
        del self.unit.module.globals[self.function.name]

    def set_result(self, kind: ir.Type) -> None:
        """Set the type of the result, which is known once the body is emitted."""
        function = self.function
        function.ftype = ir.FunctionType(kind, [argument.type for argument in function.args])
        function.type = function.ftype.as_pointer()
        function.return_value = ir.values.ReturnValue(function, kind)

    # --- calls --------------------------------------------------------------------------------------------------------

    def call(self, callee: TracedFunction, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Emit the call of a function; return its result.

        Integers that are constants are passed as values, so that one variant serves all of them; only where the
        function cannot be emitted so is it emitted for these integers. A function that has loops, or in which Python
        would have to choose by a value, is emitted from its source.
        """
        if named or len(args) != callee.function.__code__.co_argcount:
            bound = inspect.signature(callee.function).bind(*args, **named)
            bound.apply_defaults()
            args = bound.args
        if callee.body is None:
            callee.body = FunctionSource(callee.function) if has_loops(callee.function) else Python(callee.function)
        is_lambda = callee.function.__name__ == "<lambda>"  # whose source cannot be told from others of its line
        failure: Exception | None = None
        for literal in (False, True):
            variant = self.unit.variant(callee, args, literal)
            if isinstance(variant, RunTimeChoiceError) and isinstance(callee.body, Python) and not is_lambda:
                callee.body = FunctionSource(callee.function)
                variant = self.unit.variant(callee, args, literal)
            if isinstance(variant, Variant):
                return self._call_variant(callee, variant, args, literal)
            failure = failure or variant
            if not any(is_number(leaf) for leaf in leaves(args)):
                break
        raise UntraceableError(f"{callee.function.__qualname__}: {type(failure).__name__} {failure}") from failure

    def _call_variant(self, callee: TracedFunction, variant: Variant, args: tuple[Any, ...], literal: bool) -> Any:
        """Emit the call of a variant; return its result, in which the returned values replace those of its body."""
        if variant.emitted_at_calls:
            valued = (self._as_value(leaf) if is_parameter(leaf, literal) else leaf for leaf in leaves(args))
            return self.emit_body(callee, with_leaves(args, valued), {})
        self.weight += variant.weight
        if variant.function is None:
            return variant.result
        passed = [self._as_value(leaf)._ir for leaf in leaves(args) if is_parameter(leaf, literal)]
        returned = self.builder.call(variant.function, passed)
        results = [leaf for leaf in leaves(variant.result) if isinstance(leaf, Value)]
        if not results:
            return variant.result
        is_one = len(results) == 1  # else they are the fields of a structure, see `finish`
        parts = [returned] if is_one else [self.builder.extract_value(returned, k) for k in range(len(results))]
        values = iter([Value(result._kind, part) for result, part in zip(results, parts, strict=True)])
        filled = (next(values) if isinstance(leaf, Value) else leaf for leaf in leaves(variant.result))
        return with_leaves(variant.result, filled)

    def _as_value(self, item: Any) -> Value:
        """Return a value of an item, which may be a constant."""
        kind = kind_of(item)
        return Value(kind, llvm_value(self.builder, item, kind))

    def emit_body(self, callee: TracedFunction, arguments: tuple[Any, ...], hints: Hints) -> Any:
        """Emit the body of a function here; return its result."""
        result = callee.body.emit(self, arguments, hints)
        return with_leaves(result, (original(leaf) for leaf in leaves(result)))

    def finish(self, result: Any) -> list[Value]:
        """Emit the return of the values in a result, as a structure if they are several; return these values."""
        returned = [leaf for leaf in leaves(result) if isinstance(leaf, Value)]
        kinds = [llvm_of(value._kind) for value in returned]
        if not returned:
            self.builder.ret_void()
            kind: ir.Type = ir.VoidType()
        elif len(returned) == 1:
            (kind,) = kinds
            self.builder.ret(returned[0]._ir)
        else:
            kind = ir.LiteralStructType(kinds)
            struct: Any = ir.Constant(kind, ir.Undefined)
            for k, value in enumerate(returned):
                struct = self.builder.insert_value(struct, value._ir, k)
            self.builder.ret(struct)
        self.set_result(kind)
        self.function.linkage = "internal"
        return returned

    def instruct(self, instruction: Instruction, args: tuple[Any, ...]) -> Any:
        """Emit an instruction for its arguments; constants pass as values, or as literals where it takes no values."""
        failure = sig = None
        for literal in (False, True):
            kinds = tuple(kind_of(arg, literal=literal) for arg in args)
            try:
                sig = instruction.typed(*kinds)
            except Exception as error:
                failure = failure or error
            if sig is not None:
                break
        if sig is None:
            raise UntraceableError(f"{instruction.__name__} is not for {kinds}") from failure
        self.weight += 1
        passed = [llvm_value(self.builder, arg, kind) for arg, kind in zip(args, sig.args, strict=True)]
        returned = instruction.emit(self.context, self.builder, sig, *passed)
        return item_of(self.builder, sig.return_type, scalars.DUMMY if returned is None else returned)

    # --- operators and memory -----------------------------------------------------------------------------------------

    def operate(self, symbol: Any, operands: tuple[Any, ...]) -> Any:
        """Emit an operator, after its operands were converted to the types that it takes."""
        self.weight += 1
        kinds = [kind_of(operand) for operand in operands]
        # a constant that is not negative has no sign: else uint64 would not be comparable with it
        if types.uint64 in kinds and symbol in scalars.COMPARISONS:
            kinds = [
                types.uint64 if type(operand) is int and operand >= 0 else kind
                for operand, kind in zip(operands, kinds, strict=True)
            ]
        result, operand_types, emit = scalars.operation(symbol, kinds)
        values = [
            llvm_value(self.builder, operand, kind) for operand, kind in zip(operands, operand_types, strict=True)
        ]
        return Value(result, emit(self.builder, values))

    def attribute(self, value: Value, name: str) -> Any:
        """Return an attribute of the type of a value, or emit the reading of a field of a record."""
        kind = value._kind
        if isinstance(kind, types.Record) and name in kind.fields:
            return self._field(value, name)
        return stand_in(getattr(kind, name))

    def _field(self, record: Value, name: str) -> Any:
        """Emit the reading of a field of a record."""
        self.weight += 1
        kind = record._kind.typeof(name)
        word = ir.IntType(32)
        place = [ir.Constant(word, 0), ir.Constant(word, record._kind.offset(name))]
        pointer = self.builder.gep(record._ir, place, inbounds=True)
        field = self.builder.load(self.builder.bitcast(pointer, llvm_of(kind).as_pointer()))
        field.align = 1 if not record._kind.aligned else max(kind.bitwidth // 8, 1)
        return Value(kind, field)

    def element(self, pointer: Value, index: Any) -> Any:
        """Emit the reading of an element."""
        self.weight += 1
        return Value(_element_kind(pointer), self.builder.load(self._place(pointer, index)))

    def set_element(self, pointer: Value, index: Any, value: Any) -> None:
        """Emit the writing of an element."""
        self.weight += 1
        self.builder.store(llvm_value(self.builder, value, _element_kind(pointer)), self._place(pointer, index))

    def _place(self, pointer: Value, index: Any) -> Any:
        """Emit the address of an element."""
        kind = kind_of(index)
        if not isinstance(kind, types.Integer):
            raise UntraceableError(f"no index: {kind}")
        return self.builder.gep(pointer._ir, [llvm_value(self.builder, index, types.int64)])

    # --- branches -----------------------------------------------------------------------------------------------------

    def join(self, block: Any, ends: list[tuple[Any, Any]]) -> Any:
        """Branch to a block from the ends of others, each with an item of the same form; return the item there.

        `ends` are pairs of a block and an item. A leaf that is the same constant at all ends stays one; any other
        becomes a value, a phi of LLVM, of the type that holds all.
        """
        items = [item for _, item in ends]
        forms = [list(leaves(item)) for item in items]
        if len({len(form) for form in forms}) > 1:
            raise UntraceableError("tuples of different lengths")
        kinds: list[types.Type | None] = []  # of leaves, None of those that are the same constant at all ends
        values: list[list[Any]] = []
        for parts in zip(*forms, strict=True):
            kind = _kind_of_joined(parts)
            kinds.append(kind)
            values.append([])
            for (end, _), part in zip(ends, parts, strict=True) if kind is not None else ():
                self.builder.position_at_end(end)
                values[-1].append(llvm_value(self.builder, part, kind))
        for end, _ in ends:
            self.builder.position_at_end(end)
            self.builder.branch(block)
        self.builder.position_at_end(block)
        joined = []
        for leaf, kind, of_ends in zip(forms[0], kinds, values, strict=True):
            if kind is None:
                joined.append(leaf)
                continue
            phi = self.builder.phi(llvm_of(kind))
            for (end, _), value in zip(ends, of_ends, strict=True):
                phi.add_incoming(value, end)
            joined.append(Value(kind, phi))
        return with_leaves(items[0], iter(joined))

    def truth(self, item: Any) -> Any:
        """Return a condition: a bool of Python's where types tell, else a bit of LLVM's."""
        return truth(self.builder, item._kind, item._ir) if isinstance(item, Value) else bool(item)

    def condition(self, item: Any) -> bool | Value:
        """Return whether an item is true."""
        bit = self.truth(item)
        return bit if isinstance(bit, bool) else Value(types.boolean, bit)

    def choose(self, test: Any, first: Callable[[], Any], second: Callable[[], Any]) -> Any:
        """Emit ``first() if test else second()``."""
        bit = self.truth(test)
        if isinstance(bit, bool):
            return first() if bit else second()
        ends = []
        self.branches = True
        blocks = [self.builder.append_basic_block() for _ in range(2)]
        self.builder.cbranch(bit, *blocks)
        for block, side in zip(blocks, (first, second), strict=True):
            self.builder.position_at_end(block)
            item = side()
            ends.append((self.builder.block, item))
        return self.join(self.builder.append_basic_block(), ends)

    def all_of(self, first: Callable[[], Any], *others: Callable[[], Any]) -> Any:
        """Emit ``a and b and ...`` as a condition; operands are functions, called where Python would evaluate them.

        If types tell how it ends, it is the operand that Python gives, else a bool.
        """
        item = first()
        condition = self.condition(item)
        if isinstance(condition, bool):
            return self.all_of(*others) if condition and others else item
        if not others:
            return condition
        return self.choose(condition, lambda: self.condition(self.all_of(*others)), lambda: False)

    def any_of(self, first: Callable[[], Any], *others: Callable[[], Any]) -> Any:
        """Emit ``a or b or ...`` as a condition, likewise."""
        item = first()
        condition = self.condition(item)
        if isinstance(condition, bool):
            return item if condition or not others else self.any_of(*others)
        if not others:
            return condition
        return self.choose(condition, lambda: True, lambda: self.condition(self.any_of(*others)))

    def none_of(self, item: Any) -> Any:
        """Emit ``not item``."""
        bit = self.truth(item)
        return (not bit) if isinstance(bit, bool) else Value(types.boolean, self.builder.not_(bit))

    def chain(self, symbols: tuple[str, ...], *operands: Callable[[], Any]) -> Any:
        """Emit ``a < b < c``; each operand is evaluated once, and only if the comparisons before it are true."""

        def compare(left: Any, k: int) -> Any:
            """Emit the comparison of operand k with the next one, and those after it."""
            right = operands[k + 1]()
            is_true = getattr(operator, symbols[k])(left, right)
            if k + 1 == len(symbols):
                return is_true
            return self.all_of(lambda: is_true, lambda: compare(right, k + 1))

        return compare(operands[0](), 0)


def _element_kind(pointer: Value) -> types.Type:
    """Return the type of what a pointer points to."""
    if not isinstance(pointer._kind, types.CPointer):
        raise UntraceableError(f"no pointer: {pointer}")
    return pointer._kind.dtype


def _kind_of_joined(parts: tuple[Any, ...]) -> types.Type | None:
    """Return the type of a variable that has these leaves at the ends of blocks; None of one and the same constant."""
    if all(part is parts[0] for part in parts):
        return None
    if not any(isinstance(part, Value) for part in parts) and _are_equal(parts):
        return None
    if not all(isinstance(part, Value) or is_number(part) for part in parts):
        raise UntraceableError(f"different constants: {parts}")
    return joint_type([kind_of(part) for part in parts])


def _are_equal(constants: tuple[Any, ...]) -> bool:
    """Return whether constants are equal and of one type: 1, 1.0 and True are equal, but not the same code."""
    first = constants[0]
    return all(type(constant) is type(first) and bool(constant == first) for constant in constants)


def _call_traced(function: Any, kinds: tuple[types.Type, ...], values: tuple[Any, ...]) -> Any:
    """Emit the call of a function from an instruction, on LLVM's values of these types."""
    builder = function_being_emitted().builder
    items = [item_of(builder, kind, value) for kind, value in zip(kinds, values, strict=True)]
    return stand_in(function)(*items)


scalars.CONTEXT.call = _call_traced
