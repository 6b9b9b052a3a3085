"""Calls whose launch plan is kept: they give what the reference gives, and notice all that validation notices."""

import gc
import importlib
import math
import operator
import pkgutil
import weakref

import ml_dtypes
import numpy as np
import pytest
import unpacked
from catalogue import same_bytes, same_quantized, values
from subprocesses import run

import fastq
from fastq import ops, reference
from fastq.formats.qtypes import QTYPES
from fastq.ops.quantize import QUANTIZE_LINEAR
from fastq.plan import cache, launch

SHAPE = 48, 64


@pytest.fixture(autouse=True)
def _no_plans():
    cache.plans.clear()
    yield
    cache.plans.clear()


def kept():
    return cache.plans.recent


def twice(call, *arguments):
    """Return what the second of two calls returns, whose plan is kept."""
    call(*arguments)
    return call(*arguments)


@pytest.fixture
def only_kept(monkeypatch):
    """Return a function after which every call must find its plan."""

    def refuse(asked):
        raise AssertionError(f"{asked.operation} is resolved once more")

    return lambda: monkeypatch.setattr(cache, "_resolve", refuse)


def data(dtype, seed):
    return values(dtype, math.prod(SHAPE), seed).reshape(SHAPE)


def params(api, **arguments):
    return reference.choose_qparams(data("float32", 0), **{"dtype": "int8"} | arguments)


def values_of(api, q):
    return q.dequantize() if api is fastq else reference.dequantize(q)


def unpack_array(api):
    return fastq.xarray.unpack_array if api is fastq else unpacked.unpack_array


FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
FLOAT8_ZERO = FLOAT8.type(0)
PER_ROW = np.linspace(0.5, 2, SHAPE[0], dtype=np.float32)
CALLS = {
    "quantize": lambda api, x: api.quantize(x, "int8"),
    "quantize uint8, rows": lambda api, x: api.quantize(x, "uint8", axis=0),
    "quantize columns": lambda api, x: api.quantize(x, "int8", axis=-1, symmetric=True),
    "quantize blocks": lambda api, x: api.quantize(x, "int8", axis=1, block_size=16, symmetric=True),
    "quantize int4": lambda api, x: api.quantize(x, "int4", axis=1, block_size=32),
    "quantize, one scale for int4": lambda api, x: api.quantize(x, "int4"),
    "quantize, kept axes": lambda api, x: api.quantize(x.reshape(6, 8, 64), "int16", axis=(0, 1)),
    "quantize torch": lambda api, x: api.quantize(x, "uint8", convention="torch"),
    "quantize float8": lambda api, x: api.quantize(x, "float8_e4m3fn", axis=0),
    "quantize mxfp4": lambda api, x: api.quantize(x, "mxfp4"),
    "quantize bits": lambda api, x: api.quantize(x, "int8", bits=5),
    "quantize, qparams": lambda api, x: api.quantize(x, qparams=params(api)),
    "quantize, qparams of rows": lambda api, x: api.quantize(x, qparams=params(api, axis=0)),
    "quantize, qparams of int4": lambda api, x: api.quantize(x, qparams=params(api, dtype="int4", axis=0)),
    "fake_quantize": lambda api, x: api.fake_quantize(x, "int8"),
    "fake_quantize, rows": lambda api, x: api.fake_quantize(x, "int4", axis=0),
    "fake_quantize, qparams": lambda api, x: api.fake_quantize(x, qparams=params(api)),
    "quantize_linear": lambda api, x: api.quantize_linear(x, np.float32(0.5), np.int8(3)),
    "quantize_linear, numbers": lambda api, x: api.quantize_linear(x, 0.1, -3, "int8"),
    "quantize_linear, float64 scale": lambda api, x: api.quantize_linear(x, np.float64(0.1), 3, "uint8"),
    "quantize_linear, no zero point": lambda api, x: api.quantize_linear(x, 0.1, None, "int16"),
    "quantize_linear, rows": lambda api, x: api.quantize_linear(x, PER_ROW, None, "int8", axis=0),
    "quantize_linear, uint4": lambda api, x: api.quantize_linear(x, 0.7, 8, "uint4"),
    "dequantize_linear": lambda api, x: api.dequantize_linear(x.view(np.uint8), 0.1, np.uint8(7)),
    "dequantize_linear, rows": lambda api, x: api.dequantize_linear(x.view(np.int8)[:, :64].copy(), PER_ROW, axis=0),
    "dequantize": lambda api, x: values_of(api, reference.quantize(x, "uint8", axis=0)),
    "dequantize int4": lambda api, x: values_of(api, reference.quantize(x, "int4", axis=1, block_size=32)),
    "quantize_linear, float8": lambda api, x: api.quantize_linear(x, 0.1, FLOAT8_ZERO, "float8_e4m3fn"),
    "quantize_linear, float8, 0": lambda api, x: api.quantize_linear(x, 0.1, 0, "float8_e4m3fn"),
    "dequantize_linear, float8 with NaN": lambda api, x: api.dequantize_linear(x.view(FLOAT8), 0.5),
    "dequantize_linear, float8": lambda api, x: api.dequantize_linear(
        np.clip(x, -400, 400).astype(FLOAT8), PER_ROW, axis=0
    ),
    "binarize": lambda api, x: api.binarize(x),
    "bitround": lambda api, x: api.bitround(x, keepbits=5),
    "bitround, digits": lambda api, x: api.bitround(x, digits=2),
    # the largest element decides how many bits are kept, which a plan is for
    "bitround, error": lambda api, x: api.bitround(np.clip(x, -1, 1), max_error=0.01),
    "bit_information": lambda api, x: api.bit_information(x).counts,
    "binarize int8, columns": lambda api, x: api.binarize(x, axis=0, dtype="int8", bitorder="little"),
    "requantize": lambda api, x: api.requantize(x.view(np.int32), 1e-7, 3, "int8"),
    "requantize, rows": lambda api, x: api.requantize(
        x.view(np.int32), PER_ROW / 1e7, 3, "int8", axis=0, bias=np.arange(len(PER_ROW), dtype=np.int32)
    ),
    "pack": lambda api, x: api.pack(reference.unpack(reference.quantize(x, "int4").codes, "int4", shape=SHAPE), "int4"),
    "unpack": lambda api, x: api.unpack(reference.quantize(x, "uint4").codes, "uint4", shape=SHAPE),
    "unpack float4": lambda api, x: api.unpack(reference.quantize(x, "mxfp4").codes, "float4_e2m1fn", shape=SHAPE),
    "unpack_array": lambda api, x: unpack_array(api)(x.view(np.int16), 0.1, 3, fill_value=[7, -9, 5]),
    "unpack_array float32": lambda api, x: unpack_array(api)(x.view(np.int16).T, np.float32(0.1)),
    "compare": lambda api, x: api.compare(x, reference.quantize(x, "uint8", axis=0)),
    "compare int4": lambda api, x: api.compare(x, reference.quantize(x, "int4", axis=1, block_size=32)),
    "compare mxfp4": lambda api, x: api.compare(x, reference.quantize(x, "mxfp4")),
    "minmax": lambda api, x: api.minmax(x),
    "minmax, rows": lambda api, x: api.minmax(x, axis=0),
    "minmax, blocks": lambda api, x: api.minmax(x, axis=1, block_size=16),
}


def same(actual, expected):
    if isinstance(expected, tuple):
        for one, other in zip(actual, expected, strict=True):
            same_bytes(one, other)
    elif isinstance(expected, fastq.Comparison):
        for name, value in vars(expected).items():  # sums, in another order
            assert getattr(actual, name) == pytest.approx(value, rel=1e-9), name
    elif isinstance(expected, fastq.QuantizedArray):
        same_quantized(actual, expected)
        assert vars(actual.qparams).keys() == vars(expected.qparams).keys()
        assert (actual.shape, actual.qparams.compute_dtype) == (expected.shape, expected.qparams.compute_dtype)
    else:
        same_bytes(actual, expected)


@pytest.mark.slow(
    "compiles kernels for 40 calls",
    quick=lambda name, n: n == 1 and name.startswith(("minmax", "quantize_linear, n", "dequantize_linear, r")),
)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("n", [1, 2])
def test_the_second_call_finds_its_plan(name, n, threads, only_kept):
    threads(n)
    call = CALLS[name]
    call(fastq, data("float32", 1))
    expected = [call(reference, data("float32", seed)) for seed in (2, 3)]
    only_kept()
    for seed, one in zip((2, 3), expected, strict=True):
        same(call(fastq, data("float32", seed)), one)


