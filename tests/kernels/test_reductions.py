"""Two reductions that fastq lacks, a maximum and a sum, each as one body: all traversals visit elements with them."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.engine.runtime import driver
from fastq.formats.granularity import Granularity
from fastq.kernels.body import BODIES, Body, Reduction
from fastq.kernels.load_store import load_elements
from fastq.kernels.nan import nan_mask
from fastq.kernels.spec import status_of
from fastq.kernels.status import HAS_NAN
from fastq.plan import slots
from fastq.plan.kernel_call import kernel_args, load_or_compile_kernel
from fastq.plan.layout import make_layout
from fastq.plan.policy import loop_of


class MagnitudeOperands(NamedTuple):
    """Pointers of a reduction of float elements to their largest magnitudes."""

    src: Any
    most: Any


@traced
def _nothing(x):
    return (v.full_like(v.constant(0, x), x),)


@traced
def _add(x, state):
    return (v.maximum(v.absolute(x), state[0]),)


@traced
def _merge(state, other):
    return (v.maximum(state[0], other[0]),)


@traced
def _run(spec, operands, args, p, i, end):
    most, nan = operands.most[p], False
    while i < end:
        x = load_elements(operands.src, i, v.dtype_of(operands.src))
        most, nan = v.maximum(v.absolute(x), most), nan | nan_mask(spec, x)
        i += 1
    operands.most[p] = most
    return status_of(nan=nan)


BODIES[MagnitudeOperands] = Body(_run, reduction=Reduction(_nothing, _add, _merge))


def magnitudes(x, axes, block_size=0):
    """Return the largest magnitude of each part, and the status."""
    layout = make_layout(x.shape, Granularity(axes, block_size))
    loop, kind = loop_of(layout, "minmax", x.dtype, x.dtype), x.dtype
    kernel = load_or_compile_kernel(loop.function, MagnitudeOperands(kind, kind), "magnitude")
    result = np.zeros(layout.parameters, kind)
    operands = driver.X, slots.LO, driver.NONE, driver.NONE, driver.NONE
    plan = driver.plan_launch(kernel, operands, kernel_args(layout, merged=loop.merged), x.size, 1)
    status = driver.run(plan, x, None, None, None, None, result)
    return result.reshape(layout.parameter_shape), status, loop


IN_ALL_WAYS = pytest.mark.parametrize(
    ("shape", "axes", "block_size", "loop"),
    [
        ((7, 100), None, 0, "runs"),
        ((7, 100), (0,), 0, "runs"),
        ((70, 5), (0,), 0, "runs"),
        ((70, 24), (0,), 0, "runs"),
        ((37, 100), (1,), 0, "columns"),  # groups of rows, then rows one by one
        ((4096, 3), (1,), 0, "columns"),  # rows taken as one
        ((6, 20, 40), (0, 2), 0, "columns"),
    ],
)


def reduced(axes, ndim):
    return tuple(k for k in range(ndim) if k not in (axes or ()))


@pytest.mark.slow("compiles 3 kernels a dtype", quick=lambda dtype, **_: dtype == np.float32)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@IN_ALL_WAYS
def test_a_reduction_of_a_few_lines_is_visited_in_all_ways(dtype, shape, axes, block_size, loop):
    x = np.random.default_rng(math.prod(shape)).standard_normal(shape).astype(dtype)
    found, status, chosen = magnitudes(x, axes, block_size)
    assert chosen.function.rpartition(".")[2] == loop
    assert found.tobytes() == np.abs(x).max(axis=reduced(axes, x.ndim), keepdims=True).tobytes()
    assert status == 0


@pytest.mark.parametrize(("shape", "axes"), [((7, 100), (0,)), ((70, 5), (0,)), ((37, 100), (1,)), ((4096, 3), (1,))])
def test_nan_is_reported_in_all_ways(shape, axes):
    x = np.ones(shape, np.float32)
    x[-1, -1] = np.nan
    assert magnitudes(x, axes)[1] == HAS_NAN


# --- a sum, in which each element counts once: `row` visits rows, and each thread has sums of its own ----------------


class CountOperands(NamedTuple):
    """Pointers of a count of the elements below 0."""

    src: Any
    counts: Any


@traced
def _counted(x, counts):
    return v.select(x < v.constant(0, x), counts + v.constant(1, counts), counts)


@traced
def _count_run(spec, operands, args, p, i, end):
    count = operands.counts[p]
    while i < end:
        count = _counted(load_elements(operands.src, i, v.dtype_of(operands.src)), count)
        i += 1
    operands.counts[p] = count
    return 0


@traced
def _count_row(spec, operands, args, p, i, end):
    src, counts, vec = operands.src, operands.counts, v.lanes(operands.src)
    while i + v.count(vec) <= end:
        found = v.load(counts, p + i, v.lanes_like(vec, counts))
        v.store(counts, p + i, _counted(load_elements(src, i, vec), found))
        i += v.count(vec)
    while i < end:
        counts[p + i] = _counted(load_elements(src, i, v.dtype_of(src)), counts[p + i])
        i += 1
    return 0


@traced
def _add_counts(state, other):
    return (state[0] + other[0],)


def _not_needed(x, state):
    raise AssertionError("where a body has a row, nothing is added in registers")


BODIES[CountOperands] = Body(_count_run, row=_count_row, reduction=Reduction(_nothing, _not_needed, _add_counts))


def negatives(x, axes, block_size, threads):
    """Return how many elements of each part are below 0, and the loop."""
    layout, kind = make_layout(x.shape, Granularity(axes, block_size)), np.dtype(np.int64)
    loop = loop_of(layout, "minmax", x.dtype, kind)
    kernel = load_or_compile_kernel(loop.function, CountOperands(x.dtype, kind), "count", together=loop.together)
    operands = driver.X, slots.COUNTS, driver.NONE, driver.NONE, driver.NONE
    # the thread of each slot adds to counts of its own
    args = kernel_args(layout, merged=loop.merged, partial_stride=layout.parameters)
    counts = np.zeros((threads, layout.parameters), kind)
    driver.run(driver.plan_launch(kernel, operands, args, x.size, threads), x, None, None, None, counts)
    return counts.sum(axis=0).reshape(layout.parameter_shape), loop


def test_operands_of_the_same_dtypes_have_kernels_of_their_own():
    """Named tuples are equal whatever their classes are."""
    dtypes = (np.dtype(np.float32),) * 2
    first, second = (
        load_or_compile_kernel("traversal.runs.runs", kind(*dtypes), "magnitude")
        for kind in (MagnitudeOperands, CountOperands)
    )
    assert first != second


@IN_ALL_WAYS
def test_a_sum_of_a_few_lines_is_visited_in_all_ways(shape, axes, block_size, loop, threads):
    x = np.random.default_rng(math.prod(shape)).standard_normal(shape).astype(np.float32)
    for n in (1, 3):
        threads(n)
        found, chosen = negatives(x, axes, block_size, n)
        assert chosen.function.rpartition(".")[2] == loop
        np.testing.assert_array_equal(found, (x < 0).sum(axis=reduced(axes, x.ndim)).reshape(found.shape), strict=True)


def test_blocks_are_counted_too():
    x = np.random.default_rng(0).standard_normal((9, 64)).astype(np.float32)
    found, _ = negatives(x, (1,), 16, 1)
    np.testing.assert_array_equal(found, (x < 0).reshape(9, 4, 16).sum(axis=2), strict=True)
