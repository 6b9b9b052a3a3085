"""Quantize dask arrays: the public name of `fastq.adapters.dask`; needs dask, the extra ``[dask]``."""

from fastq.adapters.dask import (
    calibrate,
    choose_qparams,
    compare,
    dequantize_linear,
    fake_quantize,
    minmax,
    quantize,
    quantize_linear,
    requantize,
)
from fastq.adapters.dask.collections import QParams, QuantizedArray

__all__ = [
    "QParams",
    "QuantizedArray",
    "calibrate",
    "choose_qparams",
    "compare",
    "dequantize_linear",
    "fake_quantize",
    "minmax",
    "quantize",
    "quantize_linear",
    "requantize",
]
