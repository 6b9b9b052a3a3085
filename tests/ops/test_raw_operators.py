"""Raw operators on every pair of dtypes that ONNX lists: codes, scales, zero points and where they belong to."""

import importlib
import inspect
import pkgutil

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_bytes

import fastq
import fastq.ops
from fastq import reference
from fastq.plan.cache import Operation

E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
ML_CODES = ["int2", "uint2", "int4", "uint4", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"]
ML_CODES += ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]
CODES = ["int8", "uint8", "int16", "uint16", "int32", *(np.dtype(getattr(ml_dtypes, name)) for name in ML_CODES)]
SCALES = ["float16", np.dtype(ml_dtypes.bfloat16), "float32", "float64", E8M0]
VALUES = [None, "float16", "bfloat16", "float32", "float64"]
SHAPE = (3, 6)
APIS = pytest.mark.parametrize("api", [reference, fastq], ids=["reference", "fastq"])


def codes_of(dtype):
    bits = np.random.default_rng(1).integers(0, 256, (*SHAPE, 4), np.uint8)
    dtype = np.dtype(dtype)
    if dtype.kind != "V":
        return bits.view(np.int32)[..., 0].astype(dtype)
    numbers = bits[..., 0].astype(np.int32) - 128  # floats of ml_dtypes: those that are numbers
    return (numbers % 4 - 2 if "2" in dtype.name[-2:] else numbers / 16).astype(dtype)


def scales_of(dtype, n=3):
    return np.array([2.0**-3, 2.0**2, 0.75, 2.0**-6, 1.0, 3.0][:n]).astype(dtype)


def product(codes, scale, zero_point=0):
    """What ONNX's DequantizeLinear is, in float64 for scales of float64, else in float32."""
    kind = np.float64 if np.dtype(scale.dtype) == np.float64 else np.float32
    return (codes.astype(kind) - kind(zero_point)) * scale.astype(kind)


@pytest.mark.slow(
    "a kernel each", quick=lambda api, **of: api is reference or (of["dtype"], of["values"]) == ("int32", None)
)
@APIS
@pytest.mark.parametrize("values", VALUES, ids=str)
@pytest.mark.parametrize("kind", SCALES, ids=str)
@pytest.mark.parametrize("dtype", CODES, ids=str)
def test_codes_are_multiplied_with_scales(api, dtype, kind, values):
    # contract 1.5
    codes, scale = codes_of(dtype), scales_of(kind)
    wanted = product(codes, scale[:, None])
    default = wanted.dtype if kind in (E8M0, "float64") else scale.dtype
    with np.errstate(over="ignore"):
        wanted = wanted.astype(default if values is None else ml_dtypes.bfloat16 if values == "bfloat16" else values)
    same_bytes(api.dequantize_linear(codes, scale, axis=0, dtype=values), wanted)


PLACES = {  # the shape of scales, the options, and how NumPy spreads them
    "one": ((), {}, lambda s: s),
    "one of a vector": ((1,), {}, lambda s: s.reshape(())),
    "one of all axes": ((1, 1), {}, lambda s: s.reshape(())),
    "channels": ((3,), {"axis": 0}, lambda s: s[:, None]),
    "channels of the last axis": ((6,), {"axis": 1}, lambda s: s),
    "channels from the end": ((3,), {"axis": -2}, lambda s: s[:, None]),
    "all axes": ((3, 1), {}, lambda s: s),
    "all axes, the other": ((1, 6), {"axis": 0}, lambda s: s),
    "all axes, from the end": ((3, 1), {"axis": -1}, lambda s: s),
    "both": ((3, 6), {"axis": (0, 1)}, lambda s: s),
    "both, of all axes": ((3, 6), {"axis": 0}, lambda s: s),
    "blocks": ((3, 2), {"axis": 1, "block_size": 4}, lambda s: np.repeat(s, 4, 1)[:, :6]),
    "blocks from the end": ((2, 6), {"axis": -2, "block_size": 2}, lambda s: np.repeat(s, 2, 0)[:3]),
}
ZERO_POINTS = {
    "none": lambda s: None,
    "a number": lambda s: 3,
    "of a dtype": lambda s: np.int8(3),
    "of no axes": lambda s: np.array(3),
    "each its own": lambda s: np.arange(s.size).reshape(s.shape),
}


