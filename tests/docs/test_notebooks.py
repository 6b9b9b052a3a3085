"""The five notebooks that the project began from: every figure they print that can be recomputed, and where they err.

The public functions, fast and reference alike, get what the notebooks print, and what their arithmetic gives, which is
repeated in plain NumPy. PyTorch and NumPy 1 compute with a Python float and a float32 array in float32, which is
written out here.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import fastq
from fastq import reference

TEXTBOOK = fastq.CONVENTIONS["textbook"]
ALWAYS = pytest.mark.slow("has the kernels of the others", quick=lambda **_: True)
pytestmark = pytest.mark.slow("compiles kernels of its own", quick=lambda impl, **_: impl is reference)

# Lesson 3 takes the span of float32 values in float32, and its zero point from the highest code.
IN_FLOAT32 = replace(
    TEXTBOOK,
    name="lesson 3",
    parameter_type="compute",
    zero_point_end="highest",
    zero_point_rounded="quotient",
)


@pytest.fixture(params=[reference, fastq], ids=lambda module: module.__name__, scope="module")
def impl(request):
    return request.param


def values_of(impl, q):
    return impl.dequantize(q) if impl is reference else q.dequantize()


def parameters(q):
    """As Python numbers: an array of float32 equals a Python float that it is not."""
    return q.scale.item(), q.zero_point.item()


def as_printed(figures, decimals, slack=0.0):
    """Figures known to a number of decimals; `slack` for rounded inputs of the figures."""
    return pytest.approx(np.asarray(figures, np.float64), rel=0, abs=0.501 * 10.0**-decimals + slack)


def same(actual, expected):
    assert np.asarray(actual).dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(actual, expected)


# The notebooks in NumPy
F32, F64 = np.float32, np.float64


def asymmetric(x, qmin=-128, qmax=127):
    """Lessons 1 and 5: parameters in Python floats, codes and values in float32."""
    lo, hi = float(x.min()), float(x.max())
    scale = (hi - lo) / (qmax - qmin)
    zero_point = max(qmin, min(round(qmin - lo / scale), qmax))
    codes = np.clip(np.rint(x / F32(scale) + F32(zero_point)), qmin, qmax)
    return SimpleNamespace(
        scale=scale, zero_point=zero_point, codes=codes, values=F32(scale) * (codes - F32(zero_point))
    )


def zero_point_by_bits(x, bits):
    """Lesson 2: codes of 0 .. 2**bits - 1, the reciprocal of the scale, float64."""
    inverse = (2**bits - 1) / (x.max() - x.min())
    zero_point = -np.round(x.min() * inverse)
    codes = np.clip(np.round(x * inverse + zero_point), 0, 2**bits - 1)
    return SimpleNamespace(inverse=inverse, zero_point=zero_point, codes=codes, values=(codes - zero_point) / inverse)


def absmax_by_bits(x, bits):
    """Lesson 2, with its mistake: the largest value where the largest magnitude is meant."""
    last = 2 ** (bits - 1) - 1
    inverse = last / x.max()
    codes = np.clip(np.round(x * inverse), -last, last)
    return SimpleNamespace(inverse=inverse, codes=codes, values=codes / inverse)


def mse(x, values):
    return float(np.mean((np.asarray(values, F64) - x) ** 2))


# Lesson 1: a tensor printed to four decimals, so that what follows from it is known to about as many
LESSON_1 = np.array([[-5.5340, -6.4383, -8.9854], [-0.9105, -11.6636, 7.0229], [-6.8562, -3.9043, 1.1225]], F32)
LESSON_1_SCALE, LESSON_1_ZERO_POINT = 0.07328061122520298, 31
LESSON_1_CODES = np.array([[-45, -57, -92], [19, -128, 127], [-63, -22, 46]], np.int8)
LESSON_1_VALUES = [[-5.5693, -6.4487, -9.0135], [-0.8794, -11.6516, 7.0349], [-6.8884, -3.8839, 1.0992]]
LESSON_1_ERRORS = [[-0.0353, -0.0104, -0.0281], [0.0311, 0.0120, 0.0120], [-0.0321, 0.0204, -0.0233]]
LESSON_1_RELATIVE = [[0.0064, 0.0016, 0.0031], [-0.0342, -0.0010, 0.0017], [0.0047, -0.0052, -0.0207]]


@ALWAYS
def test_lesson_1(impl):
    q = impl.quantize(LESSON_1, "int8", convention="textbook")
    assert q.scale == as_printed(LESSON_1_SCALE, 6)
    assert q.zero_point == LESSON_1_ZERO_POINT
    np.testing.assert_array_equal(q.codes, LESSON_1_CODES)
    values = values_of(impl, q)
    assert values == as_printed(LESSON_1_VALUES, 4, slack=1e-4)
    errors = values.astype(F64) - LESSON_1
    assert errors == as_printed(LESSON_1_ERRORS, 4, slack=1.5e-4)
    assert errors / LESSON_1 == as_printed(LESSON_1_RELATIVE, 4, slack=2e-4)
    measured = impl.compare(LESSON_1, q)
    assert mse(LESSON_1, values) == as_printed(0.0006, 4, slack=1e-5)
    assert measured.mse == as_printed(0.0006, 4, slack=1e-5)
    assert measured.max_relative_error == as_printed(0.0342, 4, slack=2e-4)


# Lesson 2: a (4, 128, 256) tensor of unknown seed; its first values and its extremes are printed
def tensor_of_lesson_2(*, extremes=True):
    x = np.random.default_rng(2).uniform(-50, 150, (4, 128, 256))
    if extremes:
        x[0, 0, :3] = x.max() + 1, x.min() - 1, 0
    return x


# Lesson 3: three values, three schemes
LESSON_3 = np.array([0.21535037, 1.2962357, -1.0161772], F32)
SPAN_SCALE, ABSMAX_SCALE = 0.00906828525019627, 0.01020658016204834


SCHEMES_OF_LESSON_3 = {  # codes, values, differences
    "no zero point": (
        [24, 127, -112],
        [0.21763885, 1.1516722, -1.0156479],
        [0.00228848, -0.14456344, 0.00052929],
    ),
    "symmetric": ([21, 127, -100], [0.21433818, 1.2962357, -1.020658], [-0.00101219, 0, -0.00448084]),
    "asymmetric": ([8, 127, -128], [0.21763885, 1.2967647, -1.0156479], [0.00228848, 0.00052905, 0.00052929]),
}


def check_lesson_3(scheme, codes, values):
    expected_codes, expected_values, differences = SCHEMES_OF_LESSON_3[scheme]
    same(codes, np.array(expected_codes, np.int8))
    same(values, np.array(expected_values, F32))
    assert values - LESSON_3 == as_printed(differences, 8)


# Lesson 4: simple scaling; an outlier in uint8; a float zero point
SIMPLE = np.array([-10, -5, 0, 5, 10], F32)
SIMPLE_CODES = np.array([-127, -64, 0, 64, 127], np.int8)
OUTLIER = np.array([0, 1, 9, 10, 1000])
OUTLIER_CODES = np.array([0, 0, 2, 3, 255], np.uint8)
FAR_FROM_ZERO = np.array([1.345, 2.087, 3.453], F32)


# Lesson 5: the tensor of the course
LESSON_5 = np.array([[191.6, -13.5, 728.6], [92.14, 295.5, -184], [0, 684.6, 245.5]], F32)
LESSON_5_SCALE, LESSON_5_ZERO_POINT = 3.578823433670343, -77
RANDOM_4_BY_4 = np.array(
    [
        [0.7373, -0.5947, 1.1786, 0.6481],
        [1.0361, -0.2536, -1.5978, 1.3848],
        [-0.8686, -0.7569, -0.3600, -0.8526],
        [0.0768, 1.4115, -0.9894, 0.3041],
    ],
    F32,
)


# The library


@pytest.mark.slow(
    "compiles kernels for each format", quick=lambda impl, value, dtype: impl is reference or dtype == "int8"
)
@pytest.mark.parametrize("value", [0.5, 3.0, -7.25, 1e-30, -1e30])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_lesson_1_constant_tensor_is_its_own_scale_and_decodes_exactly(impl, value, dtype):
    x = np.full((3, 3), value, F32)
    q = impl.quantize(x, dtype, convention="textbook")
    assert (F32(q.scale), q.zero_point) == (F32(value), 0)
    same(q.codes, np.ones((3, 3), dtype))
    same(values_of(impl, q), x)


def test_lesson_1_errs_the_tensor_of_zeros_has_scale_0_and_its_codes_are_nan(impl):
    x = np.zeros((3, 3), F32)
    with np.errstate(invalid="ignore"):
        assert np.isnan(x / F32(x.min())).all()
    q = impl.quantize(x, "int8", convention="textbook")
    assert 0 < q.scale < np.inf
    same(values_of(impl, q), x)


@pytest.mark.slow("compiles kernels for each width", quick=lambda impl, bits, **_: impl is reference or bits == 8)
@pytest.mark.parametrize("bits", range(2, 17))
@pytest.mark.parametrize("symmetric", [False, True])
def test_lesson_2_schemes_by_bits(impl, bits, symmetric):
    x, dtype = tensor_of_lesson_2(), f"{'' if symmetric else 'u'}int{8 if bits <= 8 else 16}"
    q = impl.quantize(x, dtype, bits=bits, symmetric=symmetric, convention="textbook")
    # the notebook is right here, as the largest value has the largest magnitude
    expected = (absmax_by_bits if symmetric else zero_point_by_bits)(x, bits)
    same(q.codes, expected.codes.astype(dtype))
    assert q.zero_point == (0 if symmetric else expected.zero_point)
    assert 1 / q.scale == pytest.approx(expected.inverse, rel=1e-15)
    np.testing.assert_allclose(values_of(impl, q), expected.values, rtol=1e-13)
    measured = impl.compare(x, q).mse
    assert measured == pytest.approx(mse(x, expected.values), rel=1e-9)
    if bits >= 4 and not symmetric:  # a step's square over 12; a bit more, a quarter of it
        assert measured == pytest.approx((202 / (2**bits - 1)) ** 2 / 12, rel=0.03)


def test_lesson_2_errs_max_for_the_largest_magnitude_costs_1600_instead_of_0_118(impl):
    x = -tensor_of_lesson_2()
    assert 1550 < mse(x, absmax_by_bits(x, 8).values) < 1700
    q = impl.quantize(x, "int8", symmetric=True, convention="textbook")
    assert q.scale.item() == np.abs(x).max() / 127
    assert impl.compare(x, q).mse == pytest.approx(0.118, rel=0.02)


def test_lesson_2_errs_negative_tensors_decode_to_one_number(impl):
    x = np.linspace(-150, -50, 101)
    assert np.unique(absmax_by_bits(x, 8).values).tolist() == [-50]
    assert impl.compare(x, impl.quantize(x, "int8", symmetric=True, convention="textbook")).max_abs_error < 0.6


def test_lesson_2_errs_the_printed_error_1685_414_is_0_05_when_run(impl):
    """Stale state: it is what codes clipped at 127, the last one of int8, give on the tensor without its extremes."""
    x = tensor_of_lesson_2()
    assert round(impl.compare(x, impl.quantize(x, "uint8", convention="textbook")).mse, 2) == 0.05
    stale = tensor_of_lesson_2(extremes=False)
    p = impl.choose_qparams(stale, "uint8", convention="textbook")
    codes = np.minimum(impl.quantize(stale, qparams=p).codes, 127)
    values = impl.dequantize_linear(codes, p.scale, p.zero_point, axis=None)
    assert mse(stale, values) == pytest.approx(1685.414, rel=0.02)


def test_lesson_2_errs_the_printed_symmetric_error_0_116_is_that_of_the_tensor_before(impl):
    """It belongs to a largest value of 150, not of 151 as in the cell above: 0.116 and 0.118."""
    for extremes, printed in ((False, 0.116), (True, 0.118)):
        x = tensor_of_lesson_2(extremes=extremes)
        q = impl.quantize(x, "int8", symmetric=True, convention="textbook")
        assert impl.compare(x, q).mse == as_printed(printed, 3, slack=5e-4)


def test_lesson_3_symmetric(impl):
    q = impl.quantize(LESSON_3, "int8", symmetric=True, convention="textbook")
    assert parameters(q) == (ABSMAX_SCALE, 0)
    check_lesson_3("symmetric", q.codes, values_of(impl, q))


def test_lesson_3_asymmetric(impl):
    q = impl.quantize(LESSON_3, "int8", convention=IN_FLOAT32)
    assert parameters(q) == (float(F32(SPAN_SCALE)), -16)
    check_lesson_3("asymmetric", q.codes, values_of(impl, q))
    textbook = impl.quantize(LESSON_3, "int8", convention="textbook")
    assert textbook.scale == pytest.approx(SPAN_SCALE, rel=2**-23)
    assert textbook.codes.tolist() == q.codes.tolist()


def test_lesson_3_errs_without_a_zero_point_1_2962_is_clipped_to_1_1517(impl):
    p = impl.choose_qparams(LESSON_3, "int8", convention=IN_FLOAT32)
    q = impl.quantize(LESSON_3, qparams=replace(p, zero_point=np.zeros_like(p.zero_point)))
    check_lesson_3("no zero point", q.codes, values_of(impl, q))
    measured = impl.compare(LESSON_3, q)
    assert measured.clipped == 1
    assert measured.max_abs_error == as_printed(0.14456344, 8)
    assert impl.compare(LESSON_3, impl.quantize(LESSON_3, qparams=p)).max_abs_error == as_printed(0.00228848, 8)


def test_lesson_3_errs_an_outlier_pushes_no_value_out_of_the_codes_but_leaves_three_codes_to_the_rest(impl):
    x = np.append(np.random.default_rng(0).uniform(-1, 1, 1000), 100)
    q = impl.quantize(x, "int8", symmetric=True, convention="textbook")
    assert impl.compare(x, q).clipped == 0
    assert np.unique(q.codes).tolist() == [-1, 0, 1, 127]
    half, step = 50 / 127, 100 / 127  # codes change there; the integral of the squared error over [0, 1]:
    expected = (half**3 + half**3 + (1 - step) ** 3) / 3
    assert mse(x[:-1], values_of(impl, q)[:-1]) == pytest.approx(expected, rel=0.1)


@ALWAYS
def test_lesson_4_simple_scaling(impl):
    scale = impl.choose_qparams(SIMPLE, "int8", convention="textbook").scale
    codes = impl.quantize_linear(SIMPLE, scale, 0, "int8")
    same(codes, SIMPLE_CODES)
    values = impl.dequantize_linear(codes, scale.astype(F32), axis=None)
    assert scale == as_printed(0.0784, 4)
    assert values == as_printed([-9.9608, -5.0196, 0, 5.0196, 9.9608], 4)
    errors = np.abs(values.astype(F64) - SIMPLE)
    assert errors == as_printed([0.0392, 0.0196, 0, 0.0196, 0.0392], 4)
    percent = 100 * errors / np.where(SIMPLE == 0, 1, SIMPLE)  # negative for negative values, as printed
    assert percent == as_printed([-0.3922, -0.3922, 0, 0.3922, 0.3922], 4)
    assert 100 * impl.compare(SIMPLE, values).max_relative_error == as_printed(0.3922, 4)


def test_lesson_4_the_codes_of_10_and_minus_10_are_ties_that_the_float32_scale_breaks(impl):
    """-10 / (20 / 255) is -127.5: in float64 it rounds to the even -128, in float32 the quotient is smaller."""
    same(impl.quantize_linear(SIMPLE.astype(F64), 20 / 255, 0, "int8"), np.array([-128, -64, 0, 64, 127], np.int8))


def test_lesson_4_an_outlier_in_uint8(impl):
    q = impl.quantize(OUTLIER, "uint8", convention="textbook")
    assert (q.zero_point, q.scale) == (0, as_printed(3.9216, 4))
    same(q.codes, OUTLIER_CODES)
    values = values_of(impl, q)
    assert values == as_printed([0, 0, 7.8431, 11.7647, 1000], 4)
    errors = np.abs(values - OUTLIER)
    assert errors == as_printed([0, 1, 1.1569, 1.7647, 0], 4)
    assert 100 * errors / np.maximum(OUTLIER, 1) == as_printed([0, 100, 12.8540, 17.6471, 0], 4)
    measured = impl.compare(OUTLIER, q)
    assert measured.max_abs_error == as_printed(1.7647, 4)
    assert measured.max_relative_error == 1.0


def test_lesson_4_float_zero_point(impl):
    # contract 2.4
    convention = replace(TEXTBOOK, name="lesson 4", zero_point="float")
    q = impl.quantize(FAR_FROM_ZERO, "uint8", convention=convention)
    assert q.scale == as_printed(0.0083, 4)
    assert q.zero_point == as_printed(-162.7016, 4)
    assert q.zero_point.dtype == F64
    same(q.codes, np.array([0, 90, 255], np.uint8))
    assert impl.compare(FAR_FROM_ZERO, q).max_abs_error < q.scale / 2


def test_lesson_4_errs_rounded_and_clamped_its_zero_point_clips_3_453_to_2_108(impl):
    q = impl.quantize(FAR_FROM_ZERO, "uint8", convention="textbook")
    assert q.zero_point == 0
    same(q.codes, np.array([163, 252, 255], np.uint8))
    assert values_of(impl, q)[2] == as_printed(2.108, 3)
    widened = impl.quantize(FAR_FROM_ZERO, "uint8", convention="onnx")
    assert impl.compare(FAR_FROM_ZERO, widened).max_abs_error < widened.scale / 2


@ALWAYS
def test_lesson_5(impl):
    q = impl.quantize(LESSON_5, "int8", convention="textbook")
    assert parameters(q) == (LESSON_5_SCALE, LESSON_5_ZERO_POINT)
    expected = asymmetric(LESSON_5)
    same(q.codes, expected.codes.astype(np.int8))
    same(values_of(impl, q), expected.values)
    assert impl.compare(LESSON_5, q).mse == pytest.approx(1.5, abs=0.1)
    exact = impl.choose_qparams(LESSON_5, "int8", convention=replace(TEXTBOOK, name="lesson 5", zero_point="float"))
    assert exact.zero_point.item() == -76.58645490333825
    made_up = impl.dequantize_linear(impl.quantize_linear(LESSON_5, 3.5, -70, "int8"), 3.5, -70, axis=None)
    assert round(impl.compare(LESSON_5, made_up).mse) == 171


def test_lesson_5_random_matrix(impl):
    q, expected = impl.quantize(RANDOM_4_BY_4, "int8", convention="textbook"), asymmetric(RANDOM_4_BY_4)
    assert parameters(q) == (expected.scale, expected.zero_point)
    same(q.codes, expected.codes.astype(np.int8))
    same(values_of(impl, q), expected.values)


@pytest.mark.slow(
    "compiles kernels for each dtype", quick=lambda impl, dtype, qmin, qmax: impl is reference or dtype == "int8"
)
@pytest.mark.parametrize(("dtype", "qmin", "qmax"), [("int8", -128, 127), ("uint8", 0, 255), ("int16", -32768, 32767)])
def test_the_course_on_other_arrays(impl, dtype, qmin, qmax):
    for seed in range(50):
        rng = np.random.default_rng(seed)
        x = (rng.standard_normal(1000) * 10 ** rng.uniform(-3, 3) + rng.uniform(-3, 3)).astype(F32)
        q, expected = impl.quantize(x, dtype, convention="textbook"), asymmetric(x, qmin, qmax)
        assert parameters(q) == (expected.scale, expected.zero_point)
        same(q.codes, expected.codes.astype(dtype))
        same(values_of(impl, q), expected.values)
