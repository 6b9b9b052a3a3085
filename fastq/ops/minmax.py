"""Take the smallest and the largest element of each part of an array; kernels treat NaN as in fastq/kernels/nan.py."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import ArrayLike

from fastq.plan.cache import BoundCall, Call, Operation, run_operation
from fastq.plan.nan_and_infinity import refuse_nan
from fastq.plan.reduction import Extremes
from fastq.requests.quantization import MinMaxOptions, granularity_of_minmax
from fastq.results import Axis
from fastq.system.arguments import native
from fastq.system.dtypes import Array


def minmax(x: ArrayLike, *, axis: Axis = None, block_size: int = 0, nan: str = "raise") -> tuple[Array, Array]:
    """Return the smallest and the largest element, both in one pass.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, bfloat16, float32, float64 or an integer dtype; may have infinities.
    axis, block_size
        As in `quantize`: each channel or block has its own minimum and maximum.
    nan : {"raise", "zero"}
        What to do with NaN: "raise" refuses it, "zero" treats it as 0.0.

    Returns
    -------
    lo, hi : ndarray
        Minima and maxima in the dtype of x and the shape of the scale of `quantize`; -0.0 is returned as 0.0.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described, x has NaN (unless ``nan="zero"``), or a part is empty and has no minimum.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.minmax(np.array([[3, 1], [-2, 5]], np.int32), axis=0)
    (array([ 1, -2], dtype=int32), array([3, 5], dtype=int32))
    """
    result: tuple[Array, Array] = run_operation(
        MINMAX, x, options=(axis, block_size, nan), types=(type(axis), type(block_size))
    )
    return result


def _resolve_minmax(arguments: Call, x: Array) -> BoundCall:
    """Resolve `fastq.minmax`."""
    parts = granularity_of_minmax(x.dtype, x.shape, arguments.options)
    dtype = native(x.dtype)
    nan = arguments.options.nan
    if x.size == 0:
        new = functools.partial(np.empty, parts.parameter_shape(x.shape), dtype)
        return lambda *operands: (new(), new())
    reduce = Extremes(x, parts, nan)
    as_they_are = reduce.dtype == dtype and reduce.view.order is None
    arranged = reduce.view.from_kernel

    def launch(x: Array, *_: object) -> tuple[Array, Array]:
        lo, hi, status = reduce(x)
        if status:
            refuse_nan(status, x, nan=nan)
        if as_they_are:
            return lo, hi
        return arranged(lo.astype(dtype, copy=False)), arranged(hi.astype(dtype, copy=False))

    return launch


MINMAX = Operation(
    name="MINMAX",
    function="minmax",
    resolve=_resolve_minmax,
    options=MinMaxOptions,
    operands=("x",),
    labels="ranges",
)
