"""Load scales and zero points from the operands of a kernel, and store those that it took from ranges."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.load_store import encode_as, load_elements, store_elements
from fastq.kernels.spec import parameter_type


@traced
def load_parameters(spec, operands, args, p, kind):
    """Load scales and zero points from p on, as many as `kind` has lanes.

    Scales in units of one for the array have no zero points: the second result is then that scale, which
    `prepare_scale` takes as `tensor`.
    """
    dtype = parameter_type(spec, operands.scale)
    scales = v.convert(load_elements(operands.scale, p, v.lanes_like(kind, operands.scale)), dtype)
    if spec.scale_kind == "tensor":
        return scales, args.tensor
    zero_points = load_elements(operands.zero_point, p, v.lanes_like(kind, operands.zero_point))
    return scales, v.convert(zero_points, dtype)


@traced
def store_parameters(spec, operands, p, scales, zero_points):
    """Store scales and zero points from p on, where the operation returns them."""
    if spec.op != "fake":
        store_elements(operands.scale, p, encode_as(scales, operands.scale))
        if spec.scale_kind != "tensor":
            v.store(operands.zero_point, p, _as_stored(zero_points, operands.zero_point.dtype))


@traced
def store_first_parameters(spec, operands, p, scales, zero_points, many):
    """Store the parameters of the first `many` lanes, if they are returned: others may belong to other threads."""
    each_scale = in_memory(scales)
    each_zero_point = in_memory(zero_points)
    for k in range(many):
        store_parameters(spec, operands, p + k, each_scale[k], each_zero_point[k])


@traced
def in_memory(lanes):
    """Return a pointer to lanes on the stack."""
    memory = v.scratch(lanes.n, lanes.dtype)
    v.store(memory, 0, lanes)
    return memory


@traced
def _as_stored(zero_points, dtype):
    """Convert zero points to the dtype in memory."""
    return (v.convert if isinstance(dtype, types.Float) else v.bounded_to_integer)(zero_points, dtype)
