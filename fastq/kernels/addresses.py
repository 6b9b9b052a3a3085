"""Addresses of kernels: shipped with the package, else compiled; each is named by its origin, without Numba."""

from __future__ import annotations

from typing import Any

from fastq.engine.code import shipped_or_compiled
from fastq.kernels.rule import ONNX, Rule
from fastq.kernels.storage import StorageFormat

_kernel = shipped_or_compiled("fastq.kernels.build", "kernel_address")
cast_address = shipped_or_compiled("fastq.kernels.build", "cast_address")
unpack_address = shipped_or_compiled("fastq.kernels.build", "unpack_address")
requantize_address = shipped_or_compiled("fastq.kernels.build", "requantize_address")
block_address = shipped_or_compiled("fastq.kernels.build", "block_address")


def kernel_address(
    loop: str,
    operands: Any,
    op: str,
    arithmetic: tuple[Rule, StorageFormat | None, StorageFormat | None] = (ONNX, None, None),
    *,
    nan: str = "raise",
    range_scheme: str = "",
    block: int = 0,
    together: bool = True,
    norm: float = 2.0,
    lanes_each: int = 1,
) -> int:
    """Return the address of a loop, by its name below `fastq.kernels`, for operands and what `KernelSpec` says.

    Operands say what the pointers point to, in the named tuple that the loop gets; the arithmetic is a rule, and the
    formats of codes and scales where a dtype does not say them.
    """
    return _kernel(loop, operands, op, *arithmetic, nan, range_scheme, block, together, norm, lanes_each)
