"""Quantize scales of blocks in their turn, in plain NumPy."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.reference.operations import dequantize, quantize
from fastq.results import QuantizedArray
from fastq.system.arguments import as_scales


def nest_scale(
    scale: NDArray[np.float32], *, block_size: int = 256, offset: float | None = None
) -> tuple[QuantizedArray, float, NDArray[Any]]:
    """Return the codes of scales less their mean, that mean, and the scales that these stand for."""
    scale, block_size, offset = as_scales(scale, block_size, offset)
    if offset is None:
        offset = float(np.float32(float(sum(Fraction(float(number)) for number in scale.flat)) / scale.size))
    q = quantize(scale.reshape(-1) - np.float32(offset), "dynamic8", axis=0, block_size=block_size)
    return q, offset, (dequantize(q) + np.float32(offset)).reshape(scale.shape)
