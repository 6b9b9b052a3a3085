"""Formats by kind, what is hard to round to them, blocks that are hard to quantize, and calls that are refused."""

import itertools
from dataclasses import replace

import ml_dtypes
import numpy as np
from catalogue import LAYOUTS, values

from fastq import reference
from fastq.formats.codebooks import CODEBOOKS
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QTYPES

# exponent bits, mantissa bits, bias, largest number: ONNX, "Float stored in 8 bits"; OCP MX 1.0, section 5.3
SPECIFIED = {
    "float8_e4m3fn": (4, 3, 7, 448.0),
    "float8_e4m3fnuz": (4, 3, 8, 240.0),
    "float8_e5m2": (5, 2, 15, 57344.0),
    "float8_e5m2fnuz": (5, 2, 16, 57344.0),
    "float6_e3m2fn": (3, 2, 3, 28.0),
    "float6_e2m3fn": (2, 3, 1, 7.5),
    "float4_e2m1fn": (2, 1, 1, 6.0),
    "float16": (5, 10, 15, 65504.0),
    "bfloat16": (8, 7, 127, (2 - 2.0**-7) * 2.0**127),
}
CODES = [name for name in SPECIFIED if name in QTYPES]
FLOAT8 = [name for name in CODES if name.startswith("float8")]
SMALL = [name for name in CODES if not name.startswith("float8")]
HALVES = ["float16", "bfloat16"]
MICROSCALING = [name for name in QTYPES if name.startswith("mx")]
BLOCKS = [*MICROSCALING, "nvfp4"]


def dtype_of(name):
    return np.dtype(getattr(np, name, None) or getattr(ml_dtypes, name))


def every_code(name):
    """Every code of a format, as an array of its dtype; some of them are signalling NaN."""
    if name in CODEBOOKS:
        return np.arange(len(CODEBOOKS[name].values), dtype=np.uint8)
    bits = FLOAT_FORMATS[name].bits
    return np.arange(1 << bits, dtype=np.uint8 if bits <= 8 else np.uint16).view(dtype_of(name))


def finite(name):
    with np.errstate(invalid="ignore"):
        values = every_code(name).astype(np.float64)
    return np.unique(values[np.isfinite(values)])


def rounding_cases(name, ftype):
    """Each number, each tie between two (and beyond the last), and the neighbours of all of them."""
    numbers = finite(name)
    beyond = 2 * numbers[-1] - numbers[-2]
    numbers = np.r_[-beyond, numbers, beyond]
    centres = np.r_[numbers, (numbers[1:] + numbers[:-1]) / 2, -0.0].astype(ftype)
    with np.errstate(over="ignore"):
        near = [np.nextafter(centres, ftype(np.inf)), np.nextafter(centres, ftype(-np.inf))]
    return np.concatenate([centres, *near, np.array([np.inf, -np.inf, 1e30, -1e30, 1e-30, -1e-30], ftype)])


PACKED = [name for name, qtype in QTYPES.items() if qtype.packed]


def any_codes(dtype, shape, seed=0):
    """Random codes, one per element."""
    qtype = QTYPES[dtype]
    numbers = np.random.default_rng(seed).integers(0, 1 << qtype.bits, shape)
    if qtype.element:
        return numbers.astype(np.uint8).view(qtype.storage)
    return (numbers + qtype.qmin).astype(qtype.storage)


