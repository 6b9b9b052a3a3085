"""QuantizedArray, QParams and Comparison as objects: parts, shapes, copies, texts, explanations."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastq
from fastq import reference
from fastq.formats.conventions.table import CONVENTIONS
from fastq.formats.qtypes import QTYPES
from fastq.results.elements import codes_at, values_at
from fastq.testing import assert_same_codes

X = np.random.default_rng(5).standard_normal((6, 10, 12)).astype(np.float32)
POOL = np.random.default_rng(6).standard_normal(12**3).astype(np.float32)
SCHEMES = [
    {"dtype": "int8"},
    {"dtype": "uint4"},
    {"dtype": "uint8", "axis": 0},
    {"dtype": "int4", "axis": -1},
    {"dtype": "int3", "axis": (0, 2)},
    {"dtype": "int8", "axis": 1, "convention": "torch"},
    {"dtype": "int5", "axis": -1, "block_size": 4, "symmetric": True},
    {"dtype": "int8", "axis": 0, "block_size": 2},
    {"dtype": "uint4", "axis": 1, "convention": "faiss"},
    {"dtype": "float8_e4m3fn", "axis": 0},
    {"dtype": "float4_e2m1fn"},
    {"dtype": "mxfp4", "axis": 0},
    {"dtype": "mxint8"},
    {"dtype": "nvfp4"},
    {"dtype": "nf4", "axis": -1, "block_size": 8},
    {"dtype": "dynamic8", "axis": 0, "block_size": 3},
    {"dtype": "int16", "axis": (1,)},
    {"dtype": "uint1", "axis": 0},
    {"dtype": "float6_e2m3fn", "axis": -1},
    {"dtype": "mxfp6_e3m2", "axis": 1},
]


def quantized(x, scheme):
    """The reference's codes of x, for as many axes as x has; None where the scheme has no such."""
    axis = scheme.get("axis")
    last = max(axis if isinstance(axis, tuple) else (axis or 0,))
    if last >= x.ndim:
        return None
    return reference.quantize(x, **scheme)


def indices(n):
    """What may be taken of an axis of n elements."""
    ints = st.integers(-n, n - 1)
    return st.one_of(
        ints,
        st.slices(n),
        st.lists(st.booleans(), min_size=n, max_size=n).map(np.array),
        st.lists(ints, max_size=4),
    )


def cuts_a_block(q, index):
    """Whether an index of every axis takes something else than a slice that begins with a block."""
    taken = index[q.axis]
    if not isinstance(taken, slice):
        return True
    places = np.arange(q.shape[q.axis])[taken]
    return bool(places.size and (places[0] % q.block_size or (np.diff(places) != 1).any() or (taken.step or 1) != 1))


def same_values(part, expected, dequantize):
    assert part.shape == expected.shape
    assert dequantize(part).tobytes() == expected.tobytes()


@st.composite
def cases(draw):
    shape = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    q = quantized(POOL[: np.prod(shape)].reshape(shape), draw(st.sampled_from(SCHEMES)))
    index = tuple(draw(indices(n)) for n in shape)
    return q, index


def check_an_index(case, dequantize):
    q, index = case
    arrays = sum(isinstance(each, list | np.ndarray) for each in index)
    if q is None or arrays > 1:
        return
    if arrays and any(isinstance(each, int) for each in index):
        with pytest.raises(TypeError, match="can be combined with slices only"):
            q[index]
    elif q.block_size and cuts_a_block(q, index):
        with pytest.raises(ValueError, match=r"cuts blocks of \d+ along axis"):
            q[index]
    else:
        same_values(q[index], dequantize(q)[index], dequantize)


@settings(deadline=None, max_examples=300)
@given(cases())
def test_a_part_has_the_values_of_the_part(case):
    # contract 4.1
    check_an_index(case, reference.dequantize)


@pytest.mark.slow("compiles 40 kernels")
@settings(deadline=None, max_examples=300)
@given(cases())
def test_a_part_has_the_values_of_the_part_by_kernels(case):
    check_an_index(case, fastq.dequantize)


def test_the_check_of_parts_notices_a_wrong_scale():
    q = fastq.reference.quantize(X, "int8", axis=0)
    scale = q.scale.copy()
    scale[3] *= 2
    wrong = fastq.QuantizedArray(q.codes, replace(q.qparams, scale=scale), q.shape)
    same_values(wrong[2], reference.dequantize(q)[2], reference.dequantize)
    with pytest.raises(AssertionError):
        same_values(wrong[3], reference.dequantize(q)[3], reference.dequantize)


