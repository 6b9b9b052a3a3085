"""Block formats of GGUF: the functions of the gguf package, with the same bytes.

``quantize`` and ``dequantize`` take what ``gguf.quants.quantize`` and ``gguf.quants.dequantize`` take, for the formats
Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0, and do not need that package.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastq.dispatch import validation
from fastq.formats.gguf import BLOCK, BlockFormat, as_block_format
from fastq.runtime import result_pool
from fastq.system import lazy

Array = NDArray[Any]

__all__ = ["dequantize", "quantize"]

_UINT8, _FLOAT32 = np.dtype(np.uint8), np.dtype(np.float32)
_SOURCES = {dtype.name for dtype in (*validation.FLOATS, *validation.INTEGERS)} | {"float16", "bfloat16"}


@functools.cache
def _is_source(dtype: np.dtype[Any]) -> bool:
    """Whether arrays of this dtype, in any byte order, can be quantized."""
    return dtype.name in _SOURCES


# the module that needs Numba, imported by the first call of an operation
_execute = functools.partial(lazy.module, "fastq.dispatch.gguf")


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
    form, data = as_block_format(qtype), validation.as_array(data, "data")
    if not _is_source(data.dtype):
        raise TypeError(f"data must be float32, float16, bfloat16, float64 or an integer array, not {data.dtype}")
    shape = _shape(data, BLOCK, "values", form.nbytes, form)
    blocks = result_pool.empty(shape, _UINT8) if out is None else validation.check_out(out, shape, _UINT8)
    if data.size:
        (source,) = (data,) if out is None else validation.apart(blocks, data)
        refused = _execute().quantize(source, blocks, form)
        if refused >= 0:
            _refuse(source, refused, form)
    return blocks


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
    form, data = as_block_format(qtype), validation.as_array(data, "data")
    if data.dtype != _UINT8:
        raise TypeError(f"data must be uint8, the bytes of blocks, not {data.dtype}")
    shape = _shape(data, form.nbytes, "bytes", BLOCK, form)
    values = result_pool.empty(shape, _FLOAT32) if out is None else validation.check_out(out, shape, _FLOAT32)
    if data.size:
        (source,) = (data,) if out is None else validation.apart(values, data)
        _execute().dequantize(source, values, form)
    return values


def _shape(data: Array, width: int, what: str, becomes: int, form: BlockFormat) -> tuple[int, ...]:
    """Shape of the result, in which each `width` elements of a row become so many.

    Raises
    ------
    ValueError
        If rows are not a multiple of the width.
    """
    shape = data.shape
    if not shape or shape[-1] % width:
        raise ValueError(
            f"data has shape {shape}, but its last axis must be a multiple of {width}, the {what} of a {form} block"
        )
    return (*shape[:-1], shape[-1] // width * becomes)


def _refuse(data: Array, block: int, form: BlockFormat) -> None:
    row, place = divmod(block, data.shape[-1] // BLOCK)
    index = tuple(int(k) for k in np.unravel_index(row, data.shape[:-1])) if data.ndim > 1 else ()
    first = place * BLOCK
    with np.errstate(over="ignore"):
        finite = np.isfinite(data[index][first : first + BLOCK].astype(np.float32)).all()
    reason = f"values too large for the float16 parameters of {form}" if finite else "NaN or infinity"
    where = f"row {index[0] if len(index) == 1 else index} of data" if index else "data"
    raise ValueError(f"{where} has {reason} in elements {first}..{first + BLOCK - 1}")
