"""What functions name, while they are emitted: each name has what stands for it there.

Constants, types and named tuples stand for themselves, as do functions of `fastq.engine.jit.functions`, whose calls
emit. A module stands for what is in it, any other function is called with the types of values.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from numba import types

from fastq.engine.jit.functions import Instruction, TracedFunction
from fastq.engine.jit.scalars import joint_type
from fastq.engine.jit.value import Value, function_being_emitted, has_values, kind_of, llvm_value


class _ModuleNames:
    """Stands for a module."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        """Return what stands for a name of the module, and keep it: Python calls this for names not found."""
        item = stand_in(getattr(self._module, name))
        self.__dict__[name] = item
        return item


class _FunctionOfTypes:
    """Stands for a function that is not traced: it is called with the types of values, and may return types."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the function with types in place of values; return what stands for its result."""
        types_of_args = [_type_or_constant(arg) for arg in args]
        return stand_in(self._function(*types_of_args, **named))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __eq__(self, other: object) -> bool:
        """Return whether both stand for one function: code compares functions that it is given."""
        return bool(self._function == original(other))

    def __hash__(self) -> int:
        return hash(self._function)


_modules: dict[str, _ModuleNames] = {}


def stand_in(item: Any) -> Any:
    """Return what stands for something that a function names.

    Constants, types and functions whose calls emit stand for themselves, `min` and others have entries in `_BUILTINS`,
    and other functions are wrapped, so that they get types in place of values. A tuple of functions is a tuple of what
    stands for them.
    """
    if isinstance(
        item, Value | types.Type | int | float | str | _FunctionOfTypes | TracedFunction | Instruction | None
    ):
        return item
    if isinstance(item, tuple) and any(map(callable, item)):
        parts = map(stand_in, item)
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    if isinstance(item, ModuleType):
        return _modules.setdefault(item.__name__, _ModuleNames(item))
    if not callable(item):
        return item
    if isinstance(item, type | BuiltinFunctionType):
        return _BUILTINS.get(item, item)
    return _FunctionOfTypes(item)


def original(item: Any) -> Any:
    """Return what a function or module stands for."""
    if isinstance(item, _FunctionOfTypes):
        return item._function
    return item._module if isinstance(item, _ModuleNames) else item


def _type_or_constant(item: Any) -> Any:
    """Return what a function that is not traced gets for an item: the type of a value, else the constant itself."""
    if has_values(item):
        return kind_of(item)
    if isinstance(item, tuple) and any(map(callable, item)):
        parts = map(original, item)
        return type(item)(*parts) if hasattr(item, "_fields") else tuple(parts)
    return original(item)


# --- the names of a function ------------------------------------------------------------------------------------------


def globals_of(function: FunctionType) -> dict[str, Any]:
    """Return what stands for the global names of a function, by their names."""
    names = function.__globals__
    stand_ins: dict[str, Any] = {}
    for name in _names_in(function.__code__):
        if name in names:
            stand_ins[name] = stand_in(names[name])
        elif (builtin := vars(builtins).get(name)) is not None:
            stand_ins[name] = stand_in(builtin)
    return stand_ins


def _names_in(code: CodeType) -> set[str]:
    """Return what a function names, and functions within it."""
    return {*code.co_names}.union(*(_names_in(part) for part in code.co_consts if isinstance(part, CodeType)))


def cells_of(function: FunctionType) -> dict[str, Any]:
    """Return what stands for the names that a function has from functions around it."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: stand_in(cell.cell_contents) for name, cell in cells}


# --- builtins ---------------------------------------------------------------------------------------------------------


def _extreme(is_better: Callable[[Any, Any], Any], native: Callable[..., Any]) -> Callable[..., Any]:
    """Return what stands for ``min`` or ``max``, which take the first one of equals.

    `is_better` is ``<`` or ``>``, which is false of equals; `native` computes with constants.
    """

    def extreme(*items: Any, **named: Any) -> Any:
        """Return the smallest or largest item: a constant of constants, else a value of the type that holds all."""
        items = tuple(items[0]) if len(items) == 1 else items
        if not any(isinstance(item, Value) for item in items):
            return native(items, **named)
        kind = joint_type([kind_of(item) for item in items])
        builder = function_being_emitted().builder
        best = items[0]
        for item in items[1:]:
            a = Value(kind, llvm_value(builder, best, kind))
            b = Value(kind, llvm_value(builder, item, kind))
            best = Value(kind, builder.select(is_better(b, a)._ir, b._ir, a._ir))
        return best

    return extreme


def _isinstance(item: Any, kind: Any) -> bool:
    """Stand for ``isinstance``; of a value its Numba type is looked at."""
    return isinstance(item._kind if isinstance(item, Value) else original(item), kind)


def _float(item: Any) -> Any:
    """Stand for ``float``: a value is converted at run time."""
    if not isinstance(item, Value):
        return float(item)
    return Value(types.float64, llvm_value(function_being_emitted().builder, item, types.float64))


def _int(item: Any) -> Any:
    """Stand for ``int``: a value is converted at run time."""
    if not isinstance(item, Value):
        return int(item)
    return Value(types.int64, llvm_value(function_being_emitted().builder, item, types.int64))


_BUILTINS: dict[Any, Callable[..., Any]] = {
    min: _extreme(operator.lt, min),
    max: _extreme(operator.gt, max),
    isinstance: _isinstance,
    float: _float,
    int: _int,
}
