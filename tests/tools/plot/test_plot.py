"""What `fastq.plot.errors` draws, against pictures computed with NumPy alone."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import fastq
from fastq import reference

pytest.importorskip("matplotlib", reason="matplotlib, the extra [plot], is not installed")
from matplotlib import pyplot
from matplotlib.colors import AsinhNorm, Normalize

calibration = fastq.plot.calibration
COURSE = np.array([[191.6, -13.5, 728.6], [92.14, 295.5, -184], [0, 684.6, 245.5]], np.float32)


def normal(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def picture(ax):
    (image,) = ax.images
    return np.asarray(image.get_array())


def panels(x, q):
    """The four matrices that a picture without downsampling shows."""
    values, codes = (reference.dequantize(q), q.unpacked())
    error = x.astype(np.float64) - values.astype(np.float64)
    return [a.reshape(-1, x.shape[-1] if x.ndim else 1) for a in (x, codes, values, error)]


def written(ax):
    return [text.get_text() for text in ax.texts]


# What is shown


def test_the_array_of_the_course_has_its_numbers_and_titles():
    axes = fastq.plot.errors(COURSE, reference.quantize(COURSE, "int8"))
    assert written(axes[0]) == ["191.6", "-13.5", "728.6", "92.14", "295.5", "-184", "0", "684.6", "245.5"]
    assert written(axes[1]) == ["-23", "-81", "127", "-51", "6", "-128", "-77", "114", "-8"]
    assert written(axes[3]) == ["-1.7", "0.82", "-1.5", "-0.91", "-1.5", "-1.5", "0", "1", "-1.4"]
    measured = fastq.compare(COURSE, reference.quantize(COURSE, "int8"))
    assert [ax.get_title() for ax in axes] == [
        "original\n3 x 3 float32",
        "codes\nint8, scale 3.579, zero point -77",
        f"decoded\nSQNR {measured.sqnr_db:.2f} dB",
        f"error\nat most {measured.max_abs_error:.3g}",
    ]


CELLS = "600 x 300 float32\ncells: largest of 3 x 3"


@pytest.mark.parametrize(
    ("shape", "described"),
    [
        ((), "one number float32"),
        ((5,), "5 float32 as 1 x 5"),
        ((2, 3), "2 x 3 float32"),
        ((4, 3, 2), "4 x 3 x 2 float32 as 12 x 2"),
        ((600, 300), CELLS),
    ],
)
def test_the_title_tells_shape_folding_and_cells(shape, described):
    axes = fastq.plot.errors(np.ones(shape, np.float32), np.zeros(shape, np.float32))
    assert axes[0].get_title() == f"original\n{described}"


@pytest.mark.parametrize(
    ("dtype", "options", "described", "codes"),
    [
        ("int8", {"axis": 0}, "int8, axis=0", (-128, 127)),
        ("int8", {"axis": -1, "block_size": 2}, "int8, axis=-1, block_size=2", (-128, 127)),
        ("int8", {"symmetric": True}, "int8, scale 5.737, zero point 0", (-127, 127)),
        ("int8", {"bits": 5}, "int8[5], scale 29.44, zero point -10", (-16, 15)),
        (
            "int8",
            {"convention": "cf"},
            "int8, scale 3.593, offset 272.3",
            (-127, 127),
        ),  # the lowest one is the fill value
        ("uint8", {}, "uint8, scale 3.579, zero point 51", (0, 255)),
        ("uint16", {"bits": 5}, "uint16[5], scale 29.44, zero point 6", (0, 31)),
        ("int4", {}, "int4, scale 60.84, zero point -5", (-8, 7)),
    ],
)
def test_the_title_tells_the_scheme_and_colours_all_codes_in_use(dtype, options, described, codes):
    ax = fastq.plot.errors(COURSE, reference.quantize(COURSE, dtype, **options))[1]
    assert ax.get_title() == f"codes\n{described}"
    assert (ax.images[0].norm.vmin, ax.images[0].norm.vmax) == codes


def test_an_array_of_values_leaves_the_codes_empty():
    values = COURSE + np.float32(0.5)
    axes = fastq.plot.errors(COURSE, values)
    assert not axes[1].images
    assert not axes[1].axison
    assert "array of values" in axes[1].get_title()
    np.testing.assert_array_equal(picture(axes[2]), values)
    np.testing.assert_array_equal(picture(axes[3]), COURSE.astype(np.float64) - values)


PLAIN = lambda x: x  # noqa: E731
ARRANGED = [(PLAIN, shape) for shape in ((), (1,), (7,), (3, 3), (64, 48), (256, 256), (2, 3, 4), (2, 3, 4, 5))]
ARRANGED += [(each, (6, 5, 4)) for each in (np.asfortranarray, lambda a: np.flip(a, 0), lambda a: a.astype(">f4"))]


@pytest.mark.slow(
    "a third of a second each",
    quick=lambda arrange, shape, dtype: dtype == "int8" or (arrange, shape) == (PLAIN, (3, 3)),
)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint2", "int16"])
@pytest.mark.parametrize(("arrange", "shape"), ARRANGED)
def test_panels_show_the_four_matrices(arrange, shape, dtype):
    x = arrange(np.asarray(normal(*shape)))
    q = reference.quantize(x, dtype, axis=1 if len(shape) == 3 else None)
    axes = fastq.plot.errors(x, q)
    assert axes.shape == (4,)
    for ax, expected in zip(axes, panels(x, q), strict=True):
        np.testing.assert_array_equal(picture(ax), expected)


# Large arrays


def largest_of_cells(matrix, chosen_by, step):
    """Of each cell the element of `matrix` where `chosen_by` has its largest magnitude, one cell after another."""
    rows, columns = (range(0, n, s) for n, s in zip(matrix.shape, step, strict=True))
    shown = np.empty((len(rows), len(columns)))
    for i, r in enumerate(rows):
        for j, c in enumerate(columns):
            cell = (slice(r, r + step[0]), slice(c, c + step[1]))
            shown[i, j] = matrix[cell].flat[np.abs(chosen_by[cell]).argmax()]
    return shown


@pytest.mark.slow("five seconds", quick=lambda shape, step: shape != (300, 1030))
@pytest.mark.parametrize(
    ("shape", "step"), [((257, 3), (2, 1)), ((300, 1030), (5, 5)), ((1, 2000), (1, 8)), ((70, 280), (2, 2))]
)
def test_cells_show_their_largest_elements(shape, step):
    x = normal(*shape)
    q = reference.quantize(x, "int8", axis=0)
    axes = fastq.plot.errors(x, q)
    original, codes, decoded, error = panels(x, q)
    chosen = (original, original, original, error)
    for ax, matrix, by in zip(axes, (original, codes, decoded, error), chosen, strict=True):
        # elements of equal magnitude may stand for each other
        np.testing.assert_array_equal(np.abs(picture(ax)), np.abs(largest_of_cells(matrix, by, step)))
        assert ax.get_xlim() == (-0.5, shape[1] - 0.5)
        assert ax.get_ylim() == (shape[0] - 0.5, -0.5)
        assert not ax.texts


@pytest.mark.slow("a second each", quick=lambda shape: shape == (4096, 4096))
@pytest.mark.parametrize("shape", [(4096, 4096), (1, 1 << 24), (1 << 23, 2)])
def test_large_arrays_need_little_memory_and_keep_their_outlier(shape):
    x = np.zeros(shape, np.float32)
    x.flat[-12345] = 1e6
    q = reference.quantize(x, qparams=reference.choose_qparams(np.array([-1.0, 1.0], np.float32), "int8"))
    tracemalloc.start()
    axes = fastq.plot.errors(x, q)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (
        peak < reference.dequantize(q).nbytes + 100e6
    )  # the decoded values, a few tiles of 2**20 elements, the figure
    assert max(picture(axes[3]).shape) <= 256
    assert np.count_nonzero(picture(axes[3]) > 9e5) == 1
    assert np.count_nonzero(picture(axes[0]) == 1e6) == 1


# Colours


def test_original_and_decoded_share_their_colours_and_the_error_is_centred():
    x = normal(20, 20) + 3
    original, codes, decoded, error = (
        ax.images[0].norm for ax in fastq.plot.errors(x, reference.quantize(x, "uint4", symmetric=True))
    )
    values = reference.fake_quantize(x, "uint4", symmetric=True)
    assert (original.vmin, original.vmax) == (min(x.min(), values.min()), max(x.max(), values.max()))
    assert (decoded.vmin, decoded.vmax) == (original.vmin, original.vmax)
    assert (codes.vmin, codes.vmax) == (1, 15)
    assert error.vmin == -error.vmax
    assert error.vmax == np.abs(x.astype(np.float64) - values).max()


def test_a_far_outlier_does_not_hide_the_rest():
    x = normal(64, 48)
    q = reference.quantize(x, "int8")
    assert {type(ax.images[0].norm) for ax in fastq.plot.errors(x, q)} == {Normalize}
    x[10, 20] = 1e4
    norm = fastq.plot.errors(x, reference.quantize(x, "int8"))[0].images[0].norm
    assert isinstance(norm, AsinhNorm)
    assert norm(1.0) - norm(-1.0) > 0.03  # on a linear scale 0.0002, less than one of 256 colours


@pytest.mark.slow("a second each", quick=lambda x: x[0] != x[0] or x.max() in (np.inf, np.float32(1e-40)))
@pytest.mark.parametrize(
    "x", [np.full(4, value, np.float32) for value in (0.0, 3.0, -1e30, 1e-40)] + [np.float32([1, np.inf, -np.inf, 2])]
)
def test_constant_arrays_and_infinite_elements_are_drawn(x):
    x = x.reshape(2, 2)
    finite = x[np.isfinite(x)]
    axes = fastq.plot.errors(x, reference.quantize(x, qparams=reference.choose_qparams(finite, "int8")))
    axes[0].figure.canvas.draw()
    np.testing.assert_array_equal(picture(axes[0]), x)
    assert finite.size == 4 or axes[0].images[0].norm.vmax == 2.0


# The figure


def drawn_boxes(axes):
    axes[0].figure.canvas.draw()
    return [ax.get_window_extent() for ax in axes]


def all_is_within(figure, parts):
    for part in parts:
        box, inside = part.get_tightbbox(), figure.bbox
        assert inside.x0 <= box.x0 <= box.x1 <= inside.x1
        assert inside.y0 <= box.y0 <= box.y1 <= inside.y1


@pytest.mark.slow("a second each", quick=lambda shape: shape == (4, 100))
@pytest.mark.parametrize("shape", [(3, 3), (12, 12), (64, 48), (4, 100), (5,), (100, 3)])
def test_panels_have_one_size_and_all_is_within_the_figure(shape):
    x = normal(*shape)
    axes = fastq.plot.errors(x, reference.quantize(x, "int8"))
    sizes = np.array([(box.width, box.height) for box in drawn_boxes(axes)])
    np.testing.assert_allclose(sizes, np.broadcast_to(sizes[0], sizes.shape), rtol=0.02)
    assert sizes.min() > 20
    bars = [child for ax in axes for child in ax.child_axes]
    assert len(bars) == 4
    all_is_within(axes[0].figure, (*axes, *bars))


@pytest.mark.slow("a second each", quick=lambda shape: shape == (1, 9999))
@pytest.mark.parametrize(
    "shape", [(512, 512), (500, 1999), (1999, 500), (500, 2000), (2000, 500), (1, 9999), (9999, 1)]
)
def test_every_cell_has_a_pixel(shape):
    x = np.zeros(shape, np.float32)
    axes = fastq.plot.errors(x, x)
    high, wide = (-(-n // cells) for n, cells in zip(shape, picture(axes[0]).shape, strict=True))
    for box in drawn_boxes(axes):
        assert box.height >= shape[0] / high
        assert box.width >= shape[1] / wide


@pytest.mark.slow("a second each", quick=lambda shape: shape == (12, 12))
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (8, 8), (12, 12), (1, 16)])
def test_numbers_fit_their_cells(shape):
    x = normal(*shape) * np.float32(-3e-5)
    axes = fastq.plot.errors(x, reference.quantize(x, "int8"))
    for ax, box in zip(axes, drawn_boxes(axes), strict=True):
        for text in ax.texts:
            assert text.get_window_extent().width <= box.width / x.shape[1]
            assert text.get_window_extent().height <= box.height / x.shape[0]
    assert len(axes[1].texts) == x.size


def test_wide_arrays_have_their_panels_under_each_other_and_others_in_a_square():
    for shape, columns, rows in (((50,), 1, 4), ((50, 50), 2, 2)):
        boxes = drawn_boxes(fastq.plot.errors(normal(*shape), normal(*shape)))
        assert len({round(box.x0) for box in boxes}) == columns
        assert len({round(box.y0) for box in boxes}) == rows


@pytest.mark.parametrize("grid", [(1, 4), (2, 2), (4, 1)])
def test_given_axes_are_drawn_on_and_keep_their_places(grid):
    figure, given = pyplot.subplots(*grid)
    places = [ax.get_subplotspec().get_position(figure).bounds for ax in given.ravel()]
    axes = fastq.plot.errors(COURSE, reference.quantize(COURSE, "int8"), ax=given)
    assert axes.tolist() == given.ravel().tolist()
    assert pyplot.get_fignums() == [figure.number]
    assert [ax.get_position(original=True).bounds for ax in axes] == places
    assert [picture(ax).shape for ax in axes] == [(3, 3)] * 4


# Calibration


def calibrator_of(x, **options):
    made = fastq.Calibrator("int8", **options)
    made.update(x)
    return made


def lines(ax):
    """Where the lines of each method are, by its name, and the rest of its label."""
    found, name = {}, ""
    for line in ax.lines:
        if not line.get_label().startswith("_"):
            name, _, text = line.get_label().partition(": ")
            found[name] = [text]
        found[name].append(line.get_xdata()[0])
    return found


def test_bars_are_the_counts_and_lines_the_ranges():
    x = normal(20_000)
    calibrator = calibrator_of(x, bins=256, symmetric=True)
    ax = calibration(calibrator, percentile=99)
    heights, edges, _ = ax.patches[0].get_data()
    counts, expected = np.histogram(x, edges)
    widths = np.diff(edges)
    np.testing.assert_allclose(heights, counts * (widths.min() / widths))
    assert counts.sum() == x.size
    assert list(lines(ax)) == ["minmax", "percentile", "mse", "entropy"]
    for name, (_, *ends) in lines(ax).items():
        assert ends == list(calibrator.clipping_range(name, percentile=99)), name
    assert expected.size < 513  # unused bins are not drawn


def test_the_legend_tells_what_is_clipped():
    x = np.arange(-100, 300, dtype=np.float32)
    found = lines(calibration(calibrator_of(x, bins=512), percentile=90))
    lo, hi = found["percentile"][1:]
    clipped = np.mean((x <= lo) | (x >= hi))  # bins have the edge that is nearer to 0
    assert found["percentile"][0] == f"{lo:.3g} to {hi:.3g}, clips {100 * clipped:.2g} %"
    assert found["minmax"][0] == "-100 to 299, clips nothing"


def test_many_bins_are_drawn_together():
    x = normal(100_000)
    heights, edges, _ = calibration(calibrator_of(x, bins=1 << 16)).patches[0].get_data()
    assert heights.size <= 512
    widths = np.diff(edges)
    np.testing.assert_allclose(heights, np.histogram(x, edges)[0] * (widths.min() / widths))


@pytest.mark.parametrize(("axis", "channel"), [(0, 2), (0, (2,)), ((0, 1), (2, 1))])
def test_a_channel_is_drawn_as_if_it_were_alone(axis, channel):
    x = normal(3, 2, 500) * np.arange(1, 4, dtype=np.float32)[:, None, None]
    whole = calibration(calibrator_of(x, axis=axis, bins=64), channel=channel)
    alone = calibration(calibrator_of(x[2] if axis == 0 else x[2, 1], bins=64))
    assert lines(whole) == lines(alone)
    for a, b in zip(whole.patches[0].get_data(), alone.patches[0].get_data(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_chosen_methods_are_drawn_on_a_given_axis_in_colours_of_their_own():
    figure, ax = pyplot.subplots()
    calibrator = calibrator_of(normal(100))
    assert calibration(calibrator, methods=["entropy", "minmax", "entropy"], ax=ax) is ax
    assert list(lines(ax)) == ["entropy", "minmax"]
    assert pyplot.get_fignums() == [figure.number]
    assert len({line.get_color() for line in calibration(calibrator).lines}) == 4


def test_all_of_a_calibration_is_within_the_figure():
    ax = calibration(calibrator_of(normal(1000)))
    ax.figure.canvas.draw()
    all_is_within(ax.figure, (ax, ax.get_legend()))


@pytest.mark.parametrize("x", [np.zeros(5), np.full(5, 1e-40), np.array([-3e38, 3e38])])
def test_degenerate_calibrators_are_drawn(x):
    ax = calibration(calibrator_of(x.astype(np.float32)))
    ax.figure.canvas.draw()
    heights, edges, _ = ax.patches[0].get_data()
    np.testing.assert_array_equal(heights > 0, np.histogram(x, edges)[0] > 0)


# Errors


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib"):
        fastq.plot.errors(COURSE, reference.quantize(COURSE, "int8"))


def test_importing_the_module_imports_neither_matplotlib_nor_numba():
    code = "import sys, fastq; fastq.plot.errors; print(*({'matplotlib', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


# Room


@pytest.mark.slow("half a second each", quick=lambda shape: shape in ((64, 200), (3, 3)))
@pytest.mark.parametrize("shape", [(256, 512), (64, 200), (100, 100), (300, 120), (40, 400), (1, 30), (3, 3), (200, 3)])
def test_nothing_covers_anything_and_no_half_is_empty(shape):
    x = normal(*shape)
    if min(shape) > 3:
        x[:, 7] *= 400  # a scale that is not linear, and a longer title
    axes = fastq.plot.errors(x, reference.quantize(x, "int8", axis=0, symmetric=True))
    figure = axes[0].figure
    figure.canvas.draw()
    boxes = []
    for ax in axes:
        (bar,) = ax.child_axes
        left, right = ax.get_xlim()
        ticks = [
            label.get_window_extent() for label in ax.get_xticklabels() if left <= label.get_position()[0] <= right
        ]
        boxes += [ax.get_window_extent(), ax.title.get_window_extent(), bar.get_tightbbox(), *ticks]
        assert (bar.get_xlabel() or bar.get_ylabel()).startswith("asinh") == isinstance(ax.images[0].norm, AsinhNorm)
    for k, box in enumerate(boxes):
        assert figure.bbox.y0 <= box.y0
        assert box.y1 <= figure.bbox.y1 + 1
        for other in boxes[:k]:
            width = min(box.x1, other.x1) - max(box.x0, other.x0)
            height = min(box.y1, other.y1) - max(box.y0, other.y0)
            assert min(width, height) < 1, (box, other)
    used = max(box.y1 for box in boxes) - min(box.y0 for box in boxes)
    gaps = sorted((box.y0, box.y1) for box in boxes)
    widest = max(low - max(high for _, high in gaps[: k + 1]) for k, (low, _) in enumerate(gaps[1:]))
    assert used > 0.85 * figure.bbox.height
    assert widest < 0.15 * figure.bbox.height
