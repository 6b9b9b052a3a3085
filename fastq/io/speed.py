"""Figures of one quantized array: its errors, and its speed beside the NumPy reference."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from numpy.typing import NDArray

import fastq
from fastq.io.scheme import Scheme
from fastq.results import QuantizedArray

Result = TypeVar("Result")


@dataclass(frozen=True)
class Speed:
    """How long an array took, and how long the reference would have taken.

    Attributes
    ----------
    elements : int
        Elements quantized.
    seconds : float
        Time of `fastq.quantize` on warm kernels, writing into existing codes.
    numpy_seconds : float
        Time of `fastq.reference.quantize` for as many elements.
    """

    elements: int
    seconds: float
    numpy_seconds: float

    @property
    def gelems(self) -> float:
        """Elements per nanosecond."""
        return self.elements / self.seconds / 1e9

    @property
    def ratio(self) -> float:
        """How many times faster than the reference."""
        return self.numpy_seconds / self.seconds

    def __add__(self, other: Speed) -> Speed:
        return Speed(
            self.elements + other.elements,
            self.seconds + other.seconds,
            self.numpy_seconds + other.numpy_seconds,
        )


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes
    ----------
    name, shape, scheme : str
        What was quantized, and how.
    before, after : int
        Bytes.
    sqnr_db, max_abs_error : float or None
        As in `fastq.Comparison`; None where nothing was quantized.
    speed : Speed or None
        None where it was not measured.
    """

    name: str
    shape: str
    scheme: str
    before: int
    after: int
    sqnr_db: float | None = None
    max_abs_error: float | None = None
    speed: Speed | None = None


def timed(function: Callable[[], Result]) -> tuple[Result, float]:
    """Return what `function` returns, and the seconds that it took."""
    start = time.perf_counter()
    result = function()
    return result, time.perf_counter() - start


def warm_seconds(x: NDArray[Any], q: QuantizedArray, scheme: Scheme, repeats: int) -> float:
    """Return the best time of quantizing `x` once more into the codes of `q`."""
    return min(
        timed(lambda: fastq.quantize(x, **scheme.arguments_for(x.dtype), out=q.codes))[1] for _ in range(repeats)
    )
