"""No array with a mask becomes numbers: every argument of every public function that is an array refuses each kind."""

import functools
import re
import warnings

import numpy as np
import pytest
import xarray
from junk_calls import CALLS, P, Q, X
from masked import GAP, KINDS, SEQUENCES, Holder, OfArray, masked_array, of_library

import fastq
from fastq.system.arrays_of_callers import as_array, has_mask

# names of arguments that are arrays, in any function
ARRAYS = {
    "acc",
    "bias",
    "codes",
    "counts",
    "data",
    "fill_value",
    "g_idx",
    "importance",
    "index",
    "multiplier",
}
ARRAYS |= {"out", "packed", "q", "scale", "schemes", "tensor_scale", "tensors", "x", "zero_point"}
NO_ARRAYS = ("Convention", "plot.sqnr", "QuantizedArray.explain")  # where these names have another meaning
REFUSALS = "masked array, whose mask would be lost", "out must be an ndarray, not ", "must be a QuantizedArray"
REFUSALS += ("q takes an index of ints",)  # which takes fewer kinds of arrays


def made(value):
    """A good argument, which a kernel makes where it is a partial function."""
    return value() if isinstance(value, functools.partial) else value


def arguments_of(call):
    """Names of the arguments of a call that are arrays in memory, with an array of the kind that each wants."""
    for name, good in CALLS[call][1].items():
        value = made(good)
        if call in NO_ARRAYS or name not in ARRAYS or isinstance(value, str) or hasattr(value, "dask"):
            continue
        if name == "out" or isinstance(value, fastq.QuantizedArray | dict) or value is None:
            yield name, X
        elif name == "index":
            yield name, np.arange(2)
        else:
            yield name, np.asarray(value)


def kinds_for(values):
    """Each kind of array with a mask that has these values."""
    for kind, make in {**KINDS, **(SEQUENCES if values.ndim else {})}.items():
        yield kind, make(masked_array(values))


def test_every_array_is_looked_at():
    """An argument that is an array in a call has one of the names."""
    for call, (_, good) in CALLS.items():
        for name, value in good.items():
            if isinstance(value, np.ndarray):
                assert name in ARRAYS, (call, name)


@pytest.mark.parametrize("call", [call for call in CALLS if next(arguments_of(call), None)])
def test_every_function(call):
    # contract 1.3
    functions, good = CALLS[call]
    for name, values in arguments_of(call):
        for kind, wrong in kinds_for(values):
            value = dict.fromkeys(made(good[name]), wrong) if isinstance(made(good[name]), dict) else wrong
            for function in functions:
                arguments = {key: made(each) for key, each in good.items()} | {name: value}
                with pytest.raises(TypeError) as raised:
                    function(**arguments)
                assert any(words in str(raised.value) for words in REFUSALS), (kind, name)


@pytest.mark.parametrize("kind", KINDS)
def test_advice_works(kind):
    """What an error says to pass is taken: a number in the place of each missing element, or what is there."""
    masked = masked_array(X) if kind != "without a missing element" else np.ma.MaskedArray(X)
    x = KINDS[kind](masked)
    with pytest.raises(TypeError) as raised:
        as_array(x, "x")
    filled, ignored = re.search(r"pass (.*), or (.*) to ignore the mask$", str(raised.value)).groups()
    lo, _ = fastq.minmax(eval(filled, {"numpy": np, "x": x, "value": 77.0}))
    assert lo == masked.filled(77.0).min()
    lo, _ = fastq.minmax(eval(ignored, {"numpy": np, "x": x}))
    assert lo == masked.data.min()


def test_an_element_of_a_list_is_named():
    with pytest.raises(TypeError, match=r"^x\[1\]\[0\] is a masked array, .* pass x\[1\]\[0\]\.filled\(value\), or"):
        fastq.minmax([[X[0]], [masked_array(X[1])]])


