"""Bad values for every parameter of every public function: it works, or an error names the parameter. Nothing else.

`CALLS` has good arguments of each function, `JUNK` makes bad values. Each value takes the place of each argument, one
at a time; `outcome` says which of the allowed outcomes it was, or raises. Where the reference has the function too,
both accept the same and refuse by errors of the same type. `python -m tests.campaigns.junk` tries them all.
"""

import importlib
import inspect
import itertools
import json
import operator
import re
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import refusals
import subprocesses
import xarray
from junk_calls import (
    CALLS,
    CODES,
    JUNK,
    LAZY,
    PARTNERS,
    P,
    Q,
    RequiresGradient,
    Unbound,
    X,
    masked,
    of_both,
    raising,
    used,
)

import fastq
from fastq import io, reference
from fastq.formats.conventions import Convention
from fastq.results import QParams, QuantizedArray

# the check

REFUSALS = "TypeError", "ValueError", "AxisError"  # and for an index IndexError, as of NumPy
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
    assert kind in (*REFUSALS, *["IndexError"] * (parameter == "index")), where
    assert re.search(rf"\b({parameter}|{partner or parameter})\b", message), f"does not name {parameter}: {where}"
    assert len(message) < LONGEST, where
    assert "\n" not in message, where
    assert not refusals.counts_nothing(message), where
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


# what is to be called

NOT_CALLED = {
    "Comparison": "what `compare` returns",
    "io.Checkpoint": "what `io.open_checkpoint` returns",
    "kernels.inspect": "its further arguments are those of another function",
    "reference": "each function is called beside the fast one",
}
METHODS_NOT_CALLED = {"Convention": "they are asked by the package, with what that has checked"}


def public_parameters():
    """Functions, classes and methods that a user may call, with the names of what they take."""
    for name in (*fastq.__all__, "io"):
        yield from parameters_of(name, importlib.import_module("fastq.io") if name == "io" else getattr(fastq, name))


def parameters_of(name, value):
    if name in NOT_CALLED:
        return
    if inspect.ismodule(value):
        own = [inner for inner, each in vars(value).items() if getattr(each, "__module__", "") == value.__name__]
        for inner in getattr(value, "__all__", [inner for inner in own if inner[0] != "_"]):
            yield from parameters_of(f"{name}.{inner}", getattr(value, inner))
        return
    if not callable(value):
        return
    yield name, named(value)
    if inspect.isclass(value) and name not in METHODS_NOT_CALLED and not name.startswith("dask"):
        for inner in vars(value):
            if inner == "__getitem__" or (inner[0] != "_" and callable(getattr(value, inner))):
                yield f"{name}.{inner}", named(getattr(value, inner))


def named(function):
    """Names of the parameters of a function that are not given one by one."""
    every = inspect.signature(function).parameters.values()
    return {each.name for each in every if each.name != "self" and each.kind is not each.VAR_KEYWORD}


def test_everything_public_is_called():
    called = {}
    for call, (_, good) in CALLS.items():
        called.setdefault(call.partition(",")[0], set()).update(good)
    missing = {name: wanted - called.get(name, set()) for name, wanted in public_parameters()}
    assert {name: parameters for name, parameters in missing.items() if parameters} == {}


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
    (lambda api: api.quantize_linear(X, 0.5, np.uint8(16), OF_4_BITS), ValueError, "zero_point must"),
    (lambda api: fastq.QType("int8", 8).code_range(1), TypeError, "symmetric must be a bool"),
    (lambda api: fastq.load("\ud800"), ValueError, "path must be the name of a file"),
    (lambda api: fastq.load(""), ValueError, "path must be the name of a file"),
    (lambda api: fastq.NestedScale(X, 0.0, (3, 4)), TypeError, "quantized must be a QuantizedArray, not an array"),
    (lambda api: fastq.NestedScale(Q, 0.0, (3, 5)), ValueError, "quantized has 12 scales, but shape"),
    (lambda api: api.nest_scale(X, block_size=0), ValueError, "block_size must be 1 or more"),
    (lambda api: fastq.zarr.cast_value(X, "int8", scalar_map=1), TypeError, "scalar_map must be a mapping"),
    (lambda api: fastq.zarr.cast_value(X, "int8", scalar_map={1: "2"}), TypeError, "scalar_map must have numbers, not"),
    (lambda api: fastq.zarr.cast_value(X, "int8", scalar_map={1: 2.5}), ValueError, "scalar_map must have numbers of"),
    (lambda api: fastq.zarr.cast_value(X, "int8", scalar_map={1: 128}), ValueError, "scalar_map must have numbers of"),
    (lambda api: fastq.dask.calibrate(LAZY, "int8", split_every=1), ValueError, "split_every must be 2 or more, not 1"),
    (lambda api: fastq.dask.QuantizedArray(LAZY, P, (3, 4)), ValueError, "codes have shape"),
    (lambda api: fastq.plot.compare(X, {"a": CODES}), TypeError, "schemes has 'a': q must be"),
    (lambda api: fastq.xarray.pack(X), TypeError, "ds must be a Dataset"),
    (lambda api: fastq.xarray.pack(xarray.Dataset(), max_error=1), TypeError, "max_error must be a dict"),
    (lambda api: io.open_checkpoint("nothing"), ValueError, "path must be that of a model directory"),
    (lambda api: io.save_checkpoint(b"a/new", {}), TypeError, "path must be a string or a path"),
    (lambda api: io.save_checkpoint("a/new", {}, shard_size=0), ValueError, "shard_size must be 1 or more"),
    (lambda api: io.save_checkpoint("a/new", [X]), TypeError, "tensors must be a mapping"),
    (lambda api: io.save_checkpoint("a/new", {1: X}), TypeError, "tensors must have names that are strings, not 1"),
    (lambda api: io.save_checkpoint("a/new", {"x": X}, [1]), TypeError, "config must be a mapping"),
    (
        lambda api: io.save_checkpoint("a/new", {"x": X}, {"a": X}),
        TypeError,
        "config must be serializable as JSON",
    ),
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
    "none of what it complains about": [refusing(ValueError("x has 0 infinite values: their range has no scale"))],
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
