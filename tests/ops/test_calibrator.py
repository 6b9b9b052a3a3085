"""Calibrator: one state whatever the split, order and tree of merges; thresholds equal to those of the reference."""

import copy
import functools
import io
import itertools
import json
import operator
import pickle
import warnings
from contextlib import contextmanager

import ml_dtypes
import numpy as np
import pytest
from catalogue import LAYOUTS

import fastq
from fastq import reference
from fastq.formats.qtypes import as_qtype
from fastq.ops import calibration_methods as calibration
from fastq.ops import calibrator_file, histogram
from fastq.reference import calibration as oracle

DTYPES = [np.dtype(name) for name in ("f2", "f4", "f8", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]
DTYPES += [np.dtype(ml_dtypes.bfloat16)]
AXES = None, 0, -1, (0, 2), (1,), (), (0, 1, 2)


def data(rng, dtype, shape):
    """Numbers over all magnitudes of a dtype, channel by channel, with zeros of both signs and subnormals."""
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        x = rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)
        return np.asarray(x // rng.choice([1, 7, 1000], shape).astype(dtype) if ends.bits > 8 else x)
    ends = ml_dtypes.finfo(dtype)
    least, most = np.log2(float(ends.smallest_subnormal)), np.log2(float(ends.max)) - 1
    middle = rng.uniform(least, most, (shape[0], 1, 1)) if rng.integers(2) else rng.uniform(least, most)
    size = np.exp2(np.clip(middle + rng.uniform(-14, 2, shape), least, most))
    x = size * rng.choice([-1, 1], shape)
    return np.where(rng.random(shape) < 0.1, rng.choice([0.0, -0.0], shape), x).astype(dtype)


def stored(calibrator, folder):
    """The bytes of a calibrator's file."""
    calibrator.save(folder / "state")
    return (folder / "state").read_bytes()


def state(calibrator):
    """All that a calibrator has seen."""
    return calibrator._compute, *((each.shape, each.dtype, each.tobytes()) for each in calibrator._histogram)


def pieces(rng, x, axis):
    """Split an array into parts with all its channels, some of them empty, in random order."""
    kept = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
    free = [a for a in range(x.ndim) if a not in {k % x.ndim for k in kept}]
    parts = [x]
    for _ in range(rng.integers(1, 4) if free else 0):
        k = rng.integers(len(parts))
        part, a = parts.pop(k), rng.choice(free)
        parts += np.split(part, np.sort(rng.integers(0, part.shape[a] + 1, rng.integers(1, 4))), axis=a)
    return [parts[k] for k in rng.permutation(len(parts))]


def tree(rng, leaves):
    """Merge calibrators in a random tree, by either way to merge."""
    while len(leaves) > 1:
        a, b = (leaves.pop(rng.integers(len(leaves))) for _ in range(2))
        if rng.integers(2):
            a.merge(b)
            leaves.append(a)
        else:
            leaves.append(a | b)
    return leaves[0]


def differs(seed):
    """What differs between a whole array and its parts, and between either and the reference; None: nothing."""
    rng = np.random.default_rng(seed)
    dtype, axis = DTYPES[seed % len(DTYPES)], AXES[seed // len(DTYPES) % len(AXES)]
    shape = tuple(rng.integers(1, 8, 3))
    x, bins = data(rng, dtype, shape), int(rng.choice([16, 64])) if axis else 4096

    def new(api=fastq):
        return api.Calibrator("int8", axis=axis, bins=bins)

    whole, slow = new(), new(reference)
    whole.update(x)
    slow.update(x)
    leaves = [new() for _ in range(rng.integers(1, 6))]
    for part in pieces(rng, x, axis):
        leaves[rng.integers(len(leaves))].update(part)
    merged, expected = tree(rng, leaves), slow.histogram()
    if state(merged) != state(whole):
        return f"{dtype} {axis} {shape}: the parts differ from the whole"
    for name, ours, theirs in zip(expected._fields, whole._histogram, expected, strict=True):
        if ours.tobytes() != theirs.tobytes() or ours.shape != theirs.shape:
            return f"{dtype} {axis} {shape}: {name} differs from the reference"
    if whole.count.all() and whole.importance().tobytes() != slow.importance().tobytes():
        return f"{dtype} {axis} {shape}: importance differs from the reference"
    return None


QUICK = [seed for seed in range(300) if DTYPES[seed % len(DTYPES)] == np.float32]  # each dtype compiles for seconds


def test_any_split_order_and_tree_gives_the_same_bytes():
    # contract 17.3
    assert [differs(seed) for seed in QUICK] == [None] * len(QUICK)


@pytest.mark.slow("a minute: all dtypes")
def test_a_thousand_partitions():
    assert [differs(seed) for seed in range(1000)] == [None] * 1000


@contextmanager
def replaced(module, name, value):
    old = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, old)


def middles_beyond_the_ends(seen):
    edges = histogram.units_of_both_sides(seen.counts.shape[-1] // 2)
    return np.broadcast_to((edges[:-1] + edges[1:]) / 2, seen.counts.shape)


def bins_of_one_width(x, bins):
    return (
        np.trunc(np.ldexp(x, -oracle.exponent_of(float(np.abs(x).max()), bins))).clip(-bins, bins - 1).astype(np.int64)
    )


def wide_exponent(magnitude, bins, right=oracle.exponent_of):
    return right(magnitude, bins) + 1


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        (histogram, "_merge_bins", lambda part, wanted: part.counts),
        (histogram, "exponents", lambda part, right=histogram.exponents: right(part) + (part.lo < -1)),
        (calibration, "_middles", middles_beyond_the_ends),
        (oracle, "bins_of", bins_of_one_width),
        (oracle, "exponent_of", wide_exponent),
    ],
)
def test_a_wrong_rule_is_found(module, name, wrong):
    with replaced(module, name, wrong):
        assert any(differs(seed) for seed in QUICK)


