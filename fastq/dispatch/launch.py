"""Launch operations with given parameters: on arrays as they are, or through codes one in a byte."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.granularity import make_layout
from fastq.dispatch.planner import StridedOperands, plan_elementwise, with_tensor
from fastq.dispatch.spec import OpSpec, Parameters
from fastq.dispatch.strides import Arrangement, arrange, is_plain, memory_of, memory_of_out, memory_of_result
from fastq.dispatch.subbyte import packer, unpacker
from fastq.engine.runtime import result_pool
from fastq.engine.runtime.driver import OUT, UNFIT, Checks, LaunchPlan, X, bind, run
from fastq.system.arguments import native

Array = NDArray[Any]


class Launcher(Protocol):
    """A way to run an operation, with parameters in the dtypes that its kernel reads."""

    def bound(self, checks: Checks, in_c_order: bool = True) -> Callable[..., int]:
        """Return what runs on x, result, scale, zero point and sums as callers give them, once they pass checks.

        It returns the status, or `UNFIT` where they do not pass and nothing was written. Without `in_c_order` it copies
        parameters that are not.
        """

    def execute(self, x: Array, out: Array, given: Parameters, sums: Array | None = None) -> int:
        """Run on valid arrays; return the status."""


class DirectLauncher(NamedTuple):
    """Launch on the caller's arrays, in place or in tiles."""

    plan: LaunchPlan
    arrangement: Arrangement

    def bound(self, checks: Checks, in_c_order: bool = True) -> Callable[..., int]:
        """Return what runs on operands as callers give them, parameters transposed if they must be."""
        launch, arranged = bind(self.plan.checked(checks)), self.arrangement.to_kernel
        if in_c_order and not self.arrangement.parameter_order:
            return launch

        def launch_arranged(x: Array, out: Array, scale: Array, zero_point: Array, *sums: Array) -> int:
            return launch(x, out, arranged(scale), arranged(zero_point), *sums)

        return launch_arranged

    def execute(self, x: Array, out: Array, given: Parameters, sums: Array | None = None) -> int:
        """Run; return the status."""
        scale, zero_point, tensor_scale = _arranged(self.arrangement, given)
        return run(with_tensor(self.plan, tensor_scale), x, out, scale, zero_point, sums)


class UnpackedLauncher(NamedTuple):
    """Launch on an unpacked copy of the codes.

    For packed codes with gaps, rows that begin within a byte, and granularities that no view in memory order has.
    """

    through: Launcher
    move: Callable[[Array, Array], object]  # packs or unpacks
    operand: int  # which one is codes
    packs: bool
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    raises_nan: bool  # whether NaN is refused; codes are then not written

    def bound(self, checks: Checks, in_c_order: bool = True) -> Callable[..., int]:
        """Return what runs on operands as callers give them; codes one in a byte share memory with none of them."""
        return self._through(self.through.bound(checks.with_new(self.operand, math.prod(self.shape)), in_c_order))

    def execute(self, x: Array, out: Array, given: Parameters, sums: Array | None = None) -> int:
        """Run on valid arrays; return the status."""
        return self._through(lambda x, out: self.through.execute(x, out, given, sums))(x, out)

    def _through(self, run: Callable[..., int]) -> Callable[..., int]:
        """Return what runs on packed codes, given what runs on codes one in a byte."""
        new = functools.partial(result_pool.empty, self.shape, self.dtype)
        move, at, raises_nan = self.move, self.operand, self.raises_nan

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


def empty_codes(spec: OpSpec, shape: tuple[int, ...]) -> Array:
    """Return memory for the codes of an operation, one in a byte."""
    assert spec.arithmetic.code_format is not None
    return np.empty(shape, spec.arithmetic.code_format.unpacked_dtype)


def through_codes(spec: OpSpec, packed: Array | None, codes: Array, through: Launcher) -> UnpackedLauncher:
    """Return a launcher on packed codes, given one on codes one in a byte."""
    code_format, packs = spec.arithmetic.code_format, spec.op == "quantize"
    assert code_format is not None
    if packs:
        move: Callable[[Array, Array], object] = packer(codes, packed, code_format)
    else:
        assert packed is not None
        move = unpacker(packed, codes, code_format)
    operand = X if spec.op == "dequantize" else OUT
    return UnpackedLauncher(through, move, operand, packs, codes.shape, codes.dtype, packs and spec.nan == "raise")


