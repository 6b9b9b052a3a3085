"""The options of operations, by name and with defaults; numbers come first."""

from __future__ import annotations

from typing import Any, NamedTuple

from fastq.formats.conventions.convention import Convention
from fastq.formats.granularity import Axis
from fastq.formats.range_methods import MSERange


class RangeOptions(NamedTuple):
    """Options of operations that compute parameters from ranges; the first ones are numbers."""

    axis: Axis = None
    block_size: int = 0
    symmetric: bool = False
    saturate: bool = True
    bits: int | None = None
    dtype: object = None
    convention: str | Convention = "onnx"
    nan: str = "raise"
    range: str | MSERange = "minmax"
    rounding: str | None = None


class QuantizeOptions(NamedTuple):
    """Options of operations on values with QParams; `key` is the part of these on which a plan may depend."""

    saturate: bool = True
    nan: str = "raise"
    key: Any = None
    rounding: str | None = None


class LinearOptions(NamedTuple):
    """Options of `fastq.quantize_linear`."""

    axis: Axis = None
    block_size: int = 0
    saturate: bool = True
    dtype: object = None
    convention: str | Convention = "onnx"
    nan: str = "raise"
    rounding: str | None = None


class RequantizeOptions(NamedTuple):
    """Options of `fastq.requantize`; `key` is the part of the bias on which a plan may depend."""

    axis: Axis = None
    dtype: object = None
    convention: str = "tflite"
    clamp: tuple[int, int] | None = None
    key: Any = None


class ValuesOptions(NamedTuple):
    """Options of `fastq.dequantize_linear`."""

    axis: Axis = None
    block_size: int = 0
    dtype: object = None
    convention: str | Convention = "onnx"


class DequantizeOptions(NamedTuple):
    """Options of `fastq.dequantize`; `key` is the part of the QParams on which a plan may depend."""

    dtype: object = None
    key: Any = None


class CompareOptions(NamedTuple):
    """Options of `fastq.compare` with codes; `key` is the part of the QParams on which a plan may depend."""

    key: Any = None


class NoOptions(NamedTuple):
    """Options of `fastq.compare` with an array."""


class MinMaxOptions(NamedTuple):
    """Options of `fastq.minmax`."""

    axis: Axis = None
    block_size: int = 0
    nan: str = "raise"


class HistogramOptions(NamedTuple):
    """Options of the histograms of a calibrator."""

    axis: Axis
    bins: int
    nan: str


class BlockOptions(NamedTuple):
    """Options of `fastq.gguf.quantize`."""

    qtype: object
    range: str = "minmax"


class BlockValuesOptions(NamedTuple):
    """Options of `fastq.gguf.dequantize`."""

    qtype: object


class BitRoundOptions(NamedTuple):
    """Options of `fastq.bitround`."""

    keepbits: int | None = None
    digits: int | None = None
    max_error: float | None = None
    convention: str = "numcodecs"


class BitPairOptions(NamedTuple):
    """Options of `fastq.bit_information`."""

    axis: int = -1


class PackOptions(NamedTuple):
    """Options of `fastq.pack` and `fastq.unpack`."""

    axis: int = -1
    dtype: object = None
    bitorder: str = "little"


class UnpackOptions(NamedTuple):
    """Options of `fastq.xarray.unpack_array`: its fill values are `gaps`."""

    gaps: tuple[int, ...] = ()
    dtype: object = None


class BinarizeOptions(NamedTuple):
    """Options of `fastq.binarize`."""

    axis: int = -1
    threshold: float = 0.0
    inclusive: bool = False
    dtype: object = "uint8"
    bitorder: str = "big"
    nan: str = "raise"
