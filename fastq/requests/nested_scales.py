"""The arguments of `fastq.nest_scale`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.system.arguments import as_float, as_int, native, shown
from fastq.system.arrays_of_callers import as_array


def as_scales(scale: Any, block_size: Any, offset: Any) -> tuple[NDArray[np.float32], int, float | None]:
    """Return the arguments of `nest_scale`: float32 scales, the number in a block, and the offset."""
    scales = as_array(scale, "scale")
    if native(scales.dtype) != np.float32:
        raise TypeError(f"scale must be float32, not {scales.dtype}")
    if not scales.size or not np.isfinite(scales).all():
        raise ValueError("scale must be finite numbers, at least one")
    if (size := as_int(block_size, "block_size")) < 1:
        raise ValueError(f"block_size must be 1 or more, not {shown(block_size)}")
    return scales.astype(np.float32, copy=False), size, None if offset is None else as_offset(offset)


def as_offset(offset: Any) -> float:
    """Return the offset of scales, which must be finite in float32, as a float."""
    most = float(np.finfo(np.float32).max)
    return as_float(offset, "offset", -most, most)
