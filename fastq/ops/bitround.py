"""Round floats to fewer bits, and count how much information each bit has."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.engine.runtime.boundary import in_standard_mode
from fastq.engine.runtime.driver import Checks, LaunchPlan, bind, plan_launch
from fastq.engine.runtime.tiling import WHOLE_BYTES
from fastq.formats.bitrounding import dropped_bits, of_width
from fastq.formats.granularity import ARRAY
from fastq.kernels.pointers import BitPairOperands, BitRoundOperands
from fastq.ops.minmax import MINMAX
from fastq.plan import policy, slots
from fastq.plan.arrange import arrange, is_plain_out
from fastq.plan.cache import BoundCall, Call, Operation, run_operation
from fastq.plan.kernel_call import kernel_args, load_or_compile_kernel, tile
from fastq.plan.launch import BoundLaunch, Execute
from fastq.plan.policy import store_mode
from fastq.plan.result import result_of
from fastq.plan.spec import PLAIN
from fastq.requests import bitrounding
from fastq.requests.bitrounding import BitPairOptions, BitRounding, BitRoundOptions
from fastq.results import BitInformation
from fastq.results.bit_information import information_of_counts
from fastq.system.arguments import native
from fastq.system.dtypes import Array


def bitround(
    x: ArrayLike,
    *,
    keepbits: int | None = None,
    digits: int | None = None,
    max_error: float | None = None,
    convention: str = "numcodecs",
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Round floats to fewer bits and set the other bits of their significands to 0, so that compressors work.

    The results are ordinary floats, which need no decoding. NaN keeps all its bits, and infinities stay.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, float32 or float64, of any shape and memory layout.
    keepbits : int, optional
        Number of mantissa bits to keep, from 0 to 10, 23 or 52; the leading bit, which is not stored, does not count.
        Each element becomes the nearest float with only these bits. Give one of `keepbits`, `digits` and `max_error`.
    digits : int, optional
        Number of significant decimal digits to keep: 1 to 3, 7 or 15. Each element keeps the number of bits that
        Granular BitRound of netCDF-C gives it.
    max_error : float, optional
        Largest absolute error of finite elements. The fewest bits are kept that guarantee it for every number up to the
        largest finite magnitude M of x, ``2**(floor(log2(M)) - keepbits - 1) <= max_error``, and for which M stays
        finite.
    convention : {"numcodecs", "netcdf"}
        How ties are rounded: "numcodecs" takes the float whose last kept bit is 0, like numcodecs, xbitinfo and
        BitInformation.jl; "netcdf" rounds away from zero, like netCDF-C.
    out : ndarray, optional
        Array to write to, with the dtype and shape of x. ``out=x`` rounds in place.

    Returns
    -------
    ndarray
        Floats with the dtype, shape and memory order of x, or `out`. Numbers that are rounded up beyond the largest
        finite number become infinite, as in IEEE 754.

    Raises
    ------
    TypeError, ValueError
        If an argument is not as described, or not exactly one of `keepbits`, `digits` and `max_error` is given.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.array([3.14159265, 1000.2, np.nan], np.float32)
    >>> fastq.bitround(x, keepbits=7)
    array([   3.140625, 1000.      ,         nan], dtype=float32)
    >>> fastq.bitround(x, digits=3, out=x)
    array([   3.140625, 1000.      ,         nan], dtype=float32)
    """
    options = (keepbits, digits, max_error, convention)
    types = (type(keepbits), type(digits), type(max_error))
    result: NDArray[Any] = run_operation(BITROUND, x, out, options=options, types=types)
    return result


