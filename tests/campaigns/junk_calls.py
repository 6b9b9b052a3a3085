"""Good arguments of every public function and method, `CALLS`, and what makes bad values, `JUNK`."""

import contextlib
import datetime
import decimal
import fractions
import functools
import inspect
import itertools
import tempfile
from unittest import mock

import dask
import dask.array as da
import ml_dtypes
import numpy as np
import xarray
from matplotlib import pyplot

import fastq
from fastq import reference
from fastq.formats.conventions.convention import Convention
from fastq.ops import works
from fastq.results import QParams, QuantizedArray

# --- bad values -------------------------------------------------------------------------------------------------------


def having(**methods):
    """An object with these methods."""
    return type("Having", (), methods)()


def raising(*names):
    """An object whose methods of these names raise what no caller would expect, as tensors of PyTorch do."""

    def refuse(self, *arguments, **options):
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")

    return having(**dict.fromkeys(names, refuse))


class RequiresGradient:
    """As a tensor of PyTorch that requires a gradient."""

    dtype, shape, ndim = "torch.float32", (3, 4), 2

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")


def masked():
    return np.ma.masked_array(np.ones((3, 4), np.float32), mask=np.eye(3, 4))


def endless():
    itself = []
    itself.append(itself)
    return itself


TEXTS = "None, True, False, np.True_, 0, 1, -1, 300, 2**31, 2**63 - 1, 2**63, 2**70, -2**70, 10**5000, 1.5, -0.0"
JUNK = {text: functools.partial(eval, text, {"np": np}) for text in TEXTS.split(", ")} | {
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
    "deep list": lambda: functools.reduce(lambda inner, _: [inner], range(200), []),
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
    "list of masked rows": lambda: list(masked()),
    "__array__ of a masked array": lambda: having(__array__=lambda self, dtype=None, copy=None: masked()),
    "matrix": lambda: np.ones((3, 4), np.float32).view(np.matrix),
    "requires a gradient": RequiresGradient,
    "__array__ of a string": lambda: having(__array__=lambda self, dtype=None, copy=None: "no array"),
    "__index__": lambda: having(__index__=lambda self: 1),
    "__index__ far": lambda: having(__index__=lambda self: 2**70),
    "raising __array__": lambda: raising("__array__"),
    "raising __index__": lambda: raising("__index__"),
    "raising __bool__": lambda: raising("__bool__", "__len__"),
    "raising __hash__": lambda: raising("__hash__"),
    "raising __iter__": lambda: raising("__iter__", "__len__", "__getitem__"),
    "raising __float__": lambda: raising("__float__", "__int__", "__complex__"),
    "raising __repr__": lambda: raising("__repr__", "__str__"),
    "QType": lambda: fastq.QType("int8", 8),
    "another QType": lambda: fastq.QType("int9", 9),
    "Convention": lambda: fastq.CONVENTIONS["torch"],
    "QParams": lambda: QParams(np.float32(0.5), 3, "int8"),
    "QuantizedArray": lambda: QuantizedArray(np.zeros((3, 4), np.int8), QParams(np.float32(0.5), 3, "int8"), (3, 4)),
}

# --- good arguments ---------------------------------------------------------------------------------------------------

X = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)
CODES = np.arange(12, dtype=np.int8).reshape(3, 4)
P = QParams(np.float32(0.5), 3, "int8")
Q = QuantizedArray(CODES, P, (3, 4))

APIS = fastq, reference


def named(api, name):
    return functools.reduce(getattr, name.split("."), api)


def of_both(name):
    """A function of fastq and the one of the reference."""
    return [named(api, name) for api in APIS]


def used(api, x, codes, shape, **fields):
    """Parameters with these fields, in all that they are good for."""
    params = QParams(**fields)
    api.fake_quantize(x, qparams=params)
    q = api.quantize(x, qparams=params)
    api.compare(x, q)
    q = QuantizedArray(codes, params, shape)
    return reference.dequantize(q) if api is reference else q.dequantize()


