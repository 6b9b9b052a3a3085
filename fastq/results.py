"""Hold what operations return: QuantizedArray and QParams (codes and their parameters) and Comparison (errors)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fastq.formats.conventions import Convention, as_convention
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QTYPES, QType, as_qtype
from fastq.system import lazy
from fastq.system.arguments import (
    as_array,
    as_axis,
    as_block_size,
    as_bool,
    as_dtype,
    as_shape,
    as_str,
    is_a,
    is_python,
    shown,
)

Axis = int | tuple[int, ...] | None


def _own_dtype(qtype: QType, dtype: DTypeLike) -> np.dtype[Any]:
    """Return the dtype that is called like the codes of a format, if that is the one asked for."""
    own = qtype.name if qtype.packed and not qtype.element else qtype.storage.name
    wanted = f"{own}, that of the codes"
    name = as_str(dtype, "dtype") if issubclass(type(dtype), str) else as_dtype(dtype, "dtype", wanted).name
    if name != own:
        raise TypeError(f"dtype must be {wanted}, not {shown(name)}")
    found = qtype.storage if own == qtype.storage.name else getattr(lazy.module("ml_dtypes"), name, None)
    if found is None:
        raise TypeError(f"ml_dtypes has no dtype for {qtype} codes; without dtype they are {qtype.storage}")
    return np.dtype(found)


def _as_numbers(name: str, given: object) -> NDArray[Any]:
    """Return numbers as an array in their own dtype; those of Python as zero points or in float64."""
    array = as_array(given, name)
    if array.dtype.kind not in "iuf" and array.dtype.name not in FLOAT_FORMATS and array.dtype.name not in QTYPES:
        raise TypeError(f"{name} must be an array of numbers, not {shown(given)}")
    return array.astype(np.float64) if name == "scale" and is_python(given) else array


def _as_compute(computed: DTypeLike) -> np.dtype[Any]:
    """Return the compute type that was asked for, if it is one."""
    dtype = as_dtype(computed, "computed", "float32 or float64")
    if dtype not in (np.float32, np.float64):
        raise TypeError(f"computed must be float32 or float64, not {dtype}")
    return dtype


class ParameterKey(tuple[Any, ...]):
    """A part of the keys of launch plans; each of its fields has one type, so that no two are equal by `True == 1`."""


@dataclass(frozen=True, eq=False)
class QParams:
    """Scale and zero point, and what they belong to.

    Attributes
    ----------
    scale : ndarray of float32 or float64, or of the dtype that the format prescribes
        Shape () for the whole array, (C,) for one channel axis, the kept dimensions for a tuple of axes, and the
        array's rank with ``ceil(D / block_size)`` on the block axis for blocks. In units of the array's values per
        code.
    zero_point : ndarray
        The code of 0.0 in the storage dtype of the format, same shape as `scale`. Numbers and lists are taken too,
        for both.
    dtype : QType
        The code format; its name is taken too.
    axis : int, tuple of int or None
        The channel axis or axes (kept), or with a `block_size` the axis along which blocks run.
    block_size : int
        Elements in a block; 0 where there are no blocks.
    symmetric : bool
        Whether as many codes are used below the zero point as above it.
    convention : str or Convention
        Whose arithmetic the parameters follow.
    tensor_scale : ndarray of float32 or None
        Shape (): what every scale of an "nvfp4" array is multiplied with; None for other formats.
    computed : dtype, optional
        Compute type of the values, where that is not the type of `scale`.
    key : ParameterKey
        All but the values: what a launch plan may depend on beside shapes and dtypes.
    """

    scale: NDArray[Any]
    zero_point: NDArray[Any]
    dtype: QType
    axis: Axis = None
    block_size: int = 0
    symmetric: bool = False
    convention: str | Convention = "onnx"
    tensor_scale: NDArray[np.float32] | None = None
    computed: np.dtype[Any] | None = None
    key: ParameterKey = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Take a format by its name, numbers and lists as arrays; refuse what no array can have."""
        axis = as_axis(self.axis)
        vars(self).update(
            scale=_as_numbers("scale", self.scale),
            zero_point=_as_numbers("zero_point", self.zero_point),
            dtype=as_qtype(self.dtype),
            axis=axis,
            block_size=as_block_size(self.block_size, axis),
            symmetric=as_bool(self.symmetric, "symmetric"),
            tensor_scale=None if self.tensor_scale is None else _as_numbers("tensor_scale", self.tensor_scale),
            computed=None if self.computed is None else _as_compute(self.computed),
        )
        as_convention(self.convention)
        where = self.dtype, axis, self.block_size, self.symmetric, self.convention, self.computed
        vars(self)["key"] = ParameterKey((*where, self.tensor_scale is not None))

    @property
    def compute_dtype(self) -> np.dtype[Any]:
        """Compute type: that of the values, float32 or float64."""
        given = self.computed or self.scale.dtype
        return np.dtype(np.float64) if given == np.float64 else np.dtype(np.float32)

    def with_values(self, scale: NDArray[Any], zero_point: NDArray[Any]) -> QParams:
        """Return these parameters with other numbers, in a fifth of the time of `dataclasses.replace`."""
        params = object.__new__(QParams)
        params.__dict__.update(self.__dict__, scale=scale, zero_point=zero_point)
        return params

    @property
    def nbytes(self) -> int:
        """Bytes of scales and zero point together."""
        scales = [self.scale] if self.tensor_scale is None else [self.scale, self.tensor_scale]
        return sum(scale.nbytes for scale in scales) + self.zero_point.nbytes


