"""TensorFlow Lite: its quantizer's parameters and weights, and its reference kernels, by models of one operator."""

import numpy as np
from oracle import Case, Quantized, System

INT8, INT32, FLOAT32 = (np.dtype(name).num for name in ("int8", "int32", "float32"))  # as its converter is told types


def tensor_of(schema, name, shape, kind, buffer=0, scale=None, zero_point=None):
    tensor = schema.TensorT()
    tensor.name, tensor.shape, tensor.type, tensor.buffer = name, list(shape), getattr(schema.TensorType, kind), buffer
    if scale is not None:
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale, tensor.quantization.zeroPoint = [float(scale)], [int(zero_point)]
    return tensor


def model_of(schema, operator, tensors, inputs, buffers=(), options=None):
    """Return the bytes of a model of one operator, whose last tensor is the output."""
    import flatbuffers

    code, op, graph, model = schema.OperatorCodeT(), schema.OperatorT(), schema.SubGraphT(), schema.ModelT()
    code.builtinCode = code.deprecatedBuiltinCode = getattr(schema.BuiltinOperator, operator)
    code.version = 1
    op.opcodeIndex, op.inputs, op.outputs = 0, inputs, [len(tensors) - 1]
    if options is not None:
        op.builtinOptionsType, op.builtinOptions = (
            getattr(schema.BuiltinOptions, options),
            getattr(schema, f"{options}T")(),
        )
    graph.tensors, graph.inputs, graph.outputs, graph.operators = tensors, [0], op.outputs, [op]
    model.version, model.operatorCodes, model.subgraphs, model.buffers = 3, [code], [graph], [schema.BufferT()]
    for data in buffers:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(data.tobytes(), np.uint8)
        model.buffers.append(buffer)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _converted(weights, activation, per_tensor):
    """Return the model that post-training quantization makes of a product of `activation` and `weights`."""
    from ai_edge_litert import _pywrap_tensorflow_lite_calibration_wrapper as calibration
    from ai_edge_litert import schema_py_generated as schema

    (rows, columns), kind = weights.shape, "FLOAT32"
    tensors = [
        tensor_of(schema, "x", (1, columns), kind),
        tensor_of(schema, "w", weights.shape, kind, 1),
        tensor_of(schema, "y", (1, rows), kind),
    ]
    model = model_of(schema, "FULLY_CONNECTED", tensors, [0, 1, -1], [weights], "FullyConnectedOptions")
    feed = [activation.reshape(1, -1)]
    wrapper = calibration.CalibrationWrapper(model, [], [])  # reads the model where it lies: keep it
    wrapper.Prepare()
    wrapper.FeedTensor(feed)
    made = wrapper.QuantizeModel(FLOAT32, FLOAT32, False, INT8, INT32, per_tensor, per_tensor)
    return schema.ModelT.InitFromObj(schema.Model.GetRootAs(bytearray(made), 0))


def _named(model, name):
    return next(tensor for tensor in model.subgraphs[0].tensors if tensor.name == name.encode())


def interpreted(model, x, resolver):
    """Return what a model, whose kernels a resolver of this name finds, makes of an array."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    interpreter = Interpreter(model_content=model, experimental_op_resolver_type=getattr(OpResolverType, resolver))
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], x)
    interpreter.invoke()
    return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])


def _run(operator, x, made, scale, zero_point):
    """Return what the reference kernel of Quantize or Dequantize makes of an array."""
    from ai_edge_litert import schema_py_generated as schema

    parameters = {"scale": scale, "zero_point": zero_point}
    tensors = [
        tensor_of(schema, name, x.shape, dtype.name.upper(), **({} if dtype == np.float32 else parameters))
        for name, dtype in (("x", x.dtype), ("y", np.dtype(made)))
    ]
    return interpreted(model_of(schema, operator, tensors, [0]), x, "BUILTIN_REF")


def activations(x, case):
    """Parameters as calibrated for the input of an operator, codes from the Quantize operator."""
    ends = np.zeros(8, np.float32)
    ends[:2] = x.min(), x.max()
    parameters = _named(_converted(np.ones((1, 8), np.float32), ends, False), "x_int8").quantization
    scale, zero_point = parameters.scale[0], parameters.zeroPoint[0]
    codes = _run("QUANTIZE", x, case.dtype, scale, zero_point)
    return Quantized(codes, scale, zero_point, _run("DEQUANTIZE", codes, "float32", scale, zero_point))


def weights(x, case):
    """The weights of a fully connected layer."""
    per_tensor = case.per == "array"
    activation = np.zeros(x.shape[1], np.float32)
    activation[0] = 1e-3  # small, so that the output is finite
    model = _converted(x, activation, per_tensor)
    tensor = _named(model, "w")
    codes = np.asarray(model.buffers[tensor.buffer].data).view(np.int8).reshape(x.shape)
    scale, zero_point = np.asarray(tensor.quantization.scale), np.asarray(tensor.quantization.zeroPoint)
    values = [
        _run("DEQUANTIZE", row[None], "float32", s, 0)
        for row, s in zip(codes, np.broadcast_to(scale, len(x)), strict=True)
    ]
    values = np.concatenate(values)
    if not per_tensor:
        return Quantized(codes, scale, zero_point, values)
    # per tensor it rounds by adding 0.5 in float32, which takes this one quotient to 1
    below_half = np.abs(x * (np.float32(127) / np.abs(x).max())) == np.nextafter(np.float32(0.5), np.float32(0))
    codes, values = (np.where(below_half, np.nan, a) for a in (codes, values))
    return Quantized(codes, scale[0], zero_point[0], values)


TINY = ("zeros", "very small", "subnormal scale", "subnormal")
UNDEFINED = (
    "Weights of ai-edge-quantizer are rounded half to even: those are the bytes of onnx. "
    "The reference kernel of Quantize makes the lowest code of NaN, infinities and values beyond int32; the optimized "
    "kernel and the XNNPACK delegate multiply by 1 / scale and round half to even: codes that differ at ties. Ranges "
    "below 1e-30 get parameters from the calibrator's initial value, the smallest normal number. Weights per tensor "
    "are rounded by adding 0.5 in float32, so that a quotient of 0.49999997 becomes 1; not so per channel and here."
)

SYSTEMS = (
    System("tflite", ("ai-edge-litert",), activations, (Case("int8"),), except_for=TINY, undefined=UNDEFINED),
    System(
        "tflite",
        ("ai-edge-litert",),
        weights,
        (Case("int8", True, "channel"), Case("int8", True)),
        neighbour="onnx",
        except_for=TINY,
        undefined=UNDEFINED,
    ),
)
