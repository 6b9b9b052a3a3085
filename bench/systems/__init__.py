"""What is measured, a module for each library: `BUILDERS[work, variant](size)` makes a Runner.

The peers get memory aligned to 64 bytes, as their own allocators give it, and preallocated outputs wherever
they can take them.
"""
