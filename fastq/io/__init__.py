"""Quantized checkpoints: .npy and .safetensors files, read and written tensor by tensor."""
