"""What a call is made with, in one form for all who do its work, and the call itself, of fastq and its reference alike.

A case of the table becomes `Operands`, which every contender takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq import QuantizedArray
from fastq.formats.qtypes import QTYPES, QType
from fastq.results import Comparison, QParams

Array = NDArray[Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Axes = int | tuple[int, ...] | None
Results = dict[str, Any]

SEED = 20240607
ALIGNMENT = 64
SCALE = 0.05
ZERO_POINT = 3
KEEPBITS = 10  # of the significand, where values are rounded to fewer bits
MEASURES = ("mse", "sqnr_db", "max_abs_error", "mean_abs_error", "max_relative_error", "mean_relative_error")
# what a call makes, where that is not codes
MADE = dict.fromkeys(("dequantize", "dequantize_linear", "fake_quantize", "gguf.dequantize", "bitround"), "values")
MADE |= {"unpack": "bytes"}


def empty(shape: int | tuple[int, ...], dtype: Any, *, aligned: bool = False) -> Array:
    """Memory whose pages are all present; at NumPy's own alignment (16 bytes for large arrays) or at 64 bytes."""
    size, dtype = int(np.prod(shape)), np.dtype(dtype)
    if aligned:
        raw = np.empty(size * dtype.itemsize + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        array = raw[start : start + size * dtype.itemsize].view(dtype).reshape(shape)
    else:
        array = np.empty(shape, dtype)
    array.view(np.uint8).fill(1)
    return array


def dtype_of(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name, or that of ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def kept_axes(axis: Axes) -> tuple[int, ...]:
    """The axes whose indices have scales of their own, given the argument of fastq."""
    return () if axis is None else axis if isinstance(axis, tuple) else (axis,)


@dataclass(frozen=True)
class Operands:
    """What a call is made with."""

    function: str  # the public one, with its module where that is not fastq
    code: str  # the format of the codes
    first: Array  # of values or of codes, what has the layout
    shape: tuple[int, ...]  # of the array of values
    dtype: str = "float32"  # of the values
    axis: Axes = None  # of those that share a scale, as fastq takes it
    block_size: int = 0
    symmetric: bool = False  # whether zero points are the middle
    qparams: QParams | None = None  # those that are given
    approximation: Array | None = None  # codes or values that `first` is compared with
    out: Array | None = None

    @property
    def qtype(self) -> QType:
        """The format of the codes."""
        return QTYPES[self.code]

    @property
    def granularity(self) -> dict[str, Any]:
        """The arguments axis and block_size, where they are not the defaults."""
        axis = {} if self.axis is None else {"axis": self.axis}
        return axis | ({"block_size": self.block_size} if self.block_size else {})

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes whose indices have scales of their own."""
        return kept_axes(self.axis)

    @property
    def shared(self) -> tuple[int, ...]:
        """The axes of `grouped` arrays that share parameters."""
        if self.block_size:
            return (self.kept[0] + 1,)
        return tuple(a for a in range(len(self.shape)) if a not in self.kept)

    @property
    def grouped_shape(self) -> tuple[int, ...]:
        """The shape of values with blocks as an axis of their own, all of one length."""
        if not self.block_size:
            return self.shape
        a = self.kept[0]
        return (*self.shape[:a], self.shape[a] // self.block_size, self.block_size, *self.shape[a + 1 :])

    @property
    def shape_of_parameters(self) -> tuple[int, ...]:
        """The shape of parameters that broadcasts with `grouped` arrays."""
        return tuple(1 if a in self.shared else n for a, n in enumerate(self.grouped_shape))

    def grouped(self, array: Array) -> Array:
        """A view with blocks as an axis of their own; several codes may share a byte of the last axis."""
        return array.reshape(*self.grouped_shape[:-1], -1) if self.block_size else array

    @property
    def real(self) -> np.dtype[Any]:
        """What is computed in."""
        if self.qparams is None:
            return np.result_type(self.first, np.float32)
        return self.qparams.scale.dtype if self.qparams.scale.dtype.kind == "f" else np.dtype(np.float32)

    @property
    def limits(self) -> tuple[Any, ...]:
        """The first and the last code."""
        return tuple(map(self.real.type, self.qtype.code_range(self.symmetric)))

    @property
    def beside(self) -> tuple[Array, Array]:
        """Scales and zero points that are given, with the axes of `grouped` arrays."""
        p, shape = self.qparams, self.shape_of_parameters
        assert p is not None
        zero = np.broadcast_to(p.zero_point.astype(self.real), p.scale.shape)
        return p.scale.reshape(shape), zero.reshape(shape)

    @property
    def made(self) -> str:
        """What the call makes: codes, values or bytes."""
        return MADE.get(self.function, "codes")

    @property
    def result_dtype(self) -> np.dtype[Any]:
        """The dtype of codes or values that are made."""
        if self.made != "values":
            return self.qtype.storage
        floats = self.real if self.first.dtype.kind in "iu" else self.first.dtype
        return floats if self.function == "fake_quantize" else dtype_of(self.dtype)

    def result(self) -> Array:
        """Memory for codes or values, one for each element: `out` where it is given."""
        return empty(self.shape, self.result_dtype, aligned=True) if self.out is None else self.out


def repeated(piece: Array, times: int, axis: int | None = 0, *, aligned: bool = False) -> Array:
    """The piece repeated along an axis, in memory of its own; itself without an axis."""
    if axis is None:
        return piece
    before, (n, *after) = piece.shape[:axis], piece.shape[axis:]
    made = empty((*before, times * n, *after), piece.dtype, aligned=aligned)
    made.reshape(*before, times, n, *after)[...] = np.expand_dims(piece, axis)
    return made


# --- the call ---------------------------------------------------------------------------------------------------------


def _chosen(o: Operands) -> Arguments:
    if o.qparams is not None:
        return (o.first,), {"qparams": o.qparams}
    return (o.first, o.code), o.granularity | ({"symmetric": True} if o.symmetric else {})


def _raw(o: Operands) -> tuple[Any, ...]:
    """A zero point in the middle says nothing; numbers are given as such."""
    assert o.qparams is not None
    no_zero = bool(o.qparams.dtype.element) or o.symmetric
    return o.first, o.qparams.scale[()], None if no_zero else o.qparams.zero_point[()]


def _quantize_linear(o: Operands) -> Arguments:
    if o.qparams is None:
        return (o.first, 1.0), {"dtype": o.code}
    return (*_raw(o), o.code), o.granularity


def _dequantize_linear(o: Operands) -> Arguments:
    codes, scale, zero_point = _raw(o)
    zero = zero_point.astype(codes.dtype) if zero_point is not None and zero_point.dtype.kind in "iu" else zero_point
    return (codes, scale, zero), _dtype(o) | o.granularity


def _dtype(o: Operands) -> dict[str, Any]:
    return {} if o.dtype == "float32" else {"dtype": dtype_of(o.dtype)}


def _compare(o: Operands) -> Arguments:
    assert o.approximation is not None
    return (o.first, QuantizedArray(o.approximation, o.qparams, o.shape) if o.qparams else o.approximation), {}


def _requantize(o: Operands) -> Arguments:
    assert o.qparams is not None
    return (o.first, 1 / o.qparams.scale, int(o.qparams.zero_point.flat[0]), o.code), o.granularity


# function -> its arguments
ARGUMENTS: dict[str, Callable[[Operands], Arguments]] = {
    **dict.fromkeys(("quantize", "fake_quantize"), _chosen),
    "quantize_linear": _quantize_linear,
    "dequantize_linear": _dequantize_linear,
    "dequantize": lambda o: ((QuantizedArray(o.first, o.qparams, o.shape),), _dtype(o)),
    "minmax": lambda o: ((o.first,), o.granularity),
    "compare": _compare,
    "requantize": _requantize,
    "bitround": lambda o: ((o.first,), {"keepbits": KEEPBITS}),
    "unpack": lambda o: ((o.first, o.code), {"shape": o.shape}),
    **dict.fromkeys(("pack", "gguf.quantize", "gguf.dequantize"), lambda o: ((o.first, o.code), {})),
}


def call_of(api: Any, o: Operands) -> Callable[[], Any]:
    """Return the call with all its arguments; `api` is fastq or its reference."""
    positional, named = ARGUMENTS[o.function](o)
    named |= {} if o.out is None else {"out": o.out}
    return partial(attrgetter(o.function)(api), *positional, **named)


def results_of(result: Any) -> Results:
    """Return what a call returned, by name."""
    if isinstance(result, QuantizedArray):
        return {"codes": result.codes} | results_of(result.qparams)
    if isinstance(result, QParams):
        scales = {} if result.tensor_scale is None else {"tensor_scale": result.tensor_scale}
        return {"scale": result.scale, "zero_point": result.zero_point} | scales
    if isinstance(result, Comparison):
        return {"measures": np.array([getattr(result, name) for name in MEASURES]), "clipped": result.clipped}
    return {"lo": result[0], "hi": result[1]} if isinstance(result, tuple) else {"result": result}
