"""The result pool: memory of large results that nobody uses any more is kept, and handed out again."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.system import tuning

Array = NDArray[Any]

LARGE = tuning.current().pooled_from  # bytes


class _Block:
    """Memory, and the description of it that an array is made from, for which NumPy takes 0.6 us each time."""

    def __init__(self, nbytes: int) -> None:
        self.memory = np.empty(nbytes, np.uint8)
        self.nbytes = nbytes
        self.__array_interface__ = self.memory.__array_interface__


class _Pool:
    """Released memory, at most `limit` bytes; what was released first is dropped first.

    There is no lock: a loan may end anywhere, in the collection of garbage inside `take` too, and an interrupt may come
    anywhere. What is done to the list is done by its methods, each as a whole. Loops go over a copy: one over the list
    itself passes over a block if another thread removes one before it.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.blocks: list[_Block] = []

    def take(self, nbytes: int) -> _Block | None:
        """Return the smallest block of at least `nbytes`, and at most an eighth more."""
        while True:
            smallest = None
            most = nbytes + nbytes // 8
            for block in [*self.blocks]:
                if nbytes <= block.nbytes <= most:
                    smallest = block
                    most = block.nbytes - 1
            if smallest is not None:
                try:
                    self.blocks.remove(smallest)
                except ValueError:  # another thread has taken it
                    continue
            return smallest

    def put(self, block: _Block) -> None:
        """Keep a block, if the limit allows it."""
        if block.nbytes <= self.limit:
            self.blocks.append(block)
            self._drop()

    def set_limit(self, limit: int) -> None:
        """Set the limit; blocks beyond it are released."""
        self.limit = limit
        self._drop()

    def _drop(self) -> None:
        """Drop blocks, those released first, until the rest is within the limit."""
        nbytes = 0
        for block in [*self.blocks]:
            nbytes += block.nbytes
        try:  # by no global name: a loan may end after the interpreter has set those of modules to None
            while nbytes > self.limit:
                nbytes -= self.blocks.pop(0).nbytes
        except IndexError:  # another thread has taken the last one
            return


def _limit_at_start() -> int:
    """Return the bytes of FASTQ_RESULT_POOL, 256 MiB without it; raise ValueError if it is no number."""
    limit_text = os.environ.get("FASTQ_RESULT_POOL") or str(1 << 28)
    if not limit_text.isdecimal():
        raise ValueError(f"FASTQ_RESULT_POOL must be a number of bytes, not {limit_text!r}")
    return int(limit_text)


pool = _Pool(_limit_at_start())


class _Loan:
    """The base of an array from the pool, which gives memory back when the last array that sees it is gone."""

    def __init__(self, block: _Block, nbytes: int) -> None:
        self.block = block
        self.pool = pool
        self.__array_interface__ = block.__array_interface__ | {"shape": (nbytes,)}

    def __del__(self) -> None:
        """Give the memory back: NumPy's arrays keep the loan alive as long as one of them sees the memory."""
        self.pool.put(self.block)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an array of anything, as `numpy.empty`: a large one in memory of the pool."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not LARGE <= nbytes <= pool.limit:
        return np.empty(shape, dtype)
    block = pool.take(nbytes) or _Block(nbytes)
    return np.ndarray(shape, dtype, np.asarray(_Loan(block, nbytes)))
