"""Model directories: matrices quantized as compressed-tensors stores them, and back."""
