"""Every public function, code format, convention and block format of GGUF, once and never left to --all.

What the other tests leave to --all is which of these meet each other: every dtype, granularity, layout and size. Of
formats whose kernels differ in constants alone, as integers of a width with a sign and without one, one is written and
the other read. Those that no other quick test needs have short runs, whose kernels take a third of the time to compile.
"""

import dataclasses
import inspect
import sys
import tempfile

import gguf as gguf_package
import numpy as np
import pytest
from catalogue import ANYWHERE, FEW, same_bytes, same_quantized, values
from gguf_blocks import needed_importance
from junk_calls import made_ready

import fastq
from fastq import reference
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.formats.qtypes import QTYPES
from fastq.system import imports

X = values("float32", 6 * 64, 21).reshape(6, 64).clip(-1000, 1000)
Y = values("float32", 6 * 64, 22).reshape(6, 64).clip(-1000, 1000)
SUMS = np.random.default_rng(23).integers(-3000, 3000, X.shape).astype(np.int32)
CONVENTIONS = fastq.CONVENTIONS


def same(actual, expected):
    """Assert the same results, whatever they are; measures are sums, which the reference takes in another order."""
    assert type(actual) is type(expected)
    if isinstance(expected, fastq.QuantizedArray):
        same_quantized(actual, expected)
        assert (actual.dtype, actual.axis, actual.convention) == (expected.dtype, expected.axis, expected.convention)
    elif isinstance(expected, fastq.QParams):
        same_bytes(actual.scale, expected.scale)
        same_bytes(actual.zero_point, expected.zero_point)
    elif isinstance(expected, fastq.Comparison):
        assert vars(actual) == pytest.approx(vars(expected), rel=1e-9)
    elif isinstance(expected, tuple):
        for one, other in zip(actual, expected, strict=True):
            same_bytes(one, other)
    else:
        same_bytes(actual, expected)


# Functions

INT8 = reference.quantize(X, "int8", axis=0)
INT4 = reference.quantize(X, "int4")


def nested(found):
    """Codes, their scales and the values of nested scales, as either API returns them."""
    q, values = (found[0], found[2]) if isinstance(found, tuple) else (found.quantized, found.dequantize())
    return q.codes, q.scale, values


