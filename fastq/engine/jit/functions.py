"""The functions that exist in compiled code only: `traced` declares one, `instruction` one that emits LLVM itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fastq.engine.jit.value import function_being_emitted, is_emitting


class TracedFunction:
    """A function that Python runs on types; its calls are emitted.

    Attributes
    ----------
    function : Callable[..., Any]
        The function as it is written.
    body : emission.Python | statements.FunctionSource | None
        What emits it, once it was called.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function: Any = function
        self.body: Any = None
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Emit a call."""
        _refuse_call_from_python(self)
        return function_being_emitted().call(self, args, named)

    def __reduce__(self) -> str:
        """Return the name in its module, by which it is pickled."""
        return str(self.function.__qualname__)


class Instruction:
    """A function that emits its calls itself.

    Attributes
    ----------
    typed : Callable[..., Any]
        Returns for the types of arguments a signature, or None where it is not for them.
    emit : Callable[..., Any]
        Emits a call, for a context, a builder, the signature, and LLVM's values; returns LLVM's value, or None.
    signature : inspect.Signature
        The parameters.
    """

    def __init__(
        self, typed: Callable[..., Any], emit: Callable[..., Any], signature: inspect.Signature, name: str, doc: Any
    ) -> None:
        self.typed = typed
        self.emit = emit
        self.signature = signature
        functools.update_wrapper(self, emit)
        self.__name__ = name
        self.__doc__ = doc
        vars(self)["__signature__"] = signature  # else `inspect` shows that of the emitter

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Emit the instruction."""
        _refuse_call_from_python(self)
        if named:
            args = self.signature.bind(*args, **named).args
        return function_being_emitted().instruct(self, args)


def _refuse_call_from_python(function: Any) -> None:
    """Raise NotImplementedError unless a function is being emitted."""
    if not is_emitting():
        raise NotImplementedError(f"{function.__name__} exists in compiled code only")


def traced(function: Callable[..., Any]) -> Any:
    """Declare a function of compiled code: Python runs it on types and records the instructions, as ``jax.jit`` does.

    An `if` on what types tell chooses while it runs. What run-time values decide becomes branches and loops of LLVM, as
    do all loops of `while` and over ``range(...)``; loops over tuples are unrolled (`statements`). It may return
    constants: numbers, types, and functions.
    """
    return TracedFunction(function)


def instruction(typed: Callable[..., Any], name: str = "", doc: str = "") -> Callable[[Callable[..., Any]], Any]:
    """Declare an instruction by its emitter, ``f(context, builder, sig, *values)``; without a result it returns None.

    `typed` gives the signature for the types of arguments, None for others. Whoever makes several instructions with one
    emitter passes the name and the docstring of each.
    """

    def declare(emit: Callable[..., Any]) -> Instruction:
        """Make the instruction; its parameters are those of the emitter but for context, builder and sig."""
        _, _, _, *parameters = inspect.signature(emit).parameters.values()
        return Instruction(typed, emit, inspect.Signature(parameters), name or emit.__name__, doc or emit.__doc__)

    return declare
