"""Codes rounded at random: the reference's, byte for byte, by an element's place alone; and their statistics."""

import itertools
import math

import dask
import dask.array
import ml_dtypes
import numpy as np
import pytest
from catalogue import LAYOUTS, same_bytes, same_quantized, specials, values

import fastq
from fastq import reference
from fastq.formats.conventions.convention import NEAREST
from fastq.ops.quantize import QUANTIZE_LINEAR
from fastq.plan.cache import run_operation
from fastq.reference import stochastic_rounding as numbers
from fastq.requests.stochastic_rounding import Noise, noise_of

AT_RANDOM = {"rounding": "stochastic", "rng": 5}
X = values("float32", 24 * 96, 3).reshape(24, 96).clip(-1e3, 1e3)
MORE = values("float32", 60 * 420, 4).reshape(60, 420).clip(-1e3, 1e3)  # than are drawn together
FORMATS = (
    "int8",
    "uint4",
    "float8_e4m3fn",
    "nvfp4",
    "int16",
    "float4_e2m1fn",
    "mxfp4",
    "mxint8",
    "uint8",
    "int3",
    "uint1",
    "uint16",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float6_e3m2fn",
    "mxfp8_e5m2",
)


GRAINS = [{}, {"axis": 0}, {"axis": 1}, {"axis": 1, "block_size": 32}, {"axis": 0, "block_size": 4}]
OWN = [code for code in FORMATS if fastq.formats.qtypes.QTYPES[code].block_size]


@pytest.mark.slow(
    "compiles two kernels each",
    quick=lambda code, where: code == "int8" and where == {"axis": 1},
)
@pytest.mark.parametrize(("code", "where"), [(c, w) for c in FORMATS for w in (GRAINS[:1] if c in OWN else GRAINS)])
def test_fast_equals_reference(code, where):
    # contract 9.4
    for x in (X, np.asfortranarray(X), LAYOUTS["negative"](X), MORE):
        options = where | AT_RANDOM
        same_quantized(fastq.quantize(x, code, **options), reference.quantize(x, code, **options))
        same_bytes(fastq.fake_quantize(x, code, **options), reference.fake_quantize(x, code, **options))


@pytest.mark.slow("compiles a kernel each", quick=lambda dtype, code, scale: (dtype, code) == ("float16", "int8"))
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int32"])
@pytest.mark.parametrize(("code", "scale"), [("int8", 0.37), ("uint16", 0.0137)])
def test_every_kind_of_input(dtype, code, scale):
    dtype = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    x = (np.random.default_rng(4).standard_normal(500) * 40).astype(dtype)
    same_bytes(
        *(api.quantize_linear(x, np.float32(scale), 3, code, axis=None, **AT_RANDOM) for api in (fastq, reference))
    )


@pytest.mark.slow("compiles a kernel each", quick=lambda convention: convention == "faiss")
@pytest.mark.parametrize(
    "convention", ["torch", "torch-fake-quantize", "faiss", "qdq-nbits", "cf", "compressed-tensors"]
)
def test_conventions_round_what_they_round(convention):
    row = fastq.CONVENTIONS[convention]
    code, symmetric = (row.formats or ("uint8",))[0], "asymmetric" not in row.schemes
    options = {"convention": convention, "symmetric": symmetric} | AT_RANDOM
    if row.rounding not in NEAREST:
        with pytest.raises(ValueError, match=r"^rounding must be None for convention '.*', which rounds by"):
            fastq.quantize(X, code, **options)
        return
    same_quantized(fastq.quantize(X, code, **options), reference.quantize(X, code, **options))


BEYOND = np.concatenate([specials(np.float32), [np.inf, -np.inf, 3e38, -3e38, 127.4999, -128.0001, 1e-30]])
BEYOND = np.repeat(BEYOND[~np.isnan(BEYOND)].astype(np.float32), 40)


