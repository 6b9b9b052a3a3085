"""Importance matrices: how much the columns of each tensor count, from files that llama-imatrix writes.

Newer ones are GGUF files that hold, for each tensor, sums of squares and how many there were; older ones have a format
of their own, with means already multiplied by the number of calls.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastq.io.gguf.container import MAGIC, GgufSource, GgufTensor, MetadataField, open_gguf, string, uint32
from fastq.io.gguf.mixes import EMBEDDING, purpose_of
from fastq.io.pipeline import naming
from fastq.system.arguments import counting

LONGEST_TEXT = 127  # bytes of a text that llama-quantize writes into the metadata
SUMS, COUNTS = ".in_sum2", ".counts"


@dataclass(frozen=True)
class Imatrix:
    """An importance matrix."""

    # for each tensor, its columns; for one of several matrices those of each in turn
    values: dict[str, NDArray[np.float32]]
    datasets: list[str] = field(default_factory=list)  # what it was computed from
    chunks: int = 0  # from how many pieces of text
    uncounted: dict[str, int] = field(default_factory=dict)  # of how many matrices of a tensor nothing was counted

    def fields(self, path: str) -> list[MetadataField]:
        """Return the fields that tell in a quantized file which matrix was used, as llama-quantize writes them."""
        fields = [string("quantize.imatrix.file", _shortened(path))]
        if self.datasets:
            fields.append(string("quantize.imatrix.dataset", _shortened(self.datasets[0])))
        fields.append(uint32("quantize.imatrix.entries_count", len(self.values)))
        if self.chunks > 0:
            fields.append(uint32("quantize.imatrix.chunks_count", self.chunks))
        return fields


def load_imatrix(path: Path) -> Imatrix:
    """Return the importance matrix of a file, of the newer or the older format.

    ValueError if the file is neither, ends too early, or has values that are negative or not finite.
    """
    if not path.is_file():
        raise ValueError(f"importance matrix {path.name} is not a file")
    with path.open("rb") as file:
        is_gguf = file.read(4) == MAGIC
    with naming(lambda error: f"importance matrix {path.name}: {error}", ValueError):
        imatrix = _from_gguf(open_gguf(path)) if is_gguf else _from_legacy(path.read_bytes())
        if not imatrix.values:
            raise ValueError("it has no entries")
        for name, values in imatrix.values.items():
            if not np.isfinite(values).all():
                raise ValueError(f"{name!r} has values that are not finite")
            if (values < 0).any():
                raise ValueError(f"{name!r} has values that are negative")
    return imatrix


def weigh(
    imatrix: Imatrix, groups: Mapping[GgufTensor, int], names: Collection[str], say: Callable[[str, list[str]], None]
) -> dict[GgufTensor, NDArray[np.float32]]:
    """Return the importance of the columns of the tensors that depend on it, a row for each matrix.

    `groups` tells how many neighbours share a scale. What the matrix lacks, or has and is not used, is told with names.
    ValueError if it has nothing for any of the tensors.
    """
    found = {}
    for spec in groups:
        values, size = imatrix.values.get(spec.name), spec.shape[-1] * math.prod(spec.shape[:-2])
        if values is not None and values.size == size:
            found[spec] = values.reshape(-1, spec.shape[-1])
        elif values is not None and purpose_of(spec.name) != EMBEDDING:  # llama-imatrix may count other columns of it
            raise ValueError(f"the importance matrix has {values.size:,} values for {spec.name!r}, not {size:,}")
    if not found:
        raise ValueError(
            f"the importance matrix is that of another model: it has none of {len(groups):,} tensors, such as "
            f"{next(iter(groups)).name!r}, but has {next(iter(imatrix.values))!r}"
        )
    partly = [f"{spec.name}, {n} of {len(found[spec])}" for spec in found if (n := imatrix.uncounted.get(spec.name))]
    flat = [spec.name for spec, rows in found.items() if counting(rows, groups[spec]) is not rows]
    for what, about in (
        ("lacks, or has with other columns:", [spec.name for spec in groups if spec not in found]),
        ("has what no tensor is called, which is not used:", [name for name in imatrix.values if name not in names]),
        ("has matrices that were never counted, which are weighed alike:", partly),
        ("has 0 for all columns of some blocks, which are weighed alike, in", flat),
    ):
        if about:
            say(f"the importance matrix {what}", about)
    return found


def _from_gguf(source: GgufSource) -> Imatrix:
    names = {name.removesuffix(part) for part in (SUMS, COUNTS) for name in source.tensors if name.endswith(part)}
    values, uncounted = {}, {}
    for name in sorted(names):
        values[name], uncounted[name] = _means(source, name)
    datasets, chunks = source.get("imatrix.datasets", []), source.get("imatrix.chunk_count", 0)
    datasets = [str(each) for each in (datasets if isinstance(datasets, list) else [datasets])]
    return Imatrix(values, datasets, chunks if isinstance(chunks, int) else 0, uncounted)


def _means(source: GgufSource, name: str) -> tuple[NDArray[np.float32], int]:
    """Return sums over counts, and how many counts are 0, as of experts that were never chosen: ones for them."""
    for part, other in ((SUMS, COUNTS), (COUNTS, SUMS)):
        if name + part not in source.tensors:
            raise ValueError(f"{name + other!r} is there without {name + part!r}")
        if (kind := source.tensors[name + part].kind).name != "F32":
            raise ValueError(f"{name + part!r} is {kind}, not F32")
    sums, counts = source.load(name + SUMS).reshape(-1), np.rint(source.load(name + COUNTS).reshape(-1, 1))
    if not counts.size or sums.size % counts.size:
        raise ValueError(f"{name!r} has {counts.size:,} counts for {sums.size:,} sums")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        means = sums.reshape(counts.size, -1) / counts
    return np.where(counts > 0, means, np.float32(1)).reshape(-1), int(np.sum(~(counts > 0)))


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


def _shortened(text: str) -> str:
    return text.encode("utf-8", "replace")[:LONGEST_TEXT].decode("utf-8", "ignore")
