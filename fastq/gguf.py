"""Block formats of GGUF: the functions of the gguf package, with the same bytes.

``quantize`` and ``dequantize`` take what ``gguf.quants.quantize`` and ``gguf.quants.dequantize`` take, for the formats
Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0, and do not need that package.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.dispatch.cache import call

Array = NDArray[Any]

__all__ = ["dequantize", "quantize"]


def quantize(data: ArrayLike, qtype: object, *, out: Array | None = None) -> NDArray[np.uint8]:
    """Quantize to the blocks of 32 that GGUF files hold.

    Each block has a float16 scale, and a smallest value in Q4_1 and Q5_1; the exact rules are in docs/contract.md.

    Parameters
    ----------
    data : array_like
        Of float32, float16, bfloat16, float64 or an integer dtype, any memory layout, shape (..., n) with n a multiple
        of 32. Converted to float32 first.
    qtype : gguf.GGMLQuantizationType, int or str
        The format: Q4_0 (2), Q4_1 (3), Q5_0 (6), Q5_1 (7) or Q8_0 (8).
    out : ndarray, optional
        Where to write: uint8, the result's shape.

    Returns
    -------
    ndarray of uint8
        Shape (..., n / 32 * bytes of a block): 18, 20, 22, 24 or 34 in the order above; `out` if given.

    Raises
    ------
    TypeError
        If data or out has another dtype.
    ValueError
        If n is not a multiple of 32, qtype is another format, or a block has NaN, infinities or a parameter that
        float16 does not reach; then what is in `out` is not specified.

    References
    ----------
    .. [1] ggml/src/ggml-quants.c, quantize_row_q4_0_ref and its neighbours

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)
    >>> blocks = fastq.gguf.quantize(x, "Q8_0")
    >>> blocks.shape
    (1, 68)
    >>> blocks[0, :6]
    array([  8,  32, 129, 133, 137, 141], dtype=uint8)
    """
    result: NDArray[np.uint8] = call("gguf_quantize", data, out, None, None, None, (qtype,))
    return result


def dequantize(data: ArrayLike, qtype: object, *, out: Array | None = None) -> NDArray[np.float32]:
    """Return the values that blocks of a GGUF file stand for.

    Parameters
    ----------
    data : array_like of uint8
        Blocks, shape (..., m) with m a multiple of the bytes of a block, any memory layout.
    qtype : gguf.GGMLQuantizationType, int or str
        As in `quantize`.
    out : ndarray, optional
        Where to write: float32, the result's shape.

    Returns
    -------
    ndarray of float32
        Shape (..., m / bytes of a block * 32); `out` if given.

    Raises
    ------
    TypeError
        If data is not of dtype uint8, or out not of float32.
    ValueError
        If m is not a multiple of the bytes of a block, or qtype is another format.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> blocks = fastq.gguf.quantize(np.linspace(-1, 1, 32, dtype=np.float32), "Q4_0")
    >>> fastq.gguf.dequantize(blocks, "Q4_0")[:4]
    array([-1.   , -0.875, -0.875, -0.75 ], dtype=float32)
    """
    result: NDArray[np.float32] = call("gguf_dequantize", data, out, None, None, None, (qtype,))
    return result