@pytest.mark.slow("compiles two kernels each", quick=lambda code: code == "int8")
@pytest.mark.parametrize("code", ["int8", "uint8", "int16", "float8_e5m2"])
def test_values_beyond_saturate(code):
    # contract 9.1
    for scale, saturate in itertools.product((1e-3, 1.0, 1e-35, 1e35), {True, not code.startswith("float")}):
        options = {"saturate": saturate, "axis": None} | AT_RANDOM
        both = [api.quantize_linear(BEYOND, np.float32(scale), None, code, **options) for api in (fastq, reference)]
        same_bytes(*both)
        each = np.full(BEYOND.size, np.float32(scale))
        same_bytes(fastq.quantize_linear(BEYOND, each, None, code, **options | {"axis": 0}), both[1])


def test_nan_is_as_ever():
    # contract 9.1
    x = BEYOND.copy()
    x[77] = np.nan
    with pytest.raises(ValueError, match="x has 1 NaN"):
        fastq.quantize_linear(x, 1.0, 0, "int8", axis=None, **AT_RANDOM)
    zeros = fastq.quantize_linear(x, 1.0, 0, "int8", axis=None, nan="zero", **AT_RANDOM)
    assert zeros[77] == 0


@pytest.mark.slow("compiles a kernel each", quick=lambda code: code == "int8")
@pytest.mark.parametrize("code", ["int8", "uint8", "int16"])
def test_numbers_around_the_ends_of_the_range(code):
    # contract 9.1
    rng, kind = np.random.default_rng(6), np.iinfo(code)
    scale, zero_point = np.exp(rng.uniform(-20, 20, 3200)).astype(np.float32), rng.integers(kind.min, kind.max, 3200)
    ends = rng.choice([kind.min, kind.max], (3200, 8)) - zero_point[:, None]
    x = (ends * scale[:, None].astype(np.float64)).astype(np.float32)
    for _ in range(3):  # up to three numbers away
        x = np.nextafter(x, rng.choice([-np.inf, np.inf], x.shape).astype(np.float32))
    options = {"axis": 0} | AT_RANDOM
    given = x, scale, zero_point.astype(code), code
    same_bytes(*(api.quantize_linear(*given, **options) for api in (fastq, reference)))


@pytest.mark.slow("compiles a kernel each", quick=lambda code, unit: code == "int8")
@pytest.mark.parametrize(("code", "unit"), [("int8", 1), ("int16", 1), ("float8_e5m2", 2.0**-16)])
def test_the_least_number_that_goes_up(code, unit):
    # contract 9.2
    bits = numbers.numbers(noise_of("stochastic", 5), (4096,)).astype(np.float32)
    least = (np.float32(2**15) - bits) * np.float32(2.0**-15)  # of a unit
    for part, expected in ((least, unit), (least - np.float32(2.0**-15), 0)):
        found = fastq.quantize_linear(part * np.float32(unit), 1.0, None, code, axis=None, **AT_RANDOM)
        np.testing.assert_array_equal(found.astype(np.float64), expected)


def test_exact_numbers_never_move():
    # contract 9.2
    codes = np.tile(np.arange(-128, 128), 400).astype(np.float32)
    same_bytes(
        fastq.quantize_linear(codes * np.float32(0.25), 0.25, 0, "int8", axis=None, **AT_RANDOM), codes.astype("i1")
    )
    q = fastq.quantize(X, "float8_e4m3fn")
    again = fastq.quantize(q.dequantize(), qparams=q.qparams, **AT_RANDOM)
    same_bytes(again.codes, q.codes)


