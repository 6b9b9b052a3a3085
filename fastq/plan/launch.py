"""Launch plans on arrays of callers: what the driver refuses is explained, or made ready and launched again."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime import result_pool
from fastq.engine.runtime.boundary import in_standard_mode, keeps_value
from fastq.engine.runtime.driver import OUT, UNFIT, Checks, LaunchPlan, X, bind, never_fits, run
from fastq.formats.granularity import Granularity
from fastq.kernels.storage import StorageFormat
from fastq.plan.arrange import View, arrange, arrange_packed
from fastq.plan.copies import packer, unpacker
from fastq.plan.kernel_call import with_tensor
from fastq.plan.result import copy_if_overlapping
from fastq.plan.spec import OpSpec
from fastq.plan.stochastic_rounding import words_of
from fastq.requests.parameters import ParameterRules, Parameters
from fastq.requests.stochastic_rounding import Noise
from fastq.system.arguments import native

Array = NDArray[Any]
Execute = Callable[..., int]  # runs on x, a result and other operands, and returns the status


def run_on_no_elements(*operands: Any) -> int:
    """Run on no elements."""
    return 0


def operands_unchanged(*operands: Any) -> tuple[Any, ...]:
    """Return operands that are ready."""
    return operands


class BoundLaunch(NamedTuple):
    """A plan that is bound to the driver: closures of the plan cache call `launch`, and `settle` for a status but 0."""

    refuse: Callable[..., None]  # raises the error of a status, if any, with the operands that were read
    execute: Execute  # runs on prepared operands
    # the compiled driver on operands as they are given, with its checks; by default it refuses all
    launch: Execute = never_fits
    # returns the remaining operands, converted; raises errors about their elements
    ready: Callable[..., tuple[Any, ...]] = operands_unchanged
    # `execute` for a copy of x, which may have other strides, and a result. None if nothing is written with which x may
    # share memory
    execute_for: Callable[[Array, Array], Execute] | None = None
    strides: tuple[int, ...] | None = None  # the strides of x for `execute`

    @in_standard_mode
    def settle(self, status: int, x: Array, out: Any, *operands: Any) -> None:
        """Launch again what the driver has refused, and raise the error of the status.

        x and operands that share memory with the result are copied first, and the copies explain the error, since the
        result is written by then.
        """
        if status == UNFIT:
            status, x, *operands = self._again(x, out, *operands)  # type: ignore[assignment]
        if status:
            self.refuse(status, x, out, *operands)

    def _again(self, x: Array, out: Any, *operands: Any) -> tuple[Any, ...]:
        operands = self.ready(*operands)
        target = np.asarray(out)
        execute = self.execute
        if self.execute_for is not None:
            x, *operands = copy_if_overlapping(target, x, *operands)  # type: ignore[assignment]
            execute = execute if x.strides == self.strides else self.execute_for(x, target)
        return execute(x, target, *operands), x, *operands


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
        at = self.operand
        raises_nan = self.raises_nan

        def pack(x: Array, out: Array, *others: Any) -> int:
            codes = new()
            status = run(x, codes, *others)
            if status != UNFIT and not (status and raises_nan):
                move(codes, out)
            return status

        def unpack(*operands: Any) -> int:
            codes = new()
            move(operands[at], codes)
            return run(*operands[:at], codes, *operands[at + 1 :])

        return pack if self.packs else unpack


class Launcher(NamedTuple):
    """A way to run an operation with given parameters: on arrays as they are, in tiles, or through codes in bytes."""

    plan: LaunchPlan
    view: View
    draws: bool  # whether it gets `Noise` in place of sums
    codes: CodesInBytes | None = None

    def bind(self, checks: Checks, in_c_order: bool = True) -> Execute:
        """Return what runs on x, result, scale, zero point and sums, or noise, as callers give them, where checks pass.

        It returns the status, or `UNFIT` if a check fails and nothing was written. Without `in_c_order` it copies
        parameters that are not in C order. Unpacked codes share memory with no operand.
        """
        if self.codes is not None:
            checks = checks.with_new(self.codes.operand, math.prod(self.codes.shape))
        launch = bind(self.plan, checks)
        arranged = self.view.to_kernel
        others = self.others

        def launch_drawing(x: Array, out: Array, scale: Array, zero_point: Array, *noise: Noise) -> int:
            return launch(x, out, scale, zero_point, *others(*noise))

        in_order = launch_drawing if self.draws else launch

        def launch_arranged(x: Array, out: Array, scale: Array, zero_point: Array, *sums: Any) -> int:
            return in_order(x, out, arranged(scale), arranged(zero_point), *sums)

        execute = in_order if in_c_order and not self.view.parameter_order else launch_arranged
        return execute if self.codes is None else self.codes.through(execute)

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
        """Return the same with checks of parameters, or what refuses all where these have to be made ready: `given`.

        Scale and zero point are as the caller gives them; `nbytes` is the size of a result to be made.
        """
        if parameters.tensor_scale or not pass_as_they_are(rules, scale, zero_point, parameters):
            return never_fits
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
        return self.bind(checks, parameters.scale.flags.c_contiguous and parameters.zero_point.flags.c_contiguous)

    def others(self, *sums: Any) -> tuple[Any, ...]:
        """Return the operands after zero points: sums as they are, or what kernels draw random numbers by."""
        return (words_of(sums[0], self.view.shape, self.view.order),) if self.draws else sums

    def execute(self, x: Array, out: Array, scale: Array, zero_point: Array, tensor: Any = None, *sums: Any) -> int:
        """Run on valid arrays, with parameters in the dtypes that kernels read; return the status."""
        plan = self.plan if tensor is None else with_tensor(self.plan, float(tensor))
        execute: Execute = functools.partial(run, plan)
        if self.codes is not None:
            execute = self.codes.through(execute)
        to_kernel = self.view.to_kernel
        return execute(x, out, to_kernel(scale), to_kernel(zero_point), *self.others(*sums))


def launcher(
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
    reads = spec.op == "compare"
    if packed_format is not None:
        operand = X if spec.op == "dequantize" else OUT
        packed = out if operand == OUT else x
        view = arrange_packed(shape, granularity, packed, packed_format.group)
        if view is None:
            codes = np.empty(shape, packed_format.unpacked_dtype)
            x, out = (x, codes) if operand == OUT else (codes, out)
            kinds = tuple(codes.dtype if k == operand else dtype for k, dtype in enumerate(dtypes))
            unpacked = launcher(spec.unpacked, granularity, x, out, shape, kinds, plan, scale_order)
            return unpacked._replace(codes=_codes(spec, packed_format, operand, packed, codes))
        view = view.of(x, out, dtypes[1], reads)
    else:
        view = arrange(x, out, granularity, dtypes[1], given=True, reads=reads, scale_order=scale_order)
    return Launcher(plan(spec, view, *dtypes), view, spec.draws)


def _codes(spec: OpSpec, code_format: StorageFormat, operand: int, packed: Array | None, codes: Array) -> CodesInBytes:
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


def pass_as_they_are(rules: ParameterRules, scale: Any, zero_point: Any, ready: Parameters) -> bool:
    """Whether the driver can read parameters as the caller gave them once they are contiguous.

    `ready` are the prepared parameters.
    """
    if not _passes(scale, ready.scale, (float, np.float64)):
        return False
    zero = ready.zero_point
    qtype = rules.qtype
    if zero_point is None:
        return zero.nbytes <= _KEPT_ZEROS
    if rules.convention.zero_point != "integer":
        return _passes(zero_point, zero, (float, np.float64))
    checked = zero.itemsize == 1 or (qtype.fills_storage and qtype.has_zero_point)  # the driver reads bytes
    return checked and _passes(zero_point, zero, (int,))


_KEPT_ZEROS = 1 << 16  # most bytes of zero points that a plan keeps for callers who give no zero points


def _passes(number: object, ready: Array, numbers: tuple[type, ...]) -> bool:
    if number is ready:
        return ready.flags.aligned and ready.dtype.isnative
    kind = type(number)
    return not ready.shape and (kind in numbers or (kind is ready.dtype.type and keeps_value(ready.dtype)))
