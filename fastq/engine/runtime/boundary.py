"""The boundary of Python and compiled code: functions, the fields of objects, and the floating-point mode of a thread.

All that the package assumes of the memory of Python and NumPy objects is here, and is checked when this is imported.

Kernels run in the floating-point mode of IEEE 754, whatever a caller or a library has set. Libraries that are linked
with -ffast-math have threads take subnormal numbers for 0, threads that start later inherit it, and a rounding mode
other than to nearest changes every quotient. The control register is MXCSR on x86-64 and FPCR on AArch64; elsewhere the
mode is assumed to be right. Python computes with NumPy, whose errors (`np.seterr`) are another state of the thread.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import numpy as np

from fastq.engine.code.shipped import Compile, shipped_or_compiled
from fastq.engine.runtime.shared_records import DATA, TYPE, VALUE
from fastq.system.signals import Held

# a function of a module, which imports one that is compiled: only where there is no machine code of it
ImportFunction = Callable[[], Callable[..., Any]]

METH_FASTCALL = 0x80
STANDARD = -1  # for the compiled function that sets the floating-point mode: that of IEEE 754


def _import_function_address() -> Compile:
    """Import what compiles functions, and with it Numba: only where there is no machine code of one."""
    from fastq.engine.runtime.instructions import function_address

    return function_address


_function_address = shipped_or_compiled(_import_function_address)


# --- checks -----------------------------------------------------------------------------------------------------------


def _word(item: object, k: int) -> int:
    """Return 64 bit word k of an object in memory."""
    return ctypes.c_int64.from_address(id(item) + 8 * k).value


@functools.cache
def keeps_value(dtype: np.dtype[Any]) -> bool:
    """Return whether scalars of a dtype, of NumPy or ml_dtypes, have their value where compiled code reads it."""
    one = dtype.type(1)
    value = np.array(one).tobytes()
    return ctypes.string_at(id(one) + 8 * VALUE, len(value)) == value


def check_abi() -> None:
    """Raise ImportError unless fields are where compiled code reads them."""
    build = sys.implementation.name, sys.byteorder, ctypes.sizeof(ctypes.c_void_p)
    array = np.arange(3.0)
    scalars = [np.dtype(kind) for kind in ("f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "i8")]
    if not (
        build == ("cpython", "little", 8)
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


def python_function(import_function: ImportFunction) -> Callable[..., Any]:
    """Make a Python function of a compiled one of METH_FASTCALL's three words, which is imported where it is compiled.

    The words are not used, the address of the arguments, and how many they are; it returns the address of a new object.
    A call takes a tenth of the time that it takes through Numba's own wrapper: decision D69.

    The function has only the address of its definition, which is therefore what it is bound to: functions that threads
    hold outlive this module at the end of the interpreter, where the garbage collector reads their definitions.
    """
    name = import_function.__name__.removeprefix("_import_").encode()
    definition = _MethodDef(name, _function_address(import_function), METH_FASTCALL, None)
    return cast(Callable[..., Any], _new_function(ctypes.addressof(definition), definition, None))


class OnceMade(Protocol):
    """What returns one function, which it makes at its first call and after each `cache_clear`."""

    def __call__(self) -> Callable[..., Any]:
        """Return the function."""

    def cache_clear(self) -> None:
        """Forget the function."""


def once_made(import_function: ImportFunction) -> OnceMade:
    """Return what makes the Python function of a compiled one when it is first called, and returns it at each call."""
    return functools.cache(lambda: python_function(import_function))


def clock() -> int:
    """Return the address of the function that reads the clock of `time.perf_counter`; it is public from 3.13 on."""
    name = "PyTime_PerfCounterRaw" if sys.version_info >= (3, 13) else "_PyTime_GetPerfCounter"
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


def new_acquired_lock() -> int:
    """Allocate an acquired PyThread lock and return its address.

    A thread that acquires it once more sleeps until another one releases it, which is how workers and callers are
    woken.
    """
    allocate = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThread_allocate_lock", ctypes.pythonapi))
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
    acquire = kind(("PyThread_acquire_lock", ctypes.pythonapi))
    lock = allocate()
    if not lock:
        raise MemoryError
    acquire(lock, 1)
    return int(lock)


# --- the floating-point mode ------------------------------------------------------------------------------------------

P = ParamSpec("P")
T = TypeVar("T")


def in_standard_mode(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function compute with floats of Python and NumPy in the mode of IEEE 754, where no result is an error.

    Under `np.errstate(all="raise")` of a caller a number that underflows is what it is otherwise.
    """
    return _in_mode(function, ignores_errors=True)


def in_ieee_mode(function: Callable[P, T]) -> Callable[P, T]:
    """Make a function compute in the mode of IEEE 754 that computes with floats of Python alone.

    These know nothing of `np.errstate`, which takes 0.9 us (Zen 4, 2026-11-29): a tenth of a small `fastq.compare`.
    """
    return _in_mode(function, ignores_errors=False)


def _in_mode(function: Callable[P, T], ignores_errors: bool) -> Callable[P, T]:
    """Make a function compute in the mode of IEEE 754, and give the thread its own mode back.

    In nearly all threads that is the mode already, which `_is_standard` sees without any compiled code. The first
    branch then calls the function, and neither loads nor calls what sets the control register.

    Elsewhere the exchange returns the mode of the thread. A signal between that return and the assignment to `mode`
    would raise KeyboardInterrupt with `mode` still None, and the thread would never get its own mode back. So signals
    are held back for these two steps.
    """

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        if _is_standard():
            if not ignores_errors:
                return function(*args, **kwargs)
            with np.errstate(all="ignore"):
                return function(*args, **kwargs)
        mode = None
        try:
            with Held():
                mode = _exchange()(STANDARD)
            if not ignores_errors:
                return function(*args, **kwargs)
            with np.errstate(all="ignore"):
                return function(*args, **kwargs)
        finally:
            if mode is not None:
                _exchange()(mode)

    return wrapper


# global names: Python itself would compute a sum of numbers that are written out, once, in the mode at that time
_ONE = 1.0
_SMALL = 2.0**-60
_LEAST_NORMAL = 2.0**-1022


def _is_standard() -> bool:
    """Return whether sums are rounded to nearest and subnormal numbers are kept.

    It is found without compiled code, to save time. To nearest, 2**-60 changes nothing of 1; rounded up or down, a sum
    or a difference is the next float. Where subnormal numbers count as 0, half of the least normal number is 0, or its
    double is.
    """
    subnormal = _LEAST_NORMAL * 0.5
    return _ONE + _SMALL == 1.0 == _ONE - _SMALL and subnormal > 0.0 and subnormal * 2.0 == _LEAST_NORMAL


def _import_exchange_modes() -> Callable[..., Any]:
    """Import the function that is compiled for `_exchange`, only where there is no machine code of it."""
    from fastq.engine.runtime.instructions import exchange_modes

    return exchange_modes


# gives the compiled function that sets the control register and returns its earlier value
_exchange = once_made(_import_exchange_modes)
