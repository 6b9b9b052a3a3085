"""Quantize the scales of blocks, too: double quantization."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.ops.quantize import quantize
from fastq.requests.nested_scales import as_offset, as_scales
from fastq.results import QuantizedArray
from fastq.system.arguments import as_shape, shown


@dataclass(frozen=True, eq=False)
class NestedScale:
    """Scales of blocks, quantized in blocks of their own.

    Attributes
    ----------
    quantized : QuantizedArray
        The scales minus `offset` as one row of "dynamic8" codes in blocks.
    offset : float
        The mean of the scales, exact in float32.
    shape : tuple of int
        Shape of the scales.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> scale = np.linspace(0.01, 0.02, 512, dtype=np.float32).reshape(64, 8)
    >>> fastq.nest_scale(scale).nbytes, scale.nbytes
    (524, 2048)
    """

    quantized: QuantizedArray
    offset: float
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.quantized, QuantizedArray):
            raise TypeError(f"quantized must be a QuantizedArray, not {shown(self.quantized)}")
        object.__setattr__(self, "offset", as_offset(self.offset))
        object.__setattr__(self, "shape", as_shape(self.shape))
        if (size := self.quantized.size) != (needed := math.prod(self.shape)):
            raise ValueError(f"quantized has {size} scales, but shape {self.shape} needs {needed}")

    @property
    def nbytes(self) -> int:
        """Bytes of codes, their scales and the offset."""
        return self.quantized.codes.nbytes + self.quantized.scale.nbytes + 4

    def dequantize(self) -> NDArray[np.float32]:
        """Return the scales in float32: the values of the codes plus the offset.

        Scales near 0 may become 0 or negative; codebook formats accept such scales.

        Returns
        -------
        ndarray of float32
            Shape `shape`.
        """
        with np.errstate(over="ignore"):
            values: NDArray[np.float32] = self.quantized.dequantize() + np.float32(self.offset)
        return values.reshape(self.shape)


def nest_scale(scale: ArrayLike, *, block_size: int = 256, offset: float | None = None) -> NestedScale:
    """Quantize scales minus their mean to 8 bits, like bitsandbytes' double quantization (QLoRA, arXiv:2305.14314).

    The codes of the array are computed with the original scales; readers multiply with `NestedScale.dequantize`. With
    blocks of 64, a weight takes 4.127 bits instead of 4.5.

    Parameters
    ----------
    scale : array_like of float32
        Scales of the blocks of an array, of any shape; blocks of scales run along them in C order.
    block_size : int
        Scales in a block.
    offset : float, optional
        Number that is subtracted from the scales; by default their mean: the exact sum rounded to float64, divided by
        their number, and rounded to float32.

    Returns
    -------
    NestedScale
        8-bit codes, a float32 scale for each block, and the offset.

    Raises
    ------
    TypeError
        If the scales are not float32.
    ValueError
        If scale is empty or not finite, or block_size is not positive.

    Examples
    --------
    >>> import dataclasses
    >>> import numpy as np, fastq
    >>> x = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    >>> q = fastq.quantize(x, "nf4", axis=-1, block_size=64)
    >>> nested = fastq.nest_scale(q.scale)
    >>> params = dataclasses.replace(q.qparams, scale=nested.dequantize())
    >>> values = fastq.QuantizedArray(q.codes, params, q.shape).dequantize()
    """
    scales, size, offset = as_scales(scale, block_size, offset)
    mean = np.float32(math.fsum(scales.reshape(-1).tolist()) / scales.size if offset is None else offset)
    with np.errstate(over="ignore"):
        differences = scales.reshape(-1) - mean
    if not np.isfinite(differences).all():
        raise ValueError(f"scale minus the offset {mean} must be finite in float32")
    return NestedScale(quantize(differences, "dynamic8", axis=0, block_size=size), float(mean), scales.shape)
