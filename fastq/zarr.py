"""Codecs of zarr: the public name of `fastq.adapters.zarr`; needs zarr, the extra ``[zarr]``."""

from fastq.adapters.zarr import cast_value, register

__all__ = ["cast_value", "register"]
