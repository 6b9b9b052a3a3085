"""The floating-point mode of a thread: kernels run in that of IEEE 754, whatever a caller or a library has set.

Libraries that are linked with -ffast-math have threads take subnormal numbers for 0, threads that start later inherit
it, and a rounding mode other than to nearest changes every quotient. The control register is MXCSR on x86-64 and FPCR
on AArch64; elsewhere the mode is taken for what it should be.
"""

from __future__ import annotations

from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils

from fastq.jit import intrinsic, njit
from fastq.simd.vector import call_llvm

_IS_X86 = binding.get_process_triple().startswith("x86_64")
_IS_ARM = binding.get_process_triple().startswith(("aarch64", "arm64"))
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
