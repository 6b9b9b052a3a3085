"""Requests to quantize and to dequantize: validated from dtypes, shapes and options, before any array is looked at."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fastq.formats.coding import Coding, coding_of
from fastq.formats.conventions import UNROUNDED, Convention, HalfPrecision, as_convention
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.granularity import ARRAY, Axis, Granularity, as_granularity, granularity, kind_of
from fastq.formats.qtypes import QTYPES, QType, as_qtype
from fastq.formats.range_methods import MSERange, as_range_method
from fastq.requests.arrays import MinMaxOptions, check_input, check_nan, compute_dtype, format_of_codes
from fastq.requests.parameters import ParameterRules, check_parameter_shape
from fastq.results import QParams
from fastq.system.arguments import MOST_AXES, as_axis, as_block_size, as_bool, equal, is_a, native

Shape = tuple[int, ...]
DType = np.dtype[Any]


class RangeOptions(NamedTuple):
    """Options of operations that take parameters from ranges; the first ones are numbers."""

    axis: Axis = None
    block_size: int = 0
    symmetric: bool = False
    saturate: bool = True
    bits: int | None = None
    dtype: object = None
    convention: str | Convention = "onnx"
    nan: str = "raise"
    range: str | MSERange = "minmax"


class QuantizeOptions(NamedTuple):
    """Options of operations on values that get QParams; `key` is what a plan may depend on of these."""

    saturate: bool = True
    nan: str = "raise"
    key: Any = None


class LinearOptions(NamedTuple):
    """Options of `fastq.quantize_linear`."""

    axis: Axis = 1
    block_size: int = 0
    saturate: bool = True
    dtype: object = None
    convention: str | Convention = "onnx"
    nan: str = "raise"


class ValuesOptions(NamedTuple):
    """Options of `fastq.dequantize_linear`."""

    axis: Axis = 1
    block_size: int = 0
    dtype: object = None
    convention: str | Convention = "onnx"


class DequantizeOptions(NamedTuple):
    """Options of `fastq.dequantize`; `key` is what a plan may depend on of the QParams."""

    dtype: object = None
    key: Any = None


class Request(NamedTuple):
    """All of a call that quantizes or dequantizes but its arrays.

    Attributes
    ----------
    qtype : QType
        The code format.
    convention : str or Convention
        Whose arithmetic to follow, as the caller gave it.
    symmetric : bool
        Whether as many codes are used below the zero point as above it.
    axis : int, tuple of int or None
        The caller's axis, counted from the front.
    granularity : Granularity
        What each parameter belongs to; the array, where there is one parameter.
    kind : str
        What conditions of the convention go by: "array", "channels" or "blocks".
    compute : dtype
        The type to compute in.
    nan, saturate
        As the caller gave them.
    half : HalfPrecision
        Dtypes of half precision to which results of operations are rounded.
    search : MSERange or None
        How a part of each range is searched for.
    """

    qtype: QType
    convention: str | Convention
    symmetric: bool
    axis: Axis
    granularity: Granularity
    kind: str
    compute: DType
    nan: str = "raise"
    saturate: bool = True
    half: HalfPrecision = UNROUNDED
    search: MSERange | None = None

    @property
    def coding(self) -> Coding:
        """The code format as the convention uses it."""
        return coding_of(as_convention(self.convention), self.qtype, self.symmetric, self.kind)

    @property
    def rules(self) -> ParameterRules:
        """What parameters must be."""
        row = as_convention(self.convention)
        return ParameterRules(self.qtype, row, row.scale_dtype(self.compute), self.granularity.block_size)

    @property
    def template(self) -> QParams:
        """Parameters from ranges without their numbers, in their dtypes."""
        rules, block_size = self.rules, self.granularity.block_size
        own = FLOAT_FORMATS[self.qtype.scale_element].dtype if self.qtype.scale_element else None
        scale = own or rules.scale_dtype
        numbers = np.empty(0, scale), np.empty(0, rules.zero_point_dtype(scale))
        computed = None if own is not None or scale == self.compute else self.compute
        tensor = np.ones((), np.float32) if self.qtype.has_tensor_scale else None
        scheme = self.symmetric, self.convention
        return QParams(*numbers, self.qtype, self.axis, block_size, *scheme, tensor, computed)

    def placed(self, name: str, shape: Shape, scale: Shape, size: int) -> Request:
        """Return the request for raw parameters of a shape: one number belongs to the whole array.

        Raises
        ------
        AxisError, ValueError
            If the array has no such axis, or parameters need another shape; `name` is that of the array.
        """
        if size == 1:
            return self._replace(axis=None, granularity=ARRAY, kind="array")
        where = granularity(self.axis, self.granularity.block_size, len(shape), name)
        if not any(map(math.isnan, shape)):  # sizes that dask does not know
            check_parameter_shape("scale", scale, size, where.parameter_shape(shape))
        return self._replace(granularity=where, kind=kind_of(where.axes, where.block_size))


# --- parameters from ranges -------------------------------------------------------------------------------------------


def by_range(dtype: DType, ndim: int, options: RangeOptions) -> Request:
    """Return the request for parameters from the ranges of an array."""
    if options.dtype is None:
        raise TypeError("dtype must be a code format, or qparams given in its place, not None")
    compute, saturate = check_input(dtype), as_bool(options.saturate, "saturate")
    search = as_range_method(options.range)
    if not saturate and search is not None:
        raise ValueError("saturate must be True where range is searched for: what lies beyond it would be infinite")
    qtype = as_qtype(options.dtype)
    if options.bits is not None:
        qtype = qtype.with_bits(options.bits)
    axis = -1 if options.axis is None and qtype.block_size else as_axis(options.axis)
    block_size = as_block_size(options.block_size, axis)
    if qtype.block_size and block_size not in (0, qtype.block_size):
        raise ValueError(f"block_size must be {qtype.block_size} for {qtype}, not {block_size}")
    where = granularity(axis, as_block_size(qtype.block_size, axis) if qtype.block_size else block_size, ndim)
    symmetric, kind = as_bool(options.symmetric, "symmetric"), kind_of(where.axes, where.block_size)
    if symmetric and qtype.bits == 1:
        raise ValueError(f"symmetric codes need at least 2 bits, and {qtype} has 1")
    always = symmetric or bool(qtype.element or qtype.block_size)
    row = as_convention(options.convention)
    row.check(qtype, always, kind)
    axis = where.axes if where.axes is None or isinstance(axis, tuple) else where.axes[0]
    how = check_nan(options.nan, qtype), saturate, row.rounded_to(native(dtype)), search
    return Request(qtype, options.convention, always, axis, where, kind, compute, *how)


def calibrated(dtype: object, axis: Axis, symmetric: bool, convention: str | Convention, nan: str) -> Request:
    """Return the request for parameters of arrays that are not known yet, whose ranges are taken piece by piece."""
    if (qtype := as_qtype(dtype)).block_size:
        raise ValueError(f"dtype must be a format without blocks of its own, not {qtype}: they have no range")
    axis = as_axis(axis)
    kept = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
    ndim = max((a + 1 for a in kept if a >= 0), default=0) + max((-a for a in kept if a < 0), default=0)
    options = RangeOptions(axis, symmetric=symmetric, dtype=qtype, convention=convention, nan=nan)
    # of so many axes, in which no two of them need be the same
    return by_range(np.dtype(np.float32), min(ndim, MOST_AXES), options)._replace(axis=axis)


def shape_of_ranges(shape: Shape, where: Granularity) -> Shape:
    """Return the shape of the ranges of an array.

    Raises
    ------
    ValueError
        If the array has no elements, of which there would be a range.
    """
    ranges = where.parameter_shape(shape)
    if 0 in shape and 0 not in ranges:
        raise ValueError(f"x has shape {shape}: the range of no elements has no minimum and no maximum")
    return ranges


# --- QParams ----------------------------------------------------------------------------------------------------------

CARRIED = ("dtype", "axis", "block_size", "symmetric", "convention", "bits", "range")
_DEFAULTS = tuple(RangeOptions._field_defaults[name] for name in CARRIED)


def check_beside_qparams(*given: object) -> None:
    """Pass if the options that QParams carry already are at their defaults.

    Raises
    ------
    TypeError
        If not; the message names them.
    """
    if not equal(given, _DEFAULTS):
        pairs = zip(CARRIED, _DEFAULTS, given, strict=True)
        names = [name for name, default, value in pairs if not equal(value, default)]
        raise TypeError(f"qparams carries {', '.join(names)} already; give one or the other")


def as_qparams(qparams: object) -> QParams:
    """Return QParams as they are.

    Raises
    ------
    TypeError
        If they are none.
    """
    if not (type(qparams) is QParams or is_a(qparams, QParams)):
        raise TypeError(f"qparams must be QParams, as choose_qparams returns them, not {type(qparams).__name__}")
    return qparams


def by_qparams(dtype: DType, ndim: int, params: QParams, options: QuantizeOptions) -> Request:
    """Return the request to quantize values of a dtype by parameters that are ready."""
    nan, saturate = check_nan(options.nan, params.dtype, given=True), as_bool(options.saturate, "saturate")
    half = as_convention(params.convention).rounded_to(native(dtype))
    return of_qparams(params, ndim)._replace(nan=nan, saturate=saturate, half=half)


def of_qparams(params: QParams, ndim: int) -> Request:
    """Return the request to decode by parameters that are ready."""
    where = ARRAY if params.scale.size == 1 else granularity(params.axis, params.block_size, ndim)
    kind = kind_of(params.axis, params.block_size)
    return Request(params.dtype, params.convention, params.symmetric, params.axis, where, kind, params.compute_dtype)


# --- raw parameters ---------------------------------------------------------------------------------------------------


def by_numbers(dtype: DType, options: LinearOptions, *named: DType | None) -> Request:
    """Return the request of `fastq.quantize_linear`, before it is placed.

    Without a `dtype` the format is that of the first of the dtypes `named`, of zero point and out, that is one.
    """
    compute, row = check_input(dtype), as_convention(options.convention)
    names = [each.name for each in named if each is not None and each.name in QTYPES]
    qtype = QTYPES[(*names, "uint8")[0]] if options.dtype is None else as_qtype(options.dtype)
    if qtype.block_size:
        raise TypeError(f"dtype must be a format without scales of its own, not {qtype}; see quantize")
    row.check_format(qtype)
    axis = as_axis(options.axis)
    where = Granularity(block_size=as_block_size(options.block_size, axis))
    how = check_nan(options.nan, qtype), as_bool(options.saturate, "saturate"), row.rounded_to(native(dtype))
    return Request(qtype, options.convention, False, axis, where, "", compute, *how)


def codes_by_numbers(dtype: DType, scale: DType, wanted: DType, options: ValuesOptions) -> Request:
    """Return the request of `fastq.dequantize_linear`, before it is placed, for codes of a dtype.

    `scale` is the dtype of scales as they were given, `wanted` that of the values.
    """
    qtype, row = format_of_codes(dtype), as_convention(options.convention)
    row.check_format(qtype)
    axis = as_axis(options.axis)
    where = Granularity(block_size=as_block_size(options.block_size, axis))
    compute = compute_dtype(wanted if row.stored_type == "float64" else scale)
    return Request(qtype, options.convention, False, axis, where, "", compute)


# --- ranges and errors ------------------------------------------------------------------------------------------------


def ranges_of(dtype: DType, shape: Shape, options: MinMaxOptions) -> Granularity:
    """Return what each minimum and maximum of `fastq.minmax` belongs to."""
    check_input(dtype)
    check_nan(options.nan)
    where = as_granularity(options.axis, options.block_size, len(shape))
    shape_of_ranges(shape, where)
    return where


def check_comparable(x: Shape, q: Shape) -> None:
    """Pass if an approximation has the shape of an array that has elements.

    Raises
    ------
    ValueError
        If not.
    """
    if x != q:
        raise ValueError(f"x has shape {x}, but q has shape {q}")
    if 0 in x:
        raise ValueError("x is empty: there is no error to measure")
