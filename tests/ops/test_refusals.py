"""What is refused in few places, or is not among the parameters of functions: junk_calls.py has bad values of these."""

import dataclasses
import itertools

import numpy as np
import pytest
import xarray
from format_cases import ERRORS
from junk_calls import (
    CODES,
    LAZY,
    P,
    Q,
    RequiresGradient,
    X,
    masked,
    of_both,
    raising,
    used,
)

import fastq
from fastq import io as tensors
from fastq import reference
from fastq.formats.conventions.convention import Convention
from fastq.formats.qtypes import QTYPES
from fastq.results import QParams, QuantizedArray


def test_a_tensor_is_to_be_detached():
    for function in of_both("quantize"):
        with pytest.raises(TypeError, match=r"^x must be .* requires grad\. Use tensor\.detach\(\)"):
            function(RequiresGradient(), "int8")


@pytest.mark.parametrize("junk", [2**70, -(2**70), (0, 2**70), 10**5000], ids=["far", "negative", "in a tuple", "long"])
def test_integers_of_more_than_64_bits(junk):
    # contract 15.1
    for function in of_both("minmax"):
        with pytest.raises(
            ValueError, match=r"^axis must be .* that 64 bits hold, not (-?1180591620717411303424|an int)"
        ):
            function(X, axis=junk)


def test_axes_of_up_to_64_bits_are_out_of_bounds():
    for function, axis in itertools.product(of_both("minmax"), (2, -3, 2**31, 2**63 - 1, -(2**63))):
        with pytest.raises(np.exceptions.AxisError, match=f"^axis of x: axis {axis} is out of bounds"):
            function(X, axis=axis)


@pytest.mark.parametrize("name", ["true", "raising"])
def test_what_stands_for_true_is_no_bool(name):
    # contract 15.1
    junk = {"true": 2, "raising": raising("__bool__")}[name]
    for function, option in itertools.product(of_both("quantize"), ("symmetric", "saturate")):
        with pytest.raises(TypeError, match=f"^{option} must be a bool, not "):
            function(X, "int8", **{option: junk})


@pytest.mark.parametrize("x", [np.full((2, 3), np.nan, np.float32), np.empty((0, 3), np.float32)], ids=["nan", "empty"])
def test_arguments_are_refused_before_values(x):
    for function in (*of_both("quantize"), *of_both("fake_quantize")):
        with pytest.raises(ValueError, match=r"^out has shape"):
            function(x, "uint8", out=np.empty((5,), np.uint8 if "fake" not in function.__name__ else np.float32))
    parameters = QParams(np.float32(np.nan), np.int8(0), "int8")
    for function in of_both("compare"):
        with pytest.raises(ValueError, match=r"^x (is empty|has no elements)"):
            function(x[:0], fastq.QuantizedArray(np.empty((0, 3), np.int8), parameters, (0, 3)))


