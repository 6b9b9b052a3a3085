"""The public functions that users' compiled code can call; importing this module registers them with Numba."""

from fastq.dispatch import compiled
from fastq.operations.dequantize import dequantize_linear
from fastq.operations.quantize import fake_quantize, quantize_linear
from fastq.operations.requantize import requantize

compiled.register(quantize_linear, dequantize_linear, fake_quantize, requantize)
