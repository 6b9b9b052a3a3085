"""Settings that must stand before Numba is imported, and the fixtures that all tests share."""

import os

os.environ.setdefault("NUMBA_NUM_THREADS", "4")  # more than the machine may have: results must not depend on it
os.environ["MPLBACKEND"] = "Agg"  # pictures are drawn into memory

import pytest

from fastq.kernels import parallel


@pytest.fixture
def threads():
    """Set how many threads work, on arrays of any size; put back afterwards."""
    before, bounds = parallel.get_num_threads(), (parallel.PARALLEL_FROM, parallel.EAGER_FROM)

    def use(n):
        parallel.PARALLEL_FROM, parallel.EAGER_FROM = (1, 1) if n > 1 else bounds
        parallel.set_num_threads(n)

    yield use
    parallel.PARALLEL_FROM, parallel.EAGER_FROM = bounds
    parallel.set_num_threads(before)
