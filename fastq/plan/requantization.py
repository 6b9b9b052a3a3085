"""Resolve `fastq.requantize`: the words of channels are made by one launch, and the next one reads them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime import driver, threadpool
from fastq.engine.runtime.boundary import keeps_value
from fastq.engine.runtime.driver import (
    HI,
    LO,
    NONE,
    OUT,
    SCALE,
    ZERO,
    Checks,
    LaunchPlan,
    X,
    bind,
    never_fits,
    plan_launch,
)
from fastq.engine.runtime.tiling import WHOLE_BYTES
from fastq.kernels.args import ChannelOperands, RequantizeOperands
from fastq.plan.arrange import NO_LAYOUT, View, arrange, codes_result
from fastq.plan.cache import BoundCall, Call
from fastq.plan.kernel_call import kernel_args, loop_of, outgrows_cache, requantize_address, store_mode, tiled
from fastq.plan.launch import BoundLaunch, Execute, nothing
from fastq.requests import requantization as requests
from fastq.requests.requantization import SUMS, RequantizeRequest
from fastq.system.arguments import as_array

Array = NDArray[Any]
_WORDS = np.dtype(np.int64)


def requantize(call: Call, acc: Array, out: Any, multiplier: Any, zero_point: Any) -> BoundCall:
    """Resolve `fastq.requantize`."""
    factors, bias = as_array(multiplier, "multiplier"), call.qparams
    asked = requests.requantize(
        acc.dtype, acc.shape, call.options, *(each.shape for each in (factors, bias) if each is not None)
    )
    result, target = codes_result(acc, asked.qtype, out), None if out is None else np.asarray(out)
    ready = asked.ready(multiplier, zero_point, bias)
    kinds = ready[0].dtype, ready[1].dtype

    def execute_for(acc: Array, out: Array | None) -> Execute:
        return _Launcher.of(asked, acc, out, kinds).execute

    def refuse(status: int, acc: Array, out: Any, multiplier: Any, *_: Any) -> None:
        asked.refuse(multiplier)

    launch, execute = never_fits, nothing
    if acc.size:
        way = _Launcher.of(asked, acc, target, kinds)
        execute = way.execute
        if target is out and _pass_as_they_are(asked, multiplier, zero_point, bias, ready):
            launch = way.bound(_checks(asked, acc, target, result.nbytes, ready), factors, bias)
    settle, new = BoundLaunch(refuse, execute, launch, asked.ready, execute_for, acc.strides).settle, result.new

    def call_given(acc: Array, out: Any, multiplier: Any, zero_point: Any, bias: Array | None) -> Array:
        result: Array = new() if out is None else out
        status = launch(acc, result, multiplier, zero_point, bias)
        if status:
            settle(status, acc, result, multiplier, zero_point, bias)
        return result

    return call_given


class _Launcher(NamedTuple):
    """A way to requantize arrays: as they are, or in tiles."""

    plan: LaunchPlan
    view: View
    channels: int

    @classmethod
    def of(cls, asked: RequantizeRequest, acc: Array, out: Array | None, kinds: tuple[Any, Any]) -> _Launcher:
        """Choose how, by metadata alone; out is None for a result in the memory order of acc."""
        view = arrange(acc, out, asked.where, asked.qtype.storage, given=True)
        layout = view.layout
        elements, words = (SUMS, asked.qtype.storage), (_WORDS, _WORDS)
        how = asked.row.arithmetic, "" if asked.bias is None else asked.bias.name, asked.row.below
        operands = ChannelOperands(*kinds, asked.bias or SUMS, *words)
        kernel = requantize_address("body.requantize.channels", operands, *how)
        channels = plan_launch(kernel, (SCALE, ZERO, driver.SUMS, LO, HI), kernel_args(NO_LAYOUT), asked.channels, 1)
        loop, size = loop_of(layout, "requantize", *elements), acc.size
        large = outgrows_cache(size, *elements)
        streaming = store_mode(size, *elements, layout, row=loop.row, codes=True) if large else 0
        args = kernel_args(layout, asked.codes, streaming=streaming, outgrows_cache=large, repeat=loop.repeat)
        kernel = requantize_address(loop.function, RequantizeOperands(*elements, *words), *how)
        threads = threadpool.threads_for(size)
        plan = plan_launch(kernel, (X, OUT, LO, HI, NONE), args, size, threads, chunk_multiple=WHOLE_BYTES)
        return cls(channels.then(tiled(plan, view, elements)), view, asked.channels)

    def _words(self) -> tuple[Array, Array]:
        return np.empty(self.channels, _WORDS), np.empty(self.channels, _WORDS)

    def execute(self, acc: Array, out: Array, factors: Array, zero_point: Array, bias: Array | None) -> int:
        """Run on valid arrays, with numbers that are ready."""
        in_order = self.view.to_kernel
        biases = None if bias is None else in_order(bias)
        return driver.run(self.plan, acc, out, in_order(factors), zero_point, biases, *self._words())

    def bound(self, checks: Checks, factors: Array, bias: Array | None) -> Execute:
        """Return what runs on arrays and numbers as callers give them, once they pass checks."""
        if self.view.parameter_order:
            return never_fits
        launch, new = bind(self.plan, checks), functools.partial(np.empty, self.channels, _WORDS)
        fill_factors, fill_biases = (self._filling(each) for each in (factors, bias))

        def launch_all(acc: Array, out: Array, multiplier: Any, zero_point: Any, bias: Any) -> int:
            return launch(acc, out, multiplier, zero_point, bias, new(), new())

        def launch_filled(acc: Array, out: Array, multiplier: Any, zero_point: Any, bias: Any) -> int:
            return launch(acc, out, fill_factors(multiplier), zero_point, fill_biases(bias), new(), new())

        return launch_all if fill_factors is fill_biases is _as_it_is else launch_filled

    def _filling(self, numbers: Array | None) -> Callable[[Any], Any]:
        """Return what makes a number for each channel of one for all of them, of others nothing."""
        is_one = numbers is not None and numbers.size < self.channels
        return functools.partial(np.full, self.channels) if is_one else _as_it_is


def _as_it_is(numbers: Any) -> Any:
    return numbers


def _checks(asked: RequantizeRequest, acc: Array, out: Array | None, nbytes: int, ready: tuple[Any, ...]) -> Checks:
    factors, zero_point, _ = ready
    return Checks.of(
        *(acc, out, nbytes, factors.nbytes, zero_point.nbytes),
        scale=factors.dtype,
        zero_point=zero_point.dtype,
        codes=(int(asked.qtype.qmin), int(asked.qtype.qmax)),
        scalars=(factors.dtype.type, zero_point.dtype.type),
        zero=True,
    )


def _pass_as_they_are(
    asked: RequantizeRequest, multiplier: Any, zero_point: Any, bias: Any, ready: tuple[Any, ...]
) -> bool:
    """Whether the driver can read numbers as the caller gave them."""
    factors, zero, biases = ready
    return (
        _passes(multiplier, factors.dtype, (float, np.float64))
        and _passes(zero_point, zero.dtype, (int,))
        and (biases is None or _passes(bias, biases.dtype, ()))
    )


def _passes(given: Any, dtype: np.dtype[Any], numbers: tuple[type, ...]) -> bool:
    if isinstance(given, np.ndarray):
        flags = given.flags
        return given.dtype == dtype and given.dtype.isnative and flags.c_contiguous and flags.aligned
    return type(given) in numbers or (type(given) is dtype.type and keeps_value(dtype))
