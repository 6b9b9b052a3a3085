"""The formats with their own scales in plain NumPy: OCP microscaling and NVFP4."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastq.formats.conventions.convention import Convention
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType
from fastq.reference import floats
from fastq.reference.floats import in_half
from fastq.requests.parameters import TENSOR_SCALES
from fastq.results import QParams
from fastq.system.dtypes import Array

MXINT8_STEPS = 64  # OCP Microscaling Formats (MX) 1.0, section 5.3.4: int8 elements have six fractional bits
MXINT8_DIGITS = 6


def scale_of_blocks(
    largest: Array,
    spoiled: NDArray[np.bool_],
    qtype: QType,
    tensor_scale: NDArray[np.float32] | None,
    convention: Convention,
    half: str,
) -> Array:
    """Return the scales of blocks from their largest magnitudes; NaN for blocks that are `spoiled`.

    Operations are rounded to the dtype of half precision `half`, if it is not empty.
    """
    # contract 12.2, 12.3, 12.6 and 12.8
    form = FLOAT_FORMATS[qtype.scale_element]
    if tensor_scale is None:
        codes = _exponents_of_blocks(largest, qtype, convention, half) + form.bias
    else:
        scale = _over_element(largest, qtype, convention, half) / largest.dtype.type(tensor_scale)
        least, most = (largest.dtype.type(end) for end in (convention.block_scale_floor, form.max))
        codes = floats.encode(np.asarray(np.clip(scale, least, most)), form, saturate=True)
    assert form.nan is not None
    return np.where(spoiled, form.nan, codes).astype(np.uint8).view(form.dtype)


def _exponents_of_blocks(largest: Array, qtype: QType, convention: Convention, half: str) -> Array:
    """Return the exponents of scales that are powers of two.

    They come from the largest magnitude, less the exponent of the largest number of an element, or from the quotient of
    both, and are rounded as the convention says.
    """
    form = FLOAT_FORMATS[qtype.element] if qtype.element else None
    size, emax = largest, form.emax if form else 0
    if convention.exponent == "ceil_of_quotient":
        size, emax = _over_element(largest, qtype, convention, half), 0
    significand, exponents = np.frexp(size)  # from 0.5 to 1, and one more than the floor of log2
    if convention.exponent.startswith("ceil"):
        exponents = np.where(significand == 0.5, exponents - 1, exponents)
    else:
        digits = {"even": form.mantissa if form else MXINT8_DIGITS, "even_float4": 1}.get(convention.exponent)
        if digits is not None:
            exponents = np.where(
                np.ldexp(significand, digits + 1) + 0.5 >= 2.0 ** (digits + 1), exponents + 1, exponents
            )
        exponents = exponents - 1
    of_zeros = {"least": -127, "zero": 0}[convention.zero_exponent]
    return np.where(size > 0, np.clip(exponents.astype(np.int64) - emax, -127, 127), of_zeros)


@np.errstate(over="ignore", under="ignore")
def _over_element(largest: Array, qtype: QType, convention: Convention, half: str) -> Array:
    """Return the quotients of magnitudes by the largest number of an element."""
    # contract 12.6
    ftype = largest.dtype.type
    most = ftype(qtype.largest_element)
    if convention.scale_quotient == "reciprocal":
        return in_half(largest * in_half(np.asarray(ftype(1) / most), half), half)
    return in_half(np.asarray(largest / most), half)


@np.errstate(over="ignore", under="ignore")
def tensor_scale(largest: Array, qtype: QType, convention: Convention) -> NDArray[np.float32]:
    """Return the scale of the whole array from magnitudes of blocks."""
    # contract 12.3 and 12.8
    if convention.tensor_scale == "one":
        return np.ones((), np.float32)
    full = largest.dtype.type(FLOAT_FORMATS[qtype.scale_element].max * FLOAT_FORMATS[qtype.element].max)
    size = np.max(largest, initial=0)
    least, most = TENSOR_SCALES
    return np.array(min(max(size / full, least), most) if size else 1, np.float32)


def steps(p: QParams) -> NDArray[np.float64]:
    """Return the scales as numbers, decoded from the format that they are stored in."""
    return floats.decode(p.scale, FLOAT_FORMATS[p.dtype.scale_element])


@np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore")
def ratios(x: Array, scale: Array, p: QParams, convention: Convention, half: str) -> Array:
    """Return `x` in units of codes; `scale` are the `steps`, spread over `x`. Zero where a scale is NaN, or is 0."""
    # contract 12.2, 12.3, 12.7 and 12.8
    ftype = x.dtype.type
    if not p.dtype.has_tensor_scale:
        # A float32 quotient would only round numbers far below the smallest element.
        units = x.astype(np.float64) / scale * (1 if p.dtype.element else MXINT8_STEPS)
        units = in_half(units.astype(ftype), half) + ftype(0) if convention.zero_point_inside else units
    else:
        tensor = ftype(1 if p.tensor_scale is None else p.tensor_scale)
        scale = scale.astype(ftype)
        units = x / (scale * tensor) if convention.block_quotient == "divide" else x * ((ftype(1) / tensor) / scale)
    return np.asarray(np.where(np.isnan(scale) | (scale == 0), 0, units))


@np.errstate(over="ignore", under="ignore")
def value_steps(p: QParams) -> NDArray[np.float32]:
    """Return the factor of a code: the scale, times that of the array if there is one; in mxint8 a 64th of it."""
    # contract 12.4
    scale = steps(p).astype(np.float32)
    if not p.dtype.has_tensor_scale:
        return scale if p.dtype.element else scale / np.float32(MXINT8_STEPS)
    return scale if p.tensor_scale is None else scale * p.tensor_scale
