"""Operations with given parameters: a task for each chunk, which gets its part of them."""

from __future__ import annotations

import math
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from fastq import results
from fastq.dask import tasks
from fastq.dask.collections import NUMBERS, QParams, QuantizedArray, filled, in_memory
from fastq.dask.parts import Chunks, Parts, value_chunks
from fastq.dask.requests import Index, Request, blockwise, codes_of
from fastq.dispatch import validation
from fastq.dispatch.elementwise import checked_qparams, resolve_dequantize, resolve_quantize
from fastq.dispatch.granularity import kept_axes, parameter_shape
from fastq.dispatch.parameters import ParameterRules
from fastq.formats.conventions import as_convention, granularity_of
from fastq.results import without_checks
from fastq.system.arguments import as_array, as_axis, as_block_size, is_a

Array = NDArray[Any]


# --- QParams ----------------------------------------------------------------------------------------------------------


def quantize(request: Request) -> QuantizedArray:
    """Return the graph of `fastq.quantize` with parameters."""
    params, like = _params_and_result(request)
    parts = request.parts(params)
    parts.check_aligned(params.dtype)
    operands = request.x, parts.all_axes, *_operands(params, parts)
    options = {**request.arguments, "template": _of_one(params)}
    codes = codes_of(parts.chunks, params.dtype, tasks.by_qparams, *operands, dtype=like.codes.dtype, **options)
    return without_checks(QuantizedArray, codes, params, request.x.shape)


def fake_quantize(request: Request) -> da.Array:
    """Return the graph of `fastq.fake_quantize` with parameters."""
    params, like = _params_and_result(request)
    parts = request.parts(params)
    parts.check_aligned()
    operands = request.x, parts.all_axes, *_operands(params, parts)
    options = {**request.arguments, "template": _of_one(params), "token": "fake_quantize"}
    return blockwise(tasks.by_qparams, parts.all_axes, *operands, dtype=like.dtype, **options)


def dequantize(request: Request) -> da.Array:
    """Return the graph of `QuantizedArray.dequantize`."""
    codes, shape, like = request.x, request.shape, _of_one(request.qparams)
    params = _ready(request.qparams, shape, request.qparams.compute_dtype, like)
    parts = Parts(
        value_chunks(codes.chunks, shape, params.dtype), kept_axes(params.axis, len(shape)), params.block_size
    )
    parts.check_aligned(params.dtype)
    dtype, _ = request.options
    wanted = params.compute_dtype if dtype is None else validation.as_real(dtype, "dtype")
    last = _last_sizes(parts.chunks) if params.dtype.packed else (None, None)
    index = parts.all_axes if shape else tuple(range(codes.ndim))
    operands = codes, index, *last, *_operands(params, parts)
    options = {"options": request.options, "template": _of_one(params), "concatenate": True, "token": "dequantize"}
    if params.dtype.packed and shape:
        options["adjust_chunks"] = {index[-1]: parts.chunks[-1]}
    return blockwise(tasks.dequantize, parts.all_axes, *operands, dtype=wanted, **options)


def _last_sizes(chunks: Chunks) -> tuple[Any, Any]:
    """Return the number of values of each chunk along the last axis, for codes that share bytes."""
    if not chunks:
        return None, None
    return da.from_array(np.array(chunks[-1]), chunks=1), (len(chunks) - 1,)


def _params_and_result(request: Request) -> tuple[results.QParams, Any]:
    """Return the parameters in the dtypes that they have beside codes, and what the operation makes of one element."""
    params = request.qparams
    one = _of_one(params)
    made = request.of_one(request.operation, one.scale, one.zero_point, one)
    compute = validation.compute_dtype(request.one.dtype)
    return _ready(params, request.x.shape, compute, one), made


def _ready(params: results.QParams, shape: Any, compute: np.dtype[Any], one: results.QParams) -> results.QParams:
    """Return parameters in the dtypes that tasks need; those in memory are checked at once."""
    if not isinstance(params, QParams):
        return checked_qparams(params, shape, compute)[0]
    like = checked_qparams(one, (1,) * len(shape), compute)[0]
    numbers = {name: part.astype(getattr(like, name).dtype) for name, part in params._parts.items()}
    return filled(like, **numbers)


def _of_one(params: results.QParams) -> results.QParams:
    """Return parameters like others, for a single element."""
    tensor = None if params.tensor_scale is None else np.ones((), params.tensor_scale.dtype)
    return in_memory(params, np.ones((), params.scale.dtype), np.zeros((), params.zero_point.dtype), tensor)


