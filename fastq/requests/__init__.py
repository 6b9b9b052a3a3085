"""Requests of callers, validated once: kernels and the reference share them."""
