"""The vector type lane by lane against NumPy.

Each table below has expressions as compiled code writes them and what they mean in NumPy. A table is compiled once for
a type of lanes, a scalar type included, so a Vec and a scalar are held to the same results.
"""

import hashlib
import linecache
import os
import subprocess
import sys
import threading
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numba import types
from traced_functions import CFunction

import fastq
from fastq.engine import simd
from fastq.engine.jit import TARGET, UntraceableError
from fastq.engine.simd import Vec, is_float, lane_count, lane_type

NUMPY = {getattr(types, name): np.dtype(name) for name in ("float32", "float64")}
NUMPY |= {getattr(types, f"{u}int{bits}"): np.dtype(f"{u}int{bits}") for u in ("", "u") for bits in (8, 16, 32, 64)}
FLOATS = [types.float32, types.float64]
INTEGERS = [dtype for dtype in NUMPY if dtype not in FLOATS]

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


def by_halves(combine, rows):
    """Each row as one element, halves combined until one is left: the order decides roundings and the sign of zero."""
    while rows.shape[1] > 1:
        rows = combine(*np.split(rows, 2, 1))
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
    "sqrt(a)": lambda a, **_: np.sqrt(a),
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
    "reduce_min(d)": lambda d, **_: by_halves(lambda low, high: np.where(low < high, low, high), d),
    "reduce_max(d)": lambda d, **_: by_halves(lambda low, high: np.where(low > high, low, high), d),
}
CHOSEN = {
    "select(any_lane(a < b), a, b)": lambda a, b, **_: np.where((a < b).any(1, keepdims=True), a, b),
    "select(any_lane(a < b), a, three)": lambda a, b, three, **_: np.where((a < b).any(1, keepdims=True), a, three),
    "select(any_lane(a < b), three, a)": lambda a, b, three, **_: np.where((a < b).any(1, keepdims=True), three, a),
}
HALVES = {
    "lower(a)": lambda a, **_: a[:, : a.shape[1] // 2],
    "upper(a)": lambda a, **_: a[:, a.shape[1] // 2 :],
    "even(a)": lambda a, **_: a[:, ::2],
    "odd(a)": lambda a, **_: a[:, 1::2],
}
DOUBLED = {
    "join(a, b)": lambda a, b, **_: np.concatenate([a, b], 1),
}


def table(kind):
    """(expression, what it means, where its result for the lanes from i on belongs) for every operation of a type."""
    is_vec, n, floating = isinstance(kind, Vec), lane_count(kind), is_float(kind)
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
    source = "\n".join(lines)
    file = f"<kernel {hashlib.sha256(source.encode()).hexdigest()}>"
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file  # where loops are read
    namespace = SCOPE | scope
    exec(compile(source, file, "exec"), namespace)
    return CFunction(namespace["kernel"], *[types.intp] * len(names))


def operands(dtype):
    """Special values against each other in 1024 places, then 1024 random ones; the last of three operands cancels."""
    rng, dtype = np.random.default_rng(3), NUMPY[dtype]
    if dtype.kind == "f":
        info = np.finfo(dtype)
        half = 2.0 ** (info.nmant - 1) + 0.5  # the largest numbers with a fraction
        positive = [0.0, 0.5, 1, 1.5, 2.5, 3.7, half, 2.0**31]
        positive += [info.eps, info.tiny, info.smallest_subnormal, info.max, np.inf]
        others = [np.nan, -np.nan, np.nextafter(dtype.type(0.5), 0), 3, -3, 7]
        values = np.array([*positive, *(-x for x in positive), *others], dtype)
        random = np.ldexp(rng.standard_normal((3, 1024)), rng.integers(-8, 9, (3, 1024))).astype(dtype)
        random[2] = -(random[0] * random[1])
        shifts = np.zeros(2048, dtype)
    else:
        info = np.iinfo(dtype)
        ends = [info.min, info.min + 1, info.min // 2, info.max // 2, info.max // 2 + 1, info.max - 1, info.max]
        random = rng.integers(info.min, info.max, (3, 1024), dtype, endpoint=True)
        values = np.concatenate([np.array([*ends, 0, 1, 2, 3], dtype), random[0, :21]])
        shifts = rng.integers(0, info.bits, 2048).astype(dtype)
    pairs = np.stack([np.repeat(values, 32), np.tile(values, 32), rng.permutation(np.repeat(values, 32))])
    a, b, c = np.concatenate([pairs, random], 1)
    numbers = np.where(c != c, dtype.type(5), c)
    numbers[:4] = 0.0, -0.0, -0.0, 0.0
    return {"a": a, "b": b, "c": c, "s": shifts, "d": numbers}


def run(kind, rows, arrays, dtypes=None):
    """Evaluate the expressions of `rows`; each result has room for twice as many elements as an operand."""
    dtype = lane_type(kind)
    size = len(arrays["a"])
    dtypes = dtypes or [dtype] * len(rows)
    out = [np.zeros(2 * size, NUMPY[dtype]) for dtype in dtypes]
    addresses = np.array([array.ctypes.data for array in [*arrays.values(), *out]])
    body = ["where = pointer(addresses, int64)"]
    body += [f"p_{name} = pointer(where[{k}], dtype)" for k, name in enumerate(arrays)]
    body += [f"for i in range(0, {size}, {lane_count(kind)}):"]
    body += [f"    {name} = load(p_{name}, i, kind)" for name in arrays]
    body += ["    three, zero = constant(3, a), constant(0, a)"]
    for k, ((expression, _, position), target) in enumerate(zip(rows, dtypes, strict=True), len(arrays)):
        body += [f"    store(pointer(where[{k}], {target}), {position}, {expression})"]
    compiled(body, ["addresses"], dtype=dtype, kind=kind)(addresses.ctypes.data)
    return out


def bits(array):
    """The bits, those of one NaN for all."""
    array = np.array(array).ravel()
    if array.dtype.kind == "f":
        array[np.isnan(array)] = np.nan
    return array.view(f"u{array.itemsize}")


def compare_operations(kind):
    """Where each operation that differs from NumPy's does so, and the results."""
    rows, arrays = table(kind), operands(lane_type(kind))
    three = arrays["a"].dtype.type(3)
    with np.errstate(all="ignore"):
        expected = [meaning(**arrays, three=three) for _, meaning, _ in rows]
    return compared(rows, run(kind, rows, arrays), expected)


def compared(rows, results, expected):
    wrong, actual = {}, []
    for (expression, *_), result, wanted in zip(rows, results, expected, strict=True):
        actual.append(bits(result)[: wanted.size])
        if (differing := np.flatnonzero(actual[-1] != bits(wanted))).size:
            wrong[expression] = differing
    return wrong, b"".join(result.tobytes() for result in actual)


# each of the wider integers with some numbers of lanes only, since a table takes a second to compile
WIDTHS = {dtype: [1, 2, 8, 16, 64] for dtype in (*FLOATS, types.int8)}
WIDTHS |= {types.int16: [64], types.int32: [1, 16], types.int64: [8]}
WIDTHS |= {types.uint8: [16], types.uint16: [2], types.uint32: [64], types.uint64: [8]}
KINDS = [kind for dtype in NUMPY for kind in (dtype, *(Vec(dtype, n) for n in WIDTHS[dtype]))]


@pytest.mark.slow(
    "compiles every operation for each type", quick=lambda kind: kind in (types.float32, Vec(types.float32, 16))
)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_operations(kind):
    assert compare_operations(kind)[0] == {}


@pytest.mark.parametrize("kind", [Vec(dtype, n) for dtype in FLOATS for n in (2, 16)], ids=str)
def test_reductions_with_nan_give_one_of_the_lanes(kind):
    arrays = operands(kind.dtype)
    rows = [(f"reduce_{which}(a)", None, f"i // {kind.n}") for which in ("min", "max")]
    nan_rows = np.isnan(arrays["a"].reshape(-1, kind.n)).any(1)
    assert nan_rows.any()
    for result in run(kind, rows, arrays):
        one, lanes = result[: nan_rows.size, None], arrays["a"].reshape(-1, kind.n)
        assert ((one == lanes) | (np.isnan(one) & np.isnan(lanes))).any(1).all()


def test_the_comparison_finds_a_wrong_operation(monkeypatch):
    # for equal operands minimum gives b, which matters where they are zeros of both signs
    monkeypatch.setitem(VALUES, "minimum(a, b)", lambda a, b, **_: np.where(a <= b, a, b))
    monkeypatch.setitem(MASKS, "a < b", lambda a, b, **_: ~(a >= b))
    monkeypatch.setitem(DOUBLED, "join(a, b)", lambda a, b, **_: np.concatenate([b, a], 1))
    monkeypatch.setitem(FLOAT_VALUES, "fma(a, b, c)", lambda a, b, c, **_: a * b + c)
    wrong, _ = compare_operations(Vec(types.float32, 2))
    assert wrong.keys() == {"minimum(a, b)", "select(a < b, three, zero)", "join(a, b)", "fma(a, b, c)"}


# --- conversion -------------------------------------------------------------------------------------------------------


def compare_conversions(kind):
    """`convert` to every type that the lanes may become, and of a mask to every type; as `compare_operations`."""
    source = lane_type(kind)
    arrays = operands(source)
    values = {"a": arrays["a"], "a < b": arrays["a"] < arrays["b"]}
    pairs = [("a", target) for target in NUMPY if source in INTEGERS or target in FLOATS]
    pairs += [("a < b", target) for target in NUMPY]
    rows = [(f"convert({value}, {target})", None, "i") for value, target in pairs]
    with np.errstate(all="ignore"):
        expected = [values[value].astype(NUMPY[target]) for value, target in pairs]
    return compared(rows, run(kind, rows, arrays, [target for _, target in pairs]), expected)


@pytest.mark.slow("compiles every conversion for each type", quick=lambda kind: kind == Vec(types.float32, 16))
@pytest.mark.parametrize("kind", [k for dtype in NUMPY for k in (dtype, Vec(dtype, 1), Vec(dtype, 16))], ids=str)
def test_conversions(kind):
    assert compare_conversions(kind)[0] == {}


def limits(source, target):
    """The numbers of `source` closest to the limits of the integer `target`, within them."""
    dtype, info = NUMPY[source], np.iinfo(NUMPY[target])
    highest = dtype.type(info.max)
    return dtype.type(info.min), highest if int(highest) <= info.max else np.nextafter(highest, dtype.type(0))


def compare_integers(kind):
    """`bounded_to_integer` to every integer type, whole range and narrower, and `round_to_int32`; as above."""
    source = lane_type(kind)
    arrays = operands(source)
    x = arrays["a"]
    x[1024:] *= np.exp2(np.arange(1024) % 64).astype(x.dtype)
    ends = np.array([limits(source, target) for target in INTEGERS]).ravel()
    near = np.concatenate([ends, np.nextafter(ends, -np.inf), np.nextafter(ends, np.inf)], dtype=x.dtype)
    x[1024 : 1024 + near.size] = near
    rows, expected = [], []
    for k, target in enumerate(INTEGERS):
        low, high = limits(source, target)
        least, most = x.dtype.type(-100 if target.signed else 0), x.dtype.type(101)
        arrays[f"x{k}"] = np.where(np.isnan(x), low, np.clip(x, low, high))
        narrow = f"minimum(maximum(a, constant({least}, a)), constant({most}, a))"
        rows += [
            (f"bounded_to_integer(x{k}, {target})", None, "i"),
            (f"bounded_to_integer({narrow}, {target})", None, "i"),
        ]
        clamped = [arrays[f"x{k}"], np.where(np.isnan(x), least, np.clip(x, least, most))]
        expected += [np.trunc(values).astype(NUMPY[target]) for values in clamped]
    whole = INTEGERS.index(types.int32)
    rows.append((f"round_to_int32(x{whole})", None, "i"))
    expected.append(np.rint(arrays[f"x{whole}"]).astype(np.int32))
    return compared(rows, run(kind, rows, arrays, [*np.repeat(INTEGERS, 2), types.int32]), expected)


@pytest.mark.slow(
    "compiles every saturating conversion for each type", quick=lambda kind: kind == Vec(types.float32, 8)
)
@pytest.mark.parametrize("kind", [k for dtype in FLOATS for k in (dtype, Vec(dtype, 8), Vec(dtype, 64))], ids=str)
def test_conversions_to_integers(kind):
    assert compare_integers(kind)[0] == {}


# --- memory -----------------------------------------------------------------------------------------------------------


def aligned(dtype, n, offset=0):
    """Zeros that start `offset` bytes after a multiple of 4096."""
    buffer = np.zeros(n * dtype.itemsize + 8192, np.uint8)
    start = -buffer.ctypes.data % 4096 + offset
    return buffer[start : start + n * dtype.itemsize].view(dtype)


MEMORY = [*FLOATS, types.int8, types.uint16, types.int64, Vec(types.float32, 1), Vec(types.float64, 64)]
MEMORY += [Vec(types.int64, 8), Vec(types.float32, 16), Vec(types.uint16, 2), Vec(types.int8, 64)]


@pytest.mark.parametrize("kind", MEMORY, ids=str)
def test_memory(kind):
    dtype, n = lane_type(kind), lane_count(kind)
    kernel = compiled(
        [
            "source, out, places = pointer(a, dtype), pointer(b, dtype), pointer(c, int64)",
            "store(out, n, load(source, 3, kind))",  # neither is aligned to the Vec
            "store(advance(out, 4 * n), -n, load(advance(source, 5), -1, kind))",
            "stream(advance(out, 4 * n), n, load(source, 0, kind))",
            "stream_granules(advance(out, 4 * n), 3 * n, load(source, 1, kind))",
            "fence()",
            "for i in range(-1, 2 * n + 2):",
            "    store(places, i + 1, misalignment(out, i, kind))",
            "store(places, 2 * n + 3, address_of(advance(out, -3)))",
            "store(places, 2 * n + 4, count(kind))",
            "prefetch(out, -(1 << 40))",
            "prefetch(pointer(0, dtype), 0)",
        ],
        ["a", "b", "c"],
        dtype=dtype,
        kind=kind,
        n=n,
    )
    itemsize = NUMPY[dtype].itemsize
    for offset in (0, 1, itemsize):  # operands that are only read: streamed ones must be aligned
        source, out, places = (
            aligned(NUMPY[dtype], 2 * n + 8, offset),
            aligned(NUMPY[dtype], 8 * n),
            np.zeros(2 * n + 5, int),
        )
        source[:] = np.arange(1, len(source) + 1)
        kernel(*(array.ctypes.data for array in (source, out, places)))
        rows = np.zeros((8, n), out.dtype)
        rows[1], rows[3], rows[5], rows[7] = (source[k : n + k] for k in (3, 4, 0, 1))
        np.testing.assert_array_equal(out, rows.ravel())
        np.testing.assert_array_equal(places[: 2 * n + 3], np.arange(-1, 2 * n + 2) % n)
        np.testing.assert_array_equal(places[2 * n + 3 :], [out.ctypes.data - 3 * itemsize, n])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize(
    "kind", [Vec(types.uint8, 16), Vec(types.uint16, 4), Vec(types.float32, 16), Vec(types.int64, 8)]
)
def test_columns_of_rows_one_after_the_other(kind, count):
    """Columns are stored as rows, with a gap."""
    dtype, n = lane_type(kind), lane_count(kind)
    step = "store_rows(pointer(b, dtype), step, load_columns(pointer(a, dtype), kind, count))"
    itemsize = NUMPY[dtype].itemsize
    kernel = compiled([step], ["a", "b"], dtype=dtype, kind=kind, count=count, step=(n + 1) * itemsize)
    source, out = aligned(NUMPY[dtype], n * count, itemsize), aligned(NUMPY[dtype], (n + 1) * count)
    source[:], out[:] = np.arange(1, n * count + 1), 0
    kernel(source.ctypes.data, out.ctypes.data)
    expected = np.zeros((count, n + 1), out.dtype)
    expected[:, :n] = source.reshape(n, count).T
    np.testing.assert_array_equal(out, expected.ravel())


@pytest.mark.parametrize(("name", "alignment"), [("stream", 64), ("stream_granules", 16)])
@pytest.mark.parametrize("kind", [types.float64, Vec(types.float32, 16), Vec(types.float32, 64)], ids=str)
def test_streaming_bypasses_the_cache_and_trusts_the_alignment(kind, name, alignment):
    body = [f"{name}(pointer(a, dtype), 0, load(pointer(a, dtype), 64, kind))"]
    text = compiled(body, ["a"], dtype=lane_type(kind), kind=kind).llvm
    (line,) = [line for line in text.splitlines() if "!nontemporal" in line]
    assert f"align {min(alignment, lane_count(kind) * lane_type(kind).bitwidth // 8)}," in line


@pytest.mark.parametrize("n", [8, 16, 32, 64])
def test_masks_as_bits_of_an_integer(n):
    word = types.Integer.from_bitwidth(n, signed=False)
    kernel = compiled(
        [
            "x = load(pointer(a, int8), 0, kind)",
            "found = mask_to_bits(x < constant(0, x))",
            "store(pointer(b, word), 0, found)",
        ],
        "ab",
        kind=Vec(types.int8, n),
        word=word,
    )
    x = np.random.default_rng(n).integers(-9, 9, n, np.int8)
    found = np.zeros(n // 8, np.uint8)
    kernel(x.ctypes.data, found.ctypes.data)
    np.testing.assert_array_equal(found, np.packbits(x < 0, bitorder="little"))


@pytest.mark.parametrize(
    "kind", [Vec(types.int8, 64), Vec(types.int16, 8), Vec(types.float32, 16), Vec(types.int64, 4)]
)
def test_lanes_from_a_number_on(kind):
    n, dtype = lane_count(kind), lane_type(kind)
    body = "store(pointer(b, dtype), 0, select(lanes_from(k, load(pointer(a, dtype), 0, kind)), constant(1, x), x))"
    kernel = compiled(
        ["k = load(pointer(a, int64), 0, int64)", "x = full(constant(0, pointer(b, dtype)), kind)", body],
        "ab",
        dtype=dtype,
        kind=kind,
    )
    for k in range(n + 1):
        number, out = np.full(8, k, np.int64), np.zeros(n, NUMPY[dtype])
        kernel(number.ctypes.data, out.ctypes.data)
        np.testing.assert_array_equal(out, np.arange(n) >= k)


@pytest.mark.parametrize("kind", [Vec(types.uint32, 16), Vec(types.int64, 3)])
def test_numbers_of_lanes(kind):
    kernel = compiled(["store(pointer(b, dtype), 0, ramp(kind))"], "ab", dtype=kind.dtype, kind=kind)
    out = np.zeros(kind.n, NUMPY[kind.dtype])
    kernel(0, out.ctypes.data)
    np.testing.assert_array_equal(out, np.arange(kind.n))


def test_lane_types():
    kernel = compiled(
        [
            "out, f32, f64, i8 = pointer(a, int64), pointer(a, float32), pointer(a, float64), pointer(a, int8)",
            "store(out, 0, count(lanes(f32)))",
            "store(out, 1, count(lanes(i8)))",
            "store(out, 2, count(lanes(i8, f64)))",
            "store(out, 3, count(lanes(f64, i8, f32)))",
            "store(out, 4, count(lanes_like(lanes(f32), f64)))",
            "store(out, 5, count(lanes_like(float32, i8)))",
            "store(out, 6, misalignment(f64, 1, lanes_like(float32, f64)))",
            "store(out, 7, convert(convert(300, dtype_of(i8)), int64))",
            "store(out, 8, convert(convert(300, dtype_of(lanes(i8))), int64))",
            "store(out, 9, convert(convert(300, dtype_of(int8)), int64))",
        ],
        ["a"],
    )
    out = np.zeros(10, np.int64)
    kernel(out.ctypes.data)
    assert out.tolist() == [16, 64, 8, 8, 16, 1, 0, 44, 44, 44]


def test_claims_and_bits_of_many_threads_are_all_kept():
    threads, each = 4, 1 << 15
    kernel = compiled(
        [
            "counter, seen, out = pointer(a, int64), pointer(b, int64), pointer(c, int64)",
            f"for i in range({each}):",
            "    store(out, i, fetch_add(counter, 1))",
            "for k in range(15):",
            "    fetch_or(advance(seen, 1), 1 << (15 * d + k))",
        ],
        ["a", "b", "c", "d"],
    )
    counter, seen, out = np.array([5]), np.array([7, 1 << 62]), np.zeros((threads, each), np.int64)
    start = threading.Barrier(threads)

    def work(thread):
        start.wait()
        kernel(counter.ctypes.data, seen.ctypes.data, out[thread].ctypes.data, thread)

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    np.testing.assert_array_equal(np.sort(out.ravel()), np.arange(5, 5 + threads * each))
    assert (np.diff(out) > 0).all()
    assert counter[0] == 5 + threads * each
    assert seen.tolist() == [7, 1 << 62 | (1 << 60) - 1]


# --- what does not compile --------------------------------------------------------------------------------------------

REFUSED = {
    "float to integer": "convert(x8, int32)",
    "scalar float to integer": "convert(load(p, 0, float32), int32)",
    "load of another type": "load(p, 0, int32)",
    "lanes in other numbers": "x8 + x16",
    "lanes of other types": "minimum(x8, convert(x8, float64))",
    "operands of other types": "fma(x8, x8, convert(x8, float64))",
    "half of one lane and another": "join(x8, x16)",
    "half of a scalar": "lower(load(p, 0, float32))",
    "lanes of another type than the pointer's": "load(p, 0, F64X8)",
}


@pytest.mark.parametrize("expression", REFUSED.values(), ids=REFUSED)
def test_refused_when_compiled(expression):
    body = ["p = pointer(a, float32)", "x8, x16 = load(p, 0, F32X8), load(p, 0, F32X16)", f"y = {expression}"]
    scope = {"F32X8": Vec(types.float32, 8), "F32X16": Vec(types.float32, 16), "F64X8": Vec(types.float64, 8)}
    compiled([*body[:2], "y = x8 + x8"], ["a"], **scope)
    with pytest.raises(UntraceableError):
        compiled(body, ["a"], **scope)


def test_called_from_python():
    with pytest.raises(NotImplementedError, match="count exists in compiled code only"):
        simd.count(1.0)


# --- any CPU ----------------------------------------------------------------------------------------------------------


def digest():
    """Digest of the results of some operations, compared with NumPy's on the way."""
    results = [compare_operations(kind) for kind in (types.float32, Vec(types.float32, 16), Vec(types.float64, 2))]
    results += [compare_operations(Vec(types.int8, 64))]
    results += [compare_conversions(kind) for kind in (Vec(types.uint64, 8), Vec(types.float64, 8), types.int64)]
    results += [compare_integers(Vec(types.float32, 64))]
    assert all(wrong == {} for wrong, _ in results)
    return hashlib.sha256(b"".join(result for _, result in results)).hexdigest()


@pytest.mark.slow("compiles most operations for another CPU")
def test_same_results_on_a_cpu_without_extensions():
    own = Path(fastq.__file__).parents[1], Path(__file__).parents[1] / "support"
    path = os.pathsep.join([*map(str, own), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-W", "error", __file__], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["generic", digest()]


if __name__ == "__main__":
    assert "+" not in TARGET.features, TARGET
    print(TARGET.cpu, digest())
