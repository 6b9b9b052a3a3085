"""Codecs of zarr: the public name of `fastq.adapters.zarr`; needs zarr, the extra ``[zarr]``."""

from fastq.adapters.zarr import register

__all__ = ["register"]
