"""Search for the part of each range that has the least error of the round trip."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.planner import RUNS, kernel_args, kernel_for, owned_units, tiled_if_fits, with_tensor
from fastq.dispatch.spec import OpSpec
from fastq.dispatch.strides import NEVER, Layout, StridedOperands, memory_of, memory_order
from fastq.engine.runtime import threadpool
from fastq.engine.runtime.driver import HI, LO, SCALE, SUMS, LaunchPlan, X, plan_launch, run
from fastq.formats.granularity import Granularity
from fastq.formats.range_methods import MSERange
from fastq.kernels.args import MOST_ERROR, CandidateOperands, SearchOperands
from fastq.system import tuning
from fastq.system.arguments import native

Array = NDArray[Any]


class RangeSearch:
    """Shrink the ranges of arrays of the same dtype, shape and strides to those of the least error.

    The parts of an array that have a range each are seen one after the other: as rows, or as blocks of rows. Where
    parts fit the cache, each is searched by one thread. Else all candidates have their errors summed piece by piece.
    """

    def __init__(
        self, x: Array, spec: OpSpec, granularity: Granularity, compute: np.dtype[Any], method: MSERange
    ) -> None:
        self.axis = granularity.kept[0] if granularity.block_size else None
        view = x.transpose(_parts_first(x, granularity))
        self.compute, self.layout = compute, _layout(view.shape, granularity)
        self.ratios = method.ratios.astype(compute)
        work = view.size * self.ratios.size
        self.threads = threadpool.threads_for(work)
        in_cache = self.layout.block <= tuning.current().fused_block
        searched = self._plan(spec, view, method, True) if in_cache and self._has_parts_for_all() else None
        plan = searched or self._plan(spec, view, method, False)
        assert plan is not None  # pieces of any size fit tiles
        self.plan, self.sums_of = plan, 0 if searched else self.threads

    def _has_parts_for_all(self) -> bool:
        return self.threads == 1 or self.layout.parameters >= 4 * self.threads

    def _plan(self, spec: OpSpec, view: Array, method: MSERange, whole: bool) -> LaunchPlan | None:
        """Plan a launch that gets parts whole, or piece by piece; None where they are too large for tiles."""
        layout, dtype, candidates = self.layout, native(view.dtype), self.ratios.size
        scale = spec.arithmetic.scale_format or spec.range_scheme.scale_dtype
        types = dtype, self.compute, self.compute, scale
        operands = SearchOperands(*types) if whole else CandidateOperands(*types, np.dtype(np.float64))
        kernel = kernel_for(
            RUNS,
            operands,
            "fake",
            spec.arithmetic.clamping,
            nan=spec.nan if spec.nan == "raise" else "zero",
            range_scheme=spec.range_scheme.name,
            norm=method.norm,
        )
        stride = layout.parameters * candidates
        args = kernel_args(layout, spec.code_range, partial_stride=stride, grid=method.grid, candidates=candidates)
        unit = owned_units(layout) if whole else 1
        plan = plan_launch(
            kernel,
            (X, LO, HI, SCALE, SUMS),
            args,
            view.size,
            self.threads,
            size=candidates,
            chunk_multiple=unit,
        )
        return tiled_if_fits(plan, view.shape, StridedOperands(memory_of(view)), (dtype,), whole=unit)

    def __call__(self, x: Array, lo: Array, hi: Array, tensor_scale: float) -> tuple[Array, Array]:
        """Return the ends of the shrunk ranges in the type to compute in, of ranges in the caller's order."""
        low, high = self._in_parts(lo), self._in_parts(hi)
        errors = np.zeros((self.sums_of, *low.shape, self.ratios.size))
        run(with_tensor(self.plan, tensor_scale), x, None, None, None, errors, low, high)
        if self.sums_of:
            best = self.ratios[np.fmin(errors.sum(axis=0), MOST_ERROR).argmin(axis=-1)]
            low, high = low * best, high * best
        return self._from_parts(low), self._from_parts(high)

    def _in_parts(self, ends: Array) -> Array:
        """Return ends of ranges in the order of the parts, as an array of their own."""
        return np.array(ends if self.axis is None else np.moveaxis(ends, self.axis, -1), self.compute, order="C")

    def _from_parts(self, ends: Array) -> Array:
        return ends if self.axis is None else np.moveaxis(ends, -1, self.axis)


def _parts_first(x: Array, granularity: Granularity) -> tuple[int, ...]:
    """Return the order of axes in which the elements of each part follow each other."""
    axes = granularity.kept
    if granularity.block_size:
        return (*(a for a in range(x.ndim) if a not in axes), *axes)
    return (*axes, *(a for a in memory_order(x) if a not in axes))


def _layout(shape: tuple[int, ...], granularity: Granularity) -> Layout:
    """Return the layout of an array whose parts follow each other."""
    kept = len(shape) - 1 if granularity.block_size else len(granularity.kept)
    rows, length = math.prod(shape[:kept]), math.prod(shape[kept:])
    block = min(granularity.block_size or length, length)
    if length % block == 0:
        rows, length = 1, rows * length
    blocks = -(-length // block)
    return Layout(rows, length, 1, block, blocks, NEVER, rows, (rows * blocks,))
