"""NNCF, which compresses the weights of a model of OpenVINO and keeps scales in float16."""

import numpy as np
from oracle import Case, Quantized, System

MODES = {
    ("int8", True): "INT8_SYM",
    ("uint8", False): "INT8_ASYM",
    ("int4", True): "INT4_SYM",
    ("uint4", False): "INT4_ASYM",
    ("int3", True): "INT3_SYM",
    ("int2", True): "INT2_SYM",
}


def compressed_constants(weights, mode, group):
    """Return what `compress_weights` makes of a constant of OpenVINO: codes, scales, and zero points if there are any.

    OpenVINO itself converts codes of fewer than 8 bits.
    """
    import logging

    import nncf
    import openvino
    from openvino import opset13

    logging.getLogger("nncf").setLevel(logging.ERROR)
    features = opset13.parameter([1, weights.get_output_shape(0)[1]], np.float32)
    whole = weights if weights.get_element_type() == openvino.Type.f32 else opset13.convert(weights, np.float32)
    layer = opset13.matmul(features, whole, False, True)
    grouped = {} if group == 0 else {"group_size": group, "ratio": 1.0, "all_layers": True}
    model = nncf.compress_weights(
        openvino.Model([layer], [features]), mode=getattr(nncf.CompressWeightsMode, mode), **grouped
    )
    constants = [node for node in model.get_ordered_ops() if node.get_type_name() == "Constant"]
    floats = [node for node in constants if node.get_element_type().is_real()]
    integers = [node for node in constants if node not in floats and node.get_element_type() != openvino.Type.i64]
    (scale,) = floats
    codes, *zero_point = sorted(integers, key=lambda node: "zero_point" in node.get_friendly_name())
    return [_as_array(node) for node in (codes, scale, *zero_point)]


def _as_array(node):
    import openvino
    from openvino import opset13

    kind = node.get_element_type()
    if kind.size == 1 and kind.bitwidth < 8:
        as_bytes = openvino.Type.i8 if kind.is_signed() else openvino.Type.u8
        model = openvino.Model([opset13.convert(node, as_bytes)], [])
        return next(iter(openvino.compile_model(model, "CPU")().values()))
    return node.data


def nncf(x, case):
    """compress_weights."""
    from openvino import opset13

    weights = opset13.constant(x)
    codes, scale, *zero_point = compressed_constants(weights, MODES[case.dtype, case.symmetric], case.block_size)
    shape = (x.shape[0], -1) if case.block_size else x.shape[:1]
    codes = codes.reshape(x.shape).astype(np.int16)
    point = None
    if zero_point and case.symmetric:  # those of 3 and 2 bits are stored from 0 on
        codes = codes - zero_point[0]
    elif zero_point:
        point = zero_point[0].reshape(shape)
    return Quantized(codes, scale.reshape(shape), point)


SYSTEMS = (
    System(
        "nncf",
        ("nncf", "openvino"),
        nncf,
        (
            Case("int8", True, "channel"),
            Case("uint8", False, "channel"),
            *(
                Case(dtype, symmetric, "block", group)
                for dtype, symmetric in MODES
                if "8" not in dtype
                for group in (64, 128)
            ),
        ),
        except_for=("large", "nearly overflowing"),
        undefined="A scale beyond float16 is stored as infinity. NaN in the data makes the scale NaN. Its modes for "
        "asymmetric codes are those of 8 and 4 bits, unsigned; symmetric codes of 3 and 2 bits are stored as unsigned "
        "ones, 4 or 2 larger. Its MXFP4 and MXFP8_E4M3 have the exponent ceil(log2(max(m, 2**-23) / L)), m the largest "
        "magnitude of a block and L the largest element, with a logarithm of OpenVINO that is above that of 2**-15 and "
        "2**-13 for these, so they are no row; nor is its NVFP4, whose codes come from block scales before these are "
        "rounded. Of 1,048,576 normal numbers 26 codes of MXFP4 and 4,147 of MXFP8_E4M3, which are rounded to float16 "
        "first, differ from those of torchao-rceil, and 50,214 of NVFP4 from those of onnx.",
    ),
)