# --- layouts, threads, policies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [None, 0, 1])
def test_layouts_and_threads(axis, threads):
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((300, 700)) * np.exp2(rng.integers(-40, 40, 700))).astype(np.float32)
    slow = reference.Calibrator("int8", axis=axis, bins=256)
    slow.update(x)
    expected = [each.tobytes() for each in slow.histogram()]
    kept = [layout(x) for name, layout in LAYOUTS.items() if name not in ("negative", "broadcast")]
    for n, view in itertools.product((1, 2), (*kept, np.flip(np.flip(x).copy()))):
        threads(n)
        fast = fastq.Calibrator("int8", axis=axis, bins=256)
        fast.update(view)
        assert [each.tobytes() for each in fast._histogram] == expected


@pytest.mark.parametrize("bins", [16, 1024])
def test_importance_is_the_mean_of_squares(bins):
    # contract 17.8
    """Of columns of unlike sizes, some of outliers, within what half a bin can change at most, by merged parts."""
    rng = np.random.default_rng(0)
    x = (rng.standard_t(5, (9, 200, 40)) * np.exp2(rng.integers(-9, 9, 40))).astype(np.float32)
    x[..., 7], x[..., 8] = 0, 3
    parts = [fastq.Calibrator("int8", axis=-1, bins=bins) for _ in x]
    for part, batch in zip(parts, x, strict=True):
        part.update(batch)
    found = functools.reduce(operator.or_, parts).importance()
    assert (found.dtype, found[7], found[8]) == (np.float32, 0, 9)
    squares = np.square(x, dtype=np.float64)
    magnitudes = np.abs(x, dtype=np.float64)
    per_octave = {16: 8, 1024: 64}[bins]
    top = np.exp2(np.floor(np.log2(magnitudes.max(axis=(0, 1), initial=1e-30))) + 1)
    narrowest = top / 2.0 ** (bins // per_octave - 1) / per_octave
    width = np.maximum(magnitudes / per_octave, narrowest)  # of the bin of each element, at most
    off = (width * magnitudes + width**2 / 4).mean(axis=(0, 1))
    assert (np.abs(found - squares.mean(axis=(0, 1))) <= off * (1 + 1e-6)).all()


@pytest.mark.parametrize("api", [fastq, reference])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_refused_leaves_the_state_as_it_was(api, bad):
    # contract 17.1
    calibrator = api.Calibrator("int8", axis=0)
    calibrator.update(np.ones((2, 5), np.float32))
    before = calibrator.qparams().scale.tobytes()
    x = np.full((2, 5000), 9, np.float32)
    x[1, 4321] = bad
    with pytest.raises(ValueError, match="x has 1 "):
        calibrator.update(x)
    with pytest.raises(ValueError, match=r"x has channels of shape \(3,\), earlier arrays \(2,\)"):
        calibrator.update(np.ones((3, 5), np.float32))
    with pytest.raises(np.exceptions.AxisError):
        calibrator.update(np.float32(1))
    assert calibrator.qparams().scale.tobytes() == before


@pytest.mark.parametrize("axis", [-64, 63, (0, -63), (0, -1), (1, -1)])
def test_axes_of_some_array(axis):
    assert fastq.Calibrator("int8", axis=axis).axis == axis


@pytest.mark.parametrize("axis", [-65, 64, (0, 64)])
def test_axes_that_no_array_has(axis):
    with pytest.raises(np.exceptions.AxisError, match=r"^axis of x: axis -?6\d is out of bounds"):
        fastq.Calibrator("int8", axis=axis)


@pytest.mark.parametrize(("dtype", "nan"), [("int8", "zero"), ("float8_e4m3fn", "zero"), ("float8_e4m3fn", "keep")])
def test_nan_counts_as_zero(dtype, nan):
    x = np.array([3, np.nan, 5, np.nan, 4] * 50, np.float32)
    fast, slow = (api.Calibrator(dtype, nan=nan) for api in (fastq, reference))
    fast.update(x)
    slow.update(x)
    assert fast.minimum == 0
    assert fast.count == 250
    assert [each.tobytes() for each in fast._histogram] == [each.tobytes() for each in slow.histogram()]


@pytest.mark.parametrize("api", [fastq, reference])
def test_bins_by_default(api):
    # contract 17.2
    made = [api.Calibrator("int8", axis=axis) for axis in (None, 0, ())]
    assert [calibrator.bins for calibrator in made] == [4096, 1024, 1024]


def test_what_is_seen_is_an_array_whatever_was_merged():
    calibrator = fastq.Calibrator("int8")
    for x in (1.5, -2.5):
        calibrator.update(np.float32(x))
        found = calibrator.minimum, calibrator.maximum, calibrator.count, calibrator.counts, calibrator.edges
        assert {type(each) for each in found} == {np.ndarray}


@pytest.mark.parametrize("api", [fastq, reference])
def test_nothing_was_seen(api):
    calibrator = api.Calibrator("int8")
    with pytest.raises(ValueError, match="call update"):
        calibrator.qparams()
    calibrator.update(np.empty(0, np.float32))
    with pytest.raises(ValueError, match="no elements"):
        calibrator.qparams()


# --- parameters -------------------------------------------------------------------------------------------------------

METHODS = [
    ("minmax", {}),
    ("percentile", {"percentile": 97.5}),
    ("percentile", {"percentile": 100}),
    ("mse", {"grid": 9}),
]
METHODS += [("entropy", {"quantized_bins": 16})]
FORMATS = [("int8", True, "onnx"), ("uint4", False, "onnx"), ("int3", True, "onnx"), ("float8_e4m3fn", False, "onnx")]
FORMATS += [("uint8", False, "torch"), ("uint8", False, "faiss"), ("int8", True, "tflite")]
FORMATS = [row for row in FORMATS if row[2] in fastq.CONVENTIONS]


def samples(seed, dtype=np.float32):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((3, 4, 500)) * np.exp2(rng.integers(-20, 20, (3, 4, 1)))
    return (np.maximum(x, 0) if seed % 3 == 2 else x).astype(dtype)


def same(a, b):
    numbers = [(p.scale.dtype, p.scale.shape, p.scale.tobytes(), p.zero_point.tobytes(), p.key) for p in (a, b)]
    return numbers[0] == numbers[1]


@pytest.mark.slow("the reference tries all grids", quick=lambda method, options: "grid" not in options)
@pytest.mark.filterwarnings("ignore:bins=64 can't tell")
@pytest.mark.parametrize(("method", "options"), METHODS)
def test_parameters_equal_those_of_the_reference(method, options):
    # contract 17.4
    for seed, (dtype, symmetric, convention) in enumerate(FORMATS):
        axis, x = [None, 1, (0, 1)][seed % 3], samples(seed, [np.float32, np.float64][seed % 2])
        pair = [
            api.Calibrator(dtype, axis=axis, symmetric=symmetric, convention=convention, bins=64)
            for api in (fastq, reference)
        ]
        for calibrator in pair:
            for part in np.split(x, 2, axis=2):
                calibrator.update(part)
        assert same(*(each.qparams(method, **options) for each in pair)), (dtype, convention, axis)


def test_minmax_equals_choose_qparams():
    for seed, (dtype, symmetric, convention) in enumerate(FORMATS):
        x = samples(seed)
        for axis in (None, 0, (0, 1)):
            options = {"axis": axis, "symmetric": symmetric, "convention": convention}
            calibrator = fastq.Calibrator(dtype, **options)
            for part in np.split(x, 5, axis=2):
                calibrator.update(part)
            assert same(calibrator.qparams(), fastq.choose_qparams(x, dtype, **options))


@pytest.mark.slow("compiles 2 kernels a case")
@pytest.mark.parametrize(
    ("dtype", "convention", "x"),
    [
        ("int8", "sentence-transformers", [1.7e308, -1.7e308, 0.0, 1.5]),  # values of empty bins are infinite
        ("int2", "tflite", [np.finfo(np.float64).max, -np.finfo(np.float64).max, 1.0]),  # outermost edges are
    ],
)
def test_mse_of_the_largest_numbers(dtype, convention, x):
    ranges = []
    for api in (fastq, reference):
        calibrator = api.Calibrator(dtype, bins=64, convention=convention)
        calibrator.update(np.array(x))
        ranges.append(calibrator.clipping_range("mse", grid=10))
    np.testing.assert_array_equal(*ranges, strict=True)
    assert np.isfinite(ranges[0]).all()


def test_mse_is_never_worse_than_minmax():
    for seed in range(6):
        calibrator = fastq.Calibrator("int3", symmetric=True)
        calibrator.update(x := samples(seed))
        errors = [fastq.compare(x, fastq.quantize(x, qparams=calibrator.qparams(m))).mse for m in ("mse", "minmax")]
        assert errors[0] <= errors[1]


@pytest.mark.parametrize(("axis", "shape"), [(1, (6,)), ((0, 2), (2, 3))])
def test_mse_of_channels_is_that_of_each(axis, shape):
    # contract 17.7
    x = samples(0)[:2, :3, :50].reshape(*shape, 50)
    of_channels = fastq.Calibrator("int3", axis=axis, symmetric=True, bins=16)
    of_channels.update(np.moveaxis(x, -1, len(shape) - 1))
    scale = of_channels.qparams("mse", grid=3).scale
    for channel in np.ndindex(shape):
        calibrator = fastq.Calibrator("int3", symmetric=True, bins=16)
        calibrator.update(x[channel])
        assert calibrator.qparams("mse", grid=3).scale == scale[channel]


# --- thresholds -------------------------------------------------------------------------------------------------------


def histograms():
    """Counts of several distributions by bins that a Calibrator has, and how coarse others are."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        count = int(10 ** rng.uniform(1, 5))
        x = [rng.standard_normal(count), np.maximum(rng.standard_normal(count), 0), rng.standard_t(2, count)][seed % 3]
        bins = int(rng.choice([16, 64, 256]))
        yield histogram_of(x, bins), bins, int(rng.choice([8, 32, 50]))


def histogram_of(x, bins):
    edges = oracle.edges_of(float(x.min()), float(x.max()), bins)
    return np.histogram(x, edges)[0]


def test_entropy_equals_the_plain_algorithm():
    # contract 17.6
    for counts, bins, coarse in histograms():
        if np.flatnonzero(counts[bins:] + counts[bins - 1 :: -1])[-1] < coarse // 2:
            continue
        found = calibration.least_divergent(counts, histogram.edge_units(bins), coarse)
        divergences = [oracle.divergence(counts, k, coarse) for k in range(coarse // 2, found + 1)]
        rest = [
            oracle.divergence(counts, k, coarse) for k in range(found + 1, bins + 1) if not counts[bins + k :].any()
        ]
        least = min([*divergences, *rest[:1]])
        assert divergences[-1] <= least + 2e-9
        assert all(each > least for each in divergences[:-1])


def test_a_divergence_is_that_of_scipys_formula():
    """Of intervals of whole bins of one width, on one side, which are the linear bins of 256."""
    rng = np.random.default_rng(2)
    counts = np.zeros(512, np.int64)
    counts[256:288] = rng.integers(1, 50, 32)
    inside = counts[256 : 256 + 16].astype(float)
    p = inside.copy()
    p[-1] += counts[272:].sum()
    q = np.repeat(inside.reshape(4, 4).mean(axis=1), 4)
    p, q = p / p.sum(), q / q.sum()
    assert oracle.divergence(counts, 16, 8) == pytest.approx(float((p * np.log(p / q)).sum()), rel=1e-12)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bins", [64, 256, 4096])
def test_a_percentile_ends_with_the_bins_of_quantiles(bins, symmetric):
    # contract 17.5
    for seed in range(30):
        rng = np.random.default_rng(seed)
        x = rng.standard_t(rng.integers(1, 9), 3000) * 10.0 ** rng.integers(-3, 4) + rng.choice([0, 0, 5, -300])
        x = (np.maximum(x, 0) if seed % 4 == 3 else x).astype(np.float32)
        share = float(rng.choice([100.0, 99.9, 99.0, 75.0, 10.0, 1.0 if symmetric else 0.0]))
        calibrator = fastq.Calibrator("int8", symmetric=symmetric, bins=bins)
        calibrator.update(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lo, hi = calibrator.clipping_range("percentile", percentile=share)
        edges = calibrator.edges
        numbers = np.sort(np.abs(x) if symmetric else x).astype(np.float64)
        cut = int((100.0 - share) / (100.0 if symmetric else 200.0) * x.size)
        first = numbers[min(cut, x.size - 1)]
        last = numbers[max(x.size - 1 - cut, 0)]
        last = last if symmetric else max(first, last)
        end = edges[np.searchsorted(edges, last, side="right")]
        assert hi == np.clip(end, x.min(), x.max())
        if symmetric:
            assert lo == np.clip(-end, x.min(), x.max())
        else:
            k = np.searchsorted(edges, first, side="right" if first >= 0 else "left") - 1
            assert lo == max(edges[k], x.min())
            assert share == 0.0 or ((x >= lo) & (x <= hi)).mean() >= share / 100


FAR = {"none": 0.0, "15,000 times": 1500.0, "sentinels": -9999.0, "1e9": -1e9, "fill value": 9.969e36, "largest": 3e38}


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("axis", [None, 0])
@pytest.mark.parametrize("far", FAR)
def test_far_outliers_leave_the_range_or_are_told(far, axis, symmetric):
    """Of 50 among 200,000: the range has the rank of NumPy's, within a hundredth, or bins say that they can't tell."""
    # contract 17.9
    rng = np.random.default_rng(0)
    x = (0.1 * rng.standard_normal((2, 100_000))).astype(np.float32)
    x[:, :25] = FAR[far]
    calibrator = fastq.Calibrator("int8", symmetric=symmetric, axis=axis)
    for part in np.array_split(x, 7, axis=1):
        calibrator.update(part)
    wide = 4 * 0.1 * np.abs(rng.standard_normal(100_000)).max()
    for method, options in (
        ("percentile", {"percentile": 99.9}),
        ("percentile", {"percentile": 80.0}),
        ("entropy", {}),
    ):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            lo, hi = calibrator.clipping_range(method, **options)
        if told:
            assert abs(FAR[far]) >= (1e9 if axis is None else 9999)
            assert str(told[0].message).startswith(f"bins={calibrator.bins} can't tell the {method} range")
            continue
        for row, low, high in zip(x if axis == 0 else [x], np.atleast_1d(lo), np.atleast_1d(hi), strict=True):
            if method == "entropy":
                assert ((row >= low) & (row <= high)).mean() >= 0.98
            elif symmetric:
                assert abs((np.abs(row) <= high).mean() - options["percentile"] / 100) <= 0.01
            else:
                cut = (1 - options["percentile"] / 100) / 2
                assert abs((row < low).mean() - cut) <= 0.01
                assert abs((row > high).mean() - cut) <= 0.01
            assert -wide < low < high < wide


def test_bins_that_can_not_tell_name_the_channels():
    x = np.ones((3, 1000), np.float32)
    x[1] = np.random.default_rng(0).standard_normal(1000)
    x[1, 0] = 1e30
    calibrator = fastq.Calibrator("int8", axis=0, bins=16)
    calibrator.update(x)
    for method in ("percentile", "entropy"):
        for choose in (calibrator.qparams, calibrator.clipping_range):
            match = rf"bins=16 can't tell the {method} range of 1 channels, the first .*\[1\]"
            with pytest.warns(UserWarning, match=match) as caught:
                choose(method, percentile=99.0, quantized_bins=8)
            assert [each.filename for each in caught] == [__file__]


def clipped_to_nothing(before, most):
    return before.size // 2


@pytest.mark.slow("tries the comparison")
@pytest.mark.parametrize(
    ("module", "name", "wrong", "method"),
    [
        (calibration, "_divergences", lambda counts, widths, ends, *_: -ends, "entropy"),
        (calibration, "NEAR", 1.0, "entropy"),
        (calibration, "FINE_OCTAVES", 0, "entropy"),
        (calibration, "highest_bin", clipped_to_nothing, "percentile"),
        (
            calibration.CalibrationTarget,
            "values_of",
            lambda scheme, x, lo, hi: np.clip(x, lo[..., None], hi[..., None]),
            "mse",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:bins=")
def test_a_wrong_threshold_is_found(module, name, wrong, method):
    options = dict(METHODS)[method]
    with replaced(module, name, wrong):
        found = []
        for seed in range(8):
            pair = [api.Calibrator("int3", axis=(0, 1), symmetric=True, bins=64) for api in (fastq, reference)]
            for calibrator in pair:
                calibrator.update(samples(seed))
            found.append(not same(*(each.qparams(method, **options) for each in pair)))
        assert any(found)


# --- files and pickles ------------------------------------------------------------------------------------------------


def filled(**options):
    calibrator = fastq.Calibrator("int8", **({"axis": 0, "bins": 16} | options))
    calibrator.update(np.array([[1, -2, 3], [0, -0.0, 0]], np.float32))
    return calibrator


@pytest.mark.slow("compiles 3 kernels a case", quick=lambda options: not options or "axis" in options)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dtype": as_qtype("int8").with_bits(5)},
        {"axis": (0, 1)},
        {"axis": None},
        {"convention": fastq.Convention("own", includes_zero=False)},
        {"dtype": "float8_e5m2", "nan": "keep"},
    ],
    ids=str,
)
def test_round_trips(options, tmp_path):
    dtype = options.pop("dtype", "int8")
    for x in (None, np.array([[1, -2, 3], [0, -0.0, 0]], np.float32), np.ones((2, 3))):
        calibrator = fastq.Calibrator(dtype, **({"axis": 0, "bins": 16} | options))
        if x is not None:
            calibrator.update(x)
        expected = stored(calibrator, tmp_path)
        for other in (fastq.Calibrator.load(tmp_path / "state"), pickle.loads(pickle.dumps(calibrator))):
            assert stored(other, tmp_path) == expected
            other.merge(calibrator)
            if x is not None:
                assert same(other.qparams(), calibrator.qparams())
                assert np.array_equal(other.count, 2 * calibrator.count)


def test_a_copy_and_a_union_are_apart_from_what_they_were_made_of():
    calibrator = filled()
    other, both = copy.copy(calibrator), calibrator | calibrator
    other.update(np.full((2, 1), 100, np.float32))
    both |= calibrator
    assert [each.count.tolist() for each in (calibrator, other, both)] == [[3, 3], [4, 4], [9, 9]]


def test_merge_refuses_what_does_not_fit():
    for name, value in {"axis": 1, "symmetric": True, "convention": "torch", "bins": 32, "nan": "zero"}.items():
        with pytest.raises(ValueError, match=f"other has {name}="):
            filled().merge(fastq.Calibrator("int8", **({"axis": 0, "bins": 16} | {name: value})))
    with pytest.raises(ValueError, match="other has dtype="):
        filled().merge(fastq.Calibrator("uint8", axis=0, bins=16))
    other = fastq.Calibrator("int8", axis=0, bins=16)
    other.update(np.ones((5, 1), np.float32))
    with pytest.raises(ValueError, match="other has channels"):
        filled().merge(other)
    with pytest.raises(TypeError, match="other"):
        filled().merge(np.ones(3))
    many = filled()
    for _ in range(60):
        many.merge(many)
    with pytest.raises(ValueError, match=r"other has \d+ elements, and a Calibrator counts less than 2\*\*62"):
        many.merge(many)
    assert (many.count == 3 << 60).all()
    with pytest.raises(TypeError):
        filled() | 3


def changed(header, **fields):
    return json.dumps(header | fields).encode() + b"\n"


def hostile(content):
    """Files that no calibrator wrote, of one that did."""
    line, _, numbers = content.partition(b"\n")
    header, words = json.loads(line), np.frombuffer(numbers, "<i8").copy()

    def with_words(index, value, dtype="<i8"):
        other = words.copy()
        other[index : index + 1].view(dtype)[:] = value
        return line + b"\n" + other.tobytes()

    yield b""
    yield b"\n"
    yield b"[" * 100_000
    yield b"{}\n"
    yield pickle.dumps(print)
    yield from (content[:k] for k in (1, len(line), len(line) + 1, len(content) - 1))
    yield content + b"\0"
    for fields in (
        {"shape": [2**40]},
        {"shape": [-2]},
        {"shape": [2.0]},
        {"shape": [1] * 70},
        {"shape": "2"},
        {"shape": None},
        {"shape": [0]},
        {"bins": 0},
        {"bins": -1},
        {"bins": 17},
        {"bins": 2**70},
        {"bins": "16"},
        {"dtype": "nonsense"},
        {"dtype": ["int8"]},
        {"dtype": "nvfp4"},
        {"bits": 77},
        {"axis": "0"},
        {"axis": [[0]]},
        {"symmetric": 1},
        {"convention": {"name": 3}},
        {"convention": {"nonsense": 3}},
        {"convention": "nonsense"},
        {"nan": "nonsense"},
        {"compute": "object"},
        {"axis": None},
        {"axis": [0, 1]},
        {"format": "other"},
        {"more": 1},
    ):
        yield changed(header, **fields) + numbers
    yield line.replace(b'"axis"', b'"aXis"') + b"\n" + numbers
    for value in (np.nan, np.inf, 1e300, -3.0):
        yield with_words(2, value, "<f8")  # the first maximum
    yield with_words(1, -0.0, "<f8")
    yield with_words(4, -1)
    yield with_words(4, 2**63 - 1)
    yield with_words(4, 1)  # a bin beyond the minimum
    yield with_words(2, np.nextafter(3.0, 4), "<f8")  # no float32
    yield line[:-1] + b', "nan": "raise"}\n' + numbers
    yield line + b"\n" + bytes(len(numbers))


def test_hostile_files_are_refused_in_one_line(tmp_path):
    path = tmp_path / "state"
    content = stored(filled(), tmp_path)
    for k, bad in enumerate(hostile(content)):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match="path is not a file of a Calibrator") as refused:
            fastq.Calibrator.load(path)
        assert "\n" not in str(refused.value), k
        assert len(str(refused.value)) < 500, k
    path.write_bytes(content)
    assert stored(fastq.Calibrator.load(path), tmp_path) == content


@pytest.mark.slow("the reference tries all ranges", quick=lambda value, method: value == 3.0001)
@pytest.mark.parametrize("method", ["percentile", "entropy", "mse"])
@pytest.mark.parametrize("value", [3.0001, -3.0001, 1e-45, 1.79e308])
def test_ranges_of_one_value_are_that_value(value, method):
    x = np.full(100, value, np.float32 if abs(value) < 1e38 else np.float64)
    calibrator, plain = fastq.Calibrator("int8"), reference.calibration.Calibrator("int8")
    for each in (calibrator, plain):
        each.update(x)
    lo, hi = calibrator.clipping_range(method)
    assert type(lo) is type(hi) is np.ndarray
    assert (lo, hi) == plain.clipping_range(method)
    assert lo == hi == x[0] or method == "mse"


@pytest.mark.filterwarnings("error")
def test_the_largest_numbers_give_no_warning():
    x = np.array([np.finfo(np.float64).max, -np.finfo(np.float64).max, 1.0])
    calibrator, plain = fastq.Calibrator("int8"), reference.calibration.Calibrator("int8")
    for each in (calibrator, plain):
        each.update(x)
    assert calibrator.edges.shape == (2 * 4096 + 1,)
    assert calibrator.clipping_range("percentile") == plain.clipping_range("percentile")


def test_a_convention_by_its_name_or_its_row_is_the_same():
    named, row = (
        fastq.Calibrator("int8", convention="torch"),
        fastq.Calibrator("int8", convention=fastq.CONVENTIONS["torch"]),
    )
    row.update(np.ones(3, np.float32))
    named.merge(row)
    assert named.count == 3


def test_a_file_that_can_not_be_written_leaves_the_old_one(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        filled().save(tmp_path / "nowhere" / "state")
    with pytest.raises(OSError, match="state"):
        fastq.Calibrator.load(tmp_path / "state")


REFUSED = [
    (lambda c: c("int8", bins=17), ValueError, "bins must be a power of two"),
    (lambda c: c("int8", bins=8), ValueError, "bins must be a power of two"),
    (lambda c: c("mxfp4"), ValueError, "dtype must be a format without its own blocks"),
    (lambda c: some(c).qparams("entropy", quantized_bins=3), ValueError, "quantized_bins must be even"),
    (lambda c: some(c).qparams("mse", grid=0), ValueError, "grid must be from 1"),
    (lambda c: some(c).qparams("percentile", percentile="99"), TypeError, "percentile must be a number"),
    (lambda c: some(c).qparams("percentile", percentile=True), TypeError, "percentile must be a number"),
    (lambda c: some(c).qparams("percentile", percentile=101), ValueError, "percentile must be from 0"),
    (lambda c: some(c).merge(3), TypeError, "other must be a Calibrator"),
    (lambda c: some(c).merge(c("uint8")), ValueError, "other has .*dtype"),
]


def some(calibrator):
    """A calibrator that has seen something."""
    made = calibrator("int8")
    made.update(np.linspace(-1, 1, 100, dtype=np.float32))
    return made


@pytest.mark.parametrize("api", [fastq, reference], ids=["fastq", "reference"])
@pytest.mark.parametrize(("call", "error", "match"), REFUSED)
def test_wrong_argument(api, call, error, match):
    with pytest.raises(error, match=match):
        call(api.Calibrator)


@pytest.mark.parametrize(("path", "error"), [(3, TypeError), (None, TypeError), (b"x", TypeError), ("", ValueError)])
def test_wrong_path(path, error):
    with pytest.raises(error, match="path must be"):
        filled().save(path)


def test_a_file_that_becomes_shorter():
    with pytest.raises(ValueError, match="it became shorter"):
        calibrator_file._read_histograms(io.BytesIO(bytes(8)), (), 16, 8 * (2 + 2 * 16))


# --- NaN that is left out ---------------------------------------------------------------------------------------------

FLOATS = ["float32", "float64", "float16", np.dtype(ml_dtypes.bfloat16)]
LENGTH = 9000  # more than is counted together
GAPS = {
    "none": lambda rng: np.zeros(LENGTH, bool),
    "a few": lambda rng: rng.random(LENGTH) < 0.01,
    "most": lambda rng: rng.random(LENGTH) < 0.95,
    "the first": lambda rng: np.arange(LENGTH) < 1,
    "the last": lambda rng: np.arange(LENGTH) == LENGTH - 1,
    "padding": lambda rng: np.arange(LENGTH) >= 100,
    "in front": lambda rng: np.arange(LENGTH) < 8900,
    "all but one": lambda rng: np.arange(LENGTH) != 5000,
    "all": lambda rng: np.ones(LENGTH, bool),
}


@pytest.mark.slow("a kernel for each dtype", quick=lambda dtype, gaps: dtype == "float32")
@pytest.mark.parametrize("gaps", GAPS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_what_is_left_out_is_no_element(dtype, gaps):
    """Channels with NaN have the state of those without: of positive numbers, so that a 0 would be seen."""
    rng = np.random.default_rng(42)
    x = np.stack([rng.uniform(1, 3, LENGTH), rng.normal(-5, 1, LENGTH), rng.uniform(2, 2.5, LENGTH)]).astype(dtype)
    missing = np.stack([GAPS[gaps](rng), GAPS["a few"](rng), GAPS["none"](rng)])
    given = np.where(missing, np.array(np.nan, x.dtype), x)
    for api in (reference, fastq):
        seen, parts = (api.Calibrator("uint8", axis=axis, bins=64, nan="omit") for axis in (-2, 0))
        seen.update(given)
        for k in range(0, LENGTH, 1700):
            parts.update(given[:, k : k + 1700])
        others = [fastq.Calibrator("uint8", bins=64) for _ in x]
        for other, row, gone in zip(others, x, missing, strict=True):
            other.update(row[~gone])
        for each in (seen, parts):
            found = each._histogram if api is fastq else each.histogram()
            for k, other in enumerate(others):
                assert [part[k].tobytes() for part in found] == [part.tobytes() for part in other._histogram]
        if gaps == "all":
            which = "1 of 3 channels, the first of which is \\[0\\]: call update" if api is fastq else ""
            for method in (seen.qparams, seen.importance):
                with pytest.raises(ValueError, match=f"no elements yet of {which}"):
                    method()
            with pytest.raises(ValueError, match="no elements yet: call update"):
                others[0].qparams()
            continue
        for method in ("minmax", "percentile", "entropy", "mse"):
            scales = [other.qparams(method).scale for other in others]
            assert seen.qparams(method).scale.tolist() == scales


def test_padding_is_no_data(tmp_path):
    x = np.array([np.nan, 1, 2, 3, np.nan], np.float32)
    seen = fastq.Calibrator("uint8", nan="omit")
    seen.update(x)
    assert (seen.minimum, seen.maximum, seen.count) == (1, 3, 3)
    seen.save(tmp_path / "c")
    loaded = fastq.Calibrator.load(tmp_path / "c")
    assert (loaded.nan, state(loaded)) == ("omit", state(seen))
    both = seen | loaded
    assert (both.nan, both.count, both.minimum) == ("omit", 6, 1)
    with pytest.raises(ValueError, match="other has nan='zero', this Calibrator has 'omit'"):
        seen.merge(fastq.Calibrator("uint8", nan="zero"))
    with pytest.raises(ValueError, match="nan must be one of 'raise', 'zero', 'keep', 'omit', not 'ignore'"):
        fastq.Calibrator("uint8", nan="ignore")
    with pytest.raises(ValueError, match="nan must be one of 'raise', 'zero', 'keep', not 'omit'"):
        fastq.quantize(x, "uint8", nan="omit")
    for wrong in (np.inf, -np.inf):
        with pytest.raises(ValueError, match="x has 1 infinite values"):
            seen.update(np.array([np.nan, wrong], np.float32))
    assert state(seen) == state(loaded)


def test_chunks_of_dask_leave_out_the_same():
    da = pytest.importorskip("dask.array")
    x = np.random.default_rng(1).uniform(1, 3, (40, 6)).astype(np.float32)
    x[:25, 2:4] = np.nan
    seen = fastq.Calibrator("uint8", axis=-1, bins=64, nan="omit")
    seen.update(x)
    lazy = fastq.dask.calibrate(da.from_array(x, chunks=(10, 2)), "uint8", axis=-1, bins=64, nan="omit").compute()
    assert state(lazy) == state(seen)
    assert seen.count.tolist() == [40, 40, 15, 15, 40, 40]
