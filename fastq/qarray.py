"""QuantizedArray: codes with the parameters that give them meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fastq.conventions import Convention
from fastq.qtypes import QType

Axis = int | tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class QParams:
    """Scale and zero point, and what they belong to.

    Attributes
    ----------
    scale : ndarray of float32 or float64
        Shape () for the whole array, (C,) for one channel axis, the kept dimensions for a tuple of axes, and the
        array's rank with ``ceil(D / block_size)`` on the block axis for blocks. In units of the array's values per
        code.
    zero_point : ndarray of integers
        The code of 0.0, same shape as `scale`.
    dtype : QType
        The code format.
    axis : int, tuple of int or None
        The channel axis or axes (kept), or with a `block_size` the axis along which blocks run.
    block_size : int
        Elements in a block; 0 where there are no blocks.
    symmetric : bool
        Whether as many codes are used below the zero point as above it.
    convention : str or Convention
        Whose arithmetic the parameters follow.
    computed : dtype, optional
        Compute type of the values, where that is not the type of `scale`.
    """

    scale: NDArray[np.floating[Any]]
    zero_point: NDArray[np.integer[Any]]
    dtype: QType
    axis: Axis = None
    block_size: int = 0
    symmetric: bool = False
    convention: str | Convention = "onnx"
    computed: np.dtype[Any] | None = None

    @property
    def compute(self) -> np.dtype[Any]:
        """Compute type: that of the values, float32 or float64."""
        given = self.computed or self.scale.dtype
        return np.dtype(np.float64) if given == np.float64 else np.dtype(np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes of scale and zero point together."""
        return self.scale.nbytes + self.zero_point.nbytes


@dataclass(frozen=True, eq=False)
class QuantizedArray:
    """Codes and the parameters that give them meaning.

    Attributes
    ----------
    codes : ndarray
        One code an element, in the memory order of the array that was quantized; formats of fewer than 8 bits are
        packed along the last axis, first element in the low bits.
    qparams : QParams
        Scale, zero point, format, axis, block size and convention; each is also an attribute here.
    shape : tuple of int
        Shape of the array that the codes stand for.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> q = fastq.quantize(np.array([-1.0, 0.0, 0.5, 1.55], np.float32), "int8")
    >>> q.codes
    array([-128,  -28,   22,  127], dtype=int8)
    >>> np.asarray(q)
    array([-1.  ,  0.  ,  0.5 ,  1.55], dtype=float32)
    """

    codes: NDArray[np.integer[Any]]
    qparams: QParams
    shape: tuple[int, ...]

    @property
    def scale(self) -> NDArray[np.floating[Any]]:
        """Value of one code step."""
        return self.qparams.scale

    @property
    def zero_point(self) -> NDArray[np.integer[Any]]:
        """The code of 0.0."""
        return self.qparams.zero_point

    @property
    def dtype(self) -> QType:
        """The code format."""
        return self.qparams.dtype

    @property
    def axis(self) -> Axis:
        """Channel axis or axes, or the axis along which blocks run."""
        return self.qparams.axis

    @property
    def block_size(self) -> int:
        """Elements in a block, 0 without blocks."""
        return self.qparams.block_size

    @property
    def symmetric(self) -> bool:
        """Whether as many codes are used below the zero point as above it."""
        return self.qparams.symmetric

    @property
    def convention(self) -> str | Convention:
        """Whose arithmetic the codes follow."""
        return self.qparams.convention

    @property
    def ndim(self) -> int:
        """Number of dimensions of the array that the codes stand for."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements that the codes stand for."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scale and zero point together."""
        return self.codes.nbytes + self.qparams.nbytes

    def unpacked(self) -> NDArray[np.integer[Any]]:
        """Codes one an element, shape `shape`: the codes themselves unless the format packs them."""
        if not self.dtype.packed:
            return self.codes
        from fastq import ops

        return ops.unpack(self.codes, self.dtype, shape=self.shape)

    def dequantize(
        self, *, dtype: DTypeLike | None = None, out: NDArray[np.floating[Any]] | None = None
    ) -> NDArray[np.floating[Any]]:
        """Return the values that the codes stand for: ``(code - zero_point) * scale``.

        Parameters
        ----------
        dtype : float32 or float64, optional
            Output dtype; the scale's by default.
        out : ndarray, optional
            Where to write; shape `shape`, float32 or float64, not overlapping the codes.

        Returns
        -------
        ndarray
            Shape `shape`.
        """
        from fastq import ops

        return ops.dequantize(self, dtype=dtype, out=out)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a QuantizedArray can't be seen as an array without a copy")
        values = self.dequantize()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __repr__(self) -> str:
        where = "" if self.axis is None else f", axis={self.axis}"
        where += f", block_size={self.block_size}" if self.block_size else ""
        return f"QuantizedArray(shape={self.shape}, dtype={self.dtype}{where}, nbytes={self.nbytes})"
