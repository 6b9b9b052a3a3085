"""A call on a dask array, and the tasks that it becomes, one for each chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from fastq import results
from fastq.dask.parts import Parts
from fastq.dispatch.cache import Call, call
from fastq.dispatch.granularity import kept_axes
from fastq.formats.qtypes import QType
from fastq.system.arguments import as_array

Array = NDArray[Any]
Index = tuple[int, ...]


class Request(Call):
    """A call whose x is a dask array."""

    @property
    def one(self) -> Array:
        """An array of one element like x: what is made of it tells dtypes, and which arguments are wrong."""
        return np.ones((1,) * self.x.ndim, as_array(self.x._meta, "x").dtype)

    def of_one(self, operation: str, scale: Any = None, zero_point: Any = None, qparams: Any = None) -> Any:
        """Return what an operation makes of one element."""
        return call(operation, self.one, None, scale, zero_point, qparams, self.options, self.types)

    def parts(self, params: results.QParams) -> Parts:
        """Return which chunks of x have which parameters."""
        return Parts(self.x.chunks, kept_axes(params.axis, self.x.ndim), params.block_size)

    @property
    def arguments(self) -> dict[str, Any]:
        """What a task has to know of the call."""
        return {"operation": self.operation, "options": self.options, "types": self.types}


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
    return blockwise(function, index, *operands, token="codes", **options)
