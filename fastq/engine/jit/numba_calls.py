"""Calls from functions that Numba compiles, of whoever: a traced function is emitted into the module of its caller.

Numba optimizes it there with the caller, and keeps it with the caller's machine code. What it computes does not depend
on the options of the caller: those of `fastmath` reach no instruction of ours.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types

from fastq.engine.jit.constants import Constants
from fastq.engine.jit.emission import Unit
from fastq.engine.jit.scalars import DUMMY
from fastq.engine.jit.value import Value

_units: weakref.WeakKeyDictionary[ir.Module, Unit] = weakref.WeakKeyDictionary()  # by the modules of callers


def numba_intrinsic(
    function: Any, *constants: Constants, result: types.Type, around: tuple[Any, Any] | None = None
) -> Callable[..., Any]:
    """Return what functions that Numba compiles call for a traced function.

    Parameters
    ----------
    function : Any
        A function declared by `traced`, of constants and more arguments.
    *constants : Constants
        The types of its first arguments, which its callers do not pass.
    result : types.Type
        The type of what it returns: a number, or a tuple of numbers of different types.
    around : tuple[Any, Any] | None
        Traced functions that are called before and after it: the first one returns an int64, which the other one gets.
        It has to write memory, or LLVM may compute it at another time.

    Returns
    -------
    Callable[..., Any]
        A function of the other arguments, for compiled code only: numbers, None, and arrays, of which the traced
        function gets a pointer to the first element. They live as long as the call.
    """

    def typing(context: Any, *kinds: Any) -> Any:
        """Return the signature for these types of arguments, and what emits a call, as Numba asks."""
        return result(*map(types.unliteral, kinds)), lower

    def lower(context: Any, builder: Any, sig: Any, values: Any) -> Any:
        """Emit a call into the module of the caller; of an array a pointer to its first element is passed."""
        passed = []
        kinds = []
        for kind, value in zip(sig.args, values, strict=True):
            is_array = isinstance(kind, types.Array)
            passed.append(context.make_array(kind)(context, builder, value).data if is_array else value)
            kinds.append(types.CPointer(kind.dtype) if is_array else kind)
        entry = _entry_in(builder.module, function, constants, tuple(kinds), result)
        if around is None:
            return _result_of(builder, builder.call(entry, passed))
        entry.attributes.add("noinline")  # or its instructions may move before those of the first function
        before, after = around
        state = builder.call(_entry_in(builder.module, before, (), (), types.int64), [])
        returned = builder.call(entry, passed)
        builder.call(_entry_in(builder.module, after, (), (types.int64,), types.int64), [_result_of(builder, state)])
        return _result_of(builder, returned)

    # Numba takes the number of arguments from the signature: those of the traced function without the constants
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [*inspect.signature(function).parameters.values()]
    vars(typing)["__signature__"] = inspect.Signature([context, *parameters[len(constants) :]])
    typing.__name__ = function.__name__
    intrinsic: Callable[..., Any] = extending.intrinsic(typing)
    return intrinsic


def _result_of(builder: Any, returned: Any) -> Any:
    """Return the result in the structure that an entry returns."""
    return builder.extract_value(returned, 0)


def _entry_in(
    module: ir.Module,
    function: Any,
    constants: tuple[Constants, ...],
    kinds: tuple[types.Type, ...],
    result: types.Type,
) -> ir.Function:
    """Return the LLVM function of a caller's module that runs a traced function; it is emitted when first asked for.

    Its arguments are of these kinds; what is constant is part of its code. It returns a structure of the one result:
    Numba adds fast-math flags to calls that return floats.
    """
    unit = _units.setdefault(module, Unit(module, "fastq."))
    key = function, constants, kinds, result
    entry = unit.entries.get(key)
    if entry is None:
        name = f"fastq.{function.__name__}.entry{len(unit.entries)}"
        items = [Value(constant, DUMMY) for constant in constants]
        entry = unit.emit_entry(name, function, result, kinds, items, in_structure=True)
        entry.linkage = "internal"
        unit.entries[key] = entry
    return entry