def test_parts_are_views():
    # contract 4.3
    q = fastq.quantize(X, "int8", axis=0)
    part = q[1:5:2, 3]
    assert np.shares_memory(part.codes, q.codes)
    assert np.shares_memory(part.scale, q.scale)
    assert part.axis == 0
    assert q[1].axis is None
    assert q[1].scale.shape == ()
    blocks = reference.quantize(X, "int8", axis=1, block_size=4)
    assert blocks[2].axis == 0
    assert np.shares_memory(blocks[:, 4:9].scale, blocks.scale)
    assert blocks[:, 4:9].scale.shape == (6, 2, 12)


def test_packed_codes_are_views_where_bytes_are_whole():
    # contract 4.3
    q = reference.quantize(X, "int4", axis=0)
    for index in (np.s_[1], np.s_[:, ::2], np.s_[..., 2:6], np.s_[2, 3, 4:]):
        assert np.shares_memory(q[index].codes, q.codes), index
    for index in (np.s_[..., 1:6], np.s_[..., 2:5], np.s_[..., ::2], np.s_[..., 3]):
        part = q[index]
        assert not np.shares_memory(part.codes, q.codes), index
        assert (
            part.codes.tobytes()
            == reference.pack(reference.unpack(q.codes, "int4", shape=q.shape)[index], "int4").tobytes()
        )


def test_conventions_that_tell_arrays_from_channels_stay_what_they_were():
    # contract 4.4
    q = reference.quantize(X, "int8", axis=0, convention="torch")
    again = reference.quantize(X[2], qparams=q[2].qparams)
    assert_same_codes(again, q[2])
    assert q[2:3].convention == "torch"
    fused = reference.quantize(X[2], qparams=replace(q[2].qparams, convention="torch"))
    assert fused.convention != q[2].convention


@pytest.mark.parametrize(
    ("take", "error", "message"),
    [
        (lambda q: q[6], IndexError, "index 6 is out of bounds for axis 0 with size 6"),
        (lambda q: q[-(10**30)], IndexError, "index -10+ is out of bounds for axis 0 with size 6"),
        (lambda q: q[1.5:], TypeError, r"index slice\(1.5, None, None\): slice indices must be integers"),
        (lambda q: q[::0], ValueError, r"index slice\(None, None, 0\): slice step cannot be zero"),
        (lambda q: q.reshape((1,) * 62 + q.shape), ValueError, "shape must have at most 64 axes"),
        (lambda q: q[0, 0, 0, 0], IndexError, "q has 3 axes, but the index is for 4"),
        (lambda q: q[..., ...], IndexError, "one '...' at most"),
        (lambda q: q[None], TypeError, "q takes an index of ints, slices.*not None; q.dequantize"),
        (lambda q: q[True], TypeError, "q takes an index of ints"),
        (lambda q: q["a"], TypeError, "q takes an index of ints"),
        (lambda q: q[X > 0], TypeError, "one axis, of bools or ints; this is an array of bool"),
        (lambda q: q[[1.0]], TypeError, "one axis, of bools or ints"),
        (lambda q: q[[True]], IndexError, "a mask of 1 bools is for axis 0 with size 6"),
        (lambda q: q[[7]], IndexError, "indices 7 to 7 are out of bounds for axis 0 with size 6"),
        (lambda q: q[[1], 2], TypeError, r"can be combined with slices only: index twice"),
        (lambda q: q[:, 3], ValueError, "index 3 cuts blocks of 4 along axis 1: a slice there begins at a multiple"),
        (lambda q: q[:, 2:6], ValueError, "index 2:6:1 cuts blocks of 4 along axis 1"),
        (lambda q: q.reshape(7), ValueError, r"shape must have 720 elements, not \(7,\)"),
        (lambda q: q.reshape(1.5), TypeError, "shape must be ints"),
        (lambda q: q.reshape(-1), ValueError, r"shape \(720,\) joins parts .* blocks of 4 along axis 1"),
        (lambda q: q.explain(1), TypeError, r"index must be an int for each of 3 axes, not 1"),
        (lambda q: q.astype("int4"), TypeError, "dtype must be float16"),
        (lambda q: bool(q), TypeError, "q is neither true nor false"),
        (lambda q: len(q[0, :4, 0][:0].reshape(0)[:0]) or len(reference.quantize(1.0, "int8")), TypeError, "no length"),
        (lambda q: fastq.dequantize(q.codes), TypeError, "q must be a QuantizedArray.*fastq.gguf.dequantize"),
        (lambda q: assert_same_codes(q, 1), TypeError, "desired must be a QuantizedArray, not 1"),
        (lambda q: assert_same_codes(q, q[:1]), AssertionError, r"shape: \(6, 10, 12\), not \(1, 10, 12\)"),
    ],
)  # fmt: skip
def test_what_is_refused(take, error, message):
    # contract 4.2
    with pytest.raises(error, match=message):
        take(reference.quantize(X, "int8", axis=1, block_size=4))


