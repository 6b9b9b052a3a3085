"""Configure fastq in this process: threads, memory of results; and print what a bug report needs."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from fastq.system.arguments import as_int
from fastq.system.imports import late

# Each returns a module, or what is in it. They import NumPy, so the first call does that, and not the import of config.


@late
def _threadpool() -> ModuleType:
    from fastq.engine.runtime import threadpool

    return threadpool


@late
def _result_pool() -> Any:
    from fastq.engine.runtime.result_pool import pool

    return pool


@late
def _compiler() -> ModuleType:
    from fastq.engine import jit

    return jit


@late
def _machine_code() -> ModuleType:
    from fastq.engine import code

    return code


def set_num_threads(n: int) -> None:
    """Set the number of threads that fastq uses in this process; results do not depend on it.

    Parameters
    ----------
    n : int
        Number of threads, from 1 to the number that Numba starts with: NUMBA_NUM_THREADS, or the CPUs that the process
        may use.

    Raises
    ------
    TypeError
        If n is not an integer.
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
    _threadpool().set_num_threads(n)


def get_num_threads() -> int:
    """Return the number of threads: at first NUMBA_NUM_THREADS, or the CPUs that affinity and cgroup allow.

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
    """Set the size of the result pool, which keeps the memory of unused large results for later ones.

    New memory costs more than the work, since the system clears each page when it is first touched. Results of 4 MiB
    and more reuse free memory of earlier results if it is at most an eighth larger than needed. Such a result is an
    ordinary array that does not own its memory, so `numpy.ndarray.resize` refuses it.

    Parameters
    ----------
    nbytes : int
        Most bytes to keep; 0 keeps nothing. The initial value is the environment variable FASTQ_RESULT_POOL, or 256
        MiB.

    Raises
    ------
    TypeError
        If nbytes is not an integer.
    ValueError
        If nbytes is negative.

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
    """Return the most bytes that the result pool keeps.

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
    """Return versions, CPU, threads, cache folder and the amount of machine code, in the order to show them.

    Returns
    -------
    dict of str to str
        Title to text.
    """
    import platform

    code = _machine_code()
    files, nbytes = code.stored_code()
    functions = _compiler().functions_in_memory()
    versions_by_title = {
        "fastq": _version("fastq-kernels"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "numpy": _version("numpy"),
        "numba": _version("numba"),
        "llvmlite": _version("llvmlite"),
        "system": platform.platform(),
        "cpu": _describe_cpu(),
        "threads": f"{get_num_threads()} of {os.cpu_count()}",
        "machine code": code.level() or "compiled here",
        "cache": f"{code.code_folder() or 'none'} ({files} files, {nbytes / 2**20:.1f} MiB; {functions} in memory)",
    }
    if refused := code.refusal():
        versions_by_title["not cached in"] = refused
    return versions_by_title


def show_versions() -> None:
    """Print the result of ``fastq.config.versions()``.

    Examples
    --------
    >>> import fastq
    >>> fastq.show_versions()  # doctest: +ELLIPSIS
    fastq...
    """
    versions_by_title = versions()
    width = max(map(len, versions_by_title))
    for title, text in versions_by_title.items():
        print(f"{title:{width}}  {text}")


def _version(distribution: str) -> str:
    """Return the version of an installed distribution, by its name on PyPI."""
    from importlib import metadata  # 18 ms, a quarter of importing NumPy

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"


def _describe_cpu() -> str:
    """Return LLVM's name of this CPU, with those of `FEATURES` that it has."""
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    present = [name for name in FEATURES if features.get(name)]
    return f"{binding.get_host_cpu_name()} ({', '.join(present) or 'no known vector features'})"
