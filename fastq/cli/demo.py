"""The demonstration: a weight matrix in several schemes, every code checked against the reference."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq import reference
from fastq.cli.report import Column
from fastq.io.scheme import Scheme
from fastq.results import Comparison, QuantizedArray

SCHEMES = (
    Scheme("int8"),
    Scheme("int8", symmetric=True),
    Scheme("int8", axis=0, symmetric=True),
    Scheme("int8", axis=-1, symmetric=True),
    Scheme("uint8", axis=-1, block_size=32),
    Scheme("int8", axis=-1, block_size=128, symmetric=True),
    Scheme("int16", axis=0, symmetric=True),
)


@dataclass(frozen=True)
class Outcome:
    """A line of the table, and how many codes, scales and zero points differ from the reference."""

    scheme: Scheme
    nbytes: int
    errors: Comparison
    gelems: float
    ratio: float
    mismatches: int


COLUMNS: tuple[Column[Outcome], ...] = (
    ("scheme", lambda line: str(line.scheme)),
    ("bytes", lambda line: f"{line.nbytes:,}"),
    ("SQNR dB", lambda line: f"{line.errors.sqnr_db:.2f}"),
    ("largest error", lambda line: f"{line.errors.max_abs_error:.3g}"),
    ("Gelem/s", lambda line: f"{line.gelems:.2f}"),
    ("x NumPy", lambda line: f"{line.ratio:.1f}"),
)


def weight_matrix(size: int, seed: int = 0) -> NDArray[np.float32]:
    """Return a matrix such as linear layers have: normal weights, and one column in a hundred far larger."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, size), np.float32)
    x *= np.float32(0.02)
    x[:, rng.choice(size, max(size // 100, 1), replace=False)] *= np.float32(20)
    return x


def run(x: NDArray[Any], scheme: Scheme) -> Outcome:
    """Quantize `x` by `scheme`, check it and measure it: three times on warm kernels, and the reference."""
    q, times = fastq.quantize(x, **scheme.arguments()), [time.perf_counter()]
    for _ in range(3):
        fastq.quantize(x, **scheme.arguments(), out=q.codes)
        times.append(time.perf_counter())
    expected = reference.quantize(x, **scheme.arguments())
    seconds, numpy_seconds = float(np.diff(times).min()), time.perf_counter() - times[-1]
    speeds = x.size / seconds / 1e9, numpy_seconds / seconds
    return Outcome(scheme, q.nbytes, fastq.compare(x, q), *speeds, count_mismatches(q, expected))


def count_mismatches(q: QuantizedArray, expected: QuantizedArray) -> int:
    """Return how many codes, scales and zero points differ, bit for bit."""
    pairs = ((q.codes, expected.codes), (q.scale, expected.scale), (q.zero_point, expected.zero_point))
    return sum(int(np.count_nonzero(a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}"))) for a, b in pairs)
