"""Values that break quantizers and memory that they lie in, drawn by a seed."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from catalogue import integers, specials

from fastq.formats.floats import FLOAT_FORMATS

REALS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
GUARD = 64  # bytes around an array, which nobody may write to


def as_dtype(name):
    """A dtype by its name, which may be one of ml_dtypes."""
    return FLOAT_FORMATS[name].dtype if name in FLOAT_FORMATS else np.dtype(name)


# --- values -----------------------------------------------------------------------------------------------------------


def _neighbours(x, rng):
    """Finite numbers themselves, or the next ones on either side."""
    words = x.view(f"i{x.itemsize}")
    moved = (words + rng.integers(-1, 2, x.size).astype(words.dtype)).view(x.dtype)
    return np.where(np.isfinite(moved) & (x != 0), moved, x)


def _exponents(dtype):
    row = FLOAT_FORMATS.get(dtype.name)
    if row:
        return 1 - row.bias - row.mantissa, row.emax
    return (-149, 127) if dtype == np.float32 else (-1074, 1023)


def _wide(rng, dtype, n, unit):
    low, high = _exponents(dtype)
    return rng.choice([-1.0, 1.0], n) * np.ldexp(1 + rng.random(n), rng.integers(low, high, n))


def _small(rng, dtype, n, unit):
    """Subnormal and the smallest normal numbers."""
    low, _ = _exponents(dtype)
    return np.ldexp(rng.integers(-4, 5, n).astype(float), low + rng.integers(0, 26, n).astype(int))


def _large(rng, dtype, n, unit):
    _, high = _exponents(dtype)
    return rng.choice([-1.0, 1.0], n) * np.ldexp(1 + rng.random(n), high - rng.integers(0, 4, n))


def _bits(rng, dtype, n, unit):
    return rng.integers(0, 256, n * dtype.itemsize, np.uint8).view(dtype)


def _known(rng, dtype, n, unit):
    return rng.choice(specials(np.float64 if dtype == np.float64 else np.float32, infinite=False), n)


# kinds of values, by name: functions of generator, dtype, how many and the width of a code
_KINDS = {
    "normal": lambda rng, dtype, n, unit: rng.standard_normal(n) * unit * rng.choice([1, 10, 100]),
    "ties": lambda rng, dtype, n, unit: (rng.integers(-300, 300, n) + 0.5) * unit,
    "whole": lambda rng, dtype, n, unit: rng.integers(-300, 300, n) * unit,
    "far": lambda rng, dtype, n, unit: rng.integers(-(2**17), 2**17, n) * unit / 2,
    "positive": lambda rng, dtype, n, unit: (1 + rng.random(n)) * 50 * unit,
    "wide": _wide,
    "small": _small,
    "large": _large,
    "known": _known,
    "bits": _bits,
    "equal": lambda rng, dtype, n, unit: np.full(n, rng.standard_normal()) * unit,
    "zeros": lambda rng, dtype, n, unit: rng.choice([0.0, -0.0], n),
}
KINDS = tuple(_KINDS)


def _floats(rng, kinds, dtype, n, unit):
    """Finite floats in pieces of several kinds."""
    x = np.empty(n, dtype)
    ends = [*sorted(rng.integers(0, n + 1, len(kinds) - 1)), n]
    with np.errstate(all="ignore"):
        for kind, (first, last) in zip(kinds, itertools.pairwise([0, *ends]), strict=True):
            width = unit[first:last] if np.size(unit) == n > 1 else np.reshape(unit, -1)[:1]
            piece = _KINDS[kind](rng, dtype, last - first, width).astype(dtype)
            x[first:last] = _neighbours(piece, rng) if kind in ("ties", "whole", "wide", "large") else piece
        x[~np.isfinite(x)] = 0.75
    return x


def _integers(rng, kinds, dtype, n):
    info = np.iinfo(dtype)
    if kinds[0] == "equal":
        return np.full(n, rng.choice(integers(dtype)), dtype)
    if kinds[0] == "zeros":
        return np.zeros(n, dtype)
    if kinds[0] == "known":
        return rng.choice(integers(dtype), n)
    if kinds[0] in ("ties", "whole"):
        return rng.integers(max(info.min, -300), min(info.max, 300), n).astype(dtype)
    return rng.integers(info.min, info.max, n, dtype, endpoint=True)


def values(rng, kinds, dtype, n, unit=1.0, nans=0, infinities=0):
    """`n` values of a dtype, with NaN of all sorts and infinities among them."""
    dtype = as_dtype(dtype)
    if dtype.kind in "iu":
        return _integers(rng, kinds, dtype, n)
    x = _floats(rng, kinds, dtype, n, unit)
    if n and infinities:
        x[rng.integers(0, n, infinities)] = rng.choice([np.inf, -np.inf], infinities)
    if n and nans:
        row = FLOAT_FORMATS.get(dtype.name)
        mantissa = row.mantissa if row else 23 if dtype == np.float32 else 52
        words = x.view(f"u{dtype.itemsize}")
        payload = rng.integers(1, 1 << mantissa, nans, np.uint64)
        sign = rng.integers(0, 2, nans, np.uint64) << np.uint64(8 * dtype.itemsize - 1)
        infinity = np.array([np.inf], dtype).view(words.dtype).astype(np.uint64)
        words[rng.integers(0, n, nans)] = (payload | sign | infinity).astype(words.dtype)
    return x


# --- shapes -----------------------------------------------------------------------------------------------------------


def shape_of(random, total, ndim):
    """A shape of about `size` elements; with one axis exactly that many."""
    if ndim == 0:
        return ()
    sizes, left = [], max(total, 0)
    for k in range(ndim - 1):
        powers = [0, 0.2, 0.5, 0.8, 1 / (ndim - k)]
        sizes.append(round(left ** random.choice(powers)) if left else random.choice([0, 1, 2]))
        left //= max(sizes[-1], 1)
    sizes.append(left)
    random.shuffle(sizes)
    return tuple(sizes)


@dataclass(frozen=True)
class Granularity:
    """Axis and block size, of arrays of a shape."""

    axis: Any = None
    block_size: int = 0

    @property
    def kind(self):
        if self.block_size:
            return "blocks"
        return "array" if self.axis is None else "axes" if isinstance(self.axis, tuple) else "channels"

    def kept(self, ndim):
        """Axes that keep parameters of their own, or along which blocks run."""
        axes = () if self.axis is None else self.axis if isinstance(self.axis, tuple) else (self.axis,)
        return sorted(axis % ndim for axis in axes) if ndim else []

    def parameters(self, shape):
        """Shape of parameters."""
        kept = self.kept(len(shape))
        if self.block_size:
            return tuple(-(-n // self.block_size) if k in kept else n for k, n in enumerate(shape))
        return tuple(shape[k] for k in kept)

    def owners(self, shape):
        """The number of the parameter that each element has."""
        kept, sizes = self.kept(len(shape)), self.parameters(shape)
        numbers = np.arange(math.prod(sizes)).reshape(sizes)
        if self.block_size:
            return numbers.take(np.arange(shape[kept[0]]) // self.block_size, kept[0])
        return np.broadcast_to(numbers.reshape([n if k in kept else 1 for k, n in enumerate(shape)]), shape)

    def each(self, parameters, shape):
        """Parameters, one for each element of arrays of a shape, to which they have to fit."""
        if parameters.size == 1:
            return np.broadcast_to(parameters.reshape(-1), (math.prod(shape),))
        if parameters.shape != self.parameters(shape):
            raise ValueError(f"parameters of shape {parameters.shape} for {self} of arrays of shape {shape}")
        return parameters.reshape(-1)[self.owners(shape)].reshape(-1)


# --- memory -----------------------------------------------------------------------------------------------------------

LAYOUTS = ("c", "fortran", "permuted", "strided", "negative", "steps", "unaligned", "odd", "swapped", "any")


@dataclass(frozen=True)
class Place:
    """Where the elements of an array lie: the order of axes, the steps between elements, and the first byte.

    Attributes
    ----------
    order : tuple of int
        Axes from the slowest to the fastest.
    steps : tuple of int
        Elements from one index of an axis to the next, apart from the steps of the other axes.
    offset : int
        Bytes after a cache line, at which memory begins.
    swapped : bool
        Whether bytes are in the other order.
    """

    order: tuple
    steps: tuple
    offset: int = 0
    swapped: bool = False

    def of(self, shape, dtype):
        """Memory filled with one byte, and an array of a shape in it."""
        dtype = np.dtype(dtype)
        extent = [size * abs(step) for size, step in zip(shape, self.steps, strict=True)]
        ordered = [extent[axis] for axis in self.order]
        count = math.prod(ordered) * dtype.itemsize
        first, total = GUARD + self.offset, count + 2 * GUARD + self.offset
        memory = np.full(total + 64, 0xA7, np.uint8)
        memory = memory[-memory.ctypes.data % 64 :][:total]
        if self.swapped and dtype.itemsize > 1 and dtype.isbuiltin == 1:
            dtype = dtype.newbyteorder("S")
        whole = memory[first : first + count].view(dtype).reshape(ordered).transpose(np.argsort(self.order))
        return memory, whole[(*(slice(None, None, step) for step in self.steps), ...)]

    def holding(self, array):
        """Memory, and an array in it with the values of an array."""
        memory, view = self.of(array.shape, array.dtype)
        view[...] = array
        return memory, view


def place(random, sizes, layout, ndim, itemsize):
    """A place of a kind of layout for arrays of a rank; `sizes` draws how far steps go and where memory begins."""
    straight, plain = tuple(range(ndim)), (1,) * ndim
    anywhere = tuple(random.sample(straight, ndim))
    wide = sizes.randint(2, 4)
    steps = tuple(random.choice([1, 1, -1, wide, -wide, wide + 1]) for _ in straight)
    odd = sizes.randrange(1, 64)
    if layout == "any":
        return Place(anywhere, steps, sizes.choice([0, odd]), random.random() < 0.3)
    return {
        "c": Place(straight, plain),
        "fortran": Place(straight[::-1], plain),
        "permuted": Place(anywhere, plain),
        "strided": Place(straight, (*plain[1:], 2)[:ndim]),
        "negative": Place(straight, (-1,) * ndim),
        "steps": Place(straight, steps),
        "unaligned": Place(straight, plain, odd),
        "odd": Place(straight, plain, odd // itemsize * itemsize),  # aligned, but not to a cache line
        "swapped": Place(straight, plain, swapped=True),
    }[layout]