@pytest.mark.parametrize("out", [None, "c", "f"])
def test_numbers_belong_to_places_whatever_the_memory_and_the_threads(out, threads):
    # contract 9.3
    x = np.random.default_rng(2).standard_normal((300, 700)).astype(np.float32)
    for layout, make in LAYOUTS.items():
        laid = make(x)
        expected = reference.quantize_linear(np.ascontiguousarray(laid), 0.03, 0, "int8", **AT_RANDOM)
        for n in (1, 2):
            threads(n)
            target = None if out is None else np.empty(laid.shape, np.int8, order=out.upper())
            found = fastq.quantize_linear(laid, 0.03, 0, "int8", out=target, **AT_RANDOM)
            np.testing.assert_array_equal(found, expected, err_msg=layout)
    same = x.copy()
    np.testing.assert_array_equal(
        fastq.fake_quantize(same, "int8", out=same, **AT_RANDOM), reference.fake_quantize(x, "int8", **AT_RANDOM)
    )


def test_places_beyond_a_word():
    x = np.full((3, 5, 7), 0.5, np.float32)
    for first, steps in (
        (2**33 - 21, (35, 7, 1)),
        (2**33 - 4, (2**32, 9, 1)),
        (5, (2**31, 2**30, 2**29)),
        (8, (2**31, 2**30 + 1, 3)),
        (8, (70, 14, 2)),
        (7, (70, 14, 2)),
    ):
        noise = Noise(0x123456789ABCDEF0, first, steps)
        places = first + sum(step * index for step, index in zip(steps, np.indices(x.shape), strict=True))
        for order in ("C", "F"):
            laid = np.asarray(x, order=order)
            options = None, 0, True, "int8", "onnx", "raise", "stochastic"
            codes = run_operation(
                QUANTIZE_LINEAR, laid, None, 1.0, 0, options=options, types=(type(None), int, bool), noise=noise
            )
            bits = [numbers.numbers(noise._replace(first=place), (1,))[0] for place in places.ravel().tolist()]
            same_bytes(codes, np.int8(np.reshape(bits, x.shape) >= 2**14))


CHUNKS = pytest.mark.parametrize("chunks", [(20, 48, 32), (7, 48, 32), (6, 16, 16), (1, 8, 8)])


@pytest.mark.slow("compiles kernels", quick=lambda code, axis, chunks: code == "int8" or axis is None)
@CHUNKS
@pytest.mark.parametrize("code", ["int8", "int4"])
@pytest.mark.parametrize("axis", [None, 0, (0, 2)])
def test_codes_of_chunks_of_dask_are_those_of_the_whole(chunks, code, axis):
    # contract 9.3
    x = np.random.default_rng(0).standard_normal((20, 48, 32)).astype(np.float32)
    lazily, options = dask.array.from_array(x, chunks=chunks), {"axis": axis} | AT_RANDOM
    with dask.config.set(scheduler="sync"):
        same_quantized(fastq.quantize(lazily, code, **options).compute(), fastq.quantize(x, code, **options))


@CHUNKS
def test_chunks_of_dask_have_the_numbers_of_the_whole(chunks):
    # contract 9.3
    x = np.random.default_rng(0).standard_normal((20, 48, 32)).astype(np.float32)
    lazily, p = dask.array.from_array(x, chunks=chunks), fastq.choose_qparams(x, "int8", axis=2, block_size=8)
    with dask.config.set(scheduler="sync"):
        for options in ({"dtype": "int8", "axis": 2}, {"qparams": p}):
            found = fastq.fake_quantize(lazily, **options, **AT_RANDOM)
            same_bytes(found.compute(), fastq.fake_quantize(x, **options, **AT_RANDOM))
        found = fastq.quantize_linear(lazily, 0.1, 0, "int8", **AT_RANDOM)
        same_bytes(found.compute(), fastq.quantize_linear(x, 0.1, 0, "int8", **AT_RANDOM))


def test_a_graph_keeps_its_numbers():
    lazily = dask.array.from_array(X, chunks=(5, 96))
    codes = fastq.quantize_linear(lazily, 0.1, 0, "int8", rounding="stochastic", rng=np.random.default_rng(1))
    same_bytes(codes.compute(), codes.compute())
    unknown = lazily[lazily[:, 0] > 0]
    with pytest.raises(ValueError, match=r"^x has chunks of unknown sizes, so its elements have no places"):
        fastq.quantize_linear(unknown, 0.1, 0, "int8", **AT_RANDOM)


