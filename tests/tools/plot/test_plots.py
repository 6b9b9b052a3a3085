"""What `fastq.plot.histogram`, `sqnr`, `channels` and `compare` draw, against numbers computed with NumPy."""

import itertools

import numpy as np
import pytest

import fastq
from fastq import reference
from fastq.tools.plot.schemes import Trial

pytest.importorskip("matplotlib", reason="no matplotlib")
from matplotlib import pyplot
from matplotlib.collections import LineCollection

X = np.random.default_rng(8).standard_normal((40, 64)).astype(np.float32)
X[7] *= 40
CLIPPING = reference.choose_qparams(np.float32([-2, 2]), "int8")


def shares(ax):
    """Counts and edges of the bars."""
    heights, edges, _ = ax.patches[0].get_data()
    return np.where(heights > 0.5, heights, 0), edges


def figures_beside(ax):
    """The labels of the bars on the right."""
    return ax.child_axes[0].get_yticklabels()


def test_names_of_schemes_are_no_mathematics():
    ax = fastq.plot.compare(X, {"$x_{$": reference.quantize(X, "int8")})
    ax.figure.canvas.draw()
    assert [label.get_text() for label in ax.get_yticklabels()] == [r"\$x_{\$"]


def test_a_histogram_of_values_counts_all_and_shades_what_is_clipped():
    q = reference.quantize(X, qparams=CLIPPING)
    ax = fastq.plot.histogram(X, q)
    counts, edges = shares(ax)
    assert counts.sum() == X.size
    assert counts.tolist() == np.histogram(X.ravel().astype(np.float64), edges)[0].tolist()
    steps = (X.astype(np.float64) / q.scale).round() + q.zero_point
    share = 100 * np.mean((steps < -128) | (steps > 127))
    assert ax.get_title() == f"int8: clips {share:.2g} %"
    (grid,) = (c for c in ax.collections if isinstance(c, LineCollection))
    decoded = (np.arange(-128, 128) - int(q.zero_point)) * float(q.scale)
    assert np.allclose([path[0, 0] for path in grid.get_segments()], decoded)
    left, right = (patch.get_extents().x0 for patch in ax.patches[1:3])
    assert ax.patches[1].get_x() == edges[0]
    assert ax.patches[2].get_x() == pytest.approx(decoded[-1] + float(q.scale) / 2)
    assert left < right


def test_long_titles_stay_in_the_figure():
    q = reference.quantize(X, "int8", symmetric=True, convention="torch-fake-quantize")
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.8), layout="constrained")
    for ax in axes:
        fastq.plot.histogram(X, q, ax=ax)
    figure.canvas.draw()
    for ax in axes:
        title = ax.title.get_window_extent()
        assert 0 <= title.x0 < title.x1 <= figure.bbox.x1


