"""Lay quantized weights out as the tensors of other systems, and read them back.

A weight belongs to a linear layer and has shape (N, K): N outputs, K inputs, blocks along the inputs.

| layout | tensors | codes |
|---|---|---|
| "gptq" | qweight (K * bits / 32, N), qzeros (G, N * bits / 32), scales (G, N), g_idx (K,) | along K, words of int32 |
| "gptq_v2" | the same, with unchanged zero points in qzeros; in "gptq" they are smaller by one | the same |
| "awq" | qweight (K, N / 8), qzeros (G, N / 8), scales (G, N) | along N, 8 in a word of int32, in another order |
| "matmul_nbits" | B (N, G, bytes), scales (N, G), zero_points (N, ceil(G * bits / 8)) | along K, in bytes |
| "bitsandbytes" | weight (ceil(N * K / 2), 1), absmax, quant_map | along K, the first in the high half of a byte |
| "compressed_tensors" | weight or weight_packed, weight_scale, .. | along K, words of int32 or bytes |
| "hqq" | W_q, scale and zero (groups, 1), nbits, shape, .. | of 1, 2, 4 or 8 distant groups in a byte, 10 in an int32 |
| "quanto" | _data, or _data._data and _shift (groups, 1), and _scale | of 2 or 4 distant groups in a byte |
"""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import ArrayLike, DTypeLike

from fastq.formats.qtypes import QType, as_qtype
from fastq.ops.nest_scale import NestedScale
from fastq.results import QuantizedArray
from fastq.system.arguments import as_bool, as_choice, as_dtype, as_int, as_shape, shown
from fastq.system.arrays_of_callers import as_array
from fastq.system.dtypes import Array
from fastq.tools.layouts.bitsandbytes import BITSANDBYTES
from fastq.tools.layouts.compressed_tensors import COMPRESSED_TENSORS
from fastq.tools.layouts.gptq_awq import AWQ, GPTQ, GPTQ_V2
from fastq.tools.layouts.hqq import HQQ
from fastq.tools.layouts.layout import Reading, Writing, check_format
from fastq.tools.layouts.matmul_nbits import MATMUL_NBITS
from fastq.tools.layouts.quanto import QUANTO

__all__ = ["LAYOUTS", "from_tensors", "to_tensors"]

Tensors = Mapping[str, ArrayLike]

_ROWS = (GPTQ, GPTQ_V2, AWQ, MATMUL_NBITS, BITSANDBYTES, COMPRESSED_TENSORS, HQQ, QUANTO)
LAYOUTS = {row.name: row for row in _ROWS}


def to_tensors(
    q: QuantizedArray,
    layout: str,
    *,
    scale_dtype: DTypeLike | None = None,
    g_idx: ArrayLike | None = None,
    nested: NestedScale | None = None,
) -> dict[str, Array]:
    """Lay a quantized weight out as the tensors of another system.

    Parameters
    ----------
    q : QuantizedArray
        Array of shape (N, K), with blocks along the last axis or one scale for each row. Integers of a width that the
        layout supports: signed codes become unsigned together with their zero points, and for "compressed_tensors"
        unsigned codes become signed. For "bitsandbytes" nf4 or fp4 in blocks along the last axis, of any shape; for
        "compressed_tensors" also float8_e4m3fn, MX formats and nvfp4. For "hqq" values that are
        ``(code - zero_point) * scale``; for "quanto" int8 and float8 with a scale for each row, and unsigned codes with
        offsets, as convention "quanto-bits" has.
    layout : str
        A name of `LAYOUTS`.
    scale_dtype : dtype, optional
        Dtype of the scales. The default is float16 for "gptq" and "awq", which rounds them, and their own dtype for
        other layouts, with float32 instead of float64 for "compressed_tensors".
    g_idx : array_like of int, optional
        For GPTQ, the block of each of the K inputs, if inputs were ordered by activation. Column k of q is then input
        ``np.argsort(g_idx, kind="stable")[k]``.
    nested : NestedScale, optional
        For "bitsandbytes", the quantized scales.

    Returns
    -------
    dict of str to ndarray
        Tensors by the names that the system uses. "matmul_nbits" has no zero_points if the scheme is symmetric.

    Raises
    ------
    TypeError, ValueError
        If the layout does not support q; the message says what it supports.

    Warns
    -----
    UserWarning
        If scales are subnormal in their dtype, as those below 6.1e-5 are in float16: such scales have fewer bits.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> w = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    >>> q = fastq.quantize(w, "uint4", axis=1, block_size=32)
    >>> {name: (a.shape, str(a.dtype)) for name, a in fastq.layouts.to_tensors(q, "awq").items()}
    {'qweight': ((64, 2), 'int32'), 'qzeros': ((2, 2), 'int32'), 'scales': ((2, 16), 'float16')}
    """
    if not isinstance(q, QuantizedArray):
        raise TypeError(f"q must be a QuantizedArray, not {shown(q)}")
    chosen = LAYOUTS[as_choice(layout, "layout", LAYOUTS)]
    if g_idx is not None and not chosen.has_g_idx:
        raise ValueError(f"g_idx must be None for layout {layout!r}")
    if nested is not None and not chosen.nests_scales:
        raise ValueError(f"nested must be None for layout {layout!r}")
    if nested is not None and not isinstance(nested, NestedScale):
        raise TypeError(f"nested must be a NestedScale, which fastq.nest_scale returns, not {shown(nested)}")
    dtype = None if scale_dtype is None else as_dtype(scale_dtype, "scale_dtype", "a float dtype")
    if dtype is not None and dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        raise TypeError(f"scale_dtype must be float16, bfloat16, float32 or float64, not {dtype}")
    return chosen.write(q, Writing(layout=chosen, scale_dtype=dtype, g_idx=g_idx, nested=nested))


