"""compressed-tensors reads what is written under its names: the same values, except for their rounding to bfloat16."""

import numpy as np
import pytest
from torch_tensors import as_tensor

import fastq
from fastq.tools.files.records import Record, encode

WEIGHTS = {
    "float8_e4m3fn": ("float-quantized", {"num_bits": 8, "strategy": "channel"}),
    "mxfp4": ("mxfp4-pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 32}),
    "mxfp6_e2m3": ("mxfp6-pack-quantized", {"num_bits": 6, "strategy": "group", "group_size": 32}),
    "mxfp8_e4m3": ("mxfp8-quantized", {"num_bits": 8, "strategy": "group", "group_size": 32}),
    "nvfp4": ("nvfp4-pack-quantized", {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}),
}


@pytest.mark.parametrize("dtype", WEIGHTS)
def test_stored_tensors_are_read(dtype):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    name, options = WEIGHTS[dtype]
    options = options | ({"scale_dtype": torch.uint8} if dtype.startswith("mx") else {})
    weights = QuantizationArgs(type="float", symmetric=True, dynamic=False, **options)
    x = np.random.default_rng(1).standard_normal((48, 96)).astype(np.float32)
    axis, block_size = (-1, options["group_size"]) if "group_size" in options else (0, 0)
    q = fastq.quantize(x, dtype, axis=axis, block_size=block_size)
    tensor_scale = None if q.tensor_scale is None else float(q.tensor_scale)
    arrays = encode("weight", q, Record(dtype, axis, block_size, True, "onnx", "F32", x.shape, tensor_scale))
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    read = BaseCompressor.get_value_from_registry(name).decompress(
        {key: as_tensor(array) for key, array in arrays.items()}, scheme
    )
    tolerance = 2**-8 if dtype == "nvfp4" else 0  # products with its second scale are rounded to bfloat16
    np.testing.assert_allclose(read["weight"].to(torch.float32).numpy(), q.dequantize(), rtol=tolerance)