def test_outputs_of_other_strides_are_told_apart():
    """Neither in C nor in Fortran order, so that no flag tells."""
    x = values("float32", 120, 1).reshape(5, 4, 6).transpose(1, 0, 2)
    expected = reference.quantize_linear(x, 0.1, 3, "int8")
    for order in ((1, 0, 2), (0, 2, 1), (1, 2, 0)):
        out = np.empty([x.shape[axis] for axis in order], np.int8).transpose(np.argsort(order))
        assert fastq.quantize_linear(x, 0.1, 3, "int8", out=out) is out
        same_bytes(out, expected)


@pytest.mark.slow("compiles kernels for each dtype")
@pytest.mark.parametrize("dtype", ["float64", "float16", "int16"])
def test_other_input(dtype, only_kept):
    def call(api, seed):
        x = np.clip(data("float32", seed), -3e4, 3e4).astype(dtype)
        return api.quantize(x, "int8", axis=0), api.fake_quantize(x, "uint8")

    call(fastq, 1)
    expected = call(reference, 2)
    only_kept()
    for actual, one in zip(call(fastq, 2), expected, strict=True):
        same(actual, one)


def test_out(only_kept):
    out, x = np.empty(SHAPE, np.int8), data("float32", 1)
    fastq.quantize_linear(x, 0.1, out=out)
    expected = reference.quantize_linear(data("float32", 2), 0.2, dtype="int8")
    only_kept()
    assert fastq.quantize_linear(data("float32", 2), 0.2, out=out) is out
    same_bytes(out, expected)


# what is wrong only in the elements, so that the key is that of a call that went well


X = data("float32", 1)
NAN = X.copy()
NAN[7, 7] = np.nan
INFINITE = X.copy()
INFINITE[7, 7] = np.inf
ROWS = np.ones(SHAPE[0], np.float32)


def rows(value, dtype=np.float32):
    bad = ROWS.astype(dtype)
    bad[-1] = value
    return bad


