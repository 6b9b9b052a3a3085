"""The packing of a variable, from its range or from another variable, and its codes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fastq.adapters.xarray.missing_values import (
    OF_GAPS,
    OF_LIMITS,
    OF_SCALE,
    Missing,
    code,
    codes_dtype,
    dtype_by_unsigned,
    limits,
    numbers,
)
from fastq.formats.qtypes import QType
from fastq.ops.cf_packing import PACKED_INTEGERS, pack_floats
from fastq.ops.quantize import choose_qparams
from fastq.system.dtypes import Array

if TYPE_CHECKING:
    from xarray import Variable

# attributes of a packing
OF_PACKING = ("dtype", *OF_SCALE, *OF_GAPS, "_Unsigned")
_ZERO_BITS = 12  # bits of the scale, and of the code of 0: their product is a float32


class CfPacking(NamedTuple):
    """Codes of a variable, and their values."""

    dtype: np.dtype[Any]  # that of the codes
    stored: np.dtype[Any]  # that of the stored integers: of the codes, or the signed one of the same width
    # parameters in the type to compute in
    scale: Any
    offset: Any
    codes: tuple[int, int]  # the first and the last code for numbers
    fill: int | None  # the code of missing values
    attributes: dict[str, Any]  # attributes for readers
    rounding_error: float  # largest distance of a value from that of its code, both exact: half a step, or a tiny range
    name: Any = None  # that of the variable, for messages

    @property
    def max_error(self) -> float:
        """Largest error of a value in the range: a number whose code is the fill value takes the next code."""
        return self.nearest_error + (self.rounding_error if self.has_gap else 0.0)

    @property
    def nearest_error(self) -> float:
        """Upper bound of the error of a value that has the nearest code.

        That is half a step, plus half of epsilon for each number that is rounded: relative to the reach of codes for
        the difference from the offset, the quotient, the scale and the product, and to the largest number for the sum
        and the offset.
        """
        if self.rounding_error < self.scale / 2:  # a tiny range, all of whose values become the offset
            return self.rounding_error
        offset = float(self.offset)
        ends = self.ends
        largest = max(abs(offset), *map(abs, ends))
        reach = max(abs(end - offset) for end in ends)
        return self.rounding_error + min(4 * largest, largest + 2 * reach) * float(np.finfo(self.scale.dtype).eps)

    @property
    def has_gap(self) -> bool:
        """Whether the fill value is among the codes of numbers."""
        return self.fill is not None and self.codes[0] < self.fill < self.codes[1]

    @property
    def stored_fill(self) -> Any:
        """The fill value as a stored integer."""
        return np.array(self.fill, self.dtype).view(self.stored)[()]

    @property
    def ends(self) -> list[float]:
        """The smallest and the largest value of codes."""
        return sorted(float(self.offset) + code * float(self.scale) for code in self.codes)

    def units(self, x: Any) -> Any:
        """Return whole numbers of steps, within the codes and beyond."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.rint((np.asarray(x, self.scale.dtype) - self.offset) / self.scale)

    def has(self, extremes: Array) -> bool:
        """Return whether a minimum and a maximum, if there are any, have no larger errors than values between them."""
        lo, hi = map(float, extremes)
        first, last = self.ends
        return not (first - lo > self.nearest_error or hi - last > self.nearest_error)

    def encode(self, x: Array, missing: Missing | None) -> Array:
        """Return the stored integers: ``clamp(rint((x - offset) / scale))`` in the compute type, or the fill value."""
        values = (x if missing is None else missing.with_nan(x)).astype(self.scale.dtype, copy=False)
        if self.fill is None and np.isnan(values).any():
            raise ValueError(f"ds has missing values in {self.name!r}, for which like has no _FillValue")
        codes = pack_floats(
            values,
            self.dtype,
            code_range=self.codes,
            scale=float(self.scale),
            offset=float(self.offset),
            fill=self.fill or 0,
        )
        if self.has_gap:  # numbers that have the code of missing values take the next code on their side of it
            are_numbers_in_gap = (codes == self.fill) & ~np.isnan(values)
            is_above = (values > self.fill * self.scale + self.offset) ^ (self.scale < 0)
            step = np.where(is_above, 1, -1)
            codes[are_numbers_in_gap] += step[are_numbers_in_gap].astype(self.dtype)
        return codes.view(self.stored)

    def limits(self, attributes: dict[Any, Any], missing: Missing | None, extremes: Array | None) -> dict[str, Any]:
        """Return limits among attributes in codes, and the actual range of the values to read, if it is known."""
        attributes_of_limits: dict[str, Any] = {}
        if missing is not None:
            low, high = np.clip(self.units(missing.limits), *self.codes).astype(self.dtype).view(self.stored)
            of_keys = {"valid_range": np.array([low, high]), "valid_min": low, "valid_max": high}
            attributes_of_limits = {key: of_keys[key] for key in OF_LIMITS if key in attributes}
        if "actual_range" in attributes and extremes is not None and not np.isnan(extremes).any():
            attributes_of_limits["actual_range"] = np.clip(self.units(extremes), *self.codes) * self.scale + self.offset
        return attributes_of_limits


