"""The public functions that users' compiled code can call, or looks for; importing this registers them with Numba."""

from fastq.dispatch import compiled
from fastq.operations.dequantize import dequantize, dequantize_linear
from fastq.operations.quantize import choose_qparams, fake_quantize, quantize, quantize_linear
from fastq.operations.requantize import requantize

compiled.register(quantize_linear, dequantize_linear, fake_quantize, requantize)
compiled.register(choose_qparams, quantize, dequantize)  # whose error names those that can be called
