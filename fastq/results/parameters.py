"""QParams: scales, zero points, and the elements that share them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq.formats.conventions.convention import Coding, Convention, coding_of
from fastq.formats.conventions.table import DEFAULT, as_convention
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.granularity import Axis
from fastq.formats.qtypes import QTYPES, QType, as_qtype
from fastq.results import late
from fastq.system import arguments
from fastq.system.arguments import as_axis, as_block_size, as_bool, as_dtype, between, native, shown
from fastq.system.arrays_of_callers import as_array, is_lazy, refuse_mask


def _as_numbers(name: str, numbers: object) -> NDArray[Any]:
    """Return numbers as an array in their own dtype; Python numbers as zero points or in float64."""
    array = as_array(numbers, name)
    if array.dtype.kind not in "iuf" and array.dtype.name not in FLOAT_FORMATS and array.dtype.name not in QTYPES:
        raise TypeError(f"{name} must be an array of numbers, not {shown(numbers)}")
    return array.astype(np.float64) if name == "scale" and arguments.is_python(numbers) else array


def _as_compute(computed: DTypeLike) -> np.dtype[Any]:
    """Return a compute type in native byte order, or raise TypeError."""
    dtype = native(as_dtype(computed, "computed", "float32 or float64"))
    if dtype not in (np.float32, np.float64):
        raise TypeError(f"computed must be float32 or float64, not {dtype}")
    return dtype


Kind = TypeVar("Kind")


class ParameterKey(tuple[Any, ...]):
    """A part of the keys of launch plans; each field has one type, so that `True == 1` makes no two keys equal."""


@dataclass(frozen=True, eq=False, init=False, repr=False)
class QParams:
    """Scale and zero point, and the elements that share them.

    Attributes
    ----------
    scale : ndarray of float32 or float64, or of the dtype that the format prescribes
        Shape () for the whole array, (C,) for one channel axis, the kept dimensions for a tuple of axes, and the
        array's rank with ``ceil(D / block_size)`` on the block axis for blocks. In units of the array's values per
        code.
    zero_point : ndarray
        The code of 0.0 in the storage dtype of the format, same shape as `scale`. Both may also be numbers and lists.
    dtype : QType
        The code format, or its name.
    axis : int, tuple of int or None
        The channel axis or axes (kept), or the axis along which blocks of ``block_size`` run.
    block_size : int
        Elements in a block; 0 where there are no blocks.
    symmetric : bool
        Whether as many codes are used below the zero point as above it.
    convention : str or Convention
        System whose arithmetic the parameters follow.
    tensor_scale : ndarray of float32 or None
        The number that multiplies every scale of an "nvfp4" array, of shape (); None for other formats.
    computed : dtype, optional
        Compute type of the values, if it is not the type of `scale`.
    key : ParameterKey
        All except the values: together with shapes and dtypes, what a launch plan may depend on.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> p = fastq.QParams(0.5, 3, "int8")
    >>> fastq.quantize(np.array([-1.0, 0.0, 1.0], np.float32), qparams=p).codes
    array([1, 3, 5], dtype=int8)
    """

    scale: NDArray[Any]
    zero_point: NDArray[Any]
    dtype: QType
    axis: Axis
    block_size: int
    symmetric: bool
    convention: str | Convention
    tensor_scale: NDArray[np.float32] | None
    computed: np.dtype[Any] | None
    key: ParameterKey = field(init=False, repr=False)

    def __init__(
        self,
        scale: ArrayLike,
        zero_point: ArrayLike,
        dtype: str | QType | DTypeLike,
        axis: Axis = None,
        block_size: int = 0,
        symmetric: bool = False,
        convention: str | Convention = "onnx",
        tensor_scale: ArrayLike | None = None,
        computed: DTypeLike | None = None,
    ) -> None:
        vars(self).update(scale=scale, zero_point=zero_point, dtype=dtype, axis=axis, block_size=block_size)
        vars(self).update(symmetric=symmetric, convention=convention, tensor_scale=tensor_scale, computed=computed)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Accept a format by name, and numbers and lists as arrays; refuse parameters that no array can have."""
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
        vars(self)["key"] = _key_of(self)

    @property
    def compute_dtype(self) -> np.dtype[Any]:
        """Compute type: that of the values, float32 or float64."""
        dtype = self.computed or self.scale.dtype
        # scales may be in any byte order, or in a float format of their own, which is computed with in float32
        float_dtype = np.dtype(np.float64 if dtype.type is np.float64 else np.float32)
        return as_convention(self.convention).computes_in(float_dtype)

    def with_values(self, scale: NDArray[Any], zero_point: NDArray[Any]) -> Self:
        """Return these parameters with other numbers, in a fifth of the time of `dataclasses.replace`.

        Parameters
        ----------
        scale, zero_point : ndarray
            Numbers in the shapes and dtypes of these parameters.

        Returns
        -------
        QParams
            Unchecked, except that arrays with a mask are a `TypeError`.
        """
        if type(scale) is not np.ndarray:
            refuse_mask(scale, "scale")
        if type(zero_point) is not np.ndarray:
            refuse_mask(zero_point, "zero_point")
        params = object.__new__(type(self))
        values = params.__dict__
        values.update(self.__dict__)
        values["scale"] = scale
        values["zero_point"] = zero_point
        return params

    @property
    def nbytes(self) -> int:
        """Bytes of scales, zero points and tensor scale in memory, also of zero points that are all 0."""
        scales = [self.scale] if self.tensor_scale is None else [self.scale, self.tensor_scale]
        return sum(scale.nbytes for scale in scales) + self.zero_point.nbytes

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the parameters to a .safetensors file, which appears whole or not at all; `QParams.load` reads it.

        Parameters
        ----------
        path : str or path
            File to write; an existing file is replaced. Equal parameters have equal files.

        Raises
        ------
        TypeError, ValueError, OSError
            If path is not as described or can't be written.
        """
        late.array_file().save(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> QParams:
        """Read parameters from a file of `save`. No code in the file is run.

        Parameters
        ----------
        path : str or path
            The file.

        Returns
        -------
        QParams
            The parameters that were saved, bit for bit.

        Raises
        ------
        TypeError, ValueError, OSError
            If path is not as described, can't be read, or is not a file of parameters.
        """
        params: QParams = late.array_file().load(path, QParams)
        return params

    def __repr__(self) -> str:
        return f"QParams({scheme_text(self)}, {parameters_text(self)})"


def parameters_without_numbers(
    scale: np.dtype[Any],
    zero_point: np.dtype[Any],
    dtype: QType,
    *,
    axis: Axis,
    block_size: int,
    symmetric: bool,
    convention: str | Convention,
    computed: np.dtype[Any] | None,
) -> QParams:
    """Return valid parameters without numbers, which plans keep and copy `with_values`.

    The numbers will have these dtypes, which the compute type and the key follow from.
    """
    params = object.__new__(QParams)
    vars(params).update(
        scale=np.empty(0, scale),
        zero_point=np.empty(0, zero_point),
        dtype=dtype,
        axis=axis,
        block_size=block_size,
        symmetric=symmetric,
        convention=convention,
        tensor_scale=np.ones((), np.float32) if dtype.has_tensor_scale else None,
        computed=computed,
    )
    vars(params)["key"] = _key_of(params)
    return params


def _key_of(p: QParams) -> ParameterKey:
    """Return everything in some parameters except their values."""
    has_tensor_scale = p.tensor_scale is not None
    return ParameterKey((p.dtype, p.axis, p.block_size, p.symmetric, p.convention, p.computed, has_tensor_scale))


def without_checks(array_class: type[Kind], codes: Any, qparams: QParams, shape: tuple[int, ...]) -> Kind:
    """Return a QuantizedArray of NumPy or dask from parts that fit, in a third of the time of `__init__`."""
    q = object.__new__(array_class)
    q.__dict__.update(codes=codes, qparams=qparams, shape=shape)
    return q


def coding_of_parameters(p: QParams) -> Coding:
    """Return the code format of some parameters as their convention uses it, for values of their compute type."""
    return coding_of(as_convention(p.convention), p.dtype, p.symmetric, p.axis, p.block_size, p.compute_dtype)


def convention_for(p: QParams, axis: Axis) -> str | Convention:
    """Return the convention by which codes have the same values along another axis.

    It is their own, unless its fields differ there, as those of some conventions do for an array, channels and blocks.
    Then it is the row with the fields that these codes were made with.
    """
    convention = as_convention(p.convention)
    before, after = (
        coding_of(convention, p.dtype, p.symmetric, axis_of_codes, p.block_size, p.compute_dtype).convention
        for axis_of_codes in (p.axis, axis)
    )
    return p.convention if before == after else before


def scheme_text(p: QParams) -> str:
    """Return the format, granularity and convention of some parameters."""
    name = as_convention(p.convention).name
    prescribed = p.dtype.block_size or p.dtype.element
    words = [
        str(p.dtype),
        "" if p.axis is None else f"axis={p.axis}",
        f"block_size={p.block_size}" if p.block_size and not p.dtype.block_size else "",
        "symmetric" if p.symmetric and not prescribed else "",
        "" if name == DEFAULT else f"convention={name!r}",
    ]
    return ", ".join(filter(None, words))


def parameters_text(p: QParams) -> str:
    """Return scale and zero point as text: single numbers, or the extremes of several."""
    shape = f" of shape {p.scale.shape}" if p.scale.ndim else ""
    texts = {"scale": _numbers_text(p.scale) + shape, "zero_point": _numbers_text(p.zero_point)}
    if p.tensor_scale is not None:
        texts["tensor_scale"] = _numbers_text(p.tensor_scale)
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def _numbers_text(numbers_or_lazy: Any) -> str:
    """Return a number as text, or the smallest and the largest of several."""
    if is_lazy(numbers_or_lazy):
        return "a dask array"
    numbers = as_array(numbers_or_lazy, "parameters").astype(np.float64)
    if not numbers.size:
        return "none"
    least, most = (f"{end:.{6 if numbers.ndim == 0 else 4}g}" for end in (numbers.min(), numbers.max()))
    return between(least, most)
