"""Pack, unpack and round Datasets: the public name of `fastq.adapters.xarray`; needs the extra ``[xarray]``."""

from fastq.adapters.xarray import bitround, pack, unpack, unpack_array

__all__ = [
    "bitround",
    "pack",
    "unpack",
    "unpack_array",
]
