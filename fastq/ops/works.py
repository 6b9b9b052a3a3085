"""The works whose machine code is made ahead of time, and the calls of each work.

A wheel with machine code has the code of all works. A test ensures that the pages need no other code. Calls are planned
and not launched, so arrays of any size cost nothing; the kernels of a call do not depend on elements.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fastq.formats.conventions import CONVENTIONS
from fastq.formats.range_methods import MSERange
from fastq.ops.bitround import BIT_INFORMATION, BITROUND
from fastq.ops.calibrate import Calibrator
from fastq.ops.cast import cast_floats, unpack_integers
from fastq.ops.compare import compare
from fastq.ops.dequantize import dequantize_linear
from fastq.ops.gguf import GGUF_DEQUANTIZE, GGUF_QUANTIZE
from fastq.ops.minmax import magnitudes, minmax
from fastq.ops.packing import binarize, pack, unpack
from fastq.ops.quantize import choose_qparams, fake_quantize, quantize, quantize_linear
from fastq.ops.requantize import requantize
from fastq.plan.cache import call
from fastq.plan.callers import planned_only
from fastq.requests.options import BlockOptions
from fastq.results import QuantizedArray
from fastq.system import lazy
from fastq.system.dtypes import Array

Function = Callable[..., object]

# an example, a few rows, a page of memory, weights, what outgrows caches, wide rows, a series
SHAPES = ((4, 6), (8, 64), (64, 64), (256, 512), (4096, 4096), (64, 1 << 20), (1 << 16,))


class Calls(NamedTuple):
    """Calls of functions with each dtype of the values, each second argument, each scheme and each shape."""

    functions: tuple[Function, ...]  # functions of values, a second argument, if any, and the options of a scheme
    dtypes: str  # dtypes of the values
    arguments: str  # second arguments: code formats; "-" for none
    schemes: tuple[dict[str, Any], ...] = ({},)  # options by which elements share parameters
    shapes: tuple[tuple[int, ...], ...] = SHAPES  # shapes of the values

    def each(self) -> list[Callable[[], object]]:
        """Return a function for each call, which plans it."""
        product = itertools.product(
            self.functions, self.dtypes.split(), self.arguments.split(), self.schemes, self.shapes
        )
        return [functools.partial(_call, *one) for one in product if len(one[4]) > 1 or "axis" not in one[3]]


def _call(function: Function, dtype: str, argument: str, scheme: dict[str, Any], shape: tuple[int, ...]) -> None:
    kind = lazy.module("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    function(np.zeros(shape, kind), *([argument] if argument != "-" else []), **scheme)


def _quantized(x: Array, name: str, **scheme: Any) -> QuantizedArray:
    q = quantize(x, name, **scheme)
    q.scale[...], q.zero_point[...] = 1, 0
    return q


def _given(x: Array, name: str, **scheme: Any) -> None:
    quantize(x, qparams=_quantized(x, name, **scheme).qparams)


def _fake_given(x: Array, name: str, **scheme: Any) -> None:
    fake_quantize(x, qparams=_quantized(x, name, **scheme).qparams)


def _back(x: Array, name: str, **scheme: Any) -> None:
    _quantized(x, name, **scheme).dequantize()


def _back_to_others(x: Array, name: str, **scheme: Any) -> None:
    q = _quantized(x, name, **scheme)
    for dtype in ("float16", lazy.module("ml_dtypes").bfloat16, "float64"):
        q.dequantize(dtype=dtype)


def _compare(x: Array, name: str, **scheme: Any) -> None:
    compare(x, _quantized(x, name, **scheme))


def _compare_values(x: Array) -> None:
    compare(x, x)


def _compare_decoded(x: Array) -> None:
    compare(x, np.zeros(x.shape, np.float32))


def _pack(x: Array, name: str, **options: Any) -> None:
    unpack(pack(x, name, **options), name, shape=x.shape, **options)


def _linear(x: Array, name: str, **options: Any) -> None:
    quantize_linear(x, 1.0, dtype=name, **options)


def _bias(x: Array) -> None:
    dequantize_linear(x, np.ones(len(x), np.float32), axis=0)


def _requantize(acc: Array, convention: str, **scheme: Any) -> None:
    channels = acc.shape[scheme["axis"]] if scheme else ()
    biases, kinds = (None, np.zeros(channels, acc.dtype)), (np.float32, np.float64)
    for bias, name, kind in itertools.product(biases, ("int8", "uint8"), kinds):
        requantize(acc, np.ones(channels, kind), 0, name, bias=bias, convention=convention, **scheme)


def _calibrate(x: Array, name: str, **options: Any) -> None:
    Calibrator(name, **options).update(x)


def _cast(x: Array, name: str, **options: Any) -> None:
    cast_floats(x, np.dtype(name), **options)


def _unpack_cf(x: Array, name: str) -> None:
    units: tuple[Array, Array] = np.ones(1, np.float32), np.ones(1)
    for unit, gaps in itertools.product(units, ((), (0,))):
        unpack_integers(x, np.dtype(name), unit, unit, gaps)


def _range_of(x: Array, name: str, **scheme: Any) -> None:
    choose_qparams(x, name, **scheme)


def _binarize(x: Array, name: str, **options: Any) -> None:
    binarize(x, dtype=name, **options)


def _round_bits(x: Array) -> None:
    for options in ((7, None, None, "numcodecs"), (7, None, None, "netcdf"), (None, 3, None, "numcodecs")):
        call(BITROUND, x, options=options, types=(*map(type, options[:3]),))
    call(BIT_INFORMATION, x, options=(-1,), types=(int,))


def _to_blocks(x: Array, name: str, **options: str) -> Array:
    blocks: Array = call(GGUF_QUANTIZE, x, options=BlockOptions(name, **options), types=(str,))
    return blocks


def _weighed(x: Array, name: str, **options: str) -> None:
    imatrix = np.ones(x.shape[-1], x.dtype)
    call(GGUF_QUANTIZE, x, None, imatrix, options=BlockOptions(name, **options), types=(str,))


def _from_blocks(x: Array, name: str) -> None:
    call(GGUF_DEQUANTIZE, _to_blocks(x, name), options=(name,), types=(str,))


WHOLE: dict[str, Any] = {}
ROWS: dict[str, Any] = {"axis": 0}
COLUMNS: dict[str, Any] = {"axis": 1}
BLOCKS: tuple[dict[str, Any], ...] = tuple({"axis": 1, "block_size": size} for size in (32, 64, 128))
ALL = (WHOLE, ROWS, COLUMNS, *BLOCKS)
SYMMETRIC = tuple(scheme | {"symmetric": True} for scheme in ALL)
ROUND_TRIP: tuple[Function, ...] = quantize, _given, _back
_TEXTBOOK_SYMMETRIC: dict[str, Any] = {"convention": "textbook", "symmetric": True}
_SMALL_BLOCKS = "Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL MXFP4"  # of GGUF
_LARGE_BLOCKS = "Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_XS"
_NESTED = tuple({"axis": 1, "block_size": size} for size in (32, 64, 128, 256))  # scales of blocks
_IN_FILES = {"convention": replace(CONVENTIONS["onnx"], stored_type="input")}  # scales of half precision, as of x
_FLOAT_ZERO_POINT = replace(CONVENTIONS["textbook"], name="float zero point", zero_point="float")  # of the tutorial
SEARCHED: dict[str, Any] = {"range": MSERange()}
RANDOM: dict[str, Any] = {"rounding": "stochastic", "rng": 0}

WORKS: dict[str, tuple[Calls, ...]] = {
    "int8": (
        Calls((*ROUND_TRIP, _compare), "float32", "int8 uint8", (*ALL, *SYMMETRIC)),
        Calls((quantize,), "float32", "int8", ({"axis": 1, "block_size": 16, "symmetric": True},)),
        Calls((fake_quantize, _fake_given), "float32", "int8", (*ALL[:4], *SYMMETRIC[:4])),
        Calls((fake_quantize,), "float32", "uint8"),
        Calls((quantize,), "float32", "int8", tuple(scheme | SEARCHED for scheme in (ROWS, SYMMETRIC[1]))),
        Calls(ROUND_TRIP, "float32", "uint8", (WHOLE | {"convention": "torch"},)),
    ),
    "int4": (
        Calls((*ROUND_TRIP, _compare), "float32", "int4 uint4", (WHOLE, ROWS, *BLOCKS, *SYMMETRIC[3:])),
        Calls((quantize,), "float32", "int4", tuple(scheme | SEARCHED for scheme in (WHOLE, ROWS, *ALL[3:]))),
        Calls((quantize,), "float32", "int4", tuple(scheme | SEARCHED for scheme in (*SYMMETRIC[:2], *SYMMETRIC[3:]))),
        Calls(ROUND_TRIP, "float32", "int4", (SYMMETRIC[5] | {"convention": "compressed-tensors"},)),
        Calls((fake_quantize,), "float32", "int4", (SYMMETRIC[1], *BLOCKS[::2], SYMMETRIC[3], SYMMETRIC[5])),
        Calls((_pack,), "int8", "int4 int2", ({}, {"axis": 0})),
        Calls((_pack,), "uint8", "uint4 uint3 uint2 uint1", ({}, {"axis": 0})),
        Calls((_pack,), "uint8", "uint1", ({"bitorder": "big"},)),
    ),
    "int16": (
        Calls((*ROUND_TRIP, _compare), "float32", "int16 uint16", (WHOLE, ROWS, SYMMETRIC[0], SYMMETRIC[1])),
        Calls((_linear,), "float32", "int16", (RANDOM,)),
    ),
    "float8": (
        Calls(
            (*ROUND_TRIP, _compare), "float32", "float8_e4m3fn float8_e5m2", (SYMMETRIC[0], SYMMETRIC[1], SYMMETRIC[5])
        ),
        Calls((fake_quantize,), "float32", "float8_e4m3fn", (SYMMETRIC[0], SYMMETRIC[1])),
    ),
    "microscaling": (
        Calls((*ROUND_TRIP, _compare), "float32 bfloat16", "mxfp4 mxfp8_e4m3 nvfp4", (COLUMNS,)),
        Calls((fake_quantize,), "float32", "mxfp4 mxfp8_e4m3 nvfp4", (COLUMNS,)),
    ),
    "codebooks": (
        Calls((*ROUND_TRIP, _compare), "float32", "nf4", (SYMMETRIC[4],)),
        Calls((quantize, _back), "float32", "dynamic8", _NESTED, ((1, 4), (1, 1 << 16))),
    ),
    "dtypes": (
        Calls(ROUND_TRIP, "float16 bfloat16 float64", "int8", (WHOLE, ROWS, SYMMETRIC[1], SYMMETRIC[4])),
        Calls((fake_quantize, _compare), "float16 bfloat16 float64", "int8", (WHOLE, SYMMETRIC[1])),
        Calls((*ROUND_TRIP, _compare), "float16 bfloat16", "int4", (BLOCKS[0], SYMMETRIC[3], SYMMETRIC[5])),
        Calls((*ROUND_TRIP, _compare), "float16 bfloat16", "float8_e4m3fn", (SYMMETRIC[1],)),
        Calls((*ROUND_TRIP, _compare), "float16 bfloat16", "nf4", (SYMMETRIC[4],)),
        Calls((quantize,), "float16 bfloat16", "int8", (SYMMETRIC[1] | _IN_FILES,)),
        Calls((quantize,), "float16 bfloat16", "int4", tuple(SYMMETRIC[k] | _IN_FILES for k in (3, 5))),
        Calls((_back_to_others,), "float32", "int8", (WHOLE, SYMMETRIC[1])),
        Calls((_back_to_others,), "float32", "int4", (SYMMETRIC[3], SYMMETRIC[5])),
    ),
    "stochastic": (
        Calls((quantize, fake_quantize), "float32", "int8", (RANDOM, SYMMETRIC[1] | RANDOM)),
        Calls((quantize,), "float32", "int4", (SYMMETRIC[3] | RANDOM,)),
        Calls((quantize,), "float32", "float8_e4m3fn", (SYMMETRIC[1] | RANDOM,)),
        Calls((quantize,), "float32", "mxfp4", (COLUMNS | RANDOM,)),
        Calls((_linear,), "float32", "bfloat16", ({}, RANDOM)),
    ),
    "textbook": (
        Calls(
            (*ROUND_TRIP, _compare),
            "float32",
            "int8 uint8",
            tuple(scheme | {"convention": "textbook"} for scheme in (WHOLE, SYMMETRIC[0], ROWS, SYMMETRIC[1])),
        ),
        Calls(
            (*ROUND_TRIP, _compare), "float64", "int8 uint8 uint16", ({"convention": "textbook"}, _TEXTBOOK_SYMMETRIC)
        ),
        Calls((quantize, _back), "float32", "uint8", ({"convention": _FLOAT_ZERO_POINT},)),
        Calls((quantize,), "int64", "uint8", ({"convention": "textbook"},)),
        Calls((_back,), "float64", "uint8"),
        Calls((_compare_values,), "float64", "-"),
    ),
    "frameworks": (
        Calls((_range_of, _fake_given), "float32", "uint8", ({"convention": "torch-fake-quantize"},)),
        Calls((_linear,), "float32", "float8_e4m3fn float8_e5m2 bfloat16", ({"saturate": False},)),
        Calls((_bias,), "int32", "-", shapes=((64,), *SHAPES[2:5])),
        Calls((_requantize,), "int32", "tflite tflite-single ruy-x86 onnxruntime", (WHOLE, ROWS, COLUMNS)),
    ),
    "calibration": (
        Calls((_calibrate,), "float32", "int8", ({}, {"nan": "omit"}, {"axis": 0})),
        Calls((_calibrate,), "float16 bfloat16 float64", "int8"),
        Calls((_given,), "float32", "int8 uint8", ({"nan": "zero"},)),
    ),
    "stores": (
        Calls((_cast,), "float32 float64", "int16", ({}, {"fill": -1, "scale": 0.5})),
        Calls((_cast,), "float32 float64", "int8 uint8 uint16 int32"),
        Calls((_cast,), "float32", "int8 uint8 int16", ({"wraps": True},)),
        Calls((_range_of,), "float32", "int16 uint16", ({"convention": "cf"},)),
        Calls((_unpack_cf,), "int8 uint8 int16 uint16 int32", "float32 float64"),
        Calls((_round_bits,), "float32 float64", "-"),
    ),
    "measures": (
        Calls((minmax,), "float32 float64 float16 bfloat16 int8 uint8 int16 int32", "-", (WHOLE, ROWS, COLUMNS)),
        Calls((magnitudes,), "float32 float64 float16 bfloat16", "-", (WHOLE, ROWS, COLUMNS)),
        Calls((_compare_values,), "float32 float16", "-"),
        Calls((_binarize,), "float32 float64 float16 bfloat16", "uint8", shapes=SHAPES[1:]),
        Calls((_binarize,), "float32", "uint8", ({"bitorder": "little"}, {"nan": "zero"}), SHAPES[1:]),
    ),
    "gguf": (
        Calls((_to_blocks, _from_blocks), "float32", f"{_SMALL_BLOCKS} {_LARGE_BLOCKS}", shapes=SHAPES[3:5]),
        Calls((_to_blocks, _weighed), "float32", "Q4_0", ({"range": "mse"},), SHAPES[3:5]),
        Calls((_weighed,), "float32", "Q4_0 Q4_K Q6_K", shapes=SHAPES[3:5]),
        Calls((_to_blocks,), "float16 bfloat16", "Q8_0 Q4_0 Q5_0 Q5_1 Q4_K Q5_K Q6_K", shapes=SHAPES[3:5]),
        Calls((_compare_decoded,), "float16 bfloat16", "-", shapes=SHAPES[3:5]),
    ),
}


def plan(names: Iterable[str], track: Callable[[list[Any]], Iterable[Any]] = iter) -> None:
    """Plan the calls of works, which compiles their kernels; `track` may show the progress."""
    with planned_only():
        for make in track([each for name in names for part in WORKS[name] for each in part.each()]):
            make()