def test_codes_have_the_shape_of_the_format():
    # contract 1.8
    params = fastq.QParams(0.5, 0, "int4")
    for codes, shape in ((np.zeros(3, np.uint8), (4,)), (np.zeros((), np.uint8), ()), (np.zeros(2, np.int8), (4,))):
        with pytest.raises(ValueError, match=r"codes have shape .* but int4 codes of shape .* have shape .* uint8"):
            fastq.QuantizedArray(codes, params, shape)
    assert fastq.QuantizedArray(np.zeros(1, np.uint8), params, ())[...].shape == ()


def test_no_rows():
    for scheme in SCHEMES:
        q = reference.quantize(X, **scheme)
        none = q[[]] if q.axis != 0 or not q.block_size else q[:0]
        same_values(none, reference.dequantize(q)[[]], reference.dequantize)
        assert list(none) == []


def test_rows():
    q = reference.quantize(X, "int8", axis=0)
    assert len(q) == 6
    for row, part in zip(reference.dequantize(q), q, strict=True):
        same_values(part, row, reference.dequantize)


# Other shapes

SHAPES = [
    (720,),
    (6, 120),
    (60, 12),
    (2, 3, 10, 12),
    (6, 5, 2, 12),
    (6, 10, 3, 4),
    (120, 6),
    (1, 6, 10, 12, 1),
    (-1, 4),
]


@pytest.mark.slow("packs again", quick=lambda scheme: scheme["dtype"] not in ("int5", "float6_e2m3fn", "mxfp6_e3m2"))
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_a_shape_keeps_values_or_is_refused(scheme):
    # contract 4.5
    q, kept = reference.quantize(X, **scheme), 0
    values = reference.dequantize(q)
    for shape in SHAPES:
        try:
            other = q.reshape(shape)
        except ValueError as error:
            assert "with their own parameters" in str(error)  # noqa: PT017
            assert q.axis is not None
            continue
        same_values(other, values.reshape(shape), reference.dequantize)
        kept += 1
    assert kept == len(SHAPES) if q.axis is None else kept >= 1


@pytest.mark.parametrize(
    ("scheme", "shape", "axis"),
    [
        ({"axis": 0}, (2, 3, 120), (0, 1)),
        ({"axis": (0, 1)}, (60, 12), (0,)),
        ({"axis": 1}, (6, 5, 2, 12), (1, 2)),
        ({"axis": 1}, (60, 12), None),
        ({"axis": 2, "block_size": 4}, (720,), 0),
        ({"axis": 2, "block_size": 4}, (6, 10, 3, 4), 3),
        ({"axis": 2, "block_size": 5}, (60, 12), 1),
        ({"axis": 2, "block_size": 5}, (720,), None),
        ({"axis": 1, "block_size": 5}, (60, 12), 0),
        ({"axis": 1, "block_size": 4}, (60, 12), None),
    ],
)
def test_axes_of_another_shape(scheme, shape, axis):
    q = reference.quantize(X, "int8", **scheme)
    if axis is None:
        with pytest.raises(ValueError, match="with their own parameters"):
            q.reshape(shape)
    else:
        assert q.reshape(shape).axis == axis


def test_nothing_has_a_shape_too():
    q = reference.quantize(np.zeros((3, 0), np.float32), qparams=reference.quantize(X[0, :3], "int8", axis=0).qparams)
    assert q.reshape(3, 5, 0).axis == 0
    with pytest.raises(ValueError, match="with their own parameters"):
        q.reshape(0)
    assert q[1:].reshape(2, 0).scale.shape == (2,)


