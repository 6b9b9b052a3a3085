"""Requests to requantize accumulators: validated from dtypes, shapes and options, then multipliers and biases."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.formats.floats import is_real
from fastq.formats.granularity import ARRAY, Axis, Granularity, axes_that_fit, granularity
from fastq.formats.qtypes import QType, as_qtype
from fastq.formats.requantization import Requantization, as_requantization
from fastq.requests.parameters import ready_codes
from fastq.system import arguments
from fastq.system.arrays_of_callers import as_array
from fastq.system.dtypes import INTEGER_DTYPES, REAL_DTYPES

Array = NDArray[Any]
Shape = tuple[int, ...]

SUMS = np.dtype(np.int32)
_FORMATS = "int8", "uint8", "int16"
_FLOAT32 = np.dtype(np.float32)
_FLOAT64 = np.dtype(np.float64)


class RequantizeOptions(NamedTuple):
    """Options of `fastq.requantize`; `key` is the part of the bias on which a plan may depend."""

    axis: Axis = None
    dtype: object = None
    convention: str = "tflite"
    clamp: tuple[int, int] | None = None
    key: Any = None


class RequantizeRequest(NamedTuple):
    """Everything in a call that requantizes except its arrays."""

    qtype: QType  # the code format
    convention: Requantization  # its arithmetic and what it refuses
    granularity: Granularity  # the elements that share a multiplier and a bias; the array, if there is one of each
    acc: Shape  # shape of the accumulators
    shape: Shape  # shape of multipliers and biases that are not one number
    codes: tuple[int, int]  # the first and the last code in use
    bias: np.dtype[Any] | None  # the dtype in which biases are added, None without biases

    @property
    def channels(self) -> int:
        """The number of multipliers and biases."""
        return math.prod(self.shape)

    def ready(self, multiplier: Any, zero_point: Any, bias: Array | None) -> tuple[Array, Array, Array | None]:
        """Return numbers in the dtypes that kernels read: one for each channel, except the zero point."""
        multipliers = self._each(_ready_multiplier(multiplier), "multiplier")
        zero = as_array(zero_point, "zero_point")
        if zero.size != 1:
            raise ValueError(f"zero_point must be one number, not of shape {zero.shape}")
        code = ready_codes(zero.reshape(()), self.qtype, ())
        return multipliers, code, None if bias is None else self._each(_ready_bias(bias, self.bias), "bias")

    def _each(self, numbers: Array, name: str) -> Array:
        """Return one number for each channel."""
        if numbers.size == 1:
            return np.full(self.shape, numbers.reshape(()))
        if numbers.shape != self.shape:
            fitting = axes_that_fit(numbers.shape, self.acc, "acc")
            if self.granularity is not ARRAY:
                raise ValueError(
                    f"{name} has shape {numbers.shape}, but acc and axis need {self.shape} or one number; {fitting}"
                )
            raise ValueError(f"{name} has shape {numbers.shape}, so it needs an axis: {fitting}")
        return numbers

    def refuse(self, multiplier: Any) -> None:
        """Raise the error for a multiplier that is too large."""
        below = self.convention.below
        name = self.convention.name
        largest = np.max(multiplier)
        raise ValueError(f"multiplier must be less than {below} for convention {name!r}, not {largest}")


def requantize_request(
    dtype: np.dtype[Any], shape: Shape, options: RequantizeOptions, *numbers: Shape
) -> RequantizeRequest:
    """Return the request of `fastq.requantize`; `numbers` are the shapes of multiplier and bias."""
    if arguments.native(dtype) != SUMS:
        raise TypeError(f"acc must be an int32 array, such as sums of products, not {dtype}")
    qtype = as_qtype(options.dtype)
    convention = as_requantization(options.convention)
    axis = arguments.as_axis(options.axis)
    if qtype.name not in _FORMATS:
        raise TypeError(f"dtype must be one of {', '.join(_FORMATS)}, not {qtype}")
    channels = granularity(axis, 0, len(shape), "acc")
    if all(math.prod(shape_of_numbers) == 1 for shape_of_numbers in numbers):
        channels = ARRAY
    return RequantizeRequest(
        qtype=qtype,
        convention=convention,
        granularity=channels,
        acc=shape,
        shape=channels.parameter_shape(shape),
        codes=_code_range(options.clamp, qtype),
        bias=None if options.key is None else _bias_dtype(options.key[0], convention),
    )


def _code_range(clamp: object, qtype: QType) -> tuple[int, int]:
    """Return the first and the last code in use."""
    if clamp is None:
        return int(qtype.qmin), int(qtype.qmax)
    first, last = as_clamp(clamp)
    if not qtype.qmin <= first <= last <= qtype.qmax:
        raise ValueError(
            f"clamp must be two codes of {qtype} in order, from {qtype.qmin} to {qtype.qmax}, not {first}, {last}"
        )
    return first, last


def as_clamp(clamp: Any) -> tuple[int, int]:
    """Return two integers."""
    items = arguments.as_items(clamp, "clamp", "two codes")
    if len(items) != 2:
        raise ValueError(f"clamp must be two codes, not {arguments.shown(clamp)}")
    return arguments.as_int(items[0], "clamp[0]"), arguments.as_int(items[1], "clamp[1]")


def _bias_dtype(dtype: np.dtype[Any], convention: Requantization) -> np.dtype[Any]:
    """Return the dtype in which biases of a dtype are added."""
    if dtype.kind in "iu":
        return SUMS
    if is_real(dtype) and convention.float_bias:
        return _FLOAT32
    raise TypeError(f"bias must be {INTEGER_DTYPES} for convention {convention.name!r}, not {dtype}")


def check_multiplier(dtype: np.dtype[Any] | None) -> None:
    """Raise an error unless multipliers may be of a dtype."""
    if dtype is None or not (is_real(dtype) or dtype.kind in "iu"):
        raise TypeError(f"multiplier must be {REAL_DTYPES}, not {dtype}")


def _ready_multiplier(multiplier: Any) -> Array:
    """Return multipliers in float32 or float64, finite and not negative."""
    multipliers = as_array(multiplier, "multiplier")
    check_multiplier(multipliers.dtype)
    dtype = arguments.native(multipliers.dtype)
    converted = multipliers.astype(dtype if dtype == _FLOAT32 else _FLOAT64, copy=False)
    bad = ~((converted >= 0) & (converted < np.inf))
    if bad.any():
        first_bad = converted[bad].flat[0]
        count = np.count_nonzero(bad)
        raise ValueError(
            f"multiplier must be finite and not negative; {count} of {bad.size} are not, such as {first_bad}"
        )
    return converted


def _ready_bias(bias: Array, dtype: np.dtype[Any] | None) -> Array:
    """Return biases in the dtype in which they are added, which must have their numbers."""
    with np.errstate(over="ignore", under="ignore"):
        converted = bias.astype(dtype)
    if dtype == SUMS and not np.array_equal(converted, bias):
        raise ValueError(
            f"bias must be from {-(2**31)} to {2**31 - 1}, not {arguments.between(bias.min(), bias.max())}"
        )
    if dtype != SUMS and not np.isfinite(converted).all():
        raise ValueError("bias must be finite in float32")
    return converted
