"""``range="mse"`` for blocks of GGUF: never worse than ggml's, near the best there is, read by whoever reads ggml's."""

from fractions import Fraction

import numpy as np
import pytest
from catalogue import same_bytes
from gguf_blocks import check_memory, oracle, same_values
from gguf_data import KINDS, importance, rows_of, rows_of_all, split

import fastq
from fastq import reference
from fastq.formats.gguf import BLOCK_FORMATS, LEAST_ERROR

WEIGHTS = {"": None, " weighted": importance()}
CASES = [name + weighted for name in LEAST_ERROR for weighted in WEIGHTS]
slow_kernels = pytest.mark.slow(
    "compiles a kernel for each case", quick=lambda case: case in ("Q4_0", "Q5_1 weighted", "NVFP4")
)


def errors(x, blocks, name, weights=None):
    """Weighted squares of the errors of blocks, in float64, by the decoder of the gguf package."""
    missed = (oracle("dequantize", blocks, name).astype(np.float64) - x) ** 2
    return (missed * (1 if weights is None else weights.astype(np.float64))).reshape(-1, BLOCK_FORMATS[name].size)


def sqnr(x, name, **options):
    blocks = reference.gguf.quantize(x, name, **options)
    return 10 * np.log10((x.astype(np.float64) ** 2).sum() / errors(x, blocks, name).sum())


@slow_kernels
@pytest.mark.parametrize("case", CASES)
def test_kernels_do_as_the_reference(case):
    # contract 22.1, 22.2 and 22.3
    check_kernel(case)


def check_kernel(case):
    name, weights = split(case)
    x = rows_of_all(7, seed=3)
    expected = reference.gguf.quantize(x, name, range="mse", importance=weights)
    same_bytes(fastq.gguf.quantize(x, name, range="mse", importance=weights), expected)
    same_values(fastq.gguf.dequantize(expected, name), oracle("dequantize", expected, name))


@pytest.mark.slow("searches each format", quick=lambda case: not case.endswith("weighted") or case[:2] == "Q4")
@pytest.mark.parametrize("case", CASES)
def test_no_block_is_worse_than_that_of_ggml(case):
    # contract 22.5
    check_never_worse(case)


def check_never_worse(case):
    name, weights = split(case)
    x = rows_of_all(20, seed=4)
    with np.errstate(under="ignore"):
        found, own = (
            errors(x, reference.gguf.quantize(x, name, range=method, importance=weights), name, weights).sum(axis=1)
            for method in ("mse", "minmax")
        )
    assert not (found > own).any(), "different: worse than ggml"
    share = (found < own).mean()
    assert share > (0.1 if name == "MXFP4" else 0.4), f"different: {share} of the blocks are better"


def test_no_block_is_worse_in_exact_arithmetic():
    # contract 22.5
    x = np.concatenate([rows_of(kind, 1, seed=5)[:, :64] for kind in KINDS])
    for name in ("Q4_1", "Q8_0", "IQ4_NL"):
        found, own = (
            oracle("dequantize", reference.gguf.quantize(x, name, range=method), name).reshape(-1, 32)
            for method in ("mse", "minmax")
        )
        for part, a, b in zip(x.reshape(-1, 32), found, own, strict=True):
            missed = [
                sum((Fraction(float(v)) - Fraction(float(w))) ** 2 for v, w in zip(each, part, strict=True))
                for each in (a, b)
            ]
            assert missed[0] <= missed[1]


# decibels that are gained on normal data at least; more is there for the longer tails of weights
GAINS = {
    "Q4_0": 0.45,
    "Q4_1": 0.9,
    "Q5_0": 0.45,
    "Q5_1": 0.9,
    "Q8_0": 0.9,
    "IQ4_NL": 0.25,
    "IQ4_XS": 0.2,
    "MXFP4": 0.2,
    "NVFP4": 1.2,
}


@pytest.mark.parametrize("name", LEAST_ERROR)
def test_what_is_gained(name):
    check_gain(name)


def check_gain(case):
    name = case.split()[0]
    x = np.random.default_rng(6).standard_normal((64, 1024), np.float32) * np.float32(0.05 if name != "NVFP4" else 1)
    gained = sqnr(x, name, range="mse") - sqnr(x, name)
    assert gained > GAINS[name], f"different: {gained} dB"


@pytest.mark.parametrize(("name", "least", "most", "short_of"), [("Q4_0", -8, 7, 0.01), ("Q5_0", -16, 15, 0.03)])
def test_little_is_left_to_an_exhaustive_search(name, least, most, short_of):
    """Of every float16 there is for a scale."""
    x = np.random.default_rng(7).standard_normal((40, 32), np.float32)
    scales = np.arange(0x7C00, dtype=np.uint16).view(np.float16)
    scales = scales[(scales > 0.02) & (scales < 1)].astype(np.float64)
    best = np.full(len(x), np.inf)
    for scale in np.concatenate([scales, -scales]):
        codes = np.clip(np.rint(x / scale), least, most)
        best = np.minimum(best, ((codes * scale - x) ** 2).sum(axis=1))
    found = errors(x, reference.gguf.quantize(x, name, range="mse"), name).sum()
    assert best.sum() <= found * (1 + 1e-6)
    assert 10 * np.log10(found / best.sum()) < short_of


