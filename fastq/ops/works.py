"""The works whose machine code is made ahead of time, and the calls of each work, which works.toml lists as text.

A wheel with machine code has the code of all works. A test ensures that the pages need no other code. Calls are planned
and not launched, so arrays of any size cost nothing; the kernels of a call do not depend on elements.
"""

from __future__ import annotations

import functools
import itertools
import re
import string
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fastq.formats.conventions.table import CONVENTIONS
from fastq.formats.range_methods import MSERange
from fastq.ops.bitround import BIT_INFORMATION, BITROUND, bit_information, bitround
from fastq.ops.calibrate import Calibrator
from fastq.ops.call_text import result_of
from fastq.ops.cf_packing import pack_floats, unpack_integers
from fastq.ops.compare import compare
from fastq.ops.dequantize import dequantize, dequantize_linear
from fastq.ops.gguf import GGUF_DEQUANTIZE, GGUF_QUANTIZE, BlockOptions
from fastq.ops.minmax import minmax
from fastq.ops.nest_scale import nest_scale
from fastq.ops.packing import binarize, pack, unpack
from fastq.ops.quantize import choose_qparams, fake_quantize, quantize, quantize_linear
from fastq.ops.requantize import requantize
from fastq.plan.cache import run_operation
from fastq.plan.call_modes import plan_only
from fastq.results import QuantizedArray
from fastq.system import imports
from fastq.system.dtypes import Array

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SHAPES: dict[str, list[list[int]]] = _TABLE.pop("shapes")
_TEXTS: dict[str, str] = _TABLE.pop("texts")
WORKS: dict[str, dict[str, str]] = _TABLE  # by name: calls, a line each, by the shapes that they are made with
CORNERS = "corners"  # the calls of public corners, which are no names here


def calls(text: str) -> Iterator[str]:
    """Yield the calls of lines: ``$name`` stands for a text, and ``{a|b}`` makes a call with a and one with b."""
    while "$" in text:
        text = string.Template(text).substitute(_TEXTS)
    for line in text.strip().splitlines():
        parts = re.split(r"\{(.*?)\}", line)
        choices = [part.split("|") if place % 2 else [part] for place, part in enumerate(parts)]
        yield from map("".join, itertools.product(*choices))


def plan(names: Iterable[str], track: Callable[[list[Any]], Iterable[Any]] = iter) -> None:
    """Plan the calls of works, which compiles their kernels; `track` yields a list's items, and may show progress."""
    with plan_only():
        for make in track([make for name in names for make in _plans(WORKS[name])]):
            make()


def _plans(work: dict[str, str]) -> Iterator[Callable[[], object]]:
    """Yield a function for each call of a work, which plans it; calls that name an axis get no shapes of one axis."""
    for shapes, text in work.items():
        if shapes != CORNERS:
            for written, shape in itertools.product(calls(text), map(tuple, SHAPES[shapes])):
                if len(shape) > 1 or "axis" not in written:
                    yield functools.partial(_make, written, shape)


def _make(written: str, shape: tuple[int, ...]) -> None:
    """Make a call, on arrays of zeros, which nothing reads where calls are only planned."""
    result_of(written, Names(shape, quantized_to_ones, np.zeros))


# --- names ------------------------------------------------------------------------------------------------------------


