"""Scales and zero points of a matrix, rounded to the types in which a model's reader holds them before codes are taken.

compressed-tensors computes in the dtype of the model: "upstream", its convention. Otherwise ranges are divided in
float32, the scale is rounded, and codes are taken by it in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.formats.conventions import CONVENTIONS, DEFAULT, Convention
from fastq.formats.floats import FLOAT_FORMATS
from fastq.io.checkpoints.schemes import E4M3, E8M0, MICROSCALING, WeightScheme
from fastq.io.containers import numpy_dtype

Array = NDArray[Any]

UPSTREAM = "compressed-tensors"
EPS = {"F32": 2.0**-23, "BF16": 2.0**-7, "F16": 2.0**-10}  # what a scale of 0 becomes
LEAST_E4M3 = 0.125  # what a scale of 0 in float8 becomes
EXPONENT_BIAS = 127
BUMP = 0.875  # significands from here on, 1.75 of 2, take the next power of two


@dataclass(frozen=True)
class Arithmetic:
    """How parameters are taken from ranges.

    Attributes
    ----------
    dtype : str
        Of stored scales, unless the scheme has its own: F32, BF16 or F16.
    upstream : bool
        Whether operations are those of compressed-tensors, on values in `dtype`.
    method : str
        How ranges are taken, as in `fastq.quantize`.
    """

    dtype: str
    upstream: bool = False
    method: str = "minmax"

    def rounded(self, values: Array) -> Array:
        """Return float32 values rounded to the dtype of scales."""
        with np.errstate(over="ignore"):  # an infinite scale is refused where codes are taken by it
            return values if self.dtype == "F32" else values.astype(numpy_dtype(self.dtype)).astype(np.float32)

    def computed(self, values: Array) -> Array:
        """Return the float32 result of an operation as the arithmetic holds it."""
        return self.rounded(values) if self.upstream else values

    def convention(self, weights: WeightScheme) -> str | Convention:
        """Return the convention by which codes are taken, and scales too where it is upstream's."""
        row = CONVENTIONS[UPSTREAM]
        if weights.qtype.name not in row.formats:
            return DEFAULT
        if self.upstream:
            return row
        return replace(row, operation_type="compute") if weights.kind == "int" else DEFAULT


@dataclass(frozen=True)
class Grouped:
    """A matrix as `fastq` quantizes it: shape, and which elements share a scale."""

    values: Array
    axis: int | tuple[int, ...] | None
    block_size: int = 0

    @property
    def granularity(self) -> dict[str, Any]:
        """Arguments of fastq's functions."""
        return {"axis": self.axis, "block_size": self.block_size}


