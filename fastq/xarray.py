"""Pack, unpack and round Datasets: the public name of `fastq.adapters.xarray`; needs the extra ``[xarray]``."""

from fastq.adapters.xarray import pack, unpack, unpack_array
from fastq.adapters.xarray.rounding import bitround

__all__ = [
    "bitround",
    "pack",
    "unpack",
    "unpack_array",
]
