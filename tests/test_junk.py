"""Bad values for every parameter of every public function: it works, or an error names the parameter. Nothing else.

`CALLS` has good arguments of each function, `JUNK` makes bad values. Each value takes the place of each argument, one
at a time; `outcome` says which of the allowed outcomes it was, or raises. Where the reference has the function too,
both accept the same and refuse by errors of the same type. `python -m tests.junk` tries them all.
"""

import contextlib
import datetime
import decimal
import fractions
import functools
import itertools
import json
import operator
import re
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import refusals
import subprocesses
from matplotlib import pyplot

import fastq
from fastq import reference
from fastq.formats.conventions import Convention
from fastq.results import QParams, QuantizedArray


def raising(*names):
    """An object whose methods of these names raise what no caller would expect, as tensors of PyTorch do."""

    def refuse(self, *arguments, **options):
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")

    return type("Raising", (), dict.fromkeys(names, refuse))()


class RequiresGradient:
    """As a tensor of PyTorch that requires a gradient."""

    dtype, shape, ndim = "torch.float32", (3, 4), 2

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")


class Index:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


class Array:
    """What gives another thing than an array."""

    def __array__(self, dtype=None, copy=None):
        return "no array"


class Unbound:
    """As a proxy of nothing: whatever is asked raises, also what it is."""

    def __getattribute__(self, name):
        raise RuntimeError("working outside of application context")


