"""Functions that Numba compiles call traced ones, whose results do not depend on how Numba compiles."""

import math

import numba
import numpy as np
import pytest
from numba import types
from subprocesses import run

from fastq.engine import jit
from fastq.engine import simd as v


@jit.traced
def ratio(x, y):
    return v.rint(x / y)


@jit.traced
def sign_and_ratio(x, y):
    return (-1 if x < 0 else 1), ratio(x, y)


@jit.traced
def total(x, n, start):
    result = 0.0 if start is None else start
    for k in range(n):
        result = result + x[k]
    return result


@jit.traced
def is_number(x):
    """Whether x is a number: true of all with fast-math flags, which promise that there is no NaN."""
    return x == x


ratio_of = jit.numba_intrinsic(ratio, result=types.float64)
sign_and_ratio_of = jit.numba_intrinsic(sign_and_ratio, result=types.Tuple([types.int64, types.float64]))
total_of = jit.numba_intrinsic(total, result=types.float64)
is_number_of = jit.numba_intrinsic(is_number, result=types.boolean)

OPTIONS = [{}, {"parallel": True}, {"fastmath": True}, {"error_model": "numpy"}, {"nogil": True, "boundscheck": True}]


@pytest.mark.slow("each compiles", quick=lambda options: "fastmath" in options)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_by_any_options(options):
    @numba.njit(**options)
    def user(x, y, out):
        for k in numba.prange(x.size):
            sign, nearest = sign_and_ratio_of(x[k], y)
            out[k] = sign * 100 + nearest
        return ratio_of(x[0], 0.0), total_of(x, x.size, None), total_of(x[1:], x.size - 1, 2.0)

    x = np.array([-5.0, 1.0, 3.0, 8.0])
    out = np.empty_like(x)
    assert user(x, 2.0, out) == (-math.inf, 7.0, 14.0)  # a division by zero as in NumPy, not as in Python
    np.testing.assert_array_equal(out, [-102, 100, 102, 104])


def test_fast_math_reaches_no_instruction():
    @numba.njit(fastmath=True)
    def user(x):
        return is_number_of(x), ratio_of(x, x), x == x

    plain, nearest, fast = user(math.nan)
    assert not plain
    assert math.isnan(nearest)
    assert fast  # what the option does


@jit.traced
def begin():
    return 5


@jit.traced
def end(begun):
    return begun


@jit.traced
def halve(x, n):
    for k in range(n):
        x[k] = x[k] / 2
    return n


def test_functions_around_a_call():
    halved = jit.numba_intrinsic(halve, result=types.int64, around=(begin, end))

    @numba.njit
    def user(x):
        return halved(x, x.size)

    x = np.array([1.0, 4.0])
    assert user(x) == 2
    assert x.tolist() == [0.5, 2.0]


def test_a_function_is_in_a_module_once():
    @numba.njit
    def user(x):
        return ratio_of(x, 2.0) + ratio_of(x, 3.0) + ratio_of(x, x)

    assert user(5.0) == 5.0
    assert user.inspect_llvm(user.signatures[0]).count("define internal { double } @fastq.ratio") <= 1


def test_what_is_wrong_is_said_when_numba_compiles():
    @numba.njit
    def user(x):
        return total_of(x, 1, 2, 3)

    with pytest.raises(numba.TypingError):
        user(np.ones(3))
    with pytest.raises(NotImplementedError):
        ratio_of(1.0, 2.0)


@pytest.mark.slow("processes that compile")
def test_in_cached_functions(tmp_path):
    (tmp_path / "user.py").write_text(
        "import numba\nfrom fastq.engine import jit\nfrom fastq.engine.simd import rint\n"
        "@jit.traced\ndef half(x):\n    return rint(x / 2)\n"
        "half_of = jit.numba_intrinsic(half, result=numba.float64)\n"
        "@numba.njit(cache=True)\ndef user(x):\n    return half_of(x) + 1\n"
    )
    code = f"""
    sys.path.insert(0, {str(tmp_path)!r})
    from user import user
    print(user(7.0), sum(user.stats.cache_hits.values()))
    """
    for hits in (0, 1):
        assert run(code, NUMBA_CACHE_DIR=tmp_path / "cache") == f"5.0 {hits}\n"
