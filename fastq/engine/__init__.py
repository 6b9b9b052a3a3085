"""Vectors, compiled functions, threads and memory for kernels; it knows nothing of quantization.

A compiled function is declared by `fastq.engine.jit.traced`: Python runs it on types and records the instructions, as
``jax.jit`` does.
"""
