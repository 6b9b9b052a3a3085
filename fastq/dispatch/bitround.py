"""Resolve `fastq.bitround`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch import cache
from fastq.dispatch.cache import BoundCall, Call
from fastq.dispatch.launch import BoundLaunch, extents, nothing
from fastq.dispatch.planner import kernel_args, kernel_for, store_mode, tiled
from fastq.dispatch.spec import PLAIN
from fastq.dispatch.strides import arrange, is_plain_out, result_of
from fastq.engine.runtime import threadpool
from fastq.engine.runtime.boundary import in_standard_mode
from fastq.engine.runtime.driver import NONE, OUT, SCALE, Checks, LaunchPlan, X, bind, plan_launch
from fastq.engine.runtime.tiling import WHOLE_BYTES
from fastq.formats.bitrounding import dropped_bits, of_width
from fastq.formats.granularity import ARRAY
from fastq.kernels.args import BitRoundOperands
from fastq.requests import bitrounding
from fastq.requests.bitrounding import BitRounding

Array = NDArray[Any]


def bitround(call: Call, x: Array, out: Any) -> BoundCall:
    """Resolve `fastq.bitround`."""
    asked = bitrounding.bitround(x.dtype, call.options)
    if asked.max_error is not None:
        return functools.partial(_within, asked, call.options.convention)
    result = result_of(x.shape, asked.dtype, out, like=x)
    if not x.size:
        return lambda x, out, *_: result.new() if out is None else out
    launch, in_place = _launch_of(asked, x, None if out is None else np.asarray(out), result.nbytes), nothing
    if (
        out is not None
        and out.strides == x.strides
        and out.dtype == x.dtype
        and (asked.digits is None or is_plain_out(x))
    ):
        in_place = _execute(asked, x, x, streams=False)
    run, settle, new, can_be_in_place = launch.launch, launch.settle, result.new, in_place is not nothing

    def rounded(x: Array, out: Any, *_: object) -> Array:
        if out is x and can_be_in_place:
            in_place(x, x)
            return x
        result: Array = new() if out is None else out
        if status := run(x, np.asarray(result)):
            settle(status, x, result)
        return result

    return rounded


def _launch_of(asked: BitRounding, x: Array, out: Array | None, nbytes: int) -> BoundLaunch:
    """Return what launches the plan for arrays like these; the driver refuses a result that shares memory with x."""
    plan = _plan(asked, x, out)
    nbytes_of, lowest = extents(x, out, nbytes)
    launch = _with_table(asked, bind(plan.checked(Checks((*nbytes_of, 0, 0), lowest=lowest))))
    execute_for = functools.partial(_execute, asked)
    return BoundLaunch(nothing, _with_table(asked, bind(plan)), launch, execute_for=execute_for, strides=x.strides)


def _execute(asked: BitRounding, x: Array, out: Array | None, streams: bool = True) -> Callable[..., int]:
    return _with_table(asked, bind(_plan(asked, x, out, streams)))


def _with_table(asked: BitRounding, launch: Callable[..., int]) -> Callable[..., int]:
    """Return a launch that has the table of binades, if there is one."""
    if asked.digits is None:
        return launch
    table = dropped_bits(asked.bits, asked.digits)
    return lambda x, out: launch(x, out, table)


def _plan(asked: BitRounding, x: Array, out: Array | None, streams: bool = True) -> LaunchPlan:
    """Plan to round arrays like these, in place or in tiles."""
    view = arrange(x, out, ARRAY).view(x, out, asked.dtype)
    bits, size, by_digits = np.dtype(f"i{asked.dtype.itemsize}"), math.prod(view.shape), asked.keepbits is None
    dropped = 0 if by_digits else of_width(asked.bits)[0] - asked.keepbits
    arithmetic = PLAIN._replace(rule=PLAIN.rule._replace(rounding=asked.rounding))
    op, kinds = "granular_bitround" if by_digits else "bitround", BitRoundOperands(bits, bits, bits)
    kernel = kernel_for("body.bitround.round_elements", kinds, op, arithmetic)
    streaming = store_mode(size, bits, bits, codes=False) if streams else 0
    args = kernel_args(view.layout, size=dropped, streaming=streaming)
    operands, threads = (X, OUT, SCALE, NONE, NONE), threadpool.threads_for(size)
    plan = plan_launch(kernel, operands, args, size, threads, chunk_multiple=WHOLE_BYTES)
    return tiled(plan, view, (bits, bits))


def _within(asked: BitRounding, convention: str, x: Array, out: Any, *_: object) -> Any:
    """Round to the fewest bits that keep the elements of x within the bound."""
    options = asked.keepbits_within(largest(x)), None, None, convention
    return cache.call("bitround", x, out, None, None, None, options, (int, type(None), type(None)))


@in_standard_mode
def largest(x: Array) -> float:
    """Return the largest finite magnitude of an array of floats, 0.0 where there is none."""
    if not x.size:
        return 0.0
    options = None, 0, "zero"
    found = float(cache.call("magnitudes", x, None, None, None, None, options, (type(None), int))[1])
    if math.isinf(found):
        with np.errstate(invalid="ignore"):
            found = float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0))
    return found
