"""A file of quantized tensors back into the file that it was made from, one tensor in memory at a time."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from fastq.io.containers import TensorSource, spec_of
from fastq.io.pipeline import Piece, Progress, Task, copied, write_file
from fastq.io.records import KEY
from fastq.io.tensors import OF_MODEL, Tensor, is_shard, tensors_in
from fastq.system.atomic import replacing
from fastq.system.dtypes import numpy_dtype

LARGEST = {"F16": float.fromhex("0x1.ffcp15"), "BF16": float.fromhex("0x1.fep127")}


def dequantize_file(source: TensorSource, out: Path, *, progress: Progress) -> int:
    """Write what `source` was quantized from to `out`, .safetensors or if it is one tensor .npy; return how many.

    ValueError if nothing in it is quantized by fastq, or it doesn't fit a .npy file; after any error `out` is as it
    was.
    """
    if is_shard(source):
        raise ValueError(f"it is of a quantized model; {OF_MODEL.format(source.path.parent)}")
    if KEY not in source.metadata:
        raise ValueError(f"holds nothing that fastq quantized (no {KEY!r} in its metadata)")
    tensors = list(tensors_in(source))
    if out.suffix == ".npy":
        if len(tensors) != 1 or not tensors[0].is_quantized:
            raise ValueError(f"a .npy file holds one array, not {len(tensors)}; write .safetensors")
        if tensors[0].original == "BF16":
            raise ValueError("a .npy file can't hold bfloat16; write .safetensors")
        with replacing(out) as file:
            (values,) = _restored(tensors[0]).stored.values()
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
            file.write(values.data)  # NumPy's own way to write them says of a full disk how many were written
        return 1
    tasks = []
    for tensor in tensors:
        if tensor.is_quantized:
            specs = [spec_of(tensor.name, tensor.original, tensor.shape)]
            about = tensor.name, tensor.shape, tensor.nbytes, tensor.original
            tasks.append(Task(*about, [partial(_restored, tensor)], specs))
        else:
            tasks.append(copied(source.tensors[tensor.name], source.raw))
    kept = {key: value for key, value in source.metadata.items() if key != KEY}
    write_file(out, [[task] for task in tasks], kept, progress)
    return sum(tensor.is_quantized for tensor in tensors)


def _restored(tensor: Tensor) -> Piece:
    """Return the values of a tensor in its original dtype: halves saturate where rounding steps beyond them."""
    values = tensor.values()
    if (largest := LARGEST.get(tensor.original)) is not None:
        values = np.clip(values, -largest, largest)
    return Piece({tensor.name: values.astype(numpy_dtype(tensor.original), copy=False)}, tensor.nbytes)
