"""The floating-point mode of a thread: kernels run in that of IEEE 754, whatever a caller or a library has set.

Libraries that are linked with -ffast-math have threads take subnormal numbers for 0, threads that start later inherit
it, and a rounding mode other than to nearest changes every quotient. The control register is MXCSR on x86-64 and FPCR
on AArch64; elsewhere the mode is taken for what it should be.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from llvmlite import ir
from numba import types
from numba.core import cgutils

from fastq.engine.jit import intrinsic, njit, target
from fastq.engine.runtime.cpython import int_value, local, new_int, python_function, words_at
from fastq.engine.simd.vector import call_llvm
from fastq.system.interrupts import Held

_IS_X86, _IS_ARM = target().triple.startswith("x86_64"), target().is_arm
# bits that choose how operations work, and their values in the mode of IEEE 754; x86 has flags of what happened beside
CONTROL, STANDARD = (0xFFC0, 0x1F80) if _IS_X86 else (-1, 0)


@intrinsic
def float_mode(typingctx: Any) -> Any:
    """Return the control register of this thread."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if _IS_X86:
            where = cgutils.alloca_once(builder, ir.IntType(32))
            call_llvm(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), [_bytes(builder, where)])
            return builder.zext(builder.load(where), ir.IntType(64))
        return call_llvm(builder, "llvm.aarch64.get.fpcr", ir.IntType(64), []) if _IS_ARM else ir.IntType(64)(0)

    return types.int64(), emit


@intrinsic
def set_float_mode(typingctx: Any, mode: Any) -> Any:
    """Set the control register of this thread."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if _IS_X86:
            where = cgutils.alloca_once(builder, ir.IntType(32))
            builder.store(builder.trunc(args[0], ir.IntType(32)), where)
            call_llvm(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), [_bytes(builder, where)])
        elif _IS_ARM:
            call_llvm(builder, "llvm.aarch64.set.fpcr", ir.VoidType(), [args[0]])
        return context.get_dummy_value()

    return types.void(types.int64), emit


def _bytes(builder: Any, where: Any) -> Any:
    return builder.bitcast(where, ir.IntType(8).as_pointer())


@njit
def enter_standard_mode():  # type: ignore[no-untyped-def]
    """Set the mode of IEEE 754; return the one before, for `leave_standard_mode`."""
    mode = float_mode()
    if mode & CONTROL != STANDARD:
        set_float_mode(STANDARD)
    return mode


@njit
def leave_standard_mode(mode):  # type: ignore[no-untyped-def]
    """Set the mode of before."""
    if mode & CONTROL != STANDARD:
        set_float_mode(mode)


# --- for functions of Python ------------------------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")


def in_standard_mode(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function compute with floats of Python and NumPy in the mode of IEEE 754."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        if _is_standard():
            return function(*args, **kwargs)
        mode = None
        try:
            with Held():
                mode = _exchange()(STANDARD)
            return function(*args, **kwargs)
        finally:
            if mode is not None:
                _exchange()(mode)

    return wrapper


_ONE, _SMALL, _LEAST_NORMAL = 1.0, 2.0**-60, 2.0**-1022


def _is_standard() -> bool:
    """Whether sums are rounded to nearest and subnormal numbers are kept; found without compiled code, to save time."""
    subnormal = _LEAST_NORMAL * 0.5
    return _ONE + _SMALL == 1.0 == _ONE - _SMALL and subnormal > 0.0 and subnormal * 2.0 == _LEAST_NORMAL


def _exchange_modes(_, arguments, count):  # type: ignore[no-untyped-def]
    mode = float_mode()
    set_float_mode(int_value((words_at(arguments)[0], local())))
    return new_int((mode,))


@functools.cache
def _exchange() -> Callable[[int], int]:
    """Return the compiled function that sets the control register and returns what it was."""
    return python_function(_exchange_modes)
