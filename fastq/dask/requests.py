"""What a call on a dask array tells before anything is computed, and the tasks that it becomes, one for each chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np

from fastq.dispatch.cache import Call
from fastq.formats.qtypes import QType, stored_as
from fastq.system.arguments import as_array, dtype_of, is_a

Index = tuple[int, ...]


def dtype_in(x: Any, name: str) -> Any:
    """Return the dtype of an array of dask, or in which a caller gives numbers; None for those of Python."""
    return as_array(x._meta, name).dtype if is_a(x, da.Array) else dtype_of(x, name)


def arguments(call: Call) -> dict[str, Any]:
    """Return what a task has to know of a call."""
    return {"operation": call.operation, "options": call.options, "types": call.types}


def blockwise(function: Callable[..., Any], index: Index, *operands: Any, dtype: Any, **options: Any) -> da.Array:
    """Return an array of a task for each chunk; operands are arrays and their axes in terms of `index`, in turns."""
    meta = np.empty((0,) * len(index), dtype)
    return da.blockwise(function, index, *operands, dtype=dtype, meta=meta, align_arrays=False, **options)


def codes_of(
    chunks: tuple[tuple[int, ...], ...], qtype: QType, function: Callable[..., Any], *operands: Any, **options: Any
) -> da.Array:
    """Return an array of a task for each chunk that returns its codes, in the chunks that packed codes have."""
    index = tuple(range(len(chunks)))
    if qtype.packed and not index:
        index, options = (0,), {**options, "new_axes": {0: 1}}
    elif qtype.packed:
        packed = tuple(-(-size * qtype.bits // 8) for size in chunks[-1])
        options = {**options, "adjust_chunks": {index[-1]: packed}}
    return blockwise(function, index, *operands, dtype=stored_as((), qtype)[1], token="codes", **options)
