"""Weights as the tensors of other systems: the public name of `fastq.tools.layouts`."""

from fastq.tools.layouts import LAYOUTS, from_tensors, to_tensors

__all__ = ["LAYOUTS", "from_tensors", "to_tensors"]
