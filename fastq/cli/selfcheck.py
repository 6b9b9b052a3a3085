"""Random cases of the fast functions against the reference, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

import fastq
from fastq import reference
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QTYPES
from fastq.io.scheme import Scheme
from fastq.results import QuantizedArray

Array = NDArray[Any]

INPUTS = (
    *("float16", "bfloat16", "float32", "float64"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
)


@dataclass(frozen=True)
class Case:
    """One comparison; `seed` and `index` give it back.

    Attributes
    ----------
    seed, index : int
        Of the random numbers.
    dtype, values, layout : str
        Of the input: dtype, kind of values, memory layout.
    shape : tuple of int
        Of the input.
    scheme : Scheme
        What to quantize it to.
    """

    seed: int
    index: int
    dtype: str
    values: str
    layout: str
    shape: tuple[int, ...]
    scheme: Scheme

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} of {self.values} values, {self.layout}, to {self.scheme}"

    @property
    def command(self) -> str:
        """The command that runs this case alone."""
        return f"fastq check --seed {self.seed} --first {self.index} --cases 1"


def random_case(seed: int, index: int) -> Case:
    """Return case number `index` of the series `seed`."""
    rng = _rng(seed, index)
    shape = _random_shape(rng)
    return Case(
        seed=seed,
        index=index,
        dtype=str(rng.choice(INPUTS)),
        values=str(rng.choice(list(VALUES))),
        layout=str(rng.choice(list(LAYOUTS))),
        shape=shape,
        scheme=_random_scheme(rng, len(shape)),
    )


def input_of(case: Case) -> Array:
    """Return the array to quantize."""
    rng = np.random.default_rng([case.seed, case.index, 1])
    with np.errstate(over="ignore"):
        values = VALUES[case.values](rng, math.prod(case.shape)).astype(np.float64)
        return LAYOUTS[case.layout](_cast(values, _dtype(case.dtype)).reshape(case.shape))


def mismatches(case: Case) -> list[str]:
    """Return the names of the functions whose results differ from the reference's in a bit, a dtype or an error."""
    x = input_of(case)
    return [name for name in CALLS if _outcome(name, fastq, x, case) != _outcome(name, reference, x, case)]


# Shapes and schemes


def _rng(seed: int, index: int) -> Generator:
    return np.random.default_rng([seed, index])


def _random_shape(rng: Generator) -> tuple[int, ...]:
    """Up to four dimensions and about 2**13 elements, now and then more than the parallel kernels start from."""
    ndim = int(rng.choice(5, p=(0.05, 0.3, 0.35, 0.2, 0.1)))
    limit = (1 << (20 if rng.random() < 0.02 else 13)) ** (1 / max(ndim, 1))
    shape = np.exp(rng.uniform(0, math.log(limit), ndim)).round()
    return tuple(0 if rng.random() < 0.01 else int(n) for n in shape)


def _random_scheme(rng: Generator, ndim: int) -> Scheme:
    dtype, symmetric = str(rng.choice(list(QTYPES))), bool(rng.random() < 0.5)
    kind = rng.choice(("tensor", "channel", "channels", "blocks"), p=(0.2, 0.25, 0.15, 0.4)) if ndim else "tensor"
    if kind == "tensor":
        return Scheme(dtype, symmetric=symmetric)
    if kind == "channels":
        kept = rng.choice(ndim, rng.integers(0, ndim + 1), replace=False)
        return Scheme(dtype, axis=tuple(int(a) for a in kept), symmetric=symmetric)
    axis = -1 if rng.random() < 0.5 else int(rng.integers(-ndim, ndim))
    block_size = int(rng.choice((1, 2, 7, 16, 32, 64, 100, 128))) if kind == "blocks" else 0
    return Scheme(dtype, axis, block_size, symmetric)


# Values


def _ties(rng: Generator, n: int) -> Array:
    """Halfway between codes of scale 1, and next to it, in a range that makes the scale 1 or near it."""
    halves = rng.integers(-140, 140, n) + 0.5
    nudged = np.nextafter(halves.astype(np.float32), np.float32(rng.choice((-np.inf, np.inf))))
    values = np.where(rng.random(n) < 0.5, halves, nudged)
    return np.asarray(np.where(rng.random(n) < 0.1, rng.choice((-127.0, -128.0, 127.0)), values))


def _special(rng: Generator, n: int) -> Array:
    tiny = float(np.finfo(np.float32).smallest_subnormal)
    return rng.choice([0.0, -0.0, 1.0, -1.0, tiny, -tiny, 1e-38, 3.4e38, -3.4e38, 1e300], n)


def _with_nan(rng: Generator, n: int) -> Array:
    return np.where(rng.random(n) < 0.01, np.nan, rng.standard_normal(n))


def _with_inf(rng: Generator, n: int) -> Array:
    return np.where(rng.random(n) < 0.01, rng.choice((np.inf, -np.inf)), rng.standard_normal(n))


