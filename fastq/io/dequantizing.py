"""A file of quantized tensors back into the file that it was made from, one tensor in memory at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fastq.io.containers import Header, TensorSource, TensorSpec, spec_of
from fastq.io.pipeline import Piece, Progress, Task, copied, failures, write_file
from fastq.io.records import KEY, Record, decoded, from_metadata, stored_specs
from fastq.system.atomic import replacing
from fastq.system.dtypes import Array, numpy_dtype

LARGEST = {"F16": float.fromhex("0x1.ffcp15"), "BF16": float.fromhex("0x1.fep127")}


def dequantize_file(source: TensorSource, out: Path, *, progress: Progress) -> int:
    """Write what `source` was quantized from to `out`, .safetensors or if it is one tensor .npy; return how many.

    ValueError if `source` is not what `quantize_file` wrote, or doesn't fit a .npy file; after any error `out` is as it
    was.
    """
    records = from_metadata(source.metadata)
    stored = {spec.name for name, record in records.items() for spec in _present_specs(source, name, record)}
    left = [spec for name, spec in source.tensors.items() if name not in stored]
    if out.suffix == ".npy":
        _write_npy(source, out, records, left)
        return len(records)
    restored = [spec_of(name, record.original_dtype, record.shape) for name, record in records.items()]
    header = Header([*left, *restored], {key: value for key, value in source.metadata.items() if key != KEY})
    tasks = [*(copied(spec, source.raw) for spec in left), *(_task(source, *each) for each in records.items())]
    write_file(out, header, ([task] for task in tasks), progress)
    return len(records)


def _present_specs(source: TensorSource, name: str, record: Record) -> list[TensorSpec]:
    """Return what is stored for a tensor; ValueError unless the file holds exactly that."""
    specs = stored_specs(name, record)
    for spec in specs:
        if source.tensors.get(spec.name) != spec:
            raise ValueError(f"{spec.name!r} should be {spec.dtype} of shape {spec.shape}, by its {KEY!r} metadata")
    return specs


def _write_npy(source: TensorSource, out: Path, records: dict[str, Record], left: list[TensorSpec]) -> None:
    if len(records) != 1 or left:
        raise ValueError(f"a .npy file holds one array, not {len(records) + len(left)}; write .safetensors")
    ((name, record),) = records.items()
    if record.original_dtype == "BF16":
        raise ValueError("a .npy file can't hold bfloat16; write .safetensors")
    with replacing(out) as file:
        values = _restored(source, name, record)
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
        file.write(values.data)  # NumPy's own way to write them says of a full disk how many were written


def _task(source: TensorSource, name: str, record: Record) -> Task:
    nbytes = sum(spec.nbytes for spec in stored_specs(name, record))
    work = [lambda: Piece({name: _restored(source, name, record)}, nbytes)]
    return Task(name, record.shape, nbytes, record.original_dtype, work)


def _restored(source: TensorSource, name: str, record: Record) -> Array:
    """Return the values of a tensor in its original dtype: halves saturate where rounding steps beyond them."""
    with failures(lambda error: f"tensor {name!r} can't be dequantized: {error}"):
        values: Array = decoded(name, record, source.load).dequantize()
    if (largest := LARGEST.get(record.original_dtype)) is not None:
        values = np.clip(values, -largest, largest)
    return values.astype(numpy_dtype(record.original_dtype), copy=False)