COMPUTED = {
    "binarize": lambda api: api.binarize(X, dtype="int8"),
    "bit_information": lambda api: api.bit_information(X, axis=0).counts,
    "bitround": lambda api: api.bitround(X, digits=3),
    "choose_qparams": lambda api: api.choose_qparams(X, "int8", axis=0),
    "compare": lambda api: api.compare(X, INT8),
    "dequantize": lambda api: api.dequantize(INT8),
    "dequantize_linear": lambda api: api.dequantize_linear(INT8.codes, INT8.scale, INT8.zero_point, axis=0),
    "fake_quantize": lambda api: api.fake_quantize(X, "int8", axis=0),
    "minmax": lambda api: api.minmax(X, axis=0),
    "nest_scale": lambda api: nested(api.nest_scale(INT8.scale)),
    "pack": lambda api: api.pack(INT4.unpacked(), "int4"),
    "quantize": lambda api: api.quantize(X, "int8", axis=0),
    "quantize_linear": lambda api: api.quantize_linear(X, INT8.scale, INT8.zero_point, axis=0),
    "requantize": lambda api: api.requantize(SUMS, X[0] ** 2 / 1e6, 3, "int8", axis=1, bias=SUMS[0]),
    "unpack": lambda api: api.unpack(INT4.codes, "int4", shape=X.shape),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_functions(name):
    same(COMPUTED[name](fastq), COMPUTED[name](reference))


def put_back(getter, setter, value):
    before = getter()
    setter(value)
    assert getter() == value
    setter(before)
    assert getter() == before


def panels(x, q):
    pytest.importorskip("matplotlib", reason="no matplotlib")
    assert len(fastq.plot.errors(x, q)) > 0


def read_back(q):
    with tempfile.TemporaryDirectory() as folder:
        q.save(f"{folder}/q")
        same(fastq.load(f"{folder}/q"), q)


SETTINGS = {
    "load": lambda _: read_back(INT8),
    "get_num_threads, set_num_threads": lambda _: put_back(fastq.get_num_threads, fastq.set_num_threads, 1),
    "get_result_pool_limit, set_result_pool_limit": lambda _: put_back(
        fastq.get_result_pool_limit, fastq.set_result_pool_limit, 12345
    ),
    "show_versions": lambda capsys: fastq.show_versions() or capsys.readouterr().out.index("numba"),
    "warmup": lambda _: made_ready("int8", native=False),
    "plot.errors": lambda _: panels(X, INT8),
}


@pytest.mark.parametrize("names", SETTINGS)
def test_settings(names, capsys):
    SETTINGS[names](capsys)


# Formats and conventions


# written, and read in its place
PAIRS = {f"int{bits}": f"uint{bits}" for bits in range(1, 8)} | {"mxfp6_e3m2": "mxfp6_e2m3", "mxfp8_e5m2": "mxfp8_e4m3"}
# one scale for the array, or whole blocks: kernels that other tests need, or that take less time than those of rows
WHOLE = {*FEW, "nvfp4", "nf4", "dynamic8", "torch", "matmul-nbits", "faiss", "textbook"}


def array_of(name):
    """An array for a format or a convention, and the axis that it has rows of 8 elements for."""
    in_blocks = name in CONVENTIONS and name not in ANYWHERE
    return (X, {}) if in_blocks or name in WHOLE else (X.reshape(-1, 8), {"axis": 0})


@pytest.mark.parametrize("dtype", QTYPES)
def test_formats(dtype):
    x, options = array_of(dtype)
    options = {} if QTYPES[dtype].block_size else options
    expected = reference.quantize(x, dtype, **options)
    q = expected if dtype in {*PAIRS.values()} - {*FEW} else fastq.quantize(x, dtype, **options)
    same(q, expected)
    if dtype not in PAIRS.keys() - {*FEW}:
        same(fastq.dequantize(q), reference.dequantize(expected))
    if dtype in FEW:
        same(fastq.quantize(Y, qparams=q.qparams), reference.quantize(Y, qparams=expected.qparams))


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_conventions(convention):
    row = CONVENTIONS[convention]
    x, where = array_of(convention)
    options = where | {"convention": convention, "symmetric": "asymmetric" not in row.schemes}
    code = (row.formats or ("uint8",))[0]
    q, expected = fastq.quantize(x, code, **options), reference.quantize(x, code, **options)
    same(q, expected)
    same(q.dequantize(), reference.dequantize(expected))


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_block_formats_of_gguf(name):
    x = np.resize(X, (3, 512))
    importance = needed_importance(name, 512)
    blocks = fastq.gguf.quantize(x, name, importance=importance)
    same(blocks, reference.gguf.quantize(x, name, importance=importance))
    values = fastq.gguf.dequantize(blocks, name)
    same(values, reference.gguf.dequantize(blocks, name))
    if name not in ("Q1_0", "Q2_0"):  # which the package knows by their names at most
        same(values, gguf_package.quants.dequantize(blocks, gguf_package.GGMLQuantizationType[name]))


# Errors that no other test reaches: conftest.py sees that none is left


def test_a_quantized_array_is_no_view():
    with pytest.raises(ValueError, match="without a copy"):
        INT8.__array__(copy=False)


def test_without_ml_dtypes_it_is_named(monkeypatch):
    def absent():
        raise ModuleNotFoundError("ml_dtypes")

    monkeypatch.setattr(imports, "ml_dtypes", absent)
    with pytest.raises(ModuleNotFoundError, match="bfloat16 arrays need ml_dtypes"):
        _ = dataclasses.replace(FLOAT_FORMATS["bfloat16"]).dtype


# Nothing is forgotten


def public_functions(module):
    return {name for name in getattr(module, "__all__", vars(module)) if inspect.isfunction(getattr(module, name))}


def test_every_public_function_is_called():
    called = {name for names in [*COMPUTED, *SETTINGS] for name in names.split(", ")}
    assert called - {"plot.errors"} == public_functions(fastq)


def test_nothing_here_is_slow():
    tests = [f for name, f in vars(sys.modules[__name__]).items() if name.startswith("test_")]
    assert [f.__name__ for f in tests if any(mark.name == "slow" for mark in getattr(f, "pytestmark", []))] == []


def test_a_result_larger_than_any_memory():
    with pytest.raises(MemoryError, match=r"a result of shape .* and dtype float32 has 18446744073709551616 bytes"):
        fastq.dequantize_linear(np.broadcast_to(np.int8(1), (2**62,)), 1.0)
