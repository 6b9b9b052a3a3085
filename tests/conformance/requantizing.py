"""Systems that requantize: layers whose accumulators are known, and the codes that they make of them."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from check import VALUES, Report
from oracle import Installed
from systems.tflite import interpreted, model_of, tensor_of

import fastq

SHAPE = 512, 8, 256  # samples, inputs, outputs


class Batch(NamedTuple):
    """Accumulators and what belongs to them, as arguments of `fastq.requantize`, and a system's codes."""

    acc: np.ndarray
    multiplier: np.ndarray
    zero_point: int
    dtype: str
    options: dict
    codes: np.ndarray

    def differences(self, convention, api=fastq):
        """Return how many codes differ under a convention."""
        ours = api.requantize(
            self.acc, self.multiplier, self.zero_point, self.dtype, convention=convention, **self.options
        )
        return int(np.count_nonzero(ours != self.codes))


@dataclass(frozen=True)
class Requantizing(Installed):
    """An operator of a system."""

    name: str
    batch: Callable  # from a generator of random numbers
    neighbour: str  # a convention that is seen to differ
    undefined: str = ""
    only_x86: bool = False

    def missing(self):
        return super().missing() + ["an x86 CPU"] * (self.only_x86 and platform.machine() not in ("x86_64", "AMD64"))


def compare(system):
    """Compare `fastq.requantize` under a system's convention with the system; codes that are not clamped say much."""
    rng, values, between, found = np.random.default_rng(1), 0, 0, []
    while values < VALUES:
        batch = system.batch(rng)
        if count := batch.differences(system.convention):
            found.append(f"{system.name}: {count} of {batch.acc.size} differ, {batch.multiplier}, {batch.zero_point}")
        info, values = np.iinfo(batch.dtype), values + batch.acc.size
        between += np.count_nonzero((batch.codes > info.min) & (batch.codes < info.max))
    return Report(values, between, found)


def differs(system, convention):
    """Return whether the codes of another convention differ from the system's."""
    rng = np.random.default_rng(2)
    return any(system.batch(rng).differences(convention) for _ in range(40))


class Layer(NamedTuple):
    """A product of matrices with integers, whose sums in real numbers are spread over the codes of 8 bits."""

    x: np.ndarray
    w: np.ndarray  # less its zero point
    dot: np.ndarray
    scale: np.ndarray  # of the weights
    scales: tuple[np.float32, np.float32]  # of inputs and of results
    zero_point: int
    bias: np.ndarray


def _layer(rng, dtype, per_channel, input_scale=1.0):
    info, (n, k, outputs) = np.iinfo(dtype), SHAPE
    n = int(rng.choice([1, 7, n]))
    size = np.exp2(rng.uniform(-27, 3))
    scale = (rng.uniform(0.5, 1, outputs if per_channel else ()) * size).astype(np.float32)
    most = int(np.clip(np.sqrt(300 / size / k), 1, 64))
    x = rng.integers(max(info.min, -most), min(info.max, 2 * most) + 1, (n, k))
    w = rng.integers(-most, most + 1, (outputs, k))
    scales = np.float32(input_scale), np.float32(rng.uniform(0.5, 1))
    most = min(2**30, 200 / size)
    bias = rng.integers(-most, most + 1, outputs)
    zero_point = int(rng.integers(info.min, info.max + 1))
    return Layer(x.astype(dtype), w, (x @ w.T).astype(np.int32), scale, scales, zero_point, bias.astype(np.int32))


def _single(layer):
    """Return the multiplier as systems take it in float32."""
    of_input, of_result = layer.scales
    return ((of_input * layer.scale).astype(np.float32) / of_result).astype(np.float32)


# --- TensorFlow Lite --------------------------------------------------------------------------------------------------

LITE = ("ai-edge-litert",)


