"""onnxruntime: inputs and outputs bound once, so that a run neither allocates nor copies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization.quant_utils import pack_bytes_to_4bit

from .. import data
from ..cases import Case
from ..data import SCALE, ZERO_POINT, Array
from ..verify import EXACT
from . import Runner, own_threads

VERSION = 21, 10  # of the operators and of the model


def parameters() -> list[Any]:
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [SCALE])
    return [scale, helper.make_tensor("zero_point", TensorProto.INT8, [], [ZERO_POINT])]


class Bound(NamedTuple):
    """An array that is bound, as input or output.

    Codes of fewer than 8 bits lie several a byte, and have a type and a shape that NumPy has not.
    """

    array: Array
    element: int
    shape: tuple[int, ...]


def plain(array: Array) -> Bound:
    return Bound(array, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def model(
    operator: str,
    x: Bound,
    outputs: dict[str, Bound],
    constants: list[Any],
    attributes: dict[str, int],
    version: tuple[int, int] = VERSION,
) -> bytes:
    def info(name: str, given: Bound) -> Any:
        return helper.make_tensor_value_info(name, given.element, given.shape)

    node = helper.make_node(operator, ["x", *(c.name for c in constants)], list(outputs), **attributes)
    results = [info(name, output) for name, output in outputs.items()]
    graph = helper.make_graph([node], operator, [info("x", x)], results, constants)
    operators, ir_version = version
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", operators)], ir_version=ir_version)
    return bytes(made.SerializeToString())


def bound(
    operator: str,
    x: Bound,
    outputs: dict[str, Bound],
    constants: list[Any],
    version: tuple[int, int] = VERSION,
    **attributes: int,
) -> Runner:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = own_threads()
    content = model(operator, x, outputs, constants, attributes, version)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.element, x.shape, x.array.ctypes.data)
    for name, output in outputs.items():
        binding.bind_output(name, "cpu", 0, output.element, output.shape, output.array.ctypes.data)
    results = {name: output.array for name, output in outputs.items()}
    return Runner(partial(session.run_with_iobinding, binding), lambda: results, keep=(x, outputs))


def quantize_linear(case: Case) -> Runner:
    x, codes = data.x(case, aligned=True), data.out(case, "codes", aligned=True)
    return bound("QuantizeLinear", plain(x), {"codes": plain(codes)}, parameters())


def quantize_to_float8(case: Case) -> Runner:
    code, x, codes = case.work.code, data.x(case, aligned=True), data.out(case, "codes", aligned=True)
    element = {"float8_e4m3fn": TensorProto.FLOAT8E4M3FN, "float8_e5m2": TensorProto.FLOAT8E5M2}[code]
    scale = helper.make_tensor("scale", TensorProto.FLOAT, [], [data.scale(code)])
    zero_point = helper.make_tensor("zero_point", element, [], b"\0", raw=True)
    made = {"codes": Bound(codes, element, x.shape)}
    return bound("QuantizeLinear", plain(x), made, [scale, zero_point], saturate=1)._replace(within=EXACT)


def dequantize_linear(case: Case) -> Runner:
    codes, values = plain(data.codes(case, aligned=True)), data.out(case, "values", aligned=True)
    if case.work.symmetric:
        return scaled(codes, values, case)
    return bound("DequantizeLinear", codes, {"values": plain(values)}, parameters())


def dequantize(case: Case) -> Runner:
    codes = Bound(data.packed(case, aligned=True), TensorProto.INT4, case.shape)
    return scaled(codes, data.out(case, "values", aligned=True), case)


def scaled(codes: Bound, values: Array, case: Case) -> Runner:
    """Decode by the scales of rows, columns or blocks, without zero points."""
    p = data.qparams(case)
    constants = [numpy_helper.from_array(p.scale, "scale")]
    return bound("DequantizeLinear", codes, {"values": plain(values)}, constants, axis=p.axis, block_size=p.block_size)


def quantize(case: Case) -> Runner:
    results = {
        "codes": data.out(case, "codes", aligned=True),
        "scale": np.zeros((), np.float32),
        "zero_point": np.zeros((), np.uint8),
    }
    outputs = {name: plain(array) for name, array in results.items()}
    return bound("DynamicQuantizeLinear", plain(data.x(case, aligned=True)), outputs, [])


def pack(case: Case) -> Runner:
    """Pack with the Python loop of the quantization tool."""
    call = partial(pack_bytes_to_4bit, data.codes(case).tobytes())
    return Runner(call, lambda: {"codes": np.frombuffer(call(), np.uint8)}, EXACT)


BUILDERS: dict[tuple[str, str], Callable[[Case], Runner]] = {
    ("quantize_linear", "QuantizeLinear"): quantize_linear,
    ("quantize_linear", "QuantizeLinear to float8"): quantize_to_float8,
    ("dequantize_linear", "DequantizeLinear"): dequantize_linear,
    ("dequantize", "DequantizeLinear"): dequantize,
    ("quantize", "DynamicQuantizeLinear"): quantize,
    ("pack", "pack_bytes_to_4bit"): pack,
}