@pytest.mark.slow("half a second each", quick=lambda shape: shape == (12, 3))
@pytest.mark.parametrize("shape", [(8, 6), (12, 3), (3, 3), (6, 8)])
def test_numbers_in_cells_do_not_touch(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    axes = fastq.plot.errors(x, reference.quantize(x, "uint4", axis=1, block_size=3))
    axes[0].figure.canvas.draw()
    assert axes[0].texts
    for ax in axes:
        boxes = [text.get_window_extent() for text in ax.texts]
        assert not any(box.overlaps(other) for box, other in itertools.combinations(boxes, 2))


def test_a_histogram_of_several_scales_is_one_of_codes():
    q = reference.quantize(X, "int8", axis=0)
    ax = fastq.plot.histogram(X, q)
    assert ax.get_xlabel() == "code, before it is rounded"
    counts, edges = shares(ax)
    positions = X / q.scale[:, None].astype(np.float64) + q.zero_point[:, None]
    assert counts.tolist() == np.histogram(positions, edges)[0].tolist()
    assert len(ax.patches) == 1  # nothing is clipped, nothing is shaded


@pytest.mark.parametrize(
    "scheme", [{"dtype": "uint8", "convention": "faiss", "axis": 0}, {"dtype": "mxint8"}, {"dtype": "nvfp4"}]
)
def test_positions_round_to_codes(scheme):
    q = reference.quantize(X, **scheme)
    positions = fastq.tools.plot.distributions._positions(X.astype(np.float64), q, tuple(np.indices(X.shape)))
    codes = q.unpacked().astype(np.float64)
    step = 1.0 if not q.dtype.element else 2.0
    assert np.abs(np.clip(positions, codes.min(), codes.max()) - codes).max() <= step + 1e-3


def test_sixteen_bits_are_drawn_as_a_span():
    ax = fastq.plot.histogram(X, reference.quantize(X, "int16"))
    assert ax.lines[0].get_label() == "65,536 codes"


def test_channels_are_those_of_numpy():
    q = reference.quantize(X, "int8")
    ax = fastq.plot.channels(X, q, axis=0)
    largest, errors = (patch.get_data().values for patch in ax.patches)
    assert largest.tolist() == np.abs(X).max(axis=1).astype(np.float64).tolist()
    assert np.allclose(errors, np.sqrt(np.mean((X - reference.dequantize(q).astype(np.float64)) ** 2, axis=1)))
    assert ax.get_title() == "40 channels of axis 0, 1 outlier"
    assert [text.get_text() for text in ax.texts] == ["7"]


@pytest.mark.parametrize("shape", [(12, 20), (6, 12, 7), (5, 6, 7, 8)])
def test_the_axis_with_the_outlier_is_drawn_and_others_are_named(shape):
    q = reference.quantize(np.ones(shape, np.float32), "int8", axis=0)
    for axis in range(len(shape)):
        x = np.random.default_rng(axis).uniform(1, 2, shape).astype(np.float32)
        np.moveaxis(x, axis, 0)[3] *= 40
        ax = fastq.plot.channels(x, q)
        assert ax.get_title() == f"{shape[axis]} channels of axis {axis}, 1 outlier"
        labels = [text.get_text() for text in ax.get_legend().get_texts()]
        assert f"outliers, axis {axis}: 3" in labels
        other = (axis + 1) % len(shape)
        np.moveaxis(x, other, 0)[1] *= 20
        assert fastq.plot.channels(x).get_title().splitlines()[1:] == [f"outliers of axis {other}: 1"]
        assert fastq.plot.errors(x, x)[0].get_title().splitlines()[-1] == "outliers: " + "; ".join(
            f"axis {k}: {channel}" for k, channel in sorted([(axis, 3), (other, 1)])
        )


def test_without_outliers_the_axis_of_the_scales_is_drawn():
    x = np.random.default_rng(0).uniform(1, 2, (8, 9)).astype(np.float32)
    assert fastq.plot.channels(x).get_title() == "8 channels of axis 0, no outliers"
    assert fastq.plot.channels(x, reference.quantize(x, "int8", axis=-1)).get_title().startswith("9 channels of axis 1")


def test_many_channels_are_drawn_by_the_largest():
    wide = np.ones((3, 2000), np.float32)
    wide[1, 1234] = 50
    ax = fastq.plot.channels(wide, axis=1)
    heights, edges, _ = ax.patches[0].get_data()
    assert len(heights) <= 512
    assert heights[np.searchsorted(edges, 1234) - 1] == 50
    assert ax.get_title() == "2,000 channels of axis 1, 1 outlier"
    assert fastq.plot.channels(np.zeros((3, 4), np.float32)).get_title().endswith("no outliers")


def test_ratios_are_those_of_the_reference():
    schemes = [{"dtype": name, "axis": 0} for name in ("int4", "int8")]
    line = fastq.plot.sqnr(X, {"rows": schemes}).lines[0]
    assert line.get_ydata().tolist() == [reference.compare(X, reference.quantize(X, **s)).sqnr_db for s in schemes]
    assert line.get_xdata().tolist() == [4 + 40 / 64, 8 + 40 / 64]
    assert len(fastq.plot.sqnr(X).lines) == 7


def test_a_scale_for_all_is_that_of_the_whole_array():
    large = np.ones((3000, 64), np.float32)
    large[1, 1] = 1000  # in no row of the sample
    (ratio,) = fastq.plot.sqnr(large, {"one": [{"dtype": "int8"}]}).lines[0].get_ydata()
    assert ratio < 10
    assert fastq.plot.sqnr(np.ones(300_000, np.float32)).get_title().endswith("65,536 elements of it measured")


@pytest.mark.parametrize(
    ("shape", "scheme", "elements"),
    [
        ((64, 3, 3, 3), {"axis": 0}, 27),
        ((2000, 512), {"axis": 1}, 2000),
        ((4, 5, 9), {"axis": 2}, 20),
        ((70000, 4), {"axis": 1, "block_size": 2}, 2),
        ((8, 96, 300), {"axis": 1, "block_size": 32}, 32),
    ],
)
def test_samples_are_of_whole_parts(shape, scheme, elements):
    x = np.random.default_rng(3).standard_normal(shape, np.float32)
    found = Trial(x).measure({"dtype": "int8", "symmetric": True, **scheme})
    assert found.bits == 8 + 32 / elements
    whole = reference.quantize(x, "int8", symmetric=True, **scheme)
    assert found.sqnr_db == pytest.approx(fastq.compare(x, whole).sqnr_db, 0.02)


def test_codes_of_tables_are_drawn_by_their_numbers():
    q = reference.quantize(X, "nf4", axis=1, block_size=64)
    counts, edges = shares(fastq.plot.histogram(X, q))
    assert counts.sum() == X.size
    assert edges[0] >= -1.2
    assert edges[-1] <= 1.2


def test_the_best_is_drawn_first():
    qs = {"coarse": reference.quantize(X, "int4"), "fine": reference.quantize(X, "int8"), "exact": X}
    ax = fastq.plot.compare(X, qs)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["exact", "fine", "coarse"]
    fine = fastq.compare(X, qs["fine"])
    assert ax.patches[1].get_width() == fine.sqnr_db
    assert (
        figures_beside(ax)[1].get_text() == f"{fine.sqnr_db:.1f} dB, 8.02 bits, errors up to {fine.max_abs_error:.3g}"
    )


def test_long_names_leave_room_for_the_figures():
    """No text is cut off, or covers another one or the bars."""
    name = "a long name of a scheme with blocks of 32 along axis -1"
    ax = fastq.plot.compare(X, {name: reference.quantize(X, "int4"), "int8": reference.quantize(X, "int8")})
    ax.figure.canvas.draw()
    frame = ax.get_window_extent()
    boxes = [label.get_window_extent() for label in (*ax.get_yticklabels(), *figures_beside(ax))]
    assert len(boxes) == 4
    assert all(ax.figure.bbox.x0 <= box.x0 and box.x1 <= ax.figure.bbox.x1 for box in boxes)
    assert not any(box.overlaps(other) for box in boxes for other in boxes if other is not box)
    assert not any(box.overlaps(frame) for box in boxes)
    assert frame.width > ax.figure.bbox.width / 4
    plain = fastq.plot.compare(X, {"int8": reference.quantize(X, "int8")}, ax=pyplot.subplots()[1])
    plain.figure.canvas.draw()  # where nothing makes room, the figures are within the axes
    (text,) = plain.texts
    assert text.get_window_extent().x1 <= plain.get_window_extent().x1


@pytest.mark.parametrize("shape", [(3, 3), (1,), (5, 2, 3)])
def test_small_arrays_are_drawn_in_the_axes_given(shape):
    x = np.linspace(-1, 2, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    q = reference.quantize(x, "int8")
    _, axes = pyplot.subplots(4)
    draw = (
        lambda ax: fastq.plot.histogram(x, q, ax=ax),
        lambda ax: fastq.plot.channels(x, q, ax=ax),
        lambda ax: fastq.plot.sqnr(x, ax=ax),
        lambda ax: fastq.plot.compare(x, {"int8": q}, ax=ax),
    )
    for ax, drawn in zip(axes, draw, strict=True):
        assert drawn(ax) is ax
    axes[0].figure.canvas.draw()


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_no_picture_has_colours_that_its_ground_hides(style):
    with pyplot.style.context(style):
        q = reference.quantize(X, qparams=CLIPPING)
        drawn = (fastq.plot.histogram(X, q), fastq.plot.channels(X, q), fastq.plot.compare(X, {"int8": q}))
        for ax in drawn:
            ground = np.array(ax.get_facecolor()[:3])
            for text in (ax.title, ax.xaxis.label, *ax.texts):
                ink = np.array(pyplot.matplotlib.colors.to_rgb(text.get_color()))
                assert np.abs(ink - ground).max() > 0.5


plot, COURSE = fastq.plot, X[:3, :3]
Q, SPOILED = reference.quantize(COURSE, "int8"), np.where(X[:3, :3] == X[0, 0], np.float32(np.nan), X[:3, :3])


def seen(axis=None):
    made = fastq.Calibrator("int8", axis=axis)
    made.update(COURSE)
    return made


INDEX = "channel must be an index"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: plot.histogram(X, X), TypeError, "q must be a QuantizedArray"),
        (lambda: plot.histogram(COURSE, Q, ax=3), TypeError, "ax must be an Axes, not 3"),
        (lambda: plot.channels(X[:0]), ValueError, r"x has shape \(0, .*: there is no channel to draw"),
        (lambda: plot.channels(X, X), TypeError, "q must be a QuantizedArray or None"),
        (lambda: plot.channels(X, Q), ValueError, "x has shape .* and q has"),
        (lambda: plot.channels(X, axis=2), np.exceptions.AxisError, "axis 2 is out of bounds"),
        (lambda: plot.channels(X, ax="a"), TypeError, "ax must be an Axes, not 'a'"),
        (lambda: plot.sqnr(X[:0]), ValueError, "x has no elements to quantize"),
        (lambda: plot.sqnr(X, {"rows": []}), TypeError, "schemes must be a mapping of names to lists"),
        (lambda: plot.sqnr(X, {"rows": [{"axis": 0}]}), TypeError, "dtype among them, but that of 'rows' is"),
        (lambda: plot.sqnr(X, []), TypeError, r"schemes must be a mapping of names .*, not \[\]"),
        (lambda: plot.sqnr(X, {"a": [{"dtype": "int8", "axis": 5}]}), np.exceptions.AxisError, "axis 5 is out"),
        (lambda: plot.compare(X, []), TypeError, "schemes must be a mapping of names to approximations"),
        (lambda: plot.compare(X, {"half": X[::2]}), ValueError, "x has shape"),
        (lambda: plot.errors(COURSE[:2], Q), ValueError, r"x has shape \(2, 3\), but q has shape \(3, 3\)"),
        (lambda: plot.errors(COURSE, COURSE[:1]), ValueError, "x has shape"),
        (lambda: plot.errors(COURSE[:0], COURSE[:0]), ValueError, "x is empty"),
        (lambda: plot.errors(COURSE > 0, Q), TypeError, "x must be float16"),
        (lambda: plot.errors(COURSE, COURSE > 0), TypeError, "q must be a QuantizedArray"),
        (lambda: plot.errors(SPOILED, Q), ValueError, "1 NaN"),
        (lambda: plot.errors(COURSE, Q, ax=[1] * 3), ValueError, "ax must be four Axes, not 3"),
        (lambda: plot.errors(COURSE, Q, ax=list("abcd")), TypeError, "ax must be four Axes, not str, str, str, str"),
        (lambda: plot.calibration(COURSE), TypeError, "calibrator must be a Calibrator"),
        (lambda: plot.calibration(fastq.Calibrator("int8")), ValueError, "this Calibrator has no data"),
        (lambda: plot.calibration(seen(), methods="mse"), TypeError, "methods must be a list of minmax"),
        (lambda: plot.calibration(seen(), methods=["best"]), ValueError, "methods must be of minmax, .* not 'best'"),
        (lambda: plot.calibration(seen(), channel=0), ValueError, rf"{INDEX} .* shape \(\), not 0"),
        (lambda: plot.calibration(seen(0)), ValueError, rf"{INDEX} .* shape \(3,\), not \(\)"),
        *((lambda k=k: plot.calibration(seen(0), channel=k), ValueError, INDEX) for k in (3, -1)),
        (lambda: plot.calibration(seen(), ax=[1]), TypeError, "ax must be an Axes, not "),
    ],
)
def test_what_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
    assert pyplot.get_fignums() == []


