"""The public functions within compiled functions of users give the bytes of the reference, as from Python."""

import inspect
import os
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import catalogue
import numba
import numpy as np
import pytest
from numba import TypingError, types
from subprocesses import run

import fastq
from fastq import reference
from fastq.formats.qtypes import QTYPES
from fastq.formats.requantization import REQUANTIZATIONS
from fastq.ops import numba_overloads

numba_overloads.register_public_functions()  # as the entry point of an installed distribution does

REGISTERED = "import fastq.ops.quantize\nfastq.ops.init()\n"  # for a process that runs from the sources
PROJECT = Path(fastq.__file__).parent.parent / "pyproject.toml"
X = np.concatenate([catalogue.specials(np.float32), catalogue.ties(np.float32, 0.25, 40), [np.float32(np.nan)]])
FINITE = X[np.isfinite(X)]
CONVENTIONS = {  # each with a format of bytes that it has
    name: next((dtype for dtype in ("uint8", "int8") if not row.formats or dtype in row.formats), None)
    for name, row in fastq.CONVENTIONS.items()
}
WITH_BYTES = [name for name, dtype in CONVENTIONS.items() if dtype]


def slow(**quick):
    """Mark cases as slow, each of which compiles its own functions, except for those whose parameters are named."""
    names = {name: {value} if isinstance(value, str) else set(value) for name, value in quick.items()}
    return pytest.mark.slow("each compiles", quick=lambda **case: all(case[name] in names[name] for name in names))


def check_same(actual, expected):
    """Assert that results have the same bytes; codes of float formats are bits in compiled code."""
    expected = np.asarray(expected)
    catalogue.same_bytes(
        np.asarray(actual), expected.view(np.uint8) if expected.dtype.name.startswith("float8") else expected
    )


# --- values -----------------------------------------------------------------------------------------------------------


def check_quantize(x, dtype, scales, zero_points, convention="onnx", nan="raise", saturate=True):
    """Compare codes of an array, and of its elements one by one, with those of the reference."""

    @numba.njit
    def user(x, scale, zero_point):
        codes = fastq.quantize_linear(x, scale, zero_point, dtype, convention=convention, nan=nan, saturate=saturate)
        each = np.empty_like(codes)
        for k in range(x.size):
            each[k] = fastq.quantize_linear(
                x[k], scale, zero_point, dtype, convention=convention, nan=nan, saturate=saturate
            )
        return codes, each

    for scale in scales:
        for zero_point in zero_points:
            expected = reference.quantize_linear(
                x, scale, zero_point, dtype, convention=convention, nan=nan, saturate=saturate
            )
            for codes in user(x, scale, zero_point):
                check_same(codes, expected)


@slow(convention="faiss")
@pytest.mark.parametrize("convention", WITH_BYTES)
def test_quantize_in_every_convention(convention):
    row, dtype = fastq.CONVENTIONS[convention], CONVENTIONS[convention]
    scales = [0.25, 0.1, 3e-39, 1e38] + [-0.1] * row.signed_scale
    zero_points = [QTYPES[dtype].qmin, 3, QTYPES[dtype].qmax] if row.zero_point == "integer" else [-1.5, 0.0, 1e30]
    check_quantize(X, dtype, scales, zero_points, convention, nan="zero")