BAD = {
    "NaN": (lambda x: fastq.quantize(x, "int8"), X, NAN, "x has 1 NaN"),
    "NaN, given parameters": (lambda x: fastq.quantize_linear(x, 0.1, 0, "int8"), X, NAN, "x has 1 NaN"),
    "NaN, minmax": (fastq.minmax, X, NAN, "x has 1 NaN"),
    "infinite": (lambda x: fastq.quantize(x, "int8"), X, INFINITE, "x has 1 infinite"),
    "a scale of 0": (lambda s: fastq.quantize_linear(X, s, 0, "int8"), 0.1, 0.0, "positive and finite"),
    "a scale of -1": (lambda s: fastq.quantize_linear(X, s, 0, "int8"), 0.1, -1.0, "positive and finite"),
    "a scale too large": (lambda s: fastq.quantize_linear(X, s, 0, "int8"), 0.1, 1e39, "positive and finite"),
    "a scale too small": (lambda s: fastq.quantize_linear(X, s, 0, "int8"), 0.1, 1e-60, "positive and finite"),
    "NumPy's NaN": (
        lambda s: fastq.quantize_linear(X, s, 0, "int8"),
        np.float32(1),
        np.float32(np.nan),
        "positive and finite",
    ),
    "a scale in float64": (
        lambda s: fastq.quantize_linear(X.astype(np.float64), s, None, "int8", axis=0),
        rows(1, np.float64),
        rows(-np.inf, np.float64),
        "1 of 48",
    ),
    **{
        f"a row's scale of {value}": (
            lambda s: fastq.quantize_linear(X, s, None, "int8", axis=0),
            ROWS,
            rows(value),
            "1 of 48",
        )
        for value in (0, -0.0, -1, np.nan, -np.nan, np.inf)
    },
    "a zero point of 16": (lambda z: fastq.quantize_linear(X, 0.1, z, "uint4"), 8, 16, "from 0 to 15"),
    "a zero point of 200": (lambda z: fastq.quantize_linear(X, 0.1, z, "int8"), 8, 200, "from -128 to 127"),
    "a zero point of 2**70": (lambda z: fastq.quantize_linear(X, 0.1, z, "int8"), 8, 2**70, "zero_point"),
    "a code to pack": (lambda c: fastq.pack(c, "int4"), rows(7, np.int8), rows(8, np.int8), "from -8 to 7"),
    "a zero point of float8": (
        lambda z: fastq.quantize_linear(X, 0.1, z, "float8_e4m3fn"),
        FLOAT8.type(0),
        FLOAT8.type(1),
        "must be 0",
    ),
    "a row's zero point": (
        lambda z: fastq.quantize_linear(X, ROWS, z, "int4", axis=0),
        rows(7, np.int8),
        rows(-9, np.int8),
        "from -8 to 7",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_elements(name):
    call, good, bad, message = BAD[name]
    expected = call(good)
    assert kept()
    for _ in range(2):
        with pytest.raises((ValueError, TypeError, OverflowError), match=message):
            call(bad)
        same(call(good), expected)


def test_qparams_that_somebody_changed():
    p = fastq.choose_qparams(X, "int8", axis=0)
    q = fastq.quantize(X, qparams=p)
    q.dequantize()
    fastq.fake_quantize(X, qparams=p)
    p.scale[3] = -1
    calls = [lambda: fastq.quantize(X, qparams=p), q.dequantize, lambda: fastq.fake_quantize(X, qparams=p)]
    for call in (*calls, lambda: fastq.compare(X, q), lambda: fastq.quantize(X[:, :0], qparams=p)):
        for _ in range(2):  # by a plan that was made before, if there is one, and by one that is made for this
            with pytest.raises(ValueError, match="1 of 48"):
                call()
            cache.plans.clear()


def test_bad_arguments_after_good_ones():
    out = np.empty(SHAPE, np.int8)
    twice(lambda: fastq.quantize_linear(X, 0.1, 0, out=out))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        fastq.quantize_linear(X, 0.1, 0, out=out)
    twice(lambda: fastq.quantize_linear(X, 0.1, 1, "int8", axis=1))
    for wrong in ({"nan": "no"}, {"saturate": 1}, {"block_size": True}, {"convention": "nobody's"}):
        with pytest.raises((ValueError, TypeError)):
            fastq.quantize_linear(X, 0.1, 1, "int8", **wrong)
    twice(lambda: fastq.quantize(X, "int8", axis=1))
    with pytest.raises(TypeError, match="axis"):
        fastq.quantize(X, "int8", axis=True)


@pytest.mark.parametrize("offset", [0, 1, 63, SHAPE[0] * SHAPE[1] * 4 - 1])
def test_memory_that_input_and_output_share(offset):
    size = math.prod(SHAPE)
    memory = np.zeros(2 * 4 * size, np.uint8)
    x, out = memory[: 4 * size].view(np.float32), memory[offset : offset + size].view(np.int8)
    apart = np.empty_like(out)
    for seed in (1, 2, 3):
        x[:] = values("float32", size, seed)
        expected = reference.quantize_linear(x.copy(), 0.1, 0, "int8")
        fastq.quantize_linear(x, 0.1, 0, out=apart)
        same_bytes(fastq.quantize_linear(x, 0.1, 0, out=out), expected)


def test_input_that_is_output():
    for seed in range(6):
        x = data("float32", seed)
        expected = reference.fake_quantize(x, "int8")
        assert fastq.fake_quantize(x, "int8", out=x) is x
        same_bytes(x, expected)
    assert len(kept()) == 1


@pytest.mark.slow("compiles kernels for each format", quick=lambda dtype: dtype == "mxfp4")
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "mxfp4", "mxfp8_e4m3", "nvfp4", "mxint8"])
def test_qparams_of_float_formats(dtype):
    p = reference.choose_qparams(X, dtype, **({} if dtype != "float8_e4m3fn" else {"axis": 0}))
    expected = reference.quantize(X, qparams=p)
    values = reference.dequantize(expected)
    for _ in range(4):
        q = fastq.quantize(X, qparams=p)
        same_quantized(q, expected)
        same_bytes(q.dequantize(), values)
    assert len(kept()) == 2


