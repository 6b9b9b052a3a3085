"""The effect of NaN: reported, passed over by minima and maxima, counted as 0.0 in ranges, or kept in scales."""

from __future__ import annotations

from fastq.engine import simd as v
from fastq.engine.jit import traced

# --- reported ---------------------------------------------------------------------------------------------------------


@traced
def nan_mask(spec, x):
    """Mask of the lanes to report as NaN."""
    return v.is_nan(x) if v.is_float(x) and spec.nan == "raise" else False


@traced
def nan_mask_of_two(spec, x, y):
    """Mask of the lanes where x or y has NaN to report: one comparison looks at both."""
    return v.either_nan(x, y) if v.is_float(x) and spec.nan == "raise" else False


# --- in minima and maxima ---------------------------------------------------------------------------------------------


@traced
def min_max_identities(x):
    """Return the identities of a minimum and of a maximum, in as many lanes as x has."""
    dtype = v.lane_type(x)
    least, most = (-float("inf"), float("inf")) if v.is_float(x) else (dtype.minval, dtype.maxval)
    return v.full_like(v.constant(most, x), x), v.full_like(v.constant(least, x), x)


@traced
def first_min_max(x):
    """Return the minima and maxima of x alone, the identities where that is NaN.

    Not by `minimum`, whose result for a constant and a signaling NaN depends on the CPU.
    """
    lo, hi = min_max_identities(x)
    return v.select(x == x, x, lo), v.select(x == x, x, hi)


@traced
def nan_in_halves(x):
    """Mask, half as long, of the lanes that may be NaN: one comparison looks at two registers."""
    return v.either_nan(v.lower(x), v.upper(x)) if v.is_float(x) else False


@traced
def store_min_max(operands, p, los, his, nans):
    """Store minima and maxima of all but NaN from p on; where there was NaN, it counts as 0.0.

    -0.0 becomes 0.0, before it meets another zero: which of them was found depends on the order.
    """
    zero = v.constant(0, los)
    los, his = _with_zero(los + zero, his + zero, nans)
    v.store(operands.lo, p, los)
    v.store(operands.hi, p, his)


# --- in the range that parameters are taken from ----------------------------------------------------------------------


@traced
def parameter_nan_mask(spec, x):
    """Mask of the lanes whose NaN must be known when scale and zero point are computed."""
    return v.is_nan(x) if v.is_float(x) and spec.nan_widens_range else False


@traced
def count_nan_as_zero(spec, los, his, nans):
    """Widen ranges that passed NaN over to contain 0.0, where NaN counts as that."""
    return _with_zero(los, his, nans) if spec.nan_widens_range else (los, his)


@traced
def _with_zero(los, his, nans):
    """Widen ranges to contain 0.0 where there was NaN."""
    zero = v.constant(0, los)
    return v.select(nans, v.minimum(los, zero), los), v.select(nans, v.maximum(his, zero), his)


@traced
def mark_nan(spec, scales, nans):
    """Replace by NaN the scales of blocks with NaN, where that is how NaN is kept."""
    return v.select(nans, v.constant(float("nan"), scales), scales) if spec.keeps_nan_in_scale else scales
