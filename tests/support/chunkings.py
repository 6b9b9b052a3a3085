"""Arrays in chunks of random sizes, and the results of all schedulers for them: the bytes of the reference."""

import itertools

import numpy as np
from catalogue import same_bytes

import fastq
from fastq import reference

SHAPE = (96, 160)
BLOCK = 32
GRANULARITIES = {
    "array": {},
    "rows": {"axis": 0},
    "columns": {"axis": 1, "symmetric": True},
    "both axes": {"axis": (0, 1)},
    "blocks": {"axis": 1, "block_size": BLOCK},
    "blocks down": {"axis": 0, "block_size": BLOCK},
}


def array(seed=0, shape=SHAPE, dtype=np.float32):
    """Numbers of which every chunk has others: rows and columns of several magnitudes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    for axis in range(len(shape)):
        x = x * np.expand_dims(
            10.0 ** rng.uniform(-2, 2, shape[axis]), tuple(k for k in range(len(shape)) if k != axis)
        )
    return x.astype(dtype)


def sizes(rng, length, multiple):
    """Sizes of chunks that end at random multiples."""
    ends = (
        sorted(set(rng.integers(1, -(-length // multiple), rng.integers(0, 6)).tolist())) if length > multiple else []
    )
    edges = [0, *(end * multiple for end in ends), length]
    return tuple(b - a for a, b in itertools.pairwise(edges))


def chunking(seed, shape=SHAPE, granularity=None):
    """Chunks that end where blocks do, and bytes of codes of 4 bits."""
    rng, where = np.random.default_rng([seed, 99]), granularity or {}
    multiples = [
        where["block_size"] if where.get("block_size") and where["axis"] == k else 1 for k in range(len(shape))
    ]
    if multiples:
        multiples[-1] *= 1 if multiples[-1] > 1 else 2
    return tuple(sizes(rng, length, multiple) for length, multiple in zip(shape, multiples, strict=True))


def same_result(actual, expected):
    """Assert the same bytes in arrays, QParams, QuantizedArrays and tuples of arrays."""
    if isinstance(expected, tuple):
        for one, other in zip(actual, expected, strict=True):
            same_bytes(np.asarray(one), other)
        return
    if isinstance(expected, np.ndarray):
        same_bytes(np.asarray(actual), expected)
        return
    assert type(actual) is type(expected)
    where = "dtype", "axis", "block_size", "symmetric", "convention"
    assert [getattr(actual, name) for name in where] == [getattr(expected, name) for name in where]
    for name in ("codes", "scale", "zero_point", "tensor_scale"):
        if (wanted := getattr(expected, name, None)) is not None:
            same_bytes(np.asarray(getattr(actual, name)), wanted)
    assert getattr(actual, "shape", None) == getattr(expected, "shape", None)


def lazy_and_expected(x, lazy, dtype, granularity):
    """Yield what dask has to compute and what the reference says, for each operation."""
    q = reference.quantize(x, dtype, **granularity)
    where = {key: granularity[key] for key in granularity if key != "symmetric"}
    yield fastq.quantize(lazy, dtype, **granularity), q
    yield fastq.choose_qparams(lazy, dtype, **granularity), reference.choose_qparams(x, dtype, **granularity)
    yield fastq.fake_quantize(lazy, dtype, **granularity), reference.fake_quantize(x, dtype, **granularity)
    yield fastq.minmax(lazy, **where), reference.minmax(x, **where)
    yield fastq.quantize(lazy, qparams=q.qparams), reference.quantize(x, qparams=q.qparams)
    yield fastq.quantize(lazy, dtype, **granularity).dequantize(), reference.dequantize(q)
    if not q.dtype.block_size:
        raw = {"axis": None, **where}
        codes = reference.quantize_linear(x, q.scale, q.zero_point, dtype, **raw)
        yield fastq.quantize_linear(lazy, q.scale, q.zero_point, dtype, **raw), codes


def check(seed, dask, da, dtype="int8", granularities=GRANULARITIES, **scheduler):
    """Assert that a random chunking of every granularity gives the bytes of the reference."""
    x = array(seed)
    for granularity in granularities.values():
        lazy = da.from_array(x, chunks=chunking(seed, x.shape, granularity))
        pairs = list(lazy_and_expected(x, lazy, dtype, granularity))
        for actual, (_, expected) in zip(
            dask.compute(*(lazily for lazily, _ in pairs), **scheduler), pairs, strict=True
        ):
            same_result(actual, expected)
