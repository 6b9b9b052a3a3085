"""The fast functions against the reference, bit for bit: random cases, and a demonstration with a weight matrix."""

from __future__ import annotations

import math
import time
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
from fastq.results import QuantizedArray
from fastq.system.dtypes import Array
from fastq.tools.cli.tables import Entry
from fastq.tools.files.records import Scheme

INPUTS = (
    *("float16", "bfloat16", "float32", "float64"),
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
)
_SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0**-149, -(2.0**-149), 1e-38, 3.4e38, -3.4e38, 1e300)
SCHEMES = (
    Scheme("int8"),
    Scheme("int8", symmetric=True),
    Scheme("int8", axis=0, symmetric=True),
    Scheme("int8", axis=-1, symmetric=True),
    Scheme("uint8", axis=-1, block_size=32),
    Scheme("int8", axis=-1, block_size=128, symmetric=True),
    Scheme("int16", axis=0, symmetric=True),
)
# with their widths, 80 together
COLUMNS = {"scheme": "<36", "bytes": ">12", "sqnr_db": ">10", "Gelem/s": ">10", "x reference": ">12"}


def _ties(rng: Generator, n: int) -> Array:
    """Return ties between codes at scale 1, and numbers next to them, in a range that gives scale 1.

    A tie is a whole number and a half, where rounding decides; one unit of float32 below or above it does not. The ends
    are -128 and 127.
    """
    halves = (rng.integers(-140, 140, n) + 0.5) * (1 + rng.choice((-1, 0, 0, 1), n) * 2.0**-23)
    return np.where(rng.random(n) < 0.1, rng.choice((-127.0, -128.0, 127.0)), halves)


VALUES: dict[str, Callable[[Generator, int], Array]] = {
    "normal": lambda rng, n: rng.standard_normal(n) * np.exp(rng.uniform(-20, 20)),
    "positive": lambda rng, n: rng.random(n) * 100 + 1,
    "constant": lambda rng, n: np.full(n, rng.choice((0.0, 1.0, -3.7, 1e-40))),
    "outlier": lambda rng, n: np.where(np.arange(n) == rng.integers(n or 1), 1e6, rng.standard_normal(n)),
    "tied": _ties,
    "special": lambda rng, n: rng.choice(_SPECIAL, n),
    "NaN": lambda rng, n: np.where(rng.random(n) < 0.01, np.nan, rng.standard_normal(n)),
    "infinite": lambda rng, n: np.where(rng.random(n) < 0.01, np.inf * rng.choice((1, -1)), rng.standard_normal(n)),
}


def _at_odd_address(x: Array) -> Array:
    """Return a copy of an array that begins at an odd address."""
    shifted = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    shifted[...] = x
    return shifted


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "C order": lambda x: x,
    "Fortran order": np.asfortranarray,
    "strided": lambda x: np.stack([x, x], axis=-1)[..., 0],
    "reversed": lambda x: x[(slice(None, None, -1),) * x.ndim],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape) if x.ndim else x,
    "unaligned": _at_odd_address,
    "read-only": lambda x: np.broadcast_to(x, x.shape),
    "big-endian": lambda x: x if x.dtype.kind == "V" else x.astype(x.dtype.newbyteorder(">")),  # ml_dtypes has no order
}


@dataclass(frozen=True)
class Case:
    """One comparison, which `seed` and `index` reproduce."""

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
    """Return case number `index` of the series `seed`: up to four dimensions and about 2**13 elements."""
    rng = np.random.default_rng([seed, index])
    ndim = int(rng.integers(5))
    limit = (1 << (20 if rng.random() < 0.02 else 13)) ** (1 / max(ndim, 1))  # 2**20 elements use all threads
    shape = tuple(0 if rng.random() < 0.01 else round(limit ** rng.random()) for _ in range(ndim))
    dtype, values, layout = (str(rng.choice(list(names))) for names in (INPUTS, VALUES, LAYOUTS))
    axes = (None, int(rng.integers(-ndim, ndim)), tuple(range(int(rng.integers(ndim + 1))))) if ndim else (None,)
    axis = axes[int(rng.integers(len(axes)))]
    block_size = int(rng.choice((0, 1, 2, 7, 16, 32, 64, 100, 128))) if isinstance(axis, int) else 0
    scheme = Scheme(str(rng.choice(list(QTYPES))), axis, block_size, bool(rng.random() < 0.5))
    return Case(seed, index, dtype, values, layout, shape, scheme)


