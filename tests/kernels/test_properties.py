"""What must hold for any array, over shapes, strides, axes and block sizes that hypothesis makes up."""

import numpy as np
import pytest
from catalogue import CODES, same_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fastq
from fastq.formats.granularity import granularity
from fastq.formats.qtypes import as_qtype

# compiling a kernel takes longer than any deadline
common = settings(
    deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@st.composite
def arrays(draw, dtype=np.float32):
    """Arrays of up to four axes, cut out of larger ones with steps of either sign, axes in any order."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=24))
    seed, spread = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([0.0, 1.0, 30.0]))
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * 10 ** (rng.standard_normal(shape) * spread / 3).clip(-30, 30)).astype(dtype)
    steps = draw(st.tuples(*[st.sampled_from([1, 1, 2, -1, -2]) for _ in shape]))
    order = draw(st.permutations(range(len(shape))))
    return x[tuple(slice(None, None, step) for step in steps)].transpose(order)


@st.composite
def granularities(draw, ndim):
    """Keyword arguments that fit an array of a rank."""
    kind = draw(st.sampled_from(["array", "axis", "axes", "blocks"]))
    axis = draw(st.integers(-ndim, ndim - 1))
    if kind == "axes":
        return {"axis": tuple(draw(st.sets(st.integers(0, ndim - 1), min_size=1)))}
    options = {"array": {}, "axis": {"axis": axis}, "blocks": {"axis": axis}}[kind]
    return options | ({"block_size": draw(st.integers(1, 40))} if kind == "blocks" else {})


def expanded(parameters, q):
    """Parameters with the shape of the array that they belong to."""
    axes = granularity(q.axis, q.block_size, q.ndim).axes
    if q.block_size:
        return np.repeat(parameters, q.block_size, axes[0]).take(range(q.shape[axes[0]]), axes[0])
    kept = [size if axes is not None and axis in axes else 1 for axis, size in enumerate(q.shape)]
    return np.broadcast_to(parameters.reshape(kept), q.shape)


@pytest.mark.slow("compiles 30 kernels")
@common
@given(st.data(), arrays(), st.sampled_from(CODES), st.booleans())
def test_error_is_half_a_step_at_most(data, x, code, symmetric):
    q = fastq.quantize(x, code, symmetric=symmetric, **data.draw(granularities(x.ndim)))
    scale = expanded(q.scale, q).astype(np.float64)
    error = np.abs(x.astype(np.float64) - q.dequantize())
    # half a step, and what float32 loses in the quotient, in the product and in a zero point that had to be rounded
    steps = q.dtype.qmax - q.dtype.qmin
    lost = 2.0**-23 * steps * scale
    zero_point_rounded = 0 if symmetric else scale / 2
    assert (error <= scale / 2 + zero_point_rounded + lost).all()
    position = x / scale + expanded(q.zero_point, q).astype(np.int64)
    inside = (position >= q.dtype.qmin) & (position <= q.dtype.qmax)
    assert (error[inside] <= (scale / 2 + lost)[inside]).all()


@pytest.mark.slow("compiles 8 kernels")
@common
@given(st.integers(0, 2**32 - 1), st.sampled_from(CODES), st.booleans())
def test_codes_are_monotone(seed, code, symmetric):
    x = np.sort(np.random.default_rng(seed).standard_normal(500).astype(np.float32) * 3)
    codes = fastq.quantize(x, code, symmetric=symmetric).codes.astype(np.int64)
    assert (np.diff(codes) >= 0).all()


@pytest.mark.slow("compiles 30 kernels")
@common
@given(st.data(), arrays(), st.sampled_from(CODES), st.booleans())
def test_quantizing_what_was_dequantized_gives_the_same_codes(data, x, code, symmetric):
    q = fastq.quantize(x, code, symmetric=symmetric, **data.draw(granularities(x.ndim)))
    same_bytes(fastq.quantize(q.dequantize(), qparams=q.qparams).codes, q.codes)


@common
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 4000), max_size=6))
def test_any_cutting_gives_the_same_codes(seed, cuts):
    # contract 26.1
    x = np.random.default_rng(seed).standard_normal(4000).astype(np.float32)
    q = fastq.quantize(x, "int8")
    parts = np.split(x, sorted(cuts))
    same_bytes(np.concatenate([fastq.quantize(part, qparams=q.qparams).codes for part in parts]), q.codes)


@common
@given(st.data(), arrays())
def test_minmax_is_that_of_numpy(data, x):
    lo, hi = fastq.minmax(x)
    assert lo == x.min()
    assert hi == x.max()
    axis = data.draw(st.integers(0, x.ndim - 1))
    lo, hi = fastq.minmax(x, axis=axis)
    others = tuple(k for k in range(x.ndim) if k != axis)
    np.testing.assert_array_equal(lo, x.min(axis=others))
    np.testing.assert_array_equal(hi, x.max(axis=others))


@pytest.mark.slow("compiles two kernels each", quick=lambda code: code.endswith("8"))
@pytest.mark.parametrize("code", CODES)
def test_every_code_survives(code):
    qtype = as_qtype(code)
    codes = np.arange(qtype.qmin, qtype.qmax + 1).astype(code)
    for scale in (1.0, 0.1, 1e-20, 3e20):
        for zero_point in (qtype.qmin, 0, qtype.qmax):
            values = fastq.dequantize_linear(codes, scale, zero_point)
            same_bytes(fastq.quantize_linear(values, scale, zero_point, code), codes)