class Name(str):
    """A string that can't be compared."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        raise RuntimeError("not comparable")


def masked():
    return np.ma.masked_array(np.ones((3, 4), np.float32), mask=np.eye(3, 4))


def deep():
    nested = []
    for _ in range(200):
        nested = [nested]
    return nested


def endless():
    itself = []
    itself.append(itself)
    return itself


JUNK = {
    "None": lambda: None,
    "True": lambda: True,
    "False": lambda: False,
    "np.True_": lambda: np.True_,
    "0": lambda: 0,
    "1": lambda: 1,
    "-1": lambda: -1,
    "300": lambda: 300,
    "2**31": lambda: 2**31,
    "2**63 - 1": lambda: 2**63 - 1,
    "2**63": lambda: 2**63,
    "2**70": lambda: 2**70,
    "-2**70": lambda: -(2**70),
    "10**5000": lambda: 10**5000,
    "1.5": lambda: 1.5,
    "-0.0": lambda: -0.0,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "1j": lambda: 1j,
    "Decimal": lambda: decimal.Decimal("1.5"),
    "Fraction": lambda: fractions.Fraction(1, 3),
    "empty string": lambda: "",
    "string": lambda: "nonsense",
    "surrogate": lambda: "\ud800",
    "NUL": lambda: "int8\0",
    "long string": lambda: "x" * 10_000,
    "float8": lambda: "float8_e4m3fn",
    "not comparable": lambda: Name("int8"),
    "bytes": lambda: b"int8",
    "bytearray": lambda: bytearray(b"int8"),
    "memoryview": lambda: memoryview(b"int8"),
    "writable memoryview": lambda: memoryview(bytearray(b"int8")),
    "memoryview of two dimensions": lambda: memoryview(np.zeros((2, 3), np.int8)),
    "read-only memoryview of two dimensions": lambda: memoryview(np.zeros((2, 3), np.int8)).toreadonly(),
    "memoryview of no dimension": lambda: memoryview(np.zeros((), np.int8)),
    "empty list": list,
    "list": lambda: [1, 2],
    "ragged list": lambda: [[1], [1, 2]],
    "deep list": deep,
    "endless list": endless,
    "empty tuple": lambda: (),
    "tuple": lambda: (0,),
    "twice": lambda: (0, 0),
    "tuple of bool": lambda: (True,),
    "tuple of float": lambda: (1.0,),
    "tuple of string": lambda: ("a",),
    "tuple of None": lambda: (None, None),
    "tuple of tuple": lambda: ((0,), 1),
    "tuple of 2**70": lambda: (2**70,),
    "tuple of 2**62": lambda: (2**62, 2**62),
    "tuple of array": lambda: (np.arange(3), 1),
    "long tuple": lambda: tuple(range(100)),
    "dict": lambda: {1: 2},
    "empty dict": dict,
    "set": lambda: {1},
    "object": object,
    "class": lambda: int,
    "function": lambda: len,
    "range": lambda: range(3),
    "iterator": lambda: iter([1]),
    "iterator without end": itertools.count,
    "Ellipsis": lambda: ...,
    "NotImplemented": lambda: NotImplemented,
    "slice": lambda: slice(1),
    "date": lambda: datetime.date(2020, 1, 1),
    "np.dtype": lambda: np.dtype(np.float32),
    "dtype of fields": lambda: np.dtype([("a", "i4")]),
    "np.float32": lambda: np.float32(1),
    "np.int64": lambda: np.int64(3),
    "np.int64 of 64 bits": lambda: np.int64(-(2**63)),
    "np.longdouble": lambda: np.longdouble(1),
    "np.datetime64": lambda: np.datetime64("2020-01-01"),
    "np.timedelta64": lambda: np.timedelta64(1, "s"),
    "np.str_": lambda: np.str_("int8"),
    "np.void": lambda: np.zeros(1, [("a", "i4")])[0],
    "int4": lambda: ml_dtypes.int4(1),
    "float4": lambda: ml_dtypes.float4_e2m1fn(1),
    "array of no dimension": lambda: np.array(1),
    "empty array": lambda: np.empty((0, 4), np.float32),
    "array": lambda: np.ones((2, 2), np.float32),
    "array of 64 dimensions": lambda: np.ones((1,) * 64, np.float32),
    "array of objects": lambda: np.array([object()]),
    "array of strings": lambda: np.array(["a"]),
    "array of StringDType": lambda: np.array(["a"], np.dtypes.StringDType()),
    "array of bool": lambda: np.ones((3, 4), bool),
    "array of int64": lambda: np.ones((3, 4), np.int64),
    "array of float16": lambda: np.ones((3, 4), np.float16),
    "array of swapped bytes": lambda: np.ones((3, 4), np.dtype(np.float32).newbyteorder("S")),
    "array of complex": lambda: np.ones((3, 4), complex),
    "array of longdouble": lambda: np.ones((3, 4), np.longdouble),
    "array of fields": lambda: np.zeros((3, 4), [("a", "i4")]),
    "array of dates": lambda: np.zeros((3, 4), "M8[s]"),
    "array of float8": lambda: np.zeros((3, 4), ml_dtypes.float8_e4m3fn),
    "read-only array": lambda: np.broadcast_to(np.float32(1), (3, 4)),
    "masked array": masked,
    "matrix": lambda: np.ones((3, 4), np.float32).view(np.matrix),
    "requires a gradient": RequiresGradient,
    "__array__ of a string": Array,
    "__index__": lambda: Index(1),
    "__index__ far": lambda: Index(2**70),
    "raising __array__": lambda: raising("__array__"),
    "raising __index__": lambda: raising("__index__"),
    "raising __bool__": lambda: raising("__bool__", "__len__"),
    "raising __eq__": lambda: raising("__eq__", "__hash__"),
    "raising __hash__": lambda: raising("__hash__"),
    "raising __iter__": lambda: raising("__iter__", "__len__", "__getitem__"),
    "raising __float__": lambda: raising("__float__", "__int__", "__complex__"),
    "raising __repr__": lambda: raising("__repr__", "__str__"),
    "raising __getattribute__": Unbound,
    "QType": lambda: fastq.QType("int8", 8),
    "another QType": lambda: fastq.QType("int9", 9),
    "Convention": lambda: fastq.CONVENTIONS["torch"],
    "QParams": lambda: QParams(np.float32(0.5), 3, "int8"),
    "QuantizedArray": lambda: QuantizedArray(np.zeros((3, 4), np.int8), QParams(np.float32(0.5), 3, "int8"), (3, 4)),
}

# good arguments

X = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
CODES = np.arange(12, dtype=np.int8).reshape(3, 4)
P = QParams(np.float32(0.5), 3, "int8")
Q = QuantizedArray(CODES, P, (3, 4))

RANGED = {"dtype": "int8", "axis": 0, "block_size": 0, "symmetric": False, "convention": "onnx", "nan": "raise"}
RANGED |= {"bits": None, "range": "minmax"}
GIVEN = {"scale": 0.5, "zero_point": 0, "axis": 0, "block_size": 0, "convention": "onnx", "out": None}
WRITTEN = {"saturate": True, "out": None, "qparams": None}
BESIDE = {"qparams": P, "axis": None, "block_size": 0, "symmetric": False, "convention": "onnx", "bits": None}
BESIDE |= {"range": "minmax", "nan": "raise", "saturate": True, "out": None, "dtype": None}
PACKING = {"dtype": "int4", "axis": -1, "bitorder": "little"}
FIELDS = {"scale": np.float32(0.5), "zero_point": 0, "dtype": "int8", "axis": None, "block_size": 0}
FIELDS |= {"symmetric": False, "convention": "onnx", "tensor_scale": None, "computed": None}
NVFP4 = fastq.choose_qparams(np.ones((3, 32), np.float32), "nvfp4")
OWN = {"scale": NVFP4.scale, "zero_point": NVFP4.zero_point, "dtype": "nvfp4", "axis": -1, "block_size": 16}
OWN |= {"symmetric": True, "convention": "onnx", "tensor_scale": np.array(1, np.float32), "computed": None}


def of_both(name):
    """A function of fastq and the one of the reference."""
    return [functools.reduce(getattr, name.split("."), api) for api in (fastq, reference)]


def used(api, x, codes, shape, **fields):
    """Parameters with these fields, in all that they are good for."""
    params = QParams(**fields)
    api.fake_quantize(x, qparams=params)
    q = api.quantize(x, qparams=params)
    api.compare(x, q)
    q = QuantizedArray(codes, params, shape)
    return reference.dequantize(q) if api is reference else q.dequantize()


def with_fields(x, codes):
    return [functools.partial(used, api, x, codes, x.shape) for api in (fastq, reference)]


def of_a_search(api, **fields):
    return api.quantize(X, "uint8", range=fastq.MSERange(**fields))


def of_a_convention(api, **fields):
    return api.quantize(X, "uint8", convention=Convention(**fields))


def put_back(setter, getter):
    def call(**options):
        before = getter()
        try:
            setter(**options)
        finally:
            setter(before)

    return call


def drawn(draw, **arguments):
    try:
        draw(**arguments)
    finally:
        pyplot.close("all")


def calibrator_of(api, **options):
    """A calibrator that has seen something."""
    made = api.Calibrator(**({"dtype": "int8", "axis": 0, "bins": 16} | options))
    made.update(X)
    return made


def of_calibrators(call, **good):
    """A method of calibrators of fastq and of the reference."""
    return [lambda api=api, **options: call(calibrator_of(api, **good), **options) for api in (fastq, reference)]


def in_a_file(call, path):
    """Read or write a file in a folder of its own, where it may not be."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.suppress(OSError):
        call(path)


