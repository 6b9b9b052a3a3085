"""Containers of tensors, which of them are meant, and how they are read, converted and written in pieces."""
