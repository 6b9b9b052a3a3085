"""Dask arrays: the bytes of the reference for the whole array, whatever its chunks; lazy; refused at once if wrong."""

import importlib.util
import pickle
import sys

import numpy as np
import pytest
from catalogue import same_bytes
from chunkings import BLOCK, GRANULARITIES, SHAPE, array, check, chunking, lazy_and_expected, same_result

import fastq
from fastq import reference
from fastq.engine.runtime import shared_records, threadpool
from fastq.formats.qtypes import QTYPES
from fastq.plan import cache

dask = pytest.importorskip("dask", reason="no dask")
da = pytest.importorskip("dask.array", reason="no dask")

X = array()


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def chunked(x=X, chunks=(40, 64)):
    return da.from_array(x, chunks=chunks)


# --- the same bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow("compiles 20 kernels")
@pytest.mark.parametrize("seed", range(20))
def test_random_chunkings(seed):
    # contract 18.1
    check(seed, dask, da, scheduler="threads" if seed % 2 else "synchronous")


@pytest.mark.slow("compiles 10 kernels each")
@pytest.mark.parametrize("dtype", ["uint4", "float8_e4m3fn", "int16", "mxfp4", "mxfp8_e4m3", "mxint8"])
def test_formats(dtype):
    names = ("blocks",) if dtype.startswith("mx") else ("array", "blocks")
    check(4 if dtype.startswith("mx") else 3, dask, da, dtype, {name: GRANULARITIES[name] for name in names})


@pytest.mark.slow("compiles kernels", quick=lambda convention: convention == "torch")
@pytest.mark.parametrize("convention", ["torch", "faiss", "compressed-tensors"])
def test_conventions_of_chunks_with_a_single_channel(convention):
    row = fastq.CONVENTIONS[convention]
    dtype = (row.formats or ("uint8",))[0]
    options = {"axis": 0, "symmetric": "asymmetric" not in row.schemes, "convention": convention}
    q = reference.quantize(X, dtype, **options)
    x = chunked(chunks=(1, 80))
    same_result(fastq.quantize(x, dtype, **options).compute(), q)
    raw = {"axis": 0, "convention": convention}
    codes = fastq.quantize_linear(x, q.scale, q.zero_point, dtype, **raw)
    same_bytes(codes.compute(), reference.quantize_linear(X, q.scale, q.zero_point, dtype, **raw))


@pytest.mark.slow("compiles 5 kernels a case")
@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("convention", ["nncf", "mlx", "hqq"])
def test_codes_by_scales_that_are_not_kept(convention, dtype, axis):
    # contract 2.9
    x = array(3).astype(dtype)
    options = {"axis": axis, "convention": convention}
    lazy = da.from_array(x, chunks=(3, 40))
    same_result(fastq.quantize(lazy, "uint8", **options).compute(), reference.quantize(x, "uint8", **options))
    values = fastq.fake_quantize(lazy, "uint8", **options)
    assert values.dtype == x.dtype
    same_bytes(values.compute(), reference.fake_quantize(x, "uint8", **options))
    at_random = options | {"rounding": "stochastic", "rng": 1}
    same_bytes(*(fastq.fake_quantize(each, "uint8", **at_random) for each in (x, lazy)))


@pytest.mark.slow("compiles 10 kernels a case")
@pytest.mark.parametrize("name", fastq.CONVENTIONS)
def test_every_convention(name, threads):
    """Ranges that are computed in chunks, of memory in both orders, by one thread and two."""
    row = fastq.CONVENTIONS[name]
    dtype = (row.formats or ("uint8",))[0]
    symmetric = "asymmetric" not in row.schemes
    for where in ({"axis": -1},) if QTYPES[dtype].block_size else ({}, {"axis": 0}, {"axis": 1, "block_size": BLOCK}):
        options = {"symmetric": symmetric, "convention": name} | where
        expected = reference.quantize(X, dtype, **options), reference.fake_quantize(X, dtype, **options)
        for k, chunks in enumerate([SHAPE, (40, 64), chunking(2, SHAPE, {"axis": 1, "block_size": BLOCK})]):
            lazy = da.from_array(np.asarray(X, order="CF"[k % 2]), chunks=chunks)
            found = fastq.quantize(lazy, dtype, **options), fastq.fake_quantize(lazy, dtype, **options)
            threads(1 + k % 2)
            for one, other in zip(dask.compute(*found, scheduler="threads"), expected, strict=True):
                same_result(one, other)


