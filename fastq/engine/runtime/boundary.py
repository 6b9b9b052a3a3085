"""The boundary of Python and compiled code: functions, the fields of objects, and the floating-point mode of a thread.

All that the package assumes of the memory of Python and NumPy objects is here, and is checked when this is imported.

Kernels run in the floating-point mode of IEEE 754, whatever a caller or a library has set. Libraries that are linked
with -ffast-math have threads take subnormal numbers for 0, threads that start later inherit it, and a rounding mode
other than to nearest changes every quotient. The control register is MXCSR on x86-64 and FPCR on AArch64; elsewhere the
mode is taken for what it should be.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from fastq.engine import jit
from fastq.engine.jit import TARGET, njit
from fastq.engine.simd import instruction, pointer
from fastq.engine.simd.vector import call_llvm
from fastq.system.lazy import Held

_INT, _WORD = types.int64, ir.IntType(64)

# words of an object: its type; the value of a float or of a NumPy scalar; the address of the elements of an ndarray
TYPE, VALUE = object.__basicsize__ // 8 - 1, object.__basicsize__ // 8
DATA = VALUE

METH_FASTCALL = 0x80
LOCAL = 64  # words of `local`


# --- checks -----------------------------------------------------------------------------------------------------------


def _word(item: object, k: int) -> int:
    return ctypes.c_int64.from_address(id(item) + 8 * k).value


@functools.cache
def keeps_value(dtype: np.dtype[Any]) -> bool:
    """Return whether scalars of a dtype, of NumPy or ml_dtypes, have their value where compiled code reads it."""
    one = dtype.type(1)
    value = np.array(one).tobytes()
    return ctypes.string_at(id(one) + 8 * VALUE, len(value)) == value


def check_abi() -> None:
    """Raise ImportError unless fields are where compiled code reads them."""
    words = (sys.implementation.name, sys.byteorder, ctypes.sizeof(ctypes.c_void_p)) == ("cpython", "little", 8)
    array, scalars = np.arange(3.0), [np.dtype(kind) for kind in ("f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "i8")]
    if not (
        words
        and all(_word(item, TYPE) == id(type(item)) for item in (array, 1.5, 1, None, array[0]))
        and _word(array, DATA) == array.ctypes.data
        and ctypes.string_at(id(1.5) + 8 * VALUE, 8) == np.array(1.5).tobytes()
        and all(keeps_value(dtype) for dtype in scalars)
    ):
        raise ImportError(
            "fastq reads the fields of Python and NumPy objects, which this build keeps elsewhere: "
            f"{sys.version} on a {sys.byteorder}-endian CPU, NumPy {np.__version__}"
        )


check_abi()


# --- instructions -----------------------------------------------------------------------------------------------------


def _interface(name: str) -> Any:
    """Make an instruction that calls a function of Python's C interface with a tuple of words.

    Pointers and numbers pass as 64 bit integers, which every C ABI of a 64 bit CPU allows.
    """

    @instruction(_INT)
    def call(context: Any, builder: Any, sig: Any, words: Any) -> Any:
        count = sig.args[0].count
        function = ir.FunctionType(_WORD, [_WORD] * count)
        function = cgutils.get_or_insert_function(builder.module, function, name)
        return builder.call(function, [builder.extract_value(words, k) for k in range(count)])

    return call


acquire_lock = _interface("PyThread_acquire_lock")
release_lock = _interface("PyThread_release_lock")
release_interpreter = _interface("PyEval_SaveThread")
take_interpreter = _interface("PyEval_RestoreThread")
new_int = _interface("PyLong_FromLongLong")
int_value = _interface("PyLong_AsLongLongAndOverflow")


@instruction(lambda: _INT())
def local(context: Any, builder: Any, sig: Any) -> Any:
    """Return the address of `LOCAL` words of the stack: others at each place that asks, and the same at each pass."""
    return builder.ptrtoint(cgutils.alloca_once(builder, _WORD, size=LOCAL), _WORD)


@njit
def words_at(address):  # type: ignore[no-untyped-def]
    """Return a pointer to the words at an address."""
    return pointer(address, types.int64)


# the clock of `time.perf_counter`; its name became public in Python 3.13
_CLOCK_WRITES = sys.version_info >= (3, 13)
_read_clock = _interface("PyTime_PerfCounterRaw" if _CLOCK_WRITES else "_PyTime_GetPerfCounter")


@njit
def nanoseconds():  # type: ignore[no-untyped-def]
    """Read a clock that begins at any moment."""
    if _CLOCK_WRITES:
        base = local()
        _read_clock((base,))
        return words_at(base)[0]
    return _read_clock(())


# --- functions --------------------------------------------------------------------------------------------------------


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("ml_name", ctypes.c_char_p),
        ("ml_meth", ctypes.c_void_p),
        ("ml_flags", ctypes.c_int),
        ("ml_doc", ctypes.c_char_p),
    )


_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
    ("PyCFunction_NewEx", ctypes.pythonapi)
)


def python_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of METH_FASTCALL's three words, or load it, and make a Python function of it.

    The words are not used, the address of the arguments, and how many they are; it returns the address of a new object.
    A call takes 0.05 us, through Numba's own wrapper for ten integers 0.6.

    The function has only the address of its definition, which is therefore what it is bound to: functions that threads
    hold outlive this module at the end of the interpreter, where the garbage collector reads their definitions.
    """
    address = jit.kernel(function, _INT, _INT, _INT, _INT)
    definition = _MethodDef(function.__name__.encode(), address, METH_FASTCALL, None)
    return cast(Callable[..., Any], _new_function(ctypes.addressof(definition), definition, None))


def new_acquired_lock() -> int:
    """Allocate an acquired PyThread lock and return its address."""
    allocate = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThread_allocate_lock", ctypes.pythonapi))
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    acquire = kind(("PyThread_acquire_lock", ctypes.pythonapi))
    lock = allocate()
    if not lock:
        raise MemoryError
    acquire(lock, 1)
    return int(lock)


# --- the floating-point mode ------------------------------------------------------------------------------------------

_IS_X86, _IS_ARM = TARGET.triple.startswith("x86_64"), TARGET.is_arm
# bits that choose how operations work, and their values in the mode of IEEE 754; x86 has flags of what happened beside
CONTROL, STANDARD = (0xFFC0, 0x1F80) if _IS_X86 else (-1, 0)


@instruction(lambda: _INT())
def float_mode(context: Any, builder: Any, sig: Any) -> Any:
    """Return the control register of this thread."""
    if _IS_X86:
        where = cgutils.alloca_once(builder, ir.IntType(32))
        call_llvm(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), [_bytes(builder, where)])
        return builder.zext(builder.load(where), _WORD)
    return call_llvm(builder, "llvm.aarch64.get.fpcr", _WORD, []) if _IS_ARM else _WORD(0)


@instruction(lambda mode: types.void(_INT))
def set_float_mode(context: Any, builder: Any, sig: Any, mode: Any) -> None:
    """Set the control register of this thread."""
    if _IS_X86:
        where = cgutils.alloca_once(builder, ir.IntType(32))
        builder.store(builder.trunc(mode, ir.IntType(32)), where)
        call_llvm(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), [_bytes(builder, where)])
    elif _IS_ARM:
        call_llvm(builder, "llvm.aarch64.set.fpcr", ir.VoidType(), [mode])


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
