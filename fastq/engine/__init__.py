"""Vectors, compiled functions, threads and memory for kernels; it knows nothing of quantization."""
