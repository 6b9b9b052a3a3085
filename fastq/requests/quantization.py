"""Requests to quantize and to dequantize: validated from dtypes, shapes and options, before any array is read."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from fastq.formats.conventions.convention import NEAREST, UNROUNDED, Coding, Convention, HalfPrecision, coding_of
from fastq.formats.conventions.table import as_convention, check_format, check_written
from fastq.formats.floats import FLOAT_FORMATS, FLOATS, REAL, is_real
from fastq.formats.granularity import ARRAY, Axis, Granularity, as_granularity, axes_that_fit, granularity, kind_of
from fastq.formats.qtypes import CASTS, QTYPES, SUMS, WIDE, QType, as_qtype
from fastq.formats.range_methods import METHODS, MSERange
from fastq.requests.parameters import ParameterRules
from fastq.requests.stochastic_rounding import STOCHASTIC
from fastq.results import QParams
from fastq.results.parameters import parameters_without_numbers
from fastq.system import arguments
from fastq.system.arrays_of_callers import as_array, is_out
from fastq.system.dtypes import INTEGERS, REAL_DTYPES

Shape = tuple[int, ...]
DType = np.dtype[Any]

# --- arrays -----------------------------------------------------------------------------------------------------------

_FLOAT32 = np.dtype(np.float32)
_FLOAT64 = np.dtype(np.float64)
CODES = frozenset(row.storage for row in QTYPES.values() if not row.element)  # dtypes of float codes need ml_dtypes

_COMPUTE: dict[np.dtype[Any], np.dtype[Any]] = {
    dtype: np.dtype(np.float64 if dtype.itemsize > 2 else np.float32) for dtype in INTEGERS
}
_COMPUTE |= {dtype: _FLOAT64 if dtype == _FLOAT64 else _FLOAT32 for dtype in FLOATS}


def as_real(dtype: Any, name: str) -> np.dtype[Any]:
    """Return the dtype of values for a dtype or its name."""
    # the type is looked at first: comparing a dtype with a string would parse it, which takes 1 us
    is_name = isinstance(dtype, str) and dtype == "bfloat16"
    dtype_of_values = FLOAT_FORMATS["bfloat16"].dtype if is_name else arguments.as_dtype(dtype, name, REAL)
    if not is_real(dtype_of_values):
        raise TypeError(f"{name} must be {REAL}, not {dtype_of_values}")
    return arguments.native(dtype_of_values)


def as_input(x: Any, name: str = "x") -> NDArray[Any]:
    """Return x as an ndarray of a dtype that can be quantized."""
    array = as_array(x, name)
    check_input(array.dtype, name)
    return array


def check_input(dtype: np.dtype[Any], name: str = "x") -> np.dtype[Any]:
    """Return the compute type of an input dtype: float64 for float64 and integers wider than 16 bits, else float32."""
    compute = _COMPUTE.get(dtype) or _COMPUTE.get(arguments.native(dtype))
    if compute is None and not is_real(dtype):
        raise TypeError(f"{name} must be {REAL_DTYPES}, not {dtype}")
    return compute or _FLOAT32


def compute_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the compute type of a dtype of values."""
    return _COMPUTE.get(arguments.native(dtype), _FLOAT32)


def check_approximation(dtype: np.dtype[Any]) -> None:
    """Raise an error unless an array of a dtype can be compared with another one."""
    if not is_real(dtype):
        raise TypeError(f"q must be a QuantizedArray, or a float array, not {dtype}")


def format_of_codes(dtype: np.dtype[Any]) -> QType:
    """Return the format of unpacked codes, including those of ml_dtypes."""
    dtype = arguments.native(dtype)
    if dtype.name in WIDE:
        return WIDE[dtype.name]
    if dtype not in CODES and dtype.name not in QTYPES:
        raise TypeError(
            "codes must be int8, uint8, int16, uint16, int32, uint32, or integers of up to 4 bits or floats of up to 8 "
            f"bits of ml_dtypes, not {dtype}"
        )
    return as_qtype(dtype)


