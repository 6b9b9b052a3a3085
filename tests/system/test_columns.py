"""Columns whose rows are lists, in pandas, polars and Arrow: what is not taken gets a hint, and the hint works."""

import re

import ml_dtypes
import numpy as np
import pytest

import fastq
from fastq import reference

ROWS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


def of_pandas(pandas):
    yield pandas.Series(ROWS.tolist())
    yield pandas.Series(list(ROWS))
    yield pandas.DataFrame({"e": list(ROWS)})
    yield pandas.DataFrame({"e": list(ROWS), "id": [1, 2, 3]})


def of_polars(polars):
    yield polars.Series("e", ROWS.tolist())
    yield polars.Series("e", ROWS.tolist(), dtype=polars.Array(polars.Float32, 4))
    yield polars.DataFrame({"e": ROWS.tolist()})
    yield polars.DataFrame({"e": polars.Series(ROWS.tolist(), dtype=polars.Array(polars.Float32, 4)), "id": [1, 2, 3]})


def of_pyarrow(pyarrow):
    fixed = pyarrow.array(ROWS.tolist(), pyarrow.list_(pyarrow.float32(), 4))
    yield fixed
    yield pyarrow.array(ROWS.tolist())
    yield pyarrow.array(ROWS.tolist(), pyarrow.large_list(pyarrow.float32()))
    yield pyarrow.chunked_array([fixed[:2], fixed[2:]])
    yield pyarrow.FixedShapeTensorArray.from_numpy_ndarray(ROWS)
    yield pyarrow.table({"e": fixed})
    yield pyarrow.table({"e": fixed, "id": [1, 2, 3]})["e"]


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_rows_are_taken_or_the_hint_works(library):
    imported = pytest.importorskip(library, reason=f"{library} is not installed; its columns are not given to fastq")
    for x in {"pandas": of_pandas, "polars": of_polars, "pyarrow": of_pyarrow}[library](imported):
        try:
            found = fastq.quantize(x, "int8")
        except TypeError as error:
            (hint,) = re.findall(r"pass the rows as one array, (.*)$", str(error))
            found = fastq.quantize(eval(hint, {"numpy": np, "x": x}), "int8")
        assert found.codes.tobytes() == reference.quantize(ROWS.astype(found.scale.dtype), "int8").codes.tobytes()


class Column:
    """A column of rows, as NumPy sees those of all three libraries."""

    def __init__(self, rows):
        self.rows = rows

    def __array__(self, dtype=None, copy=None):
        found = np.empty(len(self.rows), object)
        for k, row in enumerate(self.rows):
            found[k] = row
        return found


class Query(Column):
    def collect(self):
        raise NotImplementedError


def test_columns_without_a_library():
    with pytest.raises(TypeError, match=r"pass the rows as one array, numpy.stack\(numpy.asarray\(x\)\)$"):
        fastq.minmax(Column(list(ROWS)))
    with pytest.raises(TypeError, match=r"must be an array of numbers, not [^:]*$"):
        fastq.minmax(Column([[1.0], [1.0, 2.0]]))
    with pytest.raises(TypeError, match=r"must be an array of numbers, not .*: call x.collect\(\) first$"):
        fastq.minmax(Query([None, None]))


def message_of(call):
    """The words of a refusal, empty if there is none."""
    try:
        call()
    except TypeError as error:
        return str(error)
    return ""


KINDS = {"int4": "integer", "uint4": "integer", "int2": "integer", "bfloat16": "float", "float8_e4m3fn": "float"}


@pytest.mark.slow("compiles 8 kernels, of functions that take it", quick=lambda name: name != "bfloat16")
@pytest.mark.parametrize("name", KINDS)
def test_a_refusal_names_no_kind_that_the_dtype_is_of(name):
    """As "an integer array, not int4" and "a dtype of ml_dtypes, not bfloat16" did."""
    x = np.ones((4, 32), getattr(ml_dtypes, name))
    sums = np.ones((4, 32), np.int32)
    calls = {
        "quantize": lambda: fastq.quantize(x, "int8"),
        "binarize": lambda: fastq.binarize(x),
        "minmax": lambda: fastq.minmax(x),
        "compare": lambda: fastq.compare(x, x),
        "gguf.quantize": lambda: fastq.gguf.quantize(x, "Q8_0"),
        "dequantize_linear": lambda: fastq.dequantize_linear(x, 0.5),
        "requantize": lambda: fastq.requantize(x, 0.5, 0, "int8"),
        "multiplier": lambda: fastq.requantize(sums, x[0, 0], 0, "int8"),
        "bias": lambda: fastq.requantize(sums, 0.5, 0, "int8", bias=x[0, 0]),
        "importance": lambda: fastq.quantize(np.ones((4, 32)), "int4", range="mse", importance=x),
        "Calibrator": lambda: fastq.Calibrator("int8").update(x),
    }
    wrong = f"{KINDS[name]} array", f"{KINDS[name]} dtype", f"{KINDS[name]}s, not", "a dtype of ml_dtypes, not"
    for call in calls.values():
        message = message_of(call)
        assert not any(each in message for each in wrong)
        assert not message or f"not {name}" in message
