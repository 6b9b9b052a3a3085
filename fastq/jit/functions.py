"""Declare compiled functions: `njit`, `specialize` and `intrinsic` are Numba's, with the options of kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from numba import types
from numba.core import errors, extending
from numba.core.registry import CPUDispatcher
from numba.core.typing import make_concrete_template

from fastq.jit.compiler import INLINED, OPTIONS, InlinedCompiler, jit_enabled


def njit(function: Callable[..., Any]) -> Any:
    """Declare a compiled function as ``numba.njit`` does, with the options of kernels (`OPTIONS`).

    The result is a Numba dispatcher: call it from Python with scalars or arrays, and inspect it with `py_func`,
    `signatures`, `inspect_llvm` and `inspect_asm`. Compiled code that calls it, a kernel or an ``@njit`` function of
    anybody's, gets it inlined by LLVM instead of its machine code.
    """
    return Function(function, targetoptions=OPTIONS)


def specialize(choose: Callable[..., Any]) -> Any:
    """Overload a compiled function by type: `choose` takes the argument types and returns the implementation.

    It is ``numba.extending.overload`` with the options of kernels, of a function that exists in compiled code only. The
    implementation may be a function of `njit`.
    """
    options: Any = INLINED | {"pipeline_class": InlinedCompiler}

    def chosen_when_compiled(*_: Any) -> None:
        raise NotImplementedError(f"{choose.__name__} exists in compiled code only")

    @functools.wraps(choose)
    def implementation(*arguments: Any, **named: Any) -> Any:
        chosen = choose(*arguments, **named)
        return getattr(chosen, "py_func", chosen)

    functools.update_wrapper(chosen_when_compiled, choose)
    extending.overload(chosen_when_compiled, strict=False, jit_options=options)(implementation)
    return chosen_when_compiled


def intrinsic(function: Callable[..., Any]) -> Any:
    """Register a typing function as Numba's `intrinsic` does, whose annotation rejects the call of an intrinsic."""
    return extending.intrinsic(function)


class Function(CPUDispatcher):  # type: ignore[misc]
    """Dispatcher with two tables of signatures: its own for calls from Python, another for calls from compiled code.

    Numba's pipeline optimizes each function with all that it calls and makes machine code and wrappers for it, which
    nothing runs when the caller is compiled too.
    """

    @functools.cached_property
    def inlined(self) -> Inlined:
        """Dispatcher for calls from compiled code."""
        return Inlined(self.py_func, targetoptions=INLINED, pipeline_class=InlinedCompiler)

    @property
    def _numba_type_(self) -> types.Type:
        return types.Dispatcher(self.inlined)

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        with jit_enabled():
            return super()._compile_for_args(*args, **kws)


class Inlined(CPUDispatcher):  # type: ignore[misc]
    """Dispatcher of a function that is inlined into compiled code, once for every type but not for every literal."""

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Compile for types without literals, for literals where it cannot be typed otherwise."""
        named = dict(kws)
        try:
            return self._template([*map(types.unliteral, args)], {name: types.unliteral(named[name]) for name in named})
        except errors.TypingError:
            return self._template(args, named)

    def _template(self, args: Any, kws: Any) -> Any:
        """Return a template of the one signature that is called: Numba would rate all that were ever compiled."""
        pysig, folded = self.fold_argument_types(args, kws)
        self.compile(folded)
        signatures = [self.overloads[folded].signature]
        return make_concrete_template(f"Call({self.__name__})", self.__name__, signatures), pysig, folded, {}
