"""The demonstration: a weight matrix in several schemes, every code checked against the reference."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq import reference
from fastq.cli.report import Entry
from fastq.io.scheme import Scheme
from fastq.results import QuantizedArray

SCHEMES = (
    Scheme("int8"),
    Scheme("int8", symmetric=True),
    Scheme("int8", axis=0, symmetric=True),
    Scheme("int8", axis=-1, symmetric=True),
    Scheme("uint8", axis=-1, block_size=32),
    Scheme("int8", axis=-1, block_size=128, symmetric=True),
    Scheme("int16", axis=0, symmetric=True),
)
COLUMNS = "scheme", "bytes", "sqnr_db", "max_abs_error", "gelems", "ratio"


def weight_matrix(size: int, seed: int = 0) -> NDArray[np.float32]:
    """Return a matrix such as linear layers have: normal weights, and one column in a hundred far larger."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, size), np.float32)
    x *= np.float32(0.02)
    x[:, rng.choice(size, max(size // 100, 1), replace=False)] *= np.float32(20)
    return x


def run(x: NDArray[Any], scheme: Scheme) -> Entry:
    """Quantize `x` by `scheme`, check it and measure it: three times on warm kernels, and the reference."""
    q, times = fastq.quantize(x, **scheme.arguments()), [time.perf_counter()]
    for _ in range(3):
        fastq.quantize(x, **scheme.arguments(), out=q.codes)
        times.append(time.perf_counter())
    expected = reference.quantize(x, **scheme.arguments())
    seconds, numpy_seconds = float(np.diff(times).min()), time.perf_counter() - times[-1]
    speeds = {"gelems": x.size / seconds / 1e9, "ratio": numpy_seconds / seconds}
    errors = fastq.compare(x, q).to_dict()
    return {"scheme": str(scheme), "bytes": q.nbytes, **errors, **speeds, "mismatches": count_mismatches(q, expected)}


def count_mismatches(q: QuantizedArray, expected: QuantizedArray) -> int:
    """Return how many codes, scales and zero points differ, bit for bit."""
    pairs = ((q.codes, expected.codes), (q.scale, expected.scale), (q.zero_point, expected.zero_point))
    return sum(int(np.count_nonzero(a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}"))) for a, b in pairs)
