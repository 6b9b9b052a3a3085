"""Atomic operations on 64 bit words, all sequentially consistent, and the pause of a spinning thread."""

from __future__ import annotations

from llvmlite import ir
from numba import types

from fastq.engine.jit import TARGET
from fastq.engine.simd.vector import call_llvm, instruction

_WORD = types.CPointer(types.int64)


@instruction(lambda where: types.int64(_WORD))
def atomic_load(context, builder, sig, where):
    """Return ``where[0]``."""
    return builder.load_atomic(where, "seq_cst", 8)


@instruction(lambda where, value: types.void(_WORD, types.int64))
def atomic_store(context, builder, sig, where, value):
    """Set ``where[0]`` to `value`."""
    builder.store_atomic(value, where, "seq_cst", 8)


def _fetch(name: str, operation: str, doc: str):
    """Make an instruction that changes a word by an operation of LLVM's "atomicrmw", and returns what it was."""

    @instruction(lambda where, value: types.int64(_WORD, types.int64), name, doc)
    def fetch(context, builder, sig, where, value):
        return builder.atomic_rmw(operation, where, value, "seq_cst")

    return fetch


fetch_add = _fetch("fetch_add", "add", "Add `value` to ``where[0]`` and return the previous value.")
fetch_or = _fetch("fetch_or", "or", "Set the bits of `value` in ``where[0]`` and return the previous value.")
exchange = _fetch("exchange", "xchg", "Set ``where[0]`` to `value` and return the previous value.")


@instruction(lambda where, expected, value: types.boolean(_WORD, types.int64, types.int64))
def compare_exchange(context, builder, sig, where, expected, value):
    """Set ``where[0]`` to `value` if it is `expected`; return whether it was."""
    return builder.extract_value(builder.cmpxchg(where, expected, value, "seq_cst", "seq_cst"), 1)


# LLVM's intrinsic for a spin loop, "" of none, and its operands
_PAUSE: tuple[str, list[int]] = ("", [])
if TARGET.is_arm:
    _PAUSE = "llvm.aarch64.hint", [1]
elif TARGET.triple.startswith("x86_64"):
    _PAUSE = "llvm.x86.sse2.pause", []


@instruction(lambda: types.void())
def pause(context, builder, sig):
    """Tell the CPU that this thread spins, where it has an instruction for that."""
    name, operands = _PAUSE
    if name:
        call_llvm(builder, name, ir.VoidType(), [ir.IntType(32)(operand) for operand in operands])
