"""Configure fastq in this process: threads, compiling ahead of the first call, and what a bug report needs."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable

import numpy as np
from numpy.typing import DTypeLike

from fastq.formats.qtypes import as_qtype
from fastq.system import lazy

# the module that needs Numba, imported by the first call
_parallel = functools.partial(lazy.module, "fastq.runtime.threadpool")


def set_num_threads(n: int) -> None:
    """Set how many threads fastq uses in this process; results do not depend on it.

    Parameters
    ----------
    n : int
        From 1 to the number that Numba starts with: NUMBA_NUM_THREADS, or the CPUs that the process may run on.

    Raises
    ------
    ValueError
        If n is out of this range.

    Examples
    --------
    >>> import fastq
    >>> before = fastq.get_num_threads()
    >>> fastq.set_num_threads(1)
    >>> fastq.get_num_threads()
    1
    >>> fastq.set_num_threads(before)
    """
    _parallel().set_num_threads(n)


def get_num_threads() -> int:
    """Return how many threads fastq uses: at first NUMBA_NUM_THREADS, or the CPUs that affinity and cgroup allow."""
    threads: int = _parallel().get_num_threads()
    return threads


def warmup(dtypes: Iterable[DTypeLike] = (np.float32,), codes: Iterable[str] = ("int8", "uint8")) -> None:
    """Compile the kernels of the usual calls, or load them from the disk cache, before time matters.

    Parameters
    ----------
    dtypes : iterable of dtype
        Input dtypes to prepare for.
    codes : iterable of str
        Code formats to prepare for.

    Examples
    --------
    >>> import fastq
    >>> fastq.warmup(codes=["int8"])
    """
    from fastq.operations import measure, quantize

    for dtype in dtypes:
        x = np.linspace(-1, 1, 128).astype(dtype).reshape(2, 64)
        measure.minmax(x, axis=1)
        for name in codes:
            as_qtype(name)
            for options in ({}, {"axis": 0}, {"axis": 1}, {"axis": 1, "block_size": 32}):
                q = quantize.quantize(x, name, symmetric=True, **options)  # type: ignore[arg-type]
                quantize.quantize(x, qparams=q.qparams)
                q.dequantize()


# Of LLVM's hundred features of a CPU, those that decide the width and the speed of the kernels.
FEATURES = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "neon", "sve", "sve2")


def versions() -> dict[str, str]:
    """Return versions, CPU, threads and cache folder, in the order to show them.

    Returns
    -------
    dict of str to str
        Title to text.
    """
    import platform

    import fastq

    jit = lazy.module("fastq.jit")
    found = {
        "fastq": _version("fastq-kernels"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "numpy": _version("numpy"),
        "numba": _version("numba"),
        "llvmlite": _version("llvmlite"),
        "system": platform.platform(),
        "cpu": _cpu(),
        "threads": f"{fastq.get_num_threads()} of {os.cpu_count()}",
        "cache": str(jit.code_folder() or "none"),
    }
    if refused := jit.refusals():
        found["not cached in"] = "; ".join(refused)
    return found


def show_versions() -> None:
    """Print what `fastq.operations.config.versions` returns.

    Examples
    --------
    >>> import fastq
    >>> fastq.show_versions()  # doctest: +ELLIPSIS
    fastq...
    """
    found = versions()
    width = max(map(len, found))
    for title, text in found.items():
        print(f"{title:{width}}  {text}")


def _version(distribution: str) -> str:
    from importlib import metadata  # 18 ms, a quarter of importing NumPy

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    present = [name for name in FEATURES if features.get(name)]
    return f"{binding.get_host_cpu_name()} ({', '.join(present) or 'no known vector features'})"
