"""Requantization: the arithmetic from sums of products to codes, one table."""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

from fastq.system.arguments import as_choice


class Requantization(NamedTuple):
    """The arithmetic by which one system turns an int32 accumulator into a code."""

    name: str  # name that callers pass
    system: str  # the system and its functions
    # "twice_away", "twice_up": a product by a 31 bit integer, rounded half up to 32 bits, which are shifted and rounded
    # again, half away from zero or half up; "once": the shifted product, rounded half up; "float": a product in
    # float32, rounded half to even
    arithmetic: str
    below: float  # upper limit of multipliers: below it, their shift is at most 30, or they are finite in float32
    float_bias: bool = False  # whether a bias may be a float, which is added in float32


_SHIFTED = 2.0**30 - 0.25  # from here on twice a multiplier rounds to 2**31, which is no 31 bit integer
_FLOAT = 2.0**128 - 2.0**103  # halfway from the largest float32 to 2**128: from here on numbers round to infinity

_ROWS = (
    Requantization(
        "tflite", "TensorFlow Lite: MultiplyByQuantizedMultiplier, as in its Quantize of int32", "twice_away", _SHIFTED
    ),
    Requantization(
        "tflite-single",
        "TensorFlow Lite: its reference products of matrices, all of it built with TFLITE_SINGLE_ROUNDING; ruy on ARM",
        "once",
        _SHIFTED,
    ),
    Requantization(
        "ruy-x86", "ruy on x86: products of matrices of TensorFlow Lite without XNNPACK", "twice_up", _SHIFTED
    ),
    Requantization("xnnpack", "XNNPACK, to which TensorFlow Lite delegates by default", "float", _FLOAT),
    Requantization("onnxruntime", "ONNX Runtime: QLinearMatMul, QLinearConv", "float", _FLOAT),
    Requantization("torch", "PyTorch: quantized linear of FBGEMM and QNNPACK", "float", _FLOAT, float_bias=True),
)

REQUANTIZATIONS = MappingProxyType({row.name: row for row in _ROWS})


def as_requantization(name: object) -> Requantization:
    """Return the row with a name."""
    return REQUANTIZATIONS[as_choice(name, "convention", tuple(REQUANTIZATIONS))]