def test_a_number_of_a_gguf_format_is_an_integer():
    for _ in range(2):
        data = fastq.gguf.quantize(X.reshape(-1)[:64], 2)
        fastq.gguf.dequantize(data, 2)
        for call, operand in ((fastq.gguf.quantize, X.reshape(-1)[:64]), (fastq.gguf.dequantize, data)):
            with pytest.raises(TypeError, match=r"qtype must be a name, a number .*, not 2\.0"):
                call(operand, 2.0)


def test_big_endian_codes_are_packed():
    codes = np.array([1, -1, 7, 3], ">i2")
    for _ in range(4):
        same_bytes(fastq.pack(codes, "int4"), np.array([0xF1, 0x37], np.uint8))


def test_options_that_come_to_hold_something_else():
    class Shape(list):
        pass

    class Axis:
        value = 0

        def __index__(self):
            return self.value

    class Kind:
        dtype = np.dtype(np.float32)

    packed, shape, axis = np.zeros(2, np.uint8), Shape([4]), Axis()
    twice(lambda: fastq.unpack(packed, "int4", shape=shape))
    shape[0] = 3
    assert fastq.unpack(packed, "int4", shape=shape).shape == (3,)
    twice(lambda: fastq.minmax(X, axis=axis))
    axis.value = 1
    assert fastq.minmax(X, axis=axis)[0].shape == SHAPE[1:]
    q = reference.quantize(X, "int8")
    assert twice(lambda: fastq.dequantize(q, dtype=Kind)).dtype == np.float32
    Kind.dtype = np.dtype(np.float64)
    assert fastq.dequantize(q, dtype=Kind).dtype == np.float64
    with pytest.raises(TypeError):
        fastq.CONVENTIONS["mine"] = fastq.CONVENTIONS["onnx"]


# keys


def key(x, out=None, scale=1.0, zero_point=0, *options):
    return cache.key_of(QUANTIZE_LINEAR, x, out, scale, zero_point, options, tuple(map(type, options)), None)


def test_keys_tell_arrays_apart():
    class Own(np.ndarray):
        pass

    wide = np.zeros((4, 6), np.float32)
    read_only = wide.copy()
    read_only.flags.writeable = False
    arrays = [wide, wide.reshape(6, 4), wide.reshape(24), wide.astype(np.float64), wide.view(np.int32), read_only]
    arrays += [wide.astype(">f4"), wide.T, wide[:, ::2], wide[::-1], np.zeros(97, np.uint8)[1:].view(np.float32)]
    assert len({key(x) for x in arrays}) == len(arrays)
    outs = [*arrays, wide.view(Own), None]
    assert len({key(wide, out) for out in outs}) == len(outs)
    assert key(wide.copy()) == key(wide.copy())


def test_keys_tell_values_by_type_and_options_by_what_they_are():
    x = np.zeros(3, np.float32)
    scales = [1.0, 1, np.float32(1), np.float64(1), np.array(1.0), np.array([1.0]), None]
    assert len({key(x, None, scale) for scale in scales}) == len(scales)
    assert key(x, None, 1.0, 5) == key(x, None, 2.0, 6)
    options = [None, True, False, 1, 0, 1.0, -1, "1", np.True_, np.int64(1), (1,), (True,), (1.0,), (1, 0), ()]
    options += [int, 2**40, 2**70, "int8", np.int8, np.dtype(np.int8), QTYPES["int8"], fastq.CONVENTIONS["onnx"]]
    assert len({key(x, None, 1.0, 0, option) for option in options}) == len(options)
    assert key(x, None, 1.0, 0, (5, 3)) == key(x, None, 1.0, 0, (int("5"), 3))
    assert key(x, None, 1.0, 0, 1, 2) != key(x, None, 1.0, 0, (1, 2))


def test_parameters_that_are_no_arrays_are_converted_at_each_call():
    x = np.zeros((2, 3), np.float32) + 1
    for scale in ([0.5, 0.25], [0.25, 0.5]):
        expected = reference.quantize_linear(x, scale, dtype="int8", axis=0)
        same_bytes(fastq.quantize_linear(x, scale, dtype="int8", axis=0), expected)
    assert not kept()


