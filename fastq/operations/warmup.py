"""Compile kernels ahead of the first call."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import DTypeLike

from fastq.formats.qtypes import as_qtype
from fastq.operations.measure import minmax
from fastq.operations.quantize import quantize
from fastq.requests.values import as_input
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
    formats = [as_qtype(each, "codes") for each in as_items(codes, "codes", "an iterable of code formats")]
    wanted = "an iterable of dtypes"
    for each in as_items(dtypes, "dtypes", wanted):
        empty = as_input(np.empty((2, 64), as_dtype(each, "dtypes", wanted)), "dtypes")
        x = np.linspace(-1, 1, empty.size).astype(empty.dtype).reshape(empty.shape)
        minmax(x, axis=1)
        for qtype in formats:
            for options in ({}, {"axis": 0}, {"axis": 1}, {"axis": 1, "block_size": qtype.block_size or 32}):
                q = quantize(x, qtype, symmetric=qtype.bits > 1, **options)  # type: ignore[arg-type]
                quantize(x, qparams=q.qparams)
                q.dequantize()
