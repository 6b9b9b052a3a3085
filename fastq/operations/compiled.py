"""The public functions that other people's compiled code can call: importing this has Numba know them."""

from fastq.dispatch import compiled
from fastq.operations.dequantize import dequantize_linear
from fastq.operations.quantize import fake_quantize, quantize_linear
from fastq.operations.requantize import requantize

compiled.register(quantize_linear, dequantize_linear, fake_quantize, requantize)
