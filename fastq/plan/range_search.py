"""Search for the range that has the least error of the round trip, for each part of an array."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime.boundary import in_standard_mode
from fastq.engine.runtime.driver import LaunchPlan, plan_launch, run
from fastq.engine.runtime.tiling import Demands
from fastq.formats.granularity import Granularity
from fastq.formats.range_methods import MSERange
from fastq.kernels.pointers import CandidateOperands, SearchOperands
from fastq.kernels.sizes import MOST_ERROR
from fastq.plan import policy
from fastq.plan.arrange import StridedOperands, memory_of, memory_order
from fastq.plan.kernel_call import kernel_args, load_or_compile_kernel, tile_if_fits, with_tensor
from fastq.plan.layout import NEVER, Layout
from fastq.plan.policy import RUNS
from fastq.plan.slots import RANGE_SEARCH
from fastq.plan.spec import OpSpec
from fastq.requests.importance import bits_of_weights
from fastq.requests.quantization import Request
from fastq.system import tuning
from fastq.system.arguments import native
from fastq.system.cpu import REGISTER_BITS

Array = NDArray[Any]
Ends = tuple[Array, Array]

_LANES = REGISTER_BITS // 32  # of a register at most
# candidates that are tried before others, if a part has this number of elements
_FEW = 8
_MANY_ELEMENTS = 256
_ONE = np.ones(_LANES, np.float32)  # the weight of each element where there is no importance


class RangeSearch:
    """Find the ranges of the least error for arrays of the same dtype, shape and strides.

    The parts of an array that have a range each are seen one after the other: as rows, or as blocks of rows. Where
    parts fit the cache, each is searched by one thread. Else all candidates have their errors summed piece by piece.
    """

    def __init__(self, x: Array, spec: OpSpec, request: Request) -> None:
        granularity = request.granularity
        compute = request.coding.compute
        method = request.search
        assert method is not None
        self.axis = granularity.kept[0] if granularity.block_size else None
        self.order = _parts_first(x, granularity)
        self.granularity = granularity
        view = x.transpose(self.order)
        self.compute = compute
        self.layout = _layout(view.shape, granularity)
        self.ends_move_apart = request.searches_ends_apart
        self.scale_dtype = spec.range_scheme.scale_dtype
        self.factors = _factors_of_candidates(method, self.ends_move_apart).astype(compute)
        self.stages = 1 if self.ends_move_apart else len(self.factors)
        self.lanes_each = _lanes_each(self.factors.shape[1], compute, self.layout.block)
        factors_by_lane = self.factors.repeat(self.lanes_each, axis=1)
        self.candidates = factors_by_lane.shape[1]
        # groups of candidates are read as a whole, so behind the last one there are as many as a register has
        self.table = np.pad(factors_by_lane, ((0, 0), (0, _LANES)), "edge")
        self.threads = policy.threads_for(view.size * self.factors.shape[1] * self.stages)
        parts_fit_cache = self.layout.block <= tuning.current().fused_block
        parts_are_enough = self.threads == 1 or policy.enough_for_all(self.layout.parameters, self.threads)
        searches_whole_parts = parts_fit_cache and parts_are_enough
        whole_parts_plan = self._plan(spec, view, method, whole=True) if searches_whole_parts else None
        plan = whole_parts_plan or self._plan(spec, view, method, whole=False)
        assert plan is not None  # pieces of any size fit tiles
        self.plan = plan
        self.partial_sums = 0 if whole_parts_plan else self.threads  # for each candidate

    def _plan(self, spec: OpSpec, view: Array, method: MSERange, whole: bool) -> LaunchPlan | None:
        """Plan a launch that gets parts whole, or piece by piece; None where they are too large for tiles."""
        layout = self.layout
        dtype = native(view.dtype)
        candidates = self.candidates
        scale = spec.arithmetic.scale_format or spec.range_scheme.scale_dtype
        types = dtype, self.compute, self.compute, scale
        operands = SearchOperands(*types) if whole else CandidateOperands(*types, np.dtype(np.float64))
        kernel = load_or_compile_kernel(
            RUNS,
            operands,
            "fake",
            spec.arithmetic.clamping,
            nan=spec.nan if spec.nan == "raise" else "zero",
            range_scheme=spec.range_scheme.name,
            norm=method.norm,
            lanes_each=self.lanes_each,
        )
        args = kernel_args(
            layout,
            spec.code_range,
            partial_stride=layout.parameters * candidates,
            candidates=candidates,
            stages=self.stages,
            factors=self.table.ctypes.data,
            factor_stride=self.table.shape[1],
            weights=_ONE.ctypes.data,
        )
        unit = layout.chunk_unit if whole else 1
        plan = plan_launch(kernel, RANGE_SEARCH, args, view.size, self.threads, size=candidates, chunk_multiple=unit)
        return tile_if_fits(plan, view.shape, StridedOperands(memory_of(view)), (dtype,), demands=Demands(whole=unit))

    @in_standard_mode
    @np.errstate(over="ignore", under="ignore", invalid="ignore")
    def __call__(self, x: Array, lo: Array, hi: Array, tensor_scale: float, importance: Array | None) -> Ends:
        """Return the ends of the best ranges in the compute type; ranges are in the caller's order."""
        low, high = self._in_parts(lo), self._in_parts(hi)
        plan = with_tensor(self.plan, tensor_scale)
        if importance is not None:
            weights = self._weights(importance, x.shape)
            plan = plan.with_args(weights=weights.ctypes.data, period=weights.size)
        if self.partial_sums:
            low, high = self._by_sums(plan, x, low, high)
        else:
            run(plan, x, None, None, None, None, low, high)
        return self._from_parts(low), self._from_parts(high)

    def _by_sums(self, plan: LaunchPlan, x: Array, low: Array, high: Array) -> Ends:
        """Return the ends of the best ranges, by the sums of the errors of all candidates.

        For parts that are too large for the cache, or too few for the threads: each stage of the search reads x again.
        A kernel that has whole parts does the same in one launch.
        """
        best = self._candidates_of_least_error(plan, x, low, high)
        moved = best > 0  # the first candidate is the whole range
        if self.ends_move_apart:
            low_by_low, low_by_high, high_by_high, high_by_low = self.factors[:, best]
            ends = low_by_low * low + low_by_high * high, high_by_high * high + high_by_low * low
        else:
            factor = self.factors[0, best]
            if self.stages > 1:
                best = self._candidates_of_least_error(plan, x, low, high, around=factor)
                moved = moved | (best > 0)
                factor = self.factors[1, best] + factor
            ends = factor * low, factor * high
        most = np.finfo(low.dtype).max
        return np.where(moved, ends[0].clip(-most, most), low), np.where(moved, ends[1].clip(-most, most), high)

    def _candidates_of_least_error(
        self, plan: LaunchPlan, x: Array, low: Array, high: Array, around: Array | None = None
    ) -> NDArray[np.intp]:
        """Return the number of the best candidate of each range, of equal ones the first.

        Candidates are those of the first row of factors, or, if ranges were searched before, those of the second row
        `around` the best factors.
        """
        errors = np.zeros((self.partial_sums, *low.shape, self.candidates))
        best_factors = None
        if around is not None:
            plan = plan.with_args(factors=self.table[1:].ctypes.data, is_around=1)
            best_factors = np.asarray(around, self.scale_dtype, order="C")
        run(plan, x, None, best_factors, None, errors, low, high)
        sums = errors.reshape(self.partial_sums, *low.shape, -1, self.lanes_each).sum(axis=(0, -1))
        # a sum of infinity or NaN counts as the largest error, so that the first candidate wins where all are
        return np.asarray(np.fmin(sums, MOST_ERROR).argmin(axis=-1))

    def _weights(self, importance: Array, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return importance as whole numbers of float32 in the order of the parts, as far as they do not repeat.

        The largest of each part becomes the largest whole number whose sums are exact, so that the order of additions
        does not matter. Kernels read the result again and again: importance of shape (1, 300) for an array of shape
        (200, 300) gives 300 numbers, the `period`.
        """
        in_order = importance.transpose(self.order)
        granularity = self.granularity
        view = tuple(shape[axis] for axis in self.order)
        # outermost axes along which importance is the same
        repeated = next((axis for axis, n in enumerate(in_order.shape) if n > 1), len(view))
        period = np.broadcast_to(in_order.reshape(in_order.shape[repeated:]), view[repeated:])
        if granularity.block_size and period.ndim:
            starts = np.arange(0, view[-1], granularity.block_size)
            largest = np.maximum.reduceat(period, starts, -1).repeat(np.diff(starts, append=view[-1]), -1)
        else:
            kept = max(len(granularity.kept) - repeated, 0)
            largest = period.max(axis=tuple(range(kept, period.ndim)), keepdims=True, initial=0)
        most = 2.0 ** bits_of_weights(shape, granularity) - 1
        return np.rint(period / np.where(largest > 0, largest, 1) * most).astype(np.float32, order="C").reshape(-1)

    def _in_parts(self, ends: Array) -> Array:
        """Return ends of ranges in the order of the parts, as an array of their own, since kernels write to it.

        With blocks, the axis along which they run comes last; else the kept axes are in order already.
        """
        return np.array(ends if self.axis is None else np.moveaxis(ends, self.axis, -1), self.compute, order="C")

    def _from_parts(self, ends: Array) -> Array:
        """Return ends of ranges in the order of the parts with the caller's order of axes."""
        return ends if self.axis is None else np.moveaxis(ends, -1, self.axis)


def _factors_of_candidates(method: MSERange, apart: bool) -> NDArray[np.float64]:
    """Return the factors by which kernels make the candidates of a range from its ends, a column for each candidate.

    Where ends move apart there are four rows, two for each new end: ``lo * (1 - up) + hi * up`` and
    ``hi * (1 - down) + lo * down``. Else both ends are multiplied by the factor in the first row. If there is a second
    row, it is searched after the first: its numbers are added to the best factor.
    """
    if apart:
        up, down = method.ends_apart
        return np.stack([1 - up, up, 1 - down, down])
    if method.around.size <= 1:
        return method.ratios[np.newaxis]
    candidates = max(method.ratios.size, method.around.size)
    return np.stack([np.pad(row, (0, candidates - row.size), "edge") for row in (method.ratios, method.around)])


def _lanes_each(candidates: int, compute: np.dtype[Any], elements: int) -> int:
    """Return how many lanes of a register each candidate has, so that few of them fill it.

    If there are more candidates than lanes, the first few may rule out the others, which costs as much as trying them
    where a part has few elements.

    A register of 8 lanes has 2 lanes for each of 3 candidates; of 20 candidates for large parts it has those of the
    first 8, so one each.
    """
    lanes = REGISTER_BITS // (8 * compute.itemsize)
    together = candidates if candidates <= lanes or elements < _MANY_ELEMENTS else _FEW
    return max(1, lanes >> (together - 1).bit_length())


def _parts_first(x: Array, granularity: Granularity) -> tuple[int, ...]:
    """Return the order of axes in which the elements of each part follow each other."""
    axes = granularity.kept
    if granularity.block_size:
        return (*(a for a in range(x.ndim) if a not in axes), *axes)
    return (*axes, *(a for a in memory_order(x) if a not in axes))


def _layout(shape: tuple[int, ...], granularity: Granularity) -> Layout:
    """Return the layout of an array whose parts follow each other."""
    leading_axes = len(shape) - 1 if granularity.block_size else len(granularity.kept)
    rows = math.prod(shape[:leading_axes])
    length = math.prod(shape[leading_axes:])
    block = min(granularity.block_size or length, length)
    if length % block == 0:
        length = rows * length
        rows = 1
    blocks = -(-length // block)
    unit = block if rows == 1 else length
    return Layout(
        outer=rows,
        length=length,
        inner=1,
        block=block,
        blocks=blocks,
        cycle=NEVER,
        kept_outer=rows,
        parameter_shape=(rows * blocks,),
        parameters=rows * blocks,
        chunk_unit=unit,
    )
