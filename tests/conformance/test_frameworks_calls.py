"""What docs/howto/frameworks.md says of casts of PyTorch, float16 in ONNX Runtime, ai-edge-quantizer and netCDF."""

import dataclasses
import warnings
from importlib import metadata

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_bytes
from torch_tensors import as_bytes, as_tensor, bytes_of

import fastq


def version_of(distribution):
    return tuple(int(part) for part in metadata.version(distribution).split("+")[0].split(".")[:2])


# --- casts of PyTorch -------------------------------------------------------------------------------------------------


def numbers(dtype):
    """A million float32 of any bits and as many near the ends of float8; all float16 or bfloat16. Without NaN."""
    if dtype == "float32":
        rng = np.random.default_rng(0)
        drawn = rng.integers(0, 1 << 32, 1 << 20, np.uint32, endpoint=False).view(np.float32)
        x = np.concatenate([drawn, 300 * rng.standard_normal(1 << 20, np.float32)])
    else:
        x = np.arange(1 << 16).astype(np.uint16).view(getattr(ml_dtypes, dtype, dtype))
    return x[~np.isnan(x.astype(np.float32))]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float16", "bfloat16"]
)
def test_casts_of_torch(dtype, name):
    """From version 2.13 on float8_e4m3fn saturates; nothing else does."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = numbers(dtype)
    saturates = name == "float8_e4m3fn" and version_of("torch") >= (2, 13)
    theirs = as_bytes(as_tensor(x).to(getattr(torch, name)))
    same_bytes(bytes_of(fastq.quantize_linear(x, 1.0, dtype=name, saturate=saturates)), theirs)
    if name.startswith("float8_e4"):
        other = bytes_of(fastq.quantize_linear(x, 1.0, dtype=name, saturate=not saturates))
        assert np.count_nonzero(other != theirs) > 0.1 * x.size


# --- float16 in ONNX Runtime ------------------------------------------------------------------------------------------

IN_FLOAT16 = dataclasses.replace(fastq.CONVENTIONS["onnx"], operation_type="input")


def by_onnxruntime(x, scale, zero_point, opset, precision):
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    half, code = onnx.TensorProto.FLOAT16, onnx.TensorProto.INT8
    of = onnx.helper.make_tensor_value_info
    attributes = {"precision": precision} if precision else {}
    node = onnx.helper.make_node("QuantizeLinear", ["x", "scale", "zero_point"], ["y"], **attributes)
    inputs = [of("x", half, None), of("scale", half, []), of("zero_point", code, [])]
    graph = onnx.helper.make_graph([node], "g", inputs, [of("y", code, None)])
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=10 if opset < 23 else 11)
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x, "scale": np.asarray(scale), "zero_point": np.asarray(zero_point)})[0]


@pytest.mark.parametrize(("opset", "precision"), [(19, 0), (21, 0), (23, 0), (23, 1), (23, 10), (24, 0), (25, 0)])
def test_float16_in_onnxruntime(opset, precision):
    """Half of the values on ties: in float32 always, but in float16 from version 1.32 and opset 23 on."""
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    in_half = version_of("onnxruntime") >= (1, 32) and opset >= 23 and precision != 1
    rng, differing = np.random.default_rng(0), 0
    for _ in range(12):
        scale, zero_point = np.float16(10 ** rng.uniform(-3, 0)), np.int8(rng.integers(-100, 100))
        steps = np.concatenate([40 * rng.standard_normal(50_000), rng.integers(-130, 130, 50_000) + 0.5])
        x = (steps * float(scale)).astype(np.float16)
        theirs = by_onnxruntime(x, scale, zero_point, opset, precision)
        rows = {True: IN_FLOAT16, False: fastq.CONVENTIONS["onnx"]}
        same_bytes(fastq.quantize_linear(x, scale, zero_point, "int8", convention=rows[in_half]), theirs)
        other = fastq.quantize_linear(x, scale, zero_point, "int8", convention=rows[not in_half])
        differing += np.count_nonzero(other != theirs)
    assert differing > 10_000


# --- ai-edge-quantizer ------------------------------------------------------------------------------------------------


def by_ai_edge(x, bits, channels):
    quantizer = pytest.importorskip(
        "ai_edge_quantizer.algorithms.uniform_quantize.uniform_quantize_tensor",
        reason="ai-edge-quantizer is not installed",
    )
    from ai_edge_quantizer import qtyping

    granularity = getattr(qtyping.QuantGranularity, "CHANNELWISE" if channels else "TENSORWISE")
    lo, hi = (end(x, axis=1 if channels else None, keepdims=True) for end in (np.min, np.max))
    zero_point, scale = quantizer.tensor_zp_scale_from_min_max(lo, hi, bits, True, granularity)
    params = qtyping.UniformQuantParams(
        num_bits=bits, quantized_dimension=0 if channels else None, scale=scale, zero_point=zero_point, symmetric=True
    )
    codes = quantizer.uniform_quantize(x, params)
    return scale, codes, quantizer.uniform_dequantize(codes, params)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("bits", [16, 8, 4, 2])
@pytest.mark.parametrize("channels", [False, True])
def test_weights_of_ai_edge_quantizer(bits, channels):
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((1024, 1024)) * 10.0 ** rng.uniform(-3, 2, (1024, 1))).astype(np.float32)
    ties = rng.integers(-254, 255, (64, 1024)) / np.float32(2)
    ties[:, 0] = 127
    x[:64], x[64], x[65] = ties, 3.7, -2.5
    scale, codes, values = by_ai_edge(x, bits, channels)
    q = fastq.quantize(x, f"int{bits}", axis=0 if channels else None, symmetric=True)
    same_bytes(q.scale.reshape(-1), scale.reshape(-1))
    assert np.array_equal(q.unpacked(), codes)
    assert np.array_equal(q.dequantize(), values)
    if bits == 8 and channels:
        other = fastq.quantize(x, "int8", axis=0, symmetric=True, convention="tflite").unpacked()
        assert np.count_nonzero(other != codes) > 1000


# --- netCDF -----------------------------------------------------------------------------------------------------------


def by_netcdf4(x, scale, offset):
    netcdf4 = pytest.importorskip("netCDF4", reason="netCDF4 is not installed")
    with netcdf4.Dataset("conformance.nc", "w", diskless=True, persist=False) as file:
        file.createDimension("x", x.size)
        variable = file.createVariable("v", "i2", "x", fill_value=-32768)
        variable.scale_factor, variable.add_offset = scale, offset
        variable[:] = x
        variable.set_auto_maskandscale(False)
        return variable[:].copy()


def by_xarray(x, scale, offset):
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    encoding = {"dtype": "int16", "scale_factor": scale, "add_offset": offset, "_FillValue": np.int16(-32768)}
    return xarray.conventions.encode_cf_variable(xarray.Variable("x", x, encoding=encoding)).values


@pytest.mark.parametrize("data", ["float32", "float64"])
@pytest.mark.parametrize("attributes", ["float32", "float64"])
def test_attributes_of_netcdf(data, attributes):
    """Of float32 data with float64 attributes netCDF4 computes in float64, xarray rounds each result to float32."""
    x = np.random.default_rng(0).normal(285, 20, 1 << 20).clip(200, 370).astype(data)
    scale, offset = np.dtype(attributes).type(0.00274), np.dtype(attributes).type(285.1)
    widened = x.astype(np.result_type(x.dtype, scale.dtype))
    ours = fastq.quantize_linear(widened, scale, offset, "int16", convention="cf")
    same_bytes(ours, by_netcdf4(x, scale, offset))
    theirs = by_xarray(x, scale, offset)
    if (data, attributes) == ("float32", "float64"):
        assert 100 < np.count_nonzero(ours != theirs) < 1000
        narrow = fastq.quantize_linear(x, scale, offset, "int16", convention="cf")
        assert np.count_nonzero(narrow != ours) > 1000
        distances = (x.astype(np.float64) - offset).astype(np.float32)
        ours = np.rint((distances.astype(np.float64) / scale).astype(np.float32)).astype(np.int16)
    same_bytes(ours, theirs)


@pytest.mark.parametrize("data", ["float32", "float64"])
@pytest.mark.parametrize("attributes", ["float32", "float64"])
def test_packing_like_a_file_gives_the_codes_of_netcdf4(data, attributes):
    """Of float64 data like a file with float32 attributes those of the data as float32."""
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    x = np.random.default_rng(0).normal(285, 20, 1 << 20).clip(200, 370).astype(data)
    scale, offset = np.dtype(attributes).type(0.00274), np.dtype(attributes).type(285.1)
    noted = {"scale_factor": scale, "add_offset": offset, "_FillValue": np.int16(-32768)}
    like = xarray.Dataset({"v": ("x", np.zeros(1, np.int16), noted)})
    with warnings.catch_warnings(action="ignore"):
        packed = fastq.xarray.pack(xarray.Dataset({"v": ("x", x)}), like=like).v.values
    rounded = x.astype(np.float32) if attributes == "float32" else x
    same_bytes(packed, by_netcdf4(rounded, scale, offset))
