"""Memory of large results that is handed out again: never while somebody sees it."""

import gc
import sys
import threading
import time

import numpy as np
import pytest
from catalogue import same_bytes, values
from subprocesses import run

import fastq
from fastq import reference
from fastq.engine.runtime import result_pool

SIZE = 1 << 20
X = values("float32", SIZE, 1)
CODES = reference.quantize_linear(X, 0.5, 3, "int8")


@pytest.fixture(autouse=True)
def _as_at_start():
    before = fastq.get_result_pool_limit()
    fastq.set_result_pool_limit(0)
    fastq.set_result_pool_limit(1 << 28)
    yield
    fastq.set_result_pool_limit(before)


def place(array):
    return array.__array_interface__["data"][0]


def decoded():
    return fastq.dequantize_linear(CODES, 0.5, 3)


def test_memory_of_a_released_result_is_that_of_the_next():
    first = decoded()
    where = place(first)
    same_bytes(first, reference.dequantize_linear(CODES, 0.5, 3))
    del first
    second = fastq.fake_quantize(X, "int8")
    assert place(second) == where
    same_bytes(second, reference.fake_quantize(X, "int8"))
    assert (second.flags.writeable, second.flags.c_contiguous, second.flags.aligned) == (True, True, True)


@pytest.mark.parametrize("view", [lambda x: x[-5:], lambda x: x.view(np.uint8)[::7], memoryview, lambda x: [x]])
def test_memory_that_somebody_sees_is_not_handed_out(view):
    first = decoded()
    where, kept = place(first), view(first)
    before = np.array(kept)
    del first
    others = [decoded() * 0 for _ in range(3)]
    assert place(decoded()) != where
    np.testing.assert_array_equal(np.array(kept), before)
    del kept, others
    gc.collect()
    assert where in {place(block) for block in result_pool.pool.blocks}


def test_memory_that_is_handed_out_too_early_is_found(monkeypatch):
    class Early(result_pool._Loan):
        def __init__(self, block, nbytes):
            super().__init__(block, nbytes)
            self.pool.put(block)

        def __del__(self):
            pass

    monkeypatch.setattr(result_pool, "_Loan", Early)
    with pytest.raises(AssertionError):
        test_memory_that_somebody_sees_is_not_handed_out(lambda x: x[-5:])


def test_every_kind_of_result():
    q = fastq.quantize(np.tile(X, 8), "int4")
    blocks = fastq.gguf.quantize(np.tile(np.clip(X, -9, 9), 8).reshape(-1, 64), "Q4_0")
    results = [
        q.codes,
        fastq.quantize(np.tile(X, 4), "int8").codes,
        fastq.fake_quantize(X, "int8"),
        q.dequantize(),
        q.unpacked(),
        fastq.pack(q.unpacked(), "int4"),
        blocks,
        fastq.gguf.dequantize(blocks, "Q4_0"),
        fastq.quantize(np.asfortranarray(np.tile(X, 4).reshape(4, -1)), "int8", axis=0).codes,
    ]
    assert [result.nbytes >= result_pool.LARGE for result in results] == [True] * len(results)
    assert [isinstance(base_of(result), result_pool._Loan) for result in results] == [True] * len(results)
    assert results[-1].flags.f_contiguous


def base_of(array):
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


def test_no_more_is_kept_than_the_limit():
    fastq.set_result_pool_limit(10 << 20)
    assert fastq.get_result_pool_limit() == 10 << 20
    results = [decoded() for _ in range(4)]
    places = [place(result) for result in results]
    while results:
        results.pop(0)
    assert [place(block) for block in result_pool.pool.blocks] == places[-2:]
    fastq.set_result_pool_limit(4 << 20)
    assert [place(block) for block in result_pool.pool.blocks] == places[-1:]
    fastq.set_result_pool_limit(0)
    assert not result_pool.pool.blocks
    assert decoded().base is None


def test_a_small_result_does_not_hold_a_large_block():
    fastq.dequantize_linear(np.tile(CODES, 4), 0.5, 3)
    (block,) = result_pool.pool.blocks
    assert block.nbytes == 16 << 20
    assert place(decoded()) != place(block)


@pytest.mark.parametrize("value", [-1, 1.5, "many", None])
def test_wrong_limits(value):
    with pytest.raises((TypeError, ValueError), match=r"nbytes|integer"):
        fastq.set_result_pool_limit(value)


def test_limit_from_the_environment():
    assert run("print(fastq.get_result_pool_limit())", FASTQ_RESULT_POOL="12345").split() == ["12345"]
    code = """
    try:
        fastq.get_result_pool_limit()
    except ValueError as error:
        print(error)
    """
    assert "FASTQ_RESULT_POOL must be a number of bytes, not 'much'" in run(code, FASTQ_RESULT_POOL="much")


def test_forked_children_have_memory_of_their_own():
    run(
        """
        x = np.ones(1 << 20, np.float32)
        q = fastq.quantize(x, "int8")
        q.dequantize()
        child = forked(lambda: np.testing.assert_array_equal(q.dequantize(), x))
        np.testing.assert_array_equal(q.dequantize(), x)
        join(child)
        """
    )


def test_results_that_end_after_their_module(monkeypatch, capfd):
    """At the end of the interpreter names of modules are None, and some objects are still there."""
    kept = decoded()
    for name in [name for name in vars(result_pool) if not name.startswith("__")]:
        monkeypatch.setattr(result_pool, name, None)
    del kept
    gc.collect()
    assert capfd.readouterr().err == ""


def test_threads_that_take_the_same_blocks():
    pool, size, threads, turns = result_pool._Pool(1 << 20), 1 << 12, 8, 500
    before, taken, twice = sys.getswitchinterval(), set(), []

    def work():
        for _ in range(turns):
            block = pool.take(size) or result_pool._Block(size)
            if id(block) in taken:
                twice.append(block)
            taken.add(id(block))
            time.sleep(0)
            taken.discard(id(block))
            pool.put(block)

    try:
        sys.setswitchinterval(1e-6)
        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(before)
    assert not twice
    assert 0 < len(pool.blocks) <= threads
    assert len({*map(id, pool.blocks)}) == len(pool.blocks)


def test_threads_that_drop_the_same_blocks():
    pool = result_pool._Pool(1 << 20)
    for _ in range(256):
        pool.put(result_pool._Block(1 << 12))
    threads = [threading.Thread(target=pool.set_limit, args=(size << 12,)) for size in (3, 2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(block.nbytes for block in pool.blocks) <= pool.limit


def test_threads_that_make_and_release_results():
    scales = [np.float32(k + 1) for k in range(8)]
    expected = [reference.dequantize_linear(CODES, scale, 3) for scale in scales]
    wrong = []

    def work(k):
        for _ in range(20):
            values_ = fastq.dequantize_linear(CODES, scales[k], 3)
            if not np.array_equal(values_, expected[k]):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
