"""The formats with their own scales in plain NumPy: OCP microscaling and NVFP4."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType
from fastq.reference import floats
from fastq.requests.parameters import TENSOR_SCALES
from fastq.results import QParams
from fastq.system.dtypes import Array

MXINT8_STEPS = 64  # OCP Microscaling Formats (MX) 1.0, section 5.3.4: int8 elements have six fractional bits
NVFP4_LEAST = 2.0**-6  # the smallest normal number of float8_e4m3fn, torchao's lower limit of block scales


def scale_of_blocks(
    largest: Array, spoiled: NDArray[np.bool_], qtype: QType, tensor_scale: NDArray[np.float32] | None
) -> Array:
    """Return the scales of blocks from their largest magnitudes; NaN for blocks that are `spoiled`.

    OCP Microscaling Formats (MX) 1.0, section 6.3; for NVFP4, torchao's `nvfp4_quantize`.
    """
    # contract 12.2 and 12.3
    row = FLOAT_FORMATS[qtype.scale_element]
    if tensor_scale is None:
        codes = _exponents_of_blocks(largest, qtype) + row.bias
    else:
        codes = floats.encode(_block_scales(largest, tensor_scale, qtype), row, saturate=True)
    assert row.nan is not None
    return np.where(spoiled, row.nan, codes).astype(np.uint8).view(row.dtype)


def _exponents_of_blocks(largest: Array, qtype: QType) -> Array:
    emax = FLOAT_FORMATS[qtype.element].emax if qtype.element else 0
    exponents = np.frexp(largest)[1].astype(np.int64) - 1 - emax
    return np.where(largest > 0, np.clip(exponents, -127, 127), -127)


@np.errstate(over="ignore", under="ignore")
def tensor_scale(largest: Array, qtype: QType) -> NDArray[np.float32]:
    """Return the scale of the whole array from magnitudes of blocks, by torchao's `per_tensor_amax_to_scale`."""
    # contract 12.3
    full = largest.dtype.type(FLOAT_FORMATS[qtype.scale_element].max * FLOAT_FORMATS[qtype.element].max)
    size = np.max(largest, initial=0)
    least, most = TENSOR_SCALES
    return np.array(min(max(size / full, least), most) if size else 1, np.float32)


@np.errstate(over="ignore", under="ignore")
def _block_scales(largest: Array, tensor_scale: NDArray[np.float32], qtype: QType) -> Array:
    ftype = largest.dtype.type
    scale = largest / ftype(FLOAT_FORMATS[qtype.element].max) / ftype(tensor_scale)
    return np.asarray(np.clip(scale, ftype(NVFP4_LEAST), ftype(FLOAT_FORMATS[qtype.scale_element].max)))


def steps(p: QParams) -> NDArray[np.float64]:
    """Return the scales as numbers."""
    return floats.decode(p.scale, FLOAT_FORMATS[p.dtype.scale_element])


@np.errstate(over="ignore", under="ignore")
def ratios(x: Array, scale: Array, p: QParams) -> Array:
    """Return `x` in units of codes; `scale` are the `steps`, spread over `x`. Zero where a scale is NaN."""
    # contract 12.2 and 12.3
    ftype = x.dtype.type
    if not p.dtype.has_tensor_scale:
        # A float32 quotient would only round numbers far below the smallest element.
        units = x.astype(np.float64) / scale * (1 if p.dtype.element else MXINT8_STEPS)
    else:
        units = x * ((ftype(1) / ftype(1 if p.tensor_scale is None else p.tensor_scale)) / scale.astype(ftype))
    return np.asarray(np.where(np.isnan(scale), 0, units))


@np.errstate(over="ignore", under="ignore")
def value_steps(p: QParams) -> NDArray[np.float32]:
    """Return the factor of a code."""
    # contract 12.4
    scale = steps(p).astype(np.float32)
    if not p.dtype.has_tensor_scale:
        return scale if p.dtype.element else scale / np.float32(MXINT8_STEPS)
    return scale if p.tensor_scale is None else scale * p.tensor_scale
