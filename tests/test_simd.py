"""The vector type lane by lane against NumPy.

Each table below has expressions as compiled code writes them and what they mean in NumPy. A table is compiled once for
a type of lanes, a scalar type included, so a Vec and a scalar are held to the same results.
"""

from fractions import Fraction

import numpy as np
import pytest
from numba import cfunc, types

from fastq.kernels import simd
from fastq.kernels.jit import OPTIONS
from fastq.kernels.simd import Vec

NUMPY = {getattr(types, name): np.dtype(name) for name in ("float32", "float64")}
NUMPY |= {getattr(types, f"{u}int{bits}"): np.dtype(f"{u}int{bits}") for u in ("", "u") for bits in (8, 16, 32, 64)}
FLOATS = [types.float32, types.float64]
INTEGERS = [dtype for dtype in NUMPY if dtype not in FLOATS]
WIDTHS = [1, 2, 8, 16, 64]


SCOPE = {name: value for name, value in vars(simd).items() if not name.startswith("_")}
SCOPE |= {str(dtype): dtype for dtype in NUMPY}


# --- expressions and what they mean -----------------------------------------------------------------------------------


def rounded(exact, dtype):
    """The number of `dtype` nearest to a Fraction, ties to even, overflow to infinity."""
    try:
        near = np.float64(float(exact))
    except OverflowError:
        return dtype.type(np.inf if exact > 0 else -np.inf)
    if dtype == np.float64 or Fraction(float(near)) == exact:
        return dtype.type(near)
    # inexact: of the two neighbours the one with an odd last bit rounds further as `exact` itself would
    other = np.nextafter(near, np.inf if Fraction(float(near)) < exact else -np.inf)
    return dtype.type(near if near.view(np.int64) & 1 else other)


def fused(a, b, c):
    """``a * b + c`` rounded once, by rational arithmetic."""
    a, b, c = np.broadcast_arrays(a, b, c)
    result = np.where(np.isfinite(a) & np.isfinite(b) & ~np.isfinite(c), c, a * b + c)
    for k in np.flatnonzero(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)):
        exact = Fraction(float(a[k])) * Fraction(float(b[k])) + Fraction(float(c[k]))
        if exact:  # of zeros the sign is that of NumPy
            result[k] = rounded(exact, a.dtype)
    return result


