"""FloatFormat: the float formats for which NumPy has no arithmetic, one table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.system import imports
from fastq.system.arguments import native
from fastq.system.attributes import cached_property
from fastq.system.dtypes import Array


@dataclass(frozen=True)
class FloatFormat:
    """A binary float format: sign, exponent and mantissa bits, the sign bit highest."""

    name: str  # name in NumPy or ml_dtypes
    # width of the two fields
    exponent: int
    mantissa: int
    # a normal number is ``2**(exponent field - bias) * (1 + mantissa field / 2**mantissa)``; exponent field 0 has the
    # subnormal numbers
    bias: int
    largest: int  # code of the largest finite number, sign bit clear
    infinity: int | None = None  # code of infinity; None without one
    nan: int | None = None  # code of NaN, that of a computed one if there are several; None without one
    sign: bool = True  # whether there is a sign bit

    @cached_property
    def bits(self) -> int:
        """Width of a code."""
        return self.exponent + self.mantissa + self.sign

    @cached_property
    def max(self) -> float:
        """The largest finite number."""
        return self.number(self.largest)

    @cached_property
    def emax(self) -> int:
        """The exponent of the largest finite number."""
        return (self.largest >> self.mantissa) - self.bias

    @cached_property
    def smallest_normal(self) -> float:
        """The smallest positive number that has all digits."""
        return 2.0 ** (1 - self.bias)

    def number(self, code: int) -> float:
        """Return the number of a code that is neither infinity nor NaN, in a format with a sign.

        Code 0x3C of float8_e4m3fn has the exponent field 7 and the mantissa field 4, of 8: ``2**(7 - 7) * (1 + 4/8)``.
        """
        exponent, fraction = divmod(code & ((1 << self.exponent + self.mantissa) - 1), 1 << self.mantissa)
        size = 2.0 ** (max(exponent, 1) - self.bias) * ((exponent > 0) + fraction / (1 << self.mantissa))
        return -size if code >> self.exponent + self.mantissa else size

    def positive(self, number: float) -> float:
        """Return the number of this format nearest to another one, but at least the smallest above 0, and finite."""
        smallest = 2.0 ** (1 - self.bias - self.mantissa)
        return max(float(np.float64(min(number, self.max)).astype(self.dtype)), smallest)

    @cached_property
    def without_negative_zero(self) -> bool:
        """Whether the code of -0.0 is NaN instead."""
        return self.sign and self.nan == 1 << (self.bits - 1)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of arrays of this format, one element in one or two bytes."""
        if self.name == "float16":
            return np.dtype(np.float16)
        try:
            dtype: np.dtype[Any] = np.dtype(getattr(imports.ml_dtypes(), self.name))
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{self.name} arrays need ml_dtypes: pip install ml_dtypes") from error
        return dtype


# IEEE 754; ONNX, "Float stored in 8 bits" and "Float stored in 4 bits"; OCP Microscaling Formats (MX) 1.0, section 5.3
FLOAT_FORMATS = {
    row.name: row
    for row in (
        FloatFormat("float16", 5, 10, 15, 0x7BFF, 0x7C00, 0x7E00),
        FloatFormat("bfloat16", 8, 7, 127, 0x7F7F, 0x7F80, 0x7FC0),
        FloatFormat("float8_e4m3fn", 4, 3, 7, 0x7E, None, 0x7F),
        FloatFormat("float8_e4m3fnuz", 4, 3, 8, 0x7F, None, 0x80),
        FloatFormat("float8_e5m2", 5, 2, 15, 0x7B, 0x7C, 0x7E),
        FloatFormat("float8_e5m2fnuz", 5, 2, 16, 0x7F, None, 0x80),
        FloatFormat("float6_e3m2fn", 3, 2, 3, 0x1F),
        FloatFormat("float6_e2m3fn", 2, 3, 1, 0x1F),
        FloatFormat("float4_e2m1fn", 2, 1, 1, 0x7),
        FloatFormat("float8_e8m0fnu", 8, 0, 127, 0xFE, None, 0xFF, sign=False),
    )
}


# --- numbers that a small float loses ---------------------------------------------------------------------------------

# What becomes of a scale that is subnormal in the type that it is stored in, or would be 0 there, depends on whose
# arithmetic or file it is, so there is a function for each:
#
# before codes are computed with it, it is rounded, raised if the range would not fit, and replaced if it is below the
#     convention's floor: contract 5.4, `_usable` in kernels/scales_of_ranges.py
# after codes were computed with it, it is rounded, and the least number stands for 0: contract 2.9,
#     `scale_as_stored` in kernels/minifloat.py
# in tensors of another system it is rounded with a warning, and 0 is refused: `stored_scale` in tools/layouts/layout.py
# in model directories it is as by the convention, and counted for a note: `count_rough_scales` in
#     tools/checkpoints/encoding.py; in float8, 0.125 stands for 0, as in compressed-tensors: `_in_e4m3` there


def are_subnormal(numbers: Array, dtype: np.dtype[Any]) -> NDArray[np.bool_]:
    """Return which numbers are nearer to 0 than the normal numbers of a dtype, which has fewer of their digits."""
    float_format = FLOAT_FORMATS.get(dtype.name)  # NumPy does not know bfloat16
    least = float_format.smallest_normal if float_format else float(np.finfo(dtype).smallest_normal)
    return np.asarray(np.abs(numbers) < least)


# --- dtypes of values -------------------------------------------------------------------------------------------------

FLOATS: frozenset[np.dtype[Any]] = frozenset(map(np.dtype, (np.float16, np.float32, np.float64)))
REAL = "float16, bfloat16, float32 or float64"


def is_real(dtype: np.dtype[Any]) -> bool:
    """Return whether this is a dtype of values: float16, float32, float64, or bfloat16, recognized by name."""
    return native(dtype) in FLOATS or dtype.name == "bfloat16"
