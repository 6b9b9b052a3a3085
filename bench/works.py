"""The works that are measured: their input, made from one seed in every process, and the right answer in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Results = dict[str, Array]

SHAPES: dict[str, tuple[int, ...]] = {
    "large": (16384, 4096),
    "medium": (256, 4096),
    "small": (64, 4096),
    "tiny": (1000,),
}
SCALE = 0.05
ZERO_POINT = 3
BLOCK = 32
SEED = 20240607
ALIGNMENT = 64
CHUNK = 1 << 16
SAME_CODE, ONE_CODE = 0.01, 1.01
TIES_AT_MOST = 1e-3


class Runner(NamedTuple):
    """One work made ready: `call` does it once, `results` has what it made, named as in `expected`.

    `keep` holds memory that a call reaches by address only.
    """

    call: Callable[[], Any]
    results: Callable[[], Results]
    keep: Any = None


@dataclass(frozen=True)
class Parameters:
    """The scale and zero point that plain NumPy chooses for an array."""

    scale: Array
    zero_point: int


def empty(shape: int | tuple[int, ...], dtype: Any, *, aligned: bool = False) -> Array:
    """Memory whose pages are all present; at NumPy's own alignment (16 bytes for large arrays) or at 64 bytes."""
    size, dtype = int(np.prod(shape)), np.dtype(dtype)
    if aligned:
        raw = np.empty(size * dtype.itemsize + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        array = raw[start : start + size * dtype.itemsize].view(dtype).reshape(shape)
    else:
        array = np.empty(shape, dtype)
    array.fill(1)
    return array


def like(array: Array, dtype: Any, *, aligned: bool = False) -> Array:
    return empty(array.shape, dtype, aligned=aligned)


def copy_of(array: Array, *, aligned: bool) -> Array:
    out = like(array, array.dtype, aligned=aligned)
    np.copyto(out, array)
    return out


@lru_cache(maxsize=1)
def values(size: str) -> Array:
    """float32 normal deviates: a few in a thousand of them are beyond the int8 range of SCALE and ZERO_POINT."""
    x = np.random.default_rng(SEED).standard_normal(SHAPES[size], dtype=np.float32)
    x *= np.float32(2)
    return x


@lru_cache(maxsize=1)
def codes(size: str) -> Array:
    """Make what dequantize_linear starts from."""
    return quantized(values(size), np.float32(SCALE), ZERO_POINT, "int8")


def flat(size: str, *, aligned: bool = False) -> Array:
    return copy_of(values(size).reshape(-1), aligned=aligned)


def flat_codes(size: str, *, aligned: bool = False) -> Array:
    return copy_of(codes(size).reshape(-1), aligned=aligned)


def chunks(array: Array) -> Iterator[slice]:
    """Pieces of a flat array small enough that NumPy's temporaries stay in the cache."""
    return (slice(start, start + CHUNK) for start in range(0, array.size, CHUNK))


def quantized(x: Array, scale: Any, zero_point: int, dtype: str) -> Array:
    limits = np.iinfo(dtype)
    out = np.empty(x.shape, dtype)
    flat_in, flat_out = x.reshape(-1), out.reshape(-1)
    for part in chunks(flat_in):
        flat_out[part] = np.clip(np.rint(flat_in[part] / scale) + np.float32(zero_point), limits.min, limits.max)
    return out


def dequantized(c: Array, scale: Any, zero_point: int) -> Array:
    out = np.empty(c.shape, np.float32)
    flat_in, flat_out = c.reshape(-1), out.reshape(-1)
    for part in chunks(flat_in):
        flat_out[part] = (flat_in[part].astype(np.float32) - np.float32(zero_point)) * scale
    return out


def range_parameters(x: Array) -> Parameters:
    """Choose uint8 parameters as DynamicQuantizeLinear does."""
    lo, hi = np.minimum(x.min(), np.float32(0)), np.maximum(x.max(), np.float32(0))
    scale = (hi - lo) / np.float32(255)
    return Parameters(scale, int(np.clip(np.rint(-lo / scale), 0, 255)))


def symmetric(groups: Array, axis: int) -> tuple[Array, Array]:
    """Codes and scales of `groups`, one scale for each run along `axis`."""
    scale = np.maximum(-groups.min(axis, keepdims=True), groups.max(axis, keepdims=True)) / np.float32(127)
    out = np.empty(groups.shape, np.int8)
    for row in range(groups.shape[0]):
        row_scale = scale[row if scale.shape[0] > 1 else 0]
        out[row] = np.clip(np.rint(groups[row] / row_scale), -127, 127)
    return out, scale.squeeze(axis)


def error_measures(x: Array, c: Array, parameters: Parameters) -> Array:
    """Measure the straightforward way, temporaries and all: the peer of fastq.compare as well as its check."""
    approximation = (c.astype(np.float32) - np.float32(parameters.zero_point)) * parameters.scale
    wide = x.astype(np.float64)
    error = np.abs(wide - approximation)
    mse = np.mean(error**2)
    sqnr = 10 * np.log10(np.mean(wide**2) / mse)
    nonzero = x != 0
    relative = error[nonzero] / np.abs(wide[nonzero])
    unclipped = np.rint(x / parameters.scale) + np.float32(parameters.zero_point)
    clipped = np.count_nonzero((unclipped < 0) | (unclipped > 255))
    return np.array([mse, sqnr, error.max(), error.mean(), relative.max(), relative.mean(), clipped])


def _quantize_linear(size: str) -> Results:
    return {"codes": codes(size).reshape(-1)}


def _dequantize_linear(size: str) -> Results:
    return {"values": dequantized(codes(size), np.float32(SCALE), ZERO_POINT).reshape(-1)}


def _minmax(size: str) -> Results:
    return {"lo": values(size).min(), "hi": values(size).max()}


def _quantize(size: str) -> Results:
    x = values(size).reshape(-1)
    p = range_parameters(x)
    codes = quantized(x, p.scale, p.zero_point, "uint8")
    return {"codes": codes, "scale": p.scale, "zero_point": np.array(p.zero_point)}


def _fake_quantize(size: str) -> Results:
    return _dequantize_linear(size)


def _fake_quantize_range(size: str) -> Results:
    x = values(size).reshape(-1)
    p = range_parameters(x)
    return {"values": dequantized(quantized(x, p.scale, p.zero_point, "uint8"), p.scale, p.zero_point)}


def _groups(size: str, shape: tuple[int, ...], axis: int) -> Results:
    c, scale = symmetric(values(size).reshape(shape), axis)
    return {"codes": c.reshape(SHAPES[size]), "scale": scale}


def _compare(size: str) -> Results:
    x = values(size).reshape(-1)
    p = range_parameters(x)
    return {"measures": error_measures(x, quantized(x, p.scale, p.zero_point, "uint8"), p)}


EXPECTED: dict[str, Callable[[str], Results]] = {
    "quantize_linear": _quantize_linear,
    "dequantize_linear": _dequantize_linear,
    "minmax": _minmax,
    "quantize": _quantize,
    "fake_quantize": _fake_quantize,
    "fake_quantize_range": _fake_quantize_range,
    "rows": lambda size: _groups(size, SHAPES[size], 1),
    "columns": lambda size: _groups(size, SHAPES[size], 0),
    "blocks": lambda size: _groups(size, (SHAPES[size][0], -1, BLOCK), 2),
    "compare": _compare,
}


def expected(work: str, size: str) -> Results:
    return EXPECTED[work](size)


def differences(work: str, size: str, results: Results) -> str:
    """Say what differs from the expected results, with WRONG when ties do not explain it: '' when nothing does."""
    right = expected(work, size)
    step = range_parameters(values(size)).scale if work.endswith("_range") else SCALE
    steps = {"codes": 1.0, "zero_point": 1.0, "values": float(step)}
    found = (_difference(name, results[name], right[name], steps.get(name)) for name in right if name in results)
    return "; ".join(filter(None, found))


def _difference(name: str, got: Array, right: Array, step: float | None) -> str:
    if got.shape != right.shape:
        return f"WRONG {name}: shape {got.shape}, not {right.shape}"
    unequal = np.flatnonzero(np.atleast_1d(got != right))
    if unequal.size == 0:
        return ""
    got_there, right_there = (np.ravel(a)[unequal].astype(np.float64) for a in (got, right))
    far = np.abs(got_there - right_there) / (step or np.abs(right_there) * 1e-6)
    ties = np.count_nonzero(far > SAME_CODE)
    wrong = far.max() > ONE_CODE or (step is not None and ties > TIES_AT_MOST * got.size)
    unit, at_ties = ("step", f" ({ties} at ties)") if step else ("millionth", "")
    what = f"{name}: {unequal.size} differ{at_ties}, by {far.max():.2g} {unit} at most"
    return f"WRONG {what}" if wrong else what
