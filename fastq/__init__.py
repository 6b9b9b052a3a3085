"""Quantize NumPy arrays at the speed of the memory bus, bit for bit to a convention that you name."""

from typing import Any

from fastq.compare import Comparison
from fastq.conventions import CONVENTIONS, Convention
from fastq.ops import (
    choose_qparams,
    compare,
    dequantize_linear,
    fake_quantize,
    minmax,
    pack,
    quantize,
    quantize_linear,
    unpack,
)
from fastq.qarray import QParams, QuantizedArray
from fastq.qtypes import QType
from fastq.threads import get_num_threads, set_num_threads, warmup
from fastq.versions import show_versions

__version__ = "0.1.0"

__all__ = [
    "CONVENTIONS",
    "Comparison",
    "Convention",
    "QParams",
    "QType",
    "QuantizedArray",
    "choose_qparams",
    "compare",
    "dequantize_linear",
    "fake_quantize",
    "get_num_threads",
    "minmax",
    "pack",
    "plot",
    "quantize",
    "quantize_linear",
    "reference",
    "set_num_threads",
    "show_versions",
    "unpack",
    "warmup",
]


def __getattr__(name: str) -> Any:
    if name in ("plot", "reference"):
        import importlib

        return importlib.import_module(f"fastq.{name}")
    raise AttributeError(f"module 'fastq' has no attribute {name!r}")
