"""ONNX's operators, and the quantizers of ONNX Runtime's Python package."""

from functools import cache

import numpy as np
from oracle import Case, Quantized, System, grid

FORMATS = ("int8", "uint8", "int4", "uint4")
WIDE = ("int16", "uint16")
OPSET = 21


def _halves(packed, count, signed=False):
    """Return 4 bit codes, the first in the low half of a byte."""
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)[..., :count]
    return (codes ^ 8).astype(np.int8) - 8 if signed else codes


def _decoded(codes, scale, zero_point):
    """What DequantizeLinear computes, which `operators` compares with the operator itself."""
    return (codes.astype(np.float32) - np.float32(zero_point)) * scale


# --- operators


def _inference(nodes, inputs, outputs, domains=("",)):
    """A session of a model of these nodes, with inputs and outputs by name, each of a type."""
    import onnxruntime
    from onnx import helper

    ends = ([helper.make_tensor_value_info(n, t, None) for n, t in each.items()] for each in (inputs, outputs))
    opsets = [helper.make_opsetid(domain, 1 if domain else OPSET) for domain in domains]
    model = helper.make_model(helper.make_graph(nodes, "g", *ends), opset_imports=opsets, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@cache
def _session(op, dtype, per, block_size):
    from onnx import TensorProto, helper

    attributes = {} if per == "array" else {"axis": 1 if per == "block" else 0}
    attributes |= {"block_size": block_size} if block_size else {}
    code, real = getattr(TensorProto, dtype.upper()), TensorProto.FLOAT
    quantizes = op == "QuantizeLinear"
    given, made = (real, code) if quantizes else (code, real)
    nodes = [helper.make_node(op, ["x", "scale", "zero_point"], ["y"], **attributes)]
    if not dtype.endswith("int4"):
        return _inference(nodes, {"x": given, "scale": real, "zero_point": code}, {"y": made})
    # ONNX Runtime takes no 4 bit arrays: cast at the edge
    wide = TensorProto.INT8 if dtype == "int4" else TensorProto.UINT8
    names = [] if quantizes else ["x"]
    casts = [helper.make_node("Cast", [f"{n}_wide"], [n], to=code) for n in [*names, "zero_point"]]
    last = [helper.make_node("Cast", ["y"], ["y_wide"], to=wide)] if quantizes else []
    inputs = {"x" if quantizes else "x_wide": given if quantizes else wide, "scale": real, "zero_point_wide": wide}
    return _inference([*casts, *nodes, *last], inputs, {"y_wide": wide} if quantizes else {"y": made})


def _run(op, case, *tensors):
    session = _session(op, case.dtype, case.per, case.block_size)
    return session.run(None, dict(zip((i.name for i in session.get_inputs()), tensors, strict=True)))[0]


def operators(x, case, scale, zero_point):
    """QuantizeLinear and DequantizeLinear with given parameters."""
    codes = _run("QuantizeLinear", case, x, scale, zero_point)
    return Quantized(codes, None, None, _run("DequantizeLinear", case, codes, scale, zero_point))


@cache
def _dynamic():
    from onnx import TensorProto, helper

    names = {"y": TensorProto.UINT8, "scale": TensorProto.FLOAT, "zero_point": TensorProto.UINT8}
    return _inference([helper.make_node("DynamicQuantizeLinear", ["x"], list(names))], {"x": TensorProto.FLOAT}, names)


def dynamic(x, case):
    """DynamicQuantizeLinear, which computes the parameters."""
    codes, scale, zero_point = _dynamic().run(None, {"x": x})
    return Quantized(codes, scale, zero_point)


# --- Python tools


def tools(x, case):
    """quantize_data; by blocks compute_scale_zp_blocked and quantize_onnx_initializer."""
    from onnx import TensorProto, numpy_helper
    from onnxruntime.quantization import quant_utils

    code = getattr(TensorProto, case.dtype.upper())
    if case.per == "block":
        zero_point, scale = quant_utils.compute_scale_zp_blocked(x, code, 1, case.block_size, case.symmetric)
        initializer = quant_utils.quantize_onnx_initializer(
            numpy_helper.from_array(x), code, zero_point, scale, 1, block_size=case.block_size
        )
        spread = (np.repeat(a, case.block_size, axis=1)[:, : x.shape[1]] for a in (scale, zero_point.astype(np.int32)))
        codes = numpy_helper.to_array(initializer).astype(np.int32)
        return Quantized(codes, scale, zero_point.astype(np.int32), _decoded(codes, *spread))
    reduced = dict(case.changes).get("reduce_range", False)
    parts = [quant_utils.quantize_data(row, code, case.symmetric, reduced) for row in x]
    zero_point, scale, codes = (
        np.stack([np.asarray(part[i]).astype(t) for part in parts]) for i, t in ((0, int), (1, "f4"), (2, int))
    )
    values = _decoded(codes, scale[:, None], zero_point[:, None])
    if case.per == "array":
        scale, zero_point = scale[0], zero_point[0]
    return Quantized(codes, scale, zero_point, values)


# --- weights of MatMulNBits and of 4 bit QDQ


def _nonzero(scale):
    """The scales; that of a block of zeros is 0, which is not a valid scale."""
    return np.where(scale == 0, np.float32(np.nan), scale)


def nbits(x, case):
    """quantize_matmul_4bits and quantize_matmul_8bits, decoded by the operator: its product with the unit matrix."""
    from onnxruntime.capi import _pybind_state

    bits = int(case.dtype.removeprefix("uint"))
    (rows, columns), size = x.shape, case.block_size
    blocks = -(-columns // size)
    packed = np.zeros((rows, blocks, size * bits // 8), np.uint8)
    scale = np.zeros((rows, blocks), np.float32)
    zero_point = np.zeros((rows, -(-blocks * bits // 8)), np.uint8)
    run = getattr(_pybind_state, f"quantize_matmul_{bits}bits")
    flat, sizes = (scale.reshape(-1), zero_point.reshape(-1)), (size, rows, columns)
    run(packed, np.ascontiguousarray(x.T), *flat, *sizes, case.symmetric)
    codes, points = packed.reshape(rows, -1), zero_point
    if bits == 4:
        codes, points = _halves(codes, blocks * size), _halves(points, blocks)
    if case.symmetric:  # the operator's zero point if it is given none
        points = np.full((rows, blocks), 1 << (bits - 1), np.uint8)
    values = _product(packed, scale, zero_point, case, bits, columns)
    return Quantized(codes[:, :columns], _nonzero(scale), points, values)


@cache
def _matmul(bits, block_size, columns, rows, symmetric):
    from onnx import TensorProto, helper

    names = {"a": TensorProto.FLOAT, "b": TensorProto.UINT8, "scales": TensorProto.FLOAT}
    names |= {} if symmetric else {"zero_points": TensorProto.UINT8}
    sizes = {"K": columns, "N": rows, "bits": bits, "block_size": block_size}
    node = helper.make_node("MatMulNBits", list(names), ["y"], domain="com.microsoft", **sizes)
    return _inference([node], names, {"y": TensorProto.FLOAT}, ("", "com.microsoft"))


def _product(packed, scale, zero_point, case, bits, columns):
    session = _matmul(bits, case.block_size, columns, len(scale), case.symmetric)
    tensors = {"a": np.eye(columns, dtype=np.float32), "b": packed, "scales": scale}
    return session.run(None, tensors | ({} if case.symmetric else {"zero_points": zero_point}))[0].T


def qdq(x, case):
    """quantize_qdq_matmul_4bits: codes of DequantizeLinear by blocks."""
    from onnxruntime.capi._pybind_state import quantize_qdq_matmul_4bits

    (rows, columns), size = x.shape, case.block_size
    blocks = -(-columns // size)
    packed = np.zeros(-(-columns * rows // 2), np.uint8)
    scale = np.zeros((blocks, rows), np.float32)
    zero_point = np.zeros(-(-blocks * rows // 2), np.uint8)
    quantize_qdq_matmul_4bits(
        packed, np.ascontiguousarray(x.T), scale.reshape(-1), zero_point, size, rows, columns, case.symmetric
    )
    codes = _halves(packed, columns * rows, case.symmetric).reshape(columns, rows).T
    points = _halves(zero_point, blocks * rows, case.symmetric).reshape(blocks, rows).T
    values = _run("DequantizeLinear", case, codes, np.ascontiguousarray(scale.T), np.ascontiguousarray(points))
    return Quantized(codes, _nonzero(scale.T), points, values)


UNDEFINED = (
    "NaN is left out of the range and becomes code 0; an infinity or a range wider than float32 gives scale inf and "
    "code 0 everywhere. A block of zeros has scale 0. Where 1 / scale overflows, "
)
LIBRARIES = ("onnx", "onnxruntime")
SYSTEMS = (
    System(
        "onnx",
        LIBRARIES,
        operators,
        grid(FORMATS) + grid(WIDE, ("array",)),
        neighbour="torch-pt2e",
        given=True,
        undefined="QuantizeLinear divides x of float16 in the type of the scale by default, as ONNX Runtime does from "
        "1.32 and opset 23 on; before, it divided in float32, as this row does. QuantizeLinear leaves NaN open; ONNX "
        "Runtime makes it the lowest code. DynamicQuantizeLinear of "
        "ONNX Runtime leaves NaN out of the range; an infinity or a range wider than float32 gives scale inf. All "
        "zero has three scales: 0 in the standard's function, 1 / 255 in its reference, 1 in ONNX Runtime and fastq.",
    ),
    System(
        "onnx",
        LIBRARIES,
        dynamic,
        (Case("uint8", option="dynamic"),),
        neighbour="torch-pt2e",
        except_for=("nearly overflowing", "subnormal scale", "subnormal"),
    ),
    System(
        "onnxruntime",
        LIBRARIES,
        tools,
        (
            *grid(FORMATS),
            *grid(WIDE, ("array",)),
            *grid(FORMATS + WIDE, ("array",), changes=(("reduce_range", True),)),
        ),
        undefined="NaN in the data fails an assertion; an infinity gives scale inf and values that are NaN.",
    ),
    System(
        "matmul-nbits",
        LIBRARIES,
        nbits,
        (
            *grid(("uint4", "uint8"), ("block",)),
            Case("uint8", True, "block", 16),
            Case("uint4", per="block", block_size=32, ragged=True),
        ),
        neighbour="qdq-nbits",
        except_for=("subnormal",),
        undefined=UNDEFINED + "0 becomes code 0.",
    ),
    System(
        "qdq-nbits",
        LIBRARIES,
        qdq,
        tuple(Case(dtype, dtype == "int4", "block", size) for dtype in ("uint4", "int4") for size in (32, 128)),
        neighbour="matmul-nbits",
        except_for=("subnormal",),
        undefined=UNDEFINED + "every code is the lowest one.",
    ),
)
