"""Compile kernels ahead of the first call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from fastq.ops import works
from fastq.plan import call_modes
from fastq.system.arguments import as_bool, as_choice


def warmup(*names: str, native: bool = False) -> None:
    """Prepare machine code ahead of time: take it from the package or from disk, or compile it and keep it on disk.

    Calls are planned but not executed: nothing is computed.

    Parameters
    ----------
    *names : str
        Names of works, by default "int8"; others are "int16", "int4", "float8", "microscaling", "codebooks", "dtypes"
        for values of float16, bfloat16 and float64, "stochastic", "textbook", "frameworks", "calibration", "stores",
        "measures", which has `minmax`, `compare` and `binarize`, "gguf" and "all".
    native : bool
        Whether to compile for exactly this CPU, which makes code a few per cent faster. This user's processes then
        import Numba and use that code for these works until fastq is upgraded. Other users keep the code of the
        package.

    Raises
    ------
    ValueError
        If a name is not that of a work.
    TypeError
        If `native` is not a bool.
    OSError
        If `native` is set and there is no folder to keep the code in.

    Examples
    --------
    >>> import fastq
    >>> fastq.warmup("int8")
    """
    make_ready(names, native)


def make_ready(names: tuple[str, ...], native: bool, track: Callable[[list[Any]], Iterable[Any]] = iter) -> None:
    """Do the work of `warmup`; `track` yields the items of a list again, and may show the progress meanwhile."""
    for name in names:
        as_choice(name, "names", ("all", *works.WORKS))
    with call_modes.native_code() if as_bool(native, "native") else contextlib.nullcontext():
        works.plan(works.WORKS if "all" in names else names or ("int8",), track)