OF_4_BITS = fastq.QType("uint8", 8, signed=False).with_bits(4)
WIDE = np.array([-3e38, 3e38], np.float32)
MATRIX = np.zeros((1, 2), np.int8).view(np.matrix)
ALL = np.array([-1.0, 1.0]) * np.finfo(np.float64).max
# what the few values above may not reach
REFUSED = [
    (lambda api: api.minmax(X, nan="skip"), ValueError, "nan must be one of 'raise', 'zero', not 'skip'"),
    (lambda api: api.minmax(masked()), TypeError, "x is a masked array"),
    (lambda api: api.minmax([[1], [1, 2]]), ValueError, "x must be an object that NumPy can turn into an array; list"),
    (lambda api: api.minmax(np.empty((0, 3))), ValueError, r"x has shape \(0, 3\)"),
    (lambda api: api.dequantize_linear(CODES, 0.5, dtype="float33"), TypeError, "dtype must be .* not 'float33'"),
    (lambda api: api.quantize(X, None), TypeError, "dtype"),
    (lambda api: api.choose_qparams(X, None), TypeError, "dtype must be .* not None"),
    (lambda api: api.choose_qparams(X, X), TypeError, r"dtype must be .* not an array of float32 of shape \(3, 4\)"),
    (lambda api: api.unpack(np.zeros(4, np.uint8), "int4", shape=8), TypeError, "shape must be a tuple of int"),
    (lambda api: api.unpack(np.zeros(4, np.uint8), "int4", shape=itertools.count()), ValueError, "at most 64"),
    (lambda api: api.compare(X, X.astype(np.int64)), TypeError, "q must be .*float.*int64"),
    (lambda api: api.gguf.quantize(X, object()), TypeError, "qtype must be a name, .* not <object object"),
    (lambda api: QParams(0.5, 0, "int8", computed="float16"), TypeError, "computed must be float32 or float64"),
    (lambda api: QuantizedArray(CODES, None, (3, 4)), TypeError, "qparams must be QParams, not None"),
    (lambda api: used(api, X, X, X.shape, scale=0.5, zero_point=0, dtype="int8"), ValueError, "codes have shape"),
    (lambda api: fastq.QType("int8", 0), ValueError, "bits must be from 1 to 16"),
    (lambda api: fastq.QType(8, 8), TypeError, "name must be a string, not 8"),
    (lambda api: Convention("own", fused=object()), TypeError, "fused must be a bool, not <object object"),
    (lambda api: Convention("own", formats="int8"), ValueError, "formats must be a tuple"),
    (lambda api: Convention("own", narrow="some"), ValueError, "narrow must be 'all' or a tuple"),
    (lambda api: Convention("own", reduced=(1,)), ValueError, "reduced must be a tuple of"),
    (lambda api: Convention("own", reduced=(("int8", 3, 3),)), ValueError, "reduced must have its first code before"),
    (lambda api: api.quantize_linear(X, 0.5, np.uint8(16), OF_4_BITS), ValueError, "zero_point must"),
    (lambda api: fastq.QType("int8", 8).code_range(1), TypeError, "symmetric must be a bool"),
    (lambda api: fastq.load("\ud800"), ValueError, "path must be the name of a file"),
    (lambda api: fastq.load(""), ValueError, "path must be the name of a file"),
    (lambda api: fastq.NestedScale(X, 0.0, (3, 4)), TypeError, "quantized must be a QuantizedArray, not an array"),
    (lambda api: fastq.NestedScale(Q, 0.0, (3, 5)), ValueError, "quantized has 12 scales, but shape"),
    (lambda api: api.nest_scale(X, block_size=0), ValueError, "block_size must be 1 or more"),
    (lambda api: fastq.dask.calibrate(LAZY, "int8", split_every=1), ValueError, "split_every must be 2 or more, not 1"),
    (lambda api: fastq.dask.QuantizedArray(LAZY, P, (3, 4)), ValueError, "codes have shape"),
    (lambda api: fastq.plot.compare(X, {"a": CODES}), TypeError, "schemes has 'a': q must be"),
    (lambda api: fastq.xarray.pack(X), TypeError, "ds must be a Dataset"),
    (lambda api: fastq.xarray.pack(xarray.Dataset(), max_error=1), TypeError, "max_error must be a dict"),
    (lambda api: tensors.open_checkpoint("nothing"), ValueError, "path must be that of a model directory"),
    (lambda api: tensors.open_checkpoint("a.safetensors"), ValueError, "; fastq.load opens files of tensors"),
    (lambda api: tensors.save_checkpoint(b"a/new", {}), TypeError, "path must be a string or a path"),
    (lambda api: tensors.save_checkpoint("a/new", {}, shard_size=0), ValueError, "shard_size must be 1 or more"),
    (lambda api: tensors.save_checkpoint("a/new", [X]), TypeError, "tensors must be a mapping"),
    (
        lambda api: tensors.save_checkpoint("a/new", {1: X}),
        TypeError,
        "tensors must have names that are strings, not 1",
    ),
    (lambda api: tensors.save_checkpoint("a/new", {"x": X}, [1]), TypeError, "config must be a mapping"),
    (
        lambda api: tensors.save_checkpoint("a/new", {"x": X}, {"a": X}),
        TypeError,
        "config must be serializable as JSON",
    ),
    (
        lambda api: Convention("own", scale_floor=10**5000),
        ValueError,
        "scale_floor must be .* of 16610 bits",
    ),
    (lambda api: api.quantize(X, "int8", symmetric=2), TypeError, "symmetric must be a bool"),
    (lambda api: api.quantize(X, np.dtype(object)), TypeError, "dtype must be one of .*, not 'object'$"),
    (lambda api: api.quantize(X, "mxfp4", convention="torch"), ValueError, "convention must be 'onnx'"),
    (lambda api: api.quantize(X, dataclasses.replace(QTYPES["int8"], bits=7)), TypeError, "dtype must be one"),
    (lambda api: api.quantize_linear(X, 0.1, True, "uint8", convention="faiss"), TypeError, "zero_point must"),
    (lambda api: api.quantize_linear(X, 0.1, 1j, "uint8", convention="faiss"), TypeError, "zero_point must be"),
    (lambda api: api.quantize_linear(X, 0.1, "int8"), TypeError, "zero_point must be numbers, .* with dtype="),
    (lambda api: api.quantize(WIDE, "uint8", convention="faiss"), ValueError, "range too wide"),
    (lambda api: api.quantize_linear(X, 0.1, np.inf, "uint8", convention="faiss"), ValueError, "must be finite"),
    (lambda api: api.choose_qparams(ALL, "int8", convention="cf"), ValueError, "too wide for a finite scale"),
    (lambda api: api.quantize(WIDE, "int8", out=MATRIX), TypeError, "out must be an"),
    (lambda api: api.quantize_linear(X, np.inf, dtype="nf4"), ValueError, "finite"),
]


@pytest.mark.parametrize(
    ("call", "error", "match"), [*REFUSED, *ERRORS], ids=lambda value: value if isinstance(value, str) else ""
)
def test_refusals(call, error, match):
    # contract 15.4
    for api in (fastq, reference):
        with pytest.raises(error, match=match):
            call(api)


# each is equal to the good value before it, and has its hash
ALIKE = {
    "bits": (lambda bits: fastq.quantize(X, "uint8", bits=bits), 8, 8.0),
    "dtype": (lambda dtype: fastq.dequantize_linear(CODES, 0.5, dtype=dtype), np.float32, np.float32(1)),
    "shape": (lambda size: fastq.unpack(np.zeros(4, np.uint8), "int4", shape=(size,)), 8, 8.0),
    "axis": (lambda axis: fastq.minmax(X, axis=axis), 1, True),
    "symmetric": (lambda symmetric: fastq.quantize(X, "int8", symmetric=symmetric), True, 1),
}


@pytest.mark.parametrize("name", ALIKE)
def test_a_call_like_a_good_one_is_refused_all_the_same(name):
    call, good, junk = ALIKE[name]
    for _ in range(3):
        call(good)
        with pytest.raises(TypeError, match=f"^{name} must be"):
            call(junk)


def test_memoryviews_of_several_dimensions_are_arrays():
    # contract 15.2
    for api in (fastq, reference):
        q = api.quantize(memoryview(X), "int8")
        assert q.codes.tobytes() == api.quantize(X, "int8").codes.tobytes()
        scale = memoryview(np.full((3, 2), 0.5, np.float32)).toreadonly()
        codes = api.quantize_linear(X, scale, axis=1, block_size=2)
        assert codes.tobytes() == api.quantize_linear(X, 0.5).tobytes()
