"""Calibrators of the chunks of an array, merged in a tree, with their channels side by side at the end."""

from __future__ import annotations

import functools
import operator
from typing import Any

import dask.array as da
import numpy as np
from dask.core import flatten
from dask.delayed import delayed

from fastq.adapters.dask import in_task
from fastq.adapters.dask.chunks import PartedChunks, blockwise, dtype_in, refuse_masked_meta
from fastq.formats.granularity import ARRAY, granularity
from fastq.ops.calibrate import Calibrator, join_calibrators
from fastq.requests.quantization import check_input


def calibrate(x: da.Array, dtype: Any, options: dict[str, Any], split_every: int | None) -> Any:
    """Return the graph of `fastq.dask.calibrate`.

    Each chunk gets a calibrator, those of the same channels are merged in a tree, and the results, which have other
    channels each, are joined at the end.
    """
    refuse_masked_meta(x, "x")
    check_input(dtype_in(x, "x"))
    make = functools.partial(Calibrator, dtype, **options)
    axis = make().axis
    parts = PartedChunks(x.chunks, granularity(axis, 0, x.ndim))
    options_of_tasks = {
        "adjust_chunks": PartedChunks(x.chunks, ARRAY).result_chunks,
        "dtype": object,
        "token": "calibrator",
    }
    calibrators = blockwise(in_task.calibrate, parts.all_axes, x, parts.all_axes, make=make, **options_of_tasks)
    if axes := parts.reduced:
        every = split_every and min(split_every, 1 << 16)  # dask makes a list of this length
        meta = np.zeros((0,) * len(parts.kept), object)
        steps = {"combine": _merge, "split_every": every}
        calibrators = da.reduction(
            calibrators, _unchanged, _merge, axis=axes, concatenate=False, dtype=object, meta=meta, **steps
        )
    return delayed(join_calibrators, pure=True)(calibrators.to_delayed().tolist(), len(parts.kept))


def _unchanged(calibrator: Calibrator, axis: tuple[int, ...], keepdims: bool) -> Calibrator:
    """Return a calibrator: the first step of a reduction of dask, which has nothing to do."""
    return calibrator


def _merge(calibrators: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Return a calibrator with the data of several, which dask passes in lists within lists."""
    return functools.reduce(operator.or_, flatten([calibrators], container=list))