DTYPES = {"x": "float32", "out": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
DTYPES |= {"i8": "int8", "u8": "uint8", "i16": "int16", "u16": "uint16", "i32": "int32", "i64": "int64"}


class Names(dict[str, Any]):
    """What calls name: arrays of a shape, by dtypes, numbers of rows and columns, and functions.

    Arrays are made when they are named, by `filled`. `quantized` makes those that calls begin with.
    """

    def __init__(self, shape: tuple[int, ...], quantized: Callable[..., QuantizedArray], filled: Any) -> None:
        self.shape = shape
        self.filled = filled
        self.quantized = quantized
        super().__init__(_NAMES, n=shape[0], m=shape[-1], q=self._q, given=self._given, fake_given=self._fake_given)
        self |= {"decoded": self._decoded, "compared": self._compared, "below": self._below}

    def __missing__(self, name: str) -> Any:
        """Make the array of a name, and keep it; raise KeyError for what is no name here."""
        n = self.shape[0]
        m = self.shape[-1]
        shapes = {"wide": (n, 256), "images": (n, m // 16, 4, 4)}
        if name == "bfloat16":
            made = imports.ml_dtypes().bfloat16
        elif name == "bits":
            made = np.zeros((n, m // 8), np.uint8)
        elif name in shapes:
            made = self.filled(shapes[name], np.dtype(np.float32))
        else:
            made = self.filled(self.shape, _dtype(DTYPES[name]))
        self[name] = made
        return made

    def _q(self, dtype: str, of: Array | None = None, **scheme: Any) -> QuantizedArray:
        """Return codes of an array, by default `x`: `q` in texts."""
        return self.quantized(self["x"] if of is None else of, dtype, **scheme)

    def _given(self, x: Array, dtype: str, **scheme: Any) -> object:
        """Quantize by given parameters: `given` in texts."""
        return quantize(x, qparams=self.quantized(x, dtype, **scheme).qparams)

    def _fake_given(self, x: Array, dtype: str, **scheme: Any) -> object:
        """Fake quantize by given parameters: `fake_given` in texts."""
        return fake_quantize(x, qparams=self.quantized(x, dtype, **scheme).qparams)

    def _decoded(self, x: Array, dtype: str, **scheme: Any) -> object:
        """Dequantize codes of an array: `decoded` in texts."""
        return self.quantized(x, dtype, **scheme).dequantize()

    def _below(self, codes: Array, bound: int) -> Array:
        """Return codes below a bound; those of plans, which are zeros, as they are."""
        return codes if self.filled is np.zeros else codes % bound

    def _compared(self, x: Array, dtype: str, **scheme: Any) -> object:
        """Measure the errors of codes of an array: `compared` in texts."""
        return compare(x, self.quantized(x, dtype, **scheme))


def _dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name of `DTYPES`; NumPy lacks bfloat16."""
    return np.dtype(imports.ml_dtypes().bfloat16 if name == "bfloat16" else name)


def quantized_to_ones(x: Array, name: str, **scheme: Any) -> QuantizedArray:
    """Quantize with scales of 1, as planned calls compute none."""
    q = quantize(x, name, **scheme)
    q.scale[...] = 1
    q.zero_point[...] = 0
    return q


def _ones(shape: Any, dtype: Any = "float32") -> Array:
    """Return ones, in float32 where `numpy.ones` has float64."""
    return np.ones(shape, dtype)


def _call_pack_and_unpack(x: Array, name: str, **options: Any) -> Array:
    """Pack codes, and unpack them."""
    return unpack(pack(x, name, **options), name, shape=x.shape, **options)


def _call_requantize(acc: Array, convention: str, **scheme: Any) -> list[Array]:
    """Requantize with and without a bias, to both formats, by multipliers of both types."""
    channels = acc.shape[scheme["axis"]] if scheme else ()
    options = itertools.product((None, np.zeros(channels, acc.dtype)), ("int8", "uint8"), (np.float32, np.float64))
    return [
        requantize(acc, np.ones(channels, kind), 0, name, bias=bias, convention=convention, **scheme)
        for bias, name, kind in options
    ]


def _call_pack_floats(x: Array, name: str) -> object:
    """Pack floats as integers of a dtype; the numbers do not matter for kernels."""
    return pack_floats(x, np.dtype(name), code_range=(0, 100), scale=0.5, offset=0.0, fill=0)


def _call_unpack_array(x: Array, name: str) -> None:
    """Decode packed science data with units of both types, with a fill value and without."""
    units: tuple[Array, Array] = np.ones(1, np.float32), np.ones(1)
    for unit, gaps in itertools.product(units, ((), (0,))):
        unpack_integers(x, np.dtype(name), unit, unit, gaps)


def _call_bitround(x: Array) -> None:
    """Round to bits and digits, and count bits."""
    for options in ((7, None, None, "numcodecs"), (7, None, None, "netcdf"), (None, 3, None, "numcodecs")):
        run_operation(BITROUND, x, options=options, types=(*map(type, options[:3]),))
    run_operation(BIT_INFORMATION, x, options=(-1,), types=(int,))


def _to_blocks(x: Array, name: str, **options: str) -> Array:
    """Quantize to blocks of GGUF."""
    blocks: Array = run_operation(GGUF_QUANTIZE, x, options=BlockOptions(name, **options), types=(str,))
    return blocks


def _weighed(x: Array, name: str, **options: str) -> Array:
    """Quantize to blocks of GGUF by an importance of columns."""
    importance = np.ones(x.shape[-1], x.dtype)
    blocks: Array = run_operation(
        GGUF_QUANTIZE, x, None, importance, options=BlockOptions(name, **options), types=(str,)
    )
    return blocks


def _from_blocks(x: Array, name: str) -> object:
    """Dequantize blocks of GGUF."""
    return run_operation(GGUF_DEQUANTIZE, _to_blocks(x, name), options=(name,), types=(str,))


_NAMES: dict[str, Any] = {
    function.__name__: function
    for function in (
        *(quantize, choose_qparams, fake_quantize, quantize_linear, dequantize, dequantize_linear, compare, minmax),
        *(binarize, pack, unpack, requantize, bitround, bit_information, nest_scale, Calibrator, MSERange),
    )
}
_NAMES |= {name: getattr(np, name) for name in ("zeros", "full", "dtype", "uint8", "int32", "float32")}
_NAMES |= {"ones": _ones, "packed": _call_pack_and_unpack, "requantized": _call_requantize}
_NAMES |= {"in_cf_codes": _call_pack_floats, "unpacked": _call_unpack_array, "rounded": _call_bitround}
_NAMES |= {"to_blocks": _to_blocks, "weighed": _weighed, "from_blocks": _from_blocks}
# scales of half precision, as of x in files; the float zero point of the tutorial
_NAMES |= {"in_files": replace(CONVENTIONS["onnx"], stored_type="input")}
_NAMES |= {"in_halves": replace(CONVENTIONS["onnx"], operation_type="input")}  # as ONNX has them from opset 23 on
_NAMES |= {"float_zero_point": replace(CONVENTIONS["textbook"], name="float zero point", zero_point="float")}
# the rounding of images by scikit-image and OpenCV, torchvision, and GDAL
_NAMES |= {"cut_off": replace(CONVENTIONS["torch-pt2e"], rounding="trunc")}
_SHIFTED = replace(CONVENTIONS["torch-pt2e"], zero_point="float", zero_point_inside=True)
_NAMES |= {"half_up": replace(_SHIFTED, rounding="floor")}
