"""The importance of elements, which weighs their errors in a search for ranges: validated, and turned into integers.

Sums of errors stay exact, so that they do not depend on the order: among the elements that share a parameter, the
largest importance becomes ``2**bits - 1``, and others are scaled and rounded. The number of bits, at most 16, keeps
sums of 2**20, the square of an error of at most half a step, below 2**53 for all elements of the part.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.floats import is_real
from fastq.formats.granularity import Granularity
from fastq.requests.quantization import Request
from fastq.system.arguments import native
from fastq.system.arrays_of_callers import as_array
from fastq.system.dtypes import INTEGERS, REAL_DTYPES

Array = NDArray[Any]
Shape = tuple[int, ...]

# bits of a weight, and of the sum of the weights of a part
MOST_BITS = 16
ALL_BITS = 33


def axis_of_weights(ndim: int, parts: Granularity) -> int:
    """Return the axis whose elements have weights if importance is a vector.

    It is the axis along which blocks run, else the last one whose elements share parameters, else the last one.
    """
    if parts.block_size:
        return parts.kept[0]
    return max((axis for axis in range(ndim) if axis not in parts.kept), default=ndim - 1)


def check_importance(dtype: np.dtype[Any], weights: Shape, shape: Shape, request: Request) -> int:
    """Return the axis for which importance of a dtype and a shape has weights, or raise an error."""
    if request.search is None:
        raise ValueError("importance needs a search for ranges: range='mse', or a fastq.MSERange")
    if not is_real(dtype) and native(dtype) not in INTEGERS:
        raise TypeError(f"importance must be {REAL_DTYPES}, not {dtype}")
    axis = axis_of_weights(len(shape), request.granularity)
    vector = shape[axis : axis + 1]
    if weights not in (vector, shape):
        raise ValueError(
            f"importance has shape {weights}, but for x of shape {shape} it must have that, or {vector}, a weight for "
            f"each element of axis {axis}"
        )
    return axis


def as_importance(importance: Any, shape: Shape, request: Request) -> Array:
    """Return importance as a float64 array with the rank of a shape, with length 1 on missing axes."""
    weights = as_array(importance, "importance")
    axis = check_importance(weights.dtype, weights.shape, shape, request)
    weights = weights.astype(np.float64)
    if not ((weights >= 0) & (weights < np.inf)).all():
        raise ValueError("importance must be finite and not negative")
    return weights if weights.shape == shape else weights.reshape([n if k == axis else 1 for k, n in enumerate(shape)])


def bits_of_weights(shape: Shape, parts: Granularity) -> int:
    """Return the bits of a weight for an array of a shape, from the number of elements that share a parameter."""
    count = math.prod(parts.parameter_shape(shape))
    elements = parts.block_size or math.prod(shape) // max(count, 1)
    return max(1, min(MOST_BITS, ALL_BITS - (elements - 1).bit_length()))
