"""Scales and zero points from callers: their validation, and their conversion for kernels."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.formats.conventions.convention import Convention
from fastq.formats.conventions.table import as_convention
from fastq.formats.floats import FLOAT_FORMATS, FLOATS, REAL, is_real
from fastq.formats.granularity import granularity
from fastq.formats.qtypes import QTYPES, WANTED_SCALES, QType
from fastq.results import QParams
from fastq.system.arguments import between, is_python, native
from fastq.system.arrays_of_callers import as_array

Array = NDArray[Any]


class Parameters(NamedTuple):
    """Scales, zero points, and the scale of the whole array, of which scales are multiples; 0 without one."""

    scale: Array
    zero_point: Array
    tensor_scale: float = 0.0

    def in_shape(self, shape: tuple[int, ...]) -> Parameters:
        """Return the parameters in another shape; one number for all stays as it is."""
        if self.scale.size == 1 or self.scale.shape == shape:
            return self
        return self._replace(scale=self.scale.reshape(shape), zero_point=self.zero_point.reshape(shape))


class ParameterRules(NamedTuple):
    """The rules for scale and zero point of a code format under a convention."""

    qtype: QType  # the code format
    convention: Convention  # the convention, whose scales may be negative, and whose zero points may be floats
    scale_dtype: np.dtype[Any]  # type of scales, if the format does not prescribe it
    zero_point_dtype: np.dtype[Any]
    block_size: int = 0  # elements in a block
    # whether codes are decoded as in ONNX: codes are multiplied by scales, which may be 0, and NaN for a block
    decodes: bool = False

    @property
    def allowed(self) -> tuple[bool, bool]:
        """Whether scales may be negative, and whether they may be 0: those of tables may, as nested ones can become."""
        of_table = self.qtype.codebook is not None
        return self.convention.signed_scale or of_table, self.decodes or of_table

    def ready(self, scale: Any, zero_point: Any, tensor_scale: Any = None) -> Parameters:
        """Return parameters in the dtypes that kernels read."""
        scale = self.ready_scale(scale)
        tensor = self.ready_tensor_scale(tensor_scale)
        return Parameters(scale, self.ready_zero_point(zero_point, scale), tensor)

    def ready_scale(self, scale: Any) -> Array:
        """Return scales in the dtype that kernels read."""
        if self.qtype.scale_element:
            return _as_own_scale(as_array(scale, "scale"), self)
        return _as_scale(scale, self)

    def ready_tensor_scale(self, tensor_scale: Any) -> float:
        """Return the scale of the whole array as a number, 0 without one, if the format has one and it is valid."""
        if tensor_scale is None:
            return 0.0
        scale = as_array(tensor_scale, "tensor_scale")
        check_tensor_scale(scale.dtype, scale.shape, self.qtype)
        least, most = TENSOR_SCALES
        if not least <= scale <= most:
            raise ValueError(f"tensor_scale must be from {least} to {most}, not {scale}")
        return float(scale)

    def ready_zero_point(self, zero_point: Any, scale: Array) -> Array:
        """Return zero points in the dtype that kernels read, for prepared scales."""
        qtype = self.qtype
        convention = self.convention
        shape = scale.shape
        if zero_point is None:
            return np.zeros(shape, self.zero_point_dtype)
        if convention.zero_point == "integer" and qtype.has_zero_point:
            return ready_codes(zero_point, qtype, shape)
        numbers = as_array(zero_point, "zero_point")
        self.ready_zero_point_dtype(numbers.dtype)
        numbers = _in_shape_of_scale(numbers, shape)
        if convention.zero_point != "integer":
            return _as_floats(numbers, self.zero_point_dtype)
        return _as_zeros(numbers, qtype)

    def ready_scale_dtype(self, dtype: np.dtype[Any] | None) -> np.dtype[Any]:
        """Return the dtype of prepared scales, for scales of a dtype; None is for Python numbers."""
        if self.qtype.scale_element:
            qtype = self.qtype
            expected = FLOAT_FORMATS[self.qtype.scale_element].dtype
            if self.block_size != qtype.block_size:
                raise ValueError(f"block_size must be {qtype.block_size} for {qtype}, not {self.block_size}")
            if dtype != expected:
                raise TypeError(f"scale must be {expected} for {qtype}, not {dtype}")
            return expected
        if dtype is not None and not is_real(dtype) and dtype.name not in _OTHER_SCALES:
            raise TypeError(f"scale must be {REAL.replace(' or', ',')}, {' or '.join(_OTHER_SCALES)}, not {dtype}")
        return self.scale_dtype

    def ready_zero_point_dtype(self, dtype: np.dtype[Any] | None) -> np.dtype[Any]:
        """Return the dtype of prepared zero points, for zero points of a dtype."""
        qtype = self.qtype
        if dtype is None:
            return self.zero_point_dtype
        if not qtype.element and self.convention.zero_point == "integer":
            _check_integers(dtype)
        elif not _are_integers(dtype):
            if qtype.element and dtype != qtype.storage:
                raise TypeError(f"zero_point must be {qtype.storage} or integers for {qtype}, not {dtype}")
            if not qtype.element and not is_real(dtype):
                raise TypeError(f"zero_point must be floats of 16 bits or more, or integers, not {dtype}")
        return self.zero_point_dtype


# --- scales -----------------------------------------------------------------------------------------------------------


# dtypes of scales that values don't have: powers of two, as for blocks, and ONNX's scales for int32
_POWERS = "float8_e8m0fnu"
_OTHER_SCALES = _POWERS, "int32"


def _as_scale(scale: Any, rules: ParameterRules) -> Array:
    """Return scale in the type of scales, every value finite and valid by the rules.

    A value that becomes infinite when it is rounded to that type is refused, too, or one that becomes an invalid 0.
    """
    compute = rules.scale_dtype
    is_normal = (type(scale) is float or type(scale) is np.float32) and 2.0**-126 < scale < 2.0**127
    if is_normal:  # valid by all rules, in either type of scales: a call with a Python float need not look further
        return np.array(scale, compute)
    may_be_negative, may_be_zero = rules.allowed
    numbers, rounded = _scale_in(scale, rules)
    if rules.decodes and numbers.dtype.name == _POWERS:  # all of them are valid: NaN is that of a block
        return rounded
    checked = np.abs(rounded) if may_be_negative else rounded
    least = 0.0 if may_be_zero else float(np.finfo(compute).smallest_subnormal)
    if checked.size == 1:
        if least <= checked.item() < np.inf:
            return rounded
    elif _all_finite_from(least, checked):
        return rounded
    bad = ~((checked >= least) & (checked < np.inf))
    expected = WANTED_SCALES[may_be_negative, may_be_zero]
    raise ValueError(
        f"scale must be {expected} in {compute}; {np.count_nonzero(bad)} of {bad.size} are not, "
        f"the first is {numbers[bad].flat[0]}"
    )


def _scale_in(scale: Any, rules: ParameterRules) -> tuple[Array, Array]:
    """Return scale as an array, for errors, and in the type of scales."""
    numbers = as_array(scale, "scale")
    if numbers.dtype not in FLOATS:
        if numbers.dtype.kind in "iu" and is_python(scale):
            numbers = numbers.astype(np.float64)
        rules.ready_scale_dtype(numbers.dtype)
        numbers = numbers.astype(native(numbers.dtype))
    if numbers.dtype == rules.scale_dtype:
        return numbers, numbers
    with np.errstate(over="ignore", under="ignore"):
        return numbers, numbers.astype(rules.scale_dtype)


def _all_finite_from(least: float, scale: Array) -> bool:
    """Return whether all scales are finite and at least a number, in pieces that keep temporaries in the cache."""
    flat = scale.reshape(-1)  # a copy if strided; scales are
    for k in range(0, flat.size, 65536):
        piece = flat[k : k + 65536]
        if not (np.min(piece) >= least and np.max(piece) < np.inf):  # nor of NaN, which both propagate
            return False
    return True


def _as_own_scale(scales: Array, rules: ParameterRules) -> Array:
    """Return the scales of a format that prescribes their dtype; a NaN scale marks a block."""
    rules.ready_scale_dtype(scales.dtype)
    if rules.qtype.has_tensor_scale:
        codes = scales.view(np.int8)  # a tenth of the time of float32: -1 and 127 are NaN, others below 0 negative
        least = int(not rules.convention.allows_zero_scale(rules.qtype))
        if np.any((codes < least) & (codes != -1)):
            raise ValueError(f"scale must be {'positive' if least else 'positive or 0'} for {rules.qtype}")
    return scales


# within these limits, the product of both scales and the reciprocals of both are normal numbers
TENSOR_SCALES = 2.0**-120, 2.0**119


def check_tensor_scale(dtype: np.dtype[Any], shape: tuple[int, ...], qtype: QType) -> None:
    """Raise an error unless a format has a scale of the whole array, of this dtype and shape."""
    if not qtype.has_tensor_scale:
        raise ValueError(f"tensor_scale must be None for {qtype}")
    if native(dtype) != np.float32:
        raise TypeError(f"tensor_scale must be float32, not {dtype}")
    if shape:
        raise ValueError(f"tensor_scale has shape {shape}, but it must be one number: shape ()")


# --- zero points ------------------------------------------------------------------------------------------------------


def storage_of(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the 8-bit dtype for an integer dtype of ml_dtypes of fewer than 8 bits, None for any other."""
    qtype = QTYPES.get(dtype.name) if dtype.kind == "V" else None
    return None if qtype is None or qtype.element else qtype.storage


