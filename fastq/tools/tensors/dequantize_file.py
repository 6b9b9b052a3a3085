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
from fastq.tools.tensors.reading import advice_to_restore, is_shard_of_quantized_model, tensors_in
from fastq.tools.tensors.tensor import Tensor

LARGEST = {"F16": float.fromhex("0x1.ffcp15"), "BF16": float.fromhex("0x1.fep127")}  # largest numbers by dtype


def dequantize_file(source: TensorSource | GgufSource, out: Path, *, progress: Progress) -> int:
    """Write the floats of a quantized file to `out`, and return the number of tensors that were quantized.

    After any error `out` is as it was.
    """
    tensors: list[Tensor]
    if isinstance(source, GgufSource):
        tensors = [*gguf_tensors(source)]
        metadata = {}
    else:
        tensors = [*_tensors_of_quantized_file(source)]
        metadata = {key: value for key, value in source.metadata.items() if key != KEY}
    if out.suffix == ".npy":
        _write_npy(out, tensors)
        return 1
    tasks = []
    for tensor in tensors:
        if tensor.is_quantized:
            task = Task(
                name=tensor.name,
                shape=tensor.shape,
                before=tensor.nbytes,
                target=tensor.original_dtype,
                pieces=[partial(_restore, tensor)],
                specs=[spec_of(tensor.name, tensor.original_dtype, tensor.shape)],
            )
            tasks.append(task)
        else:
            spec = TensorSpec(name=tensor.name, dtype=tensor.scheme, shape=tensor.shape, nbytes=tensor.nbytes)
            tasks.append(copy_task(as_safetensors(spec), source.raw))
    write_file(out, [[task] for task in tasks], metadata, progress)
    return sum(tensor.is_quantized for tensor in tensors)


def _write_npy(out: Path, tensors: list[Tensor]) -> None:
    """Write the only tensor to a .npy file; raise ValueError if there are more, or such a file lacks its dtype."""
    if len(tensors) != 1 or not tensors[0].is_quantized:
        raise ValueError(f"a .npy file holds one array, not {len(tensors)}; write .safetensors")
    (tensor,) = tensors
    if tensor.original_dtype == "BF16":
        raise ValueError("a .npy file can't hold bfloat16; write .safetensors")
    with replacing(out) as file:
        (values,) = _restore(tensor).stored.values()
        write_npy_header(file, values.dtype, values.shape)
        file.write(values.data)  # np.save reports a full disk only as a number of written bytes


def _tensors_of_quantized_file(source: TensorSource) -> Iterator[Tensor]:
    """Return the tensors of a file that fastq quantized; raise ValueError for another file."""
    if is_shard_of_quantized_model(source):
        raise ValueError(f"it is of a quantized model; {advice_to_restore(source.path.parent)}")
    if KEY not in source.metadata:
        raise ValueError(f"holds nothing that fastq quantized (no {KEY!r} in its metadata)")
    return tensors_in(source)


def _restore(tensor: Tensor) -> Piece:
    """Return the values of a tensor in its original dtype; half precision saturates instead of becoming infinite."""
    values = tensor.values()
    if (largest := LARGEST.get(tensor.original_dtype)) is not None:
        values = np.clip(values, -largest, largest)
    return Piece({tensor.name: values.astype(numpy_dtype(tensor.original_dtype), copy=False)}, tensor.nbytes)
