"""What a caller sets for errors of NumPy and for warnings changes no result of any public function, of hard numbers."""

import dataclasses
import functools
import warnings

import numpy as np
import pytest
import xarray
from catalogue import ANYWHERE
from junk_calls import CALLS, ROWS, WEIGHT, X

import fastq
from fastq import reference

# numbers that underflow and overflow where they are squared, divided or converted, next to ordinary ones
SMALL = {
    "float32": np.array([1e-45, -1e-40, 1e-38, 3e-20], np.float32),
    "float64": np.array([5e-324, -1e-310, 1e-200, 1e-46]),
    "float16": np.array([6e-8, -1e-6, 1e-5, 3e-5], np.float16),
}
LARGE = {
    "float32": np.array([3e38, -1e38, 1e-45, 1.0], np.float32),
    "float64": np.array([1.7e308, -1e300, 5e-324, 1.0]),
    "float16": np.array([65504.0, -6e4, 6e-8, 1.0], np.float16),
}
DTYPES = "float32", "float64", "float16"
KINDS = {"good": None} | {
    f"{name} {dtype}": numbers[dtype] for name, numbers in (("small", SMALL), ("large", LARGE)) for dtype in DTYPES
}


def hard(value, numbers):
    """An array like a good argument, of hard numbers; other arguments are as they were."""
    if isinstance(value, functools.partial):
        return value()
    if numbers is None:
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return np.resize(numbers, value.shape)
    if hasattr(value, "dask") and value.dtype.kind == "f":
        return value.map_blocks(hard, numbers, dtype=numbers.dtype)
    if isinstance(value, xarray.Dataset) and "scale_factor" not in value["t"].attrs:
        return value.map(lambda array: array.copy(data=hard(array.values, numbers)))
    return value


def outcome(function):
    """What a call gives, as bytes where it is arrays; or the type of its refusal."""
    try:
        return as_bytes(function())
    except (TypeError, ValueError, IndexError, NotImplementedError) as error:
        return type(error)


def as_bytes(found):
    if isinstance(found, np.ndarray | np.generic):
        return found.dtype, np.asarray(found).tobytes()
    if isinstance(found, fastq.QuantizedArray | fastq.QParams):
        return [as_bytes(getattr(found, name)) for name in ("codes", "scale", "zero_point") if hasattr(found, name)]
    if isinstance(found, tuple | list):
        return [as_bytes(each) for each in found]
    if isinstance(found, dict):
        return {name: as_bytes(each) for name, each in found.items()}
    if isinstance(found, fastq.Comparison):
        return repr(found)
    return type(found)


STATES = {
    "raise": lambda: np.errstate(all="raise"),
    "warnings": lambda: np.errstate(all="warn"),  # which are errors in these tests
}


@pytest.mark.slow("kernels of three dtypes", quick=lambda call, kind: kind == "good" or "float32" in kind)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", CALLS)
def test_states_of_the_caller_change_no_result(call, kind):
    functions, good = CALLS[call]
    arguments = {name: hard(value, KINDS[kind]) for name, value in good.items()}
    for function in functions:
        assert_same_in_every_state(functools.partial(function, **arguments))


def assert_same_in_every_state(function):
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = outcome(function)
    for name, state in STATES.items():
        with state():
            assert outcome(function) == expected, (name, function)


def of_scale(scale, dtype=np.float32):
    """An array whose values are as small or as large as its scale."""
    params = fastq.QParams(np.array(scale, dtype), 0, "int8")
    return fastq.QuantizedArray(np.arange(-60, 60, 10, dtype=np.int8).reshape(3, 4), params, (3, 4))


# what is done with arrays of such scales, and what takes other options for hard numbers; all arguments are made before
HARD = [np.float32(each) for each in SMALL["float32"].tolist() + LARGE["float32"].tolist()[:1]]
bound = functools.partial


def of_attributes(function, values, **attributes):
    """A function on a dataset whose variable has these attributes, and its values."""
    dataset = xarray.Dataset({"t": ("x", values, attributes)})
    return lambda: function(dataset)["t"].values


def alike(number):
    """Two arrays that differ by little."""
    return np.full(9, number), np.full(9, number * 1.001)


