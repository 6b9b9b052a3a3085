"""Turn histograms into parameters: a range of each part by a method, and what that range asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch import thresholds
from fastq.dispatch.cache import call
from fastq.dispatch.histogram import exponents
from fastq.dispatch.ranged import request_of
from fastq.formats.conventions import Convention
from fastq.formats.qtypes import QType
from fastq.results import Axis, Histogram, QParams
from fastq.runtime.float_mode import in_standard_mode
from fastq.system.arguments import as_axis

Array = NDArray[Any]


class Scheme(NamedTuple):
    """What parameters are for, as `fastq.choose_qparams` takes it; `symmetric` is true of float formats."""

    dtype: QType
    axis: Axis
    symmetric: bool
    convention: str | Convention

    def of_ranges(self, lo: Array, hi: Array) -> QParams:
        """Return the parameters of ranges, each of which belongs to a part."""
        ends = np.stack([lo, hi])
        kept = None if self.axis is None else tuple(range(1, ends.ndim))
        axis = kept[0] if kept and isinstance(self.axis, int) else kept
        types = type(axis), int, bool, type(None)
        symmetric = self.symmetric and not self.dtype.element
        options = (axis, 0, symmetric, None, self.dtype, self.convention, "raise")
        params: QParams = call("choose_qparams", ends, None, None, None, None, options, types)
        return replace(params, axis=self.axis)


def scheme_of(dtype: object, axis: Axis, symmetric: bool, convention: str | Convention, nan: str) -> tuple[Scheme, str]:
    """Validate what a calibrator is for; return it, and what becomes of NaN."""
    axis = as_axis(axis)
    kept = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
    like = np.empty((0,) * max((max(a, -a - 1) + 1 for a in kept if abs(a) < 64), default=0), np.float32)
    request = request_of(like, dtype, axis, 0, symmetric, convention, nan, None)
    if request.qtype.block_size:
        raise ValueError(f"dtype must be a format without blocks of its own, not {request.qtype}: they have no range")
    return Scheme(request.qtype, axis, request.symmetric, convention), request.nan


class Options(NamedTuple):
    """Options of the methods."""

    percentile: float


@in_standard_mode
def parameters(seen: Histogram, scheme: Scheme, compute: Any, method: str, options: Options) -> QParams:
    """Return the parameters of the ranges that a method takes from histograms."""
    lo, hi = seen.lo.astype(compute), seen.hi.astype(compute)
    if method != "minmax":
        widths = exponents(seen)
        for part in np.ndindex(lo.shape):
            ends = _METHODS[method](_Part(seen, part, widths), scheme, options)
            lo[part], hi[part] = max(ends[0], seen.lo[part]), min(ends[1], seen.hi[part])
    return scheme.of_ranges(lo, hi)


class _Part:
    """The histogram of one part: counts and edges of its bins."""

    def __init__(self, seen: Histogram, part: tuple[int, ...], widths: NDArray[np.int64]) -> None:
        self.lo, self.hi, self.counts = float(seen.lo[part]), float(seen.hi[part]), seen.counts[part]
        self.bins = self.counts.size // 2
        self.edges = np.ldexp(np.arange(-self.bins, self.bins + 1, dtype=np.float64), widths[part])

    @property
    def magnitudes(self) -> NDArray[np.int64]:
        """Counts of magnitudes; the bins below 0 have the upper edge where the others have the lower one."""
        return np.asarray(self.counts[self.bins :] + self.counts[self.bins - 1 :: -1])


def _percentile(part: _Part, scheme: Scheme, options: Options) -> list[float]:
    if scheme.symmetric:
        return thresholds.percentile(part.magnitudes, part.edges[part.bins :], options.percentile, True)
    return thresholds.percentile(part.counts, part.edges, options.percentile, False)


_METHODS: dict[str, Callable[[_Part, Scheme, Options], list[float]]] = {"percentile": _percentile}
METHODS = "minmax", *_METHODS