def packing_of_range(extremes: Array, qtype: QType, as_signed: bool) -> CfPacking:
    """Return the packing of a minimum and a maximum; `as_signed` stores unsigned codes as signed ones, with _Unsigned.

    NaN, from missing values only, counts as 0. A range without extent, or too small to divide, becomes the offset, with
    code 0. The fill value is the lowest signed code, unless that is the code of 0, the smallest value; else the highest
    code.
    """
    extremes = np.where(np.isnan(extremes), extremes.dtype.type(0), extremes)
    params = choose_qparams(extremes, qtype, convention="cf")
    lo, hi = map(float, extremes)
    is_tiny = hi - lo < float(params.scale)
    fill = qtype.qmin if qtype.signed and (lo or is_tiny) else qtype.qmax
    first = qtype.qmin + 1 if fill < 0 else qtype.qmin
    last = qtype.qmax - 1 if fill > 0 else qtype.qmax
    codes = first, last
    scale = params.scale[()]
    offset = params.zero_point[()]
    has_zero = lo <= 0 <= hi
    if is_tiny:
        offset = scale.dtype.type(0 if has_zero else lo)
    elif lo == 0:
        offset = -qtype.qmin * scale  # exact: a power of 2 times the scale
    elif has_zero and offset != 0 and hi - lo < float(np.finfo(scale.dtype).max):
        scale, offset = map(scale.dtype.type, _scale_and_offset_with_zero(lo, hi, codes))
    dtype = qtype.storage
    stored = np.dtype(f"i{dtype.itemsize}") if as_signed else dtype
    attributes = {"scale_factor": scale, "add_offset": offset, "_FillValue": dtype.type(fill).astype(stored)}
    attributes |= {"_Unsigned": "true"} if stored != dtype else {}
    return CfPacking(
        dtype=dtype,
        stored=stored,
        scale=scale,
        offset=offset,
        codes=codes,
        fill=fill,
        attributes=attributes,
        rounding_error=hi - lo if is_tiny else float(scale) / 2,
    )


def _scale_and_offset_with_zero(lo: float, hi: float, codes: tuple[int, int]) -> tuple[float, float]:
    """Return a scale and an offset for a range with 0, so that a code is exactly 0 in float32 and in float64.

    The scale has few bits, and so has the code, with 16 bits a multiple of 16: their product is exact. For that the
    code of 0 may move by up to 15 codes, so there are fewer steps for the range.

    For -1 to 3 and codes from -127 to 127, 4 / 254 is 0.015748; the next number with 12 bits is 0.0157547, by which the
    code of 0 is -64 and the offset 64 times the scale, 1.00830078125.
    """
    first, last = codes
    steps = last - first
    multiple = 1 << max(0, steps.bit_length() - _ZERO_BITS)
    mantissa, exponent = math.frexp((hi - lo) / (steps - multiple + 1))
    scale = math.ldexp(math.ceil(math.ldexp(mantissa, _ZERO_BITS)), exponent - _ZERO_BITS)
    zero = multiple * math.ceil((first - lo / scale - 0.5) / multiple)
    return scale, -zero * scale