def quantized_by(api, option, kind, **fields):
    return api.quantize(X, "uint8", **{option: kind(**fields)})


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


def of_a_calibrator(api, method):
    return lambda *args, **options: getattr(calibrator_of(api), method)(*args, **options)


def in_a_file(call, path, **options):
    """Read or write a file in a folder of its own, where it may not be."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.suppress(OSError):
        call(path, **options)


def loaded(function, **options):
    """Call a function of datasets, and load what it gives."""
    found = function(**options)
    return found.load() if isinstance(found, xarray.Dataset) else found


def computed(function, **arguments):
    """Call a function of dask arrays, and compute what it gives."""
    found = function(**arguments)
    lazy = {"quantize": "codes", "QuantizedArray": "codes", "choose_qparams": "scale", "QParams": "scale"}
    part = lazy.get(function.__name__)
    return dask.compute(getattr(found, part) if part else found, scheduler="sync")


def same_codes(actual, desired):
    """Call the function; that arrays differ is not a refusal."""
    with contextlib.suppress(AssertionError):
        fastq.testing.assert_same_codes(actual, desired)


ONE_CALL = {"int8": {"weights": 'quantize(x, "int8")'}}


def made_ready(names, native):
    """Of one call, and never for this very CPU, which later processes of this user would find."""
    with mock.patch.dict(works.WORKS, ONE_CALL, clear=True):
        fastq.warmup(names, native=native if native is not True else False)


def inspected(function):
    """What is inspected here is always a call that works: a callable's own errors are not fastq's."""
    return fastq.kernels.inspect(fastq.minmax if callable(function) else function, X)


LAZY, SUMS, ROWS = da.from_array(X, chunks=2), np.arange(12, dtype=np.int32).reshape(3, 4), np.ones((3, 32), np.float32)
DATASET = xarray.Dataset({"t": ("x", X[0])})
PACKED = functools.partial(fastq.xarray.pack, DATASET)
WEIGHT = reference.quantize(np.cos(np.arange(2048, dtype=np.float32)).reshape(32, 64), "uint4", axis=1, block_size=32)
OF_NF4 = reference.quantize(np.ones((4, 64), np.float32), "nf4", axis=1, block_size=64)
NESTED, NESTED_OF_ONE = (
    fastq.NestedScale(*reference.nest_scale(np.ones(shape, np.float32))[:2], shape) for shape in ((4, 8), (4, 1))
)
NVFP4 = reference.choose_qparams(ROWS, "nvfp4")
COUNTS = fastq.BitInformation(counts=reference.bit_information(X).counts, dtype=X.dtype)
GIVEN = {"scale": 0.5, "zero_point": 0, "axis": 0, "block_size": 0, "convention": "onnx", "out": None}
WEIGHED = {"range": "mse", "importance": np.ones(4)}
AT_RANDOM = {"rounding": "stochastic", "rng": 3}
METHODS = {"percentile": 99.9, "quantized_bins": 16, "grid": 3}

# Good arguments by the name of a call, perhaps with a word that sets it apart from other calls of its function. Those
# that a kernel makes are made by a test: what two workers import would compile it twice. All parameters of these calls
# are tried, others than these with their defaults, except APART, which have calls of their own
APART = "importance", "rounding", "rng"
WHOLE = {
    **{key: {"x": X, "dtype": "int8", "axis": 0} for key in ("quantize", "fake_quantize", "choose_qparams")},
    "quantize, nvfp4": {"x": X, "dtype": "nvfp4", "axis": 0},
    "quantize, mse": {"x": X, "dtype": "int8", "axis": 0} | WEIGHED,
    "quantize, uint4 in blocks": {"x": X, "dtype": "uint4", "axis": 0, "block_size": 2},
    **{key: {"x": X, "qparams": P} for key in ("quantize, qparams", "fake_quantize, qparams")},
    "quantize_linear": {"x": X, "dtype": "int8"} | GIVEN,
    "quantize_linear, faiss": {"x": X, "dtype": "uint8"} | GIVEN | {"convention": "faiss"},
    "dequantize_linear": {"codes": CODES} | GIVEN,
    "requantize": {"acc": SUMS, "multiplier": np.ones(4), "zero_point": 1, "dtype": "int8", "axis": 1}
    | {"bias": np.arange(4, dtype=np.int32), "clamp": (0, 9)},
    **{key: {"x": X} for key in ("minmax", "binarize", "Calibrator.update")},
    **{key: {"x": X, "q": Q} for key in ("compare", "plot.errors", "plot.histogram")},
    **{key: {} for key in ("QuantizedArray.dequantize", "QuantizedArray.unpacked", "QuantizedArray.__array__")},
    "pack": {"codes": CODES % 8, "dtype": "int4"},
    "bitround": {"x": X, "keepbits": 3, "convention": "netcdf"},
    "bit_information": {"x": X, "axis": 0},
    "BitInformation": {"counts": COUNTS.counts, "dtype": X.dtype},
    "BitInformation.keepbits": {"level": 0.9},
    "unpack": {"packed": np.zeros((3, 2), np.uint8), "shape": (3, 4), "dtype": "int4"},
    "gguf.dequantize": {"data": np.zeros((3, 34), np.uint8), "qtype": "Q8_0"},
    "dequantize": {"q": Q},
    "testing.assert_same_codes": {"actual": Q, "desired": Q},
    "QParams": {"scale": np.float32(0.5), "zero_point": 0, "dtype": "int8"},
    "QParams, nvfp4": {name: getattr(NVFP4, name) for name in ("scale", "zero_point", "block_size", "symmetric")}
    | {"dtype": "nvfp4", "axis": -1, "tensor_scale": np.array(1, np.float32)},
    "QuantizedArray": {"codes": CODES, "qparams": P, "shape": (3, 4)},
    "QType": {"name": "int8", "bits": 8},
    "Convention": {"name": "own", "rounding": Convention.rounding},
    "set_num_threads": {"n": 1},
    "set_result_pool_limit": {"nbytes": 1},
    "warmup": {"names": "int8"},
    "kernels.inspect": {"function": fastq.minmax},
    "plot.calibration": {"calibrator": functools.partial(calibrator_of, fastq, axis=None)}
    | METHODS
    | {"methods": ["minmax", "mse"]},
    "plot.bit_information": {"found": COUNTS, "level": 0.9},
    "plot.channels": {"x": X, "q": Q, "axis": 0},
    "plot.compare": {"x": X, "schemes": {"int8": Q}},
    "plot.sqnr": {"x": X, "schemes": {"array": [{"dtype": "int8"}, {"dtype": "uint4"}]}},
    "Calibrator": {"dtype": "int8", "axis": 0, "bins": 16},
    "Calibrator.merge": {"other": functools.partial(calibrator_of, fastq)},
    **dict.fromkeys(("Calibrator.qparams", "Calibrator.clipping_range"), {"method": "mse"} | METHODS),
    "QParams.with_values": {"scale": np.float32(0.5), "zero_point": 3},
    **{key: {"path": "state"} for key in ("Calibrator.save", "Calibrator.load", "QParams.save", "QParams.load")},
    **{key: {"path": "state"} for key in ("QuantizedArray.save", "load")},
    "QuantizedArray.reshape": {"shape": (4, 3)},
    "QuantizedArray.astype": {"dtype": np.float64},
    "QuantizedArray.__getitem__": {"index": (slice(1), 2)},
    "QuantizedArray.explain": {"index": (1, 2)},
    "QType.with_bits": {"bits": 4},
    "QType.code_range": {"symmetric": True},
    "nest_scale": {"scale": np.ones((4, 8), np.float32), "block_size": 16, "offset": 0.5},
    "NestedScale": {"quantized": NESTED.quantized, "offset": 0.5, "shape": (4, 8)},
    "layouts.from_tensors": {"tensors": functools.partial(fastq.layouts.to_tensors, WEIGHT, "gptq"), "layout": "gptq"}
    | {"dtype": "uint4", "shape": (32, 64), "block_size": 32},
    "xarray.unpack": {"ds": PACKED, "dtype": "float32"},
    "xarray.unpack_array": {
        "codes": CODES,
        "scale_factor": 0.5,
        "add_offset": 3.0,
        "fill_value": 7,
        "dtype": "float32",
    },
    "io.load_imatrix": {"path": "state.dat"},
    "io.open_checkpoint": {"path": "state.gguf"},
    "io.save_checkpoint": {"path": "state.safetensors", "tensors": {"w": X}, "config": {}, "shard_size": 1000},
    "dask.calibrate": {"x": LAZY, "dtype": "int8", "axis": 0, "bins": 16},
    "dask.QuantizedArray": {"codes": da.from_array(CODES, chunks=2), "qparams": P, "shape": (3, 4)},
    "dask.QParams": {"scale": np.float32(0.5), "zero_point": 0, "dtype": "int8"},
}
# and of these the ones that are named
NAMED = {
    **dict.fromkeys(("fake_quantize, mse", "choose_qparams, mse"), {"x": X, "dtype": "int8"} | WEIGHED),
    **dict.fromkeys(
        ("quantize, stochastic", "fake_quantize, stochastic"), {"x": X, "dtype": "int8", "axis": 0} | AT_RANDOM
    ),
    "quantize_linear, stochastic": {"x": X, "dtype": "int8"} | GIVEN | AT_RANDOM,
    "quantize_linear, no dtype": {"x": X, "nan": "raise", "saturate": True} | GIVEN,
    "MSERange": {"grid": 10, "shrink": 0.8, "grow": 0.1, "finer": 2, "signs": 1, "norm": 2.0},
    "MSERange, shares": {"shares": (0.9, 1.1), "signs": 1, "norm": 2.0},
    "bitround, digits": {"x": X, "digits": 3},
    "bitround, max_error": {"x": X, "max_error": 0.1},
    "gguf.quantize": {"data": ROWS, "qtype": "Q8_0", "out": None},
    "gguf.quantize, mse": {"data": ROWS, "qtype": "Q4_0", "range": "mse"},
    "gguf.quantize, importance": {"data": ROWS, "qtype": "Q4_0", "importance": np.ones(32, np.float32)},
    "layouts.to_tensors": {"q": WEIGHT, "layout": "gptq", "scale_dtype": np.float16, "g_idx": np.arange(64) // 32},
    "layouts.to_tensors, bitsandbytes": {"q": OF_NF4, "layout": "bitsandbytes", "nested": NESTED_OF_ONE},
    "xarray.bitround": {"ds": DATASET, "keepbits": {"t": 3}, "convention": "netcdf", "exclude": ()},
    "xarray.bitround, digits": {"ds": DATASET, "digits": 3},
    "xarray.bitround, max_error": {"ds": DATASET, "max_error": 0.1},
    "xarray.bitround, information": {"ds": DATASET, "information": 0.9, "dim": "x"},
    "xarray.pack": {"ds": DATASET, "dtype": "int16", "max_error": {"t": 0.1}, "ranges": {"t": (-9.0, 9.0)}}
    | {"out_of_range": "clamp", "exclude": ()},
    "xarray.pack, like": {"ds": DATASET, "out_of_range": "clamp", "like": PACKED},
    "dask.compare": {"x": LAZY, "q": Q},
    "dask.requantize": {"acc": da.from_array(SUMS, chunks=2), "multiplier": 0.5, "zero_point": 1, "dtype": "int8"},
}
# arguments that may also be wrong together with a value that is good alone: then the message names one or the other
PARTNERS = {("QParams, nvfp4", "dtype"): "scale", ("QParams, nvfp4", "axis"): "scale"}
PARTNERS |= {
    ("layouts.from_tensors", "dtype"): "qzeros",
    ("NestedScale", "quantized"): "shape",
    ("BitInformation", "dtype"): "counts",
}
PARTNERS |= {("io.load_imatrix", "path"): "importance matrix"}  # as the commands call it, whose errors these are
PARTNERS |= {("quantize, mse", "block_size"): "importance"}  # blocks have weights along their axis

# what is done with classes and methods, where that is more than to call them
OBJECTS = {"QuantizedArray": Q, "QParams": P, "QType": fastq.QType("int8", 8), "BitInformation": COUNTS}
DONE = {
    "MSERange": [functools.partial(quantized_by, api, "range", fastq.MSERange) for api in APIS],
    "Convention": [functools.partial(quantized_by, api, "convention", Convention) for api in APIS],
    "bit_information": [lambda api=api, **options: api.bit_information(**options).counts for api in APIS],
    "BitInformation": [lambda **parts: fastq.BitInformation(**parts).keepbits(0.9)],
    "QuantizedArray.dequantize": [Q.dequantize, functools.partial(reference.dequantize, Q)],
    "QuantizedArray.explain": [lambda index: repr(Q.explain(index))],
    "testing.assert_same_codes": [same_codes],
    "QParams": [functools.partial(used, api, X, CODES, X.shape) for api in APIS],
    "QParams, nvfp4": [functools.partial(used, api, ROWS, np.zeros((3, 16), np.uint8), ROWS.shape) for api in APIS],
    "QParams.with_values": [lambda **fields: fastq.quantize(X, qparams=P.with_values(**fields)).dequantize()],
    "QuantizedArray": [lambda **parts: QuantizedArray(**parts).dequantize()],
    "NestedScale": [lambda **parts: fastq.NestedScale(**parts).dequantize()],
    "QuantizedArray.reshape": [lambda shape: Q.reshape(shape)],
    "Calibrator.merge": [lambda other: calibrator_of(fastq).merge(other)],
    "Calibrator": [lambda api=api, **options: calibrator_of(api, **options).qparams() for api in APIS],
    "set_num_threads": [put_back(fastq.set_num_threads, fastq.get_num_threads)],
    "set_result_pool_limit": [put_back(fastq.set_result_pool_limit, fastq.get_result_pool_limit)],
    "warmup": [made_ready],
    "kernels.inspect": [inspected],
}
ROOMS = {"plot": drawn, "xarray": loaded, "dask": computed}  # which do something with all their functions


def functions_of(call):
    """What is called: of fastq, and of the reference where it has that too."""
    name = call.partition(",")[0]
    if found := DONE.get(call, DONE.get(name)):
        return found
    room, _, method = name.rpartition(".")
    if room == "Calibrator":
        return [of_a_calibrator(api, method) for api in APIS if hasattr(api.Calibrator, method)]
    function = getattr(OBJECTS[room], method) if room in OBJECTS else named(fastq, name)
    if room in ROOMS:
        return [functools.partial(ROOMS[room], function)]
    try:
        return [function, named(reference, name)]
    except AttributeError:
        return [function]


def defaults_of(function):
    """Parameters of a function that are given one by one, with their defaults."""
    every = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in every if each.name != "self" and each.kind is not each.VAR_KEYWORD}


def whole(call, given):
    """All good arguments of a call."""
    defaults = defaults_of(named(fastq, call.partition(",")[0])).items()
    return {name: each for name, each in defaults if each is not inspect.Parameter.empty and name not in APART} | given


def calls():
    """Functions and good arguments of each call."""
    every = {call: whole(call, given) for call, given in WHOLE.items()} | NAMED
    for name in ("quantize", "fake_quantize", "choose_qparams", "minmax", "quantize_linear", "dequantize_linear"):
        lazy = {"x": LAZY, "codes": da.from_array(CODES, chunks=2)}
        every[f"dask.{name}"] = {key: lazy.get(key, value) for key, value in every[name].items() if key != "out"}
    for call, good in every.items():
        functions = functions_of(call)
        yield call, ([functools.partial(in_a_file, each) for each in functions] if "path" in good else functions, good)


CALLS = dict(calls())
