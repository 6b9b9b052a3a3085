"""Block formats of GGUF: the bytes of ggml, which llama.cpp reads.

``quantize`` and ``dequantize`` replace ``gguf.quants.quantize`` and ``gguf.quants.dequantize`` of the gguf package,
without needing it, also for the formats that the package can't write: K-quants, codebooks and 4 bit floats. Of the
formats of grids, IQ1_S, IQ1_M, IQ2_XXS and IQ2_XS are only decoded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.plan.cache import call
from fastq.system.dtypes import Array

__all__ = ["dequantize", "quantize"]


def quantize(
    data: ArrayLike,
    qtype: object,
    *,
    range: str = "minmax",
    imatrix: ArrayLike | None = None,
    out: Array | None = None,
) -> NDArray[np.uint8]:
    """Quantize to the blocks of GGUF files.

    The bytes are the same as from ggml on x86-64. Its searches for scales run here for sixteen blocks at a time; the
    exact rules are in docs/contract.md.

    Parameters
    ----------
    data : array_like
        Array of dtype float32, float16, bfloat16, float64 or an integer dtype, of any memory layout, in shape (..., n)
        with n a multiple of the values of a block. It is converted to float32 first.
    qtype : gguf.GGMLQuantizationType, int or str
        The format: Q4_0 (2), Q4_1 (3), Q5_0 (6), Q5_1 (7), Q8_0 (8), IQ4_NL (20) or MXFP4 (39) with blocks of 32
        values, NVFP4 (40) or Q2_0 (42) of 64, Q1_0 (41) of 128, Q2_K (10), Q3_K (11), Q4_K (12), Q5_K (13), Q6_K (14),
        IQ3_XXS (18), IQ3_S (21), IQ2_S (22), IQ4_XS (23), TQ1_0 (34) or TQ2_0 (35) of 256.
    range : {"minmax", "mse"}
        The choice of scales and smallest values: "minmax" gives the bytes of ggml; "mse" tries several stored
        parameters and takes those with the least squared error, in Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL, IQ4_XS, MXFP4
        and NVFP4. No block is worse than that of ggml, and any reader of ggml's blocks reads these.
    imatrix : array_like of float32, optional
        Importance of the columns, for the choice of scales: finite, not negative, in shape (n,) or in that of data,
        where axes before the last may be 1 from some axis on, such as (experts, 1, n). Neighbours that share a scale
        and are all 0 get equal weights; ggml stores zeros for them. Q8_0, TQ1_0, TQ2_0, MXFP4, NVFP4, Q1_0 and Q2_0
        ignore the importance. With "mse" it has the weights of the squared errors, in every format.
    out : ndarray, optional
        Array to write to, uint8 in the shape of the result.

    Returns
    -------
    ndarray of uint8
        Blocks of shape (..., n / values of a block * bytes of a block); `out` if given.

    Raises
    ------
    TypeError
        If data, imatrix or out has another dtype.
    ValueError
        If n is not a multiple of the values of a block, imatrix has another shape or is negative or not finite, qtype
        is another format or one that is only decoded, or range is another word or "mse" for a format without it. If a
        block has NaN, infinities or a parameter beyond float16; the contents of `out` are then not specified.

    References
    ----------
    .. [1] ggml/src/ggml-quants.c, quantize_row_q4_K_ref and its neighbours

    Examples
    --------
    >>> import numpy as np, fastq
    >>> x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)
    >>> blocks = fastq.gguf.quantize(x, "Q8_0")
    >>> blocks.shape
    (1, 68)
    >>> blocks[0, :6]
    array([  8,  32, 129, 133, 137, 141], dtype=uint8)
    >>> for method in ("minmax", "mse"):
    ...     blocks = fastq.gguf.quantize(x, "Q4_0", range=method)
    ...     print(f"{fastq.compare(x, fastq.gguf.dequantize(blocks, 'Q4_0')).sqnr_db:.2f} dB")
    24.29 dB
    24.60 dB
    """
    result: NDArray[np.uint8] = call("gguf_quantize", data, out, imatrix, None, None, (qtype, range), (type(qtype),))
    return result


def dequantize(data: ArrayLike, qtype: object, *, out: Array | None = None) -> NDArray[np.float32]:
    """Return the values of blocks of a GGUF file.

    Parameters
    ----------
    data : array_like of uint8
        Blocks in shape (..., m) with m a multiple of the bytes of a block, of any memory layout.
    qtype : gguf.GGMLQuantizationType, int or str
        As in `quantize`, or a format with blocks of 256 values that is only decoded: IQ2_XXS (16), IQ2_XS (17), IQ1_S
        (19) or IQ1_M (29).
    out : ndarray, optional
        Array to write to, float32 in the shape of the result.

    Returns
    -------
    ndarray of float32
        Values of shape (..., m / bytes of a block * values of a block); `out` if given.

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
    result: NDArray[np.float32] = call("gguf_dequantize", data, out, None, None, None, (qtype,), (type(qtype),))
    return result
