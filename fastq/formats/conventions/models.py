"""Conventions of tools that quantize weights of models."""

from __future__ import annotations

from dataclasses import replace

from fastq.formats.conventions.convention import Convention
from fastq.formats.conventions.frameworks import EPSILON, TORCH_FAKE_QUANTIZE

_TORCHAO = replace(
    TORCH_FAKE_QUANTIZE,
    name="torchao",
    system="torchao: choose_qparams_affine, quantize_affine",
    operation_type="input",
    scale_floor=None,
    clamp="range",
)

_INTX = tuple(f"int{bits}" for bits in range(8, 0, -1))

_NBITS = Convention(
    "matmul-nbits",
    "ONNX Runtime: weights of MatMulNBits, quantize_matmul_4bits and quantize_matmul_8bits",
    formats=("uint4", "uint8"),
    scale_floor=0.0,
    zero_point_rounding="half_away",
    zero_point_inside=True,
    degenerate_zero_point="lowest",
    quotient="reciprocal",
    rounding="half_away",
    symmetric_extreme="signed",
    narrow=(),
    variants=(("symmetric", "divisor", "codes"),),
)

ROWS = (
    _TORCHAO,
    replace(
        _TORCHAO,
        name="torchao-int8",
        system="torchao: Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig; weights",
        formats=("int8",),
        schemes=("symmetric",),
        operation_type="compute",
        stored_type="input",
        scale_floor=EPSILON,
    ),
    replace(_TORCHAO, name="torchao-intx", system="torchao: IntxWeightOnlyConfig", formats=_INTX),
    Convention(
        "torchao-float8",
        "torchao: Float8WeightOnlyConfig, Float8DynamicActivationFloat8WeightConfig; weights",
        formats=("float8_e4m3fn", "float8_e5m2"),
        schemes=("symmetric",),
        stored_type="input",
        scale_floor=0.0,
    ),
    Convention(
        "compressed-tensors",
        "compressed-tensors (vLLM): calculate_qparams, quantize",
        formats=("int8", "int4", "int2", "float8_e4m3fn"),
        operation_type="input",
        scale_floor=0.0,
        degenerate="epsilon",
        degenerate_zero_point="end",
        zero_point_inside=True,
        searched_signed=("int4", "int2"),
        narrow=(),
    ),
    _NBITS,
    replace(
        _NBITS,
        name="qdq-nbits",
        system="ONNX Runtime: weights of 4 bit QDQ, quantize_qdq_matmul_4bits",
        formats=("uint4", "int4"),
        zero_point_inside=False,
    ),
    Convention(
        "quanto",
        "optimum-quanto: quantize_weight of 8 bits",
        formats=("int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"),
        schemes=("symmetric",),
        operation_type="input",
        scale_floor=0.0,
        clamp="format",
    ),
    Convention(
        "quanto-bits",
        "optimum-quanto: quantize_weight of 4 and 2 bits, whose shift is the offset with the other sign",
        formats=("uint4", "uint2"),
        schemes=("asymmetric",),
        includes_zero=False,
        operation_type="input",
        value_type="result",
        scale_floor=0.0,
        zero_point="offset",
    ),
    Convention(
        "hqq",
        "HQQ: Quantizer.quantize, optimize=False, round_zero=False",
        formats=("uint8", "uint6", "uint5", "uint4", "uint3", "uint2", "uint1"),
        schemes=("asymmetric",),
        includes_zero=False,
        stored_type="float64",
        scale_from="inverse",
        narrow_range=1e-4,
        scale_floor=5e-5,
        zero_point="float",
        zero_point_inside=True,
        quotient="reciprocal_of_double",
    ),
    Convention(
        "mlx",
        "MLX: quantize and dequantize, mode affine",
        formats=tuple(f"uint{bits}" for bits in range(1, 9)),
        schemes=("asymmetric",),
        includes_zero=False,
        stored_type="input",
        codes_by="unrounded",
        value_type="result",
        scale_sign="farther_end",
        scale_rounding="whole_steps",
        scale_floor=1e-7,
        degenerate="floor",
        zero_point="offset",
        variants=(("uint1", "scale_sign", "positive"), ("uint1", "scale_rounding", "nearest")),
    ),
    Convention(
        "nncf",
        "NNCF: compress_weights of models of OpenVINO, INT8, INT4, INT3 and INT2",
        formats=("uint8", "int8", "uint4", "int4", "int3", "int2"),
        stored_type="float16",
        codes_by="unrounded",
        scale_floor=EPSILON,
        degenerate="floor",
        zero_point_rounded="quotient",
        zero_point_inside=True,
        symmetric_extreme="signed_low",
        narrow=(),
        variants=(("symmetric", "divisor", "codes"),),
    ),
)
