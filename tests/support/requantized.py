"""Codes of accumulators in integers of Python, step by step as the sources of each system have them."""

import math

import numpy as np

CONVENTIONS = "tflite", "tflite-single", "ruy-x86", "xnnpack", "onnxruntime", "torch"


def wrapped(number):
    """Return what int32 has of a number."""
    return (number + 2**31) % 2**32 - 2**31


def quantized_multiplier(multiplier):
    """Return TensorFlow Lite's multiplier of 31 bits, and its shift."""
    if multiplier == 0.0:
        return 0, 0
    fraction, shift = math.frexp(multiplier)
    units = math.floor(fraction * 2**31 + 0.5)
    if units == 2**31:
        units, shift = 2**30, shift + 1
    return (0, 0) if shift < -31 else (units, shift)


def _divided(number, divisor):
    """Divide as C does, towards zero."""
    return abs(number) // divisor * (1 if number >= 0 else -1)


def by_fixed_point(convention, number, multiplier):
    """Return an accumulator times a multiplier, as an int32."""
    units, shift = quantized_multiplier(float(multiplier))
    if convention == "tflite-single":
        right = 31 - shift
        return wrapped((number * units + (1 << (right - 1))) >> right)
    product = wrapped(number << max(shift, 0)) * units
    high = _divided(product + (2**30 if product >= 0 else 1 - 2**30), 2**31)
    right = max(-shift, 0)
    if convention == "ruy-x86":
        return (high + (1 << (right - 1) if right else 0)) >> right
    mask = (1 << right) - 1
    return (high >> right) + ((high & mask) > (mask >> 1) + (high < 0))


def by_float(number, multiplier):
    """Return the product in float32, half to even."""
    with np.errstate(over="ignore"):
        product = np.float32(number) * np.float32(multiplier)
    return round(float(product)) if np.isfinite(product) else int(math.copysign(2**200, product))


def code(convention, acc, multiplier, zero_point, first, last, bias=0):
    """Return the code of an accumulator."""
    if isinstance(bias, np.floating):
        return min(max(by_float(np.float32(acc) + np.float32(bias), multiplier) + zero_point, first), last)
    number = wrapped(int(acc) + int(bias))
    if convention in ("xnnpack", "onnxruntime", "torch"):
        return min(max(by_float(number, multiplier) + zero_point, first), last)
    return min(max(wrapped(by_fixed_point(convention, number, multiplier) + zero_point), first), last)


def codes(acc, multiplier, zero_point, dtype, *, axis=None, bias=None, clamp=None, convention="tflite"):
    """Return the codes of an array, one by one."""
    result, info = np.empty(acc.shape, dtype), np.iinfo(dtype)
    first, last = clamp or (int(info.min), int(info.max))

    def of(numbers, index):
        numbers = np.asarray(numbers)
        if numbers.size == 1:
            return numbers.reshape(-1)[0]
        return numbers[tuple(index[a] for a in (axis if isinstance(axis, tuple) else (axis,)))]

    for index in np.ndindex(acc.shape):
        term = 0 if bias is None else of(bias, index)
        result[index] = code(convention, acc[index], of(multiplier, index), zero_point, first, last, term)
    return result
