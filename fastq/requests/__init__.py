"""What callers ask for, validated once: kernels and the reference take the same requests."""