def inspected(function):
    """What is inspected here is always a call that works: a callable's own errors are none of fastq's."""
    return fastq.kernels.inspect(fastq.minmax if callable(function) else function, X)


SHAPED = np.zeros((3, 16), np.uint8)
CALLS = {
    "quantize": (of_both("quantize"), {"x": X} | RANGED | WRITTEN),
    "fake_quantize": (of_both("fake_quantize"), {"x": X} | RANGED | WRITTEN),
    "choose_qparams": (of_both("choose_qparams"), {"x": X} | RANGED),
    "quantize, nvfp4": (of_both("quantize"), {"x": X} | RANGED | WRITTEN | {"dtype": "nvfp4"}),
    "quantize, mse": (of_both("quantize"), {"x": X} | RANGED | WRITTEN | {"range": "mse"}),
    "MSERange": (
        [functools.partial(of_a_search, api) for api in (fastq, reference)],
        {"grid": 10, "shrink": 0.8, "norm": 2.0},
    ),
    "quantize, uint4 in blocks": (
        of_both("quantize"),
        {"x": X} | RANGED | WRITTEN | {"dtype": "uint4", "block_size": 2},
    ),
    "quantize, qparams": (of_both("quantize"), {"x": X} | BESIDE),
    "fake_quantize, qparams": (of_both("fake_quantize"), {"x": X} | BESIDE),
    "quantize_linear": (
        of_both("quantize_linear"),
        {"x": X, "dtype": "int8", "nan": "raise", "saturate": True} | GIVEN,
    ),
    "quantize_linear, no dtype": (of_both("quantize_linear"), {"x": X, "nan": "raise", "saturate": True} | GIVEN),
    "quantize_linear, faiss": (
        of_both("quantize_linear"),
        {"x": X, "dtype": "uint8", "nan": "raise", "saturate": True} | GIVEN | {"convention": "faiss"},
    ),
    "dequantize_linear": (of_both("dequantize_linear"), {"codes": CODES, "dtype": None} | GIVEN),
    "minmax": (of_both("minmax"), {"x": X, "axis": None, "block_size": 0, "nan": "raise"}),
    "compare": (of_both("compare"), {"x": X, "q": Q}),
    "pack": (of_both("pack"), {"codes": CODES % 8} | PACKING),
    "binarize": (
        of_both("binarize"),
        {"x": X, "axis": -1, "dtype": "uint8", "bitorder": "big", "nan": "raise", "out": None},
    ),
    "unpack": (of_both("unpack"), {"packed": np.zeros((3, 2), np.uint8), "shape": (3, 4)} | PACKING),
    "gguf.quantize": (of_both("gguf.quantize"), {"data": np.ones((3, 32), np.float32), "qtype": "Q8_0", "out": None}),
    "gguf.dequantize": (
        of_both("gguf.dequantize"),
        {"data": np.zeros((3, 34), np.uint8), "qtype": "Q8_0", "out": None},
    ),
    "dequantize": ([Q.dequantize, functools.partial(reference.dequantize, Q)], {"dtype": None, "out": None}),
    "dequantize, q": (of_both("dequantize"), {"q": Q, "dtype": None, "out": None}),
    "unpacked": ([Q.unpacked], {"dtype": None}),
    "__array__": ([Q.__array__], {"dtype": None, "copy": None}),
    "QParams": (with_fields(X, CODES), FIELDS),
    "QParams, nvfp4": (with_fields(np.ones((3, 32), np.float32), SHAPED), OWN),
    "QuantizedArray": (
        [lambda **parts: QuantizedArray(**parts).dequantize()],
        {"codes": CODES, "qparams": P, "shape": (3, 4)},
    ),
    "QType": (
        [fastq.QType],
        {"name": "int8", "bits": 8, "signed": True, "element": "", "block_size": 0}
        | {"scale_element": "", "container": ""},
    ),
    "Convention": (
        [functools.partial(of_a_convention, api) for api in (fastq, reference)],
        {name: field.default for name, field in Convention.__dataclass_fields__.items()} | {"name": "own"},
    ),
    "set_num_threads": ([put_back(fastq.set_num_threads, fastq.get_num_threads)], {"n": 1}),
    "set_result_pool_limit": ([put_back(fastq.set_result_pool_limit, fastq.get_result_pool_limit)], {"nbytes": 1}),
    "warmup": ([fastq.warmup], {"dtypes": [np.float32], "codes": ["int8"]}),
    "kernels.inspect": ([inspected], {"function": fastq.minmax}),
    "plot.errors": ([functools.partial(drawn, fastq.plot.errors)], {"x": X, "q": Q, "ax": None}),
    "plot.calibration": (
        [functools.partial(drawn, fastq.plot.calibration)],
        {"calibrator": calibrator_of(fastq, axis=None), "methods": ["minmax", "mse"], "channel": (), "percentile": 99.9}
        | {"quantized_bins": 16, "grid": 3, "ax": None},
    ),
    "Calibrator": (
        [lambda api=api, **options: calibrator_of(api, **options).qparams() for api in (fastq, reference)],
        {"dtype": "int8", "axis": 0, "symmetric": False, "convention": "onnx", "bins": 16, "nan": "raise"},
    ),
    "Calibrator.update": (of_calibrators(lambda calibrator, x: calibrator.update(x)), {"x": X}),
    "Calibrator.merge": (
        [lambda other: calibrator_of(fastq).merge(other)],
        {"other": calibrator_of(fastq)},
    ),
    "Calibrator.qparams": (
        of_calibrators(lambda calibrator, **options: calibrator.qparams(**options)),
        {"method": "mse", "percentile": 99.9, "quantized_bins": 16, "grid": 3},
    ),
    "Calibrator.clipping_range": (
        of_calibrators(lambda calibrator, **options: calibrator.clipping_range(**options)),
        {"method": "mse", "percentile": 99.9, "quantized_bins": 16, "grid": 3},
    ),
    "Calibrator.save": ([lambda path: in_a_file(calibrator_of(fastq).save, path)], {"path": "state"}),
    "Calibrator.load": ([lambda path: in_a_file(fastq.Calibrator.load, path)], {"path": "state"}),
}
# arguments that may also be wrong beside a value that is good alone: then the message names one or the other
PARTNERS = {("QParams, nvfp4", "dtype"): "scale", ("QParams, nvfp4", "axis"): "scale"}

