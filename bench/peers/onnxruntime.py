"""The work as one node of ONNX Runtime, inputs and outputs bound once, so that a run neither allocates nor copies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.quantization.quant_utils import pack_bytes_to_4bit

from ..calls import Array, Operands, dtype_of, empty
from ..verify import EXACT
from . import Runner, own_threads

VERSION = 25, 13  # of the operators, for codes of 2 bits and scales of another dtype than values, and of the model


class Bound(NamedTuple):
    """An array that is bound, as input or output.

    Codes of fewer than 8 bits lie several a byte, and have a type and a shape that NumPy has not.
    """

    array: Array
    element: int
    shape: tuple[int, ...]


def plain(array: Array) -> Bound:
    return Bound(array, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def element(name: str) -> int:
    """Return ONNX's number of a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(dtype_of(name)))


def model(
    operator: str, x: Bound, outputs: dict[str, Bound], constants: list[Any], attributes: dict[str, int]
) -> bytes:
    def info(name: str, given: Bound) -> Any:
        return helper.make_tensor_value_info(name, given.element, given.shape)

    node = helper.make_node(operator, ["x", *(c.name for c in constants)], list(outputs), **attributes)
    results = [info(name, output) for name, output in outputs.items()]
    graph = helper.make_graph([node], operator, [info("x", x)], results, constants)
    operators, ir_version = VERSION
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", operators)], ir_version=ir_version)
    return bytes(made.SerializeToString())


def bound(operator: str, x: Bound, outputs: dict[str, Bound], constants: list[Any], **attributes: int) -> Runner:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = own_threads()
    content = model(operator, x, outputs, constants, attributes)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, x.element, x.shape, x.array.ctypes.data)
    for name, output in outputs.items():
        binding.bind_output(name, "cpu", 0, output.element, output.shape, output.array.ctypes.data)
    results = {name: output.array for name, output in outputs.items()}
    return Runner(partial(session.run_with_iobinding, binding), lambda: results, keep=(x, outputs))


def shape_and_attributes(o: Operands) -> tuple[tuple[int, ...], dict[str, int]] | None:
    """Return the shape in which adjacent axes with parameters are one, and the attributes; None if they are apart."""
    if o.block_size:
        return o.shape, {"axis": o.kept[0], "block_size": o.block_size}
    if not o.kept:
        return o.shape, {}
    first, last = min(o.kept), max(o.kept)
    if len(o.kept) != last - first + 1:
        return None
    return (*o.shape[:first], prod(o.shape[first : last + 1]), *o.shape[last + 1 :]), {"axis": first}


def constants(o: Operands) -> Iterator[Any]:
    """Yield scales and zero points, but those in the middle; float codes have no zero points."""
    p = o.qparams
    assert p is not None
    beside = p.scale.shape if o.block_size else (p.scale.size,) if p.scale.ndim else ()
    yield numpy_helper.from_array(p.scale.astype(np.float32).reshape(beside), "scale")
    if not (p.dtype.element or o.symmetric):
        yield numpy_helper.from_array(p.zero_point.reshape(beside).astype(dtype_of(o.code)), "zero_point")


def _dynamic(o: Operands) -> Runner | None:
    if (o.code, o.axis, o.dtype) != ("uint8", None, "float32"):
        return None
    results = {
        "codes": empty(o.shape, np.uint8, aligned=True),
        "scale": np.zeros((), np.float32),
        "zero_point": np.zeros((), np.uint8),
    }
    return bound("DynamicQuantizeLinear", plain(o.first), {name: plain(each) for name, each in results.items()}, [])


def prepared(o: Operands) -> Runner | None:
    """Prepare the work; None where an operator has no such parameters, or rows of codes end within a byte."""
    qtype, view = o.qtype, shape_and_attributes(o)
    if o.qparams is None:
        return _dynamic(o)
    whole_bytes = not qtype.packed or (o.function != "dequantize_linear" and o.shape[-1] * qtype.bits % 8 == 0)
    if view is None or not whole_bytes or o.qparams.scale.dtype != np.float32:
        return None
    shape, attributes = view
    given = list(constants(o))
    if o.made == "values":
        x, y = Bound(o.first, element(o.code), shape), Bound(o.result(), element(o.dtype), shape)
        return bound("DequantizeLinear", x, {"values": y}, given, output_dtype=y.element, **attributes)
    stored = o.shape[-1] * qtype.bits // 8 if qtype.packed else o.shape[-1]
    codes = empty((*o.shape[:-1], stored), np.uint8 if qtype.packed else qtype.storage, aligned=True)
    x, y = Bound(o.first, element(o.dtype), shape), Bound(codes, element(o.code), shape)
    return bound("QuantizeLinear", x, {"codes": y}, given, output_dtype=y.element, **attributes)


def pack(o: Operands) -> Runner:
    """Pack with the Python loop of the quantization tool."""
    call = partial(pack_bytes_to_4bit, o.first.tobytes())
    return Runner(call, lambda: {"codes": np.frombuffer(call(), np.uint8)}, EXACT)
