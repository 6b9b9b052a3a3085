"""Model directories: matrices quantized into the layout of compressed-tensors, and restored."""
