"""fastq under "hqq" gives the numbers of HQQ for float16 and bfloat16, which HQQ quantizes as float32."""

import numpy as np
import pytest
from systems import hqq
from torch_tensors import as_tensor

import fastq
from fastq.formats.floats import FLOAT_FORMATS

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("hqq.core.quantize", reason="hqq is not installed")

VALUES = 1 << 20


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("code", hqq.FORMATS)
def test_numbers(code, dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((VALUES // 1024, 1024)) * 2.0 ** rng.integers(-16, 8, (VALUES // 1024, 1))
    x[::5] = np.abs(x[::5])
    x[1::50] = 0
    x[2::50] = 0.7
    x = x.astype(np.float32).astype(FLOAT_FORMATS[dtype].dtype)
    codes, meta = hqq.quantized_by_hqq(as_tensor(x), code, 64)
    q = fastq.quantize(x, code, axis=1, block_size=64, convention="hqq")
    assert np.count_nonzero(q.unpacked() != codes.float().numpy().reshape(x.shape)) == 0
    for ours, theirs in ((q.scale, meta["scale"]), (q.zero_point, meta["zero"])):
        assert np.count_nonzero(ours.astype(np.float32) != theirs.numpy().reshape(ours.shape)) == 0
