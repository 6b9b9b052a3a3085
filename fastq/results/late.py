"""Operations that methods of results call, imported when such a method is first called: most programs need few."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from fastq.system.imports import late


@late
def dequantize() -> Callable[..., NDArray[Any]]:
    """Return `fastq.dequantize`."""
    from fastq.ops.dequantize import dequantize

    return dequantize


@late
def pack() -> Callable[..., NDArray[Any]]:
    """Return `fastq.pack`."""
    from fastq.ops.packing import pack

    return pack


@late
def unpack() -> Callable[..., NDArray[Any]]:
    """Return `fastq.unpack`."""
    from fastq.ops.packing import unpack

    return unpack


@late
def array_file() -> ModuleType:
    """Return the module that writes and reads files of arrays and parameters."""
    from fastq.ops import array_file

    return array_file
