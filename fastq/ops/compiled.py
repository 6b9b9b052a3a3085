"""The public functions that users' compiled code can call, or looks for; importing this registers them with Numba."""

from fastq.ops.dequantize import dequantize, dequantize_linear
from fastq.ops.quantize import choose_qparams, fake_quantize, quantize, quantize_linear
from fastq.ops.requantize import requantize
from fastq.plan import numba_overloads

numba_overloads.register(quantize_linear, dequantize_linear, fake_quantize, requantize)
numba_overloads.register(choose_qparams, quantize, dequantize)  # whose error names those that can be called