def test_one_row_in_a_few_of_large_arrays_is_compared(monkeypatch):
    qs = {"int4": reference.quantize(X, "int4", axis=0), "blocks": reference.quantize(X, "int8", axis=1, block_size=32)}
    monkeypatch.setattr("fastq.tools.plot.schemes.MEASURED", X.size // 2)
    ax = fastq.plot.compare(X, qs)
    assert ax.get_title() == "40 x 64 float32, one row in 2 measured"
    expected = [fastq.compare(X[::2], q[::2]).sqnr_db for q in (qs["blocks"], qs["int4"])]
    assert [patch.get_width() for patch in ax.patches] == expected
    assert " 8 bits" not in figures_beside(ax)[0].get_text()  # those of all elements, not of the measured ones
    whole = {**qs, "tall": reference.quantize(X, "int8", axis=0, block_size=4)}
    assert fastq.plot.compare(X, whole).get_title() == "40 x 64 float32"
    with pytest.raises(ValueError, match=r"x has shape \(40, 64\)"):
        fastq.plot.compare(X, {"one less": X[:-1]})


def test_the_range_of_an_array_is_taken_once(monkeypatch):
    calls = []
    monkeypatch.setattr("fastq.tools.plot.schemes.minmax", lambda x: calls.append(x) or fastq.minmax(x))
    fastq.plot.sqnr(X)
    assert len(calls) == 1


@pytest.mark.parametrize("exponent", [-900, -560, 600, 900])
def test_errors_whose_squares_float64_lacks_are_drawn(exponent):
    """A power of two moves the line on its logarithmic axis, and changes nothing else."""
    x = np.random.default_rng(2).standard_normal((12, 40))
    heights = []
    for scaled in (x, np.ldexp(x, exponent)):
        ax = fastq.plot.channels(scaled, fastq.quantize(scaled, "int8", axis=0))
        heights.append([patch.get_data().values for patch in ax.patches])
    assert len(heights[0]) == 2
    for plain, scaled in zip(*heights, strict=True):
        np.testing.assert_array_equal(scaled, np.ldexp(plain, exponent))


def test_what_no_picture_holds_is_refused():
    x = np.full((8, 8), 1.7e308)
    x[::2] *= -1
    q = fastq.quantize(x, "int8", axis=0)
    with pytest.raises(
        ValueError, match=r"x has magnitudes up to 1\.7e\+308, more than a picture holds: draw x / 1e10"
    ):
        fastq.plot.channels(x, q)
    with pytest.raises(ValueError, match="a range that no colour scale holds: draw x / 4"):
        fastq.plot.errors(x, q)
    fastq.plot.errors(x / 4, q.dequantize() / 4)
