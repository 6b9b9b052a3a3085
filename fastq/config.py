"""Configure fastq in this process: threads, memory of results; and print what a bug report needs."""

from __future__ import annotations

import functools
import os
from typing import Any

from fastq.system import lazy
from fastq.system.arguments import as_int

# the module that imports NumPy, imported by the first call
_threadpool = functools.partial(lazy.module, "fastq.engine.runtime.threadpool")


def _result_pool() -> Any:
    return lazy.module("fastq.engine.runtime.result_pool").pool


def set_num_threads(n: int) -> None:
    """Set how many threads fastq uses in this process; results do not depend on it.

    Parameters
    ----------
    n : int
        From 1 to the number that Numba starts with: NUMBA_NUM_THREADS, or the CPUs that the process may run on.

    Raises
    ------
    TypeError
        If n is not an integer.
    ValueError
        If it is out of this range.

    Examples
    --------
    >>> import fastq
    >>> before = fastq.get_num_threads()
    >>> fastq.set_num_threads(1)
    >>> fastq.get_num_threads()
    1
    >>> fastq.set_num_threads(before)
    """
    _threadpool().set_num_threads(n)


def get_num_threads() -> int:
    """Return how many threads fastq uses: at first NUMBA_NUM_THREADS, or the CPUs that affinity and cgroup allow.

    Returns
    -------
    int
        1 or more.

    Examples
    --------
    >>> import fastq
    >>> fastq.get_num_threads() >= 1
    True
    """
    threads: int = _threadpool().get_num_threads()
    return threads


def set_result_pool_limit(nbytes: int) -> None:
    """Set how many bytes the result pool keeps: memory of large results that nobody uses any more, for later ones.

    Fresh memory costs more than the work: the system clears each page at its first touch. Results of 4 MiB and more
    are made in memory of earlier ones where that is free, at most an eighth more than they need. Such a result is an
    ordinary array that does not own its memory, so `numpy.ndarray.resize` refuses it.

    Parameters
    ----------
    nbytes : int
        Bytes that are kept at most; 0: none. At the start that is the environment variable FASTQ_RESULT_POOL, or
        256 MiB.

    Raises
    ------
    TypeError
        If nbytes is not an integer.
    ValueError
        If it is negative.

    Examples
    --------
    >>> import fastq
    >>> before = fastq.get_result_pool_limit()
    >>> fastq.set_result_pool_limit(0)
    >>> fastq.set_result_pool_limit(before)
    """
    nbytes = as_int(nbytes, "nbytes")
    if nbytes < 0:
        raise ValueError(f"nbytes must be 0 or positive, not {nbytes}")
    _result_pool().set_limit(nbytes)


def get_result_pool_limit() -> int:
    """Return how many bytes the result pool keeps at most.

    Returns
    -------
    int
        Bytes.

    Examples
    --------
    >>> import fastq
    >>> fastq.get_result_pool_limit() >= 0
    True
    """
    limit: int = _result_pool().limit
    return limit


# Of LLVM's hundred features of a CPU, those that decide the width and the speed of the kernels.
FEATURES = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "neon", "sve", "sve2")


def versions() -> dict[str, str]:
    """Return versions, CPU, threads, cache folder and how much machine code there is, in the order to show them.

    Returns
    -------
    dict of str to str
        Title to text.
    """
    import platform

    jit, code = lazy.module("fastq.engine.jit"), lazy.module("fastq.engine.code")
    (files, nbytes), functions = code.stored_code(), jit.functions_in_memory()
    found = {
        "fastq": _version("fastq-kernels"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "numpy": _version("numpy"),
        "numba": _version("numba"),
        "llvmlite": _version("llvmlite"),
        "system": platform.platform(),
        "cpu": _cpu(),
        "threads": f"{get_num_threads()} of {os.cpu_count()}",
        "machine code": code.level() or "compiled here",
        "cache": f"{code.code_folder() or 'none'} ({files} files, {nbytes / 2**20:.1f} MiB; {functions} in memory)",
    }
    if refused := code.refusals():
        found["not cached in"] = "; ".join(refused)
    return found


def show_versions() -> None:
    """Print what ``fastq.config.versions()`` returns.

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
