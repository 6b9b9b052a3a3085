"""Ranges of onnxruntime's HistogramCollector, from the histogram that a Calibrator has: the same parameters."""

import numpy as np
import pytest
from catalogue import same_bytes

import fastq

DISTRIBUTIONS = {
    "normal": lambda rng, count: rng.standard_normal(count),
    "heavy tails": lambda rng, count: rng.standard_t(2, count),
    "half zeros": lambda rng, count: np.maximum(rng.standard_normal(count), 0),
    "one-sided": lambda rng, count: -rng.exponential(3, count),
    "two peaks": lambda rng, count: rng.choice([-1, 2], count) + rng.standard_normal(count) / 20,
    "an outlier": lambda rng, count: np.append(rng.standard_normal(count - 1), -300),
}


def data(name, seed):
    """Elements of a distribution, as many and as large as the seed says."""
    rng = np.random.default_rng(seed)
    return (DISTRIBUTIONS[name](rng, int(10 ** rng.uniform(2, 5))) * 2.0 ** rng.integers(-9, 9)).astype(np.float32)


def calibrator_of(x, bins, symmetric):
    """A calibrator that x comes to in pieces."""
    calibrator = fastq.Calibrator("int8", symmetric=symmetric, bins=bins)
    for part in np.array_split(x, 5):
        calibrator.update(part)
    return calibrator


def collected(calibrator, method, percentile, coarse):
    """The range that onnxruntime takes from the counts of a calibrator."""
    calibrate = pytest.importorskip(
        "onnxruntime.quantization.calibrate",
        reason="onnxruntime is not installed; ranges of Calibrator are not compared with its HistogramCollector",
    )
    counts, edges, bins = calibrator.counts, calibrator.edges, calibrator.bins
    if method == "percentile" and calibrator.symmetric:  # it counts magnitudes then
        counts, edges = counts[bins:] + counts[bins - 1 :: -1], edges[bins:]
    if method == "entropy":  # whose histograms end with the largest magnitude
        used = np.flatnonzero(counts + counts[::-1])[0]
        counts, edges = counts[used : 2 * bins - used], edges[used : edges.size - used]
    collector = calibrate.HistogramCollector(method, calibrator.symmetric, counts.size, coarse, percentile, "same")
    histogram = counts, edges.astype(np.float32), calibrator.minimum, calibrator.maximum
    collector.histogram_dict["x"] = (*histogram, np.maximum(-histogram[2], histogram[3]))
    return np.array(collector.compute_collection_result()["x"][:2], np.float32)


CASES = [(method, share, 128) for method, share in (("percentile", 99.999), ("percentile", 99.0), ("percentile", 60.0))]
CASES += [("entropy", 99.9, coarse) for coarse in (16, 32, 128)]


@pytest.mark.parametrize(("method", "share", "coarse"), CASES)
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_same_parameters(name, symmetric, method, share, coarse):
    # contract 17.5 and 17.6
    for seed in range(3):
        calibrator = calibrator_of(data(name, seed), 256, symmetric)
        ends = collected(calibrator, method, share, coarse)
        expected = fastq.choose_qparams(ends, "int8", symmetric=symmetric)
        actual = calibrator.qparams(method, percentile=share, quantized_bins=coarse)
        same_bytes(actual.scale, expected.scale)
        same_bytes(actual.zero_point, expected.zero_point)


@pytest.mark.parametrize(
    ("method", "other"), [("percentile", {"percentile": 90.0}), ("entropy", {"quantized_bins": 8})]
)
def test_other_options_are_seen_to_differ(method, other):
    calibrator = calibrator_of(data("normal", 1), 256, True)
    expected = fastq.choose_qparams(collected(calibrator, method, 99.0, 64), "int8", symmetric=True)
    assert calibrator.qparams(method, **other).scale != expected.scale
