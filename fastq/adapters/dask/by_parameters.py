"""Operations with given parameters: a task for each chunk, which gets its part of them."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np

from fastq import results
from fastq.adapters.dask import in_task
from fastq.adapters.dask.chunks import (
    Chunks,
    Index,
    PartedChunks,
    blockwise,
    codes_of,
    dtype_in,
    value_chunks,
    with_noise,
)
from fastq.adapters.dask.collections import NUMBERS, QParams, QuantizedArray, in_memory, with_lazy_numbers
from fastq.formats.granularity import granularity
from fastq.plan.cache import Call
from fastq.requests import parameters, quantization, requantization
from fastq.requests.parameters import check_qparams, check_zero_point_shape, in_dtypes_of, rules_of
from fastq.requests.quantization import (
    Request,
    dtype_by_scale,
    dtype_of_fakes,
    dtype_of_values,
    request_by_numbers,
    request_by_qparams,
    request_to_decode_by_numbers,
)
from fastq.results import without_checks
from fastq.system.arrays_of_callers import as_array

# --- QParams ----------------------------------------------------------------------------------------------------------


def quantize_with_qparams(call: Call, x: da.Array) -> QuantizedArray:
    """Return the graph of `fastq.quantize` with parameters: tasks return codes, and parameters stay as they are."""
    call, params, parts, operands = _values_by_qparams(call, x)
    parts.check_aligned(params.dtype)
    codes = codes_of(parts.chunks, params.dtype, in_task.run_call, *operands, **task_options_by_qparams(call, params))
    return without_checks(QuantizedArray, codes, params, x.shape)


def fake_quantize_with_qparams(call: Call, x: da.Array) -> da.Array:
    """Return the graph of `fastq.fake_quantize` with parameters."""
    call, params, parts, operands = _values_by_qparams(call, x)
    parts.check_aligned()
    options = {**task_options_by_qparams(call, params), "dtype": dtype_of_fakes(x.dtype), "token": "fake_quantize"}
    return blockwise(in_task.run_call, parts.all_axes, *operands, **options)


def fake_quantize_by_two(call: Call, params_of_values: results.QParams, x: da.Array) -> da.Array:
    """Return the graph of `fastq.fake_quantize` with codes by the parameters of the call and values by other ones."""
    call, params, parts, operands = _values_by_qparams(call, x)
    parts.check_aligned()
    options = {
        **task_options_by_qparams(call, params),
        "template_of_values": _template(params_of_values),
        "dtype": dtype_of_fakes(x.dtype),
    }
    place = 2 + 2 * len(NUMBERS)  # behind x and the parameters of codes, each with its axes
    operands[place:place] = _operands(params_of_values, parts)
    return blockwise(in_task.values_of_codes, parts.all_axes, *operands, token="fake_quantize", **options)


def task_options_by_qparams(call: Call, params: results.QParams) -> dict[str, Any]:
    """Return the parts of a call for tasks; their plans depend on the prepared parameters, not on the caller's."""
    return {"arguments": in_task.call_of_task(call, key=params.key), "template": _template(params)}


def _values_by_qparams(call: Call, x: da.Array) -> tuple[Call, results.QParams, PartedChunks, list[Any]]:
    """Return the call, parameters in the dtypes that tasks need, their chunks, and the operands of tasks.

    Operands are arrays, each followed by its axes, as `dask.array.blockwise` takes them.
    """
    dtype = dtype_in(x, "x")
    params = _in_dtypes_of_tasks(call.qparams, x.shape, quantization.check_input(dtype))
    request_by_qparams(dtype, x.ndim, params, call.options)
    parts = PartedChunks(x.chunks, granularity(params.axis, params.block_size, x.ndim))
    call, places = with_noise(call, x.chunks)
    return call, params, parts, [x, parts.all_axes, *_operands(params, parts), *places]


def dequantize(call: Call, codes: da.Array) -> da.Array:
    """Return the graph of `QuantizedArray.dequantize`: a task for each chunk of codes.

    A chunk of packed codes has as many values as `_last_sizes` says, so dask is told how long the chunks of the result
    are.
    """
    params, parts, operands = codes_by_qparams(call, codes)
    dtype_of_result = dtype_of_values(call.options.dtype, None, params.compute_dtype)
    options = task_options_by_qparams(call, params) | {"concatenate": True, "token": "dequantize"}
    if params.dtype.packed and call.shape:
        options["adjust_chunks"] = {parts.all_axes[-1]: parts.chunks[-1]}
    return blockwise(in_task.dequantize, parts.all_axes, *operands, dtype=dtype_of_result, **options)


