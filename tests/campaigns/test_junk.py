"""Bad values for every parameter of every public function: it works, or an error names the parameter. Nothing else.

`CALLS` has good arguments of each function, `JUNK` makes bad values. Each value takes the place of each argument, one
at a time; `outcome` says which of the allowed outcomes it was, or raises. Where the reference has the function too,
both accept the same and refuse by errors of the same type. `python -m tests.campaigns.junk` tries them all.
"""

import functools
import importlib
import inspect
import itertools
import json
import operator
import re
import warnings
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import refusals
import subprocesses
from junk_calls import CALLS, JUNK, PARTNERS, X, defaults_of

import fastq

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


def made(value):
    """A good argument, which a kernel makes where it is a partial function."""
    return value() if isinstance(value, functools.partial) else value


def wrong(call, names=JUNK, parameters=None):
    """What is wrong with a call given bad values of each parameter, as lines; and how many had which outcome."""
    functions, good = CALLS[call]
    lines, counts = [], Counter()
    for parameter, name in itertools.product(parameters or good, names):
        found = []
        for function in functions:
            arguments = {each: made(value) for each, value in good.items()} | {parameter: JUNK[name]()}
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
    """Start a separate process that tries every `step`-th value and prints the outcome of each call."""
    return subprocesses.start(ALONE.format(tests=TESTS, calls=calls, first=first, step=step))


# what is to be called

NOT_CALLED = {
    "Comparison": "what `compare` returns",
    "io.Checkpoint": "what `io.open_checkpoint` returns",
    "io.Tensors": "what `load` returns",
    "kernels.inspect": "its further arguments are those of another function",
    "reference": "each function is called together with the fast one",
}
METHODS_NOT_CALLED = dict.fromkeys(("Convention", "MSERange"), "the package calls them with checked arguments")


def public_parameters():
    """Functions, classes and methods that a user may call, with the names of their arguments."""
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
    yield name, set(defaults_of(value))
    if inspect.isclass(value) and name not in METHODS_NOT_CALLED and not name.startswith("dask"):
        for inner in vars(value):
            if inner == "__getitem__" or (inner[0] != "_" and callable(getattr(value, inner))):
                yield f"{name}.{inner}", set(defaults_of(getattr(value, inner)))


def test_everything_public_is_called():
    called = {}
    for call, (_, good) in CALLS.items():
        called.setdefault(call.partition(",")[0], set()).update(good)
    missing = {name: wanted - called.get(name, set()) for name, wanted in public_parameters()}
    assert {name: parameters for name, parameters in missing.items() if parameters} == {}


# short versions: each parameter meets a part of the values, and each value some parameters

FEW, MORE = 29, 7
COMPILING = {"quantize, nvfp4", "QParams, nvfp4", "quantize, mse", "Convention", "quantize_linear, faiss"}
COMPILING |= {f"{name}, stochastic" for name in ("quantize", "fake_quantize", "quantize_linear")}
COMPILING |= {"quantize, uint4 in blocks"}


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


# the check notices


def refusing(error):
    return Mock(side_effect=error)


BROKEN = {
    "another exception": [refusing(RuntimeError("x is wrong"))],
    "one that is derived from an allowed one": [refusing(UnicodeError("x is wrong"))],
    "an exception of the caller's object": [operator.index],
    "no name": [refusing(TypeError("something is wrong"))],
    "a name within another": [refusing(TypeError("axis is wrong"))],
    "a long message": [refusing(TypeError("x is " + "wrong" * 1000))],
    "0 of the faults that it reports": [refusing(ValueError("x has 0 infinite values: their range has no scale"))],
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