def test_every_convention_fuses_alike_in_chunks_of_one_channel():
    rows = [
        row for row in fastq.CONVENTIONS.values() if any(when in ("array", "channels") for when, _, _ in row.variants)
    ]
    assert rows
    for row in rows:
        dtype = (row.formats or ("uint8",))[0]
        scale = np.abs(X).max(axis=1) / 100
        zero = np.full(len(scale), 3, dtype)
        raw = {"axis": 0, "convention": row.name}
        codes = fastq.quantize_linear(chunked(chunks=(1, 80)), scale, zero, dtype, **raw)
        same_bytes(codes.compute(), reference.quantize_linear(X, scale, zero, dtype, **raw))


@pytest.mark.slow("compiles 30 kernels")
@pytest.mark.parametrize("dtype", ["float16", "float64", "int32"])
def test_dtypes(dtype):
    x = np.clip(X, -1000, 1000).astype(dtype)
    lazy = chunked(x)
    for actual, expected in lazy_and_expected(x, lazy, "int8", {"axis": 1}):
        same_result(dask.compute(actual)[0], expected)


def test_axes_of_three_and_of_none():
    x = array(5, (6, 10, 8))
    for granularity in ({"axis": (0, 2)}, {"axis": 1, "block_size": 4}, {}):
        lazy = da.from_array(x, chunks=chunking(7, x.shape, granularity))
        for actual, expected in lazy_and_expected(x, lazy, "int8", granularity):
            same_result(dask.compute(actual)[0], expected)
    one = np.float32(3.5).reshape(())
    for dtype in ("int8", "uint4"):
        q = fastq.quantize(da.from_array(one, chunks=()), dtype)
        same_result(q.compute(), reference.quantize(one, dtype))
        same_bytes(q.dequantize().compute(), reference.dequantize(reference.quantize(one, dtype)))


@pytest.mark.slow("compiles kernels of its own")
def test_lazy_parameters():
    lazy, q = chunked(), reference.quantize(X, "int8", axis=1)
    other = chunked(array(9))
    params = fastq.choose_qparams(lazy, "int8", axis=1)
    assert isinstance(params, fastq.dask.QParams)
    expected = reference.quantize(array(9), qparams=q.qparams)
    same_result(fastq.quantize(other, qparams=params).compute(), expected)
    same_bytes(
        fastq.fake_quantize(other, qparams=params).compute(), reference.fake_quantize(array(9), qparams=q.qparams)
    )
    codes = fastq.quantize_linear(other, params.scale, params.zero_point, axis=1)
    same_bytes(codes.compute(), expected.codes)
    values = fastq.dequantize_linear(codes, params.scale, params.zero_point, axis=1, dtype="float16")
    same_bytes(values.compute(), reference.dequantize(expected).astype(np.float16))


def test_accumulators():
    rng = np.random.default_rng(5)
    acc, bias = rng.integers(-30000, 30000, (10, 12)).astype(np.int32), rng.integers(-99, 99, 12).astype(np.int32)
    each, x = rng.uniform(0.001, 0.01, (10, 12)), chunked(acc, (4, 5))
    cases = (
        (each[0], {"axis": 1, "bias": bias}),
        (each[0].tolist(), {"axis": 1, "bias": bias[:1], "clamp": (-3, 99)}),
        (da.from_array(each[0], chunks=7), {"axis": (1,), "convention": "onnxruntime"}),
        (0.004, {"axis": -1, "bias": bias}),
        (0.004, {"bias": bias[3]}),
        (each, {"axis": (0, 1), "convention": "tflite-single"}),
        (each[0], {"axis": 1, "convention": "torch", "bias": (bias / 7).astype(np.float32)}),
    )
    for multiplier, options in cases:
        expected = reference.requantize(acc, np.asarray(multiplier), 3, "int8", **options)
        found = fastq.dask.requantize(x, multiplier, 3, "int8", **options)
        assert (found.chunks, found.dtype) == (x.chunks, np.int8)
        same_bytes(found.compute(), expected)
        same_bytes(fastq.requantize(chunked(acc, (10, 12)), multiplier, 3, "int8", **options).compute(), expected)


