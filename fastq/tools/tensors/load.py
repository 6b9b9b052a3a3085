"""Read files of fastq."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastq.ops import array_file
from fastq.ops.file_parts import as_name, as_path
from fastq.results import QuantizedArray
from fastq.system.imports import undisturbed

if TYPE_CHECKING:
    from fastq.tools.tensors.by_name import Tensors


def load(path: str | os.PathLike[str]) -> QuantizedArray | Tensors:
    """Read a file that `QuantizedArray.save` or a command of fastq wrote. No code in the file is run.

    Parameters
    ----------
    path : str or path
        A file of `QuantizedArray.save`; or, with the extra `[cli]`, a file of tensors (.safetensors, .npy, .npz or
        .gguf), a model directory, or a folder of .safetensors, .npy and .npz files.

    Returns
    -------
    QuantizedArray or Tensors
        From a file of `QuantizedArray.save` the array that was saved, with the same bits of codes and parameters, in C
        order. From all other files a mapping from names to tensors, which are read when they are looked up: quantized
        tensors are `QuantizedArray`, all others are arrays. In GGUF files tensors of Q8_0 are `QuantizedArray`; other
        blocks are read as their values. A matrix with two-dimensional blocks has shape (rows / b, b, columns / b, b)
        and is padded with zeros.

    Raises
    ------
    TypeError, ValueError, OSError
        If path is not as described, can't be read, or has no tensors. A damaged tensor raises when it is read.

    Warns
    -----
    UserWarning
        If a file has codes of another program next to their scales, and no config.json that describes them: they are
        read as they are stored.

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

    A file that ``fastq quantize model.safetensors model-int8.safetensors`` wrote:

    >>> tensors = fastq.load("model-int8.safetensors")  # doctest: +SKIP
    >>> tensors["layer.weight"].shape  # doctest: +SKIP
    (384, 384)
    """
    name = as_name(path)
    if name.is_dir() or (name.is_file() and array_file.holds_many(name)):
        with undisturbed():  # which needs the packages of the extra `[cli]`
            from fastq.tools.tensors.by_name import open_tensors
        return open_tensors(name)
    array: QuantizedArray = array_file.read(as_path(name), QuantizedArray)
    return array