def _one_outlier(rng: Generator, n: int) -> Array:
    values = rng.standard_normal(n)
    values[: min(n, 1)] = 1e6
    return rng.permutation(values)


VALUES: dict[str, Callable[[Generator, int], Array]] = {
    "normal": lambda rng, n: rng.standard_normal(n) * np.exp(rng.uniform(-20, 20)),
    "positive": lambda rng, n: rng.random(n) * 100 + 1,
    "constant": lambda rng, n: np.full(n, rng.choice((0.0, 1.0, -3.7, 1e-40))),
    "outlier": _one_outlier,
    "tied": _ties,
    "special": _special,
    "NaN": _with_nan,
    "infinite": _with_inf,
}


def _dtype(name: str) -> np.dtype[Any]:
    return FLOAT_FORMATS[name].dtype if name in FLOAT_FORMATS else np.dtype(name)


def _cast(values: Array, dtype: np.dtype[Any]) -> Array:
    """`values` in `dtype`; for integers 100 to the unit, clamped so that none is converted out of range."""
    if dtype.kind not in "iu":
        return values.astype(dtype)
    bounds = np.iinfo(dtype)
    last = float(bounds.max) if dtype.itemsize < 8 else math.nextafter(float(bounds.max), 0)
    inside: Array = np.clip(np.nan_to_num(values * 100), float(bounds.min), last)
    return inside.astype(dtype)


# Memory layouts


def _fortran(x: Array) -> Array:
    return np.asfortranarray(x)


def _strided(x: Array) -> Array:
    spread = np.zeros((*x.shape, 2), x.dtype)
    spread[..., 0] = x
    return spread[..., 0]


def _reversed(x: Array) -> Array:
    return x[(slice(None, None, -1),) * x.ndim]


def _broadcast(x: Array) -> Array:
    return np.broadcast_to(x[:1], x.shape) if x.ndim else x


def _unaligned(x: Array) -> Array:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    shifted = raw[1:].view(x.dtype).reshape(x.shape)
    shifted[...] = x
    return shifted


def _read_only(x: Array) -> Array:
    x.flags.writeable = False
    return x


def _big_endian(x: Array) -> Array:
    return x if x.dtype.name == "bfloat16" else x.astype(x.dtype.newbyteorder(">"))  # which ml_dtypes does not have


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "C order": lambda x: x,
    "Fortran order": _fortran,
    "strided": _strided,
    "reversed": _reversed,
    "broadcast": _broadcast,
    "unaligned": _unaligned,
    "read-only": _read_only,
    "big-endian": _big_endian,
}


# What is compared


def _quantize(module: ModuleType, x: Array, case: Case) -> QuantizedArray:
    nan = "zero" if case.index % 2 else "raise"
    q: QuantizedArray = module.quantize(x, **case.scheme.arguments(), nan=nan)
    return q


def _codes(module: ModuleType, x: Array, case: Case) -> tuple[Array, ...]:
    q = _quantize(module, x, case)
    return q.codes, q.scale, q.zero_point


def _values(module: ModuleType, x: Array, case: Case) -> tuple[Array, ...]:
    """Dequantized by `module` from the reference's codes."""
    q = _quantize(reference, x, case)
    dequantize = reference.dequantize if module is reference else QuantizedArray.dequantize
    return (dequantize(q),)


def _linear_codes(module: ModuleType, x: Array, case: Case) -> tuple[Array, ...]:
    """Codes by the parameters of another array, so that many are clamped."""
    s = case.scheme
    p = reference.choose_qparams(np.where(x == x, 1, x).astype(np.float32) * 3, **s.arguments(), nan="zero")
    codes = module.quantize_linear(x, p.scale, p.zero_point, s.dtype, axis=s.axis, block_size=s.block_size, nan="zero")
    return (codes,)


def _fake(module: ModuleType, x: Array, case: Case) -> tuple[Array, ...]:
    return (module.fake_quantize(x, **case.scheme.arguments()),)


def _extremes(module: ModuleType, x: Array, case: Case) -> tuple[Array, ...]:
    lo, hi = module.minmax(x, axis=case.scheme.axis, block_size=case.scheme.block_size, nan="zero")
    return lo, hi


CALLS: dict[str, Callable[[ModuleType, Array, Case], tuple[Array, ...]]] = {
    "quantize": _codes,
    "dequantize": _values,
    "quantize_linear": _linear_codes,
    "fake_quantize": _fake,
    "minmax": _extremes,
}


def _outcome(name: str, module: ModuleType, x: Array, case: Case) -> object:
    """Return what can be compared with ==: dtype, shape and bytes of each result, or the type of the error."""
    try:
        return [(a.dtype.str, a.shape, a.tobytes()) for a in CALLS[name](module, x, case)]
    except (ValueError, TypeError) as error:
        return type(error)
