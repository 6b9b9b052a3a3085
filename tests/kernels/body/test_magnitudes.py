"""The smallest magnitude but 0, and the largest: all traversals, dtypes and threads."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_bytes, values

from fastq.dispatch.reduction import Extremes
from fastq.formats.granularity import Granularity
from fastq.kernels.addresses import kernel_address
from fastq.kernels.args import MagnitudeOperands, MinMaxOperands
from fastq.kernels.status import HAS_NAN

SHAPES = {  # by the traversal that takes them
    "runs": ((7, 1000), (0,)),
    "one run": ((1 << 18,), None),
    "short runs": ((70, 5), (0,)),
    "columns": ((37, 100), (1,)),
    "rows as one": ((4096, 3), (1,)),
    "wide rows": ((3, 5000), (1,)),
}


def reduced(x, axes, nan="raise"):
    return Extremes(x, Granularity(axes), nan, MagnitudeOperands)(x)


def expected(x, axes):
    size = np.abs(x.astype(np.float64))
    kept = tuple(k for k in range(x.ndim) if k not in (axes or ()))
    return np.where(size > 0, size, np.inf).min(axis=kept), size.max(axis=kept)


@pytest.mark.slow("compiles kernels for each dtype", quick=lambda dtype, name: dtype == "float32")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", SHAPES)
def test_all_traversals(dtype, name, threads):
    shape, axes = SHAPES[name]
    x = values("float32", int(np.prod(shape)), 5).reshape(shape).clip(-1000, 1000)
    x[..., ::3] = 0.0
    x[..., 1::7] = -0.0
    x = x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    for n, laid in itertools.product((1, 2, 4), (x, np.asfortranarray(x), x[..., ::-1])):
        threads(n)
        lo, hi, status = reduced(laid, axes)
        for found, right in zip((lo, hi), expected(laid, axes), strict=True):
            same_bytes(found.reshape(right.shape).astype(np.float64), right)
        assert status == 0


@pytest.mark.parametrize("name", SHAPES)
def test_nan_is_reported_and_has_no_magnitude(name):
    shape, axes = SHAPES[name]
    x = np.full(shape, -2.0, np.float32)
    x.reshape(-1)[-1] = np.nan
    lo, hi, status = reduced(x, axes)
    assert status == HAS_NAN
    assert (lo.min(), hi.max()) == (2.0, 2.0)


def test_operands_of_the_same_dtypes_have_kernels_of_their_own():
    """Named tuples are equal whatever their classes are."""
    dtypes = (np.dtype(np.float32),) * 3
    first, second = (
        kernel_address("traversal.runs.runs", kind(*dtypes), "minmax") for kind in (MinMaxOperands, MagnitudeOperands)
    )
    assert first != second
