"""A reduction that fastq lacks, as one body: all traversals visit elements with it."""

import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from fastq.dispatch.planner import kernel_args, loop_of
from fastq.dispatch.strides import make_layout
from fastq.engine import simd as v
from fastq.engine.jit import njit
from fastq.engine.runtime import driver
from fastq.formats.granularity import Granularity
from fastq.kernels.addresses import kernel_address
from fastq.kernels.body import BODIES, Body, Reduction
from fastq.kernels.load_store import load_elements
from fastq.kernels.spec import nan_mask, status_of
from fastq.kernels.status import HAS_NAN


class MagnitudeOperands(NamedTuple):
    """Pointers of a reduction of float elements to their largest magnitudes."""

    src: Any
    most: Any


@njit
def _nothing(x):
    return (v.full_like(v.constant(0, x), x),)


@njit
def _add(x, state):
    return (v.maximum(v.absolute(x), state[0]),)


@njit
def _merge(state, other):
    return (v.maximum(state[0], other[0]),)


@njit
def _run(spec, operands, args, p, i, end):
    most, nan = operands.most[p], False
    while i < end:
        x = load_elements(operands.src, i, v.dtype_of(operands.src))
        most, nan = v.maximum(v.absolute(x), most), nan | nan_mask(spec, x)
        i += 1
    operands.most[p] = most
    return status_of(nan, False)


BODIES[MagnitudeOperands] = Body(_run, reduction=Reduction(_nothing, _add, _merge))


def magnitudes(x, axes, block_size=0):
    """Return the largest magnitude of each part, and the status."""
    layout = make_layout(x.shape, Granularity(axes, block_size))
    loop, kind = loop_of(layout, "minmax", x.dtype, x.dtype), x.dtype
    kernel = kernel_address(loop.function, MagnitudeOperands(kind, kind), "magnitude")
    result = np.zeros(layout.parameters, kind)
    operands = driver.X, driver.LO, driver.NONE, driver.NONE, driver.NONE
    plan = driver.plan_launch(kernel, operands, kernel_args(layout, repeat=loop.repeat), x.size, 1)
    status = driver.run(plan, x, None, None, None, None, result)
    return result.reshape(layout.shape), status, loop


@pytest.mark.slow("compiles 3 kernels a dtype", quick=lambda dtype, **_: dtype == np.float32)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
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
def test_a_reduction_of_a_few_lines_is_visited_in_all_ways(dtype, shape, axes, block_size, loop):
    x = np.random.default_rng(math.prod(shape)).standard_normal(shape).astype(dtype)
    found, status, chosen = magnitudes(x, axes, block_size)
    reduced = tuple(k for k in range(x.ndim) if k not in (axes or ()))
    assert chosen.function.rpartition(".")[2] == loop
    assert found.tobytes() == np.abs(x).max(axis=reduced, keepdims=True).tobytes()
    assert status == 0


@pytest.mark.parametrize(("shape", "axes"), [((7, 100), (0,)), ((70, 5), (0,)), ((37, 100), (1,)), ((4096, 3), (1,))])
def test_nan_is_reported_in_all_ways(shape, axes):
    x = np.ones(shape, np.float32)
    x[-1, -1] = np.nan
    assert magnitudes(x, axes)[1] == HAS_NAN