def ready_codes(zero_point: Any, qtype: QType, shape: tuple[int, ...]) -> Array:
    """Return zero points that are codes of a format, in its storage dtype and in the shape of scales."""
    is_number = not shape and type(zero_point) in (int, qtype.storage.type)
    if is_number and qtype.qmin <= zero_point <= qtype.qmax:
        return np.array(zero_point, qtype.storage)  # a sixth of the time of the code below
    numbers = as_array(zero_point, "zero_point")
    _check_integers(numbers.dtype)
    numbers = _in_shape_of_scale(numbers, shape)
    if numbers.size and (numbers.dtype != qtype.storage or not qtype.fills_storage):
        least, most = int(numbers.min()), int(numbers.max())
        if least < qtype.qmin or most > qtype.qmax:
            wrong = between(least, most)
            raise ValueError(f"zero_point must be from {qtype.qmin} to {qtype.qmax} for {qtype}, not {wrong}")
    return numbers.astype(qtype.storage, copy=False)


def _check_integers(dtype: np.dtype[Any]) -> None:
    """Raise TypeError unless zero points of a dtype are integers."""
    if not _are_integers(dtype):
        raise TypeError(f"zero_point must be of an integer dtype, not {dtype}")


def _are_integers(dtype: np.dtype[Any]) -> bool:
    """Return whether zero points of a dtype are integers; raise TypeError for strings."""
    if dtype.kind in "SU":
        raise TypeError("zero_point must be numbers, not a string: name a format or dtype with dtype=")
    return dtype.kind in "iu" or storage_of(dtype) is not None


