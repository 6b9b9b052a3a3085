"""Quantize dask arrays: the public name of `fastq.adapters.dask`; needs dask, the extra ``[dask]``."""

from fastq.adapters.dask import (
    QParams,
    QuantizedArray,
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