def bit_information(x: ArrayLike, *, axis: int = -1) -> BitInformation:
    """Count the bits of neighbouring floats to find how much information each bit has.

    The information is the mutual information of each bit and the same bit of the next element, as defined by Kloewer et
    al. (2021) and computed by xbitinfo. Bits are counted in one pass. A dask array is computed at once, chunk by chunk,
    including the pairs across chunks.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, float32 or float64, of any shape and memory layout. Pairs with NaN are left out.
    axis : int
        The axis along which elements are neighbours.

    Returns
    -------
    BitInformation
        Counts of the bits. Pass its ``keepbits(0.99)`` to `bitround`; the sum of two results has the pairs of both.

    Raises
    ------
    TypeError, AxisError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.sin(np.linspace(0, 9, 10_000)).astype(np.float32)
    >>> found = fastq.bit_information(x)
    >>> found
    <BitInformation: 9,999 pairs of float32, keepbits(0.99) = 8>
    >>> fastq.bitround(x, keepbits=found.keepbits(0.99)).dtype
    dtype('float32')
    """
    result: BitInformation = run_operation(BIT_INFORMATION, x, options=(axis,), types=(type(axis),))
    return result


# --- plan ---


def _resolve_bitround(arguments: Call, x: Array, out: Any) -> BoundCall:
    """Resolve `fastq.bitround`."""
    request = bitrounding.bitround_request(x.dtype, arguments.options)
    if request.max_error is not None:
        return functools.partial(_round_within_bound, request, arguments.options.convention)
    result = result_of(x.shape, request.dtype, out, like=x)
    new = result.new
    if not x.size:
        return lambda x, out, *_: new() if out is None else out
    bound = _bind_launch(request, x, None if out is None else np.asarray(out), result.nbytes)
    launch_checked = bound.launch
    settle = bound.settle
    in_place = _in_place(request, x, out)

    def round_floats(x: Array, out: Any, *_: object) -> Array:
        result: Array = new() if out is None else out
        if result is x and in_place is not None:
            in_place(x, x)
        elif status := launch_checked(x, np.asarray(result)):
            settle(status, x, result)
        return result

    return round_floats


BITROUND = Operation(
    name="BITROUND",
    function="bitround",
    resolve=_resolve_bitround,
    options=BitRoundOptions,
    operands=("x", "out"),
    labels="elements",
)


def _in_place(request: BitRounding, x: Array, out: Any) -> Execute | None:
    """Return what rounds an array that is its own output, None where elements may be rounded twice.

    Tiles may overlap, and a number that digits round up to a power of ten keeps another number of bits.
    """
    alike = out is not None and out.strides == x.strides and out.dtype == x.dtype
    return _execute(request, x, x, streams=False) if alike and (request.digits is None or is_plain_out(x)) else None


def _bind_launch(request: BitRounding, x: Array, out: Array | None, nbytes: int) -> BoundLaunch:
    """Return what launches the plan for arrays like these; the driver refuses a result that shares memory with x."""
    plan = _plan(request, x, out)
    launch = _with_table(request, bind(plan, Checks.of(x, out, nbytes)))
    execute_for = functools.partial(_execute, request)
    return BoundLaunch(
        _refuse_nothing, _with_table(request, bind(plan)), launch, execute_for=execute_for, strides=x.strides
    )


def _refuse_nothing(*_: object) -> None:
    """Accept any status: rounding reports nothing."""


def _execute(request: BitRounding, x: Array, out: Array | None, streams: bool = True) -> Execute:
    """Return what rounds arrays like these, without checks; with `streams` large results go past the cache."""
    return _with_table(request, bind(_plan(request, x, out, streams)))


def _with_table(request: BitRounding, launch: Execute) -> Execute:
    """Return a launch that has the table of binades, if there is one."""
    if request.digits is None:
        return launch
    table = dropped_bits(request.bits, request.digits)
    return lambda x, out: launch(x, out, table)