def quantize_of_int32(rng):
    """Quantize of an array of int32, by any of its kernels."""
    from ai_edge_litert import schema_py_generated as schema

    dtype = str(rng.choice(["int8", "int16"]))
    info, shape = np.iinfo(dtype), (1, 1 << 17)
    size = np.exp2(rng.uniform(-27, 20))
    scales = [np.float32(rng.uniform(0.5, 1)), np.float32(rng.uniform(0.5, 1) / size)]
    multiplier = np.float64(scales[0]) / np.float64(scales[1])
    most = min(2**31 - 1, int(1.2 * info.max / multiplier) + 300)
    acc = rng.integers(-most, most + 1, shape)
    acc[0, :64] = rng.integers(-(2**31), 2**31, 64)
    acc[0, :2] = -(2**31), 2**31 - 1
    acc, zero_point = acc.astype(np.int32), int(rng.integers(info.min, info.max + 1))
    tensors = [
        tensor_of(schema, "x", shape, "INT32", 0, scales[0], 0),
        tensor_of(schema, "y", shape, dtype.upper(), 0, scales[1], zero_point),
    ]
    model = model_of(schema, "QUANTIZE", tensors, [0], options="QuantizeOptions")
    resolver = str(rng.choice(["BUILTIN_REF", "BUILTIN_WITHOUT_DEFAULT_DELEGATES", "BUILTIN"]))
    return Batch(acc, multiplier, zero_point, dtype, {}, interpreted(model, acc, resolver))


def _fully_connected(rng, resolver, multiplier_of):
    from ai_edge_litert import schema_py_generated as schema

    dtype = str(rng.choice(["int8", "uint8"]))
    per_channel = dtype == "int8" and bool(rng.integers(2))
    layer = _layer(rng, dtype, per_channel)
    middle, outputs, kind = 128 * (dtype == "uint8"), len(layer.w), dtype.upper()
    tensors = [
        tensor_of(schema, "x", layer.x.shape, kind, 0, 1.0, 0),
        tensor_of(schema, "w", layer.w.shape, kind, 1, 1.0, middle),
        tensor_of(schema, "b", (outputs,), "INT32", 2, 1.0, 0),
        tensor_of(schema, "y", layer.dot.shape, kind, 0, layer.scales[1], layer.zero_point),
    ]
    for tensor, zero in zip(tensors[1:3], (middle, 0), strict=True):
        tensor.quantization.scale = layer.scale.reshape(-1).tolist()
        tensor.quantization.zeroPoint = [zero] * layer.scale.size
    buffers = [(layer.w + middle).astype(dtype), layer.bias]
    model = model_of(schema, "FULLY_CONNECTED", tensors, [0, 1, 2], buffers, "FullyConnectedOptions")
    codes = interpreted(model, layer.x, resolver)
    options = {"axis": 1, "bias": layer.bias}
    return Batch(layer.dot, multiplier_of(layer), layer.zero_point, dtype, options, codes)


def _double(layer):
    """Return the multiplier as TensorFlow Lite takes it in float64; that of inputs is 1."""
    return layer.scale.astype(np.float64) / np.float64(layer.scales[1])


def fully_connected_reference(rng):
    """FullyConnected of the reference kernels."""
    return _fully_connected(rng, "BUILTIN_REF", _double)


def fully_connected_ruy(rng):
    """FullyConnected of the optimized kernels, without delegates."""
    return _fully_connected(rng, "BUILTIN_WITHOUT_DEFAULT_DELEGATES", _double)


def fully_connected_xnnpack(rng):
    """FullyConnected of the default delegate."""
    return _fully_connected(rng, "BUILTIN", _single)


# --- ONNX Runtime -----------------------------------------------------------------------------------------------------