def codes_by_qparams(call: Call, codes: da.Array) -> tuple[results.QParams, PartedChunks, list[Any]]:
    """Return parameters in the dtypes that tasks need, the chunks of values, and the operands of tasks on codes."""
    shape = call.shape
    params = _in_dtypes_of_tasks(call.qparams, shape, call.qparams.compute_dtype)
    qtype = params.dtype
    sharing = granularity(params.axis, params.block_size, len(shape))
    parts = PartedChunks(value_chunks(codes.chunks, shape, qtype), sharing)
    parts.check_aligned(qtype)
    last_sizes = _last_sizes(parts.chunks) if qtype.packed else (None, None)
    index = parts.all_axes if shape else tuple(range(codes.ndim))  # packed codes of a scalar have one axis
    return params, parts, [codes, index, *last_sizes, *_operands(params, parts)]


def _last_sizes(chunks: Chunks) -> tuple[Any, Any]:
    """Return how many values each chunk has along the last axis, as a dask array, and its axis.

    Tasks need them for codes that share bytes: 5 values of 4 bits take 3 bytes, as 6 do. A scalar has neither.
    """
    if not chunks:
        return None, None
    return da.from_array(np.array(chunks[-1]), chunks=1), (len(chunks) - 1,)


def _in_dtypes_of_tasks(params: results.QParams, shape: Any, compute: np.dtype[Any]) -> results.QParams:
    """Return parameters in the dtypes that tasks need, so that these need not convert them.

    Parameters in memory are checked at once; of lazy ones only dtypes and shapes can be.
    """
    if not isinstance(params, QParams):
        return check_qparams(params, shape, compute)
    granularity(params.axis, params.block_size, len(shape), "the values")
    rules = rules_of(params, compute)
    scale = rules.ready_scale_dtype(params.scale.dtype)
    zero_point = rules.ready_zero_point_dtype(params.zero_point.dtype)
    if params.tensor_scale is not None:
        parameters.check_tensor_scale(params.tensor_scale.dtype, params.tensor_scale.shape, params.dtype)
    like = in_dtypes_of(_template(params), np.empty(0, scale), np.empty(0, zero_point), compute)
    return with_lazy_numbers(
        like, params.scale.astype(scale), params.zero_point.astype(zero_point), params.tensor_scale
    )


def _template(params: results.QParams) -> results.QParams:
    """Return parameters with no numbers, which are the same for all tasks; each fills in those of its chunk."""
    tensor = None if params.tensor_scale is None else np.zeros((), params.tensor_scale.dtype)
    return in_memory(params, np.empty(0, params.scale.dtype), np.empty(0, params.zero_point.dtype), tensor)


def _operands(params: results.QParams, parts: PartedChunks) -> list[Any]:
    """Return the numbers of parameters in the chunks of their parts, each followed by its axes."""
    operands: list[Any] = []
    for name in NUMBERS:
        operands += _operand(getattr(params, name), parts, f"qparams.{name}")
    return operands


# --- raw parameters ---------------------------------------------------------------------------------------------------


def quantize_linear(call: Call, x: da.Array) -> da.Array:
    """Return the graph of `fastq.quantize_linear`: as `quantize_with_qparams`, for parameters without a QParams."""
    request = request_by_numbers(dtype_in(x, "x"), call.options, dtype_in(call.operands[3], "zero_point"))
    request, parts, operands = _place_parameters(call, request)
    parts.check_aligned(request.qtype)
    call, places = with_noise(call, x.chunks)
    arguments = _task_options_with_axes(call, request, request.qtype)
    no_tensor_scale = (None, None)
    return codes_of(
        parts.chunks, request.qtype, in_task.run_call, *operands, *no_tensor_scale, *places, arguments=arguments
    )


def dequantize_linear(call: Call, codes: da.Array) -> da.Array:
    """Return the graph of `fastq.dequantize_linear`, whose codes share no bytes, so that chunks keep their sizes."""
    scale = dtype_in(call.operands[2], "scale")
    dtype_of_result = dtype_of_values(call.options.dtype, None, dtype_by_scale(scale))
    request, parts, operands = _place_parameters(
        call, request_to_decode_by_numbers(dtype_in(codes, "codes"), scale, dtype_of_result, call.options)
    )
    parts.check_aligned()
    options_of_tasks = {
        "arguments": _task_options_with_axes(call, request, dtype_of_result),
        "token": "dequantize_linear",
    }
    return blockwise(in_task.run_call, parts.all_axes, *operands, dtype=dtype_of_result, **options_of_tasks)