@pytest.mark.slow("compiles kernels of its own")
def test_arrays_are_not_kept():
    def made():
        x, scale, out = X.copy(), rows(1), np.empty(SHAPE, np.int8)
        twice(lambda: fastq.quantize_linear(x, scale, axis=0, out=out))
        q = twice(lambda: fastq.quantize(x, "int8", axis=0))
        twice(q.dequantize)
        return [weakref.ref(one) for one in (x, scale, out, q, q.scale, q.zero_point, q.codes)]

    gone = made()
    assert len(kept()) == 3
    gc.collect()
    assert all(one() is None for one in gone)


GIVEN = {
    "quantize_linear": lambda p: fastq.quantize_linear(X, p.scale, p.zero_point, axis=0),
    "dequantize_linear": lambda p: fastq.dequantize_linear(X.view("i1")[:, :64].copy(), p.scale, p.zero_point, axis=0),
    "blocks": lambda p: fastq.quantize_linear(X, p.scale, p.zero_point, axis=1, block_size=16),
    "QParams": lambda p: fastq.quantize(X, qparams=p),
}


@pytest.mark.parametrize("name", GIVEN)
def test_no_parameters_are_kept_however_many_calls_have_them(name):
    where = {"axis": 1, "block_size": 16} if name == "blocks" else {"axis": 0}

    GIVEN[name](params(fastq, **where))  # kernels are loaded, while which Numba may hold frames of the calls
    cache.plans.clear()

    def made():
        given = params(fastq, **where)
        for _ in range(10):
            GIVEN[name](given)
        return [weakref.ref(one) for one in (given, given.scale, given.zero_point)]

    gone = made()
    assert kept()
    gc.collect()
    assert all(one() is None for one in gone)


def test_more_calls_than_are_kept(monkeypatch):
    monkeypatch.setattr(cache.plans, "size", 8)
    for size in range(1, 40):
        x = values("float32", size, size)
        actual = twice(fastq.quantize_linear, x, 0.1, 0, "int8")
        same_bytes(actual, reference.quantize_linear(x, 0.1, 0, "int8"))
        assert len(cache.plans.recent) <= 4
        assert len(cache.plans.older) <= 4


def test_plans_in_use_outlive_the_others(monkeypatch, only_kept):
    monkeypatch.setattr(cache.plans, "size", 8)
    for size in range(1, 40):
        fastq.minmax(X)
        fastq.minmax(values("float32", size, size))
    only_kept()
    fastq.minmax(X)


@pytest.mark.slow("thousands of calls")
def test_more_calls_than_are_kept_in_several_threads():
    code = """
    from fastq.plan import cache
    sys.setswitchinterval(1e-6)
    cache.plans.size = 8
    arrays = [np.linspace(-1, 1, size, dtype=np.float32) for size in range(1, 60)]
    expected = [reference.quantize(x, "int8").codes.tobytes() for x in arrays]

    def work():
        for _ in range(20):
            for x, codes in zip(arrays, expected, strict=True):
                assert fastq.quantize(x, "int8").codes.tobytes() == codes

    in_threads(4, work)
    """
    run(code)


TRANSPOSED = (6, 64, 40)
BLOCKS = {"axis": 1, "block_size": 32}


def transposed(memory="F C"):
    """An array, and scales and zero points of its blocks, which kernels take in the order of the array.

    Each in some memory: C or Fortran order, or apart from each other.
    """
    rng, (of_x, of_scale) = np.random.default_rng(9), memory.split()
    x, scale = rng.standard_normal(TRANSPOSED).astype(np.float32), rng.uniform(0.1, 1, (6, 2, 40)).astype(np.float32)
    zero_point = rng.integers(-5, 6, scale.shape, np.int8)
    return x.copy(of_x), in_memory(scale, of_scale), in_memory(zero_point, of_scale)


def in_memory(array, kind):
    return np.repeat(array, 2, -1)[..., ::2] if kind == "apart" else array.copy(kind)


MEMORIES = ["F C", "F F", "F apart", "C F", "C apart"]


