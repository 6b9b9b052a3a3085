"""fastq gives the bytes of Qwix for bfloat16, where XLA does not round the reciprocals that it multiplies by."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from oracle import Case
from systems import qwix

import fastq

pytest.importorskip("qwix", reason="qwix is not installed")

ROW = fastq.CONVENTIONS["qwix"]
DIVIDES = dataclasses.replace(ROW, quotient="divide", scale_quotient="divide")


def weights():
    """Rows of many magnitudes, on both sides of 0 and on one, on ties, with zeros and constants."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1024, 1024)) * 2.0 ** rng.integers(-40, 40, (1024, 1))
    x[::5] = np.abs(x[::5])
    x[1::5] = rng.integers(-254, 255, x[1::5].shape) / 2
    x[3::50] = 0
    x[4::50] = 3.3
    return x.astype(ml_dtypes.bfloat16)


def differing(x, case, row):
    found = qwix.qwix(x, case)
    q = fastq.quantize(x, case.dtype, symmetric=case.symmetric, convention=row, **case.granularity())
    codes = fastq.unpack(q.codes, case.dtype, shape=q.shape) if q.codes.shape != q.shape else q.codes
    pairs = [(codes, found.codes), (q.scale, np.asarray(found.scale).reshape(q.scale.shape))]
    pairs += [] if case.symmetric else [(q.zero_point, np.asarray(found.zero_point).reshape(q.scale.shape))]
    pairs.append((q.dequantize().astype(x.dtype), found.values))
    return [np.count_nonzero(ours.astype(np.float32) != np.asarray(theirs, np.float32)) for ours, theirs in pairs]


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("per", ["array", "channel", "block"])
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_bytes(dtype, per, symmetric):
    x, case = weights(), Case(dtype, symmetric, per, 32 if per == "block" else 0)
    assert not any(differing(x, case, DIVIDES))
    if per != "array":
        assert differing(x, case, ROW)[0] > 0