def test_a_copy_shares_nothing():
    for scheme in ({"dtype": "int8", "axis": 0}, {"dtype": "nvfp4"}):
        q = reference.quantize(X, **scheme)
        copy = q.copy()
        assert_same_codes(copy, q)
        parts = [(copy.codes, q.codes), (copy.scale, q.scale), (copy.zero_point, q.zero_point)]
        parts += [] if q.tensor_scale is None else [(copy.tensor_scale, q.tensor_scale)]
        assert not any(np.shares_memory(*pair) for pair in parts)


def test_one_scale_for_all_stays_one():
    params = fastq.QParams([0.5], [3], "int8", axis=0)
    q = fastq.QuantizedArray(np.arange(6, dtype=np.int8).reshape(2, 3), params, (2, 3))
    assert q[1].dequantize().tolist() == [0.0, 0.5, 1.0]
    assert q.reshape(3, 2).explain((2, 1)).value == 1.0


def test_values_in_other_dtypes():
    q = fastq.quantize(X[0], "int8")
    assert fastq.dequantize(q).tobytes() == q.dequantize().tobytes() == reference.dequantize(q).tobytes()
    assert q.astype("float64").dtype == np.float64


# Texts


def test_codes_are_shown_as_numpy_shows_them():
    small, large = reference.quantize(X[0, 0], "int8"), reference.quantize(X[0], "int8", axis=0)
    assert np.array2string(small.codes, separator=", ", prefix="QuantizedArray(") in repr(small)
    with np.printoptions(threshold=0, edgeitems=3):
        assert np.array2string(large.codes, separator=", ", prefix="QuantizedArray(") in repr(large)
    packed = reference.quantize(X[0], "int3", axis=0)
    assert repr(packed).count("...") == repr(large).count("...")


@pytest.mark.parametrize("name", [name for name, row in QTYPES.items() if row.packed])
def test_single_codes_are_those_that_unpack_gives(name):
    q = reference.quantize(X[:, :, :11], name, symmetric=False) if name != "mxfp4" else reference.quantize(X, name)
    whole = reference.unpack(q.codes, name, shape=q.shape)
    places = np.ix_(*map(np.arange, q.shape))
    assert codes_at(q.codes, q.dtype, places).tobytes() == whole.tobytes()
    q.codes[0, 0, 0] ^= 1
    assert codes_at(q.codes, q.dtype, places).tobytes() != whole.tobytes()


def test_texts_of_parameters_fit_a_line():
    for scheme in SCHEMES:
        q = reference.quantize(X, **scheme)
        for text in (repr(q.qparams), repr(q[:0].qparams) if not q.block_size else "", repr(reference.compare(X, q))):
            assert "\n" not in text
        assert len(repr(q.qparams)) <= 120
        assert max(map(len, repr(q).splitlines())) <= 160
    one = reference.quantize(X[0, 0], "int8", symmetric=True)
    assert repr(one.qparams).startswith("QParams(int8, symmetric, scale=0.0")
    five = reference.quantize(X[..., None, None], "int8")
    assert repr(five).startswith("QuantizedArray(shape=(6, 10, 12, 1, 1), int8")


def test_a_comparison_as_a_dictionary():
    measures = reference.compare(np.array([1.0, 2.0]), np.array([1.0, 1.5]))
    assert fastq.Comparison(**measures.to_dict()) == measures
    assert repr(measures).startswith("Comparison(mse=0.125, sqnr_db=13.01, max_abs_error=0.5")
    assert repr(measures).endswith("clipped=None)")


class Bars(list):
    """Heights of the bars of a card."""

    def __init__(self, text):
        root = ET.fromstring(text)
        super().__init__(float(bar.get("height")) for bar in root.iter("rect"))


def test_a_card_is_xml_with_the_histogram_of_the_codes():
    codes = np.repeat(np.arange(4), [1, 2, 4, 8])
    q = fastq.QuantizedArray(reference.pack(codes, "uint2"), fastq.QParams(0.5, 0, "uint2"), codes.shape)
    bars = Bars(q._repr_html_())
    assert np.allclose(np.array(bars) / max(bars), [1 / 8, 1 / 4, 1 / 2, 1], atol=1e-3)
    for scheme in SCHEMES:
        assert Bars(reference.quantize(X, **scheme)._repr_html_())
    assert Bars(reference.quantize(X[0, 0, 0], "int4")._repr_html_())
    assert not Bars(reference.quantize(X[:0], qparams=q.qparams)._repr_html_())


