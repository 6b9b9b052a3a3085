"""Importance matrices: how much the columns of each tensor count, from files that llama-imatrix writes.

Newer ones are GGUF files that hold, for each tensor, sums of squares and how many there were; older ones have a format
of their own, with means already multiplied by the number of calls.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.io.gguf.container import MAGIC, GgufSource, MetadataField, open_gguf, string, uint32

LONGEST_TEXT = 127  # bytes of a text that llama-quantize writes into the metadata
SUMS, COUNTS = ".in_sum2", ".counts"


@dataclass(frozen=True)
class Imatrix:
    """An importance matrix."""

    # for each tensor, its columns; for one of several matrices those of each in turn
    values: dict[str, NDArray[np.float32]]
    datasets: list[str] = field(default_factory=list)  # what it was computed from
    chunks: int = 0  # from how many pieces of text

    def fields(self, path: Path) -> list[MetadataField]:
        """Return the fields that tell in a quantized file which matrix was used, as llama-quantize writes them."""
        fields = [string("quantize.imatrix.file", _shortened(str(path)))]
        if self.datasets:
            fields.append(string("quantize.imatrix.dataset", _shortened(self.datasets[0])))
        fields.append(uint32("quantize.imatrix.entries_count", len(self.values)))
        if self.chunks > 0:
            fields.append(uint32("quantize.imatrix.chunks_count", self.chunks))
        return fields


def load_imatrix(path: Path) -> Imatrix:
    """Return the importance matrix of a file, of the newer or the older format.

    ValueError if the file is neither, ends too early, or has values that are not finite.
    """
    if not path.is_file():
        raise ValueError(f"importance matrix {path.name} is not a file")
    with path.open("rb") as file:
        is_gguf = file.read(4) == MAGIC
    try:
        imatrix = _from_gguf(open_gguf(path)) if is_gguf else _from_legacy(path.read_bytes())
        _check(imatrix)
    except ValueError as error:
        raise ValueError(f"importance matrix {path.name}: {error}") from error
    return imatrix


def _check(imatrix: Imatrix) -> None:
    if not imatrix.values:
        raise ValueError("it has no entries")
    for name, values in imatrix.values.items():
        if not np.isfinite(values).all():
            raise ValueError(f"{name!r} has values that are not finite")


def _from_gguf(source: GgufSource) -> Imatrix:
    names = [name.removesuffix(SUMS) for name in source.tensors if name.endswith(SUMS)]
    values = {name: _means(source, name) for name in names}
    datasets, chunks = source.get("imatrix.datasets", []), source.get("imatrix.chunk_count", 0)
    return Imatrix(values, [str(each) for each in _listed(datasets)], chunks if isinstance(chunks, int) else 0)


def _means(source: GgufSource, name: str) -> NDArray[np.float32]:
    """Return sums over counts; one where nothing was counted, as for an expert that was never chosen."""
    if name + COUNTS not in source.tensors:
        raise ValueError(f"{name + SUMS!r} is there without {name + COUNTS!r}")
    for part in (SUMS, COUNTS):
        if (kind := source.tensors[name + part].kind).name != "F32":
            raise ValueError(f"{name + part!r} is {kind}, not F32")
    sums, counts = source.load(name + SUMS).reshape(-1), np.rint(source.load(name + COUNTS).reshape(-1, 1))
    if sums.size % counts.size:
        raise ValueError(f"{name!r} has {counts.size:,} counts for {sums.size:,} sums")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        means = sums.reshape(counts.size, -1) / counts
    return np.where(counts > 0, means, np.float32(1)).reshape(-1)


def _from_legacy(data: bytes) -> Imatrix:
    try:
        (count,), at = struct.unpack_from("<i", data), 4
        values: dict[str, NDArray[np.float32]] = {}
        for _ in range(count):
            name, at = _legacy_text(data, at)
            calls, size = struct.unpack_from("<ii", data, at)
            if size < 1 or at + 8 + 4 * size > len(data):
                raise ValueError(f"it is not an importance matrix: {name!r} would have {size:,} values")
            sums = np.frombuffer(data, "<f4", size, at + 8)
            values[name] = np.divide(sums, np.float32(max(calls, 1)), dtype=np.float32)
            at += 8 + 4 * size
        chunks, datasets = 0, []
        if at < len(data):
            (chunks,), at = struct.unpack_from("<i", data, at), at + 4
            datasets = [_legacy_text(data, at)[0]] if at < len(data) else []
    except struct.error:
        raise ValueError("it is not an importance matrix, or it is truncated") from None
    return Imatrix(values, datasets, chunks)


def _legacy_text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<i", data, at)
    if not 0 <= length <= len(data) - at - 4:
        raise ValueError("it is not an importance matrix, or it is truncated")
    end = at + 4 + length
    return data[at + 4 : end].split(b"\0")[0].decode("utf-8", "replace"), end


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _shortened(text: str) -> str:
    return text.encode("utf-8", "replace")[:LONGEST_TEXT].decode("utf-8", "ignore")