def test_a_store_of_parts_is_put_together_again():
    q = reference.quantize(X, "int4", axis=1, block_size=BLOCK)
    params = fastq.dask.QParams(da.from_array(q.scale), q.zero_point, "int4", axis=1, block_size=BLOCK)
    again = fastq.dask.QuantizedArray(da.from_array(q.codes, chunks=(40, 32)), params, SHAPE)
    same_bytes(again.dequantize().compute(), reference.dequantize(q))
    same_result(again.compute(), q)


def test_numbers_of_python_as_parameters():
    x = chunked()
    same_bytes(fastq.quantize_linear(x, 0.5, 3, "int8").compute(), reference.quantize_linear(X, 0.5, 3, "int8"))
    scale = [0.5] * SHAPE[1]
    codes = reference.quantize_linear(X, scale, axis=1)
    same_bytes(fastq.quantize_linear(x, scale, axis=1).compute(), codes)
    values = fastq.dequantize_linear(chunked(codes), scale, axis=1)
    assert values.dtype == np.float32
    same_bytes(values.compute(), reference.dequantize_linear(codes, scale, axis=1))


def test_unknown_sizes_and_empty_chunks():
    rows = X[:, 0] > 0
    lazy = da.from_array(X, chunks=(20, 160))[da.from_array(rows, chunks=20)]
    q = fastq.quantize(lazy, "int8", axis=1)
    same_result(q.compute(), reference.quantize(X[rows], "int8", axis=1))
    packed = fastq.quantize(lazy, "uint4", axis=1, block_size=32).compute()
    same_result(packed, reference.quantize(X[rows], "uint4", axis=1, block_size=32))
    assert packed.shape == X[rows].shape
    empty = chunked(chunks=((40, 0, 56), (160,)))
    same_result(fastq.quantize(empty, "int8").compute(), reference.quantize(X, "int8"))
    same_result(dask.compute(*fastq.minmax(empty.astype("int32"))), reference.minmax(X.astype("int32")))