def test_a_card_shows_names_as_text():
    row = replace(CONVENTIONS["onnx"], name="<b>&")
    card = reference.quantize(X, "int8", convention=row)._repr_html_()
    ET.fromstring(card)
    assert "<b>&" not in card
    assert "&lt;b&gt;&amp;" in card


def test_a_card_of_a_comparison_has_its_measures():
    for approximation in (reference.quantize(X, "int4"), X):
        found = fastq.compare(X, approximation)
        cells = [cell.text for cell in ET.fromstring(found._repr_html_()).iter("td")]
        shown = repr(found).removeprefix("Comparison(").removesuffix(")")
        assert ", ".join(map("=".join, zip(cells[::2], cells[1::2], strict=True))) == shown


# Explanations


def explained_schemes():
    for row in CONVENTIONS.values():
        for scheme in row.schemes:
            formats = [name for name in row.formats or ("int8", "uint4") if name in QTYPES]
            for dtype in formats[:2]:
                for part in ({},) if QTYPES[dtype].block_size else ({}, {"axis": 0}, {"axis": -1, "block_size": 4}):
                    yield {"dtype": dtype, "convention": row.name, "symmetric": scheme == "symmetric", **part}


EXPLAINED = [*explained_schemes(), *SCHEMES]


def check_explanations(api, scheme, x):
    q = api.quantize(x, **scheme)
    values = api.dequantize(q)
    for index in ((0, 0), (3, 5), (-1, 11)):
        explanation = q.explain(index)
        assert explanation.value.dtype == values.dtype
        assert explanation.value.tobytes() == values[index].tobytes(), explanation
        assert str(explanation.value).removesuffix(".0") in explanation.text.splitlines()[-1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_explanation_has_the_value_of_the_reference(dtype):
    # contract 4.6
    for scheme in EXPLAINED:
        if not isinstance(scheme.get("axis"), tuple):
            check_explanations(reference, scheme, X[0].astype(dtype))


def test_an_explanation_of_other_numbers_has_another_value():
    q = reference.quantize(X[0], "int8", axis=0)
    wrong = fastq.QuantizedArray(q.codes, replace(q.qparams, scale=np.nextafter(q.scale, np.float32(9))), q.shape)
    assert wrong.explain((3, 5)).value.tobytes() != reference.dequantize(q)[3, 5].tobytes()


def test_parameters_in_another_byte_order_are_computed_with_alike():
    q = reference.quantize(X[0].astype(np.float64), "int8", axis=0)
    swapped = replace(q.qparams, scale=q.scale.astype(q.scale.dtype.newbyteorder()))
    other = fastq.QuantizedArray(q.codes, swapped, q.shape)
    expected = reference.dequantize(q)
    assert expected.dtype == np.float64
    for values in (other.dequantize(), reference.dequantize(other)):
        np.testing.assert_array_equal(values, expected, strict=True)
    assert other.explain((3, 5)).value == expected[3, 5]


@pytest.mark.parametrize(("dtype", "scale"), [("int8", 1e-200), ("int8", 1e200), ("nf4", 1e200)])
def test_an_explanation_refuses_scales_that_are_none_in_the_compute_type(dtype, scale):
    zero_point = np.zeros(2, "i1" if dtype == "int8" else "u1")
    p = fastq.QParams(np.array([scale, 1.0]), zero_point, dtype, axis=0, computed="float32")
    q = fastq.QuantizedArray(np.zeros((2, 4 if dtype == "int8" else 2), zero_point.dtype), p, (2, 4))
    with pytest.raises(ValueError, match=r"^scale must be finite"):
        q.explain((0, 0))
    assert np.isfinite(q.explain((1, 0)).value)
    with pytest.raises(ValueError, match="scale"):
        q.dequantize()


def test_parameters_that_do_not_fit_are_refused_wherever_they_are_read():
    p = fastq.QParams([1.0, 2, 3], [0] * 3, "int8", axis=0)
    q = fastq.QuantizedArray(np.ones((4, 12), np.int8), p, (4, 12))
    for read in (
        q.dequantize,
        lambda: reference.dequantize(q),
        lambda: q.explain((3, 0)),
        lambda: q[0],
        lambda: q.reshape(2, 2, 12),
    ):
        with pytest.raises(ValueError, match=r"scale has shape \(3,\), but"):
            read()


def test_numbers_of_the_whole_array_in_another_byte_order():
    q = reference.quantize(X[0], "nvfp4")
    swapped = replace(q.qparams, tensor_scale=q.tensor_scale.astype(">f4"), computed=">f4")
    other = fastq.QuantizedArray(q.codes, swapped, q.shape)
    assert_same_codes(other, q)
    assert_same_codes(reference.quantize(X[0], qparams=swapped), q)
    assert_same_codes(fastq.quantize(X[0], qparams=swapped), q)
    for values in (other.dequantize(), reference.dequantize(other)):
        np.testing.assert_array_equal(values, reference.dequantize(q), strict=True)


@pytest.mark.slow("compiles a kernel a convention", quick=lambda convention: convention == "torch-pt2e")
@pytest.mark.parametrize("convention", ["textbook", "torch-pt2e", "tflite"])
def test_an_explanation_takes_scales_that_a_convention_keeps_in_float64(convention):
    # contract 2.3
    p = fastq.QParams([1e-60, 1.0], [0, 0], "int8", axis=0, convention=convention, computed="float32")
    q = fastq.QuantizedArray(np.array([[7, -3], [2, 5]], np.int8), p, (2, 2))
    for place in np.ndindex(q.shape):
        assert q.explain(place).value == q.dequantize()[place] == reference.dequantize(q)[place]


def test_an_explanation_shows_formulas_and_numbers():
    q = fastq.QuantizedArray(np.array([[7, -3]], np.int8), fastq.QParams([0.25], [2], "int8", axis=0), (1, 2))
    lines = q.explain((0, -1)).text.splitlines()
    assert lines[-2:] == ["element (0, 1): code -3, zero_point 2, scale 0.25", "value = (-3 - 2) * 0.25 = -1.25"]
    assert q.explain().value is None
    assert q.explain().formulas["value"] == "(code - zero_point) * scale"
    assert re.search(r"^code = clamp\(rint\(x / scale\) \+ zero_point\)$", repr(q.explain()), re.MULTILINE)
    assert "offset = lo" in reference.quantize(X[0], "uint8", convention="faiss").explain().text
    assert "tensor_scale" in reference.quantize(X[0], "nvfp4").explain((0, 0)).numbers


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_single_values_are_those_of_the_reference(scheme):
    q = reference.quantize(X, **scheme)
    places = np.ix_(*map(np.arange, q.shape))
    assert values_at(q.codes, q.qparams, q.shape, places).tobytes() == reference.dequantize(q).tobytes()


# Assertions


def test_same_codes_tells_what_differs():
    q = reference.quantize(X, "int8", axis=0)
    fortran = fastq.QuantizedArray(np.asfortranarray(q.codes), q.qparams, q.shape)
    assert_same_codes(fortran, q)
    other = q.copy()
    other.codes[1, 2, 3] ^= 1
    other.scale[4] = -other.scale[4]
    with pytest.raises(AssertionError, match=r"codes: 1 of 720 differ, the first at \(1, 2, 3\).*scale: 1 of 6 differ"):
        assert_same_codes(other, q)
    wide = q.qparams.with_values(q.scale.astype(np.float64), q.zero_point)
    with pytest.raises(AssertionError, match="scale: dtype float64, not float32"):
        assert_same_codes(fastq.QuantizedArray(q.codes, wide, q.shape), q)
    with pytest.raises(AssertionError, match=r"symmetric: True, not False; convention: tflite, not onnx$"):
        assert_same_codes(reference.quantize(X, "int8", axis=0, symmetric=True, convention="tflite"), q)
    own = replace(fastq.CONVENTIONS["onnx"], clamp="format", quotient="reciprocal")
    wanted = "convention: quotient of onnx 'reciprocal', not 'divide', clamp of onnx 'format', not 'range'"
    with pytest.raises(AssertionError, match=f"^{wanted}$"):
        assert_same_codes(reference.quantize(X, "int8", axis=0, convention=own), q)