@APIS
@pytest.mark.parametrize("zero_points", ZERO_POINTS)
@pytest.mark.parametrize("place", PLACES)
def test_scales_and_zero_points_belong_where_numpy_spreads_them(api, place, zero_points):
    # contract 3.3
    shape, options, spread = PLACES[place]
    scale = np.random.default_rng(3).uniform(0.1, 2, shape).astype(np.float32)
    zero_point, codes = ZERO_POINTS[zero_points](scale), codes_of("int8")
    zeros = np.broadcast_to(np.asarray(0 if zero_point is None else zero_point, np.float32), shape)
    wanted = (codes.astype(np.float32) - spread(zeros)) * spread(scale)
    for _ in range(2):  # the second time by the plan of the first
        same_bytes(api.dequantize_linear(codes, scale, zero_point, **options), wanted)
        x = np.random.default_rng(4).normal(0, 50, SHAPE).astype(np.float32)
        rounded = np.clip(np.rint(x / spread(scale)) + spread(zeros), -128, 127).astype(np.int8)
        same_bytes(api.quantize_linear(x, scale, zero_point, "int8", **options), rounded)


@APIS
def test_each_element_of_a_vector_may_have_its_scale(api):
    """A vector needs no axis, since its scales have all axes that it has."""
    codes, scale = np.arange(-2, 3, dtype=np.int8), np.linspace(0.5, 2, 5, dtype=np.float32)
    same_bytes(api.dequantize_linear(codes, scale), codes * scale)
    same_bytes(api.quantize_linear(codes * scale, scale, dtype="int8"), codes)
    with pytest.raises(ValueError, match=r"^scale has shape \(3,\), so it needs an axis: no axes of codes"):
        api.dequantize_linear(codes, scale[:3])
    with pytest.raises(np.exceptions.AxisError, match="axis of codes"):
        api.dequantize_linear(codes, scale[:3], axis=1)


@APIS
def test_scales_of_0_and_of_powers_of_two(api):
    # contract 14.2
    codes = np.arange(-2, 4, dtype=np.int8).reshape(1, 6)
    scale = np.array([0.0, 2.0**-149, 2.0**-127, -0.0, 1.0, 2.0**126], np.float32)
    same_bytes(api.dequantize_linear(codes, scale, axis=1), codes * scale)
    same_bytes(api.dequantize_linear(codes, np.zeros(1, np.float16)), (codes * np.float32(0)).astype(np.float16))
    powers = np.array([0, 1, 127, 128, 253, 255], np.uint8).view(E8M0)
    same_bytes(api.dequantize_linear(codes, powers, axis=1), codes * powers.astype(np.float32))
    x = np.array([[2.0**-126, 1e-38, 2.5, 2.5, 1.9e38, 1]], np.float32)
    codes = api.quantize_linear(x, powers[:5][[0, 1, 2, 3, 4, 2]], axis=1)
    same_bytes(codes, np.array([[2, 1, 2, 1, 2, 1]], np.uint8))
    for scale in (0.0, powers[5:]):
        with pytest.raises(ValueError, match="scale must be positive and finite"):
            api.quantize_linear(x, scale)


@APIS
def test_two_axes_of_blocks_have_powers_of_two(api):
    w = np.random.default_rng(5).normal(size=(2, 4, 2, 4)).astype(np.float32)
    scale = np.exp2(np.ceil(np.log2(np.abs(w).max((1, 3)) / 448))).astype(E8M0)
    codes = (w / scale.astype(np.float32)[:, None, :, None]).astype(ml_dtypes.float8_e4m3fn)
    wanted = codes.astype(np.float32) * scale.astype(np.float32)[:, None, :, None]
    same_bytes(api.dequantize_linear(codes, scale, axis=(0, 2)), wanted)
    same_bytes(api.dequantize_linear(codes, scale[:, None, :, None]), wanted)
    out = np.empty(wanted.shape, np.float16)
    same_bytes(api.dequantize_linear(codes, scale, axis=(-2, 0), out=out), wanted.astype(np.float16))


