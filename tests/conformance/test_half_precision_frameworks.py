"""coremltools and Qwix round each operation to float16 where that is the dtype of the weights."""

import numpy as np
import pytest

import fastq


def weights(limit):
    """Values of many magnitudes, half of whose rows are on ties of a scale of 1, a half or their like."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2048, 512)) * 10.0 ** rng.uniform(-4, 3, (2048, 1))
    x[:512] = rng.integers(-255, 256, (512, 512)) / 2
    return x.clip(-limit, limit).astype(np.float16)


def by_coremltools(x, dtype, symmetric):
    pytest.importorskip("coremltools", reason="coremltools is not installed")
    from coremltools.converters.mil.mil import types
    from coremltools.optimize import _utils

    mode = "LINEAR_SYMMETRIC" if symmetric else "LINEAR"
    codes, scale, _ = _utils.compute_qparams_by_dtype(x, types.string_to_builtin(dtype), mode, [1, 0])
    return codes, scale


def by_qwix(x, dtype, symmetric):
    qwix = pytest.importorskip("qwix", reason="qwix is not installed")
    import jax.numpy as jnp

    method = "absmax" if symmetric else "minmax"
    made = qwix.quantize(jnp.asarray(x), getattr(jnp, dtype), channelwise_axes=[0], calibration_method=method)
    return np.asarray(made.qvalue), np.asarray(made.scale)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(
    ("name", "quantize", "dtype", "limit"),
    [
        *(("coremltools", by_coremltools, dtype, 256) for dtype in ("int8", "uint8", "int4", "uint4")),
        *(("qwix", by_qwix, dtype, 3e4) for dtype in ("int8", "int4")),
    ],
)
def test_float16(name, quantize, dtype, limit, symmetric):
    # contract 2.5
    x = weights(limit)
    codes, scale = quantize(x, dtype, symmetric)
    q = fastq.quantize(x, dtype, axis=0, symmetric=symmetric, convention=name)
    assert np.array_equal(q.scale, scale.ravel().astype(np.float32))
    assert np.array_equal(q.unpacked().astype(int), codes.astype(int))
