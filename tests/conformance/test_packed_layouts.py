"""Tensors of MatMulNBits and bitsandbytes are the bytes that these systems write, from the arrays on."""

import numpy as np
import pytest

import fastq


def of_onnxruntime(w, bits, block, symmetric):
    """B, scales and zero points of ONNX Runtime for a weight of shape (N, K)."""
    state = pytest.importorskip(
        "onnxruntime.capi._pybind_state", reason="not installed: onnxruntime; MatMulNBits is not compared with it"
    )
    outputs, inputs = w.shape
    blocks = -(-inputs // block)
    packed = np.zeros((outputs, blocks, block * bits // 8), np.uint8)
    scales, zeros = np.zeros(outputs * blocks, np.float32), np.zeros((outputs, -(-blocks * bits // 8)), np.uint8)
    run = getattr(state, f"quantize_matmul_{bits}bits")
    run(packed, np.ascontiguousarray(w.T), scales, zeros, block, outputs, inputs, symmetric)
    return {"B": packed, "scales": scales.reshape(outputs, blocks), "zero_points": zeros}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("block", "inputs"), [(16, 256), (32, 256), (32, 96), (128, 1024), (32, 80)])
def test_matmul_nbits(bits, symmetric, block, inputs):
    w = np.random.default_rng(block).standard_normal((300, inputs)).astype(np.float32) + np.float32(0.3)
    expected = of_onnxruntime(w, bits, block, symmetric)
    q = fastq.quantize(w, f"uint{bits}", axis=1, block_size=block, symmetric=symmetric, convention="matmul-nbits")
    actual = fastq.layouts.to_tensors(q, "matmul_nbits")
    if symmetric:
        del expected["zero_points"]
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert np.array_equal(actual[name], tensor), name
    back = fastq.layouts.from_tensors(expected, "matmul_nbits", dtype=f"uint{bits}", shape=w.shape)
    assert np.array_equal(back.codes, q.codes)
    expected["B"][0, 0, 0] ^= 1
    assert not np.array_equal(actual["B"], expected["B"])


@pytest.mark.parametrize("bits", [4, 8])
def test_scales_of_zero_in_matmul_nbits(bits):
    """What ONNX Runtime multiplies with is the weight that is read, groups of zeros too."""
    onnx = pytest.importorskip("onnx", reason="not installed: onnx; no model can be made")
    onnxruntime = pytest.importorskip("onnxruntime", reason="not installed: onnxruntime")
    w = np.random.default_rng(0).standard_normal((24, 64)).astype(np.float32)
    tensors = of_onnxruntime(w, bits, 32, False)
    tensors["scales"][::3, 0] = 0
    inputs = [
        onnx.numpy_helper.from_array(tensors[name].reshape(-1) if name == "scales" else tensors[name], name)
        for name in tensors
    ]
    sizes = {"K": 64, "N": 24, "bits": bits, "block_size": 32}
    node = onnx.helper.make_node("MatMulNBits", ["A", *tensors], ["Y"], domain="com.microsoft", **sizes)
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [64, n]) for name, n in (("A", 64), ("Y", 24))
    ]
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:], inputs)
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (theirs,) = session.run(None, {"A": np.eye(64, dtype=np.float32)})
    read = fastq.layouts.from_tensors(tensors, "matmul_nbits", dtype=f"uint{bits}").dequantize()
    np.testing.assert_array_equal(read, theirs.T)
    assert not read[::3, :32].any()


@pytest.mark.parametrize("name", ["nf4", "fp4"])
@pytest.mark.parametrize("shape", [(300, 512), (1111,)])
@pytest.mark.parametrize("nested", [False, True])
def test_bitsandbytes(name, shape, nested):
    torch = pytest.importorskip("torch", reason="not installed: torch; bitsandbytes is not compared with")
    functional = pytest.importorskip(
        "bitsandbytes.functional", reason="not installed: bitsandbytes; its tensors are not compared with"
    )
    w = np.random.default_rng(5).standard_normal(shape).astype(np.float32)
    tensor = torch.from_numpy(w)
    packed, state = functional.quantize_4bit(tensor, quant_type=name, compress_statistics=nested)
    stored = {"weight": packed.numpy(), **{k: v.numpy() for k, v in state.as_dict().items() if hasattr(v, "numpy")}}
    if nested:
        stored["nested_offset"] = np.array(float(state.offset), np.float32)
    back = fastq.layouts.from_tensors(stored, "bitsandbytes", dtype=name, shape=shape)
    assert np.array_equal(back.dequantize().reshape(-1), functional.dequantize_4bit(packed, state).numpy().reshape(-1))
    again = fastq.layouts.to_tensors(back, "bitsandbytes")
    assert np.array_equal(again["weight"], stored["weight"])
    assert np.array_equal(again["quant_map"], stored["quant_map"])