def grouped(x: Array, weights: WeightScheme) -> Grouped:
    """Return a matrix by what shares a scale; blocks that it does not fill are filled with zeros."""
    if weights.strategy == "channel":
        return Grouped(x, 0)
    if weights.strategy == "tensor":
        return Grouped(x, None)
    if weights.strategy != "block":
        return Grouped(x, -1, weights.group_size)
    padding = [(0, -n % b) for n, b in zip(x.shape, weights.block, strict=True)]
    filled = np.pad(x, padding) if any(n for _, n in padding) else x
    (rows, columns), (height, width) = filled.shape, weights.block
    return Grouped(filled.reshape(rows // height, height, columns // width, width), (0, 2))


def largest_magnitude(x: Array) -> float:
    """Return the largest magnitude of an array."""
    lo, hi = fastq.minmax(x)
    return max(-float(lo), float(hi), 0.0)


def global_scale(largest: float, arithmetic: Arithmetic) -> float:
    """Return the factor, of a matrix or of several that are fused, which makes its largest scale the largest there is.

    448 * 6 times the reciprocal of the largest magnitude, as torch divides a number; 1 where that is not finite.
    """
    least = np.maximum(np.float32(largest), np.finfo(np.float32).tiny)
    most = FLOAT_FORMATS["float8_e4m3fn"].max * FLOAT_FORMATS["float4_e2m1fn"].max
    with np.errstate(over="ignore"):
        scale = arithmetic.computed(arithmetic.computed(np.array(1 / least)) * np.float32(most))
    return float(scale) if np.isfinite(scale) else 1.0


@dataclass(frozen=True)
class Parameters:
    """What is stored beside the codes of a matrix, and what they are multiplied with.

    Attributes
    ----------
    stored : ndarray
        Scales in the dtype in which they are stored.
    scale : ndarray of float32
        What codes are multiplied with; same shape.
    zero_point : ndarray or None
        Codes of 0.0; None in a symmetric scheme.
    """

    stored: Array
    scale: NDArray[np.float32]
    zero_point: Array | None = None


def choose(x: Grouped, weights: WeightScheme, arithmetic: Arithmetic, factor: float = 1.0) -> Parameters:
    """Take parameters from ranges; `factor` is the `global_scale` of a tensor group.

    Raises
    ------
    ValueError
        If x has NaN or an infinity.
    """
    if weights.scale_dtype == E8M0 and arithmetic.method != "minmax":
        p = fastq.choose_qparams(x.values, MICROSCALING[weights.bits], axis=x.axis, range=arithmetic.method)
        return from_stored(p.scale.view(np.uint8), weights)
    if arithmetic.upstream and not weights.scale_dtype:
        return _upstream(x, weights, arithmetic)
    lo, hi = _range(x, weights, arithmetic)
    if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
        raise ValueError("x has an infinity")
    if weights.scale_dtype == E8M0:
        return from_stored(_exponents(np.maximum(-lo, hi), weights), weights)
    first, last = weights.qtype.code_range(False)
    if weights.symmetric:
        scale = arithmetic.computed(np.maximum(-lo, hi) / np.float32((last - first) / 2))
    else:
        scale = (hi - lo) / np.float32(last - first)
    if weights.scale_dtype == E4M3:
        return from_stored(_in_e4m3(scale * np.float32(factor)), weights, factor)
    scale = arithmetic.rounded(scale)
    scale[scale == 0] = EPS[arithmetic.dtype]
    zero_point = None if weights.symmetric else _zero_point(lo, hi, scale, weights)
    return Parameters(scale.astype(numpy_dtype(arithmetic.dtype)), scale, zero_point)


def from_stored(
    stored: Array, weights: WeightScheme, factor: float = 1.0, zero_point: Array | None = None
) -> Parameters:
    """Return parameters by their stored scales, as a model's reader computes with them."""
    if weights.scale_dtype == E8M0:
        return Parameters(stored, np.ldexp(np.float32(1), stored.astype(np.int32) - EXPONENT_BIAS), zero_point)
    scale = stored.astype(np.float32)
    return Parameters(stored, scale / np.float32(factor) if factor != 1 else scale, zero_point)


def _range(x: Grouped, weights: WeightScheme, arithmetic: Arithmetic) -> tuple[Array, Array]:
    """Return the ends of ranges that contain 0, in float32: all values, or those with the least error."""
    if arithmetic.method == "minmax":
        ends = fastq.minmax(x.values, **x.granularity)
        return np.minimum(ends[0].astype(np.float32), 0), np.maximum(ends[1].astype(np.float32), 0)
    first, last = weights.qtype.code_range(False)
    convention = arithmetic.convention(weights)
    options: dict[str, Any] = {"symmetric": weights.symmetric, "convention": convention, "range": arithmetic.method}
    p = fastq.choose_qparams(x.values, weights.qtype, **x.granularity, **options)
    if weights.symmetric:
        half = p.scale * np.float32((last - first) / 2)
        return -half, half
    zero_point = p.zero_point.astype(np.float32)
    return (np.float32(first) - zero_point) * p.scale, (np.float32(last) - zero_point) * p.scale


def _upstream(x: Grouped, weights: WeightScheme, arithmetic: Arithmetic) -> Parameters:
    """Take parameters as compressed-tensors does."""
    options: dict[str, Any] = {"symmetric": weights.symmetric, "convention": UPSTREAM, "range": arithmetic.method}
    p = fastq.choose_qparams(x.values, weights.qtype, **x.granularity, **options)
    stored = p.scale.astype(numpy_dtype(arithmetic.dtype))
    return Parameters(stored, p.scale, None if weights.symmetric else p.zero_point)


def _zero_point(lo: Array, hi: Array, scale: Array, weights: WeightScheme) -> Array:
    first, last = weights.qtype.code_range(False)
    zero_point = np.rint(np.clip(np.float32(first) - lo / scale, first, last))
    return np.where(lo == hi, 0, zero_point).astype(weights.qtype.storage)


def _in_e4m3(scale: Array) -> Array:
    """Round scales to float8, none of them to 0."""
    form = FLOAT_FORMATS["float8_e4m3fn"]
    rounded = np.minimum(scale, np.float32(form.max)).astype(form.dtype)
    rounded[rounded.astype(np.float32) == 0] = LEAST_E4M3
    return rounded


def _exponents(largest: Array, weights: WeightScheme) -> NDArray[np.uint8]:
    """Return the powers of two of scales, plus 127: floor(log2(largest)) less that of the largest code.

    Magnitudes from 1.75 of a power on take the next one, as compressed-tensors and the reference of vLLM have it: no
    code of float4 is cut off at its largest number by more than half a step.
    """
    significand, exponent = np.frexp(largest)
    top = np.frexp(weights.qtype.code_range(False)[1])[1]
    biased = np.where(largest > 0, exponent - top + (significand >= BUMP) + EXPONENT_BIAS, 0)
    return np.clip(biased, 0, 254).astype(np.uint8)