def block_input(ftype, shape):
    """Rows of magnitudes from the smallest to the largest, zeros of both signs, numbers next to powers of two."""
    rng, info = np.random.default_rng(0), np.finfo(ftype)
    least, most = (-149, 127) if ftype == np.float32 else (-1074, 1023)
    rows = np.linspace(least, most, shape[0]).astype(int)[:, np.newaxis]
    x = np.ldexp(rng.uniform(-1, 1, shape).astype(ftype), np.clip(rows + rng.integers(-9, 2, shape), least, most))
    x[rng.random(shape) < 0.1] *= 0
    x[-1, :3] = info.max, -info.max, info.smallest_subnormal
    x[shape[0] // 2] = 0
    x[shape[0] // 2, ::2] = -0.0
    x[1:4, 0] = np.ldexp(ftype(1), 3), np.nextafter(ftype(8), ftype(0)), np.nextafter(ftype(8), ftype(9))
    return x


X = np.ones((3, 40), np.float32)
CODE8 = np.zeros((3, 40), ml_dtypes.float8_e4m3fn)
OWN = {dtype: reference.choose_qparams(X, dtype) for dtype in BLOCKS}


def with_own(impl, dtype, **changed):
    return impl.quantize(X, qparams=replace(OWN[dtype], **changed))


ERRORS = [
    # contract 7.6
    (lambda i: i.quantize(X, "int1", symmetric=True), ValueError, "symmetric .*int1"),
    (lambda i: i.choose_qparams(X, "uint1", symmetric=True), ValueError, "symmetric .*uint1"),
    (lambda i: i.quantize(X, "int8", nan="keep"), ValueError, "nan='keep' .*int8"),
    (lambda i: i.quantize(X, "float4_e2m1fn", nan="keep"), ValueError, "nan='keep' .*float4_e2m1fn"),
    (lambda i: i.quantize_linear(X, 1.0, dtype="float6_e3m2fn", nan="keep"), ValueError, "float6_e3m2fn"),
    (lambda i: i.minmax(X, nan="keep"), ValueError, "nan"),
    (lambda i: i.quantize(X, qparams=OWN["mxfp4"], nan="keep"), ValueError, "nan='keep' .*mxfp4"),
    (lambda i: i.quantize(X, "mxfp4", block_size=16), ValueError, "block_size must be 32 for mxfp4, not 16"),
    (lambda i: i.quantize(X, "nvfp4", block_size=32), ValueError, "block_size must be 16 for nvfp4, not 32"),
    (lambda i: i.quantize(X, "mxfp4", axis=(0, 1)), TypeError, "axis"),
    (lambda i: i.quantize(X, "mxfp4", axis=2), np.exceptions.AxisError, "axis 2"),
    (lambda i: i.quantize(np.float32(1), "mxfp4"), np.exceptions.AxisError, "axis -1"),
    (lambda i: i.quantize_linear(X, 1.0, dtype="mxfp8_e4m3"), TypeError, "dtype .*mxfp8_e4m3"),
    (lambda i: i.quantize_linear(X, 1.0, dtype="float8_e4m3fn", saturate=1), TypeError, "saturate .*1"),
    (lambda i: i.quantize_linear(X, 1.0, 1, "float8_e4m3fn"), ValueError, "zero_point .*float8_e4m3fn"),
    (lambda i: i.quantize_linear(X, 1.0, np.uint8(1), "float4_e2m1fn"), ValueError, "zero_point .*float4"),
    (lambda i: i.quantize_linear(X, 1.0, 0.0, "float8_e4m3fn"), TypeError, "zero_point .*float64"),
    (lambda i: i.quantize_linear(X, 1.0, CODE8[0, 0], "int8"), TypeError, "zero_point .*float8_e4m3fn"),
    (lambda i: i.quantize_linear(X, CODE8[0, 0], dtype="int8"), TypeError, "scale .*float8_e4m3fn"),
    (lambda i: i.dequantize_linear(CODE8, 1.0, np.array(1, CODE8.dtype)), ValueError, "zero_point"),
    (lambda i: i.dequantize_linear(CODE8, 1.0, dtype="float8_e4m3fn"), TypeError, "dtype .*float8_e4m3fn"),
    (lambda i: i.dequantize_linear(CODE8.astype(ml_dtypes.float8_e3m4), 1.0), TypeError, "codes .*float8_e3m4"),
    (lambda i: i.quantize(X, "float8_e5m2", out=np.empty((3, 40), np.uint8)), TypeError, "out .*uint8.*e5m2"),
    (lambda i: i.quantize(CODE8, "int8"), TypeError, "x .*float8_e4m3fn"),
    (lambda i: with_own(i, "mxfp4", scale=np.ones((3, 2), np.float32)), TypeError, "scale .*float8_e8m0fnu .*float32"),
    (lambda i: with_own(i, "mxfp4", scale=OWN["mxfp4"].scale[:2]), ValueError, r"scale .*\(2, 2\).*\(3, 2\)"),
    (lambda i: with_own(i, "mxfp4", block_size=16), ValueError, "block_size .*32.*16"),
    (lambda i: with_own(i, "mxfp4", tensor_scale=np.array(1, np.float32)), ValueError, "tensor_scale .*mxfp4"),
    (lambda i: with_own(i, "nvfp4", scale=np.zeros_like(OWN["nvfp4"].scale)), ValueError, "scale .*positive"),
    (lambda i: with_own(i, "nvfp4", tensor_scale=np.array(0, np.float32)), ValueError, "tensor_scale .*0"),
    (lambda i: with_own(i, "nvfp4", tensor_scale=np.array(2.0)), TypeError, "tensor_scale .*float32.*float64"),
    (lambda i: with_own(i, "nvfp4", tensor_scale=np.ones(2, np.float32)), ValueError, r"tensor_scale .*\(2,\)"),
    (lambda i: i.pack([1], "int3", bitorder="big"), ValueError, "bitorder.*int3"),
    (lambda i: i.unpack(np.uint8([1]), "uint4", shape=(1,), bitorder="big"), ValueError, "bitorder.*uint4"),
    (lambda i: i.pack([1], "uint1", bitorder="native"), ValueError, "bitorder .*native"),
    (lambda i: i.pack([1], "float4_e2m1fn"), TypeError, "codes .*float4_e2m1fn.*int64"),
    (lambda i: i.pack(np.zeros(3, ml_dtypes.float4_e2m1fn), "uint4"), TypeError, "codes .*float4_e2m1fn"),
    (lambda i: i.pack([0], "float8_e5m2"), TypeError, "dtype .*float8_e5m2"),
    (lambda i: reference.quantize(X, "int4").unpacked("uint4"), TypeError, "dtype must be int4, .*uint4"),
    (lambda i: reference.quantize(X, "int3").unpacked("int3"), TypeError, "ml_dtypes has no dtype for int3"),
]


def inputs(name, size, seed=0):
    """`size` finite numbers of an input dtype, of 16-bit floats with every exponent."""
    if name not in HALVES:
        return values(name, size, seed)
    rng = np.random.default_rng(seed)
    largest = FLOAT_FORMATS[name].largest
    bits = rng.integers(0, largest, size, np.uint16, endpoint=True) | rng.integers(0, 2, size, np.uint16) << 15
    normal = rng.standard_normal(size).astype(dtype_of(name))
    return np.where(rng.random(size) < 0.3, bits.view(dtype_of(name)), normal)


# what is tried with each other

SHAPE = (4, 6, 35)
FLOATS = [*HALVES, "float32", "float64"]
# each compiles kernels of its own, so not every format meets every other thing: one of each kind does
KINDS = ["int3", "uint4", "float8_e4m3fn", "float6_e3m2fn", "mxfp8_e5m2", "mxint8", "nvfp4"]
GRANULARITIES = [
    {},
    {"axis": 0},
    {"axis": 1},
    {"axis": -1},
    {"axis": (0, 1)},
    {"axis": (0, 2)},
    {"axis": -1, "block_size": 16},
    {"axis": -1, "block_size": 7},
    {"axis": 1, "block_size": 4},
    {"axis": 0, "block_size": 3},
]
ALONG = [{}, {"axis": 0}, {"axis": 1}, {"axis": -2}]
# ml_dtypes has no bfloat16 in the other byte order
HALF_LAYOUTS = [case for case in itertools.product(HALVES, LAYOUTS) if case != ("bfloat16", "swapped")]


def granularities(code):
    """Every granularity with every scheme that the format has; formats with scales of their own have only the axis."""
    qtype = QTYPES[code]
    if qtype.block_size:
        return ALONG
    symmetric = (False, True) if qtype.bits > 1 and not qtype.element else (False,)
    return [options | {"symmetric": s} for options, s in itertools.product(GRANULARITIES, symmetric)]