@pytest.mark.parametrize("name", LEAST_ERROR)
def test_importance_weighs_the_squares(name):
    # contract 22.4
    """In each block the columns that count get less error than without weights, and no type ignores them."""
    x, weights = rows_of("normal", 30), np.tile(np.float32([100, 1, 1, 1]), 256)
    found, plain = (
        errors(x, reference.gguf.quantize(x, name, range="mse", importance=each), name) for each in (weights, None)
    )
    where = weights.reshape(-1, BLOCK_FORMATS[name].size) > 1
    counting = np.broadcast_to(where, (30, *where.shape)).reshape(found.shape)
    assert found[counting].sum() < plain[counting].sum() * (1 if name == "MXFP4" else 0.9)
    assert found[~counting].sum() > plain[~counting].sum()


@pytest.mark.slow("compiles a kernel for each case and dtype", quick=lambda case: case == "Q4_0")
@pytest.mark.parametrize("case", CASES)
def test_layouts_dtypes_and_threads(case, threads):
    name, weights = split(case)
    width = 2 * max(BLOCK_FORMATS[name].size, 64)
    x, weights = rows_of("magnitudes", 38)[:, :width], None if weights is None else weights[:width]
    options = {"range": "mse", "importance": weights}
    expected = reference.gguf.quantize(x, name, **options)
    check_memory(x, name, threads, **options)
    for rows in (1, 15, 17):
        same_bytes(fastq.gguf.quantize(x[:rows], name, **options), expected[:rows])
    half = np.clip(x, -6e4, 6e4).astype(np.float16)
    expected = reference.gguf.quantize(half.astype(np.float32), name, **options)
    same_bytes(fastq.gguf.quantize(half, name, **options), expected)


def told(call):
    """The message of the ValueError of a call, if there is one."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""


@slow_kernels
@pytest.mark.parametrize("case", CASES)
def test_blocks_that_ggml_refuses_are_refused(case):
    name, weights = split(case)
    size = BLOCK_FORMATS[name].size
    weights = None if weights is None else weights[: 2 * size]
    finite = rows_of("normal", 20)[:, : 2 * size]
    for bad in (np.nan, np.inf, -np.inf, 2.0**34, 2.0**36, 3e38):
        x = finite.copy()
        x[13, -2] = bad
        for api in (fastq, reference):
            own, found = (
                told(lambda api=api, x=x, range=range: api.gguf.quantize(x, name, range=range, importance=weights))
                for range in ("minmax", "mse")
            )
            assert found == own
            assert found or np.isfinite(bad)


@slow_kernels
@pytest.mark.parametrize("case", CASES)
def test_magnitudes_at_both_ends(case):
    """Scales at the ends of their format, and sums that float32 does not hold: those of ggml stay."""
    name, weights = split(case)
    rng, form = np.random.default_rng(8), BLOCK_FORMATS[name]
    top = {"Q4_0": 4e5, "Q5_0": 8e5, "Q4_1": 6e4, "Q5_1": 6e4, "Q8_0": 8e6, "IQ4_NL": 6e6, "IQ4_XS": 6e6}.get(
        name, 3e38
    )
    x = np.concatenate(
        [rng.uniform(-top, top, (6, 512)), *(rng.standard_normal((3, 512)) * 2.0**-k for k in range(150))]
    )
    x, weights = x.astype(np.float32), None if weights is None else weights[:512]
    options = {"range": "mse", "importance": weights}
    found = reference.gguf.quantize(x, name, **options)
    same_bytes(fastq.gguf.quantize(x, name, **options), found)
    of_own = reference.gguf.quantize(x, name, importance=weights)
    with np.errstate(all="ignore"):
        squares = [errors(x, blocks, name, weights).sum(axis=1) for blocks in (found, of_own)]
    assert not (squares[0] > squares[1]).any()
    few = np.abs(x).reshape(-1, form.size).max(axis=1) < 2.0**-60
    assert not (found != of_own).reshape(len(few), -1)[few].any()


@pytest.mark.parametrize("api", [fastq, reference])
def test_what_has_no_least_error_is_refused(api):
    x = rows_of("normal", 2)
    for name in BLOCK_FORMATS.keys() - LEAST_ERROR:
        with pytest.raises(ValueError, match=f"^range 'mse' supports the qtypes Q4_0, .*, not {name}$"):
            api.gguf.quantize(x, name, range="mse")
    with pytest.raises(ValueError, match=r"^range must be one of 'minmax', 'mse', not 'percentile'$"):
        api.gguf.quantize(x, "Q4_0", range="percentile")
    same_bytes(api.gguf.quantize(x, "Q4_0", range="minmax"), api.gguf.quantize(x, "Q4_0"))
