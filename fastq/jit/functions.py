"""Declare compiled functions: `njit`, `specialize` and `intrinsic` are Numba's, with the options of kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
from numba.core import extending

from fastq.jit.options import OPTIONS, SHORT, jit_enabled

if SHORT:
    from fastq.jit.compiler import INLINED, Function, InlinedCompiler


def njit(function: Callable[..., Any]) -> Any:
    """Declare a compiled function as ``numba.njit`` does, with the options of kernels (`OPTIONS`).

    The result is a Numba dispatcher: call it from Python with scalars or arrays, and inspect it with `py_func`,
    `signatures`, `inspect_llvm` and `inspect_asm`. Compiled code that calls it, a kernel or an ``@njit`` function of
    anybody's, gets it inlined by LLVM instead of its machine code.
    """
    if SHORT:
        return Function(function, targetoptions=OPTIONS)
    with jit_enabled():
        return numba.jit(**OPTIONS)(function)


def specialize(choose: Callable[..., Any]) -> Any:
    """Overload a compiled function by type: `choose` takes the argument types and returns the implementation.

    It is ``numba.extending.overload`` with the options of kernels, of a function that exists in compiled code only. The
    implementation may be a function of `njit`.
    """
    options: Any = INLINED | {"pipeline_class": InlinedCompiler} if SHORT else OPTIONS

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