def _in_shape_of_scale(zero_points: Array, shape: tuple[int, ...]) -> Array:
    """Return zero points in a dtype of NumPy, one for each scale."""
    storage = storage_of(zero_points.dtype)
    zero_points = zero_points if storage is None else zero_points.astype(storage)
    check_zero_point_shape(zero_points.shape, shape)
    return np.full(shape, zero_points) if shape and not zero_points.shape else zero_points


def check_zero_point_shape(shape: tuple[float, ...], scale: tuple[float, ...]) -> None:
    """Raise ValueError unless a zero point is one number, or has the shape of the scale.

    Sizes that dask does not know are accepted.
    """
    unknown = any(map(math.isnan, (*shape, *scale)))
    if shape and not unknown and shape != scale and not math.prod(shape) == math.prod(scale) == 1:
        raise ValueError(f"zero_point has shape {shape}, but scale has shape {scale}")


def _as_zeros(zero_points: Array, qtype: QType) -> Array:
    """Return the zero points of codes that only allow 0: floats, and sums."""
    if zero_points.dtype == qtype.storage and zero_points.itemsize == 1 and not np.any(zero_points.view(np.uint8)):
        return zero_points
    if np.any(zero_points.astype(np.float32) != 0):
        raise ValueError(f"zero_point must be 0 for {qtype}, the only one that it has")
    return np.zeros(zero_points.shape, qtype.storage)