def _place_parameters(call: Call, request: Request) -> tuple[Request, PartedChunks, list[Any]]:
    """Return the request, the chunks of the parameters, and the operands of tasks.

    A chunk may have a single parameter although the array has many, so rules of a convention about that are applied
    here.
    """
    x, _, scale, zero_point = call.operands
    rules = request.rules
    rules.ready_scale_dtype(dtype_in(scale, "scale"))
    rules.ready_zero_point_dtype(dtype_in(zero_point, "zero_point"))
    if not isinstance(scale, da.Array):
        scale = rules.ready_scale(scale)
    if zero_point is not None and not isinstance(zero_point, da.Array):
        zero_point = rules.ready_zero_point(zero_point, scale)
    if zero_point is not None:
        check_zero_point_shape(zero_point.shape, scale.shape)
    name = call.operation.operands[0]
    request = request.with_granularity(name, x.shape, scale.shape, scale.size)
    parts = PartedChunks(x.chunks, request.granularity)
    operands = [
        *_operand(_without_axes_of_one(scale, parts), parts, "scale", name),
        *_operand(_without_axes_of_one(zero_point, parts), parts, "zero_point", name),
    ]
    return request, parts, [x, parts.all_axes, *operands]


def requantize(call: Call, acc: da.Array) -> da.Array:
    """Return the graph of `fastq.requantize`; a multiplier may be lazy, all other parameters are numbers in memory."""
    _, _, multiplier, zero_point = call.operands
    bias = call.bias
    is_lazy = isinstance(multiplier, da.Array)
    numbers = multiplier if is_lazy else as_array(multiplier, "multiplier")
    shapes = [operand.shape for operand in (numbers, bias) if operand is not None]
    request = requantization.requantize_request(dtype_in(acc, "acc"), acc.shape, call.options, *shapes)
    if is_lazy:  # other arguments are checked at once, next to numbers that are right
        requantization.check_multiplier(numbers.dtype)
        numbers = np.ones(numbers.shape)
    numbers, zero_point, bias = request.ready(numbers, zero_point, bias)
    parts = PartedChunks(acc.chunks, request.granularity)
    operands = [
        *_operand(multiplier if is_lazy else numbers, parts, "multiplier", "acc"),
        *_operand(bias, parts, "bias", "acc"),
    ]
    options: dict[str, Any] = {
        "zero_point": int(zero_point),
        "arguments": in_task.call_of_task(call, dtype=request.qtype, key=None),
        "dtype": request.qtype.storage,
        "token": "requantize",
    }
    return blockwise(in_task.requantize, parts.all_axes, acc, parts.all_axes, *operands, **options)


def _task_options_with_axes(call: Call, request: Request, dtype: Any) -> Call:
    """Return the parts of a call for tasks, with the axes that the shapes of scales imply."""
    axis = call.options.axis if request.axis is None else request.axis
    return in_task.call_of_task(call, axis=axis, convention=request.coding.convention, dtype=dtype)


def _without_axes_of_one(numbers: Any, parts: PartedChunks) -> Any:
    """Return raw parameters without the axes of length 1 that keep those of the array, as (C, 1, 1) for (C, H, W).

    Other parameters stay as they are, also single numbers.
    """
    shape = parts.shape
    with_all_axes = tuple([n if axis in parts.kept else 1 for axis, n in enumerate(shape)])
    has_axes_of_one = len(with_all_axes) != len(parts.kept)
    if numbers is not None and numbers.size > 1 and numbers.shape == with_all_axes and has_axes_of_one:
        return numbers.reshape(parts.granularity.parameter_shape(shape))
    return numbers


def _operand(numbers: Any, parts: PartedChunks, name: str, array: str = "x") -> tuple[da.Array | None, Index | None]:
    """Return parameters in the chunks of their parts, and their axes; one number goes to all chunks."""
    if numbers is None:
        return None, None
    if numbers.size == 1:
        return da.asarray(numbers).reshape(()), ()
    needed_shape = parts.granularity.parameter_shape(parts.shape)
    chunks = parts.parameter_chunks
    shape_to_match = parts.shape if numbers.ndim == len(parts.shape) else needed_shape
    if any(map(math.isnan, shape_to_match)):
        if not isinstance(numbers, da.Array) or numbers.numblocks != tuple(map(len, chunks)):
            raise ValueError(
                f"{array} has chunks of unknown sizes, so {name} cannot be matched to them: "
                f"call {array}.compute_chunk_sizes() first"
            )
        return numbers, parts.kept
    parameters.check_parameter_shape(name, numbers.shape, numbers.size, needed_shape)
    return da.asarray(numbers).rechunk(chunks), parts.kept
