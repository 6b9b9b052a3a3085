"""Scales and zero points: loaded, computed from ranges, and stored; minima and maxima stored."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels import scales_of_ranges
from fastq.kernels.formulas import computes_in
from fastq.kernels.load_store import encode_as, load_elements, store_elements
from fastq.kernels.spec import parameter_type


@traced
def load_parameters(spec, operands, args, p, kind):
    """Load scales and zero points from p on, as many as `kind` has lanes.

    The scale of the array takes the place of zero points where scales are in units of that.
    """
    dtype = parameter_type(spec, operands.scale)
    scales = v.convert(load_elements(operands.scale, p, v.lanes_like(kind, operands.scale)), dtype)
    if spec.scale_kind == "tensor":
        return scales, args.tensor
    zero_points = load_elements(operands.zero_point, p, v.lanes_like(kind, operands.zero_point))
    return scales, v.convert(zero_points, dtype)


@traced
def range_parameters(spec, lo, hi, args, scale):
    """Compute scale and zero point of a range by the scheme, in the dtype of `scale`."""
    compute = computes_in(spec, scale)
    stored = scale.dtype
    lo, hi = v.convert(lo, compute), v.convert(hi, compute)
    if spec.range_scheme == "microscaling":
        return scales_of_ranges.power_of_two(lo, hi, spec.code.row.emax if spec.code is not None else 0, stored)
    if spec.range_scheme == "nvfp4":
        return scales_of_ranges.nvfp4(lo, hi, args.tensor, stored, spec.code)
    within = types.float64 if spec.rule.range.double else compute
    codes = spec.rule.range.codes
    lowest, highest = (args.lowest, args.highest) if codes is None else codes
    ends = v.convert(lo, within), v.convert(hi, within), v.convert(lowest, within), v.convert(highest, within)
    formula = scales_of_ranges.symmetric if spec.range_scheme == "symmetric" else scales_of_ranges.asymmetric
    scales, zero_points = formula(spec, *ends, compute)
    return v.convert(scales, stored), v.convert(zero_points, stored)


@traced
def mark_nan(spec, scales, nans):
    """Replace by NaN the scales of blocks with NaN, where that is how NaN is kept."""
    return v.select(nans, v.constant(float("nan"), scales), scales) if spec.keeps_nan_in_scale else scales


@traced
def store_parameters(spec, operands, p, scales, zero_points):
    """Store scales and zero points from p on, where the operation returns them."""
    if spec.op != "fake":
        store_elements(operands.scale, p, encode_as(scales, operands.scale))
        if spec.scale_kind != "tensor":
            v.store(operands.zero_point, p, _as_stored(zero_points, operands.zero_point.dtype))


@traced
def store_first_parameters(spec, operands, p, scales, zero_points, many):
    """Store those of the first `many` lanes, where the operation returns them: others may belong to other threads."""
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


@traced
def store_min_max(operands, p, los, his, nans):
    """Store minima and maxima of all but NaN from p on; where there was NaN, it counts as 0.0.

    -0.0 becomes 0.0, before it meets another zero: which of them was found depends on the order.
    """
    zero = v.constant(0, los)
    los, his = _with_zero(los + zero, his + zero, nans)
    v.store(operands.lo, p, los)
    v.store(operands.hi, p, his)


@traced
def _with_zero(los, his, nans):
    """Widen ranges to contain 0.0 where there was NaN."""
    zero = v.constant(0, los)
    return v.select(nans, v.minimum(los, zero), los), v.select(nans, v.maximum(his, zero), his)


@traced
def count_nan_as_zero(spec, los, his, nans):
    """Widen ranges that passed NaN over to contain 0.0, where NaN counts as that."""
    return _with_zero(los, his, nans) if spec.nan_widens_range else (los, his)
