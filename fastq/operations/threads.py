"""How many threads, and compiling ahead of the first call."""

from __future__ import annotations

import functools
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

    From then on calls like one before run without another look at their arguments, too.

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
    from fastq.dispatch import known
    from fastq.operations import ops

    known.start()
    for dtype in dtypes:
        x = np.linspace(-1, 1, 128).astype(dtype).reshape(2, 64)
        ops.minmax(x, axis=1)
        for name in codes:
            as_qtype(name)
            for options in ({}, {"axis": 0}, {"axis": 1}, {"axis": 1, "block_size": 32}):
                q = ops.quantize(x, name, symmetric=True, **options)  # type: ignore[arg-type]
                ops.quantize(x, qparams=q.qparams)
                q.dequantize()