# the check

REFUSALS = "TypeError", "ValueError", "AxisError"
LONGEST = 1000  # characters of a message


def outcome(function, arguments, parameter, partner=None):
    """What a call does: "works", or the name of the error by which it refuses a parameter, if that is allowed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            function(**arguments)
        return "works"
    except Exception as raised:
        error = raised
    refusals.note(error.__traceback__)
    kind, message = type(error).__name__, str(error)
    where = f"{kind}: {message[:300]}"
    if kind == "MemoryError" and parameter == "shape":
        return kind
    assert kind in REFUSALS, where
    assert re.search(rf"\b({parameter}|{partner or parameter})\b", message), f"does not name {parameter}: {where}"
    assert len(message) < LONGEST, where
    assert "\n" not in message, where
    return kind


def wrong(call, names=JUNK, parameters=None):
    """What is wrong with a call given bad values of each parameter, as lines; and how many had which outcome."""
    functions, good = CALLS[call]
    lines, counts = [], Counter()
    for parameter, name in itertools.product(parameters or good, names):
        found = []
        for function in functions:
            arguments = good | {parameter: JUNK[name]()}
            try:
                found.append(outcome(function, arguments, parameter, PARTNERS.get((call, parameter))))
            except AssertionError as error:
                lines.append(f"{call}, {parameter} = {name}, {'reference' if found else 'fast'}: {error}")
                found.append("wrong")
        counts.update(found)
        if len(set(found)) > 1 and "wrong" not in found:
            lines.append(f"{call}, {parameter} = {name}: fast and reference differ: {found}")
    return lines, counts


TESTS = str(Path(__file__).parent)
ALONE = """
import json
sys.path.insert(0, {tests!r})
from test_junk import CALLS, JUNK, wrong
for call in {calls!r}:
    lines, counts = wrong(call, list(JUNK)[{first}::{step}])
    print(json.dumps([call, lines, counts]), flush=True)