def _plan(request: BitRounding, x: Array, out: Array | None, streams: bool = True) -> LaunchPlan:
    """Plan to round arrays like these, in place or in tiles."""
    view = arrange(x, out, ARRAY, request.dtype)
    bits = np.dtype(f"i{request.dtype.itemsize}")
    size = math.prod(view.shape)
    keepbits = request.keepbits
    dropped = 0 if keepbits is None else of_width(request.bits)[0] - keepbits
    arithmetic = PLAIN._replace(rule=PLAIN.rule._replace(rounding=request.rounding))
    op = "granular_bitround" if keepbits is None else "bitround"
    operands = BitRoundOperands(bits, bits, bits)
    kernel = load_or_compile_kernel("traversal.elements.elements", operands, op, arithmetic)
    streaming = store_mode(size, bits, bits, codes=False) if streams else 0
    args = kernel_args(view.layout, dropped=dropped, streaming=streaming)
    threads = policy.threads_for(size)
    plan = plan_launch(kernel, slots.ROUND_BITS, args, size, threads, chunk_multiple=WHOLE_BYTES)
    return tile(plan, view, (bits, bits))


def _round_within_bound(request: BitRounding, convention: str, x: Array, out: Any, *_: object) -> Any:
    """Round to the fewest bits that keep the elements of x within the bound."""
    options = request.keepbits_within(largest(x)), None, None, convention
    return run_operation(BITROUND, x, out, options=options, types=(int, type(None), type(None)))


@in_standard_mode
def largest(x: Array) -> float:
    """Return the largest finite magnitude of an array of floats, 0.0 if none is finite."""
    if not x.size:
        return 0.0
    options = None, 0, "zero"
    lo, hi = map(float, run_operation(MINMAX, x, options=options, types=(type(None), int)))
    magnitude = max(-lo, hi)
    if math.isinf(magnitude):
        with np.errstate(invalid="ignore"):
            magnitude = float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0))
    return magnitude


# --- information ------------------------------------------------------------------------------------------------------


def _resolve_bit_information(arguments: Call, x: Array) -> BoundCall:
    """Resolve `fastq.bit_information`."""
    axis = bitrounding.axis_of_bit_pairs(x.dtype, x.ndim, arguments.options)
    dtype = native(x.dtype)
    pairs = neighbours(x, axis)
    if not pairs[0].size:
        return lambda *_: information_of_counts(dtype, 0, np.zeros(_size(dtype), np.int64))
    launch, partials = _plan_pairs(dtype, *pairs)
    size = pairs[0].size

    def count(x: Array, *_: object) -> BitInformation:
        counts = np.zeros((partials, _size(dtype)), np.int64)
        launch(*neighbours(x, axis), None, None, counts)
        return information_of_counts(dtype, size, counts.sum(axis=0))

    return count


BIT_INFORMATION = Operation(
    name="BIT_INFORMATION",
    function="bit_information",
    resolve=_resolve_bit_information,
    options=BitPairOptions,
    operands=("x",),
)


def neighbours(x: Array, axis: int) -> tuple[Array, Array]:
    """Return all elements but the last along an axis, and the one after each."""
    before = (slice(None),) * axis
    return x[(*before, slice(-1))], x[(*before, slice(1, None))]


def _size(dtype: np.dtype[Any]) -> int:
    """Return how many counts there are: of three streams of bits, and of pairs with a NaN."""
    return 3 * 8 * dtype.itemsize + 1


def _plan_pairs(dtype: np.dtype[Any], x: Array, following: Array) -> tuple[Execute, int]:
    """Return what counts the bits of pairs, by several threads, and for how many it has counts."""
    view = arrange(x, following, ARRAY, has_given_parameters=True, only_reads=True)
    bits = np.dtype(f"i{dtype.itemsize}")
    size = math.prod(view.shape)
    threads = policy.threads_for(size)
    kernel = load_or_compile_kernel(
        "body.bit_pairs.count_pairs", BitPairOperands(bits, bits, np.dtype(np.int64)), "bit_pairs"
    )
    args = kernel_args(view.layout, counts=_size(dtype), partial_stride=int(threads > 1))
    plan = plan_launch(kernel, slots.BIT_PAIRS, args, size, threads, chunk_multiple=WHOLE_BYTES)
    return bind(tile(plan, view, (bits, bits), writes=False)), threads
