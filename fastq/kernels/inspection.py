"""Show what runs: the LLVM IR and the assembly of the kernels of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastq.engine import jit
from fastq.engine.runtime import driver


class Inspection(tuple[jit.Listing, ...]):
    """The kernels of a call in the order of their launch, each once: its name, types, LLVM IR and assembly."""

    @property
    def llvm(self) -> str:
        """LLVM IR of all kernels."""
        return "\n".join(f"; {kernel.name}({kernel.types})\n{kernel.llvm}" for kernel in self)

    @property
    def asm(self) -> str:
        """Assembly of all kernels."""
        return "\n".join(f"# {kernel.name}({kernel.types})\n{kernel.asm}" for kernel in self)

    def __repr__(self) -> str:
        return f"<kernels {', '.join(kernel.name for kernel in self)}>"


def inspect(function: Callable[..., Any], *arguments: Any, **options: Any) -> Inspection:
    """Make a call and list the kernels that it launched; see `fastq.kernels.inspect`."""
    with driver.recorded_kernels() as kernels:
        function(*arguments, **options)
    return Inspection(map(jit.listing, dict.fromkeys(kernels)))
