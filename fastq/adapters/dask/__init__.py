"""Quantize dask arrays, chunk by chunk and lazily; needs dask, the extra ``[dask]``.

Results are dask arrays with the same bytes as the functions of `fastq` return for the whole array in memory. All
options except `out` are the same. Chunks must end where blocks end, and for codes that share bytes where bytes end.
Wrong arguments are refused at once, wrong elements when they are computed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

try:
    import dask.array as da
except ImportError as error:
    raise ImportError("fastq.dask needs dask: pip install 'dask[array]'", name=error.name) from error

from fastq import results
from fastq.adapters.dask import calibration
from fastq.adapters.dask.collections import QParams, QuantizedArray
from fastq.formats.conventions.convention import Convention
from fastq.ops import compare as errors
from fastq.ops import dequantize as of_dequantize
from fastq.ops import minmax as extremes
from fastq.ops import quantize as of_quantize
from fastq.ops import requantize as sums
from fastq.system.arguments import as_int, shown
from fastq.system.arrays_of_callers import is_lazy

_TAKEN = """Parameters
----------
{first} : dask.array.Array
    As in `fastq.{name}`; chunks must end where blocks and, for packed formats, bytes end.
{others}
    As in `fastq.{name}`; parameters may also be lazy, in any chunks.

Returns
"""
_REFUSED = """Raises
------
TypeError, ValueError, AxisError
    If an argument is not as described.

Examples
"""
Function = TypeVar("Function", bound=Callable[..., Any])

# Each function calls that of `fastq` of the same name, which does not call it back: `run_operation` of the core hands
# any call on a lazy array to `take_call` of dispatch.py, which makes the graph. All that is done here is to refuse what
# is not lazy, which the core would compute at once.


def _with_common_docstring(function: Function) -> Function:
    """Return a function as it is, with a complete docstring: parameters and errors are those of `fastq`'s own."""
    first, *others = inspect.signature(function).parameters.values()
    names = ", ".join(f"{'**' * (parameter.kind is parameter.VAR_KEYWORD)}{parameter.name}" for parameter in others)
    parameters = _TAKEN.format(first=first.name, others=names, name=function.__name__)
    text = inspect.cleandoc(function.__doc__ or "").replace("Returns\n", parameters).replace("Examples\n", _REFUSED)
    function.__doc__ = f"{text}\n"
    return function


@_with_common_docstring
def minmax(x: da.Array, **options: Any) -> tuple[da.Array, da.Array]:
    """Return the smallest and the largest element: `fastq.minmax`, merged in a tree.

    Returns
    -------
    lo, hi : dask.array.Array
        Minima and maxima in the dtype of x and the shape of the scale of `quantize`.

    Examples
    --------
    >>> import dask.array, fastq.dask
    >>> lo, hi = fastq.dask.minmax(dask.array.arange(100, chunks=10))
    >>> int(lo.compute()), int(hi.compute())
    (0, 99)
    """
    return extremes.minmax(_as_lazy(x), **options)


@_with_common_docstring
def choose_qparams(x: da.Array, dtype: Any, **options: Any) -> QParams:
    """Return the scale and zero point that `quantize` would compute from an array.

    Returns
    -------
    QParams
        Lazy parameters; ``compute()`` returns the `fastq.QParams`, with which any other array can be quantized.

    Examples
    --------
    >>> import dask.array, fastq.dask
    >>> fastq.dask.choose_qparams(dask.array.linspace(0, 51, 100, chunks=10), "uint8").scale.compute()
    array(0.2)
    """
    return cast(QParams, of_quantize.choose_qparams(_as_lazy(x), dtype, **options))


@_with_common_docstring
def quantize(x: da.Array, dtype: Any = None, **options: Any) -> QuantizedArray:
    """Quantize an array with parameters that are computed from it or given.

    Parameters that depend on one chunk only, as with blocks, are computed with the codes in one pass. Other parameters
    need the chunks twice, and dask keeps them in between: for data that does not fit into memory, compute the
    parameters first, ``quantize(x, qparams=choose_qparams(x, dtype).compute())``.

    Returns
    -------
    QuantizedArray
        Lazy codes and parameters; ``compute()`` returns a `fastq.QuantizedArray`, ``dequantize()`` a dask array.

    Examples
    --------
    >>> import dask.array, fastq.dask
    >>> x = dask.array.linspace(-1, 1, 4096, chunks=512, dtype="float32").reshape(64, 64)
    >>> q = fastq.dask.quantize(x, "int8", axis=0)
    >>> q.codes[0, :3].compute()
    array([-128, -128, -128], dtype=int8)
    """
    return cast(QuantizedArray, of_quantize.quantize(_as_lazy(x), dtype, **options))


@_with_common_docstring
def quantize_linear(x: da.Array, scale: Any, zero_point: Any = None, dtype: Any = None, **options: Any) -> da.Array:
    """Quantize with raw parameters: `fastq.quantize_linear`.

    Returns
    -------
    dask.array.Array
        Codes in the shape of x, packed along the last axis for packed formats.

    Examples
    --------
    >>> import dask.array, fastq.dask
    >>> fastq.dask.quantize_linear(dask.array.arange(6.0, chunks=3), 0.5, 1).compute()
    array([ 1,  3,  5,  7,  9, 11], dtype=uint8)
    """
    return of_quantize.quantize_linear(_as_lazy(x), scale, zero_point, dtype, **options)


