"""Measure what schemes make of a sample of an array, with the reference: no kernel is compiled for a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from fastq import reference
from fastq.formats.qtypes import QType, as_qtype
from fastq.operations.measure import minmax
from fastq.results import QParams
from fastq.system.dtypes import Array
from fastq.system.lazy import cached_property

Arguments = Mapping[str, Any]  # arguments of `fastq.quantize`

SAMPLE = 1 << 16  # elements at most
PIECE = 4096  # of an array of one axis: a row of the sample

_ARRAY: Arguments = {}
_CHANNELS: Arguments = {"axis": 0}
_BLOCKS: Arguments = {"axis": -1, "block_size": 32}
# families of schemes: the arguments that their formats share, and the formats
FAMILIES: dict[str, tuple[Arguments, tuple[str, ...]]] = {
    "one scale": (_ARRAY, ("int2", "int3", "int4", "int5", "int6", "int8")),
    "a scale for each row": (_CHANNELS, ("int2", "int3", "int4", "int5", "int6", "int8")),
    "blocks of 32": (_BLOCKS, ("int2", "int3", "int4", "int5", "int6", "int8")),
    "float8, a scale for each row": (_CHANNELS, ("float8_e4m3fn", "float8_e5m2")),
    "MX": (_ARRAY, ("mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "mxint8")),
    "NVFP4": (_ARRAY, ("nvfp4",)),
}


class Measured(NamedTuple):
    """What a scheme makes of an array."""

    bits: float  # bits of codes and parameters an element
    sqnr_db: float  # signal to quantization noise ratio of the sample, in decibels


def sample_of(x: Array, scheme: Arguments) -> Array:
    """Return whole parts of an array that have parameters of their own under a scheme, evenly spread.

    Where one scale is for all or blocks are of the last axis, parts are rows; of an array of one axis, pieces of it.
    """
    blocks = scheme.get("block_size") or as_qtype(scheme["dtype"]).block_size
    given = scheme.get("axis")
    kept = [] if given is None else sorted(normalize_axis_tuple(given, x.ndim, "axis"))
    if not kept or (blocks and kept == [x.ndim - 1]):
        return _rows_of(x)
    free = [axis for axis in range(x.ndim) if axis not in kept] if blocks else kept
    axis = max(free, key=lambda axis: x.shape[axis])
    return x.take(_evenly(x.shape[axis], SAMPLE // max(x.size // x.shape[axis], 1)), axis=axis)


def _rows_of(x: Array) -> Array:
    if x.ndim < 2:
        flat = x.reshape(-1)
        x = flat[: flat.size // PIECE * PIECE].reshape(-1, PIECE) if flat.size > SAMPLE else flat.reshape(1, -1)
    rows = x.reshape(-1, x.shape[-1])
    return np.ascontiguousarray(rows[_evenly(len(rows), SAMPLE // max(rows.shape[1], 1)), :SAMPLE])


def _evenly(count: int, wanted: int) -> Array:
    """Return as many indices as wanted of `count`, one at least, evenly spread."""
    return np.linspace(0, count - 1, min(max(wanted, 1), count)).astype(np.intp)


class Trial:
    """An array, not empty, of which schemes are tried, each on a sample."""

    def __init__(self, x: Array) -> None:
        self.x = x

    @cached_property
    def _ends(self) -> list[float]:
        """The range of the whole array."""
        return [end.item() for end in minmax(self.x)]

    def measured(self, scheme: Arguments) -> Measured:
        """Return bits an element and SQNR of a sample; a scale for the whole array is that of it, or searched for."""
        qtype, sample = as_qtype(scheme["dtype"]), sample_of(self.x, scheme)
        if scheme.get("axis") is None and not qtype.block_size:
            searched = scheme.get("range", "minmax") != "minmax"
            params = reference.choose_qparams(sample if searched else np.array(self._ends, sample.dtype), **scheme)
            q, own = reference.quantize(sample, qparams=params), 0.0
        else:
            q = reference.quantize(sample, **scheme)
            own = 8 * _own_bytes(q.qparams, qtype) / sample.size
        return Measured(qtype.bits + own, reference.compare(sample, q).sqnr_db)


def _own_bytes(p: QParams, qtype: QType) -> int:
    """Return the bytes of the parameters of rows or blocks; formats with scales of their own store no zero points."""
    return p.scale.nbytes + (0 if qtype.element or qtype.block_size or p.symmetric else p.zero_point.nbytes)
