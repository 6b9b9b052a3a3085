"""Writing a shard: tensors that grow row by row, each with a digest by which a later run knows it again."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from numpy.typing import NDArray

from fastq.io.containers import Header, SafetensorsSource, SafetensorsWriter, bytes_of
from fastq.system.dtypes import Array

PIECE = 1 << 22  # bytes that are written and, while they are in the cache, digested
WAITING = 8  # pieces in memory at most that are not written yet
BEHIND = 16  # pieces after which the system begins to bring what is written to disk: the end then waits for less


class GrowingShard(SafetensorsWriter):
    """Appends rows to the tensors of a header; a thread of its own writes and digests what was appended."""

    def __init__(self, file: BinaryIO, header: Header) -> None:
        super().__init__(file, header)
        self._digests = {name: hashlib.sha256() for name in header.specs}
        self._executor = ThreadPoolExecutor(1)
        self._behind: list[tuple[int, int]] = []
        self._waiting: deque[Future[None]] = deque()

    def __enter__(self) -> GrowingShard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(cancel_futures=True)

    def append(self, name: str, rows: Array) -> int:
        """Write the next rows of a tensor, which must stay as they are, and return their bytes."""
        data = bytes_of(rows)
        for start in range(0, data.size, PIECE):
            piece = data[start : start + PIECE]
            self._wait(WAITING - 1)
            self._waiting.append(self._executor.submit(self._write, name, piece, self.take(name, piece.nbytes)))
        return data.nbytes

    def _wait(self, left: int) -> None:
        """Wait until at most `left` pieces are not written; raise what went wrong with the others."""
        while len(self._waiting) > left:
            self._waiting.popleft().result()

    def _write(self, name: str, data: NDArray[Any], start: int) -> None:
        self.write_raw(data, start)
        self._digests[name].update(data.data)
        self._behind.append((start, data.nbytes))
        if len(self._behind) >= BEHIND and hasattr(os, "posix_fadvise"):
            self._file.flush()
            with contextlib.suppress(OSError):  # a hint, which not all file systems take: dirty pages go to disk
                for place, nbytes in self._behind:
                    os.posix_fadvise(self._file.fileno(), place, nbytes, os.POSIX_FADV_DONTNEED)
            self._behind.clear()

    def digests(self) -> dict[str, str]:
        """Return the digest of each tensor, all of which must be whole."""
        self._wait(0)
        self.finish()
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
