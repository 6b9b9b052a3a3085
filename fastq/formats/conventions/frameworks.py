"""Conventions of frameworks that train and run models."""

from __future__ import annotations

from dataclasses import replace

from fastq.formats.conventions.convention import Convention

EPSILON = 2.0**-23

TORCH_FAKE_QUANTIZE = Convention(
    "torch-fake-quantize",
    "PyTorch: fake_quantize_per_tensor_affine, fake_quantize_per_channel_affine; parameters of MinMaxObserver",
    scale_floor=EPSILON,
    degenerate="floor",
    zero_point_rounded="quotient",
    quotient="reciprocal",
    narrow=(),
    clamp="format",
)

ROWS = (
    Convention(
        "onnx",
        "ONNX: QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear",
        scale_floor=0.0,
        tiny_scale="reaching",
    ),
    Convention(
        "onnxruntime",
        "ONNX Runtime: its Python tools, quantize_data, compute_scale_zp and compute_scale_zp_blocked",
        parameter_type="float64",
        degenerate_zero_point="zero",
        narrow=("int8", "int16"),
        reduced=(("int8", -64, 64), ("int16", -16384, 16384)),
        clamp="format",
        variants=(
            ("blocks", "span_type", "compute"),
            ("blocks", "scale_rounded", True),
            ("blocks", "degenerate_zero_point", "scheme"),
        ),
    ),
    replace(
        TORCH_FAKE_QUANTIZE,
        name="torch",
        system="PyTorch: quantize_per_tensor, quantize_per_channel; MinMaxObserver, PerChannelMinMaxObserver",
        zero_point_inside=True,
        variants=(("array", "fused", True),),
    ),
    replace(
        TORCH_FAKE_QUANTIZE,
        name="torch-pt2e",
        system="PyTorch export: quantized_decomposed.quantize_per_tensor, _per_channel and _per_channel_group",
        stored_type="float64",
        quotient="reciprocal_of_double",
        variants=(("blocks", "zero_point_inside", True),),
    ),
    TORCH_FAKE_QUANTIZE,
    Convention(
        "tflite",
        "TensorFlow Lite: the reference Quantize and its converter's activations; symmetric: its converter's weights",
        stored_type="float64",
        degenerate_zero_point="lowest",
        zero_point_rounding="half_away",
        rounding="half_away",
        variants=(("symmetric", "quotient", "reciprocal_of_double"), ("symmetric", "parameter_type", "float64")),
    ),
)
