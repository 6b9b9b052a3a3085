"""Read quantized arrays from files."""

from __future__ import annotations

import os

from fastq.operations.file_parts import as_path
from fastq.results import QuantizedArray
from fastq.system import lazy


def load(path: str | os.PathLike[str]) -> QuantizedArray:
    """Read a quantized array from a file of `QuantizedArray.save`. Nothing in it is run.

    Parameters
    ----------
    path : str or path
        The file.

    Returns
    -------
    QuantizedArray
        As it was saved: codes and parameters bit for bit, in C order.
    """
    loaded: QuantizedArray = lazy.module("fastq.operations.array_file").read(as_path(path), QuantizedArray)
    return loaded
