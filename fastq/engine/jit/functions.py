"""Declare compiled functions: `njit` and `intrinsic` stand for Numba's, with the options of kernels."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from numba.core import extending

from fastq.engine.jit import emission
from fastq.engine.jit.options import OPTIONS
from fastq.engine.jit.pipeline import INLINED, Emitted, Function, InlinedCompiler
from fastq.engine.jit.statements import run_statements
from fastq.engine.jit.tracing import trace


def njit(function: Callable[..., Any]) -> Any:
    """Declare a compiled function as ``numba.njit`` does, with the options of kernels (`OPTIONS`).

    The result is a Numba dispatcher: call it from Python with scalars or arrays, and inspect it with `py_func`,
    `signatures`, `inspect_llvm` and `inspect_asm`. A kernel that calls it emits its statements, see `statements`. An
    ``@njit`` function of anybody's that calls it gets it inlined by LLVM instead of its machine code.
    """
    made = Function(function, targetoptions=OPTIONS)
    emission.known[made] = emission.Callee(made, function, run_statements)
    return made


def traced(function: Callable[..., Any]) -> Any:
    """Declare a function that Python runs on types: its callers emit what it calls.

    It exists in compiled code only. It may branch on what types tell, but not on values, see `tracing`; what it returns
    may be a constant: a number, or a type.
    """
    stub = _in_compiled_code(function, inspect.signature(function))
    Emitted(stub, lambda context, *args: trace(context, function, args))
    emission.known[stub] = emission.Callee(stub, function, emission.run_in_python)
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
    options = INLINED | {"pipeline_class": InlinedCompiler}

    @functools.wraps(choose)
    def implementation(*arguments: Any, **named: Any) -> Any:
        found = choose(*arguments, **named)
        return getattr(found, "py_func", found)

    extending.overload(function, strict=False, jit_options=options, prefer_literal=prefer_literal)(implementation)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Register a typing function as Numba's `intrinsic` does: it returns a signature and what emits the call."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]  # without the typing context
    stub = _in_compiled_code(function, signature.replace(parameters=parameters))
    Emitted(stub, function)
    emission.known[stub] = emission.Instruction(stub, function)
    return stub
