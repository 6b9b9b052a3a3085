"""Declare compiled functions: `njit`, `specialize` and `intrinsic` stand for Numba's, with the options of kernels."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numba
from numba.core import extending
from numba.core.registry import CPUDispatcher

from fastq.engine.jit.options import OPTIONS, SHORT, jit_enabled

if SHORT:
    from fastq.engine.jit.pipeline import INLINED, Emitted, Function, InlinedCompiler, chosen


def njit(function: Callable[..., Any]) -> Any:
    """Declare a compiled function as ``numba.njit`` does, with the options of kernels (`OPTIONS`).

    The result is a Numba dispatcher: call it from Python with scalars or arrays, and inspect it with `py_func`,
    `signatures`, `inspect_llvm` and `inspect_asm`. Compiled code that calls it, a kernel or an ``@njit`` function of
    anybody's, gets it inlined by LLVM instead of its machine code. A function without a branch is emitted into its
    caller, with the caller's error model and fast-math flags: kernels have none of either.
    """
    if SHORT:
        return Function(function, targetoptions=OPTIONS)
    with jit_enabled() if numba.config.DISABLE_JIT else contextlib.nullcontext():  # see `lazy.module`
        return numba.jit(**OPTIONS)(function)


def specialize(choose: Callable[..., Any]) -> Any:
    """Overload a compiled function by type: `choose` takes the argument types and returns the implementation.

    The function exists in compiled code only. The implementation may be a function of `njit`, or a constant of the
    types: a number, or a type.
    """

    @functools.wraps(choose)
    def implementation(*arguments: Any) -> Any:
        found = choose(*arguments)
        is_function = found is None or isinstance(found, FunctionType | CPUDispatcher)
        return found if is_function else lambda *_: found

    stub = _in_compiled_code(choose, inspect.signature(choose))
    if SHORT:
        Emitted(stub, chosen(implementation))
    else:
        overload(stub, implementation)
    return stub


def _in_compiled_code(function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
    """Return what stands for a function that exists in compiled code only."""

    @functools.wraps(function)
    def stub(*_: Any, **__: Any) -> None:
        raise NotImplementedError(f"{function.__name__} exists in compiled code only")

    vars(stub)["__signature__"] = signature
    return stub


def overload(function: Callable[..., Any], choose: Callable[..., Any], *, prefer_literal: bool = False) -> None:
    """Give a Python function an implementation in compiled code, which `choose` returns for argument types.

    It is ``numba.extending.overload`` with the options of kernels.
    """
    options: Any = INLINED | {"pipeline_class": InlinedCompiler} if SHORT else OPTIONS

    @functools.wraps(choose)
    def implementation(*arguments: Any, **named: Any) -> Any:
        found = choose(*arguments, **named)
        return getattr(found, "py_func", found)

    extending.overload(function, strict=False, jit_options=options, prefer_literal=prefer_literal)(implementation)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Register a typing function as Numba's `intrinsic` does: it returns a signature and what emits the call."""
    if not SHORT:
        return extending.intrinsic(function)
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]  # without the typing context
    stub = _in_compiled_code(function, signature.replace(parameters=parameters))
    Emitted(stub, function)
    return stub
