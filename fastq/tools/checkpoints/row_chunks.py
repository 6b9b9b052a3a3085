"""Chunks of the rows of a matrix that are encoded and decoded separately."""

from __future__ import annotations

from collections.abc import Iterator

Pair = tuple[int, int]
CHUNK = 1 << 21  # values in memory at a time: enough that threads do not wait for each other, few enough for a cache
ROWS = 128  # chunks of a multiple of this end with words of zero points and with blocks of rows


def row_chunks(shape: Pair, multiple: int = ROWS) -> Iterator[tuple[int, int]]:
    """Cut rows into chunks that can be encoded and decoded separately; chunks have a multiple of `multiple` rows."""
    step = max(1, CHUNK // max(1, shape[1]) // multiple) * multiple
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])
