"""The loop that merges the partial results of threads."""

from __future__ import annotations

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels import body


@traced
def merge_partials(spec, operands, args, units):
    """Merge results start..stop of all partial results into the first partial result."""
    one = v.dtype_of(operands[0])
    for p in range(units.start, units.stop):
        state = body.load_state(operands, p, one)
        for part in range(1, args.partials):
            state = body.merge_states(operands, body.load_state(operands, part * args.partial_stride + p, one), state)
        body.save_state(operands, p, state)
    return 0