def halves_summed(rows):
    while rows.shape[1] > 1:
        rows = rows[:, : rows.shape[1] // 2] + rows[:, rows.shape[1] // 2 :]
    return rows


# a, b, c: operands; s: shifts; d: without NaN; three: a scalar of the type of the lanes
VALUES = {
    "a": lambda a, **_: a,
    "a + b": lambda a, b, **_: a + b,
    "a - b": lambda a, b, **_: a - b,
    "a * b": lambda a, b, **_: a * b,
    "-a": lambda a, **_: -a,
    "a + three": lambda a, three, **_: a + three,
    "three - a": lambda a, three, **_: three - a,
    "minimum(a, b)": lambda a, b, **_: np.where(a < b, a, b),
    "maximum(a, b)": lambda a, b, **_: np.where(a > b, a, b),
    "minimum(three, a)": lambda a, three, **_: np.where(three < a, three, a),
    "maximum(a, three)": lambda a, three, **_: np.where(a > three, a, three),
    "absolute(a)": lambda a, **_: np.absolute(a),
    "select(a < b, b, c)": lambda a, b, c, **_: np.where(a < b, b, c),
    "select(a < b, three, c)": lambda a, b, c, three, **_: np.where(a < b, three, c),
    "select(a < b, c, three)": lambda a, b, c, three, **_: np.where(a < b, c, three),
    "full(three, kind)": lambda a, three, **_: np.full_like(a, three),
    "full(3, kind)": lambda a, **_: np.full_like(a, 3),
    "full_like(three, a)": lambda a, three, **_: np.full_like(a, three),
}
FLOAT_VALUES = {
    "a / b": lambda a, b, **_: a / b,
    "three / a": lambda a, three, **_: three / a,
    "fma(a, b, c)": lambda a, b, c, **_: fused(a, b, c),
    "fma(a, three, c)": lambda a, c, three, **_: fused(a, three, c),
    "rint(a)": lambda a, **_: np.rint(a),
    "floor(a)": lambda a, **_: np.floor(a),
    "trunc(a)": lambda a, **_: np.trunc(a),
}
INTEGER_VALUES = {
    "a & b": lambda a, b, **_: a & b,
    "a | b": lambda a, b, **_: a | b,
    "a ^ b": lambda a, b, **_: a ^ b,
    "~a": lambda a, **_: ~a,
    "a << s": lambda a, s, **_: a << s,
    "a >> s": lambda a, s, **_: a >> s,
    "a >> three": lambda a, three, **_: a >> three,
}
MASKS = {
    "a < b": lambda a, b, **_: a < b,
    "a <= b": lambda a, b, **_: a <= b,
    "a > b": lambda a, b, **_: a > b,
    "a >= b": lambda a, b, **_: a >= b,
    "a == b": lambda a, b, **_: a == b,
    "a != b": lambda a, b, **_: a != b,
    "a < three": lambda a, three, **_: a < three,
    "three <= a": lambda a, three, **_: three <= a,
    "(a < b) & (b < c)": lambda a, b, c, **_: (a < b) & (b < c),
    "(a < b) | (b < c)": lambda a, b, c, **_: (a < b) | (b < c),
    "(a < b) ^ (b < c)": lambda a, b, c, **_: (a < b) ^ (b < c),
    "(a < b) ^ True": lambda a, b, **_: ~(a < b),
    "~(a < b)": lambda a, b, **_: ~(a < b),
}
FLOAT_MASKS = {
    "is_nan(a)": lambda a, **_: np.isnan(a),
    "either_nan(a, b)": lambda a, b, **_: np.isnan(a) | np.isnan(b),
}
# from here on, a row of each array is one Vec
SCALARS = {
    "select(any_lane(a < b), three, zero)": lambda a, b, three, **_: np.where((a < b).any(1), three, three * 0),
    "reduce_min(d)": lambda d, **_: d.min(1),
    "reduce_max(d)": lambda d, **_: d.max(1),
    "reduce_sum(d)": lambda d, **_: halves_summed(d),
}
CHOSEN = {"select(any_lane(a < b), a, b)": lambda a, b, **_: np.where((a < b).any(1, keepdims=True), a, b)}
HALVES = {
    "lower(a)": lambda a, **_: a[:, : a.shape[1] // 2],
    "upper(a)": lambda a, **_: a[:, a.shape[1] // 2 :],
    "even(a)": lambda a, **_: a[:, ::2],
    "odd(a)": lambda a, **_: a[:, 1::2],
}
REORDERED = {"reverse(a)": lambda a, **_: a[:, ::-1]}
DOUBLED = {
    "join(a, b)": lambda a, b, **_: np.concatenate([a, b], 1),
    "interleave(a, b)": lambda a, b, **_: np.stack([a, b], 2),
}


def table(kind):
    """(expression, what it means, where its result for the lanes from i on belongs) for every operation of a type."""
    is_vec, n, floating = isinstance(kind, Vec), simd._width(kind), simd.is_float(kind)
    values = VALUES | (FLOAT_VALUES if floating else INTEGER_VALUES)
    masks = MASKS | (FLOAT_MASKS if floating else {})

    def by_row(meaning):
        return lambda three, **arrays: meaning(three=three, **{k: v.reshape(-1, n) for k, v in arrays.items()})

    rows = [(expression, values[expression], "i") for expression in values]
    rows += [(f"select({expression}, three, zero)", as_values(masks[expression]), "i") for expression in masks]
    for section, where, exists in [
        (SCALARS, f"i // {n}", True),
        (CHOSEN, "i", True),
        (HALVES, "i // 2", n > 1),
        (REORDERED, "i", is_vec),
        (DOUBLED, "2 * i", is_vec),
    ]:
        rows += [(expression, by_row(meaning), where) for expression, meaning in section.items() if exists]
    return rows


def as_values(mask):
    return lambda three, **operands: np.where(mask(three=three, **operands), three, three * 0)


# --- compiling and running --------------------------------------------------------------------------------------------


def compiled(body, names, **scope):
    """Compile a kernel of integers from the lines of its body."""
    lines = [f"def kernel({', '.join(names)}):", *(f"    {line}" for line in body)]
    namespace = SCOPE | scope
    exec("\n".join(lines), namespace)
    return cfunc(types.void(*[types.intp] * len(names)), **OPTIONS)(namespace["kernel"])


def operands(dtype):
    """Special values against each other in 1024 places, then 1024 random ones; the last of three operands cancels."""
    rng, dtype = np.random.default_rng(3), NUMPY[dtype]
    if dtype.kind == "f":
        info = np.finfo(dtype)
        half = 2.0 ** (info.nmant - 1) + 0.5  # the largest numbers with a fraction
        positive = [
            0,
            0.5,
            1.5,
            2.5,
            1,
            3.7,
            info.eps,
            half,
            info.smallest_subnormal,
            info.tiny,
            info.max,
            np.inf,
            2.0**31,
        ]
        values = np.array(
            [np.nan, -np.nan, *positive, *(-v for v in positive), np.nextafter(dtype.type(0.5), 0), 3, -3, 7], dtype
        )
        random = np.ldexp(rng.standard_normal((3, 1024)), rng.integers(-8, 9, (3, 1024))).astype(dtype)
        random[2] = -(random[0] * random[1])
        shifts = np.zeros(2048, dtype)
    else:
        info = np.iinfo(dtype)
        values = [
            info.min,
            info.min + 1,
            info.max - 1,
            info.max,
            0,
            1,
            2,
            3,
            info.max // 2,
            info.max // 2 + 1,
            info.min // 2,
        ]
        random = rng.integers(info.min, info.max, (3, 1024), dtype, endpoint=True)
        values = np.concatenate([np.array(values, dtype), random[0, : 32 - len(values)]])
        shifts = rng.integers(0, info.bits, 2048).astype(dtype)
    pairs = np.stack([np.repeat(values, 32), np.tile(values, 32), rng.permutation(np.repeat(values, 32))])
    a, b, c = np.concatenate([pairs, random], 1)
    return {"a": a, "b": b, "c": c, "s": shifts, "d": np.where(c != c, dtype.type(5), c)}


def run(kind, rows, arrays, dtypes=None):
    """Evaluate the expressions of `rows`; each result has room for twice as many elements as an operand."""
    dtype = simd._lanes(kind)
    size = len(arrays["a"])
    dtypes = dtypes or [dtype] * len(rows)
    out = [np.zeros(2 * size, NUMPY[dtype]) for dtype in dtypes]
    addresses = np.array([array.ctypes.data for array in [*arrays.values(), *out]])
    body = ["where = pointer(addresses, int64)"]
    body += [f"p_{name} = pointer(where[{k}], dtype)" for k, name in enumerate(arrays)]
    body += [f"for i in range(0, {size}, {simd._width(kind)}):"]
    body += [f"    {name} = load(p_{name}, i, kind)" for name in arrays]
    body += ["    three, zero = constant(3, a), constant(0, a)"]
    for k, ((expression, _, position), target) in enumerate(zip(rows, dtypes, strict=True), len(arrays)):
        body += [f"    store(pointer(where[{k}], {target}), {position}, {expression})"]
    compiled(body, ["addresses"], dtype=dtype, kind=kind).ctypes(addresses.ctypes.data)
    return out


def bits(array):
    """The bits, with one NaN for all."""
    array = np.ascontiguousarray(array).ravel()
    return np.where(array != array, np.nan, array).astype(array.dtype).view(f"u{array.itemsize}")


def check(kind):
    """Compare every operation; return the bytes of the results."""
    rows, arrays = table(kind), operands(simd._lanes(kind))
    three = arrays["a"].dtype.type(3)
    results, wrong = [], {}
    for (expression, meaning, _), result in zip(rows, run(kind, rows, arrays), strict=True):
        with np.errstate(all="ignore"):
            expected = bits(meaning(**arrays, three=three))
        actual = bits(result)[: expected.size]
        if not np.array_equal(actual, expected):
            wrong[expression] = np.flatnonzero(actual != expected)
        results.append(actual.tobytes())
    assert wrong == {}
    return b"".join(results)


def kinds(dtypes, widths=WIDTHS):
    return [kind for dtype in dtypes for kind in (dtype, *(Vec(dtype, n) for n in widths))]


@pytest.mark.parametrize("kind", kinds(NUMPY), ids=str)
def test_operations(kind):
    check(kind)