def test_lists_of_other_arrays_are_taken():
    rows = [OfArray(row) for row in X]
    assert np.array_equal(as_array(rows, "x"), X)
    assert np.array_equal(as_array([X[:2].tolist(), [X[2], X[0]]], "x"), [X[:2], X[[2, 0]]])
    assert as_array([], "x").shape == (0,)
    assert as_array([np.float32(1), 2], "x").dtype == np.float64


def test_a_mask_of_another_shape_is_none():
    """A `mask` that is a method, as of pandas, a flag, as of netCDF4, or for something else is no mask."""
    for mask in (True, None, lambda condition: condition, np.ones(3, bool), np.ones(X.shape, np.int8)):
        x = OfArray(X)
        x.mask = mask
        assert np.array_equal(as_array(x, "x"), X)


def test_out_with_a_mask_is_not_written_to():
    out = of_library(masked_array(X))
    with pytest.raises(TypeError, match=r"^out must be an ndarray, not OfLibrary"):
        fastq.fake_quantize(X, "int8", out=out)
    assert out.view(np.ndarray).flat[0] == GAP


@pytest.mark.parametrize("wrong", [of_library(masked_array(X)), Holder(masked_array(X))], ids=["subclass", "holder"])
def test_arrays_inside_xarray(wrong, monkeypatch):
    """An array that xarray keeps as it is: as the first array of a call and as another one."""
    x = xarray.DataArray(X, dims=("a", "b"))
    monkeypatch.setattr(xarray.Variable, "data", property(lambda self: wrong))
    for call in (
        lambda: fastq.minmax(x),
        lambda: fastq.minmax(x.variable),
        lambda: fastq.compare(X, x),
        lambda: fastq.xarray.pack(x.to_dataset(name="t")),
        lambda: fastq.xarray.bitround(x.to_dataset(name="t"), keepbits=3),
    ):
        with pytest.raises(TypeError, match="is a masked array, whose mask would be lost"):
            call()


def test_a_coordinate_called_mask_is_none():
    x = xarray.DataArray(X, dims=("a", "b"), coords={"mask": (("a", "b"), X > 0)})
    assert has_mask(x)  # which is why it is not asked of an object of xarray
    assert np.array_equal(fastq.minmax(x), [X.min(), X.max()])
    assert fastq.compare(x, x).max_abs_error == 0


def test_parameters_with_a_mask_are_not_saved(tmp_path):
    for scale in (masked_array(np.float32(0.5)), of_library(masked_array(np.float32([0.5])))):
        with pytest.raises(TypeError, match=r"^scale is a masked array"):
            P.with_values(scale, P.zero_point)
        with pytest.raises(TypeError, match=r"^zero_point is a masked array"):
            P.with_values(P.scale, scale)
    wrong = Q.copy()
    vars(wrong)["codes"] = masked_array(Q.codes)
    with pytest.raises(TypeError, match=r"^codes is a masked array"):
        wrong.save(tmp_path / "q.safetensors")
    assert list(tmp_path.iterdir()) == []


class WithUnit(np.ndarray):
    """As a Quantity of astropy, with `unit`, or an array of unyt, with `units`."""


class Unit:
    def __init__(self, text):
        self.text = text

    def __str__(self):
        return self.text


class Broken:
    def __str__(self):
        raise RuntimeError("a unit without a name")


@pytest.mark.parametrize("name", ["unit", "units"])
def test_a_unit_is_told(name):
    # contract 15.6
    x = X.view(WithUnit)
    setattr(x, name, Unit("K"))
    with pytest.warns(UserWarning, match=r"^x has the unit K, which results will not have$") as told:
        fastq.minmax(x)
    assert [warning.filename for warning in told] == [__file__]
    scale = np.ones((), np.float32).view(WithUnit)
    setattr(scale, name, Unit("K"))
    with pytest.warns(UserWarning, match=r"^scale has the unit K"):
        fastq.dequantize_linear(Q.codes, scale)
    for unit in (Unit(""), Unit("dimensionless"), "K", None, Broken()):
        setattr(x, name, unit)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fastq.minmax(x)
