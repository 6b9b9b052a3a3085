"""Rows of a matrix encoded by a scheme.

compressed-tensors computes in the dtype of the model, which is bit for bit its convention. Otherwise ranges are divided
in float32, the scale is rounded, and codes are computed from it in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.formats.conventions.convention import Convention
from fastq.formats.conventions.table import CONVENTIONS, DEFAULT
from fastq.formats.floats import FLOAT_FORMATS, are_subnormal
from fastq.results import QuantizedArray
from fastq.system.dtypes import Array, numpy_dtype
from fastq.tools.layouts.compressed_tensors import StoredForm, array_of, form_of, scale_values
from fastq.tools.layouts.schemes import E8M0, MICROSCALING, LayerScheme, WeightScheme

# dtypes of stored scales, by their names in files, as conventions call them
STORED_TYPES = {"F32": "compute", "F16": "float16", "BF16": "bfloat16"}
# the largest value of NVFP4 without a global scale: the largest code times the largest scale
NVFP4_LARGEST = FLOAT_FORMATS["float8_e4m3fn"].max * FLOAT_FORMATS["float4_e2m1fn"].max
LEAST_E4M3 = 0.125  # replaces a scale of 0 in float8, as in compressed-tensors


@dataclass(frozen=True)
class ScaleArithmetic:
    """The computation of scales from ranges."""

    dtype: str  # dtype of stored scales, unless the scheme has its own: F32, BF16 or F16
    bit_exact: bool = False  # whether operations are those of compressed-tensors, on values in `dtype`
    method: str = "minmax"  # the method for ranges, as in `fastq.quantize`

    def convention(self, weights: WeightScheme) -> str | Convention:
        """Return the convention for scales and codes.

        It is the default one of `fastq` for formats that compressed-tensors does not compute, and for scales in float8
        or powers of two unless operations are to be those of compressed-tensors.
        """
        convention = CONVENTIONS["compressed-tensors"]
        if weights.qtype.name not in convention.formats or (weights.scale_dtype and not self.bit_exact):
            return DEFAULT
        if self.bit_exact:
            return convention
        # operations in float32, and scales rounded to the dtype in which they are stored
        return replace(convention, operation_type="compute", stored_type=STORED_TYPES[self.dtype])

    def round_result(self, values: Array) -> Array:
        """Round the float32 results of an operation as this arithmetic does."""
        if not self.bit_exact or self.dtype == "F32":
            return values
        with np.errstate(over="ignore"):  # an infinite scale is refused when codes are computed
            return values.astype(numpy_dtype(self.dtype)).astype(np.float32)


def encode(
    x: Array,
    scheme: LayerScheme,
    arithmetic: ScaleArithmetic,
    factor: float = 1.0,
    importance: NDArray[np.float32] | None = None,
) -> tuple[dict[str, Array], Array, QuantizedArray]:
    """Quantize rows of a matrix, of float16, bfloat16 or float32; `factor` is the `global_scale` of a tensor group.

    `importance` has a weight for each column, for the errors in a search for scales, in shape (1, columns). Return the
    stored tensors by the ends of their names; the rows, in blocks if blocks have several rows; and the codes.
    """
    weights = scheme.weights
    form = form_of(scheme, x.shape, arithmetic.dtype)
    values = form.to_blocks(x)
    operand = values
    # compressed-tensors computes in the dtype of the model, to which float32 weights of such a model are cast
    if arithmetic.bit_exact and not weights.scale_dtype:
        with np.errstate(over="ignore"):  # an infinity is refused below
            operand = values.astype(numpy_dtype(arithmetic.dtype), copy=False)
    importance_in_form = None
    if importance is not None and form.block:  # the columns of the matrix are not columns of its blocks
        importance_in_form = form.to_blocks(np.broadcast_to(importance, x.shape))
    elif importance is not None:
        importance_in_form = importance[0]  # the only row: it is that of all rows of x
    scale, zero_point = choose_scales(operand, form, weights, arithmetic, factor, importance_in_form)
    codes = fastq.quantize_linear(
        operand,
        scale_values(scale, weights, factor),
        zero_point,
        weights.qtype,
        axis=form.axis,
        block_size=form.block_size,
        convention=arithmetic.convention(weights),
    )
    arrays = form.write(codes, scale, zero_point)
    return arrays, values, array_of(codes, scale, zero_point, form, weights, factor)


def count_rough_scales(x: Array, q: QuantizedArray) -> int:
    """Return how many parts, not all 0, have scales that float16 holds with few digits, or not at all.

    Those that it does not hold are the distance of 1 to the next number, as in compressed-tensors. Others do other
    things with such scales: see `are_subnormal`.
    """
    scale = np.asarray(q.scale, np.float32)
    is_suspect = are_subnormal(scale, np.dtype(np.float16)) | (scale == np.finfo(np.float16).eps)
    if not is_suspect.any():
        return 0
    # the distance of 1 to the next number may also be the scale of a range: then the range is large enough for it
    lo, hi = fastq.minmax(x, axis=q.axis, block_size=q.block_size, nan="zero")
    largest = np.maximum(-lo.astype(np.float32), hi.astype(np.float32)).reshape(scale.shape)
    lowest_code, highest_code = q.dtype.code_range(False)
    smallest_normal = FLOAT_FORMATS["float16"].smallest_normal
    needs_subnormal_scale = (largest > 0) & (largest < smallest_normal * max(-lowest_code, highest_code))
    return int(np.count_nonzero(is_suspect & needs_subnormal_scale))


def choose_scales(
    x: Array,
    form: StoredForm,
    weights: WeightScheme,
    arithmetic: ScaleArithmetic,
    factor: float,
    importance: Array | None = None,
) -> tuple[Array, Array | None]:
    """Return scales in the dtype in which they are stored, and zero points or None.

    A scheme whose scales have no dtype of their own has scales of floats; others have powers of two, as bytes, or
    float8, stored times `factor`.
    """
    search: dict[str, Any] = {"range": arithmetic.method}
    if importance is not None:
        search["importance"] = importance
    if not weights.scale_dtype:
        params = fastq.choose_qparams(
            x,
            weights.qtype,
            axis=form.axis,
            block_size=form.block_size,
            symmetric=weights.symmetric,
            convention=arithmetic.convention(weights),
            **search,
        )
        return params.scale.astype(numpy_dtype(arithmetic.dtype)), None if weights.symmetric else params.zero_point
    if weights.scale_dtype == E8M0:
        # compressed-tensors has no search
        convention = "compressed-tensors" if arithmetic.method == "minmax" else DEFAULT
        params = fastq.choose_qparams(x, MICROSCALING[weights.bits], axis=form.axis, convention=convention, **search)
        return params.scale.view(np.uint8), None
    if arithmetic.method == "minmax":
        return _float8_scales_of_ranges(x, form, weights, arithmetic, factor), None
    return _float8_scales_by_search(x, form, factor, search), None


def _float8_scales_of_ranges(
    x: Array, form: StoredForm, weights: WeightScheme, arithmetic: ScaleArithmetic, factor: float
) -> Array:
    """Return the scales in float8 by which the largest magnitudes become the largest code.

    They are stored times `factor`, by which readers divide them.
    """
    lo, hi = fastq.minmax(x, axis=form.axis, block_size=form.block_size)
    largest = np.maximum(-np.minimum(lo.astype(np.float32), 0), hi.astype(np.float32))
    if not np.isfinite(largest).all():
        raise ValueError(f"x has {np.count_nonzero(np.isinf(x))} infinite values: their range has no scale")
    _, largest_code = weights.qtype.code_range(False)
    scale = arithmetic.round_result(largest / np.float32(largest_code))
    return _in_e4m3(scale * np.float32(factor))


def _float8_scales_by_search(x: Array, form: StoredForm, factor: float, search: dict[str, Any]) -> Array:
    """Return the scales in float8 that a search finds.

    The search rounds scales to multiples of a scale that depends on the largest magnitude of x, but here on that of all
    matrices that share the factor; so x gets a last row with that magnitude, whose scales are dropped.
    """
    last_row = np.full_like(x[:1], NVFP4_LARGEST / factor)
    params = fastq.choose_qparams(np.concatenate([x, last_row]), "nvfp4", axis=form.axis, **search)
    return _in_e4m3(params.scale[:-1].astype(np.float32))


def _in_e4m3(scale: Array) -> Array:
    """Round scales to float8, but never to 0."""
    float8 = FLOAT_FORMATS["float8_e4m3fn"]
    rounded = np.minimum(scale, np.float32(float8.max)).astype(float8.dtype)
    rounded[rounded.astype(np.float32) == 0] = LEAST_E4M3
    return rounded


def largest_magnitude(x: Array) -> float:
    """Return the largest magnitude of an array, ignoring NaN, which is refused when the matrix is encoded."""
    lo, hi = fastq.minmax(x, nan="zero")
    return max(-float(lo), float(hi), 0.0)


def global_scale(largest: float, arithmetic: ScaleArithmetic) -> float:
    """Return the factor that makes the largest scale of a matrix, or of fused ones, the largest float8.

    It is 448 * 6 times the reciprocal of the largest magnitude, as torch divides a number; 1 if that is not finite.
    """
    divisor = np.maximum(np.float32(largest), np.finfo(np.float32).tiny)
    with np.errstate(over="ignore"):
        reciprocal = arithmetic.round_result(np.array(1 / divisor))
        scale = arithmetic.round_result(reciprocal * np.float32(NVFP4_LARGEST))
    return float(scale) if np.isfinite(scale) else 1.0