def launcher(
    spec: OpSpec,
    x: Array,
    out: Array | None,
    shape: tuple[int, ...],
    dtypes: tuple[np.dtype[Any], ...],
    backward: bool = False,
    scale_order: tuple[int, ...] | None = None,
) -> Launcher:
    """Choose how to run an operation.

    Parameters
    ----------
    spec : OpSpec
        With given parameters.
    x, out : ndarray
        Source and result, whose elements are not looked at; out may be None for a result in the memory order of x.
    shape : tuple of int
        Shape of the values.
    dtypes : tuple of dtype
        Of source, result, scale and zero point.
    backward : bool
        Whether to begin with the end of the array, which the pass before has left in the cache.
    scale_order : tuple of int, optional
        Axes of scales from the slowest to the fastest in memory, where that is contiguous.
    """
    dtypes = tuple(map(native, dtypes))
    if spec.packs:
        packs, (source, result, *others) = spec.op == "quantize", dtypes
        packed = arrangement_of_packed(spec, shape, out if packs else x)
        if packed is None:
            codes = empty_codes(spec, shape)
            if packs:
                kinds = source, codes.dtype, *others
                through = launcher(spec.unpacked, x, codes, shape, kinds, backward=backward, scale_order=scale_order)
                return through_codes(spec, out, codes, through)
            kinds = codes.dtype, result, *others
            through = launcher(spec.unpacked, codes, out, shape, kinds, backward=backward, scale_order=scale_order)
            return through_codes(spec, x, codes, through)
        arrangement = packed
    else:
        arrangement = arrange(x, out, spec.axes, spec.block_size, given=True, scale_order=scale_order)
        shape = arrangement.view(x).shape
    memory = strided_operands(arrangement, x, out, dtypes[1], spec.packs)
    seen = spec.with_axes(arrangement.axes)
    return DirectLauncher(plan_elementwise(seen, shape, *dtypes, memory=memory, backward=backward), arrangement)


def arrangement_of_packed(spec: OpSpec, shape: tuple[int, ...], packed: Array | None) -> Arrangement | None:
    """Return how kernels see packed codes: in C order; None of codes with gaps, or parameters that part a byte."""
    code_format, layout = spec.arithmetic.code_format, make_layout(shape, spec.axes, spec.block_size)
    assert code_format is not None
    whole_bytes = _parted_by_bytes(shape, spec.axes, spec.block_size, code_format.group)
    if layout is None or not is_plain(packed) or not whole_bytes:
        return None
    return Arrangement(None, True, spec.axes, layout, ())


def strided_operands(
    arrangement: Arrangement, x: Array, out: Array | None, dtype: np.dtype[Any], packs: bool
) -> StridedOperands:
    """Return where source and result lie that go through tiles: a result to be made in the memory order of x.

    Packed codes are made in C order.
    """
    if out is not None:
        out_memory = memory_of_out(arrangement.view(out))
    else:
        out_memory = None if packs else memory_of_result(x, dtype, arrangement.order)
    return StridedOperands(memory_of(arrangement.view(x)), out_memory)


@functools.lru_cache(4096)
def _parted_by_bytes(shape: tuple[int, ...], axes: tuple[int, ...] | None, block_size: int, group: int) -> bool:
    """Whether every row and every run of one parameter begins on a whole byte, for groups of codes that fill bytes."""
    layout = make_layout(shape, axes, block_size)
    if layout is None:
        return False
    runs = [shape[-1]] if shape and math.prod(shape[:-1]) > 1 else []
    if layout.parameters > 1:
        runs += [layout.block, layout.length] if layout.inner == 1 else [layout.inner]
    return not any(run % group for run in runs)


def _arranged(arrangement: Arrangement, given: Parameters) -> Parameters:
    scale, zero_point = arrangement.to_kernel(given.scale), arrangement.to_kernel(given.zero_point)
    return given._replace(scale=scale, zero_point=zero_point)