def test_numbers_of_known_calls_of_unpack_array_are_looked_at(only_kept):
    codes = np.arange(12, dtype=np.int16)
    for scale in (0.5, np.float32(0.5)):
        fastq.xarray.unpack_array(codes, scale, 1, fill_value=3)
    only_kept()
    for scale in (-3.5, np.float32(7)):
        found = fastq.xarray.unpack_array(codes, scale, 2, fill_value=3)
        same_bytes(found, unpacked.unpack_array(codes, scale, 2, fill_value=3))
    for bad in (np.inf, np.nan):
        with pytest.raises(ValueError, match="scale_factor must be"):
            fastq.xarray.unpack_array(codes, bad, 1, fill_value=3)
    with pytest.raises(ValueError, match="add_offset must be finite"):
        fastq.xarray.unpack_array(codes, 0.5, 10**400, fill_value=3)
    with pytest.raises(TypeError, match="fill_value must be an int"):
        fastq.xarray.unpack_array(codes, 0.5, 1, fill_value=True)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_bad_scales_of_transposed_memory(bad, memory):
    x, scale, zero_point = transposed(memory)
    fastq.quantize_linear(x, scale, zero_point, **BLOCKS)
    scale[3, 1, 7] = bad
    for _ in range(2):
        with pytest.raises(ValueError, match="scale must be positive and finite"):
            fastq.quantize_linear(x, scale, zero_point, **BLOCKS)


@pytest.mark.parametrize("memory", MEMORIES)
def test_parameters_in_any_memory_are_read_as_they_are(memory, monkeypatch):
    """By the driver, which validation does not prepare them for; those of a result in Fortran order are not in C."""
    cache.plans.clear()
    monkeypatch.setattr(launch.BoundLaunch, "settle", None)
    x, scale, zero_point = transposed(memory)
    own = fastq.quantize(x, "int8", **BLOCKS)
    calls = [
        lambda api: api.quantize_linear(x, scale, zero_point, **BLOCKS),
        lambda api: api.dequantize_linear(own.codes, scale, zero_point, **BLOCKS),
        lambda api: api.dequantize(own),
    ]
    for call in calls:
        same_bytes(call(fastq).copy(), call(reference).copy())
    cache.plans.clear()
    assert fastq.compare(x, own).clipped == reference.compare(x, own).clipped


@pytest.mark.parametrize("memory", MEMORIES)
def test_nan_in_transposed_memory(memory):
    x, scale, zero_point = transposed(memory)
    fastq.quantize_linear(x, scale, zero_point, **BLOCKS)
    x[1, 2, 3] = np.nan
    for _ in range(2):
        with pytest.raises(ValueError, match="1 NaN"):
            fastq.quantize_linear(x, scale, zero_point, **BLOCKS)


@pytest.mark.parametrize("where", MEMORIES)
def test_scales_in_the_memory_of_a_transposed_result(where):
    x, scale, zero_point = transposed(where)
    right = reference.quantize_linear(x, scale, zero_point, **BLOCKS)
    memory = np.zeros(x.size, np.uint8)
    out = memory.view(np.int8).reshape(x.T.shape).T if where[0] == "F" else memory.view(np.int8).reshape(x.shape)
    shared = memory[: scale.nbytes * 2].view(np.float32)
    if where.endswith("apart"):
        shared = shared[::2].reshape(scale.shape)
    else:
        shared = shared[: scale.size].reshape(scale.shape, order=where[-1])
    for _ in range(2):
        shared[...] = scale
        fastq.quantize_linear(x, shared, zero_point, **BLOCKS, out=out)
        np.testing.assert_array_equal(out, right)


@pytest.mark.parametrize("code", ["uint4", "int3"])
def test_packed_rows_in_the_memory_of_the_array(code):
    """Rows of 33 codes end within a byte and go through codes one in a byte; NaN is counted before they are written."""
    x = np.random.default_rng(9).standard_normal((5, 33)).astype(np.float32)
    q = reference.quantize(x, code, axis=0)
    memory = np.zeros(x.nbytes, np.uint8)
    values, packed = memory.view(np.float32).reshape(x.shape), memory[: q.codes.nbytes].reshape(q.codes.shape)
    for _ in range(2):
        values[...] = x
        same_bytes(fastq.quantize(values, qparams=q.qparams, out=packed).codes.copy(), q.codes)
        np.testing.assert_array_equal(
            fastq.QuantizedArray(packed, q.qparams, x.shape).dequantize(out=values), reference.dequantize(q)
        )
        values[...] = x
        values[2, 3] = np.nan
        with pytest.raises(ValueError, match="1 NaN"):
            fastq.quantize(values, qparams=q.qparams, out=packed)


