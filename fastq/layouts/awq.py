"""Tensors of AWQ: words of eight outputs in an order of its own."""

from __future__ import annotations

import numpy as np

from fastq.layouts.tensors import (
    BlockedWeight,
    Reading,
    Writing,
    checked_block_size,
    from_words,
    matrix,
    scales_of,
    stored_scale,
    to_words,
    weight_of,
)
from fastq.results import QuantizedArray
from fastq.system.dtypes import Array

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which of eight neighbours is in the lowest four bits of a word, in the next, ..


def write(q: QuantizedArray, how: Writing) -> dict[str, Array]:
    """Return the tensors of a weight."""
    weight = weight_of(q, how.row)
    return {
        "qweight": _interleaved(weight.codes.T, "qweight"),
        "qzeros": _interleaved(weight.zero_point.T, "qzeros"),
        "scales": stored_scale(weight.scale.T, how.scale_dtype, "float16"),
    }


def _interleaved(codes: Array, name: str) -> Array:
    if codes.shape[1] % 8:
        raise ValueError(f"{name} needs whole words: a multiple of 8 outputs, not {codes.shape[1]}")
    eights = codes.reshape(len(codes), -1, 8)[..., ORDER]
    return to_words(eights.reshape(codes.shape), 4, 1, name)


def read(given: Reading) -> QuantizedArray:
    """Return the weight of some tensors."""
    codes = _deinterleaved(matrix(given, "qweight", "int32"))
    inputs, outputs = codes.shape
    scales = scales_of(given, outputs)
    zeros = _deinterleaved(given.of_shape("qzeros", "int32", len(scales), outputs // 8))
    block_size = checked_block_size(given.block_size, inputs, len(scales))
    return BlockedWeight(np.ascontiguousarray(codes.T), scales.T, zeros.T, 4, block_size).quantized()


def _deinterleaved(words: Array) -> Array:
    eights = from_words(words, 4, 1).reshape(len(words), -1, 8)
    return eights[..., np.argsort(ORDER)].reshape(len(words), -1)
