"""Loops over runs, blocks and columns of valid contiguous memory."""