@pytest.mark.slow("compiles 2 kernels a case", quick=lambda convention: convention == "onnx")
@pytest.mark.parametrize("convention", ["onnx", "textbook", "faiss"])
def test_small_integers_for_zero_points(convention, only_kept):
    """Of conventions with floats for zero points, too."""
    x, scale, _ = transposed()
    rng = np.random.default_rng(9)
    codes, zeros = (rng.integers(0, 16, shape).astype(ml_dtypes.uint4) for shape in (TRANSPOSED, scale.shape))
    named = {"convention": convention, **BLOCKS} if convention != "faiss" else {"convention": convention}
    scale, zeros = (scale, zeros) if convention != "faiss" else (scale[0, 0, 0], zeros[0, 0, 0])
    calls = [("quantize_linear", x, {"dtype": "uint4"}), ("dequantize_linear", codes, {})]
    for name, array, more in calls:
        getattr(fastq, name)(array, scale, zeros, **named, **more)
    only_kept()
    for name, array, more in calls:
        found, right = (getattr(api, name)(array, scale, zeros, **named, **more) for api in (fastq, reference))
        same_bytes(found.copy(), right.copy())


@pytest.mark.parametrize(
    ("dtype", "convention"), [("int16", "onnx"), ("uint8", "onnx"), ("uint8", "sentence-transformers"), ("int16", "cf")]
)
def test_small_integers_for_zero_points_of_other_codes(dtype, convention):
    """Kernels read codes of 16 bits, codes without a sign, or floats: a later zero point is not a code of them."""
    x = np.random.default_rng(9).standard_normal((64, 8)).astype(np.float32)
    scale, zeros = np.full(64, 0.1, np.float32), np.arange(64) % 8
    named = {"axis": 0, "convention": convention} | ({"dtype": dtype} if convention == "onnx" else {})
    for each in (zeros, zeros[::-1].copy(), zeros - 8):
        results = []
        for api in (fastq, reference):
            try:
                results.append(api.quantize_linear(x, scale, each.astype(ml_dtypes.int4), **named))
            except (TypeError, ValueError) as error:
                results.append(type(error))
        assert isinstance(results[0], type) == isinstance(results[1], type)
        assert np.array_equal(results[0], results[1]) if not isinstance(results[0], type) else results[0] is results[1]


def test_other_threads_need_other_plans(threads):
    threads(1)
    fastq.minmax(X)
    assert kept()
    threads(2)
    assert not kept()


def test_a_plan_that_became_outdated_while_it_was_made_is_not_kept(monkeypatch):
    resolve = cache._resolve

    def interrupted(asked):
        cache.plans.clear()
        return resolve(asked)

    monkeypatch.setattr(cache, "_resolve", interrupted)
    fastq.minmax(X)
    assert not kept()


# processes


def test_a_child_has_no_plans_of_its_parent():
    code = """
    from fastq.plan import cache
    x = np.linspace(-3, 3, 1 << 18, dtype=np.float32)
    expected = reference.quantize(x, "int8").codes.tobytes()
    for k in range(3):
        assert fastq.quantize(x, "int8").codes.tobytes() == expected
        assert len(cache.plans.recent) == 1
    child = os.fork()
    assert bool(cache.plans.recent) == (child != 0)
    for _ in range(3):
        assert fastq.quantize(x, "int8").codes.tobytes() == expected
    if child == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    run(code)


def test_errors_name_functions_that_callers_can_call():
    records = [
        record
        for module in pkgutil.iter_modules(ops.__path__, "fastq.ops.")
        for record in vars(importlib.import_module(module.name)).values()
        if isinstance(record, cache.Operation)
    ]
    assert records
    for record in records:
        assert callable(operator.attrgetter(record.function)(fastq)), record.name
