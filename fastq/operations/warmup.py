"""Compile kernels ahead of the first call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from fastq.dispatch import callers
from fastq.operations import works
from fastq.system.arguments import as_bool, as_choice


def warmup(*names: str, native: bool = False) -> None:
    """Have machine code ready before time matters: shipped with the package, from disk, or compiled and kept there.

    Calls are planned as if they were made, and nothing is computed.

    Parameters
    ----------
    *names : str
        Which works: "int8", which is the default, "int16", "int4", "float8", "microscaling", "codebooks", "dtypes" for
        values of float16, bfloat16 and float64, "stochastic", "textbook", "frameworks", "calibration", "stores",
        "measures", "gguf" or "all".
    native : bool
        Whether to make code for this very CPU, a few per cent faster than code for many; this user's processes use it
        for these works until fastq is upgraded, and import Numba then. Others use what is shipped.

    Raises
    ------
    ValueError
        If there is no such work.
    TypeError
        If `native` is not a bool.
    OSError
        If code is to be made for this CPU and there is no folder to keep it in.

    Examples
    --------
    >>> import fastq
    >>> fastq.warmup("int8")
    """
    make_ready(names, native)


def make_ready(names: tuple[str, ...], native: bool, track: Callable[[list[Any]], Iterable[Any]] = iter) -> None:
    """Do what `warmup` does; `track` may show how far it is."""
    for name in names:
        as_choice(name, "names", ("all", *works.WORKS))
    with callers.native_code() if as_bool(native, "native") else contextlib.nullcontext():
        works.plan(works.WORKS if "all" in names else names or ("int8",), track)