@slow(source="float64", dtype=["uint16"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("source", catalogue.INPUTS)
def test_quantize_every_dtype_to_every_format(source, dtype):
    kind = np.dtype(source)
    x = catalogue.specials(kind.type) if kind.kind == "f" else catalogue.integers(kind)
    check_quantize(x, dtype, [0.25, 77.7], [0, 5])


@slow(dtype="float8_e5m2", nan="keep", saturate=[True])
@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("nan", ["zero", "keep"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_quantize_to_float8(dtype, nan, saturate):
    check_quantize(X, dtype, [0.25, 0.1], [0], nan=nan, saturate=saturate)


@slow(convention="textbook")
@pytest.mark.parametrize("convention", WITH_BYTES)
def test_dequantize_in_every_convention(convention):
    @numba.njit
    def user(codes, scale, zero_point):
        values = fastq.dequantize_linear(codes, scale, zero_point, convention=convention)
        each, wide = np.empty_like(values), np.empty(codes.shape, np.float64)
        for k in range(codes.size):
            each[k] = fastq.dequantize_linear(codes[k], scale, zero_point, convention=convention)
            wide[k] = fastq.dequantize_linear(codes[k], scale, zero_point, dtype=np.float64, convention=convention)
        return values, each, wide

    row = fastq.CONVENTIONS[convention]
    codes = np.arange(256).astype(np.uint8).view(CONVENTIONS[convention])
    for scale in map(np.float32, (0.1, 1e-45, 3e38)):
        for zero_point in [7] if row.zero_point == "integer" else [7, -1.5]:
            expected = reference.dequantize_linear(codes, scale, zero_point, convention=convention)
            wide = reference.dequantize_linear(codes, scale, zero_point, dtype=np.float64, convention=convention)
            for actual, wanted in zip(user(codes, scale, zero_point), (expected, expected, wide), strict=True):
                check_same(actual, wanted)


RANGES = [
    FINITE,
    FINITE[FINITE > 0],
    np.zeros(3, np.float32),
    np.array([1e-44, -0.0], np.float32),
    np.full(40, 2.5, np.float32),
    np.array([-3.4e38, 3.4e38], np.float32),
    np.array([3.0, np.nan, 5.0], np.float32),
    np.linspace(-1, 1, 257).astype(np.float32),
]


@slow(convention="faiss", symmetric=[False])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("convention", catalogue.ANYWHERE)
def test_fake_quantize_in_every_convention(convention, symmetric):
    row = fastq.CONVENTIONS[convention]
    dtype = row.formats[0] if row.formats else "int8"
    if ("symmetric" if symmetric else "asymmetric") not in row.schemes:
        pytest.skip("the convention has no such scheme")

    @numba.njit
    def user(x):
        return fastq.fake_quantize(x, dtype, symmetric=symmetric, convention=convention, nan="zero")

    for x in [*RANGES, np.float32(3.7), np.float32(-1e-40), np.float32(np.nan)]:
        try:
            expected = reference.fake_quantize(x, dtype, symmetric=symmetric, convention=convention, nan="zero")
        except ValueError:  # where a convention takes the difference of the ends in float32, and that is infinite
            with pytest.raises(ValueError, match="their range has no scale"):
                user(x)
        else:
            check_same(np.asarray(user(x), x.dtype), expected)


@pytest.mark.slow("each compiles")
@pytest.mark.parametrize(("dtype", "bits"), [("int16", None), ("int4", None), ("uint8", 3), ("float8_e4m3fn", None)])
@pytest.mark.parametrize("source", ["float64", "int8", "int64"])
def test_fake_quantize_of_every_width(source, dtype, bits):
    @numba.njit
    def user(x):
        return fastq.fake_quantize(x, dtype, bits=bits)

    for seed in range(3):
        x = catalogue.values(source, 100, seed)
        check_same(user(x), reference.fake_quantize(x, dtype, bits=bits))


# --- arrays and options -----------------------------------------------------------------------------------------------

OWN = fastq.Convention("own", rounding="half_away", quotient="reciprocal")
UINT16 = QTYPES["uint16"]


@numba.njit
def fake(x):
    return fastq.fake_quantize(x, "int8")


@numba.njit
def fake_to(x, out):
    return fastq.fake_quantize(x, "int8", out=out)


@slow(layout="strided")
@pytest.mark.parametrize("layout", ["c", "fortran", "transposed", "strided", "negative", "read_only"])
def test_memory_layouts(layout):
    x = catalogue.LAYOUTS[layout](catalogue.values("float32", 99).reshape(3, 33))
    actual = fake(x)
    assert actual.flags.c_contiguous
    check_same(actual, reference.fake_quantize(x, "int8"))


@slow(shape=[()])
@pytest.mark.parametrize("shape", [(), (1,), (2, 3, 4)])
def test_ranks(shape):
    x = catalogue.values("float32", 24)[: int(np.prod(shape))].reshape(shape)
    check_same(fake(x), fastq.fake_quantize(x, "int8"))


@pytest.mark.slow("compiles a user's functions")
def test_out():
    x = catalogue.values("float32", 1000)
    expected = fastq.fake_quantize(x, "int8")
    out = np.empty_like(x)
    fake_to(x, out)
    check_same(out, expected)
    memory = np.empty(1001, np.float32)
    for begin, end in ((1, 0), (0, 1)):  # shifted by one element: no element is read after it was written
        source, out = memory[begin : begin + 1000], memory[end : end + 1000]
        source[:] = x
        fake_to(source, out)
        check_same(out, expected)
    fake_to(x, x)
    check_same(x, expected)
    wide = np.zeros((1000, 2), np.float32)
    fake_to(x, wide[:, 0])
    check_same(wide[:, 0].copy(), fastq.fake_quantize(x, "int8"))
    assert not wide[:, 1].any()
    with pytest.raises(ValueError, match="out has another shape than the result"):
        fake_to(x, np.empty(3, np.float32))


@pytest.mark.slow("compiles a user's functions")
def test_options_as_globals_and_as_dtypes():
    @numba.njit
    def user(x, scale, zero_point):
        one = fastq.quantize_linear(x, scale, zero_point)
        two = fastq.quantize_linear(x, scale, None, np.int8, convention=OWN)
        return one, two, fastq.quantize_linear(x, scale, zero_point=1, dtype=UINT16)

    scale, zero_point = np.array([0.3], np.float32), np.array(-3, np.int8)
    for x in (np.float32(-7.05), np.float32(7.35), np.float32(1e9)):
        one, two, three = user(x, scale, zero_point)
        assert one == fastq.quantize_linear(x, scale, zero_point)
        assert two == fastq.quantize_linear(x, scale, None, np.int8, convention=OWN)
        assert three == fastq.quantize_linear(x, scale, 1, UINT16)


@numba.njit(fastmath=True)
def with_fast_math(x, scale, codes):
    """Each function with an array, and with its elements one by one."""
    each = np.empty_like(codes)
    values = np.empty_like(x)
    for k in range(x.size):
        each[k] = fastq.quantize_linear(x[k], scale, 3, "int8", nan="zero")
        values[k] = fastq.dequantize_linear(codes[k], scale, 3)
    fastq.quantize_linear(x, scale, 3, "int8", nan="zero", out=codes)
    return each, values, fastq.dequantize_linear(codes, scale, 3), fastq.fake_quantize(x, "int8", nan="zero")


@pytest.mark.parametrize("scale", [0.1, 3e-39, 3e38])
def test_fast_math_changes_nothing(scale):
    """Its flags promise that there is no NaN, no infinity and no zero with a sign, and allow reciprocals."""
    x = np.append(FINITE, np.float32(np.nan))
    start = np.resize(np.arange(-128, 128), x.size).astype(np.int8)
    codes = start.copy()
    each, values, decoded, fake_values = with_fast_math(x, np.float32(scale), codes)
    expected = reference.quantize_linear(x, np.float32(scale), 3, "int8", nan="zero")
    check_same(codes, expected)
    check_same(each, expected)
    check_same(values, reference.dequantize_linear(start, np.float32(scale), 3))
    check_same(decoded, reference.dequantize_linear(expected, np.float32(scale), 3))
    check_same(fake_values, reference.fake_quantize(x, "int8", nan="zero"))


def test_fast_math_hides_no_error():
    for wrong in (0.0, -0.1, np.nan, np.inf):
        with pytest.raises(ValueError, match="scale must be positive and finite"):
            with_fast_math(FINITE, np.float32(wrong), np.zeros(FINITE.size, np.int8))
    with pytest.raises(ValueError, match="x has infinite values"):
        with_fast_math(np.float32([1, -np.inf]), np.float32(1), np.zeros(2, np.int8))


EXTREMES = np.float32([0, -0.0, 1e-45, -1e-40, 0.05, 12.75, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan])


def test_in_generalized_ufuncs():
    """NumPy hears of no flag of the CPU, which it looks at after each ufunc."""

    @numba.guvectorize(["(float32[:],float32,int8[:],float32[:])"], "(n),()->(n),(n)", fastmath=True)
    def user(x, scale, codes, values):
        fastq.quantize_linear(x, scale, 3, "int8", nan="zero", out=codes)
        fastq.dequantize_linear(codes, scale, 3, out=values)

    for scale in np.float32([0.1, 1e-45, 1e-30, 3e38]):
        with np.errstate(all="raise"):
            codes, values = user(np.stack([EXTREMES] * 3), scale)
        expected = reference.quantize_linear(EXTREMES, scale, 3, "int8", nan="zero")
        for row in range(3):
            check_same(codes[row], expected)
            check_same(values[row], reference.dequantize_linear(expected, scale, 3))
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        user(EXTREMES, np.float32(0))


@pytest.mark.slow("compiles a user's functions")
@pytest.mark.parametrize("fastmath", [False, True])
def test_in_ufuncs(fastmath):
    @numba.vectorize(fastmath=fastmath)
    def to_codes(x, scale):
        return fastq.quantize_linear(x, scale, 3, "int8", nan="zero")

    @numba.vectorize(fastmath=fastmath)
    def to_values(codes, scale):
        return fastq.dequantize_linear(codes, scale, 3)

    @numba.vectorize(fastmath=fastmath)
    def fake(x):
        return fastq.fake_quantize(x, "int8", nan="zero")

    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # as the page on compiled code says
        for scale in np.float32([0.1, 1e-45, 1e-30, 3e38]):
            expected = reference.quantize_linear(EXTREMES, scale, 3, "int8", nan="zero")
            check_same(to_codes(EXTREMES, scale), expected)
            check_same(to_values(expected, scale), reference.dequantize_linear(expected, scale, 3))
        finite = EXTREMES[~np.isinf(EXTREMES)]
        check_same(fake(finite), [reference.fake_quantize(x, "int8", nan="zero") for x in finite])


@pytest.mark.slow("compiles a user's functions")
def test_in_parallel():
    @numba.njit(parallel=True)
    def rows(x, scales):
        codes, values = np.empty(x.shape, np.int8), np.empty_like(x)
        for i in numba.prange(x.shape[0]):
            fastq.quantize_linear(x[i], scales[i], 3, "int8", out=codes[i])
            for k in range(x.shape[1]):
                values[i, k] = fastq.dequantize_linear(codes[i, k], scales[i], 3)
        return codes, values

    x = catalogue.values("float32", 64 * 50).reshape(64, 50)
    scales = np.linspace(0.01, 0.1, 64).astype(np.float32)
    codes, values = rows(x, scales)
    expected = fastq.quantize_linear(x, scales, np.full(64, 3, np.int8), axis=0)
    check_same(codes, expected)
    check_same(values, fastq.dequantize_linear(expected, scales, np.full(64, 3, np.int8), axis=0))


# --- errors -----------------------------------------------------------------------------------------------------------


def test_sums_and_scales_of_0_are_decoded():
    @numba.njit
    def user(codes, scale, zero_point):
        return fastq.dequantize_linear(codes, scale, zero_point)

    codes = np.array([2**31 - 1, -(2**31), 16777217, 3], np.int32)
    for scale in (np.float32(0.3), np.float32(0)):
        catalogue.same_bytes(user(codes, scale, 0), reference.dequantize_linear(codes, scale))
    with pytest.raises(ValueError, match="zero_point must be from 0 to 0 for int32"):
        user(codes, np.float32(1), 1)
    with pytest.raises(ValueError, match="scale must be finite and not negative in float32"):
        user(codes, np.float32(-1), 0)


def test_values_that_are_refused():
    @numba.njit
    def user(x, scale, zero_point):
        return fastq.quantize_linear(x, scale, zero_point, "int8")

    x = np.ones(70, np.float32)
    for scale in (0.0, -0.5, np.nan, np.inf, 1e-50, 1e39):
        with pytest.raises(ValueError, match="scale must be positive and finite in float32"):
            user(x, scale, 0)
    for zero_point in (-129, 128):
        with pytest.raises(ValueError, match="zero_point must be from -128 to 127 for int8"):
            user(x, 0.5, zero_point)
    with pytest.raises(ValueError, match="scale and zero_point must be one number each in compiled code"):
        user(x, np.ones(2, np.float32), 0)
    for position in (0, 69):
        x = np.ones(70, np.float32)
        x[position] = np.nan
        with pytest.raises(ValueError, match=r"x has NaN; pass nan='zero' to treat them as 0\.0"):
            user(x, 0.5, 0)
        with pytest.raises(ValueError, match="x has NaN"):
            fake(x)
    with pytest.raises(ValueError, match="x has infinite values: their range has no scale; clip x"):
        fake(np.array([1, -np.inf], np.float32))
    with pytest.raises(ValueError, match="the range of no elements has no minimum and no maximum"):
        fake(np.empty(0, np.float32))
    assert user(np.empty(0, np.float32), 0.5, 0).shape == (0,)


def test_zero_points_that_are_refused_where_they_are_floats():
    @numba.njit
    def user(x, zero_point):
        return fastq.quantize_linear(x, 0.5, zero_point, "uint8", convention="cf")

    assert user(1.0, 1.0) == 0
    with pytest.raises(ValueError, match="zero_point must be finite in float64"):
        user(1.0, np.inf)


F32, F64, I64 = types.float32, types.float64, types.int64
ARRAY, ACC = types.Array(F32, 1, "C"), types.Array(types.int32, 1, "C")
RESERVING = replace(fastq.CONVENTIONS["onnx"], name="own", reserves_fill=True)
WRONG = [
    (
        "quantize_linear",
        (ARRAY, F64, I64, "int4"),
        {},
        "dtype must be int8, uint8, int16, uint16 or a float of 8 or 16 bits in",
    ),
    ("quantize_linear", (ARRAY, F64, I64, "mxfp4"), {}, "dtype must be a format without its own scales, not mxfp4"),
    (
        "quantize_linear",
        (ARRAY, F64, I64, types.unicode_type),
        {},
        "dtype must be a constant in compiled code: a liter",
    ),
    ("quantize_linear", (ARRAY, F64, I64, "int8"), {"convention": "none"}, "convention must be one of onnx"),
    (
        "quantize_linear",
        (ARRAY, F64, I64, "int8"),
        {"nan": "keep"},
        "nan='keep' needs codes with a NaN, which int8",
    ),
    ("quantize_linear", (ARRAY, F64, F64, "int8"), {}, "zero_point must be of an integer dtype, not float64"),
    ("quantize_linear", (types.unicode_type, F64), {}, "x must be an array or a number in compiled code, not unicode_"),
    ("quantize_linear", (types.float16[::1], F64), {}, "x must be float32, float64 or integers in compiled code"),
    ("quantize_linear", (ARRAY, types.float16), {}, "scale must be float32, float64 or integers in compiled code"),
    ("quantize_linear", (types.boolean, F64), {}, "x must be float16, bfloat16, float32, float64, int8 to int64"),
    ("quantize_linear", (F32, F64), {"out": ARRAY}, "out must be None where x is a number, whose result is a number"),
    (
        "quantize_linear",
        (ARRAY, F64),
        {"out": ARRAY},
        "out must be an array of uint8 with 1 dimensions that can be writ",
    ),
    (
        "dequantize_linear",
        (ARRAY, F64),
        {},
        "codes must be int8, uint8, int16, uint16, int32, uint32, or integers of up to 4 bits",
    ),
    ("dequantize_linear", (types.int8, F64), {"dtype": "float16"}, "dtype must be float32 or float64 in compiled code"),
    ("fake_quantize", (ARRAY, "int8"), {"axis": 0}, "axis must be None in compiled code: parameters are those of all"),
    (
        "fake_quantize",
        (ARRAY, "nvfp4"),
        {},
        "dtype must be a format without scales of its own in compiled code, not nv",
    ),
    ("fake_quantize", (ARRAY, "int8"), {"importance": ARRAY}, "importance must be None in compiled code"),
    ("fake_quantize", (ARRAY, "int8"), {"range": "mse"}, "range must be 'minmax' in compiled code"),
    ("fake_quantize", (ARRAY, "int8"), {"rounding": "stochastic"}, "rounding and rng must be None in compiled code"),
    ("quantize_linear", (ARRAY, F64), {"rng": types.int64}, "rounding and rng must be None in compiled code"),
    ("requantize", (ACC, F64, I64, "int8"), {"axis": 0}, "axis must be None in compiled code: call it for"),
    ("requantize", (ACC, F64, F64, "int8"), {}, "zero_point must be of an integer dtype, not float64"),
    ("fake_quantize", (ARRAY, "int8"), {"symmetric": 1}, "symmetric must be a bool, not 1"),
    ("fake_quantize", (ARRAY, "int8"), {"saturate": 1}, "saturate must be a bool, not 1"),
    ("fake_quantize", (ARRAY, "uint1"), {"convention": RESERVING}, "'own' leaves too few of uint1"),
]


OVERLOADS = {
    "quantize_linear": numba_overloads.overload_quantize_linear,
    "dequantize_linear": numba_overloads.overload_dequantize_linear,
    "fake_quantize": numba_overloads.overload_fake_quantize,
    "requantize": numba_overloads.overload_requantize,
}


@pytest.mark.parametrize("name", OVERLOADS)
def test_parameters_are_those_of_the_public_function(name):
    """Their names, order and defaults, in what Numba asks for an implementation and in what it compiles."""
    arguments = {"requantize": (ACC, F64, I64, "int8"), "fake_quantize": (ARRAY, "int8")}.get(
        name, (types.int8[:], F64)
    )
    public = parameters_of(getattr(fastq, name))
    assert parameters_of(OVERLOADS[name]) == public
    assert parameters_of(OVERLOADS[name](*arguments)) == public


def parameters_of(function):
    return [(parameter.name, parameter.default) for parameter in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", ["quantize", "dequantize", "choose_qparams"])
def test_functions_of_quantized_arrays_are_refused(name):
    with pytest.raises(TypingError, match=rf"^fastq\.{name} can't be called in compiled code"):
        numba_overloads._refusal_of(name, numba_overloads.WITH_PARAMETERS)(ARRAY, "int8")


ELSEWHERE = {
    "binarize": lambda x: fastq.binarize(x),
    "bit_information": lambda x: fastq.bit_information(x),
    "bitround": lambda x: fastq.bitround(x, keepbits=3),
    "compare": lambda x: fastq.compare(x, x),
    "minmax": lambda x: fastq.minmax(x),
    "nest_scale": lambda x: fastq.nest_scale(x),
    "pack": lambda x: fastq.pack(x, "int4"),
    "unpack": lambda x: fastq.unpack(x, "int4"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_functions_are_refused_with_what_works(name):
    with pytest.raises(TypingError, match=rf"fastq\.{name} can't be called in compiled code: call it before or after"):
        numba.njit(ELSEWHERE[name])(X)


def test_functions_are_called_in_a_block_of_objmode():
    @numba.njit
    def least(x):
        with numba.objmode(result="float32"):
            result = fastq.minmax(x)[0]
        return 2 * result

    assert least(np.float32([3, 1, 2])) == 2


@pytest.mark.parametrize(("name", "arguments", "options", "message"), WRONG)
def test_what_is_refused_while_compiling(name, arguments, options, message):
    with pytest.raises(TypingError, match=re.escape(message)):
        OVERLOADS[name](*arguments, **options)


def test_what_is_refused_reaches_the_user():
    with pytest.raises(
        TypingError, match="dtype must be int8, uint8, int16, uint16 or a float of 8 or 16 bits in compiled code"
    ):
        numba.njit(lambda x: fastq.quantize_linear(x, 0.5, 0, "int4"))(X)
    for call in (lambda x: fastq.quantize(x, "int8"), lambda x: fastq.dequantize(x), lambda x: fastq.choose_qparams(x)):
        with pytest.raises(TypingError, match=r"in compiled code.*: call fastq\.choose_qparams before, and there"):
            numba.njit(call)(X)


# --- how Numba gets to know them --------------------------------------------------------------------------------------

USER = """
import numba
import numpy as np
import fastq

@numba.njit(cache=True)
def user(x):
    return fastq.quantize_linear(x, 0.5, 1, "int8")
"""


@pytest.mark.slow("processes that compile")
def test_cached(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    code = f"""
    import sys
    sys.path.insert(0, {str(tmp_path)!r})
    import numpy as np
    from user import user
    print(user(np.array([1, 2.25, 1e9], np.float32)), sum(user.stats.cache_hits.values()))
    """
    for hits in (0, 1):
        assert run(code, setup="", NUMBA_CACHE_DIR=tmp_path / "cache") == f"[  3   5 127] {hits}\n"


@pytest.mark.slow("a process each")
@pytest.mark.parametrize("lines", ["import numba", "import numba\nnumba.njit(lambda x: abs(x))(1)"])
def test_from_sources_alone(lines):
    code = f"{lines}\n{REGISTERED}f = numba.njit(lambda x: fastq.quantize_linear(x, 0.5, 1, 'int8'))\nprint(f(3.25))"
    assert run(code, setup="") == "7\n"


def test_the_first_function_that_a_process_compiles_is_told_what_to_call():
    """The name is looked up while Numba compiles, which is when fastq's functions are imported."""
    code = """
    import numba
    numba.njit(lambda x: abs(x))(1)
    import fastq
    try:
        numba.njit(lambda x: fastq.quantize(x, "int8"))(3.25)
    except numba.TypingError as error:
        print("call fastq.choose_qparams before, and there" in str(error))
    """
    assert run(code, setup="") == "True\n"


@pytest.mark.slow("a process each", quick=lambda used: used)
@pytest.mark.parametrize("used", [True, False])
def test_by_the_entry_point_of_the_distribution(tmp_path, used):
    if not PROJECT.exists():
        pytest.skip("the package is installed")
    ((name, value),) = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]["numba_extensions"].items()
    folder = tmp_path / "fastq_kernels-0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: fastq-kernels\nVersion: 0\n")
    (folder / "entry_points.txt").write_text(f"[numba_extensions]\n{name} = {value}\n")
    code = f"""
    import sys
    sys.path.insert(0, {str(tmp_path)!r})
    if {used}:
        from fastq import quantize_linear
    import numba
    print(numba.njit(lambda x: quantize_linear(x, 0.5, 1, "int8") if {used} else x + 1)(3.25))
    print("fastq" in sys.modules, "fastq.plan" in sys.modules)
    """
    assert run(code, setup="") == f"{'7' if used else '4.25'}\nTrue {used}\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_fork_while_another_thread_compiles_what_looks_up_a_function():
    """The fork waits for the compiler with the lock of imports in its hands, which the other thread does not take."""
    code = """
    import os, threading, time
    import fastq, numba
    from numba.core.compiler_lock import global_compiler_lock
    fastq.get_num_threads()
    compiles = threading.Event()

    def compile():
        with global_compiler_lock:
            compiles.set()
            time.sleep(0.5)  # the fork waits by now
            print(numba.njit(lambda x: fastq.quantize_linear(x, 0.5, 1, "int8"))(3.25))

    thread = threading.Thread(target=compile)
    thread.start()
    compiles.wait(20)
    if pid := os.fork():
        assert os.waitpid(pid, 0)[1] == 0
        thread.join()
    else:
        os._exit(0)
    """
    assert run(code, setup="") == "7\n"


# --- requantize -------------------------------------------------------------------------------------------------------

_SPREAD = np.random.default_rng(9).integers(-(2**31), 2**31, 300) >> np.arange(300) % 32
SUMS = np.concatenate([_SPREAD, [-(2**31), 2**31 - 1, 0, -1, 2, -2, 6, -6]]).astype(np.int32)


@slow(convention="xnnpack")
@pytest.mark.parametrize("convention", REQUANTIZATIONS)
def test_requantize(convention):
    @numba.njit
    def user(acc, multiplier, zero_point, bias):
        codes = fastq.requantize(
            acc, multiplier, zero_point, "int8", bias=bias, clamp=(-100, 100), convention=convention
        )
        each, out = np.empty_like(codes), np.empty_like(codes)
        for k in range(acc.size):
            each[k] = fastq.requantize(
                acc[k], multiplier, zero_point, "int8", bias=bias, clamp=(-100, 100), convention=convention
            )
        fastq.requantize(acc[::-1], multiplier, zero_point, np.int8, convention=convention, out=out)
        return codes, each, out

    for multiplier in (0.25, 0.0123, 3.0, 0.0, 1e-40, 0.7):
        for bias in (0, -12345, 2**31 - 1):
            expected = reference.requantize(
                SUMS, multiplier, -5, "int8", bias=bias, clamp=(-100, 100), convention=convention
            )
            without = reference.requantize(SUMS[::-1], multiplier, -5, "int8", convention=convention)
            for found, right in zip(user(SUMS, multiplier, -5, bias), (expected, expected, without), strict=True):
                check_same(found, right)


@pytest.mark.slow("compiles a function of its own")
def test_requantize_with_a_bias_that_is_a_float():
    user = numba.njit(lambda acc, bias: fastq.requantize(acc, 0.01, 128, "uint8", bias=bias, convention="torch"))
    check_same(user(SUMS, 1234.5), reference.requantize(SUMS, 0.01, 128, "uint8", bias=1234.5, convention="torch"))
    with pytest.raises(ValueError, match="bias must be finite in float32"):
        user(SUMS, 1e39)


def test_what_requantize_refuses_in_compiled_code():
    user = numba.njit(lambda acc, multiplier, zero, bias: fastq.requantize(acc, multiplier, zero, "int8", bias=bias))
    check_same(user(SUMS, np.array([0.7]), 3, 5), reference.requantize(SUMS, 0.7, 3, "int8", bias=5))
    wrong = {
        "multiplier must be from 0 on and less than 1073741823.75": (-0.5, 0, 0),
        "multiplier must be from 0 on": (np.nan, 0, 0),
        "zero_point must be from -128 to 127 for int8": (0.5, 128, 0),
        "bias must be from -2147483648 to 2147483647": (0.5, 0, 2**31),
        "multiplier, zero_point and bias must be one number each": (np.ones(2), 0, 0),
    }
    for message, (multiplier, zero_point, bias) in wrong.items():
        with pytest.raises(ValueError, match=message):
            user(SUMS, multiplier, zero_point, bias)
    for message, arguments in {
        "acc must be an int32 array": (7, 0.5, 0, 0),
        "multiplier must be float16, bfloat16, float32, float64, int8 to int64 or uint8 to uint64, not bool": (
            SUMS,
            True,
            0,
            0,
        ),
        "zero_point must be of an integer dtype, not float64": (SUMS, 0.5, 0.0, 0),
        "bias must be int8 to int64 or uint8 to uint64 for convention 'tflite', not float64": (SUMS, 0.5, 0, 0.5),
    }.items():
        with pytest.raises(TypingError, match=message):
            user(*arguments)
    with pytest.raises(TypingError, match="axis must be None in compiled code: call it for each channel"):
        numba.njit(lambda acc: fastq.requantize(acc, 0.5, 0, "int8", axis=0))(SUMS)
