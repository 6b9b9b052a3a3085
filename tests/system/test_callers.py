"""A warning names the line that calls fastq, through whatever function, module or library that is."""

import ast
import functools
import threading
import warnings
from pathlib import Path

import dask
import dask.array as da
import junk_calls
import numpy as np
import pytest
import xarray
from junk_calls import CALLS, X

import fastq
import fastq.dask
from fastq.system.callers import warn_caller

ROOT = Path(fastq.__file__).parent
CALLERS = {__file__, junk_calls.__file__}


class Unit:
    def __str__(self):
        return "K"


class WithUnit(np.ndarray):
    """As a Quantity of astropy; its views and parts have the unit, too."""

    unit = Unit()


def with_unit(x):
    """An array with a unit; one of dask has it in its chunks, and knows that."""
    return x.map_blocks(with_unit) if isinstance(x, da.Array) else np.asarray(x).view(WithUnit)


def told(call):
    """The files that the warnings of a call name."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [warning.filename for warning in caught if "has the unit K" in str(warning.message)]


ARRAYS = [
    (call, parameter)
    for call, (_, good) in CALLS.items()
    for parameter, value in good.items()
    if isinstance(value, (np.ndarray, da.Array))
]
SILENT = {("dask.QuantizedArray", "codes")}  # kept as they are


@pytest.mark.slow("compiles kernels", quick=lambda call, parameter: "," not in call)
@pytest.mark.parametrize(("call", "parameter"), ARRAYS)
def test_every_public_function_names_the_caller(call, parameter):
    functions, good = CALLS[call]
    for function in functions:
        arguments = {name: value() if isinstance(value, functools.partial) else value for name, value in good.items()}
        files = told(lambda f=function, a=arguments: f(**a | {parameter: with_unit(a[parameter])}))
        assert set(files) <= CALLERS
        assert ((call, parameter) in SILENT) == (not files)


LAZY = da.from_array(X, chunks=2)


def chunks_with_units():
    """An array of dask that does not know of the units of its chunks."""
    return LAZY.map_blocks(with_unit, meta=np.zeros((0, 0), np.float32))


OF_TASKS = {
    "minmax": lambda x: fastq.dask.minmax(x),
    "quantize": lambda x: fastq.dask.quantize(x, "int8").codes,
    "dequantize": lambda x: fastq.dask.quantize(x, "int8").dequantize(),
    "compare": lambda x: fastq.dask.compare(x, X),
    "calibrate": lambda x: fastq.dask.calibrate(x, "int8"),
    "bitround": lambda x: fastq.bitround(x, keepbits=3),
    "xarray": lambda x: fastq.fake_quantize(xarray.DataArray(x), "int8"),
}


@pytest.mark.parametrize("name", OF_TASKS)
def test_tasks_name_the_line_that_computes(name):
    lazy = OF_TASKS[name](chunks_with_units())
    files = told(lambda: dask.compute(lazy, scheduler="sync"))
    assert set(files) == {__file__}


@pytest.mark.parametrize("name", OF_TASKS)
def test_graphs_name_the_line_that_makes_them(name):
    assert set(told(lambda: OF_TASKS[name](with_unit(LAZY)))) == {__file__}


def test_a_task_in_a_thread_of_dask_names_no_line():
    lazy = fastq.dask.minmax(chunks_with_units())
    assert set(told(lambda: dask.compute(lazy, scheduler="threads"))) == {"sys"}


def test_a_function_of_a_caller_in_a_task_is_the_caller():
    lazy = LAZY.map_blocks(lambda chunk: fastq.fake_quantize(with_unit(chunk), "int8"), dtype="float32", meta=X[:0])
    assert set(told(lambda: dask.compute(lazy, scheduler="threads"))) == {__file__}


def test_a_thread_of_a_caller_is_one():
    thread = threading.Thread(target=lambda: fastq.minmax(with_unit(X)))
    assert told(lambda: (thread.start(), thread.join())) == [__file__]


def test_a_warning_is_one_of_users():
    with pytest.warns(UserWarning, match="^of nothing$") as caught:
        warn_caller("of nothing")
    assert [each.filename for each in caught] == [__file__]


def test_no_warning_counts_frames():
    """That of the import itself is given in the file that is imported."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("warnings.warn", "warn", "warnings.warn_explicit")
    }
    assert found == {"__init__.py", "system/callers.py"}