def input_of(case: Case) -> Array:
    """Return the array to quantize; integers are 100 times the values, clipped to the range of their dtype."""
    rng = np.random.default_rng([case.seed, case.index, 1])
    dtype = FLOAT_FORMATS[case.dtype].dtype if case.dtype in FLOAT_FORMATS else np.dtype(case.dtype)
    with np.errstate(over="ignore"):
        values = VALUES[case.values](rng, math.prod(case.shape)).astype(np.float64)
        if dtype.kind in "iu":
            first, last = (float(end) for end in (np.iinfo(dtype).min, np.iinfo(dtype).max))
            # float64 rounds the last 64 bit integer up, out of the range: the number below is in it
            values = np.clip(np.nan_to_num(values * 100), first, last if dtype.itemsize < 8 else np.nextafter(last, 0))
        return LAYOUTS[case.layout](values.astype(dtype).reshape(case.shape))


def mismatches(case: Case) -> list[str]:
    """Return the names of the functions whose results differ from the reference's in a bit, a dtype or an error."""
    x = input_of(case)
    return [name for name, f in CALLS.items() if _outcome(f, fastq, x, case) != _outcome(f, reference, x, case)]


Call = Callable[[Any, Array, Case], Any]


def _outcome(call: Call, module: ModuleType, x: Array, case: Case) -> object:
    """Return an object to compare with ==: dtype, shape and bytes of each result, or the type of the error."""
    try:
        result = call(module, x, case)
    except (ValueError, TypeError) as error:
        return type(error)
    arrays = (result.codes, result.scale, result.zero_point) if isinstance(result, QuantizedArray) else result
    return [(a.dtype.str, a.shape, a.tobytes()) for a in (arrays if isinstance(arrays, tuple) else (arrays,))]


def _quantize(module: Any, x: Array, case: Case) -> QuantizedArray:
    """Quantize by the scheme of a case."""
    q: QuantizedArray = module.quantize(x, **case.scheme.arguments(), nan="zero" if case.index % 2 else "raise")
    return q


def _linear(module: Any, x: Array, case: Case) -> Any:
    """Quantize with parameters that do not fit x, so that many codes are clamped.

    They are those of an array of threes in the shape of x, with its NaN.
    """
    scheme = case.scheme
    is_number = x == x  # NaN stays, and is treated as 0
    threes = np.where(is_number, 1, x).astype(np.float32) * 3
    params = reference.choose_qparams(threes, **scheme.arguments(), nan="zero")
    return module.quantize_linear(
        x,
        params.scale,
        params.zero_point,
        scheme.dtype,
        axis=scheme.axis,
        block_size=scheme.block_size,
        nan="zero",
    )


CALLS: dict[str, Call] = {
    "quantize": _quantize,
    "dequantize": lambda module, x, case: module.dequantize(_quantize(reference, x, case)),
    "quantize_linear": _linear,
    "fake_quantize": lambda module, x, case: module.fake_quantize(x, **case.scheme.arguments()),
    "minmax": lambda module, x, case: module.minmax(
        x, axis=case.scheme.axis, block_size=case.scheme.block_size, nan="zero"
    ),
}


def weight_matrix(size: int) -> NDArray[np.float32]:
    """Return a matrix like the weights of a linear layer: normal, with one column in a hundred far larger."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((size, size), np.float32)
    x *= np.float32(0.02)
    x[:, rng.choice(size, max(size // 100, 1), replace=False)] *= np.float32(20)
    return x


def outcome_of(x: NDArray[Any], scheme: Scheme) -> Entry:
    """Quantize `x` by `scheme`, check the result, and time warm kernels three times and the reference once."""
    q = fastq.quantize(x, **scheme.arguments())
    times = [time.perf_counter()]
    for _ in range(3):
        fastq.quantize(x, **scheme.arguments(), out=q.codes)
        times.append(time.perf_counter())
    expected = reference.quantize(x, **scheme.arguments())
    seconds = float(np.diff(times).min())
    reference_seconds = time.perf_counter() - times[-1]
    speeds = {"Gelem/s": x.size / seconds / 1e9, "x reference": reference_seconds / seconds}
    errors = fastq.compare(x, q).to_dict()
    return {"scheme": str(scheme), "bytes": q.nbytes, **errors, **speeds, "mismatches": count_mismatches(q, expected)}


def count_mismatches(q: QuantizedArray, expected: QuantizedArray) -> int:
    """Return how many codes, scales and zero points differ, bit for bit."""
    pairs = ((q.codes, expected.codes), (q.scale, expected.scale), (q.zero_point, expected.zero_point))
    return sum(int(np.count_nonzero(a.view(f"u{a.itemsize}") != b.view(f"u{b.itemsize}"))) for a, b in pairs)
