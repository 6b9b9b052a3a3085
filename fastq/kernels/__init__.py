"""Loops over valid contiguous memory, compiled on first use; they know nothing of arrays, axes or conventions.

A kernel returns status bits, see `fastq.kernels.status`.
"""

from collections.abc import Callable
from typing import Any

from fastq.system import imports
from fastq.system.arguments import shown


def inspect(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Make a call and return the LLVM IR and the assembly of the kernels that it launched.

    Parameters
    ----------
    function : callable
        A function of fastq, or one that calls some.
    *arguments, **options
        What it is called with.

    Returns
    -------
    fastq.kernels.inspection.Inspection
        The kernels in the order of their launch; print its `llvm` or `asm`.

    Raises
    ------
    TypeError
        If function can't be called.

    Examples
    --------
    >>> import fastq
    >>> import numpy as np
    >>> kernels = fastq.kernels.inspect(fastq.quantize_linear, np.ones(8, np.float32), 0.1, 0, "int8")
    >>> [kernel.name for kernel in kernels]
    ['runs.runs']
    >>> "llvm.lrint" in kernels.llvm
    True
    """
    if not callable(function):
        raise TypeError(f"function must be callable, not {shown(function)}")
    with imports.undisturbed():
        from fastq.kernels import inspection
    return inspection.inspect(function, *arguments, **options)
