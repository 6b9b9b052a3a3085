"""GGUF files: the tensors of a model, quantized and back, with the types that llama.cpp gives them."""
