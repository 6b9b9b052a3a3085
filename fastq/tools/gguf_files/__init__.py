"""GGUF files: the tensors of a model, quantized and restored, with the types that llama.cpp chooses."""