@APIS
def test_integers_divide_integers(api):
    x, scale = np.array([[7, -7, 10**9, 5]], np.int32), np.array([2, 2, 3, 10], np.int32)
    wanted = np.clip(np.rint(x / scale) + 1, -(2**15), 2**15 - 1).astype(np.int16)
    same_bytes(api.quantize_linear(x, scale, np.int16(1), axis=1), wanted)


@APIS
@pytest.mark.parametrize("shape", [(0,), (0, 6), (3, 0), (2, 0, 4)], ids=str)
def test_nothing_has_values_too(api, shape):
    for options in ({}, {"axis": None}):
        values = api.dequantize_linear(np.zeros(shape, np.int32), 0.5, **options)
        same_bytes(values, np.zeros(shape, np.float32))
    scale = np.ones(shape[:1], E8M0)
    same_bytes(api.dequantize_linear(np.zeros(shape, np.int32), scale, axis=0), np.zeros(shape, np.float32))
    assert api.quantize_linear(np.zeros(shape, np.float32), scale, 0, axis=0).shape == shape


def test_dask_takes_what_numpy_does():
    da = pytest.importorskip("dask.array")
    codes, scale = codes_of("int32"), scales_of(np.float32)
    lazy = da.from_array(codes, chunks=(2, 3))
    for given in (scale[:, None], da.from_array(scale[:, None], chunks=2)):
        same_bytes(fastq.dequantize_linear(lazy, given).compute(), product(codes, scale[:, None]))
    values = da.from_array(product(codes, 1e-9 * scale[:, None]), chunks=(2, 3))
    wanted = reference.quantize_linear(values.compute(), scale, np.full(3, 3), "int8", axis=0)
    same_bytes(fastq.quantize_linear(values, scale[:, None], 3, "int8").compute(), wanted)
    powers = scales_of(E8M0)
    same_bytes(fastq.dequantize_linear(lazy, powers, axis=0).compute(), product(codes, powers[:, None]))


# --- several parameters need their axis -------------------------------------------------------------------------------

SQUARE = np.linspace(-4, 3, 16, dtype=np.float32).reshape(4, 4)
SUMS = np.arange(16, dtype=np.int32).reshape(4, 4)
OF_SEVERAL = {
    "quantize_linear": lambda api, scale, **where: api.quantize_linear(SQUARE, scale, **where),
    "dequantize_linear": lambda api, scale, **where: api.dequantize_linear(SQUARE.astype("i1"), scale, **where),
    "requantize": lambda api, scale, **where: api.requantize(SUMS, scale, 0, "int8", **where),
    "requantize bias": lambda api, scale, **where: api.requantize(
        SUMS, 0.5, 0, "int8", bias=(scale * 8).astype("i4"), **where
    ),
}


@APIS
@pytest.mark.parametrize("name", OF_SEVERAL)
def test_several_parameters_need_their_axis(api, name):
    # contract 3.4
    call, scale = OF_SEVERAL[name], scales_of("float32", 4)
    argument, array = {"requantize": ("multiplier", "acc"), "requantize bias": ("bias", "acc")}.get(
        name, ("scale", "codes" if name == "dequantize_linear" else "x")
    )
    several = rf"^{argument} has shape \(4,\), so it needs an axis: pass axis=0 or axis=1, of length 4 in {array}, of"
    none_fits = rf"^{argument} has shape \(3,\).* no axes of {array}, of shape \(4, 4\), have such lengths$"
    for where in ({}, {"axis": None}):
        with pytest.raises(ValueError, match=several):
            call(api, scale, **where)
    with pytest.raises(ValueError, match=none_fits):
        call(api, scale[:3])
    with pytest.raises(ValueError, match=none_fits):
        call(api, scale[:3], axis=1)
    call(api, scale[:1])
    call(api, scale[0])


