"""Kernels compute what Numba's own compiler makes of the same Python source, and branch as Python does."""

import ctypes
import itertools
import operator

import numba
import numpy as np
import pytest
from numba import types

from fastq.engine import jit
from fastq.engine import simd as v
from fastq.engine.jit.library import emit_module

KINDS = types.int8, types.uint8, types.int32, types.uint32, types.int64, types.uint64, types.float32, types.float64
VALUES = {
    "int": [0, 1, 2, 3, 7, 100, 127, -1, -2, -3, -7, -100, -128],
    "uint": [0, 1, 2, 3, 7, 100, 127, 128, 200, 255],
    "float": [0.0, -0.0, 1.5, -1.5, 0.1, 100.25, np.inf, -np.inf, np.nan],
}
ON_NUMBERS = operator.add, operator.sub, operator.mul, operator.truediv
ON_INTEGERS = operator.floordiv, operator.mod, operator.and_, operator.or_, operator.xor
COMPARISONS = operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne


def values_of(kind):
    return np.array(VALUES[str(kind).rstrip("0123456789")], str(kind))


def combinations():
    """Yield operators with the types of their operands, which kernels have."""
    for kind in KINDS:
        for other in dict.fromkeys((kind, types.int64 if isinstance(kind, types.Integer) else kind)):
            is_mixed = types.uint64 in (kind, other) and kind != other
            symbols = ON_NUMBERS + ON_INTEGERS * isinstance(kind, types.Integer) + COMPARISONS * (not is_mixed)
            yield from ((symbol, kind, other) for symbol in symbols)


def written(kernel, kind, *operands):
    """Run a function that writes ``out[0]`` for each tuple of operands; return what it wrote."""
    pointers = [types.CPointer(numba.from_dtype(each.dtype)) for each in operands]
    address = jit.kernel(kernel, types.int64, types.CPointer(kind), types.int64, *pointers)
    out = np.zeros(operands[0].size, str(kind))
    addresses = [each.ctypes.data for each in (out, *operands)]
    words = [ctypes.c_int64] * (2 + len(operands))
    ctypes.CFUNCTYPE(ctypes.c_int64, *words)(address)(addresses[0], out.size, *addresses[1:])
    return out


@pytest.mark.slow(
    "each operator of each pair of types compiles twice",
    quick=lambda symbol, kind, other: (symbol.__name__, str(kind)) in {("floordiv", "int32"), ("lt", "uint8")},
)
@pytest.mark.parametrize(("symbol", "kind", "other"), [*combinations()])
def test_operators_are_those_of_numba(symbol, kind, other):
    pairs = np.array([*itertools.product(range(values_of(kind).size), range(values_of(other).size))])
    a, b = values_of(kind)[pairs[:, 0]], values_of(other)[pairs[:, 1]]

    @numba.njit(error_model="numpy")
    def numbas(a, b):
        return symbol(a, b)

    if symbol is operator.truediv and isinstance(kind, types.Integer):
        a, b = a[b != 0], b[b != 0]
    expected = [numbas(*each) for each in zip(a, b, strict=True)]
    kind_of_result = numbas.nopython_signatures[0].return_type
    result = types.uint8 if kind_of_result == types.boolean else kind_of_result

    def kernel(out, n, a, b):
        for k in range(n):
            out[k] = symbol(a[k], b[k])
        return 0

    assert written(kernel, result, a, b).tobytes() == np.array(expected, str(result)).tobytes()


def branches(x, n):
    total = 0
    for k in range(n):
        if (k % 3 == 0 and x > 2) or not k < 5:
            continue
        if x < 0:
            return -k - 1
        total += k if k & 1 else 10 * k
        while total > 50 and k != 4:
            total -= x + 7
            if 20 < total <= 30:
                break
    return total


def test_statements_are_those_of_python():
    x = np.repeat(np.arange(-2, 20), 12)
    n = np.tile(np.arange(12), 22)

    def kernel(out, count, x, n):
        for k in range(count):
            out[k] = inner(x[k], n[k])
        return 0

    inner = jit.traced(branches)
    assert written(kernel, types.int64, x, n).tolist() == [branches(*each) for each in zip(x, n, strict=True)]


def test_a_variable_of_a_loop_gets_the_wider_type():
    def kernel(out, count, x):
        for k in range(count):
            number = x[k]
            for _ in range(4):
                number = number * 100
            out[k] = number
        return 0

    x = np.array([1, -3, 100], np.int8)
    assert written(kernel, types.int64, x).tolist() == [10**8, -3 * 10**8, 10**10]


def test_memory_of_a_small_function_is_that_of_its_caller():
    @jit.traced
    def on_the_stack(first):
        memory = v.scratch(2, types.int64)
        memory[0] = first
        return memory

    def kernel(out, count, x):
        for k in range(count):
            a = on_the_stack(x[k])
            b = on_the_stack(-x[k])
            out[k] = a[0] - b[0]
        return 0

    assert written(kernel, types.int64, np.array([1, 20, 300])).tolist() == [2, 40, 600]


def other_lengths(out, n, x):
    return (x[0] if n else (1, 2))[0]


def other_constants(out, n, x):
    return x[0] if n else "text"


def other_types(out, n, x):
    return 2.5 if n else 1


def pointer_as_condition(out, n, x):
    if x:
        return 1
    return 2


def changes_its_form(out, n, x):
    pair = n, n
    for _ in range(n):
        pair = n, n, n
    return pair[0]


def steps(out, n, x):
    total = 0
    for k in range(0, 10, n):
        total += k
    return total


def of_unsigned(out, n, x):
    total = 0
    for k in range(v.convert(n, types.uint64)):
        total += k
    return total


