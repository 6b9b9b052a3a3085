"""Requantize: turn int32 sums of products into codes, in the arithmetic of the system that runs the model."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike, DTypeLike

from fastq.formats.qtypes import QType
from fastq.plan.cache import call
from fastq.requests.requantization import as_clamp
from fastq.results import Axis
from fastq.system.arguments import as_array, has_named_dimensions
from fastq.system.dtypes import Array


def requantize(
    acc: ArrayLike,
    multiplier: ArrayLike,
    zero_point: ArrayLike,
    dtype: str | QType | DTypeLike,
    *,
    axis: Axis = None,
    bias: ArrayLike | None = None,
    clamp: tuple[int, int] | None = None,
    convention: str = "tflite",
    out: Array | None = None,
) -> Array:
    """Turn int32 accumulators into codes: ``saturate(round((acc + bias) * multiplier) + zero_point)``.

    The `convention` decides how the product is computed and rounded, and so which code a sum near a tie gets. int32
    sums wrap around, as in compiled code; only codes are clamped.

    Parameters
    ----------
    acc : array_like of int32
        Sums of products of codes minus their zero points, of any shape and memory layout.
    multiplier : array_like of float
        The scale of the inputs times the scale of the weights, divided by the scale of the results: one number, or one
        for each channel of `axis`. Finite, not negative, and less than ``2**30`` in TensorFlow Lite's arithmetic.
    zero_point : int
        The code of 0.0 in the results.
    dtype : {"int8", "uint8", "int16"}, QType or dtype
        The code format of the results.
    axis : int, tuple of int or None
        The channel axis or axes: each index along them has its own multiplier and bias; None: one of each for the
        array.
    bias : array_like of int32, optional
        Number to add to accumulators: one, or one for each channel. For "torch" also a float: the bias of a layer
        divided by the scales of inputs and weights, which is added in float32.
    clamp : tuple of int, optional
        The first and the last code of the results, for a fused activation: ``(zero_point, 127)`` for ReLU in int8.
    convention : {"tflite", "tflite-single", "ruy-x86", "xnnpack", "onnxruntime", "torch"}
        Whose arithmetic to follow. "tflite": a product by 31 bits, rounded half up, shifted, and rounded again, half
        away from zero; "ruy-x86": the same half up; "tflite-single": the shifted product, rounded once, half up; the
        others: a product in float32, rounded half to even.
    out : ndarray, optional
        Array to write the codes to, in the shape of acc and of `dtype`.

    Returns
    -------
    ndarray
        Codes in the memory order of acc; `out` if given.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> acc = np.array([[-3000, 500, 1500], [7, 8, 900000]], np.int32)
    >>> fastq.requantize(acc, 0.001, -1, "int8")
    array([[ -4,   0,   1],
           [ -1,  -1, 127]], dtype=int8)
    >>> fastq.requantize(acc, 0.001, -1, "int8", convention="onnxruntime")
    array([[ -4,  -1,   1],
           [ -1,  -1, 127]], dtype=int8)
    """
    key: Any = None
    # a labelled bias is brought into the order of acc first
    if bias is not None and not (has_named_dimensions(acc) and has_named_dimensions(bias)):
        bias = as_array(bias, "bias")
        key = bias.dtype, bias.shape, bias.strides, bias.flags.num
    clamp = clamp if clamp is None else as_clamp(clamp)
    options = axis, dtype, convention, clamp, key
    result: Array = call("requantize", acc, out, multiplier, zero_point, bias, options, (type(axis),))
    return result
