"""Atomic operations on 64 bit words, all sequentially consistent, and the pause of a spinning thread."""

from __future__ import annotations

from llvmlite import ir
from numba import types

from fastq.engine.jit import TARGET, intrinsic
from fastq.engine.simd.vector import call_llvm

_WORD = types.CPointer(types.int64)


@intrinsic
def atomic_load(typingctx, where):
    """Return ``where[0]``."""

    def emit(context, builder, sig, args):
        return builder.load_atomic(args[0], "seq_cst", 8)

    return types.int64(_WORD), emit


@intrinsic
def atomic_store(typingctx, where, value):
    """Set ``where[0]`` to `value`."""

    def emit(context, builder, sig, args):
        builder.store_atomic(args[1], args[0], "seq_cst", 8)
        return context.get_dummy_value()

    return types.void(_WORD, types.int64), emit


def _fetch(name: str, operation: str, doc: str):
    def typed(typingctx, where, value):
        def emit(context, builder, sig, args):
            return builder.atomic_rmw(operation, args[0], args[1], "seq_cst")

        return types.int64(_WORD, types.int64), emit

    typed.__name__, typed.__doc__ = name, doc
    return intrinsic(typed)


fetch_add = _fetch("fetch_add", "add", "Add `value` to ``where[0]`` and return what was there before.")
fetch_or = _fetch("fetch_or", "or", "Set the bits of `value` in ``where[0]`` and return what was there before.")
exchange = _fetch("exchange", "xchg", "Set ``where[0]`` to `value` and return what was there before.")


@intrinsic
def compare_exchange(typingctx, where, expected, value):
    """Set ``where[0]`` to `value` if it is `expected`; return whether it was."""

    def emit(context, builder, sig, args):
        return builder.extract_value(builder.cmpxchg(*args, "seq_cst", "seq_cst"), 1)

    return types.boolean(_WORD, types.int64, types.int64), emit


# LLVM's intrinsic for a spin loop, "" of none, and its operands
_PAUSE: tuple[str, list[int]] = ("", [])
if TARGET.is_arm:
    _PAUSE = "llvm.aarch64.hint", [1]
elif TARGET.triple.startswith("x86_64"):
    _PAUSE = "llvm.x86.sse2.pause", []


@intrinsic
def pause(typingctx):
    """Tell the CPU that this thread spins, where it has an instruction for that."""

    def emit(context, builder, sig, args):
        name, operands = _PAUSE
        if name:
            call_llvm(builder, name, ir.VoidType(), [ir.IntType(32)(operand) for operand in operands])
        return context.get_dummy_value()

    return types.void(), emit
