"""The floating-point mode of the calling thread: whatever it is, the same bytes, and it stays as it was."""

import pytest
from subprocesses import finish, start

# flush-to-zero with denormals-are-zero (what -ffast-math sets), and the rounding modes other than to nearest
X86 = {"flush to zero": 0x9FC0, "down": 0x3F80, "up": 0x5F80, "toward zero": 0x7F80}
ARM = {"flush to zero": 1 << 24, "down": 2 << 22, "up": 1 << 22, "toward zero": 3 << 22}

SETUP = """
import dataclasses
import sys
import numpy as np
from llvmlite import binding
import fastq
from fastq import reference
from fastq.engine.runtime import boundary, instructions, threadpool
from fastq.plan import policy

arm = not binding.get_process_triple().startswith("x86_64")
mode = {modes}[arm]
x = np.random.default_rng(0).standard_normal((40, 96)).astype(np.float32)
x[0, :5] = [1e-40, -3e-42, 0, -0.0, 1e-39]
tiny = x * np.float32(2e-38)
subnormal = np.float32(1e-40)
subnormals = np.float32([1e-40, -3e-40, 5e-39])
importances = None, x[1] ** 2, np.abs(subnormal * x[1]), np.geomspace(1e-320, 1, 96)
stored = fastq.QParams(np.array(1e-40), np.array(0, "i1"), "int8")
codes = reference.quantize(x, "int8", axis=0)

def bits(result):
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return [bits(getattr(result, field.name)) for field in dataclasses.fields(result)]
    if isinstance(result, tuple):
        return list(map(bits, result))
    return np.asarray(result).tobytes() if isinstance(result, np.ndarray | np.generic) else repr(result)

def results():
    for values in (x, tiny):
        for dtype in ("int8", "nvfp4"):
            q = fastq.quantize(values, dtype)
            yield q
            yield q.dequantize()
            yield fastq.compare(values, q)
        yield fastq.minmax(values)
        yield fastq.minmax(values, axis=0)
        yield fastq.bitround(values, digits=3)
        yield fastq.bitround(values, max_error=1e-39)
        yield fastq.bit_information(values).counts
        yield fastq.choose_qparams(values, "uint8", convention="torch", axis=0)
        yield fastq.fake_quantize(values, "int8", axis=0)
        yield fastq.quantize_linear(values, subnormal, dtype="uint8")
        yield fastq.quantize_linear(values, [0.1] * 96, dtype="int8", axis=1)
        yield fastq.quantize_linear(values, 0.1, dtype="int8")
        yield fastq.gguf.quantize(values, "Q4_0")
        yield fastq.gguf.quantize(values, "Q4_0", range="mse")
        for importance in importances:
            for where in ({"axis": 0}, {"axis": 1, "block_size": 32}, {}):
                yield fastq.quantize(values, "int4", range="mse", importance=importance, **where)
    yield codes.dequantize()
    yield fastq.minmax(x[0, :4])
    calibrator = fastq.Calibrator("int8")
    calibrator.update(subnormals)
    yield calibrator.minimum, calibrator.maximum
    yield calibrator.qparams()
    yield fastq.quantize(tiny, qparams=stored)

def in_mode(mode, compute):
    exchange = boundary._exchange()
    before = exchange(mode)
    try:
        return list(compute())
    finally:
        left = exchange(before)
        assert left & instructions.CONTROL == mode & instructions.CONTROL, hex(left)
"""


def run_in(name, code, **environment):
    setup = SETUP.replace("{modes}", repr((X86[name], ARM[name])))
    finish(start(code, setup=setup, **environment), timeout=300)


@pytest.mark.slow("a process each")
@pytest.mark.parametrize("name", X86)
def test_results_do_not_depend_on_the_mode_of_the_caller(name):
    # contract 26.3
    """Neither those of a first call, which is resolved in that mode, nor those of later ones; on two threads too."""
    code = """
    first = in_mode(mode, results)
    policy.PARALLEL_FROM = threadpool.WAKE_FROM = 1
    fastq.set_num_threads(threadpool._state.most)
    later = in_mode(mode, results), in_mode(mode, results)
    expected = [bits(result) for result in results()]
    for found in (first, *later):
        for k, result in enumerate(found):
            assert bits(result) == expected[k], (k, result)
    assert bits(fastq.quantize(tiny, "int8")) == bits(reference.quantize(tiny, "int8"))
    """
    run_in(name, code)


@pytest.mark.slow("a process each, which compiles")
@pytest.mark.parametrize("name", X86)
def test_arrays_in_compiled_functions_do_not_depend_on_it(name):
    # contract 26.3
    code = """
    import numba
    from fastq.ops import numba_overloads

    numba_overloads.register_public_functions()
    user = numba.njit(lambda x, scale: fastq.quantize_linear(x, scale, dtype="uint8"))
    expected = bits(reference.quantize_linear(tiny, subnormal, dtype="uint8"))
    scale = np.array([subnormal])  # Numba reads a number by way of a double, in that mode
    for found in (user(tiny, scale), *in_mode(mode, lambda: [user(tiny, scale)])):
        assert bits(found) == expected
    """
    run_in(name, code)


@pytest.mark.slow("compiles six kernels a mode")
@pytest.mark.parametrize("name", X86)
def test_the_comparison_sees_results_of_another_mode(name, tmp_path):
    code = """
    instructions.CONTROL, instructions.STANDARD = 0, 0  # every mode is taken for the right one
    boundary._is_standard = lambda: True
    wrong = lambda: [fastq.quantize_linear(tiny, subnormal, dtype="uint8"), fastq.fake_quantize(x, "int8", axis=0)]
    expected, exchange = wrong(), boundary._exchange()
    before = exchange(mode)
    found = wrong()
    exchange(before)
    assert list(map(bits, found)) != list(map(bits, expected))
    """
    run_in(name, code, NUMBA_CACHE_DIR=tmp_path)