# --- generators -------------------------------------------------------------------------------------------------------


def codes(rng, size=4096):
    return fastq.quantize_linear(np.full(size, 0.5, np.float32), 1.0, 0, "int8", rounding="stochastic", rng=rng)


def test_what_a_seed_may_be():
    # contract 9.5
    sequence = np.random.SeedSequence(9)
    for seed in (9, np.int64(9), sequence, np.random.default_rng(9), np.random.PCG64(9)):
        same_bytes(codes(seed), codes(9))
    same_bytes(codes(sequence), codes(9))
    for made in (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64):
        generator = np.random.Generator(made(1))
        assert (codes(generator) != codes(generator)).any()  # it is advanced
        same_bytes(codes(np.random.Generator(made(1))), codes(made(1)))
    assert (codes(None) != codes(None)).any()
    same_bytes(codes(2**200), codes(2**200))
    same_bytes(codes([1, 2]), codes([1, 2]))


@pytest.mark.parametrize("rng", ["seed", 1.5, -1, object(), {}, [[[[[[[[[[1, 2]]]]]]]]]]])
def test_what_is_no_seed(rng):
    for api in (fastq, reference):
        with pytest.raises(
            TypeError, match=r"^rng must be None, an int, a SeedSequence, a BitGenerator or a Generator"
        ):
            api.quantize(X, "int8", rounding="stochastic", rng=rng)


def test_refusals():
    # contract 9.7
    p = fastq.choose_qparams(X, "nf4", axis=1, block_size=32)
    for api in (fastq, reference):
        with pytest.raises(ValueError, match=r"^rng must be None unless rounding='stochastic'"):
            api.quantize(X, "int8", rng=1)
        for rounding in ("nearest", "half_even", 1, np.zeros(2)):
            with pytest.raises(ValueError, match=r"^rounding must be None or 'stochastic', not"):
                api.quantize_linear(X, 0.1, 0, "int8", rounding=rounding)
        with pytest.raises(ValueError, match=r"^rounding must be None for nf4, whose codes are in a table"):
            api.fake_quantize(X, qparams=p, **AT_RANDOM)
        with pytest.raises(ValueError, match=r"^rounding must be None for convention 'down', which rounds by floor"):
            api.quantize(X, "int8", convention=fastq.Convention("down", rounding="floor"), **AT_RANDOM)


def test_a_search_for_ranges_rounds_to_the_nearest():
    # contract 9.6
    options = {"axis": 0, "range": "mse", "bits": 4}
    at_random = fastq.quantize(X, "int8", **options, **AT_RANDOM)
    same_bytes(at_random.scale, fastq.choose_qparams(X, "int8", **options).scale)
    same_quantized(at_random, reference.quantize(X, "int8", **options, **AT_RANDOM))


# --- statistics, of fixed seeds ---------------------------------------------------------------------------------------

MANY = 1 << 16
LAGS = (1, 2, 3, 5, 7, 8, 16, 32, 64, 89, 128, 256, 512, 768, 1000, 1024, 2048, 4096, 6765, 1 << 13, 1 << 14)
PARTS = (2.0**-10, 0.1, 0.25, 1 / 3, 0.5, 0.77, 1 - 2.0**-8)


def ups(part, seed=1, first=0.0, size=MANY):
    """Whether each of `count` numbers, all the same, was rounded up."""
    x = np.full(size, first + part, np.float32)
    return fastq.quantize_linear(x, 1.0, 0, "int8", rounding="stochastic", rng=seed).astype(np.int64) - math.floor(
        first
    )


