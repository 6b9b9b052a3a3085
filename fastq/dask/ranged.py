"""Operations that take parameters from the range of an array.

They are one task a chunk where each parameter belongs to one chunk. Else minima and maxima of the chunks are merged in
a tree, parameters are taken from those, and a second pass over the chunks uses them.
"""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np

from fastq import results
from fastq.dask import given, tasks
from fastq.dask.collections import NUMBERS, QParams, QuantizedArray, filled
from fastq.dask.parts import Parts
from fastq.dask.requests import Request, blockwise, codes_of
from fastq.dispatch.calibration import Scheme
from fastq.dispatch.granularity import kept_axes
from fastq.dispatch.ranged import RangeOptions
from fastq.formats.range_methods import as_range_method
from fastq.results import without_checks
from fastq.system.arguments import as_axis, as_block_size, native

_PAIR = -1  # the index of the axis of minima and maxima


def quantize(request: Request) -> QuantizedArray:
    """Return the graph of `fastq.quantize` without parameters."""
    like = request.of_one("quantize")
    parts = request.parts(like.qparams)
    parts.check_aligned(like.dtype)
    if not _in_one_pass(parts, like.qparams):
        return given.quantize(_second_pass(request, _by_ends(request, parts, like.qparams)))
    quantized = _in_tasks(request, parts)
    operands = quantized, parts.all_axes
    codes = codes_of(parts.chunks, like.dtype, tasks.field, *operands, dtype=like.codes.dtype, attribute="codes")
    return without_checks(QuantizedArray, codes, _fields(quantized, parts, like.qparams), request.x.shape)


def fake_quantize(request: Request) -> da.Array:
    """Return the graph of `fastq.fake_quantize` without parameters."""
    values, params = request.of_one("fake_quantize"), request.of_one("quantize").qparams
    parts = request.parts(params)
    parts.check_aligned()
    if _in_one_pass(parts, params):
        return _in_tasks(request, parts, values.dtype)
    return given.fake_quantize(_second_pass(request, _by_ends(request, parts, params)))


def choose_qparams(request: Request) -> QParams:
    """Return the graph of `fastq.choose_qparams`."""
    like = request.of_one("choose_qparams")
    parts = request.parts(like)
    parts.check_aligned()
    return (
        _fields(_in_tasks(request, parts), parts, like) if _in_one_pass(parts, like) else _by_ends(request, parts, like)
    )


def minmax(request: Request) -> tuple[da.Array, da.Array]:
    """Return the graph of `fastq.minmax`."""
    request.of_one("minmax")
    axis, block_size, nan = request.options
    parts = Parts(request.x.chunks, kept_axes(axis, request.x.ndim), as_block_size(block_size, as_axis(axis)))
    parts.check_aligned()
    ends = _ends(request.x, parts, nan)
    return ends[0], ends[1]


def _in_one_pass(parts: Parts, params: results.QParams) -> bool:
    """Return whether each task has all that its parameters depend on."""
    if params.dtype.has_tensor_scale and any(len(sizes) > 1 for sizes in parts.chunks):
        raise ValueError(
            f"x must be one chunk for {params.dtype}, whose scale belongs to the whole array: x.rechunk(-1)"
        )
    return parts.within_chunks


def _in_tasks(request: Request, parts: Parts, dtype: Any = object) -> da.Array:
    operands = request.x, parts.all_axes
    return blockwise(
        tasks.by_range, parts.all_axes, *operands, dtype=dtype, token=request.operation, **request.arguments
    )


def _second_pass(request: Request, params: QParams) -> Request:
    """Return an operation that takes the parameters that the first pass has found."""
    ranged = RangeOptions(*request.options)
    options, types = (ranged.saturate, ranged.nan, params.key), (type(ranged.saturate),)
    return request._replace(operation=f"{request.operation}_with_qparams", qparams=params, options=options, types=types)


def _by_ends(request: Request, parts: Parts, like: results.QParams) -> QParams:
    """Return the parameters of the minima and maxima of all chunks.

    Raises
    ------
    ValueError
        If ranges are to be searched for, which needs all elements of each at once.
    """
    options = RangeOptions(*request.options)
    if as_range_method(options.method) is not None:
        axes = ", ".join(f"{axis}: -1" for axis in parts.reduced)
        raise ValueError(
            "range must be 'minmax' where a scale belongs to several chunks of x; for a search, each scale needs its "
            f"elements in one: x.rechunk({{{axes}}})"
        )
    ends = _ends(request.x, parts, "raise" if options.nan == "raise" else "zero")
    index = tuple(range(ends.ndim - 1))
    operands = ends, (_PAIR, *index)
    scheme = Scheme(like.dtype, like.axis, like.symmetric, like.convention)
    params = blockwise(
        tasks.params_of, index, *operands, dtype=object, concatenate=True, token="qparams", scheme=scheme
    )
    return _fields(params, Parts(ends.chunks[1:], index, 0), like)


def _ends(x: da.Array, parts: Parts, nan: str) -> da.Array:
    """Return the minima and the maxima of parts along a new first axis."""
    chunks: dict[int, Any] = {axis: (1,) * len(parts.chunks[axis]) for axis in parts.reduced}
    chunks.update(zip(parts.kept, parts.parameter_chunks, strict=True))
    options = {"axes": parts.axes, "block_size": parts.block_size, "nan": nan, "token": "ends"}
    index, dtype = (_PAIR, *parts.all_axes), native(x.dtype)
    ends = blockwise(
        tasks.ends, index, x, parts.all_axes, dtype=dtype, new_axes={_PAIR: 2}, adjust_chunks=chunks, **options
    )
    if not parts.reduced:
        return ends
    axis, meta = tuple(axis + 1 for axis in parts.reduced), np.empty((0,) * (1 + len(parts.kept)), dtype)
    return da.reduction(
        ends, tasks.widest, tasks.widest_of_all, combine=tasks.widest, axis=axis, dtype=dtype, meta=meta
    )


def _fields(made: da.Array, parts: Parts, like: results.QParams) -> QParams:
    """Return the parameters that tasks have made, each a QParams or a QuantizedArray."""
    chunks = dict(zip(parts.kept, parts.parameter_chunks, strict=True))
    numbers = {name: number for name in NUMBERS if (number := getattr(like, name)) is not None}
    return filled(
        like,
        **{
            name: blockwise(
                tasks.field,
                parts.kept if name != "tensor_scale" else (),
                made,
                parts.all_axes,
                dtype=number.dtype,
                adjust_chunks=chunks,
                token=name,
                attribute=name,
            )
            for name, number in numbers.items()
        },
    )
