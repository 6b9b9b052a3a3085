"""The codec that zarr finds without `register`, also in new processes."""

from fastq.adapters.zarr.codecs import BitRound

__all__ = ["BitRound"]
