"""Requests to round floats to fewer bits."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fastq.formats.bitrounding import TIES, most_digits, of_width
from fastq.formats.floats import FLOATS
from fastq.formats.granularity import axes_from_front
from fastq.system.arguments import as_choice, as_float, as_int, native


class BitRoundOptions(NamedTuple):
    """Options of `fastq.bitround`."""

    keepbits: int | None = None
    digits: int | None = None
    max_error: float | None = None
    convention: str = "numcodecs"


class BitPairOptions(NamedTuple):
    """Options of `fastq.bit_information`."""

    axis: int = -1


class BitRounding(NamedTuple):
    """Everything in a call of `fastq.bitround` except its arrays; one of the three numbers is given."""

    dtype: np.dtype[Any]
    keepbits: int | None
    digits: int | None
    max_error: float | None
    rounding: str  # the rounding of ties

    @property
    def bits(self) -> int:
        """Width of the floats."""
        return 8 * self.dtype.itemsize

    def keepbits_within(self, largest: float) -> int:
        """Return the fewest bits within the bound for numbers up to the largest, which may not become infinite.

        A number is at most half a kept bit away from its neighbours: ``2**(exponent - kept - 1)``. Up to 10, whose
        exponent is 3, an error of at most 0.1 takes 6 bits, which leave 1/16.
        """
        mantissa, bias = of_width(self.bits)
        bound = self.max_error
        if not largest:
            return 0
        exponent = max(math.frexp(largest)[1] - 1, 1 - bias)  # subnormal numbers have that of the smallest normal one
        kept = exponent - math.frexp(min(bound, float(np.finfo(self.dtype).max)))[1] if bound else mantissa
        kept = min(max(kept, 0), mantissa)
        # from halfway of the largest number with the kept bits and 2**(bias + 1) on, numbers round to infinity
        while kept < mantissa and largest >= math.ldexp(2 - 2.0 ** -(kept + 1), bias):
            kept += 1
        return kept


def bitround_request(dtype: np.dtype[Any], options: BitRoundOptions) -> BitRounding:
    """Return the request of `fastq.bitround`, for values of a dtype."""
    as_floats(dtype)
    dtype = native(dtype)
    numbers = {name: number for name, number in options._asdict().items() if name != "convention"}
    names = [name for name, number in numbers.items() if number is not None]
    if len(names) != 1:
        raise TypeError(f"one of keepbits, digits and max_error must be given, not {', '.join(names) or 'none'}")
    rounding = TIES[as_choice(options.convention, "convention", tuple(TIES))]
    if options.max_error is not None:
        numbers["max_error"] = as_float(options.max_error, "max_error", 0.0, math.inf)
    else:
        (name,) = names
        bits = 8 * dtype.itemsize
        least, most = (0, of_width(bits)[0]) if name == "keepbits" else (1, most_digits(bits))
        numbers[name] = as_int(numbers[name], name)
        if not least <= numbers[name] <= most:
            raise ValueError(f"{name} must be from {least} to {most} for {dtype}, not {numbers[name]}")
    return BitRounding(dtype, **numbers, rounding=rounding)


def axis_of_bit_pairs(dtype: np.dtype[Any], ndim: int, options: BitPairOptions) -> int:
    """Return the axis along which `fastq.bit_information` pairs values of a dtype."""
    as_floats(dtype)
    return axes_from_front((as_int(options.axis, "axis"),), ndim, "x")[0]


def as_floats(dtype: np.dtype[Any]) -> None:
    """Raise an error unless an array of a dtype has IEEE floats of up to 64 bits."""
    if native(dtype) not in FLOATS:
        raise TypeError(f"x must be float16, float32 or float64, not {dtype}")