def from_tensors(
    tensors: Tensors,
    layout: str,
    *,
    dtype: str | QType | None = None,
    shape: tuple[int, ...] | None = None,
    block_size: int = 0,
    sort_inputs: bool = False,
) -> QuantizedArray:
    """Return the quantized weight in the tensors of another system.

    Parameters
    ----------
    tensors : mapping of str to array_like
        Tensors by the names that the system uses.
    layout : str
        A name of `LAYOUTS`.
    dtype : str or QType, optional
        The code format: "uint4" by default, for "bitsandbytes" "nf4", for "compressed_tensors" "int4".
    shape : tuple of int, optional
        Shape of the weight, if the tensors do not determine it: for "matmul_nbits" if K is not a multiple of the block
        size, for "bitsandbytes", for "quanto" with fewer than 8 bits, and for "hqq" if its tensors lack it.
    block_size : int, optional
        Elements in a block, if the tensors do not determine it: for "bitsandbytes", by default 64; for GPTQ without
        g_idx, AWQ and compressed-tensors, if the last block is shorter.
    sort_inputs : bool
        For GPTQ with a g_idx that orders inputs by activation: whether to return inputs in the order of their blocks.
        Column k of the result is input ``np.argsort(g_idx, kind="stable")[k]``.

    Returns
    -------
    QuantizedArray
        Array of shape (N, K), with float32 scales. Its float32 values are those that the system computes with, except
        for the rounding of the system's own products. A scale of 0 becomes 1, with the codes of zeros.

    Raises
    ------
    TypeError, ValueError
        If a tensor is missing or does not fit the others; the message names it.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> w = np.random.default_rng(0).standard_normal((16, 64)).astype(np.float32)
    >>> q = fastq.quantize(w, "uint4", axis=1, block_size=32)
    >>> tensors = fastq.layouts.to_tensors(q, "gptq_v2", scale_dtype="float32")
    >>> np.array_equal(fastq.layouts.from_tensors(tensors, "gptq_v2").dequantize(), q.dequantize())
    True
    """
    chosen = LAYOUTS[as_choice(layout, "layout", LAYOUTS)]
    qtype = as_qtype(chosen.formats[0] if dtype is None else dtype)
    check_format(qtype, chosen, "dtype")
    if as_bool(sort_inputs, "sort_inputs") and not chosen.has_g_idx:
        raise ValueError(f"sort_inputs must be False for layout {layout!r}")
    if not isinstance(tensors, Mapping):
        raise TypeError(f"tensors must be a mapping of arrays by their names, not {shown(tensors)}")
    arrays = {name: as_array(array, name) for name, array in tensors.items()}
    if (block_size := as_int(block_size, "block_size")) < 0:
        raise ValueError(f"block_size must be 0 or more, not {block_size}")
    reading = Reading(
        layout=chosen,
        tensors=arrays,
        qtype=qtype,
        shape=None if shape is None else as_shape(shape),
        block_size=block_size,
        sort_inputs=bool(sort_inputs),
    )
    return chosen.read(reading)
