"""Block formats of GGUF: the public name of `fastq.ops.gguf`."""

from fastq.ops.gguf import dequantize, quantize

__all__ = ["dequantize", "quantize"]
