"""Settings of Numba's by the environment change how kernels are compiled, not what they compute."""

from textwrap import dedent

import pytest
from subprocesses import run

from fastq.engine.code import shipped

SETTINGS = (
    "NUMBA_OPT=0",
    "NUMBA_OPT=1",
    "NUMBA_OPT=max",
    "NUMBA_LOOP_VECTORIZE=0",
    "NUMBA_SLP_VECTORIZE=1",
    "NUMBA_LLVM_REFPRUNE_PASS=0",
    "NUMBA_BOUNDSCHECK=1",
    "NUMBA_DEBUGINFO=1",
    "NUMBA_EXTEND_VARIABLE_LIFETIMES=1",
    "NUMBA_DEVELOPER_MODE=1",
    "NUMBA_CAPTURED_ERRORS=old_style",
    "NUMBA_DISABLE_JIT=1",
    "NUMBA_ENABLE_AVX=0",
    "NUMBA_CPU_NAME=generic",
    "NUMBA_CPU_NAME=haswell",
    "NUMBA_CPU_FEATURES=+sse2",
    "NUMBA_ENABLE_PROFILING=1",
    "NUMBA_USE_LLVMLITE_MEMORY_MANAGER=1",
    "NUMBA_NUM_THREADS=1",
)

# values that break ties, blocks, packed codes, floats, columns, GGUF
CODE = dedent("""
    from fastq.testing import assert_same_codes

    x = np.random.default_rng(0).standard_normal((8, 96), np.float32)
    x[0, :8] = np.arange(-4, 4) + 0.5
    for dtype, options in (
        ("mxfp4", {}),
        ("dynamic8", {"axis": -1, "block_size": 32}),
        ("uint8", {}),
        ("int4", {"axis": -1, "block_size": 32, "symmetric": True}),
        ("float8_e4m3fn", {"axis": 1}),
    ):
        expected = reference.quantize(x, dtype, **options)
        q = fastq.quantize(x, dtype, **options)
        assert_same_codes(q, expected)
        assert q.dequantize().tobytes() == reference.dequantize(expected).tobytes()
        np.testing.assert_allclose(fastq.compare(x, q).mse, reference.compare(x, q).mse, 1e-6)
    assert fastq.gguf.quantize(x, "Q8_0").tobytes() == reference.gguf.quantize(x, "Q8_0").tobytes()
    blocks = np.full((3, 18), 7, np.uint8)  # whose scales of 16 bits are NaN, with payloads, and a signaling one
    blocks[:, :2] = np.array([[0x7FD8], [0xFE03], [0x7D01]], "<u2").view(np.uint8)
    assert fastq.gguf.dequantize(blocks, "Q4_0").tobytes() == reference.gguf.dequantize(blocks, "Q4_0").tobytes()
""")


@pytest.mark.slow("each process compiles its kernels")
@pytest.mark.parametrize("setting", SETTINGS)
def test_same_bytes_by_any_setting(tmp_path, setting):
    name, _, value = setting.partition("=")
    setup = "import numpy as np\nimport fastq\nfrom fastq import reference\n"
    if name == "NUMBA_DEBUGINFO":  # Numba warns of lambdas whose lines it does not find, which computes nothing else
        setup += "import warnings\nwarnings.filterwarnings('ignore', 'Could not find source for function')\n"
    run(CODE, setup=setup, NUMBA_CACHE_DIR=tmp_path, **{name: value})


ANY_CODE = {f"NUMBA_{name}" for name in ("DEVELOPER_MODE", "CAPTURED_ERRORS", "DISABLE_JIT", "NUM_THREADS")}
ANY_CODE |= {f"NUMBA_{name}" for name in ("LLVM_REFPRUNE_PASS", "BOUNDSCHECK", "DEBUGINFO", "ENABLE_PROFILING")}
ANY_CODE |= {"NUMBA_USE_LLVMLITE_MEMORY_MANAGER", "NUMBA_EXTEND_VARIABLE_LIFETIMES"}


@pytest.mark.parametrize("setting", SETTINGS)
def test_code_of_the_package_is_used_only_where_a_setting_changes_none(monkeypatch, setting):
    for each in SETTINGS:
        monkeypatch.delenv(each.partition("=")[0], raising=False)
    name, _, value = setting.partition("=")
    monkeypatch.setenv(name, value)
    asked = []
    monkeypatch.setattr(shipped.cpu, "levels", lambda: asked.append(name) or [])
    assert shipped._library.__wrapped__() is None
    assert bool(asked) == (name in ANY_CODE)
