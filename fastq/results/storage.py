"""In which shape and dtype codes are stored: integers only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.formats.qtypes import QType
from fastq.system.arguments import native


def packed_length(length: int, qtype: QType) -> int:
    """Return how many bytes a row of codes takes."""
    return -(-length * qtype.bits // 8)


def packed_shape(shape: tuple[int, ...], qtype: QType, axis: int = -1) -> tuple[int, ...]:
    """Return the shape of packed codes: ``ceil(D * bits / 8)`` bytes along the axis; (1,) for rank 0."""
    sizes = list(shape) or [1]
    sizes[axis] = packed_length(sizes[axis], qtype)
    return tuple(sizes)


def stored_as(shape: tuple[int, ...], qtype: QType) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype in which a format stores the codes of an array of some shape."""
    return (packed_shape(shape, qtype), np.dtype(np.uint8)) if qtype.packed else (shape, qtype.storage)


def check_stored_codes(codes: NDArray[Any], qtype: QType, shape: tuple[int, ...]) -> None:
    """Pass if codes have the shape and dtype in which a format stores those of an array of some shape.

    Raises
    ------
    ValueError
        If not, naming both.
    """
    wanted, storage = stored_as(shape, qtype)
    if codes.shape != wanted or native(codes.dtype) != storage:
        raise ValueError(
            f"codes have shape {codes.shape} and dtype {codes.dtype}, "
            f"but {qtype} codes of shape {shape} have shape {wanted} and dtype {storage}"
        )