OTHERS = {
    "as float16": lambda s: bound(np.asarray, of_scale(s), np.float16),
    "as float32": lambda s: bound(np.asarray, of_scale(float(s) ** 3 or 5e-324, np.float64), np.float32),
    "astype": lambda s: bound(of_scale(s).astype, np.float16),
    "dequantize": lambda s: bound(of_scale(s).dequantize, dtype=np.float16),
    "explain": lambda s: bound(of_scale(s).explain, (1, 2)),
    "repr": lambda s: bound(repr, of_scale(s)),
    "card": lambda s: of_scale(s)._repr_html_,
    "compare": lambda s: bound(fastq.compare, np.full((3, 4), s), of_scale(s)),
    "compare, squares": lambda s: bound(fastq.compare, *alike(float(s) ** 5)),
    "compare, reference": lambda s: bound(reference.compare, *alike(float(s) ** 5)),
    "nest_scale": lambda s: bound(fastq.nest_scale, np.geomspace(abs(s), abs(s) * 9, 64, dtype=np.float32)),
    "nest_scale, reference": lambda s: bound(reference.nest_scale, np.geomspace(abs(s), abs(s) * 9, 64).astype("f4")),
    "bitround": lambda s: bound(fastq.bitround, np.full(64, float(s) ** 7), digits=3),
    "bitround, max_error": lambda s: bound(fastq.bitround, np.full(64, s), max_error=1e-300),
    "importance": lambda s: bound(
        fastq.quantize, X, "int4", axis=1, block_size=2, range="mse", importance=np.r_[float(s) ** 5, np.ones(3)]
    ),
    "mse": lambda s: bound(fastq.quantize, X * s, "int4", range="mse"),
    "mse of llm-compressor": lambda s: bound(fastq.quantize, X * s, "int4", range="mse-llm-compressor"),
    "pack, missing value": lambda s: of_attributes(fastq.xarray.pack, X[0], missing_value=float(s) ** 5),
    "pack, valid range": lambda s: of_attributes(fastq.xarray.pack, X[0], valid_min=float(s) ** 5),
    "xarray.bitround": lambda s: of_attributes(bound(fastq.xarray.bitround, digits=3), X[0], _FillValue=float(s) ** 5),
    "unpack": lambda s: of_attributes(fastq.xarray.unpack, np.arange(4), scale_factor=float(s) ** 5, add_offset=1.0),
    "calibrator": lambda s: bound(calibrated_by, fastq, X * s),
    "calibrator, reference": lambda s: bound(calibrated_by, reference, X * s),
    "gguf": lambda s: bound(fastq.gguf.quantize, ROWS * np.float64(s) ** 3, "Q8_0"),
    "requantize": lambda s: bound(fastq.requantize, np.arange(12, dtype=np.int32), abs(float(s)), 0, "int8"),
    **{
        f"choose_qparams, {row}": lambda s, row=row: bound(
            fastq.choose_qparams, np.array([0, s, 1], np.float64), "uint8", convention=row
        )
        for row in ANYWHERE
    },
    "stored as float16": lambda s: bound(
        fastq.choose_qparams, (X * s).astype(np.float16), "int8", axis=0, convention="compressed-tensors"
    ),
    "layouts": lambda s: bound(fastq.layouts.to_tensors, with_scale(s), "gptq"),
    "to float8": lambda s: bound(fastq.quantize_linear, np.array([s, 1.0]), 1.0, dtype="float8_e4m3fn"),
}


def calibrated_by(api, x):
    calibrator = api.Calibrator("int8", bins=16)
    calibrator.update(x)
    methods = "minmax", "percentile", "mse"
    return [calibrator.clipping_range(method, percentile=99.0) for method in methods], calibrator.importance()


def with_scale(scale):
    """A weight whose scales are as small or as large."""
    return dataclasses.replace(WEIGHT, qparams=WEIGHT.qparams.with_values(WEIGHT.scale * scale, WEIGHT.zero_point))


@pytest.mark.parametrize("name", OTHERS)
def test_hard_numbers_change_no_result(name):
    for scale in HARD:
        with np.errstate(all="ignore"):
            function = OTHERS[name](scale)
        assert_same_in_every_state(function)
