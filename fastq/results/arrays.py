"""QuantizedArray: codes and the parameters that give them meaning."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fastq.formats.conventions.convention import Convention
from fastq.formats.granularity import Axis
from fastq.formats.qtypes import QType, check_stored_codes, packed_shape
from fastq.results import late
from fastq.results.indexing import (
    PartedShape,
    Pick,
    as_new_shape,
    axis_like,
    packed_picks,
    part_at,
    parts_of,
    reshape_parts,
)
from fastq.results.parameters import QParams, convention_for, parameters_text, scheme_text, without_checks
from fastq.system import imports
from fastq.system.arguments import as_dtype, as_shape, as_str, shown
from fastq.system.arrays_of_callers import as_array
from fastq.system.attributes import Forwarded

if TYPE_CHECKING:
    from fastq.results.explanation import Explanation


def _dtype_of_codes(qtype: QType, asked: DTypeLike) -> np.dtype[Any]:
    """Return the dtype in which a caller asks for codes; raise TypeError for any but the one that the format has.

    That is the dtype of ml_dtypes for packed integers, such as int4, and the dtype of storage for all other formats.
    """
    name_of_codes = qtype.name if qtype.packed and not qtype.element else qtype.storage.name
    expected = f"{name_of_codes}, the dtype of the codes"
    name = as_str(asked, "dtype") if issubclass(type(asked), str) else as_dtype(asked, "dtype", expected).name
    if name != name_of_codes:
        raise TypeError(f"dtype must be {expected}, not {shown(name)}")
    dtype_of_codes = qtype.storage if name_of_codes == qtype.storage.name else getattr(imports.ml_dtypes(), name, None)
    if dtype_of_codes is None:
        raise TypeError(f"ml_dtypes has no dtype for {qtype} codes; without dtype they are {qtype.storage}")
    return np.dtype(dtype_of_codes)


@imports.late
def _explain() -> Callable[..., Explanation]:
    """Import what `QuantizedArray.explain` needs."""
    from fastq.results.explanation import explain

    return explain


@imports.late
def _codes_text() -> Callable[..., str]:
    """Import what `repr` needs."""
    from fastq.results.elements import codes_text

    return codes_text


@imports.late
def _card() -> Callable[..., str]:
    """Import what notebooks need."""
    from fastq.results.card import card

    return card


def _unchanged(numbers: Any) -> Any:
    """Return parameters as they are, where they stand for the whole array and so for each of its parts."""
    return numbers


@dataclass(frozen=True, eq=False, init=False, repr=False)
class QuantizedArray:
    """Codes and the parameters that give them meaning.

    Attributes
    ----------
    codes : ndarray
        One code per element, in the memory order of the array that was quantized; formats of fewer than 8 bits are
        packed along the last axis without gaps, the first element in the low bits.
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
    >>> q[:2]
    QuantizedArray([-128,  -28],
                   shape=(2,), int8, scale=0.01, zero_point=-28, nbytes=7)
    """

    codes: NDArray[Any]
    qparams: QParams
    shape: tuple[int, ...]

    def __init__(self, codes: NDArray[Any], qparams: QParams, shape: tuple[int, ...]) -> None:
        if not isinstance(qparams, QParams):
            raise TypeError(f"qparams must be QParams, not {shown(qparams)}")
        codes_array = as_array(codes, "codes")
        sizes = as_shape(shape)
        check_stored_codes(codes_array, qparams.dtype, sizes)
        self.__dict__.update(codes=codes_array, qparams=qparams, shape=sizes)

    scale = Forwarded[NDArray[Any]]("qparams.scale", "Value of one code step.")
    zero_point = Forwarded[NDArray[Any]]("qparams.zero_point", "The code of 0.0.")
    tensor_scale = Forwarded[NDArray[np.float32] | None](
        "qparams.tensor_scale", "The number that multiplies every scale, in formats with two levels of scales."
    )
    dtype = Forwarded[QType]("qparams.dtype", "The code format.")
    axis = Forwarded[Axis]("qparams.axis", "Channel axis or axes, or the axis along which blocks run.")
    block_size = Forwarded[int]("qparams.block_size", "Number of elements in a block, 0 without blocks.")
    symmetric = Forwarded[bool](
        "qparams.symmetric", "Whether there are as many codes below the zero point as above it."
    )
    convention = Forwarded[str | Convention]("qparams.convention", "The convention whose arithmetic the codes follow.")

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
        """Bytes of codes and parameters in memory, as many as `save` writes apart from names and shapes.

        Files of `fastq quantize` and `fastq convert` have the form of compressed-tensors: they leave out zero points of
        symmetric schemes, pack others of fewer than 8 bits, and have such codes in words of 32 bits, with a shape.
        """
        return self.codes.nbytes + self.qparams.nbytes

    def unpacked(self, dtype: DTypeLike | None = None) -> NDArray[Any]:
        """Return one code per element: the codes themselves unless the format packs them.

        Parameters
        ----------
        dtype : str or dtype, optional
            The dtype of ml_dtypes with the name of the format, such as "int4"; by default the storage dtype of the
            format, int8 or uint8 for packed integers.

        Returns
        -------
        ndarray
            An array of shape `shape`.

        Raises
        ------
        TypeError
            If dtype is not a dtype of the codes.
        """
        own_dtype = None if dtype is None else _dtype_of_codes(self.dtype, dtype)
        codes = self.codes
        if self.dtype.packed:
            codes = late.unpack()(codes, self.dtype, shape=self.shape)
        return codes if own_dtype is None else codes.astype(own_dtype, copy=False)

    def dequantize(
        self, *, dtype: DTypeLike | None = None, out: NDArray[np.floating[Any]] | None = None
    ) -> NDArray[np.floating[Any]]:
        """Return the values that the codes stand for: ``(code - zero_point) * scale``.

        Parameters
        ----------
        dtype : float16, bfloat16, float32 or float64, optional
            Output dtype; by default that of the scale.
        out : ndarray, optional
            Array to write to, of shape `shape` and one of these dtypes.

        Returns
        -------
        ndarray
            An array of shape `shape`.
        """
        return late.dequantize()(self, dtype=dtype, out=out)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("a QuantizedArray can't be seen as an array without a copy")
        values = as_array(self.dequantize(), "q")
        if dtype is None:
            return values
        with np.errstate(all="ignore"):  # of the caller: values that underflow or overflow are what they become
            return values.astype(as_dtype(dtype, "dtype", "a dtype"), copy=False)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("q of shape () has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError("q is neither true nor false: use q.size, or compare q.dequantize()")

    def __iter__(self) -> Iterator[Self]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, index: object) -> Self:
        """Return a part of the array, with its codes and parameters.

        Parameters
        ----------
        index : int, slice, Ellipsis, list or ndarray, or a tuple of them
            One index per axis; one of them may be a list or array of bools or ints next to slices. Along the axis of
            blocks, a slice must begin at a block: ``q[:, 64:128]``.

        Returns
        -------
        QuantizedArray
            Codes and parameters are views for ints and slices, as in NumPy. Packed codes are views if rows of the part
            begin and end with whole bytes; otherwise they are packed again.

        Raises
        ------
        TypeError
            If the index is of another type.
        IndexError
            If the index is out of bounds.
        ValueError
            If the index cuts a block.

        Examples
        --------
        >>> import numpy as np, fastq
        >>> q = fastq.quantize(np.arange(12.0).reshape(3, 4), "uint8", axis=0)
        >>> bool((q[1].dequantize() == q.dequantize()[1]).all())
        True
        >>> q[[0, 2], ::2].shape
        (2, 2)
        """
        part = part_at(index, self._parts_with_parameters)
        codes = self._codes_of(part.picks, part.parts.shape)
        return self._rebuilt(codes, lambda numbers: numbers[(*part.parameters, ...)], part.parts)

    @property
    def _parts_with_parameters(self) -> PartedShape:
        """The elements that share parameters: the whole array, if one parameter stands for several channels."""
        return parts_of(self.scale.shape, self.shape, self.axis, self.block_size)

    def _codes_of(self, picks: tuple[Pick, ...], shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the codes of a part; they are packed again if rows don't begin and end with whole bytes."""
        if not self.dtype.packed:
            return self.codes[(*picks, ...)]
        of_bytes = packed_picks(picks, self.shape, self.dtype)
        if of_bytes is not None:
            return self.codes[(*of_bytes, ...)]
        *others, last = picks
        return late.pack()(self[(*others, ...)].unpacked()[..., last].reshape(shape), self.dtype)

    def reshape(self, *shape: int | tuple[int, ...]) -> Self:
        """Return the array in another shape in which each parameter belongs to the same elements.

        Parameters
        ----------
        *shape : int or tuple of int
            Sizes of the axes, or a tuple of them; one may be -1. Axes with their own parameters may be split, or merged
            with other such axes; an axis of blocks keeps its length, or is split and merged at whole blocks.

        Returns
        -------
        QuantizedArray
            Views if NumPy's `reshape` returns one; packed codes are views if rows have whole bytes or their old length.

        Raises
        ------
        TypeError, ValueError
            If the shape is not as described, or the codes have named dimensions, as in xarray.

        Examples
        --------
        >>> import numpy as np, fastq
        >>> q = fastq.quantize(np.arange(12.0).reshape(6, 2), "uint8", axis=0)
        >>> q.reshape(2, 3, 2).axis
        (0, 1)
        """
        if not hasattr(self.codes, "reshape"):
            raise TypeError(
                "q.codes has named dimensions, which reshape would lose: reshape an array with q.codes.data"
            )
        new = reshape_parts(as_new_shape(shape, self.size), self._parts_with_parameters)
        return self._rebuilt(self._codes_in(new.shape), lambda numbers: numbers.reshape(new.parameter_shape), new)

    def _codes_in(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the codes in another shape; they are packed again if rows end at other bits of their last bytes."""
        if not self.dtype.packed:
            return self.codes.reshape(shape)
        old = self.shape[-1:] or (1,)
        new = shape[-1:] or (1,)
        if old == new or not any(n * self.dtype.bits % 8 for n in (*old, *new)):
            return self.codes.reshape(packed_shape(shape, self.dtype))
        return late.pack()(self.unpacked().reshape(shape), self.dtype)

    def _rebuilt(self, codes: NDArray[Any], change_numbers: Callable[[Any], Any], parts: PartedShape) -> Self:
        """Return other codes with their parameters.

        `change_numbers` makes those of each array of parameters, unless one number stands for several parts: it stays.
        Where codes get another axis, their convention becomes one that decodes alike there.
        """
        p = self.qparams
        if p.scale.shape != self._parts_with_parameters.parameter_shape:
            change_numbers = _unchanged
        axis = axis_like(p.axis, parts.axes, len(parts.shape))
        if axis == p.axis:
            params = p.with_values(change_numbers(p.scale), change_numbers(p.zero_point))
        else:
            convention = convention_for(p, axis)
            numbers = {"scale": change_numbers(p.scale), "zero_point": change_numbers(p.zero_point)}
            params = replace(p, **numbers, axis=axis, convention=convention)
        return without_checks(type(self), codes, params, parts.shape)

    def astype(self, dtype: DTypeLike) -> NDArray[Any]:
        """Return the values in a float dtype; to get other codes, call `fastq.quantize`.

        Parameters
        ----------
        dtype : float16, bfloat16, float32 or float64
            Dtype of the values.

        Returns
        -------
        ndarray
            An array of shape `shape`.

        Raises
        ------
        TypeError
            If dtype is another one.
        """
        return self.dequantize(dtype=dtype)

    def copy(self) -> Self:
        """Return an array that shares no memory with this one.

        Returns
        -------
        QuantizedArray
            A copy with the same bytes of codes and parameters, in the same memory order.
        """
        p = self.qparams
        params = p.with_values(p.scale.copy(), p.zero_point.copy())
        if p.tensor_scale is not None:
            vars(params)["tensor_scale"] = p.tensor_scale.copy()
        return without_checks(type(self), self.codes.copy("K"), params, self.shape)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write codes and parameters to a .safetensors file, which appears whole or not at all; `fastq.load` reads it.

        Parameters
        ----------
        path : str or path
            File to write; an existing file is replaced. Equal arrays have equal files. The suffixes .npy, .npz and
            .gguf, which stand for other formats, are refused.

        Raises
        ------
        TypeError, ValueError, OSError
            If path is not as described or can't be written, or codes and parameters don't fit.
        """
        late.array_file().save(path, self)

    def explain(self, index: int | tuple[int, ...] | None = None) -> Explanation:
        """Return the formulas of this array's convention, and with an index the numbers of that element.

        Parameters
        ----------
        index : int or tuple of int, optional
            Index of an element, an int for each axis.

        Returns
        -------
        Explanation
            An object that is shown as text; its `value` has the bits of `dequantize` for the element.

        Raises
        ------
        TypeError, IndexError
            If the index does not select one element.
        ValueError
            If `dequantize` refuses the scale of the element.

        Examples
        --------
        >>> import numpy as np, fastq
        >>> q = fastq.quantize(np.array([-1.0, 0.0, 0.5, 1.55], np.float32), "int8")
        >>> q.explain(2)
        int8; F = float32, codes -128 to 127
        scale = (hi - lo) / (qmax - qmin) in F; up where a subnormal one is too short; if 0: 1
        zero_point = clamp(rint(qmin - lo / scale)); if the scale was 0: 0
        code = clamp(rint(x / scale) + zero_point)
        value = (code - zero_point) * scale
        element (2,): code 22, zero_point -28, scale 0.01
        value = (22 - -28) * 0.01 = 0.5
        """
        return _explain()(as_array(self.codes, "q"), self.qparams, self.shape, index)

    def __repr__(self) -> str:
        start = f"{type(self).__name__}("
        codes = _codes_text()(self.codes, self.qparams, self.shape, start)
        line = f"shape={self.shape}, {scheme_text(self.qparams)}, {parameters_text(self.qparams)}"
        whole = f"{line}, nbytes={self.nbytes})"
        return f"{start}{codes},\n{' ' * len(start)}{whole}" if codes else start + whole

    def _repr_html_(self) -> str:
        return _card()(self.codes, self.qparams, self.shape, self.nbytes)
