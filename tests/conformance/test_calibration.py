"""Ranges of percentile and entropy, next to those of numpy.percentile and of onnxruntime's calibration."""

import numpy as np
import pytest

import fastq

DISTRIBUTIONS = {
    "normal": lambda rng, count: rng.standard_normal(count),
    "heavy tails": lambda rng, count: rng.standard_t(3, count),
    "half zeros": lambda rng, count: np.maximum(rng.standard_normal(count), 0),
    "one-sided": lambda rng, count: -rng.exponential(3, count),
    "two peaks": lambda rng, count: rng.choice([-1, 2], count) + rng.standard_normal(count) / 20,
    "an outlier": lambda rng, count: np.append(rng.standard_normal(count - 1), -300),
    "far outliers": lambda rng, count: np.append(rng.standard_normal(count - 20), np.full(20, 40_000)),
}
COUNT = 100_000


def data(name, seed):
    """Elements of a distribution, as large as the seed says."""
    rng = np.random.default_rng(seed)
    return (DISTRIBUTIONS[name](rng, COUNT) * 2.0 ** rng.integers(-9, 9)).astype(np.float32)


def calibrator_of(x, symmetric):
    """A calibrator that x comes to in pieces."""
    calibrator = fastq.Calibrator("int8", symmetric=symmetric)
    for part in np.array_split(x, 5):
        calibrator.update(part)
    return calibrator


def collected(x, method, percentile, bins, coarse=128):
    """The range of onnxruntime's HistogramCollector."""
    calibrate = pytest.importorskip(
        "onnxruntime.quantization.calibrate",
        reason="onnxruntime is not installed; ranges of Calibrator are not compared with its HistogramCollector",
    )
    collector = calibrate.HistogramCollector(method, method == "entropy", bins, coarse, percentile, "same")
    collector.collect({"x": [x]})
    return np.array(collector.compute_collection_result()["x"][:2], np.float64)


@pytest.mark.filterwarnings("ignore:bins=4096 can't tell")  # of the narrow peaks
@pytest.mark.parametrize("share", [99.99, 99.0, 90.0])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_percentiles_are_those_of_numpy(name, symmetric, share):
    # contract 17.5
    for seed in range(3):
        x = data(name, seed)
        lo, hi = calibrator_of(x, symmetric).clipping_range("percentile", percentile=share)
        if symmetric:  # never beyond minimum and maximum
            end = np.percentile(np.abs(x), share)
            assert end <= max(hi, -lo) * (1 + 1e-6) <= end * (1 + 1 / 64)
        else:
            first, last = np.percentile(x, [(100 - share) / 2, (100 + share) / 2])
            a_bin = max(abs(first), abs(last)) / 64
            assert first - a_bin <= lo <= first + a_bin / 16
            assert last - a_bin / 16 <= hi <= last + a_bin


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS.keys() - {"far outliers", "an outlier", "two peaks"}))
def test_percentiles_are_those_of_onnxruntime(name):
    """Which has bins of one width, and takes the lower edge of either: a bin in 2,048 of the range at most."""
    x = data(name, 1)
    lo, hi = calibrator_of(x, False).clipping_range("percentile", percentile=99.0)
    width = float(x.max() - x.min())
    np.testing.assert_allclose((lo, hi), collected(x, "percentile", 99.0, 2048), atol=width / 100)


def test_onnxruntimes_bins_lose_what_these_keep():
    x = data("far outliers", 0)
    lo, hi = collected(x, "percentile", 99.9, 2048)
    assert ((x >= lo) & (x <= hi)).mean() < 0.6
    lo, hi = calibrator_of(x, False).clipping_range("percentile", percentile=99.9)
    assert 0.999 <= ((x >= lo) & (x <= hi)).mean() < 0.9995


@pytest.mark.parametrize("name", ["normal", "heavy tails", "an outlier", "far outliers"])
def test_entropy_ranges_lose_no_more_than_those_of_onnxruntime(name):
    """By the error of most elements, which are within both ranges."""
    # contract 17.6
    x = data(name, 2)
    ends = np.array(calibrator_of(x, True).clipping_range("entropy"))
    theirs = collected(x, "entropy", 99.9, 2048)
    most = x[np.abs(x) <= np.percentile(np.abs(x), 99)]

    def error(ends):
        scale = max(abs(ends)) / 127
        return np.square(np.clip(np.rint(most / scale), -127, 127) * scale - most).mean()

    assert error(ends) <= 1.3 * error(theirs)
    assert max(abs(ends)) <= 1.5 * max(abs(theirs))
