"""The proof that `formulas.quotient` rounds correctly for float32, and that `scaled_round` gives `code_value`.

Let x and s be float32 numbers, scaled by powers of two into [1, 2): x = X * 2**-23 and s = S * 2**-23 with X and S in
[2**23, 2**24). Such a scaling changes no significand while nothing overflows or underflows, nor does a change of sign.
Let q = x / s be the exact quotient and u = 2**-24. The formula computes, each step rounded once::

    r = fl(1 / s)        q0 = fl(x * r)        rem = fl(x - q0 * s)        q1 = fl(v) with v = q0 + rem * r

1.  r is in [1/2, 1], so |r - 1/s| <= 2**-25, and with e = r * s - 1, |e| <= s * 2**-25 < u.
2.  Write ulp for the spacing of floats at q: 2**-23 where X >= S (q in [1, 2)), 2**-24 where X < S (q in (1/2, 1)).
    |x * r - q| <= x * 2**-25 < 2**-24 <= 1 ulp. Now x * r is below the next power of two, since q is below it by more
    than 2**-24, or S = 2**23 and r is exact; so fl rounds it by at most 1/2 ulp, and |q0 - q| < 3/2 ulp.
3.  x - q0 * s is a multiple of ulp * 2**-23, or of half that where q0 is less than the power of two below q. It is less
    than 3/2 ulp * s in magnitude: less than 3/2 * 2**24 of these units, or 3 * 2**24 of the finer ones. So fl rounds it
    by at most 1 of these or 2 of the finer: rem = x - q0 * s + d with |d| <= ulp * 2**-23 = 2 * u ulp.
4.  v - q = q0 + (s * (q - q0) + d) * r - q = (q - q0) * e + d * r, so |v - q| < (3/2 + 2) * u ulp = 7/2 * u ulp.
5.  q = 1, or q is more than 2**-25 away from any power of two and v is in the same binade. So q1 is q rounded correctly
    unless v is a midpoint m of two neighbouring floats or m lies between v and q, and then |q - m| <= |v - q|. With
    k = 24 where X >= S and k = 25 where X < S, m = M * 2**-k with M odd and 2**24 < M < 2**25. Times S * 2**k, as
    ulp * 2**k = 2 and S < 2**24::

        |2**k * X - M * S| < 7/2 * u * 2 * S < 7

    and the difference is not 0, since M is odd and S has no factor 2**k.

So whatever could be rounded wrongly solves 2**k * X - M * S = j with 0 < |j| < 7; J_MAX = 8 leaves some room. For each
S and j this fixes M modulo 2**k divided by the power of two in S, which is that in j since M is odd. There are few such
M, and all of them are tried, for every S. What is correct is known without a division: the float above m where j > 0,
the one below it where j < 0.
"""

import itertools

import numba
import numpy as np
import pytest
from numba import types
from onnx_rule import SPEC, spec
from traced_functions import CFunction

from fastq.engine.jit import numba_intrinsic, traced
from fastq.engine.simd import Vec, count, fma, load, maximum, minimum, pointer, round_to_int32, store
from fastq.kernels import formulas

FIRST, LAST = 1 << 23, 1 << 24  # significands
J_MAX = 8
IN_DOUBT = 46_517_418
ROOM = 32  # for the candidates of one S: 24 at most, where 8 is the power of two in it

F32X16 = Vec(types.float32, 16)
NUMPY = {types.float32: np.float32, types.float64: np.float64}


@traced
def multiplied(x, s):
    """`quotient` without the correction."""
    return x * s.factor


@traced
def corrected_roughly(x, s):
    """`quotient` with a remainder that is rounded twice."""
    first = x * s.factor
    return fma(x - first * s.scale, s.factor, first)


@traced
def corrected_with_rough_reciprocal(x, s):
    """`quotient` with a reciprocal that is wrong by 2 ulp."""
    reciprocal = s.factor * np.float32(1 + 2.0**-22)
    first = x * reciprocal
    return fma(fma(-first, s.scale, x), reciprocal, first)


# --- every quotient in doubt ------------------------------------------------------------------------------------------


@numba.njit
def inverse(odd):
    """Inverse of an odd number modulo 2**32."""
    x = odd  # right in 3 bits, and in twice as many after each step
    for _ in range(4):
        x = x * (2 - odd * x) & 0xFFFFFFFF
    return x


