"""onnxruntime: inputs and outputs bound once, so that a run neither allocates nor copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.quantization.quant_utils import pack_bytes_to_4bit

from .. import data
from ..cases import Case
from ..data import SCALE, ZERO_POINT, Array
from ..verify import EXACT
from . import Runner, own_threads

OPSET, IR_VERSION = 21, 10


def parameters() -> list[Any]:
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [SCALE])
    return [scale, helper.make_tensor("zero_point", TensorProto.INT8, [], [ZERO_POINT])]


def model(operator: str, x: Array, outputs: dict[str, Array], constants: list[Any]) -> bytes:
    def info(name: str, array: Array) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    node = helper.make_node(operator, ["x", *(c.name for c in constants)], list(outputs))
    graph = helper.make_graph([node], operator, [info("x", x)], [info(*item) for item in outputs.items()], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    return bytes(made.SerializeToString())


def bound(operator: str, x: Array, outputs: dict[str, Array], constants: list[Any]) -> Runner:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = own_threads()
    content = model(operator, x, outputs, constants)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.dtype.type, x.shape, x.ctypes.data)
    for name, array in outputs.items():
        binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    return Runner(partial(session.run_with_iobinding, binding), lambda: outputs, keep=(x, outputs))


def quantize_linear(case: Case) -> Runner:
    x, codes = data.x(case, aligned=True), data.out(case, "codes", aligned=True)
    return bound("QuantizeLinear", x, {"codes": codes}, parameters())


def dequantize_linear(case: Case) -> Runner:
    codes, values = data.codes(case, aligned=True), data.out(case, "values", aligned=True)
    return bound("DequantizeLinear", codes, {"values": values}, parameters())


def quantize(case: Case) -> Runner:
    outputs = {
        "codes": data.out(case, "codes", aligned=True),
        "scale": np.zeros((), np.float32),
        "zero_point": np.zeros((), np.uint8),
    }
    return bound("DynamicQuantizeLinear", data.x(case, aligned=True), outputs, [])


def pack(case: Case) -> Runner:
    """Pack with the Python loop of the quantization tool."""
    call = partial(pack_bytes_to_4bit, data.codes(case).tobytes())
    return Runner(call, lambda: {"codes": np.frombuffer(call(), np.uint8)}, EXACT)


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {
    ("quantize_linear", "QuantizeLinear"): quantize_linear,
    ("dequantize_linear", "DequantizeLinear"): dequantize_linear,
    ("quantize", "DynamicQuantizeLinear"): quantize,
    ("pack", "pack_bytes_to_4bit"): pack,
}
