"""Tables of code formats, float formats, GGUF's blocks and conventions; data, not code paths."""
