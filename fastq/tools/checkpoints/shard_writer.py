"""A shard that grows by rows: another thread writes and digests them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

from numpy.typing import NDArray

from fastq.system.dtypes import Array
from fastq.tools.files.safetensors_files import Header, SafetensorsWriter
from fastq.tools.files.tensor_specs import bytes_of

PIECE = 1 << 22  # bytes that are written, and digested while they are in the cache
WAITING = 8  # most pieces in memory that are not written yet
# pieces after which the system starts to write pages to disk, so that less is left to wait for at the end
PIECES_IN_PAGE_CACHE = 16


class GrowingShard(SafetensorsWriter, contextlib.AbstractContextManager["GrowingShard"]):
    """Appends rows to the tensors of a header; a separate thread writes and digests them."""

    def __init__(self, file: BinaryIO, header: Header) -> None:
        super().__init__(file, header)
        self._digests = {name: hashlib.sha256() for name in header.specs}
        self._executor = ThreadPoolExecutor(1)
        self._in_page_cache: list[tuple[int, int]] = []  # positions and bytes of pieces that may not be on disk yet
        self._waiting: deque[Future[None]] = deque()

    def __exit__(self, *error: object) -> None:
        """End the thread. After `digests` no piece is left; after an error those that are not begun are dropped."""
        self._executor.shutdown(cancel_futures=True)

    def append(self, name: str, rows: Array) -> int:
        """Write the next rows of a tensor, and return their bytes. The array must not be changed afterwards."""
        data = bytes_of(rows)
        for start in range(0, data.size, PIECE):
            piece = data[start : start + PIECE]
            self._wait(WAITING - 1)
            self._waiting.append(self._executor.submit(self._write, name, piece, self.advance(name, piece.nbytes)))
        return data.nbytes

    def _wait(self, most: int) -> None:
        """Wait until at most `most` pieces are not written; raise the error of a piece that failed."""
        while len(self._waiting) > most:
            self._waiting.popleft().result()

    def _write(self, name: str, data: NDArray[Any], start: int) -> None:
        """Write a piece of a tensor at its position `start` in the file, and digest it, in the thread that writes.

        There is one such thread, and it takes pieces in their order, so the digest is that of the whole tensor.
        """
        self.write_raw(data, start)
        self._digests[name].update(data.data)
        self._in_page_cache.append((start, data.nbytes))
        if len(self._in_page_cache) >= PIECES_IN_PAGE_CACHE and hasattr(os, "posix_fadvise"):
            self._file.flush()
            with contextlib.suppress(OSError):  # a hint, which some file systems ignore: write dirty pages to disk
                for position, nbytes in self._in_page_cache:
                    os.posix_fadvise(self._file.fileno(), position, nbytes, os.POSIX_FADV_DONTNEED)
            self._in_page_cache.clear()

    def digests(self) -> dict[str, str]:
        """Return the digest of each tensor; raise ValueError if one is incomplete."""
        self._wait(0)
        self.finish()
        return {name: digest.hexdigest() for name, digest in self._digests.items()}
