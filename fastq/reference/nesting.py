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
        offset = float(sum(Fraction(float(number)) for number in scale.flat)) / scale.size
    mean = np.float32(offset)
    with np.errstate(over="ignore"):
        rest = scale.reshape(-1) - mean
    if not np.isfinite(rest).all():
        raise ValueError(f"scale less the offset {mean} must be finite in float32")
    q = quantize(rest, "dynamic8", axis=0, block_size=block_size)
    with np.errstate(over="ignore"):
        return q, float(mean), (dequantize(q) + mean).reshape(scale.shape)
