"""A file of quantized tensors back into the file that it was made from, one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.io.containers import Layout, SafetensorsWriter, Source, TensorSpec, numpy_dtype, spec_of
from fastq.io.records import KEY, Record, decoded, from_metadata, stored_specs
from fastq.system.atomic import replacing

Array = NDArray[Any]

LARGEST = {"F16": float.fromhex("0x1.ffcp15"), "BF16": float.fromhex("0x1.fep127")}


def dequantize_file(source: Source, out: Path, *, progress: Callable[[int], None]) -> int:
    """Write the tensors that `source` was quantized from to `out`: .safetensors, or if there is only one .npy.

    Parameters
    ----------
    source : Source
        What `quantize_file` wrote.
    out : Path
        Appears whole, or after an error not at all.
    progress : callable
        Called with the stored bytes of each tensor when it is written.

    Returns
    -------
    int
        How many tensors were dequantized.

    Raises
    ------
    ValueError
        If `source` is not what `quantize_file` wrote, or doesn't fit a .npy file.
    OSError
        If `out` can't be written.
    """
    records = from_metadata(source.metadata)
    stored = {spec.name for name, record in records.items() for spec in _present_specs(source, name, record)}
    copied = [spec for name, spec in source.tensors.items() if name not in stored]
    if out.suffix == ".npy":
        _write_npy(source, out, records, copied)
    else:
        _write_safetensors(source, out, records, copied, progress)
    return len(records)


def _present_specs(source: Source, name: str, record: Record) -> list[TensorSpec]:
    """Return what is stored for a tensor; ValueError unless the file holds exactly that."""
    specs = stored_specs(name, record)
    for spec in specs:
        if source.tensors.get(spec.name) != spec:
            raise ValueError(f"{spec.name!r} should be {spec.dtype} of shape {spec.shape}, by its {KEY!r} metadata")
    return specs


def _write_npy(source: Source, out: Path, records: dict[str, Record], copied: list[TensorSpec]) -> None:
    if len(records) != 1 or copied:
        raise ValueError(f"a .npy file holds one array, not {len(records) + len(copied)}; write .safetensors")
    ((name, record),) = records.items()
    if record.original_dtype == "BF16":
        raise ValueError("a .npy file can't hold bfloat16; write .safetensors")
    with replacing(out) as file:
        values = _restored(source, name, record)
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
        file.write(values.data)  # NumPy's own way to write them says of a full disk how many were written


def _write_safetensors(
    source: Source, out: Path, records: dict[str, Record], copied: list[TensorSpec], progress: Callable[[int], None]
) -> None:
    restored = [spec_of(name, record.original_dtype, record.shape) for name, record in records.items()]
    metadata = {key: value for key, value in source.metadata.items() if key != KEY}
    layout = Layout([*copied, *restored], metadata)
    with replacing(out) as file:
        writer = SafetensorsWriter(file, layout)
        for spec in copied:
            writer.write_raw(spec.name, source.raw(spec.name))
            progress(spec.nbytes)
        for spec in restored:
            record = records[spec.name]
            writer.write(spec.name, _restored(source, spec.name, record))
            progress(sum(stored.nbytes for stored in stored_specs(spec.name, record)))


def _restored(source: Source, name: str, record: Record) -> Array:
    """Return the values of a tensor in its original dtype."""
    try:
        values = decoded(name, record, source.load).dequantize()
    except (TypeError, OverflowError, ValueError) as error:
        raise ValueError(f"tensor {name!r} can't be dequantized: {error}") from error
    return _as_dtype(values, record.original_dtype)


def _as_dtype(values: Array, dtype: str) -> Array:
    """`values` in a dtype; float16 and bfloat16 have the largest finite number where rounding steps beyond it."""
    if dtype in LARGEST:
        values = np.clip(values, -LARGEST[dtype], LARGEST[dtype])
    return values.astype(numpy_dtype(dtype), copy=False)
