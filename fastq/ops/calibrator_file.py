"""Write calibrators to files, and read them back: one line of JSON, then minima, maxima and counts."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fastq.ops import file_parts
from fastq.ops.file_parts import convention_entry, convention_of, qtype_entry, qtype_of, read_array, with_tuples
from fastq.ops.histogram import bins_of, exponents
from fastq.results import Histogram
from fastq.system import atomic
from fastq.system.arguments import MOST_AXES, as_int, as_shape, shown, without_duplicates

FORMAT = "fastq.Calibrator 2"
_LONGEST_LINE = 1 << 16
MOST_ELEMENTS = 1 << 62
_DOUBLES = np.dtype("<f8")
_INTEGERS = np.dtype("<i8")


class Content(NamedTuple):
    """The contents of a file: the arguments of a calibrator, its data, and the compute type."""

    arguments: dict[str, Any]
    seen: Histogram | None
    compute: str


# --- write ------------------------------------------------------------------------------------------------------------


def write(path: Path, content: Content) -> None:
    """Write a file that appears whole or not at all."""
    arguments = dict(content.arguments)
    data = content.seen
    qtype = arguments.pop("dtype")
    arguments["convention"] = convention_entry(arguments["convention"])
    shape = None if data is None else list(data.lo.shape)
    header = {"format": FORMAT, **qtype_entry(qtype), **arguments, "compute": content.compute, "shape": shape}
    with atomic.replacing(path) as file:
        file.write(json.dumps(header).encode() + b"\n")
        for numbers, dtype in zip(data or (), (_DOUBLES, _DOUBLES, _INTEGERS), strict=False):
            file.write(np.ascontiguousarray(numbers, dtype).data)


# --- read -------------------------------------------------------------------------------------------------------------


def read(path: Path) -> Content:
    """Read a file, and check each of its fields against the others; raise ValueError with one line otherwise."""
    with file_parts.open_to_read(path, "Calibrator") as file:
        return _read(file)


def _read(file: BinaryIO) -> Content:
    """Read a header, and the histograms that it announces; `Calibrator` itself checks the arguments."""
    line = file.readline(_LONGEST_LINE)
    header = json.loads(line, object_pairs_hook=without_duplicates)
    if not isinstance(header, dict) or header.pop("format", None) != FORMAT:
        raise ValueError(f"it does not begin with the words {FORMAT}")
    shape, compute, bits = (header.pop(name) for name in ("shape", "compute", "bits"))
    if compute not in ("float32", "float64"):
        raise ValueError(f"compute must be float32 or float64, not {shown(compute)}")
    arguments = header | {"dtype": qtype_of(header["dtype"], bits)}
    arguments["convention"] = convention_of(arguments["convention"])
    arguments["axis"] = with_tuples(arguments["axis"])
    bytes_left = os.fstat(file.fileno()).st_size - len(line)
    if shape is None:
        if bytes_left:
            raise ValueError(f"{bytes_left} bytes are left over")
        return Content(arguments, None, compute)
    axis = arguments["axis"]
    shape = as_shape(shape)
    if len(shape) != (len(axis) if isinstance(axis, tuple) else axis is not None):
        raise ValueError(f"channels of shape {shape} don't fit the axis {shown(axis)}")
    data = _check_histograms(_read_histograms(file, shape, as_int(arguments["bins"], "bins"), bytes_left))
    for ends in (data.lo, data.hi) if compute == "float32" else ():
        if not np.array_equal(ends, ends.astype(np.float32).astype(np.float64)):
            raise ValueError("minima and maxima are not float32")
    return Content(arguments, data, compute)


def _read_histograms(file: BinaryIO, shape: tuple[int, ...], bins: int, bytes_left: int) -> Histogram:
    """Read minima, maxima and counts; raise ValueError unless they take the `rest` of the file."""
    parts = math.prod(shape)
    if len(shape) > MOST_AXES or bytes_left != 8 * parts * (2 + 2 * bins):
        raise ValueError(
            f"{bytes_left} bytes of numbers don't fit channels of shape {shown(shape)} with {bins} bins a side"
        )
    lo, hi = (read_array(file, shape, _DOUBLES) for _ in range(2))
    return Histogram(lo, hi, read_array(file, (*shape, 2 * bins), _INTEGERS))


def _check_histograms(data: Histogram) -> Histogram:
    """Return histograms if they are possible: the bins of minimum and maximum have elements, those beyond none."""
    counts = data.counts
    bins = data.counts.shape[-1] // 2
    total = counts.sum(axis=-1, dtype=np.float64)
    if (counts < 0).any() or (total >= MOST_ELEMENTS).any():
        raise ValueError("counts are negative or too large")
    has_elements = total > 0
    finite = np.isfinite(data.lo) & np.isfinite(data.hi) & (data.lo <= data.hi)
    none = (data.lo == np.inf) & (data.hi == -np.inf)
    if not np.where(has_elements, finite, none).all() or np.signbit(data.lo[data.lo == 0]).any():
        raise ValueError("minima and maxima don't fit the counts")
    widths = exponents(data)
    occupied = counts[has_elements] > 0
    ends = np.argmax(occupied, axis=-1), 2 * bins - 1 - np.argmax(occupied[..., ::-1], axis=-1)
    for end, extreme in zip(ends, (data.lo[has_elements], data.hi[has_elements]), strict=True):
        if not np.array_equal(bins_of(extreme, widths[has_elements], bins) + bins, end):
            raise ValueError("minima and maxima don't lie in the outermost bins")
    return data