@numba.njit
def candidates(S, X, Q, K):
    """Write every X with 2**k * X - M * S = j, 0 < |j| <= J_MAX, the correct significand and k; return how many."""
    n, power = 0, S & -S
    if power > J_MAX:
        return 0
    S_inverse = inverse(S // power)
    for k in (24, 25):
        modulus = (1 << k) // power
        for j in range(-J_MAX, J_MAX + 1):
            if j & -j != power:
                continue
            M = (-(j // power) * S_inverse) % modulus
            M -= (M - (1 << 24)) // modulus * modulus  # the smallest that is not below 2**24
            while M < 1 << 25:
                x = (M * S + j) >> k
                if (1 << 23) <= x < (1 << 24) and (x >= S) == (k == 24):
                    X[n], Q[n], K[n] = x, (M + 1) // 2 if j > 0 else M // 2, k
                    n += 1
                M += modulus
    return n


def count_wrong(quotient, significands):
    """Try every quotient in doubt; return how many there are and how many come out wrong."""

    @traced
    def divide(x, y, n, scale):
        s = formulas.prepare_scale(spec(), scale, np.float32(0), np.float32(-128), np.float32(127))
        for i in range(0, n, 16):
            store(y, i, quotient(load(x, i, F32X16), s))
        return 0

    quotients = numba_intrinsic(divide, result=types.int64)

    @numba.njit(error_model="numpy")
    def trial(first, last, x, y):
        X, Q, K = np.empty(ROOM, np.int64), np.empty(ROOM, np.int64), np.empty(ROOM, np.int64)
        tried = wrong = 0
        for S in range(first, last):
            n = candidates(S, X, Q, K)
            for i in range(n):
                x[i] = X[i]
            quotients(x, y, n, np.float32(S))
            for i in range(n):
                wrong += y[i] != Q[i] * (2.0**-23 if K[i] == 24 else 2.0**-24)
            tried += n
        return tried, wrong

    x, y = np.ones(ROOM, np.float32), np.empty(ROOM, np.float32)
    return trial(significands.start, significands.stop, x, y)


@pytest.mark.slow("four seconds")
def test_every_quotient_in_doubt_is_rounded_correctly():
    assert count_wrong(formulas.quotient, range(FIRST, LAST)) == (IN_DOUBT, 0)


@pytest.mark.slow("tries the proof")
@pytest.mark.parametrize("wrong_quotient", [multiplied, corrected_roughly, corrected_with_rough_reciprocal])
def test_the_proof_finds_a_wrong_quotient(wrong_quotient):
    tried, wrong = count_wrong(wrong_quotient, range(12_345_678, 12_445_678))
    assert 0 < wrong < tried


@pytest.mark.slow("2**23 quotients a case", quick=lambda S: S == LAST - 1)
@pytest.mark.parametrize("S", [FIRST, FIRST + 1, FIRST + 8, 12_345_676, 12_345_678, LAST - 8, LAST - 2, LAST - 1])
def test_candidates_are_all_there_are(S):
    X = np.arange(FIRST, LAST)
    k = np.where(X >= S, 24, 25)
    M = (X << k) // S // 2 * 2 + 1  # the odd number nearest to 2**k * X / S
    j = (X << k) - M * S
    near = np.abs(j) <= J_MAX

    found = np.empty((3, ROOM), np.int64)
    found = found[:, : candidates(S, *found)]
    expected = np.stack([X, M // 2 + (j > 0), k])[:, near]
    np.testing.assert_array_equal(found[:, np.argsort(found[0])], expected)


# --- quotients and codes at any scale ---------------------------------------------------------------------------------


def address(array):
    return array.ctypes.data


def random_floats(rng, dtype, n, smallest, largest):
    """Random signs and significands, exponents evenly spread."""
    significands = rng.integers(FIRST, LAST, n) * 2.0**-23 if dtype == np.float32 else 1 + rng.random(n)
    return (rng.choice([-1, 1], n) * np.ldexp(significands, rng.integers(smallest, largest, n))).astype(dtype)


def test_quotients_of_random_pairs():
    def kernel(x_address, s_address, y_address, n):
        f32 = types.float32
        x, s, y = pointer(x_address, f32), pointer(s_address, f32), pointer(y_address, f32)
        for i in range(0, n, count(F32X16)):
            scales = load(s, i, F32X16)
            store(
                y,
                i,
                formulas.quotient(load(x, i, F32X16), formulas.prepare_scale(spec(), scales, scales, scales, scales)),
            )

    rng = np.random.default_rng(1)
    n = 1 << 20
    s = np.abs(random_floats(rng, np.float32, n, -100, 100))
    q = random_floats(rng, np.float32, n, -1, 17)
    x, y = s * q, np.empty(n, np.float32)
    CFunction(kernel, *[types.intp] * 4)(address(x), address(s), address(y), n)
    np.testing.assert_array_equal(y, x / s)


CODES = [(-128, 127), (-127, 127), (0, 255), (-(2**15), 2**15 - 1), (0, 2**16 - 1)]
EDGE = {np.float32: 100, np.float64: 900}  # scales are usable without a division within 2**-EDGE < scale < 2**EDGE
KINDS = [F32X16, Vec(types.float64, 8), types.float32, types.float64]


def scales(dtype):
    one, edge = dtype(1), EDGE[dtype]
    powers = [np.ldexp(one, e) for e in (1 - edge, -50, -7, 0, 7, 50, edge - 1)]
    beside = [np.nextafter(p, p * towards) for p in powers for towards in (dtype(0), dtype(2))]
    edges = [np.nextafter(np.ldexp(one, -edge), one), np.nextafter(np.ldexp(one, edge), one)]
    plain = [dtype(0.1), dtype(1) / 3, dtype(2.0) / 255, dtype(0.007843138)]
    anywhere = np.abs(random_floats(np.random.default_rng(2), dtype, 20, 1 - edge, edge))
    return [*powers, *beside, *edges, *plain, *anywhere]


def values(dtype, scale, zero_point, lowest, highest):
    """Ties and whole codes with neighbours, a step beyond the ends too, and what is special; a multiple of 64."""
    codes = np.arange(lowest - 2, highest + 3)
    if len(codes) > 1000:
        codes = np.unique(np.r_[codes[:40], codes[-40:], zero_point - 20 : zero_point + 20, codes[::479]])
    steps = (codes - zero_point)[:, None] + [0, 0.5]
    exact = (steps * scale.astype(np.float64)).astype(dtype).ravel()
    less, more = np.nextafter(exact, dtype(-np.inf)), np.nextafter(exact, dtype(np.inf))
    info = np.finfo(dtype)
    special = [0.0, info.smallest_subnormal, 3 * info.smallest_subnormal, info.tiny, info.max, np.inf, np.nan, scale]
    special = np.array(special, dtype)
    near = [exact, less, more, np.nextafter(less, dtype(-np.inf)), np.nextafter(more, dtype(np.inf))]
    x = np.concatenate([*near, special, -special])
    return np.pad(x, (0, -len(x) % 64))


def expected_codes(x, scale, zero_point, lowest, highest):
    with np.errstate(over="ignore", under="ignore"):
        codes = np.clip(np.rint(x / scale) + x.dtype.type(zero_point), lowest, highest)
    return np.where(np.isnan(x), x.dtype.type(lowest), codes)


def compile_codes(kind, scaled_round):
    dtype = getattr(kind, "dtype", kind)

    def kernel(x_address, steps_address, codes_address, n, scale, zero_point, lowest, highest):
        x, steps, codes = pointer(x_address, dtype), pointer(steps_address, types.int32), pointer(codes_address, dtype)
        s = formulas.prepare_scale(spec(), scale, zero_point, lowest, highest)
        for i in range(0, n, count(kind)):
            store(steps, i, scaled_round(spec(), load(x, i, kind), s))
            store(codes, i, formulas.code_value(spec(), load(x, i, kind), s, lowest, highest))

    return CFunction(kernel, *[types.intp] * 4, *[dtype] * 4), NUMPY[dtype]


def wrong_codes(kind, scaled_round):
    """Number of codes tried, of wrong ones of `scaled_round` and of `code_value`."""
    kernel, dtype = compile_codes(kind, scaled_round)
    tried = wrong_steps = wrong = 0
    for scale, (lowest, highest) in itertools.product(scales(dtype), CODES):
        for zero_point in (lowest, (lowest + highest + 1) // 2, highest):
            parameters = scale, zero_point, lowest, highest
            x = values(dtype, *parameters)
            steps, codes = np.empty(x.size, np.int32), np.empty(x.size, dtype)
            kernel(address(x), address(steps), address(codes), x.size, *parameters)
            expected = expected_codes(x, *parameters)
            tried += x.size
            wrong_steps += np.count_nonzero(steps.astype(np.int64) + zero_point != expected)
            wrong += np.count_nonzero(codes != expected)
    return tried, wrong_steps, wrong


@pytest.mark.slow("a minute each", quick=lambda kind: kind is F32X16)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_scaled_round_gives_code_value(kind):
    tried, *wrong = wrong_codes(kind, formulas.scaled_round)
    assert tried > 1_000_000
    assert wrong == [0, 0]


def dropped(step):
    """`scaled_round` with one step left out."""

    @traced
    def without_correction(spec, x, s):
        return round_to_int32(minimum(maximum(x, s.below), s.above) * s.factor)

    @traced
    def without_clamp_above(spec, x, s):
        return round_to_int32(formulas.quotient(maximum(x, s.below), s))

    @traced
    def without_clamp_below(spec, x, s):
        return round_to_int32(formulas.quotient(minimum(x, s.above), s))

    return {"correction": without_correction, "above": without_clamp_above, "below": without_clamp_below}[step]


@pytest.mark.parametrize("step", ["correction", "above", "below"])
def test_the_comparison_finds_wrong_codes(step):
    tried, wrong_steps, plain = wrong_codes(F32X16, dropped(step))
    assert 0 < wrong_steps < tried
    assert plain == 0


@pytest.mark.parametrize("dtype", EDGE, ids=lambda dtype: dtype.__name__)
def test_needs_division(dtype):
    of_scale = numba_intrinsic(formulas.needs_division, SPEC, result=types.boolean)
    needs_division = numba.njit(lambda scale: of_scale(scale))
    low, high = np.ldexp(dtype(1), -EDGE[dtype]), np.ldexp(dtype(1), EDGE[dtype])
    assert not any(needs_division(scale) for scale in scales(dtype))
    outside = (low, high, low / 2, high * 2, 0.0, -1.0, np.inf, -np.inf, np.nan)
    assert all(needs_division(dtype(scale)) for scale in outside)
