"""Requantize: turn int32 sums of products into codes, in the arithmetic of the system that runs the model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from fastq.engine.runtime import driver
from fastq.engine.runtime.driver import (
    Checks,
    LaunchPlan,
    bind,
    plan_launch,
    refuse_all_operands,
)
from fastq.engine.runtime.tiling import WHOLE_BYTES
from fastq.formats.qtypes import QType
from fastq.kernels.pointers import ChannelOperands, RequantizeOperands
from fastq.plan import policy, slots
from fastq.plan.arrange import View, arrange
from fastq.plan.cache import BoundCall, Call, Operation, run_operation
from fastq.plan.kernel_call import kernel_args, load_or_compile_requantization, tile
from fastq.plan.launch import BoundLaunch, Execute, is_read_as_it_is, run_on_no_elements
from fastq.plan.layout import NO_LAYOUT
from fastq.plan.policy import loop_of, outgrows_cache, store_mode
from fastq.plan.result import codes_result
from fastq.requests import requantization as requests
from fastq.requests.requantization import SUMS, RequantizeOptions, RequantizeRequest, as_clamp
from fastq.results import Axis
from fastq.system.arrays_of_callers import as_array, has_named_dimensions
from fastq.system.dtypes import Array


def requantize(
    acc: ArrayLike,
    multiplier: ArrayLike,
    zero_point: ArrayLike,
    dtype: str | QType | DTypeLike,
    *,
    axis: Axis = None,
    bias: ArrayLike | None = None,
    clamp: tuple[int, int] | None = None,
    convention: str = "tflite",
    out: Array | None = None,
) -> Array:
    """Turn int32 accumulators into codes: ``saturate(round((acc + bias) * multiplier) + zero_point)``.

    The `convention` decides how the product is computed and rounded, and so which code a sum near a tie gets. int32
    sums wrap around, as in compiled code; only codes are clamped.

    Parameters
    ----------
    acc : array_like of int32
        Sums of products of codes minus their zero points, of any shape and memory layout.
    multiplier : array_like of float
        The scale of the inputs times the scale of the weights, divided by the scale of the results: one number, or one
        for each channel of `axis`. Finite, not negative, and less than ``2**30`` in TensorFlow Lite's arithmetic.
    zero_point : int
        The code of 0.0 in the results.
    dtype : {"int8", "uint8", "int16"}, QType or dtype
        The code format of the results.
    axis : int, tuple of int or None
        The channel axis or axes: each index along them has its own multiplier and bias; None: one of each for the
        array.
    bias : array_like of int32, optional
        Number to add to accumulators: one, or one for each channel. For "torch" also a float: the bias of a layer
        divided by the scales of inputs and weights, which is added in float32.
    clamp : tuple of int, optional
        The first and the last code of the results, for a fused activation: ``(zero_point, 127)`` for ReLU in int8.
    convention : {"tflite", "tflite-single", "ruy-x86", "xnnpack", "onnxruntime", "torch"}
        Whose arithmetic to follow. "tflite": a product by 31 bits, rounded half up, shifted, and rounded again, half
        away from zero; "ruy-x86": the same half up; "tflite-single": the shifted product, rounded once, half up; the
        others: a product in float32, rounded half to even.
    out : ndarray, optional
        Array to write the codes to, in the shape of acc and of `dtype`.

    Returns
    -------
    ndarray
        Codes in the memory order of acc; `out` if given.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> acc = np.array([[-3000, 500, 1500], [7, 8, 900000]], np.int32)
    >>> fastq.requantize(acc, 0.001, -1, "int8")
    array([[ -4,   0,   1],
           [ -1,  -1, 127]], dtype=int8)
    >>> fastq.requantize(acc, 0.001, -1, "int8", convention="onnxruntime")
    array([[ -4,  -1,   1],
           [ -1,  -1, 127]], dtype=int8)
    """
    key: Any = None
    # a labelled bias is brought into the order of acc first
    if bias is not None and not (has_named_dimensions(acc) and has_named_dimensions(bias)):
        bias = as_array(bias, "bias")
        key = bias.dtype, bias.shape, bias.strides, bias.flags.num  # `key_of_bias`, whose call would take 60 ns
    clamp = clamp if clamp is None else as_clamp(clamp)
    options = axis, dtype, convention, clamp, key
    result: Array = run_operation(
        REQUANTIZE, acc, out, multiplier, zero_point, options=options, types=(type(axis),), bias=bias
    )
    return result


# --- plan ---


_WORDS = np.dtype(np.int64)


def _resolve_requantize(arguments: Call, acc: Array, out: Any, multiplier: Any, zero_point: Any) -> BoundCall:
    """Resolve `fastq.requantize`."""
    factors = as_array(multiplier, "multiplier")
    bias = arguments.bias
    request = requests.requantize_request(
        acc.dtype, acc.shape, arguments.options, *(numbers.shape for numbers in (factors, bias) if numbers is not None)
    )
    result = codes_result(acc, request.qtype, out)
    target = None if out is None else np.asarray(out)
    validated = request.ready(multiplier, zero_point, bias)  # the same three, in the dtypes that kernels read
    dtypes_of_numbers = validated[0].dtype, validated[1].dtype

    def execute_for(acc: Array, out: Array | None) -> Execute:
        return _RequantizeLauncher.of(request, acc, out, dtypes_of_numbers).execute

    def refuse(status: int, acc: Array, out: Any, multiplier: Any, *_: Any) -> None:
        request.refuse(multiplier)

    launch_given = refuse_all_operands
    execute = run_on_no_elements
    if acc.size:
        launcher = _RequantizeLauncher.of(request, acc, target, dtypes_of_numbers)
        execute = launcher.execute
        if target is out and _pass_as_they_are(multiplier, zero_point, bias, validated):
            launch_given = launcher.bind(_checks(request, acc, target, result.nbytes, validated), factors, bias)
    settle = BoundLaunch(
        refuse=refuse,
        execute=execute,
        launch=launch_given,
        ready=request.ready,
        execute_for=execute_for,
        strides=acc.strides,
    ).settle
    new = result.new

    def requantize_sums(acc: Array, out: Any, multiplier: Any, zero_point: Any, bias: Array | None) -> Array:
        result: Array = new() if out is None else out
        status = launch_given(acc, result, multiplier, zero_point, bias)
        if status:
            settle(status, acc, result, multiplier, zero_point, bias)
        return result

    return requantize_sums


REQUANTIZE = Operation(
    name="REQUANTIZE",
    function="requantize",
    resolve=_resolve_requantize,
    options=RequantizeOptions,
    operands=("acc", "out", "multiplier", "zero_point"),
    labels="elements",
)


class _RequantizeLauncher(NamedTuple):
    """A way to requantize arrays: as they are, or in tiles.

    Its plan has two launches. The first turns the multiplier, bias and zero point of each channel into two words, with
    which the second computes codes.
    """

    plan: LaunchPlan
    view: View
    channels: int

    @classmethod
    def of(
        cls, request: RequantizeRequest, acc: Array, out: Array | None, dtypes_of_numbers: tuple[Any, Any]
    ) -> _RequantizeLauncher:
        """Choose how, by metadata alone; out is None for a result in the memory order of acc."""
        view = arrange(acc, out, request.granularity, request.qtype.storage, has_given_parameters=True)
        layout = view.layout
        elements = (SUMS, request.qtype.storage)
        words = (_WORDS, _WORDS)
        bias = "" if request.bias is None else request.bias.name

        def address(loop: str, operands: Any) -> int:
            return load_or_compile_requantization(
                loop, operands, request.convention.arithmetic, bias, request.convention.below
            )

        operands = ChannelOperands(*dtypes_of_numbers, request.bias or SUMS, *words)
        kernel = address("body.requantize.channels", operands)
        channels = plan_launch(kernel, slots.CHANNELS, kernel_args(NO_LAYOUT), request.channels, 1)
        loop = loop_of(layout, "requantize", *elements)
        size = acc.size
        large = outgrows_cache(size, *elements)
        streaming = store_mode(size, *elements, layout, row=loop.row, codes=True) if large else 0
        args = kernel_args(layout, request.codes, streaming=streaming, outgrows_cache=large, merged=loop.merged)
        kernel = address(loop.function, RequantizeOperands(*elements, *words))
        threads = policy.threads_for(size)
        plan = plan_launch(kernel, slots.REQUANTIZE_SUMS, args, size, threads, chunk_multiple=WHOLE_BYTES)
        return cls(channels.then(tile(plan, view, elements)), view, request.channels)

    def _words(self) -> tuple[Array, Array]:
        """Return memory for the words of channels."""
        return np.empty(self.channels, _WORDS), np.empty(self.channels, _WORDS)

    def execute(self, acc: Array, out: Array, factors: Array, zero_point: Array, bias: Array | None) -> int:
        """Run on valid arrays, with numbers in the dtypes that kernels read; return the status."""
        in_order = self.view.to_kernel
        biases = None if bias is None else in_order(bias)
        return driver.run(self.plan, acc, out, in_order(factors), zero_point, biases, *self._words())

    def bind(self, checks: Checks, factors: Array, bias: Array | None) -> Execute:
        """Return what runs on arrays and numbers as callers give them, once they pass checks.

        `factors` and `bias` are like those of calls, whose sizes say which of them are one number for all channels.
        """
        if self.view.parameter_order:  # numbers have to be transposed first, as `execute` does
            return refuse_all_operands
        launch_checked = bind(self.plan, checks)
        new = functools.partial(np.empty, self.channels, _WORDS)
        fill_factors, fill_biases = (self._spread_to_channels(numbers) for numbers in (factors, bias))

        def launch_all(acc: Array, out: Array, multiplier: Any, zero_point: Any, bias: Any) -> int:
            return launch_checked(acc, out, multiplier, zero_point, bias, new(), new())

        def launch_filled(acc: Array, out: Array, multiplier: Any, zero_point: Any, bias: Any) -> int:
            return launch_checked(acc, out, fill_factors(multiplier), zero_point, fill_biases(bias), new(), new())

        return launch_all if fill_factors is fill_biases is _unchanged else launch_filled

    def _spread_to_channels(self, numbers: Array | None) -> Callable[[Any], Any]:
        """Return what makes a number for each channel of one for all of them, of others nothing."""
        is_one = numbers is not None and numbers.size < self.channels
        return functools.partial(np.full, self.channels) if is_one else _unchanged


def _unchanged(numbers: Any) -> Any:
    """Return numbers of which each channel has one."""
    return numbers


def _checks(
    request: RequantizeRequest, acc: Array, out: Array | None, nbytes: int, validated: tuple[Any, ...]
) -> Checks:
    """Return what the driver checks: multipliers as scales, which may be 0 here, and the zero point as a code.

    `nbytes` is the size of a result to be made.
    """
    factors, zero_point, _ = validated
    return Checks.of(
        acc,
        out,
        nbytes,
        scales=factors.nbytes,
        zeros=zero_point.nbytes,
        scale=factors.dtype,
        zero_point=zero_point.dtype,
        codes=(int(request.qtype.qmin), int(request.qtype.qmax)),
        scalars=(factors.dtype.type, zero_point.dtype.type),
        zero=True,
    )


def _pass_as_they_are(multiplier: Any, zero_point: Any, bias: Any, validated: tuple[Any, ...]) -> bool:
    """Whether the driver can read numbers as the caller gave them: they have the dtypes that they were converted to."""
    factors, zero, biases = validated
    return (
        _passes(multiplier, factors.dtype, (float, np.float64))
        and _passes(zero_point, zero.dtype, (int,))
        and (biases is None or _passes(bias, biases.dtype, ()))
    )


def _passes(number: Any, dtype: np.dtype[Any], numbers: tuple[type, ...]) -> bool:
    """Whether the driver can read an array of a dtype, or a number of that dtype or of the types `numbers`."""
    if isinstance(number, np.ndarray):
        flags = number.flags
        return number.dtype == dtype and number.dtype.isnative and flags.c_contiguous and flags.aligned
    return is_read_as_it_is(number, dtype, numbers)