def _as_floats(zero_points: Array, dtype: np.dtype[Any]) -> Array:
    """Return the zero points of a convention with float zero points, finite in a dtype."""
    with np.errstate(over="ignore", under="ignore"):
        floats = zero_points.astype(dtype, copy=False)
    if not np.isfinite(floats).all():
        raise ValueError(f"zero_point must be finite in {dtype}, not {zero_points[~np.isfinite(floats)].flat[0]}")
    return floats


# --- QParams ----------------------------------------------------------------------------------------------------------


def check_parameter_shape(name: str, shape: tuple[int, ...], size: int, needed: tuple[int, ...]) -> None:
    """Raise an error unless parameters have the wanted shape, or are one number."""
    if shape != needed and size != 1:
        raise ValueError(f"{name} has shape {shape}, but this axis and block_size need shape {needed}")


def rules_of(params: QParams, compute: np.dtype[Any]) -> ParameterRules:
    """Return the rules for the numbers of some parameters, for values of a compute type."""
    convention = as_convention(params.convention)
    scale_dtype, zero_point_dtype = convention.dtypes(params.dtype, compute)
    return ParameterRules(
        params.dtype,
        convention,
        scale_dtype=scale_dtype,
        zero_point_dtype=zero_point_dtype,
        block_size=params.block_size,
    )


def check_qparams(
    params: QParams, shape: tuple[int, ...], compute: np.dtype[Any], rules: ParameterRules | None = None
) -> QParams:
    """Return parameters that belong to an array of this shape, the scale in the compute type."""
    rules = rules or rules_of(params, compute)
    compute = rules.convention.computes_in(compute)
    scale = rules.ready_scale(params.scale)
    rules.ready_tensor_scale(params.tensor_scale)
    needed_shape = granularity(params.axis, params.block_size, len(shape), "the values").parameter_shape(shape)
    check_parameter_shape("qparams.scale", scale.shape, scale.size, needed_shape)
    return in_dtypes_of(params, scale, rules.ready_zero_point(params.zero_point, scale), compute)


def qparams_for_plan(params: QParams, shape: tuple[int, ...], compute: np.dtype[Any], rules: ParameterRules) -> QParams:
    """Return parameters in the dtypes that kernels read, for the plan of calls like this one.

    The elements of those that have these dtypes are checked at each call, by the driver.
    """
    needed_shape = granularity(params.axis, params.block_size, len(shape), "the values").parameter_shape(shape)
    compute = rules.convention.computes_in(compute)
    scale = params.scale
    zero_point = params.zero_point
    if type(scale) is type(zero_point) is np.ndarray:  # `with_values` takes anything
        are_read = scale.dtype == rules.scale_dtype and zero_point.dtype == rules.zero_point_dtype
        fit = scale.shape == zero_point.shape == needed_shape and (params.computed or scale.dtype) == compute
        if are_read and fit and not params.dtype.scale_element and params.tensor_scale is None:
            return params
    return check_qparams(params, shape, compute, rules)


def in_dtypes_of(params: QParams, scale: Any, zero_point: Any, compute: np.dtype[Any]) -> QParams:
    """Return parameters with prepared numbers, for values of a compute type."""
    if scale is params.scale and zero_point is params.zero_point and compute == params.compute_dtype:
        return params
    computed = None if params.dtype.scale_element or scale.dtype == compute else compute
    return replace(params, scale=scale, zero_point=zero_point, computed=computed)