def onnx_runtime(rng):
    """QLinearConv with a bias of channels, or QLinearMatMul, which has no bias."""
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    dtype, convolves = str(rng.choice(["int8", "uint8"])), bool(rng.integers(2))
    layer = _layer(rng, dtype, bool(rng.integers(2)), rng.uniform(0.5, 1))
    x, w = layer.x, layer.w.astype(np.int8)
    x, w = (x[:, :, None, None], w[:, :, None, None]) if convolves else (x, np.ascontiguousarray(w.T))
    numbers = {"xs": layer.scales[0], "xz": np.array(0, dtype), "w": w, "ws": layer.scale}
    numbers |= {"wz": np.zeros(layer.scale.shape, np.int8), "ys": layer.scales[1]}
    numbers |= {"yz": np.array(layer.zero_point, dtype)} | ({"b": layer.bias} if convolves else {})
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("QLinearConv" if convolves else "QLinearMatMul", ["x", *numbers], ["y"])
    given, made = (helper.make_tensor_value_info(*each) for each in (("x", kind, x.shape), ("y", kind, None)))
    graph = helper.make_graph([node], "g", [given], [made], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    session = onnxruntime.InferenceSession(onnx.ModelProto.SerializeToString(model), providers=["CPUExecutionProvider"])
    codes = session.run(None, {"x": x})[0].reshape(layer.dot.shape)
    options = {"axis": 1, "bias": layer.bias if convolves else None}
    return Batch(layer.dot, _single(layer), layer.zero_point, dtype, options, codes)


# --- PyTorch ----------------------------------------------------------------------------------------------------------


def _linear(rng, engine, bias_of):
    import torch

    torch.backends.quantized.engine = engine
    layer = _layer(rng, "uint8", bool(rng.integers(2)), rng.uniform(0.5, 1))
    (of_input, of_result), scale, w = layer.scales, layer.scale, torch.from_numpy(layer.w.astype(np.int8))
    x = torch._make_per_tensor_quantized_tensor(torch.from_numpy(layer.x), float(of_input), 0)
    if scale.ndim:
        zeros = torch.zeros(len(scale), dtype=torch.int64)
        w = torch._make_per_channel_quantized_tensor(w, torch.from_numpy(scale.astype(np.float64)), zeros, 0)
    else:
        w = torch._make_per_tensor_quantized_tensor(w, float(scale), 0)
    of_sums = (of_input * scale).astype(np.float32)
    values, bias = bias_of(layer, of_sums)
    packed = torch.ops.quantized.linear_prepack(w, None if values is None else torch.from_numpy(values))
    codes = torch.ops.quantized.linear(x, packed, float(of_result), layer.zero_point).int_repr().numpy()
    multiplier = _single(layer) if engine == "fbgemm" else of_sums * (np.float32(1) / of_result)
    return Batch(layer.dot, multiplier, layer.zero_point, "uint8", {"axis": 1, "bias": bias}, codes)


def fbgemm(rng):
    """Linear of FBGEMM, which divides a bias of channels by the scales and adds it in float32; per tensor without."""

    def bias_of(layer, of_sums):
        values = (layer.bias * of_sums).astype(np.float32)
        return (values, values / of_sums) if of_sums.ndim else (None, None)

    return _linear(rng, "fbgemm", bias_of)


def qnnpack(rng):
    """Linear of QNNPACK, which quantizes a bias to int32."""

    def bias_of(layer, of_sums):
        bias = layer.bias % 1000  # which its float32 quotient by the scales is
        return (bias * of_sums).astype(np.float32), bias

    return _linear(rng, "qnnpack", bias_of)


# --- all of them ------------------------------------------------------------------------------------------------------

_FBGEMM = (
    "FBGEMM adds a bias per tensor and its product by 1 / scale in one operation, which is fused: 2 of 16 million "
    "codes are others. Where a product is 2**31 or more, its code is the lowest on x86; here the highest. QNNPACK "
    "multiplies by the reciprocal of the scale of results, and so should who makes the multiplier."
)
_WRAPS = "Sums and products beyond int32, which C leaves undefined, wrap around in its kernels and here."
_PRODUCTS = (
    "Its products of matrices are rounded otherwise: see tflite-single, ruy-x86 and xnnpack. Multipliers from 2**30 "
    "on, whose shifts C leaves undefined, are refused. Accumulators of int64, as for inputs of int16, are not there."
)

SYSTEMS = (
    Requantizing("tflite", LITE, "Quantize of int32", quantize_of_int32, "ruy-x86", f"{_WRAPS} {_PRODUCTS}"),
    Requantizing("tflite-single", LITE, "FullyConnected, reference kernels", fully_connected_reference, "tflite"),
    Requantizing(
        "ruy-x86", LITE, "FullyConnected without delegates", fully_connected_ruy, "tflite-single", only_x86=True
    ),
    Requantizing("xnnpack", LITE, "FullyConnected", fully_connected_xnnpack, "tflite"),
    Requantizing("onnxruntime", ("onnx", "onnxruntime"), "QLinearConv and QLinearMatMul", onnx_runtime, "tflite"),
    Requantizing("torch", ("torch",), "linear of FBGEMM", fbgemm, "", _FBGEMM, only_x86=True),
    Requantizing("torch", ("torch",), "linear of QNNPACK", qnnpack, "tflite"),
)
