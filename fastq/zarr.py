"""Codecs of zarr: the public name of `fastq.adapters.zarr`; needs zarr, the extra ``[zarr]``."""

from fastq.adapters.zarr import register
from fastq.adapters.zarr.casting import cast_value

__all__ = ["cast_value", "register"]
