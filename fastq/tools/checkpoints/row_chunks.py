"""Chunks of the rows of a matrix that are encoded and decoded separately."""

from __future__ import annotations

from collections.abc import Iterator

Pair = tuple[int, int]
CHUNK = 1 << 21  # values in memory at a time: enough that threads do not wait for each other, few enough for a cache
ROWS = 128  # chunks of a multiple of this end with words of zero points and with blocks of rows


def row_chunks(shape: Pair, multiple: int = ROWS) -> Iterator[tuple[int, int]]:
    """Cut rows into chunks that can be encoded and decoded separately, and yield the start and stop of each.

    Chunks have a multiple of `multiple` rows, the last one what is left. For 1,000 rows of 8,192 columns they are
    (0, 256), (256, 512), (512, 768) and (768, 1000).
    """
    step = max(1, CHUNK // max(1, shape[1]) // multiple) * multiple
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])