def changes_its_constant(out, n, x):
    what = None
    for _ in range(n):
        what = "text"
    return 1 if what is None else 2


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda out, n, x: x, "is no int64"),
        (lambda out, n, x: x.missing, "no attribute"),
        (lambda out, n, x: n[0], "no pointer"),
        (lambda out, n, x: x[1.5], "no index"),
        (lambda out, n, x: sum(range(n)), "at run time only"),
        (lambda out, n, x: x + x, "add of"),
        (lambda out, n, x: print, "no value"),
        (lambda out, n, x: v.rint(x), "rint is not for"),
        (other_lengths, "tuples of different lengths"),
        (other_constants, "different constants"),
        (other_types, "a variable of"),
        (pointer_as_condition, "no condition"),
        (changes_its_form, "changes its form"),
        (changes_its_constant, "changes in a loop"),
        (steps, "a step that is no constant"),
        (of_unsigned, "a range of uint64"),
    ],
)
def test_what_cannot_be_compiled_says_why(function, said):
    pointer = types.CPointer(types.int64)
    with pytest.raises(jit.UntraceableError, match=said):
        jit.kernel(function, types.int64, pointer, types.int64, pointer)


def test_statements_are_read_in_a_file():
    names = {"__name__": "typed"}
    exec("def kernel(n):\n    return 1 if n else 2\ndef plain(n):\n    return n", names)
    jit.kernel(names["plain"], types.int64, types.int64)
    with pytest.raises(jit.UntraceableError, match="source is in no file"):
        jit.kernel(names["kernel"], types.int64, types.int64)


def test_instructions_exist_in_compiled_code_only():
    with pytest.raises(NotImplementedError, match="in compiled code only"):
        v.rint(1.5)


# --- one decorator ----------------------------------------------------------------------------------------------------


class Settings(jit.Constants):
    def __init__(self, doubles):
        self.doubles, self.kind = doubles, types.float32
        super().__init__(f"Settings({doubles})")


def width_of(kind):
    return kind.bitwidth


@jit.traced
def half(x, y=2.0):
    return v.rint(x / y)


@jit.traced
def perhaps_doubled(settings, x, *more):
    """Choose by types, call what is traced, and what is not traced with types."""
    assert width_of(x) == 64
    assert isinstance(x, types.Float)
    assert [width_of(kind) for kind in (x, *more)] == [64, 64]
    return half(x, y=0.5) if settings.doubles and settings.kind == types.float32 else x


@pytest.mark.parametrize("doubles", [False, True])
def test_functions_branch_on_types(doubles):
    settings = Settings(doubles)

    @jit.instruction(lambda: settings())
    def of_settings(context, builder, sig):
        return context.get_constant_null(sig.return_type)

    def kernel(out, n, x):
        for k in range(n):
            chosen = of_settings()
            out[k] = perhaps_doubled(chosen, x[k], x[k]) + (1 if chosen.doubles else 0)
        return 0

    x = np.array([7.0, -1.5])
    assert written(kernel, types.float64, x).tolist() == ([15.0, -2.0] if doubles else [7.0, -1.5])


def test_literals_where_types_alone_do_not_do():
    @jit.traced
    def registers(count):
        return count if v.literal(count) > 3 else 3

    @jit.traced
    def through(count):
        return registers(count)

    def kernel(out, n, x):
        out[0] = through(3) * 10 + through(4)
        return 0

    assert written(kernel, types.int64, np.zeros(1, np.int64)).tolist() == [34]


def test_a_constant_bool_is_decided_while_code_is_emitted():
    @jit.traced
    def halved_or_doubled(x, halves):
        return x / 2.0 if halves else x * 2.0

    def kernel(out, n, x):
        out[0] = halved_or_doubled(x[0], True) + halved_or_doubled(x[0], halves=False)
        return 0

    pointer = types.CPointer(types.float64)
    code = str(emit_module(kernel, types.int64, (pointer, types.int64, pointer)))
    assert [code.count(each) for each in (" = fdiv ", " = fmul ", " = select ", "br i1")] == [1, 1, 0, 0]
    assert written(kernel, types.float64, np.array([3.0])).tolist() == [7.5]


def test_loops_over_ranges_are_loops_and_those_over_tuples_are_unrolled():
    def ranged(out, n, x):
        for _ in range(500):
            out[0] = out[0] + x[0]
        return 0

    def unrolled(out, n, x):
        for _ in v.unrolled(500):
            out[0] = out[0] + x[0]
        return 0

    sizes = []
    for kernel in (ranged, unrolled):
        pointer = types.CPointer(types.int64)
        sizes.append(str(emit_module(kernel, types.int64, (pointer, types.int64, pointer))).count(" = add "))
        assert written(kernel, types.int64, np.array([3])).tolist() == [1500]
    assert sizes == [2, 500]  # the sum, and the number of the turn


def test_large_functions_are_functions_of_their_own():
    @jit.traced
    def large(x):
        for _ in v.unrolled(200):
            x = v.rint(x + 0.5)
        return x, x

    def kernel(out, n, x):
        first, second = large(x[0]), large(x[0])
        out[0] = first[0] + second[1]
        return 0

    expected = 0.0
    for _ in range(200):
        expected = float(np.rint(expected + 0.5))
    assert written(kernel, types.float64, np.zeros(1)).tolist() == [2 * expected]


def test_a_function_without_a_source_may_branch_on_types_only():
    pointer = types.CPointer(types.int64)
    branches_on_a_value = jit.traced(lambda x: 1 if x else 2)
    with pytest.raises(jit.UntraceableError, match="<lambda>: RunTimeChoiceError"):
        jit.kernel(lambda out, n, x: branches_on_a_value(n), types.int64, pointer, types.int64, pointer)
