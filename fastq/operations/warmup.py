"""Compile kernels ahead of the first call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fastq.dispatch import callers
from fastq.operations import works
from fastq.system.arguments import as_choice


def warmup(*names: str, native: bool = False, track: Callable[[list[Any]], Iterable[Any]] = iter) -> None:
    """Have machine code ready before time matters: shipped with the package, from disk, or compiled and kept there.

    Calls are planned as if they were made, and nothing is computed.

    Parameters
    ----------
    *names : str
        Which works: "int8", which is the default, "int16", "int4", "float8", "microscaling", "codebooks", "textbook",
        "calibration", "stores", "measures", "gguf" or "all".
    native : bool
        Whether to make code for this very CPU, a few per cent faster than code for many; this user's processes use it
        from then on until fastq is upgraded, and import Numba.
    track : callable
        What shows how far it is, given a list of calls, of which it returns those to make: `rich.progress.track` and
        `tqdm.tqdm` do.

    Raises
    ------
    ValueError
        If there is no such work.
    OSError
        If code is to be made for this CPU and there is no folder to keep it in.

    Examples
    --------
    >>> import fastq
    >>> fastq.warmup("int8")
    """
    for name in names:
        as_choice(name, "names", ("all", *works.WORKS))
    if native:
        callers.use_native()
    works.plan(works.WORKS if "all" in names else names or ("int8",), track)