"""


def alone(calls, first=0, step=1):
    """Start a process of its own that tries every `step`-th value and prints what came of each call."""
    return subprocesses.start(ALONE.format(tests=TESTS, calls=calls, first=first, step=step))


# short versions: each parameter meets a part of the values, and each value some parameters

FEW, MORE = 29, 7
COMPILING = {"quantize, nvfp4", "QParams, nvfp4", "quantize, mse", "Convention", "quantize_linear, faiss"}


@pytest.mark.slow("compiles kernels for each call", quick=lambda call: call not in COMPILING)
@pytest.mark.parametrize("call", CALLS)
def test_some_values(call):
    parameters = list(CALLS[call][1])
    lines = []
    for k, parameter in enumerate(parameters):
        first = (list(CALLS).index(call) + 5 * k) % FEW
        lines += wrong(call, list(JUNK)[first::FEW], [parameter])[0]
    assert lines == []


@pytest.mark.slow("a minute: more of the values, in a process of its own, where an abort is an exit code")
def test_more_values():
    found = [json.loads(line) for line in subprocesses.finish(alone(list(CALLS), 3, MORE), timeout=900).splitlines()]
    assert [call for call, _, _ in found] == list(CALLS)
    assert [line for _, lines, _ in found for line in lines] == []


# what is refused in few places, or is not among the parameters of functions


def test_a_tensor_is_to_be_detached():
    for function in of_both("quantize"):
        with pytest.raises(TypeError, match=r"^x must be .* requires grad\. Use tensor\.detach\(\)"):
            function(RequiresGradient(), "int8")


@pytest.mark.parametrize("junk", [2**70, -(2**70), (0, 2**70), 10**5000], ids=["far", "negative", "in a tuple", "long"])
def test_integers_of_more_than_64_bits(junk):
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
    junk = {"true": 2, "raising": raising("__bool__")}[name]
    for function, option in itertools.product(of_both("quantize"), ("symmetric", "saturate")):
        with pytest.raises(TypeError, match=f"^{option} must be a bool, not "):
            function(X, "int8", **{option: junk})


# what the few values above may not reach
REFUSED = [
    (lambda api: api.minmax(X, axis="0"), TypeError, "axis must be an int, a tuple of int or None, not '0'"),
    (lambda api: api.minmax(X, axis=True), TypeError, "axis must be .*, not True"),
    (lambda api: api.minmax(X, axis=(0, -2)), ValueError, "axis must name each axis once"),
    (lambda api: api.minmax(X, axis=0, block_size=-1), ValueError, "block_size must be 0"),
    (lambda api: api.minmax(X, block_size=2), TypeError, "block_size=2 needs axis"),
    (lambda api: api.minmax(X, nan="skip"), ValueError, "nan must be one of 'raise', 'zero', not 'skip'"),
    (lambda api: api.minmax(masked()), TypeError, "x is a masked array"),
    (lambda api: api.minmax([[1], [1, 2]]), ValueError, "x must be what NumPy makes an array of; list"),
    (lambda api: api.minmax(np.empty((0, 3))), ValueError, r"x has shape \(0, 3\)"),
    (lambda api: api.dequantize_linear(CODES, 0.5, dtype="float33"), TypeError, "dtype must be .* not 'float33'"),
    (lambda api: api.quantize(X, None), TypeError, "dtype"),
    (lambda api: api.choose_qparams(X, None), TypeError, "dtype must be .* not None"),
    (lambda api: api.choose_qparams(X, X), TypeError, r"dtype must be .* not an array of float32 of shape \(3, 4\)"),
    (lambda api: api.unpack(np.zeros(4, np.uint8), "int4", shape=8), TypeError, "shape must be a tuple of int"),
    (lambda api: api.unpack(np.zeros(4, np.uint8), "int4", shape=itertools.count()), ValueError, "at most 64"),
    (lambda api: api.unpack(np.zeros(4, np.uint8), "int4", shape=(-1,)), ValueError, "shape must not have negative"),
    (lambda api: api.unpack(np.zeros(4, np.uint8), "int4", shape=(7, 1)), ValueError, "packed has shape"),
    (lambda api: api.compare(X, X.astype(np.int64)), TypeError, "q must be .*float.*int64"),
    (lambda api: api.gguf.quantize(X, Unbound()), TypeError, "qtype must be a name, .* not <.*Unbound object"),
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
    (
        lambda api: Convention("own", scale_floor=10**5000),
        ValueError,
        "scale_floor must be .* of 16610 bits",
    ),
]


@pytest.mark.parametrize(("call", "error", "match"), REFUSED, ids=[match for _, _, match in REFUSED])
def test_refusals(call, error, match):
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
    for api in (fastq, reference):
        q = api.quantize(memoryview(X), "int8")
        assert q.codes.tobytes() == api.quantize(X, "int8").codes.tobytes()
        scale = memoryview(np.full((3, 2), 0.5, np.float32)).toreadonly()
        codes = api.quantize_linear(X, scale, axis=1, block_size=2)
        assert codes.tobytes() == api.quantize_linear(X, 0.5).tobytes()


# the check notices


def refusing(error):
    def function(x):
        raise error

    return function


BROKEN = {
    "another exception": [refusing(RuntimeError("x is wrong"))],
    "one that is derived from an allowed one": [refusing(UnicodeError("x is wrong"))],
    "an exception of the caller's object": [operator.index],
    "no name": [refusing(TypeError("something is wrong"))],
    "a name within another": [refusing(TypeError("axis is wrong"))],
    "a long message": [refusing(TypeError("x is " + "wrong" * 1000))],
    "several lines": [refusing(TypeError("x is\nwrong"))],
    "no memory": [refusing(MemoryError("x"))],
    "a warning": [lambda x: warnings.warn("x is wrong", stacklevel=1)],
    "one that takes what the other refuses": [refusing(TypeError("x is wrong")), lambda x: None],
    "two that refuse by different errors": [refusing(TypeError("x is wrong")), refusing(ValueError("x is wrong"))],
}


@pytest.mark.parametrize("functions", BROKEN.values(), ids=BROKEN)
def test_the_check_notices(monkeypatch, functions):
    monkeypatch.setitem(CALLS, "broken", (functions, {"x": X}))
    lines, counts = wrong("broken", ["object", "raising __index__"])
    assert len(lines) == 2
    assert sum(counts.values()) == 2 * len(functions)


def test_the_check_passes_what_is_right(monkeypatch):
    right = [refusing(np.exceptions.AxisError("x is wrong")), refusing(np.exceptions.AxisError("axis of x"))]
    monkeypatch.setitem(CALLS, "right", (right, {"x": X}))
    assert wrong("right") == ([], {"AxisError": 2 * len(JUNK)})


@pytest.mark.slow("a process of its own")
def test_an_abort_is_noticed():
    code = ALONE.format(tests=TESTS, calls=["abort"], first=0, step=1)
    with pytest.raises(AssertionError, match="exit code -6"):
        subprocesses.finish(
            subprocesses.start(code.replace("\nfor", "\nCALLS['abort'] = [lambda x: os.abort()], {'x': 1}\nfor"))
        )
