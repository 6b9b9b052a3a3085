"""What the machine allows: kernels that move the bytes of a case and compute nothing, and a C program."""
