"""Arrays that break quantizers, and the memory layouts that they come in."""

import math
from dataclasses import astuple

import numpy as np

import fastq
from fastq.formats.qtypes import QTYPES

INPUTS = ["float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
CODES = ["int8", "uint8", "int16", "uint16"]
PACKED = ["int4", "uint4", "int2", "uint2"]
# a format of each kind, which quick cases make do with: every one is in test_each_once.py
FEW = ("int8", "uint4", "float8_e4m3fn", "mxfp4")


def in_blocks(name):
    """Return whether a format prescribes the size of its blocks."""
    return name in QTYPES and QTYPES[name].block_size > 0


# conventions that have a format for any granularity
ANYWHERE = [row.name for row in fastq.CONVENTIONS.values() if not row.formats or not all(map(in_blocks, row.formats))]


def ties(dtype, scale=1.0, codes=300):
    """Halves between codes times a scale, with both neighbours of each."""
    half = (np.arange(-codes, codes, dtype=dtype) + dtype(0.5)) * dtype(scale)
    return np.concatenate([half, np.nextafter(half, dtype(np.inf)), np.nextafter(half, dtype(-np.inf))])


def specials(dtype, infinite=True):
    """Zeros, subnormals, the smallest and largest normal numbers, whole numbers far out of range, infinities."""
    info = np.finfo(dtype)
    values = [0.0, -0.0, info.smallest_subnormal, info.tiny, info.eps, 1.0, 126.5, 127.5, 128.5, 255.5, 32767.5]
    values += [65535.5]
    values += [2.0**31, 2.0**63, 1e30, info.max / 2, info.max]
    positive = np.array(values, dtype)
    both = np.concatenate([positive, -positive])
    return np.concatenate([both, np.array([np.inf, -np.inf], dtype)]) if infinite else both


def integers(dtype):
    """Both ends of the range, what surrounds zero, and what surrounds the ends of the code formats."""
    info = np.iinfo(dtype)
    wanted = [info.min, info.min + 1, info.max - 1, info.max, -2, -1, 0, 1, 2, 126, 127, 128, 254, 255, 256, 32768]
    return np.array([value for value in wanted if info.min <= value <= info.max], dtype)


def values(dtype, size, seed=0):
    """`size` finite values: the catalogue, filled up with random ones of several magnitudes."""
    dtype, rng = np.dtype(dtype), np.random.default_rng(seed)
    if dtype.kind == "f":
        normal = rng.standard_normal(size).astype(dtype)
        known = np.concatenate([ties(dtype.type, 0.25, 40), specials(dtype.type, infinite=False)])
        wide = known if seed % 2 else known[np.abs(known) < 1000]
        picked = rng.random(size) < 0.3
        return np.where(picked, rng.choice(wide, size), normal)
    info = np.iinfo(dtype)
    return np.where(
        rng.random(size) < 0.3,
        rng.choice(integers(dtype), size),
        rng.integers(info.min, info.max, size, dtype, endpoint=True),
    )


def _unaligned(x):
    memory = np.zeros(x.nbytes + 1, np.uint8)
    view = memory[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def _read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def _strided(x):
    memory = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    memory[..., ::2] = x
    return memory[..., ::2]


LAYOUTS = {
    "c": lambda x: x,
    "fortran": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(np.moveaxis(x, 0, -1)).transpose(
        (x.ndim - 1, *range(x.ndim - 1)) if x.ndim else ()
    ),
    "strided": _strided,
    "negative": lambda x: np.flip(x.copy()),
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "read_only": _read_only,
    "unaligned": _unaligned,
    "swapped": lambda x: x.astype(x.dtype.newbyteorder("S")),
}


def mixed(x):
    """The same array, with strides of both signs."""
    return np.flip(np.flip(x, 0).copy(), 0)


class PatchedNumPy:
    """NumPy except for some functions, for a module that is to be wrong."""

    def __init__(self, **changed):
        self.__dict__.update(changed)

    def __getattr__(self, name):
        """Return what was not changed."""
        return getattr(np, name)


def same_bytes(actual, expected):
    """Assert that two arrays have the same dtype, shape and bits."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    if np.ascontiguousarray(actual).tobytes() != np.ascontiguousarray(expected).tobytes():
        where = np.argwhere(np.atleast_1d(actual != expected))[:3].tolist()
        raise AssertionError(
            f"different at {where}: {actual[actual != expected][:3]}, {expected[actual != expected][:3]}"
        )


def same_measures(actual, expected):
    """Assert the same measures: maxima and counts exactly, and sums, which are taken in another order, nearly."""
    for name, found, right in zip(vars(expected), astuple(actual), astuple(expected), strict=True):
        exactly = name.startswith("max") or name == "clipped"
        if found == right or (right is not None and math.isnan(found) and math.isnan(right)):
            continue
        nearly = not exactly and math.isclose(found, right, rel_tol=1e-11, abs_tol=1e-9 * (name == "sqnr_db"))
        assert nearly, f"different: {name} is {found!r}, not {right!r}"


def same_quantized(actual, expected):
    """Assert that two QuantizedArrays have the same bits."""
    same_bytes(actual.scale, expected.scale)
    same_bytes(actual.zero_point, expected.zero_point)
    same_bytes(actual.codes, expected.codes)
    assert (actual.tensor_scale is None) == (expected.tensor_scale is None)
    if expected.tensor_scale is not None:
        same_bytes(actual.tensor_scale, expected.tensor_scale)