def packing_of_variable(name: Any, variable: Variable) -> CfPacking | None:
    """Return the packing of another variable by its attributes or its encoding; None if it is not packed."""
    attributes = variable.encoding | variable.attrs
    is_decoded = not any(key in variable.attrs for key in OF_SCALE)  # then the encoding has what the attributes had
    stored = codes_dtype("like", name, variable.encoding.get("dtype") if is_decoded else variable.dtype)
    sizes = dict.fromkeys(OF_SCALE, 1) | dict.fromkeys(OF_GAPS)
    numbers_by_key = {key: numbers("like", name, key, attributes.get(key), size) for key, size in sizes.items()}
    if stored is None or not any(numbers_by_key[key].size for key in OF_SCALE):
        return None
    unsigned = attributes.get("_Unsigned")
    dtype = dtype_by_unsigned(stored, unsigned)
    if dtype not in PACKED_INTEGERS:
        raise ValueError(f"like has {dtype} codes in {name!r}, which must have 8, 16 or 32 bits")
    scale, offset = _scale_and_offset_of(name, numbers_by_key, stored)
    fills = {code("like", name, key, gap, stored, unsigned) for key in OF_GAPS for gap in numbers_by_key[key]}
    if len(fills) > 1:
        raise ValueError(f"like has several fill values in {name!r}: {sorted(fills)}")
    packing = CfPacking(
        dtype=dtype,
        stored=stored,
        scale=scale,
        offset=offset,
        codes=(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)),
        fill=next(iter(fills), None),
        attributes={key: attributes[key] for key in (*OF_PACKING[1:], *OF_LIMITS) if attributes.get(key) is not None},
        rounding_error=abs(float(scale)) / 2,
        name=name,
    )
    return packing._replace(codes=_codes_within_limits(packing, attributes))


def _scale_and_offset_of(name: Any, numbers_by_key: dict[str, Array], stored: np.dtype[Any]) -> Any:
    """Return the scale and the offset in attributes, in the type to compute in, as xarray chooses it.

    Raise ValueError if they are no numbers by which codes can be decoded.
    """
    noted = [numbers_by_key[key] for key in OF_SCALE]
    is_single = stored.itemsize < 4 and all(number.dtype == np.float32 for number in noted if number.size)
    units = [np.append(number, neutral)[0] for number, neutral in zip(noted, (1, 0), strict=True)]
    scale, offset = np.array(units, np.float32 if is_single else np.float64)
    if not (np.isfinite([scale, offset]).all() and scale):
        raise ValueError(
            f"like has scale_factor {scale} and add_offset {offset} in {name!r}, which do not describe a packing"
        )
    return scale, offset


def _codes_within_limits(packing: CfPacking, attributes: dict[Any, Any]) -> tuple[int, int]:
    """Return the first and the last code for numbers, within the valid limits among attributes.

    Limits that are floats are values, integers are codes. If the scale is negative, the largest value has the first
    code.
    """
    lower: list[float] = [packing.codes[0]]
    upper: list[float] = [packing.codes[1]]
    for key, end, limit in limits("like", packing.name, attributes):
        is_upper = bool(end)
        limit_code: float
        if limit.dtype.kind == "f":
            limit_code = packing.units(limit)
            is_upper ^= bool(packing.scale < 0)
        else:
            limit_code = code("like", packing.name, key, limit, packing.stored, attributes.get("_Unsigned"))
        (upper if is_upper else lower).append(limit_code)
    first, last = (int(np.clip(end, *packing.codes)) for end in (np.fmax.reduce(lower), np.fmin.reduce(upper)))
    first = first + 1 if first == packing.fill else first
    last = last - 1 if last == packing.fill else last
    return first, last