@pytest.mark.parametrize("name", [name for name in OF_SEVERAL if name != "requantize bias"])
def test_several_parameters_of_dask_need_their_axis(name):
    da = pytest.importorskip("dask.array", reason="no dask")

    class Lazy:
        """The functions, given the array as one of dask."""

        @staticmethod
        def of(function):
            return lambda x, *numbers, **options: function(da.from_array(x, chunks=2), *numbers, **options)

        quantize_linear = of(fastq.quantize_linear)
        dequantize_linear = of(fastq.dequantize_linear)
        requantize = of(fastq.requantize)

    scale = scales_of("float32", 4)
    for numbers in (scale, da.from_array(scale, chunks=2)):
        with pytest.raises(ValueError, match=r"so it needs an axis: pass axis=0 or axis=1, of length 4 in"):
            OF_SEVERAL[name](Lazy, numbers)


@APIS
def test_axes_that_fit_are_named(api):
    x = np.ones((2, 3, 2, 5), np.float32)
    with pytest.raises(ValueError, match=r"pass axis=\(0, 3\) or axis=\(2, 3\), of length 2 and 5 in x, of shape"):
        api.quantize_linear(x, np.ones((2, 5), np.float32))
    with pytest.raises(ValueError, match=r"^scale has shape \(5, 2\), so it needs an axis: no axes of x, of shape"):
        api.quantize_linear(x, np.ones((5, 2), np.float32))
    with pytest.raises(ValueError, match=r"name the axes of x, of shape .*, that have such lengths$"):
        api.quantize_linear(np.ones((1,) * 40), np.ones((1,) * 19 + (2,), np.float32))
    with pytest.raises(TypeError, match=r"^block_size=2 needs axis to be the one int along which blocks run, not None"):
        api.quantize_linear(x, np.ones((2, 3, 2, 3), np.float32), block_size=2)
    fits = r"axis=1 and block_size=2 needs \(2, 2, 2, 5\); pass axis=3, along which x, of shape .*, has such blocks$"
    with pytest.raises(ValueError, match=fits):
        api.quantize_linear(x, np.ones((2, 3, 2, 3), np.float32), axis=1, block_size=2)
    with pytest.raises(ValueError, match=r"pass axis=0 or axis=1, along which x, of shape"):
        api.quantize_linear(np.ones((1, 1, 5), np.float32), np.ones((1, 1, 5), np.float32), axis=2, block_size=2)
    with pytest.raises(ValueError, match=r"needs \(2, 3, 2, 3\); no axis of x, of shape .*, has such blocks$"):
        api.quantize_linear(x, np.ones((2, 3, 2, 2), np.float32), axis=3, block_size=2)


def test_no_axis_has_a_default_that_chooses_one():
    """Parameters belong to the whole array, and neighbours are along the last axis, unless an axis is named."""
    functions = {name: getattr(module, name) for module in (fastq.dask, fastq.plot, fastq) for name in module.__all__}
    defaults = {}
    for name, function in functions.items():
        if callable(function):
            parameter = inspect.signature(function).parameters.get("axis")
            defaults[name] = inspect.Parameter.empty if parameter is None else parameter.default
    along_neighbours = {name for name, default in defaults.items() if default == -1}
    assert along_neighbours == {"binarize", "bit_information", "pack", "unpack"}
    assert {default for default in defaults.values() if default != -1} == {None, inspect.Parameter.empty}
    modules = [importlib.import_module(f"fastq.ops.{each.name}") for each in pkgutil.iter_modules(fastq.ops.__path__)]
    records = [value for module in modules for value in vars(module).values() if isinstance(value, Operation)]
    defaults_of_options = [record.options._field_defaults for record in records]
    assert {row["axis"] for row in defaults_of_options if "axis" in row} == {None, -1}
