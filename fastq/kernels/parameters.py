"""Scales and zero points: loaded, computed from ranges, and stored; minima and maxima stored."""

from __future__ import annotations

from numba import types

from fastq.engine import simd as v
from fastq.engine.jit import njit, specialize
from fastq.kernels import ranges
from fastq.kernels.formulas import computes_in
from fastq.kernels.load_store import encode_as, load_elements, store_elements
from fastq.kernels.spec import parameter_type


@njit
def load_scale(spec, operands, p, kind):
    """Load scales from p on, as many as `kind` has lanes."""
    scales = load_elements(operands.scale, p, v.lanes_like(kind, operands.scale))
    return v.convert(scales, parameter_type(spec, operands.scale))


@specialize
def load_zero_point(spec, operands, args, p, kind):
    """Load zero points from p on, as many as `kind` has lanes, or the scale of the array that takes their place."""
    if spec.scale_kind == "tensor":
        return lambda spec, operands, args, p, kind: args.tensor
    return lambda spec, operands, args, p, kind: v.convert(
        load_elements(operands.zero_point, p, v.lanes_like(kind, operands.zero_point)),
        parameter_type(spec, operands.scale),
    )


@specialize
def range_parameters(spec, lo, hi, args, scale):
    """Compute scale and zero point of a range by the scheme, in the dtype of `scale`."""
    compute, stored = computes_in(spec, scale), scale.dtype
    if spec.range_scheme == "microscaling":
        below = spec.code.row.emax if spec.code is not None else 0
        return lambda spec, lo, hi, args, scale: ranges.power_of_two(
            v.convert(lo, compute), v.convert(hi, compute), below, stored
        )
    if spec.range_scheme == "nvfp4":
        element = spec.code
        return lambda spec, lo, hi, args, scale: ranges.nvfp4(
            v.convert(lo, compute), v.convert(hi, compute), args.tensor, stored, element
        )
    formula = ranges.symmetric if spec.range_scheme == "symmetric" else ranges.asymmetric
    within, codes = types.float64 if spec.rule.range.double else compute, spec.rule.range.codes

    def of_range(spec, lo, hi, args, scale):
        lo, hi = v.convert(v.convert(lo, compute), within), v.convert(v.convert(hi, compute), within)
        lowest, highest = (args.lowest, args.highest) if codes is None else codes
        scales, zero_points = formula(spec, lo, hi, v.convert(lowest, within), v.convert(highest, within), compute)
        return v.convert(scales, stored), v.convert(zero_points, stored)

    return of_range


@specialize
def mark_nan(spec, scales, nans):
    """Replace by NaN the scales of blocks with NaN, where that is how NaN is kept."""
    if spec.keeps_nan_in_scale:
        return lambda spec, scales, nans: v.select(nans, v.constant(float("nan"), scales), scales)
    return lambda spec, scales, nans: scales


@specialize
def store_parameters(spec, operands, p, scales, zero_points):
    """Store scales and zero points from p on, where the operation returns them."""
    if spec.op == "fake":
        return lambda spec, operands, p, scales, zero_points: None
    if spec.scale_kind == "tensor":
        return lambda spec, operands, p, scales, zero_points: store_elements(
            operands.scale, p, encode_as(scales, operands.scale)
        )

    def store_both(spec, operands, p, scales, zero_points):
        store_elements(operands.scale, p, encode_as(scales, operands.scale))
        v.store(operands.zero_point, p, _as_stored(zero_points, operands.zero_point))

    return store_both


@specialize
def store_first_parameters(spec, operands, p, scales, zero_points, many):
    """Store those of the first `many` lanes, where the operation returns them: others may belong to other threads."""
    lanes, kinds = scales.n, (scales.dtype, zero_points.dtype)

    def store_each(spec, operands, p, scales, zero_points, many):
        each_scale, each_zero_point = v.scratch(lanes, kinds[0]), v.scratch(lanes, kinds[1])
        v.store(each_scale, 0, scales)
        v.store(each_zero_point, 0, zero_points)
        for k in range(many):
            store_parameters(spec, operands, p + k, each_scale[k], each_zero_point[k])

    return store_each


@specialize
def _as_stored(zero_points, where):
    """Convert zero points to the dtype that a pointer points to."""
    dtype = where.dtype
    if isinstance(dtype, types.Float):
        return lambda zero_points, where: v.convert(zero_points, dtype)
    return lambda zero_points, where: v.bounded_to_integer(zero_points, dtype)


@njit
def store_min_max(operands, p, los, his, nans):
    """Store minima and maxima of all but NaN from p on; where there was NaN, it counts as 0.0.

    -0.0 becomes 0.0, before it meets another zero: which of them was found depends on the order.
    """
    zero = v.constant(0, los)
    los, his = _with_zero(los + zero, his + zero, nans)
    v.store(operands.lo, p, los)
    v.store(operands.hi, p, his)


@njit
def _with_zero(los, his, nans):
    """Widen ranges to contain 0.0 where there was NaN."""
    zero = v.constant(0, los)
    return v.select(nans, v.minimum(los, zero), los), v.select(nans, v.maximum(his, zero), his)


@specialize
def count_nan_as_zero(spec, los, his, nans):
    """Widen ranges that passed NaN over to contain 0.0, where NaN counts as that."""
    if spec.nan_widens_range:
        return lambda spec, los, his, nans: _with_zero(los, his, nans)
    return lambda spec, los, his, nans: (los, his)
