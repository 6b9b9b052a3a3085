"""Blocks of ggml, as GGUF files have them: their fields, how they are packed and how they are decoded."""