@_with_common_docstring
def dequantize_linear(codes: da.Array, scale: Any, zero_point: Any = None, **options: Any) -> da.Array:
    """Dequantize with raw parameters: `fastq.dequantize_linear`.

    Returns
    -------
    dask.array.Array
        Values in the shape of the codes.

    Examples
    --------
    >>> import dask.array, fastq.dask
    >>> codes = dask.array.arange(4, chunks=2, dtype="uint8")
    >>> fastq.dask.dequantize_linear(codes, 0.5, 1).compute()
    array([-0.5,  0. ,  0.5,  1. ], dtype=float32)
    """
    return of_dequantize.dequantize_linear(_as_lazy(codes, "codes"), scale, zero_point, **options)


@_with_common_docstring
def requantize(acc: da.Array, multiplier: Any, zero_point: Any, dtype: Any, **options: Any) -> da.Array:
    """Turn int32 accumulators into codes: `fastq.requantize`; of the parameters only the multiplier may be lazy.

    Returns
    -------
    dask.array.Array
        Codes, acc's shape.

    Examples
    --------
    >>> import dask.array, fastq.dask
    >>> acc = dask.array.arange(-2000, 2000, 500, chunks=3, dtype="int32")
    >>> fastq.dask.requantize(acc, 0.01, 3, "int8").compute()
    array([-17, -12,  -7,  -2,   3,   8,  13,  18], dtype=int8)
    """
    return sums.requantize(_as_lazy(acc, "acc"), multiplier, zero_point, dtype, **options)


@_with_common_docstring
def fake_quantize(x: da.Array, dtype: Any = None, **options: Any) -> da.Array:
    """Quantize and dequantize in one pass: `fastq.fake_quantize`.

    Returns
    -------
    dask.array.Array
        Values in the dtype of x if that is a float, else in the compute type.

    Examples
    --------
    >>> import dask.array, fastq.dask
    >>> fastq.dask.fake_quantize(dask.array.linspace(0, 1, 4, chunks=2), "uint2").compute()
    array([0.        , 0.33333333, 0.66666667, 1.        ])
    """
    return of_quantize.fake_quantize(_as_lazy(x), dtype, **options)


@_with_common_docstring
def compare(x: da.Array, q: results.QuantizedArray | da.Array) -> Any:
    """Measure the errors of an approximation of an array, in one pass: `fastq.compare`.

    Sums of chunks are added, so the last bits of a measure depend on the chunks; tasks and their order change nothing.

    Returns
    -------
    dask.delayed.Delayed
        A lazy result; ``compute()`` returns a `fastq.Comparison`.

    Examples
    --------
    >>> import dask.array, fastq.dask
    >>> x = dask.array.arange(1000.0, chunks=100)
    >>> round(fastq.dask.compare(x, fastq.dask.quantize(x, "uint8")).compute().sqnr_db, 2)
    54.16
    """
    return errors.compare(_as_lazy(x), q)


def calibrate(
    x: da.Array,
    dtype: Any,
    *,
    axis: results.Axis = None,
    symmetric: bool = False,
    convention: str | Convention = "onnx",
    bins: int | None = None,
    nan: str = "raise",
    split_every: int | None = None,
) -> Any:
    """Return a `fastq.Calibrator` with the data of all chunks of an array.

    Each task calibrates a chunk; the calibrators are merged in a tree, which does not change a bit.

    Parameters
    ----------
    x : dask.array.Array
        Array of a dtype that `fastq.Calibrator` accepts.
    dtype, axis, symmetric, convention, bins, nan
        As in `fastq.Calibrator`.
    split_every : int, optional
        Most calibrators that a task merges, as in `dask.array.reduction`.

    Returns
    -------
    dask.delayed.Delayed
        A lazy calibrator; ``compute()`` returns a `fastq.Calibrator`.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described.

    Examples
    --------
    >>> import dask.array, fastq.dask
    >>> calibrator = fastq.dask.calibrate(dask.array.linspace(-1, 3, 100, chunks=10), "int8", symmetric=True)
    >>> calibrator.compute().qparams("percentile", percentile=99.0).scale
    array(0.02337598)
    """
    options = {"axis": axis, "symmetric": symmetric, "convention": convention, "bins": bins, "nan": nan}
    if split_every is not None and (split_every := as_int(split_every, "split_every")) < 2:
        raise ValueError(f"split_every must be 2 or more, not {split_every}")
    return calibration.calibrate(_as_dask(x), dtype, options, split_every)


def _as_lazy(x: Any, name: str = "x") -> Any:
    """Return a lazy array of dask, also one inside xarray, and refuse everything else."""
    if not is_lazy(x):
        raise TypeError(f"{name} must be a dask array, not {shown(x)}: dask.array.from_array makes one")
    return x


def _as_dask(x: Any) -> da.Array:
    """Return a lazy array as a dask array: as it is, or the one inside a DataArray or Variable."""
    data = getattr(_as_lazy(x), "data", x)
    return data if isinstance(data, da.Array) else x
