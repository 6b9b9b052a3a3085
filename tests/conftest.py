"""Settings that must stand before Numba is imported, and the fixtures that all tests share."""

import os
from pathlib import Path

# one cache of kernels for all workers and processes, which the next session finds; pytest --cache-clear empties it
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "d" / "kernels"))
os.environ.setdefault("NUMBA_NUM_THREADS", "4")  # more than the machine may have: results must not depend on it
os.environ["MPLBACKEND"] = "Agg"  # pictures are drawn into memory

import pytest

from fastq.runtime import threadpool


@pytest.fixture
def threads():
    """Set how many threads work, on arrays of any size; put back afterwards."""
    before, bounds = threadpool.get_num_threads(), (threadpool.PARALLEL_FROM, threadpool.EAGER_FROM)

    def use(n):
        threadpool.PARALLEL_FROM, threadpool.EAGER_FROM = (1, 1) if n > 1 else bounds
        threadpool.set_num_threads(n)

    yield use
    threadpool.PARALLEL_FROM, threadpool.EAGER_FROM = bounds
    threadpool.set_num_threads(before)
