"""What a bug report needs: versions, CPU, threads, cache."""

from __future__ import annotations

import os

from fastq.system import lazy

# Of LLVM's hundred features of a CPU, those that decide the width and the speed of the kernels.
FEATURES = ("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512vnni", "neon", "sve", "sve2")


def collect() -> dict[str, str]:
    """Return versions, CPU, threads and cache folder, in the order to show them.

    Returns
    -------
    dict of str to str
        Title to text.
    """
    import platform

    import fastq

    jit = lazy.module("fastq.jit.compile")
    return {
        "fastq": _version("fastq-kernels"),
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "numpy": _version("numpy"),
        "numba": _version("numba"),
        "llvmlite": _version("llvmlite"),
        "system": platform.platform(),
        "cpu": _cpu(),
        "threads": f"{fastq.get_num_threads()} of {os.cpu_count()}",
        "cache": jit.cache_directory(),
    }


def show_versions() -> None:
    """Print what `fastq.operations.versions.collect` returns.

    Examples
    --------
    >>> import fastq
    >>> fastq.show_versions()  # doctest: +ELLIPSIS
    fastq...
    """
    facts = collect()
    width = max(map(len, facts))
    for title, text in facts.items():
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
