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

    Raises
    ------
    TypeError, ValueError, OSError
        If path is not as described, can't be read, or is no file of a quantized array.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np, fastq
    >>> q = fastq.quantize(np.linspace(-1, 1, 64, dtype=np.float32), "int4", axis=0, block_size=32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "weight.safetensors"
    ...     q.save(path)
    ...     np.array_equal(fastq.load(path).codes, q.codes)
    True
    """
    loaded: QuantizedArray = lazy.module("fastq.operations.array_file").read(as_path(path), QuantizedArray)
    return loaded
