"""Every scheduler of dask, each in a process of its own: the bytes of the reference, also after a worker's death."""

import subprocess
import sys

import pytest
from subprocesses import SUPPORT

pytest.importorskip("distributed", reason="no distributed")

SETUP = f"""
import multiprocessing, os, sys, time
from concurrent.futures import ProcessPoolExecutor
sys.path.insert(0, {str(SUPPORT)!r})
import dask, dask.array as da, numpy as np
import fastq, fastq.dask
from chunkings import array, check, chunking, same_result
from fastq import reference
from distributed import Client, LocalCluster
"""
ALL_CHUNKINGS = {
    "processes": """
with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
    for seed in range(20): check(seed, dask, da, scheduler="processes", pool=pool)
""",
    "two workers": """
with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
    for seed in range(20): check(seed, dask, da)
""",
    "four workers": """
with LocalCluster(n_workers=4, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
    for seed in range(20): check(seed, dask, da)
""",
}


def run(code):
    """Run code as a program, whose worker processes import it again."""
    program = SETUP + "\nif __name__ == '__main__':\n" + "\n".join(f"    {line}" for line in code.strip().splitlines())
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow("20 chunkings of 6 granularities in processes")
@pytest.mark.parametrize("scheduler", ALL_CHUNKINGS)
def test_random_chunkings(scheduler):
    run(ALL_CHUNKINGS[scheduler])


@pytest.mark.slow("starts workers")
def test_a_worker_that_is_killed():
    out = run("""
def slow(block):
    time.sleep(0.3)
    return block

with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
    x = array(1)
    lazy = da.from_array(x, chunks=(12, 160)).map_blocks(slow, dtype=x.dtype)
    q = client.compute(fastq.quantize(lazy, 'int8', axis=1))
    ranges = client.compute(fastq.dask.calibrate(lazy, 'int8'))
    time.sleep(0.8)
    pid = client.run(os.getpid)
    os.kill(next(iter(pid.values())), 9)
    same_result(q.result(timeout=120), reference.quantize(x, 'int8', axis=1))
    expected = fastq.Calibrator('int8')
    expected.update(x)
    same_result(ranges.result(timeout=120).counts, expected.counts)
    print('died', set(pid.values()) != set(client.run(os.getpid).values()))
""")
    assert out.split() == ["died", "True"]


@pytest.mark.slow("starts workers")
def test_workers_take_no_more_threads_than_they_have():
    out = run("""
def jobs():
    from fastq.engine.runtime import shared_records, threadpool
    return int(threadpool._state.words.words[shared_records.GATE]) >> shared_records.SEQUENCE_BIT

with LocalCluster(n_workers=1, threads_per_worker=2, dashboard_address=None) as cluster, Client(cluster) as client:
    x = da.random.default_rng(0).standard_normal((4096, 2048), chunks=(1024, 2048), dtype='float32')
    dask.compute(fastq.quantize(x, 'int8').codes.sum(), fastq.dask.calibrate(x, 'int8'))
    print(*client.run(jobs).values())
""")
    assert out.split() == ["0"]
