"""What dask costs and what it bounds: overhead over kernels, a run over generated chunks, a store under a limit.

``python -m bench.dask_runs overhead | generated GIB | store GIB FOLDER`` prints one row of figures each.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from timeit import timeit

import dask
import dask.array as da
import numpy as np

import fastq
import fastq.dask

CHUNK = 1 << 24  # elements: 64 MiB of float32


def overhead() -> None:
    """Compare, in turns, arrays in memory with their chunks by dask, and with `map_blocks` of plain Numba."""
    import numba

    @numba.njit(nogil=True)
    def plain(x, scale, zero):
        codes = np.empty(x.size, np.int8)
        flat = x.reshape(-1)
        for k in range(x.size):
            codes[k] = min(max(np.rint(flat[k] / scale) + zero, -128), 127)
        return codes.reshape(x.shape)

    x = np.random.default_rng(0).standard_normal(1 << 26, np.float32)
    params = fastq.choose_qparams(x, "int8")
    scale, zero = params.scale[()], int(params.zero_point)
    for size in (1 << 18, 1 << 20, 1 << 22, 1 << 24):
        lazy = da.from_array(x, chunks=size)
        works: dict[str, Callable[[], object]] = {
            "kernel": lambda size=size: drop(
                fastq.quantize(x[k : k + size], qparams=params) for k in range(0, x.size, size)
            ),
            "dask": lambda lazy=lazy: done(fastq.quantize(lazy, qparams=params).codes),
            "numba": lambda lazy=lazy: done(lazy.map_blocks(plain, scale, zero, dtype=np.int8)),
        }
        print(f"chunks of {size}:", *(f"{name} {x.size / seconds / 1e9:.2f} Gelem/s" for name, seconds in best(works)))


def drop(results: Iterable[object]) -> None:
    """Make results one after the other, and drop each, so that its memory serves for the next."""
    for _ in results:
        pass


def done(codes: da.Array) -> None:
    """Compute all chunks and drop each when it is there."""
    codes.map_blocks(lambda block: np.zeros((1,) * block.ndim, np.int8), dtype=np.int8, chunks=(1,)).compute()


def best(works: dict[str, Callable[[], object]], rounds: int = 5) -> list[tuple[str, float]]:
    """Return the median seconds of each work, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            seconds[name].append(timeit(work, number=1))
    return [(name, float(np.median(each[1:]))) for name, each in seconds.items()]


def generated(gib: float) -> None:
    """Quantize chunks that are generated and dropped."""
    pattern = np.random.default_rng(0).standard_normal(CHUNK, np.float32)

    def make(block_info=None):
        ((start, _),) = block_info[None]["array-location"]
        return pattern * np.float32(1 + start / CHUNK / 1000)

    count = round(gib * (1 << 30) / pattern.nbytes)
    x = da.map_blocks(make, chunks=((CHUNK,) * count,), dtype=np.float32, meta=pattern[:0])
    two_passes(f"{gib} GiB", x, None, lambda codes: codes.sum(dtype=np.int64).compute())


def store(gib: float, folder: str) -> None:
    """Quantize an array of zarr to another one, by channels whose range crosses all chunks."""
    rows = round(gib * (1 << 30) / 4 / 4096)
    x = Path(folder) / "x.zarr"
    if not x.exists():
        source = da.random.default_rng(0).standard_normal((rows, 4096), chunks=(4096, 4096), dtype="float32")
        source.to_zarr(str(x))
    target = str(Path(folder) / "codes.zarr")
    two_passes(f"{gib} GiB of zarr", da.from_zarr(str(x)), 1, lambda codes: codes.to_zarr(target, overwrite=True))


def two_passes(what: str, x: da.Array, axis: int | None, use: Callable[[da.Array], object]) -> None:
    """Find the range in one pass and use the codes in another; print the time and the largest memory."""
    start = time.perf_counter()
    params = fastq.dask.choose_qparams(x, "int8", axis=axis).compute()
    checksum = int(use(fastq.quantize(x, qparams=params).codes) or 0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    print(f"{what}: {time.perf_counter() - start:.1f} s for two passes, peak {peak:.2f} GiB, checksum {checksum}")


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    works = {"overhead": overhead, "generated": lambda g: generated(float(g)), "store": lambda g, f: store(float(g), f)}
    with dask.config.set(scheduler="threads"):
        works[name](*arguments)
