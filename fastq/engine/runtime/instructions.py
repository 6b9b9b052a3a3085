"""Functions of Python's C interface for compiled code, and the floating-point mode of a thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from fastq.engine import jit
from fastq.engine.jit import TARGET, traced
from fastq.engine.runtime.shared_records import CLOCK, LOCAL
from fastq.engine.simd import instruction, pointer
from fastq.engine.simd.vector import call_llvm, stack_memory
from fastq.system.imports import undisturbed

_INT = types.int64
_WORD = ir.IntType(64)


def function_address(import_function: Callable[[], Callable[..., Any]]) -> int:
    """Compile a function of METH_FASTCALL's three words, or load it; return its address."""
    with undisturbed():
        function = import_function()
    return jit.kernel(function, _INT, _INT, _INT, _INT)


# --- instructions -----------------------------------------------------------------------------------------------------


def _make_interface_call(name: str) -> Any:
    """Make an instruction that calls a function of Python's C interface with a tuple of words.

    Pointers and numbers pass as 64 bit integers, which every C ABI of a 64 bit CPU allows.
    """

    @instruction(_INT)
    def call_by_name(context: Any, builder: Any, sig: Any, words: Any) -> Any:
        """Emit the call with the words of a tuple as its arguments."""
        count = sig.args[0].count
        return call_llvm(builder, name, _WORD, [builder.extract_value(words, k) for k in range(count)])

    return call_by_name


acquire_lock = _make_interface_call("PyThread_acquire_lock")
release_lock = _make_interface_call("PyThread_release_lock")
release_interpreter = _make_interface_call("PyEval_SaveThread")
take_interpreter = _make_interface_call("PyEval_RestoreThread")
new_int = _make_interface_call("PyLong_FromLongLong")
int_value = _make_interface_call("PyLong_AsLongLongAndOverflow")


@instruction(lambda: _INT())
def local(context: Any, builder: Any, sig: Any) -> Any:
    """Return the address of `LOCAL` words of the stack: others at each place that asks, and the same at each pass."""
    return builder.ptrtoint(stack_memory(builder, _WORD, LOCAL), _WORD)


@traced
def words_at(address):  # type: ignore[no-untyped-def]
    """Return a pointer to the words at an address."""
    return pointer(address, types.int64)


@instruction(lambda function, words: _INT(_INT, words))
def call_c(context: Any, builder: Any, sig: Any, function: Any, words: Any) -> Any:
    """Call a C function at an address with words, the first of which kernels do not use."""
    values = [builder.extract_value(words, k) for k in range(sig.args[1].count)]
    kind = ir.FunctionType(_WORD, [_WORD] * len(values)).as_pointer()
    return builder.call(builder.inttoptr(function, kind), values)


@traced
def nanoseconds(words):  # type: ignore[no-untyped-def]
    """Read a clock that begins at any moment, by the function whose address is in the words.

    Python's own function is called: up to 3.12 it returns the time, from 3.13 on it writes the time to its argument and
    returns 0, so whichever is not 0 is the time.
    """
    base = local()
    words_at(base)[0] = 0
    returned = call_c(words[CLOCK], (base,))
    written = words_at(base)[0]
    return written if written != 0 else returned


# --- the floating-point mode ------------------------------------------------------------------------------------------

_IS_X86 = TARGET.triple.startswith("x86_64")
_IS_ARM = TARGET.is_arm
# bits that choose how operations work, and their values in the mode of IEEE 754; x86 has status flags next to
CONTROL, STANDARD = (0xFFC0, 0x1F80) if _IS_X86 else (-1, 0)
# those with the flags of x86 that NumPy looks at: not that of inexact results, nor that of subnormal operands
HEARD = 0xFFDD if _IS_X86 else -1


@instruction(lambda: _INT())
def float_mode(context: Any, builder: Any, sig: Any) -> Any:
    """Return the control register of this thread: MXCSR or FPCR, and 0 on a CPU that has neither."""
    if _IS_X86:
        where = stack_memory(builder, ir.IntType(32))
        call_llvm(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), [_bytes(builder, where)])
        return builder.zext(builder.load(where), _WORD)
    return call_llvm(builder, "llvm.aarch64.get.fpcr", _WORD, []) if _IS_ARM else _WORD(0)


@instruction(lambda mode: types.void(_INT))
def set_float_mode(context: Any, builder: Any, sig: Any, mode: Any) -> None:
    """Set the control register of this thread; a CPU without one of the two stays as it is."""
    if _IS_X86:
        where = stack_memory(builder, ir.IntType(32))
        builder.store(builder.trunc(mode, ir.IntType(32)), where)
        call_llvm(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), [_bytes(builder, where)])
    elif _IS_ARM:
        call_llvm(builder, "llvm.aarch64.set.fpcr", ir.VoidType(), [mode])


@instruction(lambda: _INT())
def float_flags(context: Any, builder: Any, sig: Any) -> Any:
    """Return the status flags of this thread, where they are not in its control register."""
    return call_llvm(builder, "llvm.aarch64.get.fpsr", _WORD, []) if _IS_ARM else _WORD(0)


@instruction(lambda flags: types.void(_INT))
def set_float_flags(context: Any, builder: Any, sig: Any, flags: Any) -> None:
    """Set the status flags of this thread, where they are not in its control register."""
    if _IS_ARM:
        call_llvm(builder, "llvm.aarch64.set.fpsr", ir.VoidType(), [flags])


def _bytes(builder: Any, where: Any) -> Any:
    """Emit a pointer to the bytes at a place, as LLVM's functions for MXCSR take."""
    return builder.bitcast(where, ir.IntType(8).as_pointer())


@traced
def enter_standard_mode():  # type: ignore[no-untyped-def]
    """Set the mode of IEEE 754; return the one before, for `leave_standard_mode`."""
    mode = float_mode()
    if mode & CONTROL != STANDARD:
        set_float_mode(STANDARD)
    return mode


@traced
def leave_standard_mode(mode):  # type: ignore[no-untyped-def]
    """Set the mode of before."""
    if mode & CONTROL != STANDARD:
        set_float_mode(mode)


@traced
def enter_quietly():  # type: ignore[no-untyped-def]
    """Set the mode of IEEE 754; return mode and flags of before, for `leave_quietly`."""
    mode = enter_standard_mode()
    return (float_flags() << 32) | mode


@traced
def leave_quietly(before):  # type: ignore[no-untyped-def]
    """Set mode and flags of before: nobody sees what was computed meanwhile.

    It returns 0, as `numba_intrinsic` calls functions that return an int64.
    """
    mode = before & 0xFFFFFFFF
    if (float_mode() ^ mode) & HEARD != 0:
        set_float_mode(mode)
    set_float_flags(before >> 32)
    return 0


def exchange_modes(_, arguments, count):  # type: ignore[no-untyped-def]
    """Set the control register of this thread, to the mode of IEEE 754 by -1; return what it was."""
    mode = float_mode()
    wanted = int_value((words_at(arguments)[0], local()))
    set_float_mode(wanted if wanted >= 0 else STANDARD)
    return new_int((mode,))
