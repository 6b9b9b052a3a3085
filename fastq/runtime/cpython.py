"""Compiled functions that Python calls as it calls those of C: with objects, which they look into themselves."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, cast

from llvmlite import ir
from numba import types
from numba.core import cgutils

from fastq import jit
from fastq.jit import intrinsic, njit
from fastq.simd import pointer

_INT, _WORD = types.int64, ir.IntType(64)

# words of an object: its type, and where what it holds begins, the value of a float or of a NumPy scalar or the fields
# of an ndarray. All this is part of the ABI of Python and NumPy
TYPE, VALUE = object.__basicsize__ // 8 - 1, object.__basicsize__ // 8
DATA, NDIM, DIMENSIONS, DTYPE, FLAGS = VALUE, VALUE + 1, VALUE + 2, VALUE + 5, VALUE + 6

METH_FASTCALL = 0x80
LOCAL = 64  # words of `local`


# --- instructions -----------------------------------------------------------------------------------------------------


def _interface(name: str) -> Any:
    """Make an instruction that calls a function of Python's C interface with a tuple of words.

    Pointers and numbers pass as 64 bit integers, which every C ABI of a 64 bit CPU allows.
    """

    @intrinsic
    def call(typingctx: Any, words: Any) -> Any:
        def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            function = ir.FunctionType(_WORD, [_WORD] * words.count)
            function = cgutils.get_or_insert_function(builder.module, function, name)
            return builder.call(function, [builder.extract_value(args[0], k) for k in range(words.count)])

        return _INT(words), emit

    return call


acquire_lock = _interface("PyThread_acquire_lock")
release_lock = _interface("PyThread_release_lock")
release_interpreter = _interface("PyEval_SaveThread")
take_interpreter = _interface("PyEval_RestoreThread")
new_int = _interface("PyLong_FromLongLong")
new_bytes = _interface("PyBytes_FromStringAndSize")
int_value = _interface("PyLong_AsLongLongAndOverflow")
tuple_size = _interface("PyTuple_Size")
tuple_item = _interface("PyTuple_GetItem")


@intrinsic
def local(typingctx: Any) -> Any:
    """Address of `LOCAL` words of the stack: others at each place that asks, the same ones each time it is passed."""

    def emit(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(cgutils.alloca_once(builder, _WORD, size=LOCAL), _WORD)

    return _INT(), emit


@njit
def words_at(address):  # type: ignore[no-untyped-def]
    """Words at an address."""
    return pointer(address, types.int64)


# the clock of `time.perf_counter`; its name became public in Python 3.13
_CLOCK_WRITES = sys.version_info >= (3, 13)
_read_clock = _interface("PyTime_PerfCounterRaw" if _CLOCK_WRITES else "_PyTime_GetPerfCounter")


@njit
def nanoseconds():  # type: ignore[no-untyped-def]
    """Time that has passed since any moment."""
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


_definitions: list[_MethodDef] = []  # Python keeps their addresses
_new_function = ctypes.PYFUNCTYPE(ctypes.py_object, *[ctypes.c_void_p] * 3)(("PyCFunction_NewEx", ctypes.pythonapi))


def python_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function of three words, or load it: nothing, the address of the arguments, and how many they are.

    It returns the address of a new object. A call costs 0.05 us, through Numba's own entry for ten integers 0.6.
    """
    address = jit.kernel(function, _INT, _INT, _INT, _INT)
    definition = _MethodDef(function.__name__.encode(), address, METH_FASTCALL, None)
    _definitions.append(definition)
    return cast(Callable[..., Any], _new_function(ctypes.addressof(definition), None, None))
