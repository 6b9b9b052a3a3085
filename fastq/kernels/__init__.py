"""Loops over valid contiguous memory, compiled on first use; they know nothing of arrays, axes or formats."""