@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": 1}, {"axis": 1, "block_size": 32}])
def test_parts_and_other_shapes(options):
    q, right = fastq.quantize(chunked(), "int8", **options), reference.quantize(X, "int8", **options)
    for part in (
        lambda q: q[8:40],
        lambda q: q[::2],
        lambda q: q[:, 32:96],
        lambda q: q[3],
        lambda q: q.reshape(q.shape[0] // 2, 2, q.shape[1]),
        lambda q: q.copy(),
    ):
        expected = reference.dequantize(part(right))
        same_bytes(np.asarray(part(q).dequantize()), expected)
        found = part(q).compute()
        assert type(found.scale) is np.ndarray
        same_bytes(found.dequantize(), expected)


@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": 1}, {"axis": (0, 1)}, {"split_every": 2**63 - 1}])
def test_calibrators(options):
    options = dict(options)
    steps = {"split_every": options.pop("split_every", 2)}
    expected = fastq.Calibrator("int8", bins=64, **options)
    expected.update(X)
    lazy = fastq.dask.calibrate(chunked(chunks=(17, 50)), "int8", bins=64, **steps, **options)
    found = lazy.compute()
    for name in ("count", "minimum", "maximum", "counts", "edges"):
        same_bytes(getattr(found, name), getattr(expected, name))
    same_result(found.qparams("mse", grid=3), expected.qparams("mse", grid=3))


@pytest.mark.parametrize("axis", [None, 0])
def test_calibrators_have_as_many_bins_as_in_memory(axis):
    assert fastq.dask.calibrate(chunked(), "int8", axis=axis).compute().bins == fastq.Calibrator("int8", axis=axis).bins


def test_the_comparison_notices_a_wrong_bit():
    q = fastq.quantize(chunked(), "int8", axis=0).compute()
    q.scale.view(np.uint32)[7] ^= 1
    with pytest.raises(AssertionError):
        same_result(q, reference.quantize(X, "int8", axis=0))
    off_by_a_chunk = da.map_blocks(lambda block: fastq.quantize(block, "int8").codes, chunked(), dtype=np.int8)
    with pytest.raises(AssertionError):
        same_bytes(off_by_a_chunk.compute(), reference.quantize(X, "int8").codes)


# --- lazy -------------------------------------------------------------------------------------------------------------


def test_nothing_is_computed_before_it_is_asked_for():
    def fail(block):
        raise RuntimeError("computed")

    lazy = chunked().map_blocks(fail, dtype=np.float32, meta=np.empty((0, 0), np.float32))
    q = fastq.quantize(lazy, "int8", axis=0)
    later = [q, q.dequantize(), q.codes, q.scale, fastq.dask.calibrate(lazy, "int8"), fastq.fake_quantize(lazy, "int8")]
    assert dask.is_dask_collection(q)
    assert (q.shape, q.codes.shape, q.scale.shape, q.nbytes) == (SHAPE, SHAPE, SHAPE[:1], X.size + 5 * SHAPE[0])
    for each in later:
        with pytest.raises(RuntimeError, match="computed"):
            dask.compute(each)


def test_names_are_those_of_equal_calls():
    first, second = (fastq.quantize(chunked(), "int8", axis=0, symmetric=True) for _ in range(2))
    other = fastq.quantize(chunked(), "int8", axis=0)
    assert first.codes.name == second.codes.name != other.codes.name
    assert dask.base.tokenize(first) == dask.base.tokenize(second) != dask.base.tokenize(other)


def test_persist_and_pickle():
    q = fastq.quantize(chunked(), "uint4", axis=0)
    kept = q.persist()
    assert isinstance(kept, fastq.dask.QuantizedArray)
    assert len(dict(kept.codes.dask)) == len(list(dask.core.flatten(q.__dask_keys__())))
    for each in (kept, pickle.loads(pickle.dumps(q)), dask.optimize(q)[0]):
        same_result(each.compute(), reference.quantize(X, "uint4", axis=0))


def test_no_array_in_the_graph():
    def nbytes(shape):
        x = da.random.default_rng(0).standard_normal(shape, chunks=tuple(size // 4 for size in shape), dtype="float32")
        return len(pickle.dumps(dict(fastq.quantize(x, "int8", axis=1).__dask_graph__())))

    assert abs(nbytes((1 << 8, 1 << 8)) - nbytes((1 << 14, 1 << 14))) < 10_000


def jobs(work):
    """Count how often calls get the help of other threads."""

    def count():
        return int(threadpool._state.words.words[shared_records.GATE]) >> shared_records.SEQUENCE_BIT

    before = count()
    work()
    return count() - before


def test_tasks_take_no_other_threads(threads):
    threads(4)
    x = array(1, (512, 512))
    lazy = da.from_array(x, chunks=(256, 512))
    later = [fastq.quantize(lazy, "int8").codes, fastq.fake_quantize(lazy, "int8", axis=0), *fastq.minmax(lazy)]
    later.append(fastq.dask.calibrate(lazy, "int8"))
    assert any(jobs(lambda: fastq.quantize(x, "int8")) for _ in range(1000))  # calls after a stall work alone
    assert jobs(lambda: dask.compute(later, scheduler="threads")) == 0
    assert threadpool._state.words.words[shared_records.ALONE] == 0


def test_tasks_leave_no_plan_for_other_parameters():
    """Those of a caller are made ready for tasks: a plan of that is not one for a call with the caller's."""
    params = fastq.QParams(np.array(0.5), np.array(0, "i1"), "int8", convention="tflite")
    expected = fastq.reference.quantize(X, qparams=params).dequantize()
    cache.plans.clear()
    fastq.quantize(chunked(chunks=SHAPE), qparams=params).codes.compute()
    found = fastq.quantize(X, qparams=params).dequantize()
    assert found.dtype == expected.dtype == np.float32
    assert found.tobytes() == expected.tobytes()


def test_a_zero_point_of_another_shape_is_refused_whatever_the_chunks():
    for chunks in ((40, 1), (40, 63), SHAPE):
        with pytest.raises(ValueError, match=r"zero_point has shape \(1,\), but scale has shape \(160,\)"):
            fastq.quantize_linear(chunked(chunks=chunks), np.ones(160), da.zeros(1, dtype="u1"), axis=1)


@pytest.mark.slow("compiles kernels of a format")
def test_chunks_of_nvfp4_whose_array_has_no_scale_of_its_own():
    # contract 12.8
    x = X[:, :160].copy()
    x[3] = 0
    q, expected = (
        quantize(each, "nvfp4", convention="mlx-float")
        for quantize, each in ((fastq.quantize, chunked(x, (20, 80))), (fastq.reference.quantize, x))
    )
    computed = q.compute()
    assert computed.codes.tobytes() == expected.codes.tobytes()
    assert computed.scale.tobytes() == expected.scale.tobytes()
    assert computed.tensor_scale == 1
    assert q.dequantize().compute().tobytes() == fastq.reference.dequantize(expected).tobytes()


# --- refused ----------------------------------------------------------------------------------------------------------

SUMS = chunked(np.zeros(SHAPE, np.int32))
UNKNOWN = chunked()[chunked()[:, 0] > 0]
REFUSED = [
    (lambda: fastq.quantize(chunked(), "int8", axis=1, block_size=24), ValueError, r"rechunk\(\{1: 72\}\)"),
    (lambda: fastq.quantize(chunked(chunks=(40, 63)), "int4"), ValueError, r"multiple of 2: .*rechunk\(\{1: 64\}\)"),
    (lambda: fastq.minmax(UNKNOWN, axis=0, block_size=4), ValueError, r"unknown sizes along axis 0"),
    (lambda: fastq.quantize_linear(UNKNOWN, np.ones(50), axis=0), ValueError, "unknown sizes, .*compute_chunk_sizes"),
    (lambda: fastq.quantize(chunked(), "nvfp4"), ValueError, r"one chunk for nvfp4"),
    (lambda: fastq.quantize(chunked(), "int8", out=np.empty(SHAPE, np.int8)), TypeError, "out must be None"),
    (lambda: fastq.quantize_linear(UNKNOWN, np.ones((50, 1)), axis=0), ValueError, "so scale cannot be matched"),
    (lambda: fastq.quantize_linear(UNKNOWN, np.ones((50, 1))), ValueError, r"call x\.compute_chunk_sizes\(\) first"),
    (lambda: fastq.binarize(chunked()), TypeError, r"binarize can't process by chunks: pass x\.compute\(\)"),
    (lambda: fastq.dask.requantize(X, 1.0, 0, "int8"), TypeError, "acc must be a dask array"),
    (lambda: fastq.requantize(chunked(), 1.0, 0, "int8"), TypeError, "acc must be an int32 array"),
    (
        lambda: fastq.requantize(SUMS, da.ones(160, dtype=bool), 0, "int8", axis=1),
        TypeError,
        "multiplier must be float16",
    ),
    (lambda: fastq.requantize(SUMS, np.ones(9), 0, "int8", axis=1), ValueError, r"multiplier has shape \(9,\)"),
    (lambda: fastq.requantize(SUMS, -da.ones(160), 0, "int8", axis=1).compute(), ValueError, "finite and not negative"),
    (lambda: fastq.pack(chunked(), "int4"), TypeError, "codes is a dask array, which pack"),
    (lambda: fastq.gguf.quantize(chunked(), "Q8_0"), TypeError, r"which gguf\.quantize can't"),
    (lambda: fastq.compare(X, fastq.quantize(chunked(), "int8")), TypeError, r"q\.codes has yet to be computed"),
    (lambda: fastq.quantize_linear(X, da.ones(())), TypeError, r"pass scale\.compute\(\)"),
    (lambda: fastq.Calibrator("int8").update(chunked()), TypeError, "see fastq.dask"),
    (lambda: np.asarray(fastq.quantize(chunked(), "int8")), TypeError, r"call its compute\(\)"),
    (
        lambda: fastq.quantize(chunked(), "int8").save("q"),
        TypeError,
        r"a QuantizedArray of dask .*save its compute\(\)",
    ),
    (lambda: fastq.dask.quantize(X, "int8"), TypeError, "x must be a dask array, .*from_array"),
    (lambda: fastq.dask.dequantize_linear(X, 1.0), TypeError, "codes must be a dask array"),
    (lambda: fastq.dask.QuantizedArray(X, fastq.choose_qparams(X, "int8"), SHAPE), TypeError, "codes must be a dask"),
    (lambda: fastq.dask.QuantizedArray(chunked(), None, SHAPE), TypeError, "qparams must be QParams"),
    (lambda: fastq.quantize(chunked()[:0], "int8").compute(), ValueError, "no elements for a parameter"),
    (lambda: fastq.quantize(chunked(), "int9"), TypeError, "dtype must be one of"),
    (lambda: fastq.quantize(chunked(), "int8", axis=2), np.exceptions.AxisError, "axis of x"),
    (lambda: fastq.quantize(chunked(), "int8", nan="some"), ValueError, "nan must be one of"),
    (lambda: fastq.quantize(chunked(X > 0), "int8"), TypeError, "x must be float16"),
    (lambda: fastq.dequantize_linear(chunked(X.astype("i1")), np.ones(7), axis=5), np.exceptions.AxisError, "of codes"),
    (lambda: fastq.quantize_linear(chunked(), -1.0), ValueError, "scale must be positive"),
    (lambda: fastq.quantize_linear(chunked(), np.ones(7), axis=1), ValueError, r"scale has shape \(7,\), .*\(160,\)"),
    (lambda: fastq.quantize_linear(chunked(), 1.0, 300), ValueError, "zero_point must be from 0 to 255"),
    (lambda: fastq.quantize(chunked(X * np.nan), "int8").compute(), ValueError, "NaN; pass nan='zero'"),
    (lambda: fastq.quantize(chunked(X / 0), "int8").compute(), ValueError, "infinite values"),
]


@pytest.mark.filterwarnings("ignore:divide by zero")
@pytest.mark.parametrize(("call", "error", "match"), REFUSED, ids=[case[-1] for case in REFUSED])
def test_refused(call, error, match):
    # contract 18.2
    with pytest.raises(error, match=match):
        call()


def test_without_dask_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dask.array", None)
    spec = importlib.util.find_spec("fastq.adapters.dask")
    with pytest.raises(ImportError, match=r"pip install 'dask\[array\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


# --- ranges of the least error ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["quantize", "fake_quantize", "choose_qparams"])
@pytest.mark.parametrize("options", [{"axis": 0}, {"axis": 1, "block_size": 16}])
def test_ranges_that_are_searched_for(operation, options):
    x = chunked(chunks=(40, 160) if options["axis"] == 0 else (40, 64))
    made = getattr(fastq, operation)(x, "int8", range="mse", **options).compute()
    expected = getattr(reference, operation)(X, "int8", range="mse", **options)
    if operation == "choose_qparams":
        same_bytes(made.scale, expected.scale)
    else:
        same_result(made, expected)


@pytest.mark.parametrize("whole", [False, True], ids=["a vector", "an array"])
@pytest.mark.parametrize("options", [{"axis": 0}, {"axis": 1, "block_size": 16}], ids=str)
def test_importance(options, whole):
    x = chunked(chunks=(40, 160) if options["axis"] == 0 else (40, 64))
    weights = np.random.default_rng(3).random(X.shape if whole else X.shape[1]) ** 5
    expected = reference.quantize(X, "int4", range="mse", importance=weights, **options)
    for given in (weights, da.from_array(weights, chunks=50)):
        same_result(fastq.quantize(x, "int4", range="mse", importance=given, **options).compute(), expected)
    with pytest.raises(ValueError, match="importance has shape"):
        fastq.quantize(x, "int4", range="mse", importance=weights[:7], **options)
    with pytest.raises(ValueError, match="importance needs a search for ranges"):
        fastq.quantize(x, "int4", importance=weights, **options)


@pytest.mark.parametrize("operation", ["quantize", "fake_quantize", "choose_qparams"])
def test_a_search_needs_all_elements_of_a_scale(operation):
    with pytest.raises(ValueError, match=r"^range must be 'minmax' if .*: x\.rechunk\(\{1: -1\}\)$"):
        getattr(fastq, operation)(chunked(), "int8", axis=0, range="mse")
