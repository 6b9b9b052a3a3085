"""Compiled functions are Numba dispatchers: called from Python, from anybody's compiled code, and inspected."""

import math

import numba
import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher
from subprocesses import run

import fastq
from fastq.engine import jit
from fastq.engine.jit.options import Target
from fastq.engine.simd import rint


@jit.njit
def half(x, y=2.0):
    return rint(x / y)


@jit.njit
def total(x):
    result = 0.0
    for k in range(x.size):
        result += half(x[k], 1)
    return result


@jit.njit
def sum_of(*values):
    return values[0] + values[1]


def test_called_from_python():
    assert isinstance(half, Dispatcher)
    assert half(5.0) == 2.0
    assert half(1.0, 0.0) == math.inf  # as NumPy, not as Python
    assert total(np.array([1.5, 2.5, 3.25])) == 7.0
    assert half.py_func.__name__ == "half"
    assert half.__doc__ == half.py_func.__doc__
    assert sum_of(1, 2) == 3


def test_inspected_by_numbas_own_means():
    half(np.float32(5), np.float32(2))
    signature = numba.float32, numba.float32
    assert signature in half.signatures
    assert "llvm.rint.f32" in half.inspect_llvm(signature)
    assert half.inspect_asm(signature)
    assert half.get_metadata(signature)


def test_calls_from_compiled_code_are_in_a_table_of_their_own():
    @jit.njit
    def inner(x, k):
        return x + k if x else k

    @jit.njit
    def outer(x):
        return inner(x, 1) + inner(x, 2)

    assert outer(1) == 5
    assert outer.signatures == [(numba.int64,)]
    assert inner.signatures == []
    assert inner.inlined.signatures == [(numba.int64, numba.int64)]  # once, not for each literal


def test_literals_where_types_alone_do_not_do():
    @jit.traced
    def registers(count):
        return count if count > 3 else 3

    @jit.njit
    def through(count):
        return registers(count)

    @jit.njit
    def outer():
        return through(3) * 10 + through(4)

    assert outer() == 34
    with pytest.raises(NotImplementedError, match="registers exists in compiled code only"):
        registers(3)


@pytest.mark.parametrize("options", [{}, {"parallel": True}])
def test_in_functions_of_the_user(options):
    @numba.njit(**options)
    def user(x, out):
        for k in numba.prange(x.size):
            out[k] = half(x[k]) + sum_of(1.0, 2.0)

    x = np.array([1.0, 3.0, 5.0, 8.0])
    out = np.empty_like(x)
    user(x, out)
    np.testing.assert_array_equal(out, np.rint(x / 2) + 3)


class Settings(jit.Constants):
    def __init__(self, doubles):
        self.doubles, self.kind = doubles, numba.types.float32
        super().__init__(f"Settings({doubles})")


@jit.traced
def perhaps_doubled(settings, x, *more):
    """Choose by types, call what is compiled, and what is not compiled with types."""
    assert width_of(x) == 64
    assert isinstance(x, numba.types.Float)
    assert [width_of(each) for each in (x, *more)] == [64, 64]
    return half(x, 0.5) if settings.doubles and settings.kind == numba.types.float32 else x


def width_of(kind):
    return kind.bitwidth


@pytest.mark.parametrize("doubles", [False, True])
def test_traced_functions_branch_on_types(doubles):
    settings = Settings(doubles)

    @jit.intrinsic
    def of_settings(typingctx):
        return settings(), lambda context, builder, sig, args: context.get_dummy_value()

    @jit.njit
    def outer(x, k):
        result = 0.0
        for _ in range(k):
            chosen = of_settings()
            result += perhaps_doubled(chosen, x, x) + (1 if chosen.doubles else 0)
        return result

    assert outer(7.0, 2) == (30.0 if doubles else 14.0)


