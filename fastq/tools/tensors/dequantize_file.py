"""Restore the floats of a quantized file, with one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from fastq.system.atomic import replacing
from fastq.system.dtypes import numpy_dtype
from fastq.tools.files.containers import TensorSource
from fastq.tools.files.numpy_files import write_npy_header
from fastq.tools.files.pipeline import Piece, Progress, Task, copy_task, write_file
from fastq.tools.files.records import KEY
from fastq.tools.files.safetensors_files import as_safetensors
from fastq.tools.files.tensor_specs import TensorSpec, spec_of
from fastq.tools.gguf_files.gguf_file import GgufSource
from fastq.tools.tensors.gguf_tensor import gguf_tensors
from fastq.tools.tensors.reading import is_shard, tensors_in, way_back
from fastq.tools.tensors.tensor import Tensor

LARGEST = {"F16": float.fromhex("0x1.ffcp15"), "BF16": float.fromhex("0x1.fep127")}


def dequantize_file(source: TensorSource | GgufSource, out: Path, *, progress: Progress) -> int:
    """Write the floats of a quantized file to `out`, and return the number of tensors that were quantized.

    After any error `out` is as it was.
    """
    tensors = list(gguf_tensors(source) if isinstance(source, GgufSource) else _quantized_in(source))
    metadata = {}
    if not isinstance(source, GgufSource):
        metadata = {key: value for key, value in source.metadata.items() if key != KEY}
    if out.suffix == ".npy":
        if len(tensors) != 1 or not tensors[0].is_quantized:
            raise ValueError(f"a .npy file holds one array, not {len(tensors)}; write .safetensors")
        if tensors[0].original == "BF16":
            raise ValueError("a .npy file can't hold bfloat16; write .safetensors")
        with replacing(out) as file:
            (values,) = _restore(tensors[0]).stored.values()
            write_npy_header(file, values.dtype, values.shape)
            file.write(values.data)  # np.save reports a full disk only as a number of written bytes
        return 1
    tasks = []
    for tensor in tensors:
        if tensor.is_quantized:
            task = Task(
                name=tensor.name,
                shape=tensor.shape,
                before=tensor.nbytes,
                target=tensor.original,
                pieces=[partial(_restore, tensor)],
                specs=[spec_of(tensor.name, tensor.original, tensor.shape)],
            )
            tasks.append(task)
        else:
            spec = TensorSpec(name=tensor.name, dtype=tensor.scheme, shape=tensor.shape, nbytes=tensor.nbytes)
            tasks.append(copy_task(as_safetensors(spec), source.raw))
    write_file(out, [[task] for task in tasks], metadata, progress)
    return sum(tensor.is_quantized for tensor in tensors)


def _quantized_in(source: TensorSource) -> Iterator[Tensor]:
    """Return the tensors of a file that fastq quantized; raise ValueError for another one."""
    if is_shard(source):
        raise ValueError(f"it is of a quantized model; {way_back(source.path.parent)}")
    if KEY not in source.metadata:
        raise ValueError(f"holds nothing that fastq quantized (no {KEY!r} in its metadata)")
    return tensors_in(source)


def _restore(tensor: Tensor) -> Piece:
    """Return the values of a tensor in its original dtype; half precision saturates instead of becoming infinite."""
    values = tensor.values()
    if (largest := LARGEST.get(tensor.original)) is not None:
        values = np.clip(values, -largest, largest)
    return Piece({tensor.name: values.astype(numpy_dtype(tensor.original), copy=False)}, tensor.nbytes)
