"""Prepared scales in memory: computed side by side in the lanes of a register, used one after the other."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import njit, traced
from fastq.kernels.formulas import PreparedScale, base_code, is_infinite, needs_division, prepare_scale

FIELD = v.REGISTER_BITS // 32  # numbers of 32 bits, or twice as many as there are of 64, of a field of prepared scales
PREPARED = 6 * FIELD


@njit
def prepare_lanes(spec, scales, zero_points, args, memory, n):
    """Write the prepared scales of n lanes to memory; return False if one is infinite or needs a division."""
    # tables need no division for infinity either
    if v.any_lane(needs_division(spec, scales)) or v.any_lane(is_infinite(scales)):
        return False
    store_prepared(memory, n, prepare_scale(spec, scales, zero_points, args.lowest, args.highest))
    return True


@traced
def store_prepared(memory, n, s):
    """Store n prepared scales, a lane each."""
    v.store(memory, 0, s.scale)
    v.store(memory, n, s.zero_point)
    v.store(memory, 2 * n, s.factor)
    v.store(memory, 3 * n, s.below)
    v.store(memory, 4 * n, s.above)
    v.store(_bases(memory, n), 0, base_code(s))


@traced
def load_prepared(memory, n, k):
    """Load number k of n prepared scales."""
    base = _bases(memory, n)[k]
    return PreparedScale(memory[k], memory[n + k], base, memory[2 * n + k], memory[3 * n + k], memory[4 * n + k])


@traced
def _bases(memory, n):
    """Return where n prepared scales have their `base`."""
    return v.cast_pointer(v.advance(memory, 5 * n), types.int32)