@dataclass(frozen=True, eq=False, init=False)
class QuantizedArray:
    """Codes and the parameters that give them meaning.

    Attributes
    ----------
    codes : ndarray
        One code an element, in the memory order of the array that was quantized; formats of fewer than 8 bits are
        packed along the last axis without gaps, first element in the low bits.
    qparams : QParams
        Scale, zero point, format, axis, block size and convention; each is also an attribute here.
    shape : tuple of int
        Shape of the array that the codes stand for.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> q = fastq.quantize(np.array([-1.0, 0.0, 0.5, 1.55], np.float32), "int8")
    >>> q.codes
    array([-128,  -28,   22,  127], dtype=int8)
    >>> np.asarray(q)
    array([-1.  ,  0.  ,  0.5 ,  1.55], dtype=float32)
    """

    codes: NDArray[Any]
    qparams: QParams
    shape: tuple[int, ...]

    def __init__(self, codes: NDArray[Any], qparams: QParams, shape: tuple[int, ...]) -> None:
        if not is_a(qparams, QParams):
            raise TypeError(f"qparams must be QParams, not {shown(qparams)}")
        self.__dict__.update(codes=as_array(codes, "codes"), qparams=qparams, shape=as_shape(shape))

    @property
    def scale(self) -> NDArray[Any]:
        """Value of one code step."""
        return self.qparams.scale

    @property
    def zero_point(self) -> NDArray[Any]:
        """The code of 0.0."""
        return self.qparams.zero_point

    @property
    def tensor_scale(self) -> NDArray[np.float32] | None:
        """What every scale is multiplied with, in formats with two levels of scales."""
        return self.qparams.tensor_scale

    @property
    def dtype(self) -> QType:
        """The code format."""
        return self.qparams.dtype

    @property
    def axis(self) -> Axis:
        """Channel axis or axes, or the axis along which blocks run."""
        return self.qparams.axis

    @property
    def block_size(self) -> int:
        """Elements in a block, 0 without blocks."""
        return self.qparams.block_size

    @property
    def symmetric(self) -> bool:
        """Whether as many codes are used below the zero point as above it."""
        return self.qparams.symmetric

    @property
    def convention(self) -> str | Convention:
        """Whose arithmetic the codes follow."""
        return self.qparams.convention

    @property
    def ndim(self) -> int:
        """Number of dimensions of the array that the codes stand for."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements that the codes stand for."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scale and zero point together."""
        return self.codes.nbytes + self.qparams.nbytes

    def unpacked(self, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """Return the codes one an element: the codes themselves unless the format packs them.

        Parameters
        ----------
        dtype : str or dtype, optional
            The dtype of ml_dtypes that is called like the format, such as "int4"; by default the storage dtype of the
            format, int8 or uint8 for packed integers.

        Returns
        -------
        ndarray
            Shape `shape`.

        Raises
        ------
        TypeError
            If dtype is not that of the codes.
        """
        wanted, codes = None if dtype is None else _own_dtype(self.dtype, dtype), self.codes
        if self.dtype.packed:
            codes = lazy.module("fastq.operations.packing").unpack(codes, self.dtype, shape=self.shape)
        return codes if wanted is None else codes.astype(wanted, copy=False)

    def dequantize(
        self, *, dtype: DTypeLike | None = None, out: NDArray[np.floating[Any]] | None = None
    ) -> NDArray[np.floating[Any]]:
        """Return the values that the codes stand for: ``(code - zero_point) * scale``.

        Parameters
        ----------
        dtype : float32 or float64, optional
            Output dtype; the scale's by default.
        out : ndarray, optional
            Where to write; shape `shape`, float32 or float64, not overlapping the codes.

        Returns
        -------
        ndarray
            Shape `shape`.
        """
        values: NDArray[Any] = lazy.module("fastq.operations.dequantize").dequantize(self, dtype=dtype, out=out)
        return values

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a QuantizedArray can't be seen as an array without a copy")
        values = as_array(self.dequantize(), "q")
        return values if dtype is None else values.astype(as_dtype(dtype, "dtype", "a dtype"), copy=False)

    def __repr__(self) -> str:
        where = "" if self.axis is None else f", axis={self.axis}"
        where += f", block_size={self.block_size}" if self.block_size else ""
        return f"QuantizedArray(shape={self.shape}, dtype={self.dtype}{where}, nbytes={self.nbytes})"


def quantized(codes: NDArray[Any], qparams: QParams, shape: tuple[int, ...]) -> QuantizedArray:
    """Return a QuantizedArray of parts that need no checks, in a third of the time of its own `__init__`."""
    q = object.__new__(QuantizedArray)
    q.__dict__.update(codes=codes, qparams=qparams, shape=shape)
    return q


class Histogram(NamedTuple):
    """How often the elements of each part of an array lie in which bin, and their range.

    Attributes
    ----------
    lo, hi : ndarray of float64
        Minima and maxima, inf and -inf of no elements.
    counts : ndarray of int64
        Shape ``(*lo.shape, 2 * bins)``: of the bins from -bins to bins - 1, where bin k is that of
        ``floor(x / 2**e)``. The exponent e is the least one at which the largest magnitude of the part is below
        ``bins * 2**e``, and -1022 at least.
    """

    lo: NDArray[np.float64]
    hi: NDArray[np.float64]
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class Comparison:
    """How far an approximation is from an array; errors are ``x - approximation`` in float64.

    An error that is NaN makes every measure NaN that it belongs to.

    Attributes
    ----------
    mse : float
        Mean of the squared errors, in squared units of x.
    sqnr_db : float
        Signal to quantization noise ratio, ``10 log10(sum x**2 / sum error**2)``, in decibels; inf without errors.
    max_abs_error, mean_abs_error : float
        Of the absolute errors, in units of x.
    max_relative_error, mean_relative_error : float
        Of ``|error| / |x|`` over the elements that are not zero.
    clipped : int or None
        How many elements lie outside what the codes can hold; None for a plain array, which has no codes.
    """

    mse: float
    sqnr_db: float
    max_abs_error: float
    mean_abs_error: float
    max_relative_error: float
    mean_relative_error: float
    clipped: int | None
