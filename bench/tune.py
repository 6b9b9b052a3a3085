"""Measure the tuning constants of this machine: ``python -m bench tune`` prints its row of fastq/system/tuning.py.

Each number is tried at several values, each value in a process of its own with machine code of its own. All are asked
in turns, so that a stall of the machine meets everyone, and a value is taken where its works take less time than with
the value that the table has, by more than noise.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fastq
from fastq.system import tuning

from .peers import OURS
from .worker import Worker

ROUNDS, TURN = 5, 0.1
NOISE = 0.03  # a value that is better by less is not taken


class Trial(NamedTuple):
    """Values of a number of the tuning that are worth a try, and the works that it decides about."""

    name: str
    values: tuple[Any, ...]
    works: tuple[str, ...]


class Tried(NamedTuple):
    """What a trial found: seconds of each value beside those of the value of the table, and the one to take."""

    trial: Trial
    before: Any
    ratios: dict[Any, float]

    @property
    def best(self) -> Any:
        """The value with the least time, that of the table where no other is better beyond noise."""
        value = min(self.ratios, key=self.ratios.__getitem__)
        return value if self.ratios[value] < 1 - NOISE else self.before


# --- works ------------------------------------------------------------------------------------------------------------


def _values(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def _minmax(*shape: int, **options: Any) -> Callable[[], Any]:
    x = _values(*shape)
    return lambda: fastq.minmax(x, **options)


def _quantize(*shape: int, **options: Any) -> Callable[[], Any]:
    x, out = _values(*shape), np.zeros(shape, np.int8)
    return lambda: fastq.quantize(x, "int8", symmetric=True, out=out, **options)


def _quantize_linear(*shape: int) -> Callable[[], Any]:
    x, out, scale = _values(*shape), np.zeros(shape, np.int8), np.float32(0.02)
    return lambda: fastq.quantize_linear(x, scale, dtype="int8", out=out)


def _dequantize(*shape: int, axis: int | None = None) -> Callable[[], Any]:
    codes, out = _values(*shape).astype(np.int8), np.zeros(shape, np.float32)
    scale = np.float32(0.02) if axis is None else np.full(shape[axis], 0.02, np.float32)
    return lambda: fastq.dequantize_linear(codes, scale, axis=axis, out=out)


def _strided(*shape: int) -> Callable[[], Any]:
    x, out = _values(*shape[:-1], 2 * shape[-1])[..., ::2], np.zeros(shape, np.int8)
    return lambda: fastq.quantize_linear(x, np.float32(0.02), dtype="int8", out=out)


def _transposed(*shape: int) -> Callable[[], Any]:
    x, out = np.asfortranarray(_values(*shape)), np.zeros(shape, np.int8)
    return lambda: fastq.quantize_linear(x, np.float32(0.02), dtype="int8", out=out)


def _gguf(size: int) -> Callable[[], Any]:
    x = _values(size)
    return lambda: fastq.gguf.quantize(x, "Q8_0")


# name of a work -> its builder; sizes are those at which the numbers decide
WORKS: dict[str, Callable[[], Callable[[], Any]]] = {
    "minmax of 2**25": lambda: _minmax(1 << 25),
    "minmax of 2**17": lambda: _minmax(1 << 17),
    "minmax of 2**18": lambda: _minmax(1 << 18),
    "minmax of 8 x 2**18 by columns": lambda: _minmax(8, 1 << 18, axis=1),
    "minmax of 2**15 x 64 by columns": lambda: _minmax(1 << 15, 64, axis=1),
    "minmax of 2**14 x 2**11 by columns": lambda: _minmax(1 << 14, 1 << 11, axis=1),
    "minmax of 2**13 x 2**12 by columns": lambda: _minmax(1 << 13, 1 << 12, axis=1),
    "quantize 2**25": lambda: _quantize_linear(1 << 25),
    "quantize 2**15": lambda: _quantize_linear(1 << 15),
    "quantize 2**16": lambda: _quantize_linear(1 << 16),
    "quantize 2**19": lambda: _quantize_linear(1 << 19),
    "quantize 2**22": lambda: _quantize_linear(1 << 22),
    "quantize 2**12 rows of 2**10": lambda: _quantize(1 << 12, 1 << 10, axis=0),
    "quantize 2**8 rows of 2**14": lambda: _quantize(1 << 8, 1 << 14, axis=0),
    "quantize 2**13 rows of 2**12": lambda: _quantize(1 << 13, 1 << 12, axis=0),
    "quantize 2**9 rows of 2**16": lambda: _quantize(1 << 9, 1 << 16, axis=0),
    "quantize 2**7 rows of 2**18": lambda: _quantize(1 << 7, 1 << 18, axis=0),
    "quantize 2**5 rows of 2**20": lambda: _quantize(1 << 5, 1 << 20, axis=0),
    "quantize 2**15 columns of 2**8": lambda: _quantize(1 << 8, 1 << 15, axis=1),
    "quantize 2**13 columns of 2**9": lambda: _quantize(1 << 9, 1 << 13, axis=1),
    "quantize 2**13 columns of 2**10": lambda: _quantize(1 << 10, 1 << 13, axis=1),
    "quantize 2**13 columns of 2**12": lambda: _quantize(1 << 12, 1 << 13, axis=1),
    "quantize 2**20 blocks of 32": lambda: _quantize(1 << 12, 1 << 13, axis=1, block_size=32),
    "quantize strided 2**23": lambda: _strided(1 << 10, 1 << 13),
    "quantize transposed 2**18": lambda: _transposed(1 << 9, 1 << 9),
    "quantize transposed 2**24": lambda: _transposed(1 << 12, 1 << 12),
    "dequantize 2**25": lambda: _dequantize(1 << 25),
    "dequantize 2**22": lambda: _dequantize(1 << 22),
    "dequantize 2**23": lambda: _dequantize(1 << 23),
    "dequantize 2**24": lambda: _dequantize(1 << 24),
    "dequantize 2**15 rows of 2**10": lambda: _dequantize(1 << 15, 1 << 10, axis=0),
    "dequantize 2**13 rows of 2**12": lambda: _dequantize(1 << 13, 1 << 12, axis=0),
    "dequantize 2**11 rows of 2**14": lambda: _dequantize(1 << 11, 1 << 14, axis=0),
    "dequantize 2**9 rows of 2**16": lambda: _dequantize(1 << 9, 1 << 16, axis=0),
    "dequantize 2**16 rows of 2**8": lambda: _dequantize(1 << 16, 1 << 8, axis=0),
    "dequantize 16 columns of 2**12": lambda: _dequantize(1 << 12, 16, axis=1),
    "dequantize 64 columns of 2**14": lambda: _dequantize(1 << 14, 64, axis=1),
    "dequantize 2**8 columns of 2**16": lambda: _dequantize(1 << 16, 1 << 8, axis=1),
    "dequantize 2**12 columns of 2**13": lambda: _dequantize(1 << 13, 1 << 12, axis=1),
    "Q8_0 of 2**24": lambda: _gguf(1 << 24),
}
_LARGE = ("minmax of 2**25", "quantize 2**25", "quantize 2**13 rows of 2**12", "quantize 2**20 blocks of 32")
_LENGTHS = tuple(name for name in WORKS if name.startswith("dequantize") and "rows of" in name)
TRIALS = [
    Trial("prefetch", (0, 256, 512, 1024, 2048, 4096), _LARGE),
    Trial("prefetch_codes", (64, 256, 512, 1024, 2048), ("dequantize 2**22", "dequantize 2**25")),
    Trial(
        "prefetch_row", (0, 1 << 12, 1 << 15, 1 << 17), ("quantize 2**12 rows of 2**10", "quantize 2**8 rows of 2**14")
    ),
    Trial("prefetch_blocks", (256, 768, 2048, 4096), ("Q8_0 of 2**24",)),
    Trial("stream_codes", (False, True), ("quantize 2**25", "quantize 2**13 rows of 2**12")),
    Trial(
        "stream_from",
        tuple(mebibytes << 20 for mebibytes in (12, 24, 48, 96, 192)),
        ("dequantize 2**22", "dequantize 2**23", "dequantize 2**24", "dequantize 2**25"),
    ),
    Trial("stream_run", (1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 18), ("dequantize 2**12 columns of 2**13",)),
    Trial("staged_run", (0, 1 << 14, 1 << 16, 1 << 17, 1 << 18, 1 << 40), _LENGTHS),
    Trial("fused_block", tuple(1 << k for k in (14, 15, 16, 17, 18, 19)), tuple(n for n in WORKS if " rows of " in n)),
    Trial("fused_rows", (64, 256, 512, 1024, 1 << 17), tuple(n for n in WORKS if "columns of" in n)),
    Trial("aliased_rows", (128, 256, 512, 1024, 4096), tuple(n for n in WORKS if "columns of" in n)),
    Trial(
        "narrow_row",
        (128, 256, 512, 1024, 2048),
        ("dequantize 16 columns of 2**12", "dequantize 64 columns of 2**14", "dequantize 2**8 columns of 2**16"),
    ),
    Trial(
        "wide_row",
        (1 << 12, 12 << 10, 1 << 14, 1 << 40),
        ("minmax of 2**14 x 2**11 by columns", "minmax of 2**13 x 2**12 by columns"),
    ),
    Trial(
        "tile_bytes",
        (1 << 14, 1 << 15, 1 << 16, 1 << 17),
        ("quantize strided 2**23", "quantize transposed 2**18", "quantize transposed 2**24"),
    ),
    Trial("reduction_cost", (1, 2, 4, 8, 16), ("minmax of 2**17", "minmax of 2**18")),
    Trial("merged_partials", (1 << 10, 1 << 13, 1 << 16, 1 << 19), ("minmax of 2**15 x 64 by columns",)),
    Trial("range_columns", (1 << 11, 1 << 13, 1 << 15, 1 << 17), ("minmax of 8 x 2**18 by columns",)),
    Trial("parallel_from", (1 << 13, 1 << 14, 1 << 15, 1 << 16, 1 << 17), ("quantize 2**15", "quantize 2**16")),
    Trial("wake_from", (1 << 17, 1 << 18, 1 << 19, 1 << 20), ("quantize 2**19",)),
    Trial("chunk", ((1 << 13, 1 << 17), (1 << 14, 1 << 18), (1 << 14, 1 << 20)), ("quantize 2**22", "quantize 2**25")),
]


# --- trials -----------------------------------------------------------------------------------------------------------


def tried(names: tuple[str, ...], threads: int, trials: list[Trial] = TRIALS) -> Iterator[Tried]:
    """Try the numbers that are named, all by default."""
    for trial in trials:
        if not names or trial.name in names:
            yield _tried(trial, threads)


def _tried(trial: Trial, threads: int) -> Tried:
    before = getattr(tuning.current(), trial.name)
    values = list(dict.fromkeys((before, *trial.values)))
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as closing:
        workers = {}
        for k, value in enumerate(values):
            code = {"NUMBA_CACHE_DIR": str(Path(folder, str(k)))}  # numbers are compiled into the kernels
            workers[value] = Worker(OURS, threads, tuned={trial.name: value}, environment=code)
            closing.callback(workers[value].close)
        logarithms: dict[Any, list[float]] = {value: [] for value in values}
        for work in trial.works:
            seconds = _seconds(work, workers)
            for value in values:
                logarithms[value].append(math.log(seconds[value] / seconds[before]))
    return Tried(trial, before, {value: math.exp(statistics.fmean(logarithms[value])) for value in values})


def _seconds(work: str, workers: dict[Any, Worker]) -> dict[Any, float]:
    """Median seconds of a work by each value, in turns."""
    for worker in workers.values():
        worker.ask(do="prepare_work", module="tune", name=work)
    samples: dict[Any, list[float]] = {value: [] for value in workers}
    for _ in range(ROUNDS):
        for value, worker in workers.items():
            samples[value].append(statistics.median(worker.ask(do="time", variant=work, seconds=TURN)))
    for worker in workers.values():
        worker.ask(do="release")
    return {value: statistics.median(taken) for value, taken in samples.items()}


def row(results: list[Tried]) -> str:
    """The row of this machine for the table: what differs from the defaults."""
    best = asdict(tuning.current()) | {tried.trial.name: tried.best for tried in results}
    default = asdict(tuning.Tuning())
    differing = ", ".join(f"{name}={value!r}" for name, value in best.items() if value != default[name])
    return f'"{tuning.cpu_name()}": Tuning({differing}),'
