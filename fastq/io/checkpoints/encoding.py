"""Rows of a matrix as compressed-tensors stores them: scales, rounded as a model's reader holds them, and codes.

compressed-tensors computes in the dtype of the model, which is bit for bit its convention. Otherwise ranges are divided
in float32, the scale is rounded, and codes are taken by it in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import fastq
from fastq.formats.compressed_tensors import E8M0, MICROSCALING, LayerScheme, WeightScheme
from fastq.formats.conventions import CONVENTIONS, DEFAULT, Convention
from fastq.formats.floats import FLOAT_FORMATS
from fastq.layouts.compressed_tensors import BIAS, StoredForm, array_of, form_of, scale_values
from fastq.results import QuantizedArray
from fastq.system.dtypes import Array, numpy_dtype

Shape = tuple[int, int]

STORED_TYPES = {"F32": "compute", "F16": "float16", "BF16": "bfloat16"}  # as conventions call dtypes of scales
LEAST_E4M3 = 0.125  # what a scale of 0 in float8 becomes
BUMP = 0.875  # significands from here on, 1.75 of 2, take the next power of two
CHUNK = 1 << 21  # values in memory at a time: enough that threads do not wait for each other, few enough for a cache
ROWS = 128  # chunks of a multiple of this end where words of zero points and blocks of rows end


def row_chunks(shape: Shape, multiple: int = ROWS) -> Iterator[tuple[int, int]]:
    """Cut rows into chunks of a multiple of rows that can be encoded and decoded for themselves."""
    step = max(1, CHUNK // max(1, shape[1]) // multiple) * multiple
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])


@dataclass(frozen=True)
class ScaleArithmetic:
    """How scales are taken from ranges."""

    dtype: str  # of stored scales, unless the scheme has its own: F32, BF16 or F16
    bit_exact: bool = False  # whether operations are those of compressed-tensors, on values in `dtype`
    method: str = "minmax"  # how ranges are taken, as in `fastq.quantize`

    def convention(self, weights: WeightScheme) -> str | Convention:
        """Return the convention by which scales and codes are taken."""
        row = CONVENTIONS["compressed-tensors"]
        if weights.qtype.name not in row.formats or (weights.scale_dtype and not self.bit_exact):
            return DEFAULT
        return row if self.bit_exact else replace(row, operation_type="compute", stored_type=STORED_TYPES[self.dtype])

    def computed(self, values: Array) -> Array:
        """Return the float32 result of an operation as the arithmetic holds it."""
        if not self.bit_exact or self.dtype == "F32":
            return values
        with np.errstate(over="ignore"):  # an infinite scale is refused where codes are taken by it
            return values.astype(numpy_dtype(self.dtype)).astype(np.float32)


def encode(
    x: Array, scheme: LayerScheme, arithmetic: ScaleArithmetic, factor: float = 1.0
) -> tuple[dict[str, Array], Array, QuantizedArray]:
    """Quantize rows of a matrix, of float16, bfloat16 or float32; `factor` is the `global_scale` of a tensor group.

    Return what is stored for them, by the end of its name; the rows, in blocks if blocks have several rows; and their
    codes. ValueError if x has NaN or an infinity.
    """
    weights, form = scheme.weights, form_of(scheme, x.shape, arithmetic.dtype)
    values = held = form.folded(x)
    if arithmetic.bit_exact and not weights.scale_dtype:
        with np.errstate(over="ignore"):  # an infinity is refused below
            held = values.astype(numpy_dtype(arithmetic.dtype), copy=False)
    stored, zero_point = choose(held, form, weights, arithmetic, factor)
    options: dict[str, Any] = {"axis": form.axis, "block_size": form.block_size}
    options["convention"] = arithmetic.convention(weights)
    scale = scale_values(stored, weights, factor)
    codes = fastq.quantize_linear(held, scale, zero_point, weights.qtype, **options)
    arrays = form.write(codes, stored, zero_point)
    return arrays, values, array_of(codes, stored, zero_point, form, weights, factor)


def choose(
    x: Array, form: StoredForm, weights: WeightScheme, arithmetic: ScaleArithmetic, factor: float
) -> tuple[Array, Array | None]:
    """Take scales, in the dtype in which they are stored, and zero points from ranges."""
    granularity: dict[str, Any] = {"axis": form.axis, "block_size": form.block_size}
    if not weights.scale_dtype:
        options: dict[str, Any] = {"symmetric": weights.symmetric, "convention": arithmetic.convention(weights)}
        p = fastq.choose_qparams(x, weights.qtype, **granularity, **options, range=arithmetic.method)
        return p.scale.astype(numpy_dtype(arithmetic.dtype)), None if weights.symmetric else p.zero_point
    if arithmetic.method != "minmax":
        if weights.scale_dtype == E8M0:
            p = fastq.choose_qparams(x, MICROSCALING[weights.bits], axis=form.axis, range=arithmetic.method)
            return p.scale.view(np.uint8), None
        p = fastq.choose_qparams(x, weights.qtype, **granularity, range=arithmetic.method)
        return _in_e4m3(arithmetic.computed(p.scale) * np.float32(factor)), None
    lo, hi = fastq.minmax(x, **granularity)
    largest = np.maximum(-np.minimum(lo.astype(np.float32), 0), hi.astype(np.float32))
    if not np.isfinite(largest).all():
        raise ValueError(f"x has {np.count_nonzero(np.isinf(x))} infinite values: their range has no scale")
    if weights.scale_dtype == E8M0:
        # floor(log2(largest)) less that of the largest code. Magnitudes from 1.75 of a power on take the next one, as
        # compressed-tensors and the reference of vLLM have it: no code of float4 is cut off by more than half a step
        significand, exponent = np.frexp(largest)
        top = np.frexp(weights.qtype.code_range(False)[1])[1]
        biased = np.where(largest > 0, exponent - top + (significand >= BUMP) + BIAS, 0)
        return np.clip(biased, 0, 254).astype(np.uint8), None
    scale = arithmetic.computed(largest / np.float32(weights.qtype.code_range(False)[1]))
    return _in_e4m3(scale * np.float32(factor)), None


def _in_e4m3(scale: Array) -> Array:
    """Round scales to float8, none of them to 0."""
    form = FLOAT_FORMATS["float8_e4m3fn"]
    rounded = np.minimum(scale, np.float32(form.max)).astype(form.dtype)
    rounded[rounded.astype(np.float32) == 0] = LEAST_E4M3
    return rounded


def largest_magnitude(x: Array) -> float:
    """Return the largest magnitude of an array but NaN, which is refused where the matrix that has it is encoded."""
    lo, hi = fastq.minmax(x, nan="zero")
    return max(-float(lo), float(hi), 0.0)


def global_scale(largest: float, arithmetic: ScaleArithmetic) -> float:
    """Return the factor, of a matrix or of several that are fused, which makes its largest scale the largest there is.

    448 * 6 times the reciprocal of the largest magnitude, as torch divides a number; 1 where that is not finite.
    """
    least = np.maximum(np.float32(largest), np.finfo(np.float32).tiny)
    most = FLOAT_FORMATS["float8_e4m3fn"].max * FLOAT_FORMATS["float4_e2m1fn"].max
    with np.errstate(over="ignore"):
        scale = arithmetic.computed(arithmetic.computed(np.array(1 / least)) * np.float32(most))
    return float(scale) if np.isfinite(scale) else 1.0
