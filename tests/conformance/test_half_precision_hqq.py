"""fastq under "hqq" gives the numbers of HQQ for float16 and bfloat16, and the values of its layers in these dtypes."""

import numpy as np
import pytest
from systems import hqq
from torch_tensors import as_tensor

import fastq
from fastq.formats.floats import FLOAT_FORMATS

torch = pytest.importorskip("torch", reason="torch is not installed")
package = pytest.importorskip("hqq.core.quantize", reason="hqq is not installed")

VALUES = 1 << 20
GROUP = 64


def weights(dtype):
    """Rows of all magnitudes, of one sign, of zeros and of one value."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((VALUES // 1024, 1024)) * 2.0 ** rng.integers(-16, 8, (VALUES // 1024, 1))
    x[::5] = np.abs(x[::5])
    x[1::50] = 0
    x[2::50] = 0.7
    return x.astype(np.float32).astype("float32" if dtype == "float32" else FLOAT_FORMATS[dtype].dtype)


def numbers(tensor, like):
    return tensor.float().numpy().reshape(like.shape)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("code", hqq.FORMATS)
def test_numbers(code, dtype):
    x = weights(dtype)
    codes, meta = hqq.quantized_by_hqq(as_tensor(x), code, GROUP)
    q = fastq.quantize(x, code, axis=1, block_size=GROUP, convention="hqq")
    assert np.count_nonzero(q.unpacked() != numbers(codes, x)) == 0
    for ours, theirs in ((q.scale, meta["scale"]), (q.zero_point, meta["zero"])):
        assert np.count_nonzero(ours.astype(np.float32) != numbers(theirs, ours)) == 0


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("code", hqq.FORMATS)
def test_values_of_layers(code, dtype):
    # contract 7.7
    x = weights(dtype)
    config = package.BaseQuantizeConfig(nbits=int(code.removeprefix("uint")), group_size=GROUP, axis=1)
    config["weight_quant_params"] |= {"optimize": False, "round_zero": False}  # which 4 bits have by default
    layer = torch.nn.Linear(x.shape[1], x.shape[0], bias=False, dtype=getattr(torch, dtype))
    layer.weight.data = as_tensor(x)
    layer = package.HQQLinear(layer, config, compute_dtype=getattr(torch, dtype), device="cpu")
    q = fastq.quantize(x, code, axis=1, block_size=GROUP, convention="hqq")
    ours = q.dequantize(dtype=x.dtype)
    assert np.count_nonzero(ours.astype(np.float32) != numbers(layer.dequantize(), x)) == 0
    if dtype == "float32":
        return
    same = fastq.fake_quantize(x, code, axis=1, block_size=GROUP, convention="hqq")
    assert np.array_equal(same.view(np.uint16), ours.view(np.uint16))
