"""Declare compiled functions: `njit`, `specialize` and `intrinsic` are Numba's, with the options of kernels."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numba
from numba.core import extending

from fastq.engine.jit.options import OPTIONS, SHORT, jit_enabled

if SHORT:
    from fastq.engine.jit.pipeline import INLINED, Function, InlinedCompiler


def njit(function: Callable[..., Any]) -> Any:
    """Declare a compiled function as ``numba.njit`` does, with the options of kernels (`OPTIONS`).

    The result is a Numba dispatcher: call it from Python with scalars or arrays, and inspect it with `py_func`,
    `signatures`, `inspect_llvm` and `inspect_asm`. Compiled code that calls it, a kernel or an ``@njit`` function of
    anybody's, gets it inlined by LLVM instead of its machine code.
    """
    if SHORT:
        return Function(function, targetoptions=OPTIONS)
    with jit_enabled() if numba.config.DISABLE_JIT else contextlib.nullcontext():  # see `lazy.module`
        return numba.jit(**OPTIONS)(function)


def specialize(choose: Callable[..., Any]) -> Any:
    """Overload a compiled function by type: `choose` takes the argument types and returns the implementation.

    It is `overload` of a function that exists in compiled code only. The implementation may be a function of `njit`.
    """

    def chosen_when_compiled(*_: Any) -> None:
        raise NotImplementedError(f"{choose.__name__} exists in compiled code only")

    functools.update_wrapper(chosen_when_compiled, choose)
    overload(chosen_when_compiled, choose)
    return chosen_when_compiled


def overload(function: Callable[..., Any], choose: Callable[..., Any], *, prefer_literal: bool = False) -> None:
    """Give a Python function an implementation in compiled code, which `choose` returns for argument types.

    It is ``numba.extending.overload`` with the options of kernels.
    """
    options: Any = INLINED | {"pipeline_class": InlinedCompiler} if SHORT else OPTIONS

    @functools.wraps(choose)
    def implementation(*arguments: Any, **named: Any) -> Any:
        chosen = choose(*arguments, **named)
        return getattr(chosen, "py_func", chosen)

    extending.overload(function, strict=False, jit_options=options, prefer_literal=prefer_literal)(implementation)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Register a typing function as Numba's `intrinsic` does, whose annotation rejects the call of an intrinsic."""
    return extending.intrinsic(function)
