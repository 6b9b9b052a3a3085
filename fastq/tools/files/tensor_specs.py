"""Tensors as a safetensors header describes them: name, dtype, shape and bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastq.system.dtypes import Array, numpy_dtype

METADATA = "__metadata__"  # the entry in the header of a .safetensors file that is not a tensor


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as a safetensors header describes it."""

    name: str  # unique in its file
    dtype: str  # the name in safetensors, F32, BF16, I8, ..; of other arrays in .npy and .npz files that in NumPy
    shape: tuple[int, ...]  # elements on each axis
    nbytes: int  # bytes of the data

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def spec_of(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    """Return the spec of a tensor whose dtype NumPy has, which tells its bytes."""
    return TensorSpec(name, dtype, shape, math.prod(shape) * numpy_dtype(dtype).itemsize)


def bytes_of(array: Array) -> NDArray[np.uint8]:
    """Return the bytes of an array in C order, little-endian."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
