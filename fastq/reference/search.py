"""Take parameters from a range, and search for the part of a range that has the least error of the round trip."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.granularity import Granularity
from fastq.formats.range_methods import MSERange
from fastq.reference import blocks
from fastq.reference.codes import decode, encode
from fastq.reference.floats import in_half
from fastq.reference.granularity import broadcast_to_parts, extremes, sums
from fastq.reference.parameters import finite_scale, from_range, parameters_as_kept
from fastq.requests.importance import bits_of_weights
from fastq.requests.quantization import Request
from fastq.results import QParams
from fastq.system.dtypes import Array

RANGE_BITS = 10  # the largest number of a format has 2**10 units, or up to twice as many
MOST_BITS = 6  # of steps that count for that
MOST_ERROR = 2.0**53  # a larger sum of units counts as this one


@dataclass(frozen=True)
class RangeParameters:
    """Parameters of ranges by a format and a convention: QParams of lo and hi."""

    request: Request  # what was asked for
    spoiled: NDArray[np.bool_]  # which blocks have a NaN that their scale is to keep
    tensor_scale: NDArray[np.float32] | None  # the scale of the whole array, where the format has one

    def of(self, lo: Array, hi: Array, finite: bool = True) -> QParams:
        """Return the parameters of the ranges from lo to hi, with which codes are computed.

        With `finite` no scale may be infinite.
        """
        request = self.request
        qtype = self.request.qtype
        if qtype.block_size:
            rule = request.coding.convention, request.half.operations
            scale = blocks.scale_of_blocks(np.maximum(-lo, hi), self.spoiled, qtype, self.tensor_scale, *rule)
            return self._qparams(scale, np.zeros(scale.shape, qtype.storage), tensor_scale=self.tensor_scale)
        if qtype.codebook:
            scale = in_half(np.asarray(np.maximum(np.maximum(-lo, hi), lo.dtype.type(0))), request.half.scale)
            return self._qparams(scale, np.zeros(scale.shape, qtype.storage))
        convention = request.coding.convention
        codes_of_range = request.coding.parameters
        scale, zero_point = from_range(lo, hi, convention, codes_of_range, request.symmetric, request.half)
        compute = convention.computes_in(lo.dtype)
        scale_dtype, zero_point_dtype = convention.dtypes(qtype, compute)
        if finite:
            scale_kept, point_kept = parameters_as_kept(scale, zero_point, convention, request.half)
            finite_scale(
                np.where(np.isinf(point_kept) & (convention.zero_point == "offset"), np.inf, scale_kept), scale_dtype
            )
        scale = scale.astype(scale_dtype)
        zero_point = zero_point.astype(zero_point_dtype)
        return self._qparams(scale, zero_point, computed=None if scale.dtype == compute else compute)

    def kept(self, p: QParams) -> QParams:
        """Return the parameters that are kept, and give values, of those that codes are computed with."""
        convention = self.request.coding.convention
        return p.with_values(*parameters_as_kept(p.scale, p.zero_point, convention, self.request.half))

    def _qparams(self, scale: Array, zero_point: Array, **others: Any) -> QParams:
        """Return numbers with the format and granularity of the request."""
        request = self.request
        return QParams(
            scale,
            zero_point,
            request.qtype,
            axis=request.axis,
            block_size=request.granularity.block_size,
            symmetric=request.symmetric,
            convention=request.convention,
            **others,
        )


@np.errstate(over="ignore", under="ignore")
def least_error(
    x: Array, lo: Array, hi: Array, parameters: RangeParameters, method: MSERange, importance: Array | None = None
) -> tuple[Array, Array]:
    """Return the parts of the ranges lo..hi of `x` that have the least error; of equal ones the largest."""
    # contract 6.1 and 6.5
    if x.size == 0:
        return lo, hi
    weights = None if importance is None else _whole_weights(importance, x.shape, parameters.request.granularity)

    def best(ranges: Iterable[tuple[Array, Array, Array]], unit: Array) -> list[Array]:
        """Return the shares and the ends of the ranges with the least error."""
        least = np.full(lo.shape, np.inf)
        best_so_far = [np.ones_like(lo), lo, hi]
        for candidate in ranges:
            p = parameters.of(candidate[1], candidate[2], finite=False)
            error = np.fmin(_error(x, p, unit, lo.dtype, method.norm, parameters, weights), MOST_ERROR)
            better = error < least
            least = np.where(better, error, least)
            best_so_far = [np.where(better, new, old) for new, old in zip(candidate, best_so_far, strict=True)]
        return best_so_far

    unit = _units_of_one(parameters.of(lo, hi), parameters, lo.dtype)
    chosen = best(_candidates(lo, hi, parameters.request, method), unit)
    if method.around.size > 1:
        unit = _units_of_one(parameters.of(chosen[1], chosen[2]), parameters, lo.dtype)
        chosen = best([_share_of_ranges(chosen[0] + lo.dtype.type(d), lo, hi) for d in method.around], unit)
    return chosen[1], chosen[2]


def _candidates(lo: Array, hi: Array, request: Request, method: MSERange) -> Iterator[tuple[Array, Array, Array]]:
    """Yield the ranges to try, in order, each with its share; an end that overflows is the largest number."""
    ftype = lo.dtype.type
    most = np.finfo(lo.dtype).max
    if not request.searches_ends_apart:
        yield from (_share_of_ranges(np.full_like(lo, p), lo, hi) for p in method.ratios)
        return
    for up, down in method.ends_apart.T:
        start = ftype(1 - up) * lo + ftype(up) * hi
        end = ftype(1 - down) * hi + ftype(down) * lo
        yield np.ones_like(lo), np.clip(start, -most, most), np.clip(end, -most, most)


def _share_of_ranges(share: Array, lo: Array, hi: Array) -> tuple[Array, Array, Array]:
    """Return a share of ranges, and its ends."""
    most = np.finfo(lo.dtype).max
    return share, np.clip(share * lo, -most, most), np.clip(share * hi, -most, most)


@np.errstate(over="ignore", under="ignore")
def _units_of_one(p: QParams, parameters: RangeParameters, ftype: np.dtype[Any]) -> Array:
    """Return how many units an error of 1 has: a power of two for each range."""
    first, last = parameters.request.coding.codes
    form = p.dtype.float_format
    bits = min(math.frexp(last - first)[1] - 1, MOST_BITS)
    steps = (blocks.steps(p) if p.dtype.block_size else np.abs(p.scale)).astype(ftype)
    if p.tensor_scale is not None:
        steps = np.asarray(steps * p.tensor_scale.astype(ftype))
    # mxint8 has codes in 64ths
    largest = form.emax if form else bits - blocks.MXINT8_DIGITS if p.dtype.block_size else bits
    info = np.finfo(ftype)
    exponents = np.where(np.isnan(steps), info.maxexp, np.maximum(np.frexp(steps)[1], info.minexp) - 1).astype(np.int64)
    return np.asarray(
        np.ldexp(ftype.type(1), np.clip(RANGE_BITS - largest - exponents, info.minexp, info.maxexp - 1)).astype(ftype)
    )


@np.errstate(all="ignore")
def _error(
    x: Array,
    p: QParams,
    unit: Array,
    ftype: np.dtype[Any],
    norm: float,
    parameters: RangeParameters,
    weights: Array | None,
) -> Array:
    """Return the sums of powers of the errors of each range, in whole units: float64 adds them exactly."""
    codes = encode(x, p, saturate=True, precision=parameters.request.half)
    values = decode(codes, parameters.kept(p)).astype(ftype)
    units = np.rint((x.astype(ftype) - values) * broadcast_to_parts(unit, x.shape, p.axis, p.block_size)).astype(
        np.float64
    )
    weighed = units if weights is None else units * weights  # first, as the square of units may be infinite
    return sums(weighed * units if norm == 2 else np.abs(weighed), p.axis, p.block_size)


def _whole_weights(importance: Array, shape: tuple[int, ...], parts: Granularity) -> Array:
    """Return importance as whole numbers relative to the largest one of each part."""
    everywhere = np.broadcast_to(importance, shape)
    most = 2.0 ** bits_of_weights(shape, parts) - 1
    largest = broadcast_to_parts(extremes(everywhere, parts)[1], shape, parts.axes, parts.block_size)
    return np.rint(everywhere / np.where(largest > 0, largest, 1) * most)
