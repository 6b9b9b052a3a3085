"""Keep one bit of each number of a .npy file, some rows at a time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

import fastq
from fastq.system.atomic import replacing
from fastq.tools.files.containers import TensorSource
from fastq.tools.files.naming_errors import naming
from fastq.tools.files.numpy_files import write_npy_header
from fastq.tools.files.pipeline import Converted, Progress
from fastq.tools.files.tensor_specs import bytes_of
from fastq.tools.tensors.extent import PIECE
from fastq.tools.tensors.quantize_file import failure_text


def binarize_file(source: TensorSource, out: Path, *, progress: Progress, **options: Any) -> Converted:
    """Write the bits of `fastq.binarize` of a .npy file to another one; after any error `out` is as it was."""
    (spec,) = source.tensors.values()
    x = np.atleast_1d(source.load(spec.name))
    shape = *x.shape[:-1], -(-x.shape[-1] // 8)  # in bytes of eight bits along the last axis
    dtype = np.dtype(options["dtype"])
    # a vector is not cut, since a byte has the bits of eight neighbours
    rows_of_part = max(PIECE * len(x) // max(x.size, 1), 1) if x.ndim > 1 else max(len(x), 1)
    with replacing(out) as file:
        write_npy_header(file, dtype, shape)
        for start in range(0, len(x), rows_of_part):
            rows = x[start : start + rows_of_part]
            with naming(lambda error: failure_text(spec.name, x, error)):
                bits = fastq.binarize(rows, **options)
            file.write(bytes_of(bits).data)
            progress(rows.nbytes, 0)
    progress(0, 1)
    return Converted(
        name=spec.name,
        shape=spec.shape,
        before=spec.nbytes,
        after=math.prod(shape),
        target="bits",
        size=spec.size,
    )
