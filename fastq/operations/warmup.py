"""Compile kernels ahead of the first call."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import DTypeLike

from fastq.operations.measure import minmax
from fastq.operations.quantize import quantize
from fastq.system.arguments import as_dtype, as_items


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
    wanted, names = "an iterable of dtypes", as_items(codes, "codes", "an iterable of code formats")
    for dtype in as_items(dtypes, "dtypes", wanted):
        x = np.linspace(-1, 1, 128).astype(as_dtype(dtype, "dtypes", wanted)).reshape(2, 64)
        minmax(x, axis=1)
        for name in names:
            for options in ({}, {"axis": 0}, {"axis": 1}, {"axis": 1, "block_size": 32}):
                q = quantize(x, name, symmetric=True, **options)  # type: ignore[arg-type]
                quantize(x, qparams=q.qparams)
                q.dequantize()
