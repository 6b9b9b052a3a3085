"""LiteRT: Quantize of int32, whose input is set once and whose output is read in place."""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter

from .. import data
from ..calls import Operands
from ..verify import EXACT
from . import Runner, own_threads


def tensor(name: str, o: Operands, kind: str, scale: float, zero_point: int) -> Any:
    made, made.quantization = schema.TensorT(), schema.QuantizationParametersT()
    made.name, made.shape, made.type = name, list(o.shape), getattr(schema.TensorType, kind)
    made.quantization.scale, made.quantization.zeroPoint = [scale], [zero_point]
    return made


def model(o: Operands) -> bytes:
    """Build a model of one operator, which multiplies by the first scale over the second one."""
    code, operator, graph, whole = schema.OperatorCodeT(), schema.OperatorT(), schema.SubGraphT(), schema.ModelT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.QUANTIZE
    operator.opcodeIndex, operator.inputs, operator.outputs, code.version = 0, [0], [1], 1
    operator.builtinOptionsType = schema.BuiltinOptions.QuantizeOptions
    operator.builtinOptions = schema.QuantizeOptionsT()
    graph.tensors = [
        tensor("x", o, "INT32", float(data.MULTIPLIER), 0),
        tensor("y", o, o.code.upper(), 1.0, data.ZERO_POINT),
    ]
    graph.inputs, graph.outputs, graph.operators = [0], [1], [operator]
    whole.version, whole.operatorCodes, whole.subgraphs, whole.buffers = 3, [code], [graph], [schema.BufferT()]
    builder = flatbuffers.Builder(1024)
    builder.Finish(whole.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def requantize(o: Operands) -> Runner:
    interpreter = Interpreter(model_content=model(o), num_threads=own_threads())
    interpreter.allocate_tensors()
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.set_tensor(given["index"], o.first)

    def results() -> dict[str, Any]:
        interpreter.invoke()
        return {"codes": np.asarray(interpreter.get_tensor(made["index"]))}

    return Runner(interpreter.invoke, results, EXACT, keep=interpreter)