@pytest.mark.parametrize("first", [0.0, 100.0, -3.0])
def test_as_often_up_as_the_part_says(first):
    for part, seed in itertools.product(PARTS, range(8)):
        found = ups(part, seed, first)
        assert set(np.unique(found)) <= {0, 1}
        real = float(np.float32(first + part)) - first
        assert abs(found.mean() - real) < 5 * math.sqrt(real * (1 - real) / MANY)


def test_means_are_unbiased_and_errors_as_large_as_they_should_be():
    # contract 9.8
    x = np.random.default_rng(3).uniform(-100, 100, 1 << 20).astype(np.float32)
    errors = fastq.quantize_linear(x, 1.0, 0, "int8", rounding="stochastic", rng=1) - x.astype(np.float64)
    assert abs(errors.mean()) < 5 * math.sqrt(1 / 6 / x.size)
    assert errors.var() == pytest.approx(1 / 6, rel=0.01)  # the mean of p (1 - p)
    assert abs(np.corrcoef(errors[1:], errors[:-1])[0, 1]) < 5 / math.sqrt(x.size)
    y = np.abs(x) + np.float32(1)
    values_of = fastq.quantize_linear(y, 1.0, None, "float8_e4m3fn", rounding="stochastic", rng=1).astype(np.float64)
    assert abs(((values_of - y) / y).mean()) < 5 * 2.0**-4 / math.sqrt(x.size)


def correlation(a, b):
    return float(np.corrcoef(a, b)[0, 1])


def test_neighbours_and_seeds_are_independent():
    # contract 9.8
    least = 5 / math.sqrt(MANY)
    for seed, part in itertools.product(range(6), (0.1, 0.5)):
        found = ups(part, seed)
        for lag in LAGS:
            assert abs(correlation(found[lag:], found[:-lag])) < 5 / math.sqrt(MANY - lag), (seed, lag)
        for other in (seed + 1, seed + 1000):
            assert abs(correlation(found, ups(part, other))) < least
    places = np.arange(MANY)
    for bit in range(16):
        assert abs(correlation(ups(0.5), places >> bit & 1)) < least


def chi_square(counts):
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.slow("draws a million numbers")
def test_bits_are_uniform_alone_in_pairs_and_in_triples():
    """Of numbers themselves: a chi-square of k cells lies within 5 deviations, each sqrt(2 k), of k - 1."""
    for seed, first in itertools.product((0, 1, 2**63 + 5), (0, 2**32 - 1000, 2**40)):
        bits = numbers.numbers(Noise(seed * 0x9E3779B97F4A7C15 % 2**64, first), (1 << 20,)).astype(np.int64)
        tables = [bits >> 7, bits & 255, (bits >> 4) & 255]
        tables += [(bits[:-lag] >> 11) << 4 | bits[lag:] >> 11 for lag in LAGS]
        tables.append((bits[:-2] >> 12) << 6 | (bits[1:-1] >> 12) << 3 | bits[2:] >> 12)
        for table in tables:
            counts = np.bincount(table, minlength=256 if table.max() < 256 else 512)
            assert abs(chi_square(counts) - (counts.size - 1)) < 5 * math.sqrt(2 * counts.size)


@pytest.mark.slow("draws millions of numbers")
def test_keys_and_upper_words_of_places_are_independent():
    """The largest of this many correlations is 4.9 deviations on average, where they are independent."""
    seeds = [noise_of("stochastic", seed) for seed in range(300)]
    bits = [Noise(77 ^ 1 << bit) for bit in range(64)]
    upper = [Noise(77, place << 32) for place in range(300)]
    for drawn in (seeds, bits, upper):
        found = np.array([numbers.numbers(each, (1 << 14,)) for each in drawn]).astype(np.float64)
        correlations = np.corrcoef(found)[np.triu_indices(len(drawn), 1)] * 2.0**7
        assert np.abs(correlations).max() < 5.5
        assert correlations.std() == pytest.approx(1, abs=0.03)
