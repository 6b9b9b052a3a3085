"""Writing a shard: tensors that grow row by row, each with a digest by which a later run knows it again."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fastq.io.containers import Layout, SafetensorsSource, SafetensorsWriter, bytes_of

Array = NDArray[Any]


class GrowingShard:
    """Appends rows to the tensors of a layout."""

    def __init__(self, writer: SafetensorsWriter, layout: Layout) -> None:
        self._writer, self._layout = writer, layout
        self._digests = {name: hashlib.sha256() for name in layout.specs}
        self._written = dict.fromkeys(layout.specs, 0)

    def append(self, name: str, array: Array) -> int:
        """Write the next rows of a tensor and return their bytes."""
        data = bytes_of(array)
        self._writer.write_raw(name, data, self._written[name])
        self._digests[name].update(data.data)
        self._written[name] += data.nbytes
        return data.nbytes

    def finish(self) -> dict[str, str]:
        """Return the digest of each tensor, all of which must be whole."""
        for name, spec in self._layout.specs.items():
            if self._written[name] != spec.nbytes:
                raise ValueError(f"{name!r} has {self._written[name]:,} bytes, not {spec.nbytes:,}")
        return {name: digest.hexdigest() for name, digest in self._digests.items()}


def has_digests(path: Path, digests: dict[str, str]) -> bool:
    """Whether a shard is there and holds what its digests say, and nothing else."""
    try:
        source = SafetensorsSource(path)
    except Exception:  # missing or damaged: it is written again
        return False
    if set(source.tensors) != set(digests):
        return False
    return all(hashlib.sha256(source.raw(name).data).hexdigest() == digest for name, digest in digests.items())
