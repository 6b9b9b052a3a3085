"""fastq under "quanto" and "quanto-bits" gives the bytes of optimum-quanto for float16 and bfloat16."""

import numpy as np
import pytest
from systems import quanto
from torch_tensors import as_tensor, bytes_of

import fastq

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("optimum.quanto", reason="optimum-quanto is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # those of quanto itself

VALUES = 1 << 20


def weights(dtype):
    """Rows of many magnitudes, on both sides of 0 and on one, with zeros, constants and subnormal numbers."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((VALUES // 1024, 1024)) * 2.0 ** rng.integers(-12, 8, (VALUES // 1024, 1))
    x[::5] = np.abs(x[::5])
    x[1::5] = -np.abs(x[1::5])
    x[2::50] = np.rint(x[2::50] * 4) / 8
    x[3::50] = 0
    x[4::50] = 0.7
    x[5::50] *= 2.0**-12
    return x.astype(np.float32).astype(fastq.formats.floats.FLOAT_FORMATS[dtype].dtype)


def bytes_of_tensor(tensor, dtype):
    return bytes_of(tensor.contiguous().view(torch.int16).numpy().view(dtype)).reshape(-1, 2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("code", quanto.BYTES)
def test_bytes(code, dtype):
    x = weights(dtype)
    made = quanto.weights_of_quanto(as_tensor(x), code)
    q = fastq.quantize(x, code, axis=0, symmetric=True, convention="quanto")
    scales = quanto.scales_of(made, q.scale.shape)
    usable = ~np.isnan(scales)  # where a scale is 0, there is nothing to be equal to
    assert np.count_nonzero(usable) > 0.85 * usable.size
    assert np.count_nonzero(q.scale[usable] != scales[usable]) == 0
    codes = quanto.codes_of(made, x.shape).float().numpy()
    assert np.count_nonzero(q.codes[usable].astype(np.float32) != codes[usable]) == 0
    ours = bytes_of(q.dequantize(dtype=x.dtype)).reshape(-1, 2)
    theirs = bytes_of_tensor(made.dequantize(), x.dtype)
    assert np.count_nonzero((ours != theirs)[np.repeat(usable, x.shape[1])]) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", quanto.BITS, ids=str)
def test_bits(case, dtype):
    x = weights(dtype)
    size = case.block_size
    made = quanto.weights_of_quanto(as_tensor(x), case.dtype, size)
    q = fastq.quantize(x, case.dtype, axis=1, block_size=size, convention="quanto-bits")
    scales = quanto.scales_of(made, q.scale.shape)
    usable = ~np.isnan(scales)
    assert np.count_nonzero(usable) > 0.9 * usable.size
    assert np.count_nonzero(q.scale[usable] != scales[usable]) == 0
    assert np.count_nonzero(q.zero_point != -made._shift.float().numpy().reshape(q.scale.shape)) == 0
    elements = np.repeat(usable, size, axis=1)
    assert np.count_nonzero((q.unpacked() != quanto.codes_of(made, x.shape).numpy())[elements]) == 0
    ours = bytes_of(q.dequantize(dtype=x.dtype)).reshape(-1, 2)
    theirs = bytes_of_tensor(made.dequantize(), x.dtype)
    assert np.count_nonzero((ours != theirs)[elements.reshape(-1)]) == 0