def test_what_a_function_is_given_later_is_found():
    def twice(x):
        raise NotImplementedError

    def through(x):
        return twice(x)

    for kind, value in ((numba.types.Integer, 3), (numba.types.Float, 1.5)):
        with pytest.raises(numba.TypingError):
            jit.njit(through)(value)
        jit.overload(twice, lambda x, kind=kind: (lambda x, kind=kind: x + x) if isinstance(x, kind) else None)
        assert jit.njit(through)(value) == 2 * value


def test_large_traced_functions_are_functions_of_their_own():
    @jit.traced
    def large(x):
        for _ in range(200):
            x = rint(x + 0.5)
        return x, x

    @jit.njit
    def outer(x):
        first, second = large(x), large(x)
        return first[0] + second[1]

    assert outer(0.0) == 2 * large_in_python(0.0)


def large_in_python(x):
    for _ in range(200):
        x = float(np.rint(x + 0.5))
    return x


def test_what_cannot_be_traced_says_why():
    @jit.traced
    def branches(x):
        return 1 if x else 2

    with pytest.raises(numba.TypingError, match="branches: UntraceableError"):
        jit.njit(lambda x: branches(x))(1)


def test_with_jit_disabled():
    code = """
    from fastq.engine import jit
    from fastq.engine.simd import rint
    f = jit.njit(lambda x: rint(x))
    print(f(2.5), f.signatures)
    """
    assert run(code, NUMBA_DISABLE_JIT=1) == "2.0 [(float64,)]\n"


@pytest.mark.slow("processes that compile")
def test_in_cached_functions_of_the_user(tmp_path):
    (tmp_path / "user.py").write_text(
        "import numba\nfrom fastq.engine import jit\nfrom fastq.engine.simd import rint\n"
        "@jit.njit\ndef half(x):\n    return rint(x / 2)\n"
        "@numba.njit(cache=True)\ndef user(x):\n    return half(x) + 1\n"
    )
    code = f"""
    sys.path.insert(0, {str(tmp_path)!r})
    from user import user
    print(user(7.0), sum(user.stats.cache_hits.values()))
    """
    for hits in (0, 1):
        assert run(code, NUMBA_CACHE_DIR=tmp_path / "cache") == f"5.0 {hits}\n"


def test_kernels_of_a_call_can_be_read():
    x = np.linspace(-3, 3, 4096, dtype=np.float32)
    for _ in range(2):  # the second call is known from before
        kernels = fastq.kernels.inspect(fastq.quantize_linear, x, np.float32(0.1), np.int8(0))
        (kernel,) = kernels
        assert kernel.name == "runs.runs"
        assert "float32" in kernel.types
        assert "llvm.lrint" in kernel.llvm
        assert "i64 @fastq_kernel(" in kernel.llvm
        assert "fastq_kernel:" in kernel.asm
        assert kernels.llvm.startswith(f"; runs.runs({kernel.types})\n")
        assert kernels.asm.startswith(f"# runs.runs({kernel.types})\n")
        assert repr(kernels) == "<kernels runs.runs>"


def test_kernels_of_several_launches_come_once_each():
    x = np.linspace(-3, 3, 1 << 19, dtype=np.float32)
    names = [kernel.name for kernel in fastq.kernels.inspect(lambda: [fastq.quantize(x, "int8") for _ in range(2)])]
    assert len(names) == len(set(names)) or names.count("runs.runs") == 2
    assert 1 < len(names) <= 4
    assert fastq.kernels.inspect(lambda: None) == ()


def test_a_feature_is_not_another_whose_name_begins_like_it():
    assert not Target("x86_64", "x", "-fma,+fma4").has("fma")
    assert Target("x86_64", "x", "+avx2,+fma").has("fma")


def test_arm_is_told_by_the_triple():
    assert Target("aarch64-unknown-linux-gnu", "generic", "").is_arm
    assert Target("arm64-apple-darwin22", "apple-m1", "").is_arm
    assert not Target("x86_64-unknown-linux-gnu", "znver4", "").is_arm
