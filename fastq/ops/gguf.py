"""Block formats of GGUF: the bytes of ggml, which llama.cpp reads.

``quantize`` and ``dequantize`` replace ``gguf.quants.quantize`` and ``gguf.quants.dequantize`` of the gguf package,
without needing it, also for the formats that the package can't write: K-quants, codebooks, grids and 4 bit floats.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.engine.runtime.driver import Checks, LaunchPlan, bind, plan_launch, refuse_all_operands, run
from fastq.engine.runtime.tiling import Demands, Elements
from fastq.formats.floats import FLOATS
from fastq.formats.gguf import BlockFormat, ScaledFormat, as_block_format
from fastq.kernels.args import KERNEL_ARGS
from fastq.kernels.sizes import GGUF_GROUP
from fastq.plan import policy, slots
from fastq.plan.arrange import is_plain, is_plain_out, memory_of
from fastq.plan.cache import BoundCall, Call, Operation, run_operation
from fastq.plan.copies import copy_from, with_copy_to
from fastq.plan.kernel_call import load_or_compile_block_loop, operand_of, plan_in_tiles
from fastq.plan.launch import BoundLaunch, Execute
from fastq.plan.policy import outgrows_cache, stores_past_cache
from fastq.plan.result import result_of
from fastq.requests.gguf import as_importance_of_columns, as_least_error, check_importance_of_columns
from fastq.system.arguments import native
from fastq.system.dtypes import INTEGERS, REAL_DTYPES, Array


def quantize(
    data: ArrayLike,
    qtype: object,
    *,
    range: str = "minmax",
    importance: ArrayLike | None = None,
    out: Array | None = None,
) -> NDArray[np.uint8]:
    """Quantize to the blocks of GGUF files.

    The bytes are the same as from ggml on x86-64. Its searches for scales run here for sixteen blocks at a time; the
    exact rules are in docs/contract.md.

    Parameters
    ----------
    data : array_like
        Array of dtype float32, float16, bfloat16, float64 or an integer dtype, of any memory layout, in shape (..., n)
        with n a multiple of the values of a block. It is converted to float32 first.
    qtype : gguf.GGMLQuantizationType, int or str
        The format: Q4_0 (2), Q4_1 (3), Q5_0 (6), Q5_1 (7), Q8_0 (8), IQ4_NL (20) or MXFP4 (39) with blocks of 32
        values, NVFP4 (40) or Q2_0 (42) of 64, Q1_0 (41) of 128, Q2_K (10), Q3_K (11), Q4_K (12), Q5_K (13), Q6_K (14),
        IQ2_XXS (16), IQ2_XS (17), IQ3_XXS (18), IQ1_S (19), IQ3_S (21), IQ2_S (22), IQ4_XS (23), IQ1_M (29), TQ1_0 (34)
        or TQ2_0 (35) of 256.
    range : {"minmax", "mse"}
        The choice of scales and smallest values: "minmax" gives the bytes of ggml; "mse" tries several stored
        parameters and takes those with the least squared error, in Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, IQ4_XS, MXFP4
        and NVFP4. No block is worse than that of ggml, and any reader of ggml's blocks reads these.
    importance : array_like of float32, optional
        Importance of the columns, for the choice of scales: finite, not negative, in shape (n,) or in that of data,
        where axes before the last may be 1 from some axis on, such as (experts, 1, n). Neighbours that share a scale
        and are all 0 get equal weights; ggml stores zeros for them. Q8_0, TQ1_0, TQ2_0, MXFP4, NVFP4, Q1_0 and Q2_0
        ignore the importance; IQ1_S, IQ2_XXS and IQ2_XS need one, as in ggml. With "mse" it has the weights of the
        squared errors, in every format.
    out : ndarray, optional
        Array to write to, uint8 in the shape of the result.

    Returns
    -------
    ndarray of uint8
        Blocks of shape (..., n / values of a block * bytes of a block); `out` if given.

    Raises
    ------
    TypeError
        If data, importance or out has another dtype.
    ValueError
        If n is not a multiple of the values of a block, importance has another shape, is negative or not finite, or is
        missing where it is needed, qtype is another format, or range is another word or "mse" for a format without it.
        If a block has NaN, infinities, a parameter beyond float16, or columns so important that sums of float32 could
        overflow; the contents of `out` are then not specified.

    References
    ----------
    .. [1] ggml/src/ggml-quants.c, quantize_row_q4_K_ref and its neighbours

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)
    >>> blocks = fastq.gguf.quantize(x, "Q8_0")
    >>> blocks.shape
    (1, 68)
    >>> blocks[0, :6]
    array([  8,  32, 129, 133, 137, 141], dtype=uint8)
    >>> for method in ("minmax", "mse"):
    ...     blocks = fastq.gguf.quantize(x, "Q4_0", range=method)
    ...     print(f"{fastq.compare(x, fastq.gguf.dequantize(blocks, 'Q4_0')).sqnr_db:.2f} dB")
    24.29 dB
    24.60 dB
    """
    result: NDArray[np.uint8] = run_operation(
        GGUF_QUANTIZE, data, out, importance, options=(qtype, range), types=(type(qtype),)
    )
    return result


def dequantize(data: ArrayLike, qtype: object, *, out: Array | None = None) -> NDArray[np.float32]:
    """Return the values of blocks of a GGUF file.

    Parameters
    ----------
    data : array_like of uint8
        Blocks in shape (..., m) with m a multiple of the bytes of a block, of any memory layout.
    qtype : gguf.GGMLQuantizationType, int or str
        As in `quantize`.
    out : ndarray, optional
        Array to write to, float32 in the shape of the result.

    Returns
    -------
    ndarray of float32
        Values of shape (..., m / bytes of a block * values of a block); `out` if given.

    Raises
    ------
    TypeError
        If data is not of dtype uint8, or out not of float32.
    ValueError
        If m is not a multiple of the bytes of a block, or qtype is another format.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> blocks = fastq.gguf.quantize(np.linspace(-1, 1, 32, dtype=np.float32), "Q4_0")
    >>> fastq.gguf.dequantize(blocks, "Q4_0")[:4]
    array([-1.   , -0.875, -0.875, -0.75 ], dtype=float32)
    """
    result: NDArray[np.float32] = run_operation(GGUF_DEQUANTIZE, data, out, options=(qtype,), types=(type(qtype),))
    return result


# --- from a call to a conversion --------------------------------------------------------------------------------------

_UINT8 = np.dtype(np.uint8)
_FLOAT32 = np.dtype(np.float32)
_SOURCES = {dtype.name for dtype in (*FLOATS, *INTEGERS)} | {"float16", "bfloat16"}
_SEARCH = 16  # a search for scales takes as long as this many elements for each element


class _BlockConversion(NamedTuple):
    """The work of a call on arrays of one form in memory: blocks of `width` become `result_width` of `dtype`."""

    block_format: BlockFormat
    loop: str
    width: int
    result_width: int
    dtype: np.dtype[Any]
    streams: bool
    weighted: bool = False
    least_error: bool = False
    rows_each: int = 0  # that share a row of the importance of columns

    @property
    def searches(self) -> bool:
        """Whether scales are searched for."""
        return self.least_error or (self.dtype == _UINT8 and self.block_format.searches(self.weighted))

    @property
    def needs_rows(self) -> bool:
        """Whether a block depends on all of its row."""
        return self.weighted and self.block_format.of_rows

    def dependent(self, data: Array) -> int:
        """Return how many blocks depend on each other: those of a row, or one alone."""
        return data.shape[-1] // self.block_format.size if self.needs_rows else 1

    def blocks_of_thread(self, data: Array) -> int:
        """Return a number of blocks: what a thread gets is a multiple of it.

        Blocks that depend on others of their row need whole rows. All others are independent, and are quantized as many
        at a time as a register has lanes, so that a thread gets whole groups of these.
        """
        return self.dependent(data) if self.needs_rows else GGUF_GROUP


class BlockOptions(NamedTuple):
    """Options of `fastq.gguf.quantize`."""

    qtype: object
    range: str = "minmax"


def _resolve_gguf_quantize(arguments: Call, data: Array, out: Any, importance: Any) -> BoundCall:
    """Resolve `fastq.gguf.quantize`."""
    block_format = as_block_format(arguments.options.qtype)
    least_error = as_least_error(arguments.options.range, block_format)
    if data.dtype.name not in _SOURCES:
        raise TypeError(f"data must be {REAL_DTYPES}, not {data.dtype}")
    shape = _shape(data, block_format.size, "values", block_format.nbytes, block_format)
    check_importance_of_columns(block_format, importance)
    weights, rows_each = None, 0
    if importance is not None:
        weights, rows_each = as_importance_of_columns(importance, data.shape, block_format.group)
    weighted = weights is not None and (block_format.weighted or least_error)
    in_lanes = weighted or least_error or not isinstance(block_format, ScaledFormat)
    conversion = _BlockConversion(
        block_format=block_format,
        loop="ggml.quantize.quantize_groups" if in_lanes else "ggml.blocks32.quantize_blocks",
        width=block_format.size,
        result_width=block_format.nbytes,
        dtype=_UINT8,
        streams=stores_past_cache(codes=True) and not in_lanes,
        weighted=weighted,
        least_error=least_error,
        rows_each=rows_each,
    )
    convert = _bind_conversion(conversion, data, out, shape, weights.nbytes if weights is not None and weighted else 0)

    def quantize_blocks(data: Array, out: Any, importance: Any, *_: object) -> Array:
        # they are refused where nothing is weighted by them, too
        weights = None
        if importance is not None:
            weights = as_importance_of_columns(importance, data.shape, block_format.group)[0]
        return convert(data, out, np.ascontiguousarray(weights) if weighted else None)

    return quantize_blocks


GGUF_QUANTIZE = Operation(
    name="GGUF_QUANTIZE",
    function="gguf.quantize",
    resolve=_resolve_gguf_quantize,
    options=BlockOptions,
    operands=("data", "out", "importance"),
)


class BlockValuesOptions(NamedTuple):
    """Options of `fastq.gguf.dequantize`."""

    qtype: object


def _resolve_gguf_dequantize(arguments: Call, data: Array, out: Any) -> BoundCall:
    """Resolve `fastq.gguf.dequantize`."""
    block_format = as_block_format(arguments.options.qtype)
    if data.dtype != _UINT8:
        raise TypeError(f"data must be uint8, the bytes of blocks, not {data.dtype}")
    shape = _shape(data, block_format.nbytes, "bytes", block_format.size, block_format)
    loop = "ggml.dequantize.dequantize_blocks"
    convert = _bind_conversion(
        _BlockConversion(
            block_format=block_format,
            loop=loop,
            width=block_format.nbytes,
            result_width=block_format.size,
            dtype=_FLOAT32,
            streams=True,
        ),
        data,
        out,
        shape,
        importance_bytes=0,
    )
    return lambda data, out, *_: convert(data, out, None)


GGUF_DEQUANTIZE = Operation(
    name="GGUF_DEQUANTIZE",
    function="gguf.dequantize",
    resolve=_resolve_gguf_dequantize,
    options=BlockValuesOptions,
    operands=("data", "out"),
)


def _shape(data: Array, width: int, what: str, becomes: int, block_format: BlockFormat) -> tuple[int, ...]:
    """Shape of the result, in which each `width` elements of a row become `becomes`."""
    shape = data.shape
    if not shape or shape[-1] % width:
        raise ValueError(
            f"data has shape {shape}, but for qtype {block_format} its last axis must be a multiple of {width}, "
            f"the {what} of a block"
        )
    return (*shape[:-1], shape[-1] // width * becomes)


# --- bind -------------------------------------------------------------------------------------------------------------


def _bind_conversion(
    conversion: _BlockConversion, data: Array, out: Any, shape: tuple[int, ...], importance_bytes: int
) -> Callable[[Array, Any, Array | None], Array]:
    """Return what converts arrays of the same dtype, shape and strides: in place, else in tiles, else by copies."""
    result = result_of(shape, conversion.dtype, out)
    blocks = data.size // conversion.width
    target = None if out is None else np.asarray(out)
    if not blocks:
        return lambda data, out, importance: result.new() if out is None else out
    is_in_place = is_plain(data) and is_plain_out(target)
    streams = conversion.streams and is_in_place and outgrows_cache(data.nbytes + result.nbytes, _UINT8)
    plan = _plan(conversion, data, blocks, streaming=streams)
    by_copies = functools.partial(_by_copies, plan)
    if is_in_place:
        execute: Execute = by_copies  # which copies nothing then
    else:
        execute = _in_tiles(conversion, plan, data, target) or by_copies
    launch: Execute = refuse_all_operands
    if is_in_place and target is out:
        launch = bind(plan, Checks((data.nbytes, result.nbytes, importance_bytes, 0)))
    refuse = functools.partial(_refuse, conversion, plan, blocks)
    settle = BoundLaunch(refuse, execute, launch, execute_for=lambda *_: by_copies, strides=data.strides).settle
    new = result.new

    def convert(data: Array, out: Any, importance: Array | None) -> Array:
        values = new() if out is None else out
        status = launch(data, values, importance)
        if status:
            settle(status, data, values, importance)
        return values

    return convert


def _plan(conversion: _BlockConversion, data: Array, blocks: int, streaming: bool) -> LaunchPlan:
    """Plan the conversion of contiguous blocks; `streaming` says whether results go past the cache."""
    block_format = conversion.block_format
    elements_of_work = conversion.block_format.size  # elements of a block, or as many as take as long to quantize
    args = None
    kernel = load_or_compile_block_loop(
        conversion.loop,
        block_format,
        native(data.dtype),
        conversion.dtype,
        streaming,
        conversion.weighted,
        conversion.least_error,
    )
    if conversion.searches:
        elements_of_work *= _SEARCH
    if conversion.weighted:
        args = np.zeros(1, KERNEL_ARGS)
        args["row_blocks"] = data.shape[-1] // block_format.size
        args["alike_rows"] = conversion.rows_each
    threads = policy.threads_for(blocks * elements_of_work)
    operands = slots.WEIGHTED_BLOCKS if conversion.weighted else slots.COPY
    return plan_launch(
        kernel,
        operands,
        args,
        blocks,
        threads,
        size=elements_of_work,
        chunk_multiple=conversion.blocks_of_thread(data),
    )


# --- strided memory ---------------------------------------------------------------------------------------------------


def _by_copies(plan: LaunchPlan, data: Array, target: Array, importance: Array | None) -> int:
    """Launch on copies of arrays that neither kernels nor tiles can take as they are."""
    return with_copy_to(functools.partial(run, plan), target)(_contiguous(data), target, importance)


def _contiguous(x: Array) -> Array:
    """Return an array that kernels can work on: itself, or a copy."""
    gather = copy_from(x)
    return x if gather is None else gather(x)


def _in_tiles(conversion: _BlockConversion, plan: LaunchPlan, data: Array, target: Array | None) -> Execute | None:
    """Return what launches on strided arrays; None where what has to be together is too large for a tile.

    If both are strided, results go to contiguous memory first, since blocks and values are cut into separate tiles.
    """
    spreads = target is not None and not is_plain(data) and not is_plain_out(target)
    tiled = _plan_in_tiles(conversion, plan, data, None if spreads else target)
    if tiled is None:
        return None
    return with_copy_to(functools.partial(run, tiled), target if spreads else None)


def _plan_in_tiles(
    conversion: _BlockConversion, plan: LaunchPlan, data: Array, target: Array | None
) -> LaunchPlan | None:
    """Return a plan for the one of both arrays that is strided, along whose axes tiles are cut; None as `_in_tiles`."""
    memory = memory_of(data)
    target_memory = None if target is None else memory_of(target, writes=True)
    bits = 8 * data.itemsize
    result_bits = 8 * conversion.dtype.itemsize
    if memory is not None:
        strided_shape = data.shape
        unit = conversion.width
    else:
        assert target is not None  # one of both is strided
        strided_shape = target.shape
        unit = conversion.result_width
    whole = conversion.dependent(data) * unit
    demands = Demands(
        unit=unit,
        whole=whole,
        chunk_multiple=whole,
        unit_bits=(bits * conversion.width, result_bits * conversion.result_width),
    )
    x = operand_of(bits, memory)
    y = operand_of(result_bits, target_memory)._replace(is_result=target_memory is not None)
    return plan_in_tiles(plan, Elements(strided_shape, x, y), demands)


# --- errors -----------------------------------------------------------------------------------------------------------


def _refuse(
    conversion: _BlockConversion,
    plan: LaunchPlan,
    blocks: int,
    status: int,
    data: Array,
    out: Array,
    importance: Array | None,
) -> None:
    """Raise what the first block was refused for; where it needs its row, another block of that may not be finite."""
    block_format = conversion.block_format
    refused = _find_refused_block(plan, data, out, importance, blocks)
    index_of_row, block_in_row = divmod(refused, data.shape[-1] // block_format.size)
    index = tuple(int(k) for k in np.unravel_index(index_of_row, data.shape[:-1])) if data.ndim > 1 else ()
    with np.errstate(over="ignore", invalid="ignore"):  # signalling NaN
        are_finite = np.isfinite(data[index].astype(np.float32)).reshape(-1, block_format.size).all(axis=1)
    if conversion.needs_rows and are_finite[block_in_row] and not are_finite.all():
        block_in_row = int(are_finite.argmin())
    large = f"values too large for the float16 parameters of {block_format}"
    if block_format.searches(conversion.weighted) and conversion.weighted:
        large += ", or an importance of columns too large for its search"
    reason = large if are_finite[block_in_row] else "NaN or infinity"
    where = f"row {index[0] if len(index) == 1 else index} of data" if index else "data"
    first_element = block_in_row * block_format.size
    raise ValueError(f"{where} has {reason} in elements {first_element}..{first_element + block_format.size - 1}")


def _find_refused_block(plan: LaunchPlan, data: Array, result: Array, importance: Array | None, blocks: int) -> int:
    """Return the number of the first block that a plan refuses, where it refuses any.

    A kernel reports that there is one, not which. So halves of the blocks, and halves of these, are converted again to
    memory that is thrown away.
    """
    plan = plan.with_args(streaming=0)
    operands = _contiguous(data), np.empty(result.shape, result.dtype), importance
    start = 0
    stop = blocks
    while stop - start > 1:
        middle = (start + stop) // 2
        if run(plan.part(start, middle), *operands):
            stop = middle
        else:
            start = middle
    return start
