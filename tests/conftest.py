"""Settings that must stand before Numba is imported, and the fixtures that all tests share."""

import os

os.environ.setdefault("NUMBA_NUM_THREADS", "4")  # more than the machine may have: results must not depend on it
os.environ["MPLBACKEND"] = "Agg"  # pictures are drawn into memory

import pytest

from fastq.runtime import threadpool


@pytest.fixture
def threads():
    """Set how many threads work, on arrays of any size; put back afterwards."""
    before, bounds = threadpool.get_num_threads(), (threadpool.PARALLEL_FROM, threadpool.WAKE_FROM)

    def use(n):
        threadpool.PARALLEL_FROM, threadpool.WAKE_FROM = (1, 1) if n > 1 else bounds
        threadpool.set_num_threads(n)

    yield use
    threadpool.PARALLEL_FROM, threadpool.WAKE_FROM = bounds
    threadpool.set_num_threads(before)