def _operands(params: results.QParams, parts: Parts) -> list[Any]:
    return [each for name in NUMBERS for each in _operand(getattr(params, name), parts, f"qparams.{name}")]


# --- raw parameters ---------------------------------------------------------------------------------------------------


def quantize_linear(request: Request) -> da.Array:
    """Return the graph of `fastq.quantize_linear`."""
    axis, block_size, saturate, dtype, convention, nan = request.options
    likes = _like(request.scale, 1, "scale"), _like(request.zero_point, 0, "zero_point")
    given = (request.one, None, *likes, dtype, convention, nan, axis, block_size, saturate)
    rules = resolve_quantize(*given).rules
    request, parts = _placed(request, rules, (axis, block_size), (saturate, rules.qtype), (nan,))
    parts.check_aligned(rules.qtype)
    operands = request.x, parts.all_axes, *_raw_operands(request, parts)
    result = request.of_one("quantize_linear", *likes)
    return codes_of(parts.chunks, rules.qtype, tasks.by_parameters, *operands, dtype=result.dtype, **request.arguments)


def dequantize_linear(request: Request) -> da.Array:
    """Return the graph of `fastq.dequantize_linear`."""
    axis, block_size, dtype, convention = request.options
    likes = _like(request.scale, 1, "scale"), _like(request.zero_point, 0, "zero_point")
    wanted = request.of_one("dequantize_linear", *likes).dtype
    codes, qtype = validation.as_codes(request.one)
    rules = resolve_dequantize(codes, qtype, None, *likes, dtype, convention, axis, block_size)[0].rules
    request, parts = _placed(request, rules, (axis, block_size), (wanted,), ())
    parts.check_aligned()
    operands = request.x, parts.all_axes, *_raw_operands(request, parts)
    options = {**request.arguments, "token": "dequantize_linear"}
    return blockwise(tasks.by_parameters, parts.all_axes, *operands, dtype=wanted, **options)


def _like(numbers: Any, number: int, name: str) -> Any:
    """Return one number that stands for parameters: of their dtype, or of Python as they are."""
    if numbers is None or is_a(numbers, (int, float)):
        return numbers
    if is_a(numbers, (list, tuple)):
        return number
    return np.full((), number, (numbers if is_a(numbers, da.Array) else as_array(numbers, name)).dtype)


def _placed(
    request: Request, rules: ParameterRules, where: tuple[Any, Any], before: tuple[Any, ...], after: tuple[Any, ...]
) -> tuple[Request, Parts]:
    """Return the request with parameters and options made ready, and the parts that they belong to.

    A chunk may have a single parameter where the array has many, so what a convention makes of that is decided here.
    """
    axis = as_axis(where[0])
    block_size = as_block_size(where[1], axis)
    scale = request.scale if is_a(request.scale, da.Array) else rules.ready_scale(request.scale)
    zero_point = request.zero_point
    if zero_point is not None and not is_a(zero_point, da.Array):
        zero_point = rules.ready_zero_point(zero_point, scale)
    axes, block_size = (None, 0) if scale.size == 1 else (kept_axes(axis, request.x.ndim), block_size)
    row = as_convention(rules.convention).under(False, granularity_of(axes, block_size))
    options = axis, block_size, *before, row, *after
    return request._replace(scale=scale, zero_point=zero_point, options=options), Parts(
        request.x.chunks, axes, block_size
    )


def _raw_operands(request: Request, parts: Parts) -> list[Any]:
    given = (request.scale, "scale"), (request.zero_point, "zero_point")
    return [each for numbers, name in given for each in _operand(numbers, parts, name)]


def _operand(numbers: Any, parts: Parts, name: str) -> tuple[da.Array | None, Index | None]:
    """Return parameters in the chunks of their parts, and their index; one number goes to all chunks."""
    if numbers is None:
        return None, None
    if numbers.size == 1:
        return da.asarray(numbers).reshape(()), ()
    wanted, chunks = parameter_shape(parts.shape, parts.axes, parts.block_size), parts.parameter_chunks
    if any(map(math.isnan, wanted)):
        if not is_a(numbers, da.Array) or numbers.numblocks != tuple(map(len, chunks)):
            raise ValueError(f"x has chunks of unknown sizes, so {name} has none: call x.compute_chunk_sizes() before")
        return numbers, parts.kept
    validation.check_parameter_shape(name, numbers.shape, numbers.size, wanted)
    return da.asarray(numbers).rechunk(chunks), parts.kept