def dtype_of_values(dtype: Any, out: Any, compute: DType) -> DType:
    """Return the dtype of decoded values: the requested dtype, else the dtype of out, else the compute type."""
    if dtype is not None:
        return as_real(dtype, "dtype")
    return as_real(out.dtype, "out") if out is not None and is_out(out) else compute


def dtype_by_scale(scale: DType | None) -> DType:
    """Return the dtype of values that scales of a dtype have by default: theirs, or else float32.

    Some dtypes of scales are not dtypes of values, and Python numbers have no dtype.
    """
    return scale if scale is not None and is_real(scale) else _FLOAT32


def dtype_of_fakes(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of fake quantized values: the dtype of the input, or its compute type."""
    return arguments.native(dtype) if is_real(dtype) else compute_dtype(dtype)


def check_nan(nan: str, qtype: QType | None = None, given: bool = False, omits: bool = False) -> str:
    """Return nan if it is a policy; "keep" is one for codes with a NaN, and for scales that are not `given`."""
    keep = ("keep",) * (qtype is not None)
    omitted = ("omit",) * omits
    nan = arguments.as_choice(nan, "nan", ("raise", "zero", *keep, *omitted))
    if qtype is None or nan != "keep":
        return nan
    if given and qtype.scale_element:
        raise ValueError(f"nan='keep' marks the scales of blocks, but the scales of {qtype} are given")
    if not qtype.scale_element and (qtype.float_format is None or qtype.float_format.nan is None):
        raise ValueError(f"nan='keep' needs codes with a NaN, which {qtype} lacks")
    return nan


def _is_stochastic(rounding: object, convention: Convention, qtype: QType) -> bool:
    """Return whether codes are rounded at random, if a convention and a format support that."""
    if rounding is None:
        return False
    if not (isinstance(rounding, str) and rounding == STOCHASTIC):
        raise ValueError(f"rounding must be None or 'stochastic', not {arguments.shown(rounding)}")
    if qtype.codebook:
        raise ValueError(f"rounding must be None for {qtype}, whose codes are in a table")
    if qtype.bits > 16:
        raise ValueError(f"rounding must be None for {qtype}: random numbers are for codes of up to 16 bits")
    if convention.rounding not in NEAREST:
        raise ValueError(
            f"rounding must be None for convention {convention.name!r}, which rounds by {convention.rounding} and not "
            "to the nearest"
        )
    return True


def check_out(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return out if a result of this shape and dtype can be written to it."""
    if not is_out(out):
        raise TypeError(f"out must be an ndarray, not {type(out).__name__}")
    if arguments.native(out.dtype) != dtype:
        raise TypeError(f"out has dtype {out.dtype}, but the result has dtype {dtype}")
    if out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, but the result has shape {shape}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    return out


# --- options, by name and with defaults; numbers come first -----------------------------------------------------------


class RangeOptions(NamedTuple):
    """Options of operations that compute parameters from ranges; the first ones are numbers."""

    axis: Axis = None
    block_size: int = 0
    symmetric: bool = False
    saturate: bool = True
    bits: int | None = None
    dtype: object = None
    convention: str | Convention = "onnx"
    nan: str = "raise"
    range: str | MSERange = "minmax"
    rounding: str | None = None


class QuantizeOptions(NamedTuple):
    """Options of operations on values with QParams; `key` is the part of these on which a plan may depend."""

    saturate: bool = True
    nan: str = "raise"
    key: Any = None
    rounding: str | None = None


class LinearOptions(NamedTuple):
    """Options of `fastq.quantize_linear`."""

    axis: Axis = None
    block_size: int = 0
    saturate: bool = True
    dtype: object = None
    convention: str | Convention = "onnx"
    nan: str = "raise"
    rounding: str | None = None


class ValuesOptions(NamedTuple):
    """Options of `fastq.dequantize_linear`."""

    axis: Axis = None
    block_size: int = 0
    dtype: object = None
    convention: str | Convention = "onnx"


class MinMaxOptions(NamedTuple):
    """Options of `fastq.minmax`."""

    axis: Axis = None
    block_size: int = 0
    nan: str = "raise"


# --- requests ---------------------------------------------------------------------------------------------------------


class Request(NamedTuple):
    """Everything in a call that quantizes or dequantizes except its arrays."""

    qtype: QType  # the code format
    convention: str | Convention  # the convention, as the caller gave it
    symmetric: bool  # whether there are as many codes below the zero point as above it
    axis: Axis  # the caller's axis, which may count from the end, for arrays of another rank
    granularity: Granularity  # the elements that share a parameter; the array, if there is one parameter
    coding: Coding  # the code format as the convention uses it
    nan: str = "raise"  # as the caller gave them
    saturate: bool = True
    half: HalfPrecision = UNROUNDED  # dtypes of half precision to which results of operations are rounded
    search: MSERange | None = None  # the search for a part of each range
    decodes: bool = False  # whether raw codes are decoded
    stochastic: bool = False  # whether codes are rounded at random

    @property
    def rules(self) -> ParameterRules:
        """The rules for parameters."""
        return ParameterRules(
            self.qtype,
            as_convention(self.convention),
            scale_dtype=self.coding.scale,
            zero_point_dtype=self.coding.zero_point,
            block_size=self.granularity.block_size,
            decodes=self.decodes,
        )

    @property
    def searches_ends_apart(self) -> bool:
        """Whether both ends of a range are searched, as for zero points that may be any number."""
        return not self.symmetric and self.coding.convention.zero_point != "integer"

    @property
    def params_without_numbers(self) -> QParams:
        """Parameters from ranges without their numbers, in their dtypes."""
        qtype = self.qtype
        coding = self.coding
        prescribed_scale = FLOAT_FORMATS[qtype.scale_element].dtype if qtype.scale_element else None
        computed = None if prescribed_scale is not None or coding.scale == coding.compute else coding.compute
        return parameters_without_numbers(
            prescribed_scale or coding.scale,
            coding.zero_point,
            qtype,
            axis=self.axis,
            block_size=self.granularity.block_size,
            symmetric=self.symmetric,
            convention=self.convention,
            computed=computed,
        )

    def with_granularity(self, name: str, shape: Shape, scale_shape: Shape, scale_size: int) -> Request:
        """Return the request once the shapes of an array and of raw scales tell which elements share a scale.

        One number belongs to the whole array. `name` is the array's, for errors.
        """
        if scale_size == 1:
            return self._replace(axis=None, granularity=ARRAY)
        axis = self.axis
        block_size = self.granularity.block_size
        shape_is_known = not any(map(math.isnan, shape))  # to dask
        own_axes = None if block_size or not shape_is_known else _axes_of_broadcast_scale(scale_shape, shape)
        if own_axes is not None:
            axis = own_axes
            parts = Granularity(own_axes)
        else:
            if axis is None:
                fitting = axes_that_fit(scale_shape, shape, name)
                raise ValueError(f"scale has shape {scale_shape}, so it needs an axis: {fitting}")
            parts = granularity(axis, block_size, len(shape), name)
            if shape_is_known and scale_shape != parts.parameter_shape(shape):
                raise ValueError(_misfit(scale_shape, shape, axis, parts, name))
        coding = coding_of(
            as_convention(self.convention),
            self.qtype,
            symmetric=False,  # raw parameters come with no scheme, so all codes are in use
            axis=parts.axes,
            block_size=parts.block_size,
            compute=self.coding.compute,
        )
        return self._replace(axis=axis, granularity=parts, coding=coding)


def _axes_of_broadcast_scale(scale_shape: Shape, shape: Shape) -> tuple[int, ...] | None:
    """Return the axes that a scale with all axes of an array belongs to: the longer ones, as in NumPy's broadcasting.

    A scale of shape (1, 3, 1) for an array of shape (2, 3, 4) belongs to axis 1. So the option `axis` is not read: its
    default is none of a vector's axes. None where the scale is not broadcast, as one of shape (3,) is not.
    """
    if len(scale_shape) != len(shape) or any(n not in (1, size) for n, size in zip(scale_shape, shape, strict=True)):
        return None
    return tuple(axis for axis, n in enumerate(scale_shape) if n != 1)


def _misfit(scale_shape: Shape, shape: Shape, axis: Axis, parts: Granularity, name: str) -> str:
    """Return why raw scales do not fit an array of a shape, and the axes for which they would."""
    blocks = f" and block_size={parts.block_size}" if parts.block_size else ""
    needed = f"axis={axis}{blocks} needs {parts.parameter_shape(shape)}"
    fitting = axes_that_fit(scale_shape, shape, name, parts.block_size)
    return f"scale has shape {scale_shape}, but {needed}; {fitting}"


# --- parameters from ranges -------------------------------------------------------------------------------------------


def as_range_method(method: object) -> MSERange | None:
    """Return the search of an option `range`, None for the whole range."""
    try:
        return METHODS[cast(str, method)]
    except Exception:  # not a name, or not hashable
        if isinstance(method, MSERange):
            return method
    ends = isinstance(method, (tuple, list, np.ndarray))
    hint = "; for given ends pass qparams=fastq.choose_qparams(np.array([lo, hi], x.dtype), dtype)" * ends
    choices = f"{', '.join(METHODS)}, or a fastq.MSERange"
    raise ValueError(f"range must be one of {choices}, not {arguments.shown(method)}{hint}")


def request_by_range(dtype: DType, ndim: int, options: RangeOptions, *, weighed: bool = False) -> Request:
    """Return the request for parameters from the ranges of an array, whose elements may be `weighed` by importance."""
    if options.dtype is None:
        raise TypeError("dtype must be a code format, not None, unless qparams are given")
    qtype = as_qtype(options.dtype)
    compute = check_input(dtype)
    search = as_range_method(options.range)
    if options.bits is not None:
        qtype = qtype.with_bits(options.bits)
    saturate = arguments.as_bool(options.saturate, "saturate")
    symmetric = arguments.as_bool(options.symmetric, "symmetric")
    if not saturate and search is not None:
        raise ValueError("saturate must be True for a search for ranges: values beyond the range would be infinite")
    if symmetric and qtype.bits == 1:
        raise ValueError(f"symmetric codes need at least 2 bits, and {qtype} has 1")
    axis = arguments.as_axis(-1 if options.axis is None and qtype.block_size else options.axis)
    block_size = arguments.as_block_size(options.block_size, axis)
    if qtype.block_size and arguments.as_block_size(block_size or qtype.block_size, axis) != qtype.block_size:
        raise ValueError(f"block_size must be {qtype.block_size} for {qtype}, not {block_size}")
    block_size = qtype.block_size or block_size
    # floats, tables of numbers and blocks with their own scales have no zero point, whatever the caller asks for
    is_symmetric = symmetric or bool(qtype.element or qtype.block_size)
    parts = granularity(axis, block_size, ndim)
    convention = as_convention(options.convention)
    coding = _coding_with_scheme(convention, qtype, is_symmetric, parts.axes, block_size, compute)
    half = coding.convention.half_precision_for(dtype)
    if qtype.scale_element:  # which prescribes what scales are rounded to
        half = HalfPrecision(operations=half.operations)
    nan = check_nan(options.nan, qtype)
    if search is not None:
        kind = kind_of(parts.axes, block_size)
        search = search.resolve(qtype, coding.convention, is_symmetric, kind, block_size, weighed)
        if search.signs == 2 and coding.convention.symmetric_extreme == "magnitude":
            # The format is among `searched_signed`: scales of minima and maxima are positive, but those of a search may
            # have either sign. So this request, and only its coding: results name the convention of the caller.
            coding = coding._replace(convention=replace(coding.convention, symmetric_extreme="signed"))
    return Request(
        qtype=qtype,
        convention=options.convention,
        symmetric=is_symmetric,
        axis=axis,
        granularity=parts,
        coding=coding,
        nan=nan,
        saturate=saturate,
        half=half,
        search=search,
        stochastic=_is_stochastic(options.rounding, convention, qtype),
    )


def _coding_with_scheme(
    convention: Convention, qtype: QType, symmetric: bool, axis: Axis, block_size: int, compute: DType
) -> Coding:
    """Return a format under a convention whose system has the scheme, and uses two codes or more of the format."""
    check_format(convention, qtype)
    if (scheme := "symmetric" if symmetric else "asymmetric") not in convention.schemes:
        raise ValueError(f"symmetric must be {not symmetric}: convention {convention.name!r} has no {scheme} scheme")
    coding = coding_of(convention, qtype, symmetric, axis, block_size, compute)
    if not coding.parameters[0] < coding.parameters[1]:
        raise ValueError(f"dtype must have two codes or more: convention {convention.name!r} leaves too few of {qtype}")
    return coding


def request_by_calibrator(
    dtype: object, axis: Axis, symmetric: bool, convention: str | Convention, nan: str
) -> Request:
    """Return the request for parameters of data that arrives piece by piece."""
    if (qtype := as_qtype(dtype)).block_size:
        raise ValueError(f"dtype must be a format without its own blocks, not {qtype}")
    axis = arguments.as_axis(axis)
    axes = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
    # Arrays are yet to come, so it is not known how many axes they have. Those that count from the front and from the
    # end can all differ in an array that has as many as both need: (0, 1, -1) in one of 2 + 1.
    ndim = max((a + 1 for a in axes if a >= 0), default=0) + max((-a for a in axes if a < 0), default=0)
    nan = check_nan(nan, qtype, omits=True)
    options = RangeOptions(axis, symmetric=symmetric, dtype=qtype, convention=convention)
    return request_by_range(np.dtype(np.float32), min(ndim, arguments.MOST_AXES), options)._replace(nan=nan)


def shape_of_ranges(shape: Shape, parts: Granularity) -> Shape:
    """Return the shape of the ranges of an array."""
    ranges = parts.parameter_shape(shape)
    if 0 in shape and 0 not in ranges:
        raise ValueError(f"x has shape {shape}: the range of no elements has no minimum and no maximum")
    return ranges


# --- QParams ----------------------------------------------------------------------------------------------------------

CARRIED = ("dtype", "axis", "block_size", "symmetric", "convention", "bits", "range")
_DEFAULTS = (*(RangeOptions._field_defaults[name] for name in CARRIED), None)


def check_beside_qparams(*values: object) -> None:
    """Raise an error unless the options that QParams already have are at their defaults."""
    try:
        are_defaults = values == _DEFAULTS
    except Exception:  # an object of any library that can't be compared, or whose comparison is neither true nor false
        are_defaults = False
    if are_defaults:
        return
    options = zip((*CARRIED, "importance"), _DEFAULTS, values, strict=True)
    names = [name for name, default, value in options if not _is_default(value, default)]
    if names:
        raise TypeError(f"qparams has {', '.join(names)} already; give one or the other")


def _is_default(value: Any, default: object) -> bool:
    """Return whether an option has its default; only numbers, strings and formats can be equal to it."""
    if not isinstance(value, (str, int, float, np.integer, np.bool_, QType)):
        return value is default
    return bool(value == default)


def as_qparams(qparams: object) -> QParams:
    """Return QParams unchanged, or raise TypeError."""
    if not (type(qparams) is QParams or isinstance(qparams, QParams)):
        raise TypeError(f"qparams must be QParams, of choose_qparams or q.qparams, not {type(qparams).__name__}")
    return qparams


def request_by_qparams(dtype: DType, ndim: int, params: QParams, options: QuantizeOptions) -> Request:
    """Return the request to quantize values of a dtype by prepared parameters."""
    nan = check_nan(options.nan, params.dtype, given=True)
    saturate = arguments.as_bool(options.saturate, "saturate")
    convention = as_convention(params.convention)
    request = request_to_decode_by_qparams(params, ndim, compute_dtype(dtype), convention)
    stochastic = _is_stochastic(options.rounding, convention, params.dtype)
    return request._replace(
        nan=nan, saturate=saturate, half=request.coding.convention.half_precision_for(dtype), stochastic=stochastic
    )


def request_to_decode_by_qparams(params: QParams, ndim: int, compute: DType, convention: Convention) -> Request:
    """Return the request to decode by prepared parameters of a convention, for values of a compute type."""
    parts = ARRAY if params.scale.size == 1 else granularity(params.axis, params.block_size, ndim, "the values")
    coding = coding_of(convention, params.dtype, params.symmetric, params.axis, params.block_size, compute)
    return Request(
        qtype=params.dtype,
        convention=params.convention,
        symmetric=params.symmetric,
        axis=params.axis,
        granularity=parts,
        coding=coding,
    )


# --- raw parameters ---------------------------------------------------------------------------------------------------


def request_by_numbers(
    dtype: DType, options: LinearOptions, zero_point: DType | None = None, out: DType | None = None
) -> Request:
    """Return the request of `fastq.quantize_linear`; `Request.with_granularity` adds what the scale's shape tells.

    Without a `dtype` the format is that of the zero point, else that of out, if one of these dtypes is a format.
    """
    compute = check_input(dtype)
    convention = as_convention(options.convention)
    if options.dtype is not None:
        qtype = as_qtype(options.dtype, casts=True)
    elif zero_point is not None and zero_point.name in QTYPES:  # it may also be a float of a convention
        qtype = QTYPES[zero_point.name]
    else:
        qtype = (QTYPES | CASTS).get("uint8" if out is None else out.name, QTYPES["uint8"])
    if qtype.block_size:
        raise TypeError(f"dtype must be a format without its own scales, not {qtype}; see quantize")
    check_format(convention, qtype)
    check_written(convention, qtype)
    axis = arguments.as_axis(options.axis)
    parts = Granularity(block_size=arguments.as_block_size(options.block_size, axis))
    nan = check_nan(options.nan, qtype)
    saturate = arguments.as_bool(options.saturate, "saturate")
    return Request(
        qtype=qtype,
        convention=options.convention,
        symmetric=False,
        axis=axis,
        granularity=parts,
        coding=coding_of(convention, qtype, symmetric=False, axis=None, block_size=0, compute=compute),
        nan=nan,
        saturate=saturate,
        half=convention.half_precision_for(dtype),
        stochastic=_is_stochastic(options.rounding, convention, qtype),
    )


def request_to_decode_by_numbers(
    dtype: DType, scale: DType | None, dtype_of_result: DType, options: ValuesOptions
) -> Request:
    """Return the request of `fastq.dequantize_linear`; `Request.with_granularity` adds what the scale's shape tells.

    `dtype` is that of the codes, `scale` that of the given scales, None for Python numbers, and `dtype_of_result` that
    of the values.
    """
    qtype = format_of_codes(dtype)
    convention = as_convention(options.convention)
    check_format(convention, qtype)
    if qtype != SUMS:
        check_written(convention, qtype)
    axis = arguments.as_axis(options.axis)
    parts = Granularity(block_size=arguments.as_block_size(options.block_size, axis))
    dtype_of_arithmetic = dtype_of_result if convention.stored_type == "float64" else scale
    compute = _FLOAT32
    if dtype_of_arithmetic is not None and is_real(dtype_of_arithmetic):
        compute = compute_dtype(dtype_of_arithmetic)
    coding = coding_of(convention, qtype, symmetric=False, axis=None, block_size=0, compute=compute)
    return Request(
        qtype=qtype,
        convention=options.convention,
        symmetric=False,
        axis=axis,
        granularity=parts,
        coding=coding,
        decodes=True,
    )


# --- ranges and errors ------------------------------------------------------------------------------------------------


def granularity_of_minmax(dtype: DType, shape: Shape, options: MinMaxOptions) -> Granularity:
    """Return the granularity of `fastq.minmax`."""
    check_input(dtype)
    check_nan(options.nan)
    parts = as_granularity(options.axis, options.block_size, len(shape))
    shape_of_ranges(shape, parts)
    return parts


def check_comparable(x: Shape, q: Shape) -> None:
    """Raise an error unless an approximation has the shape of the array, which must not be empty."""
    if x != q:
        raise ValueError(f"x has shape {x}, but q has shape {q}")
    if 0 in x:
        raise ValueError("x is empty: there is no error to measure")
