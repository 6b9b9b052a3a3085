"""Prepared scales in memory: computed side by side in the lanes of a register, used one after the other."""

from __future__ import annotations

from numba import types

from fastq.jit import njit
from fastq.kernels.formulas import PreparedScale, base_code
from fastq.simd import REGISTER_BITS, advance, cast_pointer, store

PREPARED = 6 * REGISTER_BITS // 32  # numbers of 32 bits, or half as many of 64, of prepared scales that fill a register


@njit
def store_prepared(memory, n, s):
    """Store n prepared scales, a lane each."""
    store(memory, 0, s.scale)
    store(memory, n, s.zero_point)
    store(memory, 2 * n, s.factor)
    store(memory, 3 * n, s.below)
    store(memory, 4 * n, s.above)
    store(_bases(memory, n), 0, base_code(s))


@njit
def load_prepared(memory, n, k):
    """Load number k of n prepared scales."""
    base = _bases(memory, n)[k]
    return PreparedScale(memory[k], memory[n + k], base, memory[2 * n + k], memory[3 * n + k], memory[4 * n + k])


@njit
def _bases(memory, n):
    """Return where n prepared scales have their `base`."""
    return cast_pointer(advance(memory, 5 * n), types.int32)
