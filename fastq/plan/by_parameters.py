"""Plan operations with given parameters: quantize, dequantize and fake quantize element by element."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime import result_pool
from fastq.engine.runtime.driver import (
    ALL_STATUS,
    OUT,
    UNFIT,
    Checks,
    LaunchPlan,
    X,
    bind,
    plan_launch,
    refuse_all_operands,
    run,
)
from fastq.engine.runtime.tiling import WHOLE_BYTES
from fastq.formats.granularity import Granularity
from fastq.kernels.storage import StorageFormat
from fastq.plan import policy
from fastq.plan.arrange import View, arrange, arrange_packed, order_without_gaps
from fastq.plan.cache import BoundCall, Call
from fastq.plan.copies import packer, unpacker
from fastq.plan.kernel_call import element_types, kernel_args, load_or_compile_kernel, tile, with_tensor
from fastq.plan.launch import BoundLaunch, Execute, is_read_as_it_is, run_on_no_elements
from fastq.plan.nan_and_infinity import refuse_nan
from fastq.plan.policy import loop_of, outgrows_cache, store_mode
from fastq.plan.result import Result
from fastq.plan.slots import CONVERT, CONVERT_AT_RANDOM
from fastq.plan.spec import OpSpec
from fastq.requests import quantization
from fastq.requests.parameters import ParameterRules, Parameters, storage_of
from fastq.requests.stochastic_rounding import Noise
from fastq.results import QParams
from fastq.system.arguments import native

Array = NDArray[Any]


def plan_elementwise(spec: OpSpec, view: View, *dtypes: np.dtype[Any], backward: bool = False) -> LaunchPlan:
    """Plan an operation with given parameters on arrays of these dtypes, in place or in tiles.

    `dtypes` are the dtypes of source, result, scale and zero point. A plan that runs `backward` begins with the chunk
    that the launch before it has left in the cache.
    """
    operands = element_types(spec, *dtypes)
    src = operands.src
    dst = operands.dst
    size = math.prod(view.shape)
    loop = loop_of(view.layout, spec.op, src, dst, operands.scale)
    kernel = load_or_compile_kernel(
        loop.function, operands, spec.op, spec.arithmetic, nan=spec.nan, together=loop.together
    )
    is_large = outgrows_cache(size, src, dst)
    streaming = 0
    if is_large:
        streaming = store_mode(size, src, dst, view.layout, row=loop.row, codes=spec.op == "quantize")
    args = kernel_args(view.layout, spec.code_range, streaming=streaming, outgrows_cache=is_large, merged=loop.merged)
    plan = plan_launch(
        kernel,
        CONVERT_AT_RANDOM if spec.draws else CONVERT,
        args,
        size,
        policy.threads_for(size),
        chunk_multiple=WHOLE_BYTES,
        backward=backward,
        status_mask=ALL_STATUS if spec.op != "dequantize" else 0,  # codes may be NaN
    )
    return tile(plan, view, (src, dst))


def numbers_of(params: QParams) -> Parameters:
    """Return the numbers of QParams as they are, since they were validated when the QParams were made."""
    tensor_scale = 0.0 if params.tensor_scale is None else float(params.tensor_scale)
    return Parameters(params.scale, params.zero_point, tensor_scale)


def bind_call(
    spec: OpSpec,
    request: quantization.Request,
    arguments: Call,
    rules: ParameterRules,
    parameters: Parameters,
    result: Result,
) -> BoundCall:
    """Return the function that the plan cache keeps, a closure: calling it costs half of a method call.

    `parameters` are validated.
    """
    zero_point = arguments.operands[3]
    # zeros for callers who give no zero point, in one row
    zeros = parameters.zero_point.reshape(-1) if zero_point is None else None
    # Zero points of a dtype of ml_dtypes, such as int4, are converted to bytes at each call. But where validation has
    # made another dtype of these, such as int16, other signs or floats, validation has to do so at each call.
    storage: np.dtype[Any] | None = None
    if isinstance(zero_point, np.ndarray) and zero_point.dtype.kind == "V":
        storage = storage_of(zero_point.dtype)
    if parameters.zero_point.dtype != storage:
        storage = None
    bound = bind_launch(
        spec, request, arguments, rules, parameters, result, parameters.zero_point if storage else zero_point
    )
    new = result.new
    launch_given = bound.launch
    settle = bound.settle

    def convert(
        x: Array, out: Any, scale: Any, zero_point: Any, qparams: QParams | None, noise: Noise | None = None
    ) -> Array:
        result = new() if out is None else out
        status = launch_given(x, result, scale, zeros if zero_point is None else zero_point, noise)
        if status:
            settle(status, x, result, scale, zero_point, qparams and qparams.tensor_scale, noise)
        return result

    def convert_zero_points_first(
        x: Array, out: Any, scale: Any, zero_point: Any, qparams: QParams | None, noise: Noise | None = None
    ) -> Array:
        return convert(x, out, scale, zero_point.astype(storage), qparams, noise)

    return convert if storage is None else convert_zero_points_first


def bind_launch(
    spec: OpSpec,
    request: quantization.Request,
    arguments: Call,
    rules: ParameterRules,
    parameters: Parameters,
    result: Result,
    zero_point: Any,
) -> BoundLaunch:
    """Return the launch of an operation with given parameters.

    `parameters` are validated and have the dtypes of results. They may be the caller's arrays, so the launch does not
    keep them. `zero_point` is what calls will give, after any conversion that they make themselves.
    """
    x, out, scale, _ = arguments.operands
    parameter_shape = parameters.scale.shape

    def ready(scale: Any, zero_point: Any, tensor: Any, noise: Noise | None) -> tuple[Any, ...]:
        return *in_bits(rules.ready(scale, zero_point, tensor).in_shape(parameter_shape)), noise

    refuse = functools.partial(refuse_nan, nan=spec.nan)
    if not x.size:
        return BoundLaunch(refuse, run_on_no_elements, ready=ready)
    in_kernel = in_bits(parameters)
    has_blocks = request.granularity.block_size > 0  # else the order of scales is not read
    shape = x.shape if arguments.shape is None else arguments.shape
    dtypes = x.dtype, result.dtype, in_kernel.scale.dtype, in_kernel.zero_point.dtype
    scale_order = order_without_gaps(in_kernel.scale) if has_blocks else None

    def launcher_for(x: Array, out: Array | None) -> Launcher:
        return choose_launcher(
            spec,
            request.granularity,
            x,
            out,
            shape=shape,
            dtypes=dtypes,
            plan=plan_elementwise,
            scale_order=scale_order,
        )

    def execute_for(x: Array, out: Array) -> Execute:
        return launcher_for(x, out).execute

    target = None if out is None else np.asarray(out)
    conversion = launcher_for(x, target)
    launch_given: Execute = refuse_all_operands
    if target is out:  # else out is of a subclass of ndarray, which the driver does not read
        launch_given = conversion.bind_to_parameters(rules, x, target, result.nbytes, parameters, scale, zero_point)
    return BoundLaunch(
        refuse=refuse,
        execute=conversion.execute,
        launch=launch_given,
        ready=ready,
        execute_for=execute_for,
        strides=x.strides,
    )


# --- on arrays as they are, in tiles, or through codes one in a byte --------------------------------------------------


class CodesInBytes(NamedTuple):
    """Packed codes that go through codes one in a byte."""

    move: Callable[[Array, Array], object]  # packs or unpacks
    operand: int  # which one is codes
    packs: bool  # whether they are written
    shape: tuple[int, ...]  # of the codes one in a byte
    dtype: np.dtype[Any]
    raises_nan: bool  # whether NaN is refused; codes are then not written

    def through(self, run: Execute) -> Execute:
        """Return what runs on packed codes, given what runs on codes one in a byte."""
        new = functools.partial(result_pool.empty, self.shape, self.dtype)
        move = self.move
        place_of_codes = self.operand
        raises_nan = self.raises_nan

        def pack(x: Array, out: Array, *after_result: Any) -> int:
            codes = new()
            status = run(x, codes, *after_result)
            # with UNFIT no codes were computed; with a NaN that is refused the call ends in an error, and out stays
            if status != UNFIT and not (status and raises_nan):
                move(codes, out)
            return status

        def unpack(*operands: Any) -> int:
            codes = new()
            move(operands[place_of_codes], codes)
            return run(*operands[:place_of_codes], codes, *operands[place_of_codes + 1 :])

        return pack if self.packs else unpack


class Launcher(NamedTuple):
    """A way to run an operation with given parameters: on arrays as they are, in tiles, or through codes in bytes."""

    plan: LaunchPlan
    view: View
    draws: bool  # whether the last operand is noise
    codes: CodesInBytes | None = None

    def bind(self, checks: Checks, *, in_c_order: bool = True) -> Execute:
        """Return what runs on x, result, scale, zero point and a last operand as callers give them, where checks pass.

        The last operand is the noise by which codes are rounded, or the sums to which errors are added, or None. What
        runs returns the status, or `UNFIT` if a check fails and nothing was written. Without `in_c_order` it copies
        parameters that are not in C order. Codes that go through bytes are checked as a new array, which shares memory
        with no operand.
        """
        if self.codes is not None:
            checks = checks.with_new(self.codes.operand, math.prod(self.codes.shape))
        launch_checked = bind(self.plan, checks)
        arranged = self.view.to_kernel
        words_of = self.view.words_of

        def launch_drawing(x: Array, out: Array, scale: Array, zero_point: Array, noise: Noise) -> int:
            return launch_checked(x, out, scale, zero_point, words_of(noise))

        in_order: Execute = launch_drawing if self.draws else launch_checked

        def launch_arranged(x: Array, out: Array, scale: Array, zero_point: Array, last: Noise | Array | None) -> int:
            return in_order(x, out, arranged(scale), arranged(zero_point), last)

        run_as_given = in_order if in_c_order and not self.view.parameter_order else launch_arranged
        return run_as_given if self.codes is None else self.codes.through(run_as_given)

    def bind_to_parameters(
        self,
        rules: ParameterRules,
        x: Array,
        out: Array | None,
        nbytes: int,
        parameters: Parameters,
        scale: Any,
        zero_point: Any,
    ) -> Execute:
        """Return what `bind` returns, with checks of parameters; or what refuses all, where these must be converted.

        Scale and zero point are as the caller gives them, `parameters` the same after validation; `nbytes` is the size
        of a result to be made.
        """
        if parameters.tensor_scale or not _pass_as_they_are(rules, scale, zero_point, parameters):
            return refuse_all_operands
        qtype = rules.qtype
        in_kernel = in_bits(parameters)
        signed, zero = rules.allowed
        checks = Checks.of(
            x,
            out,
            nbytes,
            scales=parameters.scale.nbytes,
            zeros=parameters.zero_point.nbytes,
            scale=in_kernel.scale.dtype,
            signed=signed,
            zero_point=in_kernel.zero_point.dtype,
            codes=(qtype.qmin, qtype.qmax) if qtype.has_zero_point else (0, 0),
            scalars=(parameters.scale.dtype.type, parameters.zero_point.dtype.type),
            zero=zero,
        )
        are_in_c_order = parameters.scale.flags.c_contiguous and parameters.zero_point.flags.c_contiguous
        return self.bind(checks, in_c_order=are_in_c_order)

    def execute(
        self,
        x: Array,
        out: Array,
        scale: Array,
        zero_point: Array,
        tensor: Any = None,
        last: Any = None,
    ) -> int:
        """Run on valid arrays, with parameters in the dtypes that kernels read; return the status.

        `tensor` is the scale of the whole array, `last` is as in `bind`.
        """
        plan = self.plan if tensor is None else with_tensor(self.plan, float(tensor))
        run_plan: Execute = functools.partial(run, plan)
        if self.codes is not None:
            run_plan = self.codes.through(run_plan)
        to_kernel = self.view.to_kernel
        last = self.view.words_of(last) if self.draws else last
        return run_plan(x, out, to_kernel(scale), to_kernel(zero_point), last)


def choose_launcher(
    spec: OpSpec,
    granularity: Granularity,
    x: Array,
    out: Array | None,
    shape: tuple[int, ...],
    dtypes: tuple[np.dtype[Any], ...],
    plan: Callable[..., LaunchPlan],
    scale_order: tuple[int, ...] | None = None,
) -> Launcher:
    """Choose how to run an operation with given parameters, on arrays whose elements are not looked at.

    `out` is None for a result in the memory order of x. `dtypes` are the dtypes of source, result, scale and zero
    point, `shape` is the shape of the values, and `scale_order` has the axes of scales from the slowest to the fastest,
    if their memory has no gaps.
    """
    dtypes = tuple(map(native, dtypes))
    packed_format = spec.packed_format
    only_reads = spec.op == "compare"
    if packed_format is not None:
        view = arrange_packed(shape, granularity, x if spec.op == "dequantize" else out, packed_format.group)
        if view is None:
            return _launcher_through_bytes(
                spec,
                granularity,
                x,
                out,
                shape=shape,
                dtypes=dtypes,
                plan=plan,
                scale_order=scale_order,
                packed_format=packed_format,
            )
        view = view.of(x, out, dtypes[1], only_reads=only_reads)
    else:
        view = arrange(
            x,
            out,
            granularity,
            dtypes[1],
            has_given_parameters=True,
            only_reads=only_reads,
            scale_order=scale_order,
        )
    return Launcher(plan(spec, view, *dtypes), view, spec.draws)


def _launcher_through_bytes(
    spec: OpSpec,
    granularity: Granularity,
    x: Array,
    out: Array | None,
    *,
    shape: tuple[int, ...],
    dtypes: tuple[np.dtype[Any], ...],
    plan: Callable[..., LaunchPlan],
    scale_order: tuple[int, ...] | None,
    packed_format: StorageFormat,
) -> Launcher:
    """Return how to run on packed codes that kernels cannot work on: as on codes one in a byte, packed or unpacked.

    `codes` stands for the array of these, which each call makes anew. Its elements are never read nor written here:
    shape, dtype and strides are what a launcher is chosen by, so the memory is not even touched.
    """
    codes = np.empty(shape, packed_format.unpacked_dtype)
    if spec.op == "dequantize":
        operand = X
        packed: Array | None = x
        x_in_bytes = codes
        out_in_bytes = out
    else:
        operand = OUT
        packed = out
        x_in_bytes = x
        out_in_bytes = codes
    launcher = choose_launcher(
        spec.unpacked,
        granularity,
        x_in_bytes,
        out_in_bytes,
        shape=shape,
        dtypes=tuple(codes.dtype if k == operand else dtype for k, dtype in enumerate(dtypes)),
        plan=plan,
        scale_order=scale_order,
    )
    return launcher._replace(codes=_codes_in_bytes(spec, packed_format, operand, packed, codes))


def _codes_in_bytes(
    spec: OpSpec, code_format: StorageFormat, operand: int, packed: Array | None, codes: Array
) -> CodesInBytes:
    """Return what packs or unpacks codes like these, whose elements are not looked at."""
    packs = spec.op == "quantize"
    if packs:
        move: Callable[[Array, Array], object] = packer(codes, packed, code_format)
    else:
        assert packed is not None
        move = unpacker(packed, codes, code_format)
    return CodesInBytes(
        move=move,
        operand=operand,
        packs=packs,
        shape=codes.shape,
        dtype=codes.dtype,
        raises_nan=packs and spec.nan == "raise",
    )


# --- parameters as callers give them ----------------------------------------------------------------------------------


def in_bits(parameters: Parameters) -> Parameters:
    """Return parameters as kernels can read them."""
    return parameters._replace(scale=as_bits(parameters.scale), zero_point=as_bits(parameters.zero_point))


def as_bits(array: Array) -> Array:
    """Return an array of floats of at most two bytes as the bits of its elements, any other as it is."""
    return array if array.dtype.kind in "iu" or array.dtype.itemsize > 2 else array.view(f"u{array.dtype.itemsize}")


def _pass_as_they_are(rules: ParameterRules, scale: Any, zero_point: Any, validated: Parameters) -> bool:
    """Whether the driver can read parameters as the caller gave them once they are contiguous.

    `validated` are the same parameters, converted if they had to be.
    """
    if not _passes(scale, validated.scale, (float, np.float64)):
        return False
    zero = validated.zero_point
    qtype = rules.qtype
    if zero_point is None:
        return zero.nbytes <= _KEPT_ZEROS
    if rules.convention.zero_point != "integer":
        return _passes(zero_point, zero, (float, np.float64))
    # the driver checks zero points of one byte alone; those of two need no check if each of them is a code
    checked = zero.itemsize == 1 or (qtype.fills_storage and qtype.has_zero_point)
    return checked and _passes(zero_point, zero, (int,))


_KEPT_ZEROS = 1 << 16  # most bytes of zero points that a plan keeps for callers who give no zero points


def _passes(given: object, validated: Array, numbers: tuple[type, ...]) -> bool:
    """Whether the driver can read a parameter as it was given: an array that needed no conversion, or a number.

    `numbers` are the types of numbers that it reads, beside that of the validated array.
    """
    if given is validated:
        return validated.flags.aligned and validated.dtype.isnative
    return not validated.shape and is_read_as_it_is(given, validated.dtype, numbers)
