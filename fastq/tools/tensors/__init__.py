"""Files of NumPy, safetensors and GGUF, read and written tensor by tensor."""
