"""Rows for block formats of GGUF that are hard to quantize as ggml does, the same with every version of NumPy.

Only the raw bits of a generator are promised not to change, and only operations that IEEE 754 rounds correctly are
used, so that digests of ggml's blocks for these rows can be kept.
"""

import numpy as np

COLUMNS = 1024


def _uniform(bits, shape):
    """Numbers from 0 to 1 of 24 bits."""
    return (bits.random_raw(int(np.prod(shape))) >> np.uint64(40)).reshape(shape).astype(np.float64) * 2.0**-24


def _normal(bits, shape):
    return sum(_uniform(bits, shape) for _ in range(12)) - 6


def _powers(bits, shape, first, last):
    """Random powers of two."""
    return np.ldexp(1.0, (first + _uniform(bits, shape) * (last - first + 1)).astype(np.int64))


def _heavy(bits, shape):
    return _normal(bits, shape) / np.maximum(_uniform(bits, shape), 2.0**-10)


def _bfloat16(bits, shape):
    word = _normal(bits, shape).astype(np.float32).view(np.uint32)
    return (word & np.uint32(0xFFFF0000)).view(np.float32)


def _sparse(bits, shape):
    return np.where(_uniform(bits, shape) < 0.93, 0, _normal(bits, shape))


def _constant(bits, shape):
    """Runs of one number, of several lengths, now and then with a neighbour of it."""
    lengths = (8, 16, 32, 64, 256)
    parts = [np.repeat(_normal(bits, (shape[0], shape[1] // n)), n, axis=1) for n in lengths]
    chosen = np.floor(_uniform(bits, (shape[0], 1)) * len(lengths))
    x = np.select([chosen == k for k in range(len(lengths))], parts).astype(np.float32)
    return np.where(_uniform(bits, shape) < 0.02, np.nextafter(x, np.float32(np.inf)), x)


def _subnormal(bits, shape):
    return _normal(bits, shape) * _powers(bits, (shape[0], shape[1] // 256), -152, -96).repeat(256, axis=1)


def _zeros(bits, shape):
    """Zeros of both signs, some blocks with a few small numbers."""
    signed = np.where(_uniform(bits, shape) < 0.5, 0.0, -0.0)
    rare = _powers(bits, (shape[0], shape[1] // 32), -12, -1).repeat(32, axis=1) < 2.0**-8
    small = _normal(bits, shape) * _powers(bits, shape, -60, 0)
    return np.where((_uniform(bits, shape) < 0.1) & rare, np.abs(small), signed)


def _ties(bits, shape):
    """Halves of whole numbers in units of a power of two, and their neighbours."""
    unit = _powers(bits, (shape[0], shape[1] // 32), -9, 3).repeat(32, axis=1)
    steps = _powers(bits, (shape[0], shape[1] // 32), 2, 8).repeat(32, axis=1)
    x = (np.floor(_normal(bits, shape) * steps) / 2 * unit).astype(np.float32)
    place = _uniform(bits, shape)
    x = np.where(place < 0.1, np.nextafter(x, np.float32(np.inf)), x)
    return np.where(place > 0.9, np.nextafter(x, np.float32(-np.inf)), x)


def _magnitudes(bits, shape):
    """Sub-blocks of many magnitudes, some of one sign, some next to others that are much larger."""
    scale = _powers(bits, (shape[0], shape[1] // 16), -30, 12).repeat(16, axis=1)
    x = _normal(bits, shape) * scale
    return np.where((_uniform(bits, (shape[0], shape[1] // 32)) < 0.2).repeat(32, axis=1), np.abs(x), x)


def _codebook_ties(bits, shape):
    """Halves of whole numbers next to -127, the first number of ggml's codebook, in units of a power of two."""
    unit = _powers(bits, (shape[0], shape[1] // 32), -9, 3).repeat(32, axis=1)
    x = np.clip(np.floor(_normal(bits, shape) * 90) / 2, -126, 126)
    return np.where(np.arange(shape[1]) % 32 == 5, -127, x) * unit


def _below_powers(bits, shape):
    """Blocks whose largest number is a few last bits below a power of two."""
    power = _powers(bits, (shape[0], shape[1] // 32), -60, 12).repeat(32, axis=1)
    below = 1 - np.floor(_uniform(bits, shape) * 40) * 2.0**-24
    return np.where(np.arange(shape[1]) % 32 == 9, below, _normal(bits, shape) / 8) * power


KINDS = {
    "normal": _normal,
    "heavy tails": _heavy,
    "bfloat16 grid": _bfloat16,
    "sparse": _sparse,
    "constant": _constant,
    "subnormal": _subnormal,
    "zeros": _zeros,
    "ties": _ties,
    "magnitudes": _magnitudes,
    "ties of the codebook": _codebook_ties,
    "below powers of two": _below_powers,
}


def rows_of(kind, rows, seed=0):
    """So many rows of a kind, float32."""
    bits = np.random.PCG64([*kind.encode(), seed])
    return np.ascontiguousarray(KINDS[kind](bits, (rows, COLUMNS)), np.float32)


def rows_of_all(rows, seed=0):
    """So many rows of each kind."""
    return np.concatenate([rows_of(kind, rows, seed) for kind in KINDS])


def comparable(x, name):
    """Rows whose blocks of a format ggml writes as it reads them.

    Those of IQ3_S it does not where all values of a sub-block are 0: codes that follow lie in the bytes of other ones.
    """
    parts = x.reshape(-1, 32)
    gap = (parts == 0).all(axis=1, keepdims=True) & (np.arange(32) == 3) & (name == "IQ3_S")
    return np.where(gap, np.float32(2.0**-30), parts).reshape(x.shape)


def importance(seed=0):
    """Importance of the columns: of many magnitudes, and 0 of some."""
    bits = np.random.PCG64([1, seed])
    weights = _uniform(bits, COLUMNS) * _powers(bits, COLUMNS, -12, 6)
    return np.where(_uniform(bits, COLUMNS) < 0.06, 0, weights).astype(np.float32)


def split(case):
    """Name of the format of a case, and the importance of columns."""
    name, *weighted = case.split()
    return name, importance() if weighted else None
