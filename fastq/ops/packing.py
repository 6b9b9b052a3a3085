"""Pack and unpack codes of fewer than 8 bits: dense, first element in the low bits, as ONNX packs them; binarize."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from fastq.engine.runtime.driver import refuse_all_operands
from fastq.formats.qtypes import QType
from fastq.kernels.status import OUT_OF_RANGE
from fastq.kernels.storage import StorageFormat
from fastq.plan.by_parameters import as_bits
from fastq.plan.cache import BoundCall, Call, Operation, run_operation
from fastq.plan.copies import packer, unpacker
from fastq.plan.launch import BoundLaunch
from fastq.plan.nan_and_infinity import refuse_nan
from fastq.plan.result import result_of
from fastq.requests import packing
from fastq.requests.packing import BinarizeOptions, PackOptions
from fastq.system.arguments import as_shape
from fastq.system.dtypes import Array


def pack(
    codes: ArrayLike, dtype: str | QType | DTypeLike, *, axis: int = -1, bitorder: str = "little"
) -> NDArray[np.uint8]:
    """Pack codes along an axis without gaps; the last byte of each row is padded with zeros.

    Code k of a row starts at bit ``k * bits`` of the row's bytes, counted from the lowest bit of the first byte. ONNX
    does the same for 4 and 2 bits, compressed-tensors for any width, and `numpy.packbits` with the same bit order for
    1.

    Parameters
    ----------
    codes : array_like of integers
        Codes of the format, one per element; for float formats of fewer than 8 bits arrays of ml_dtypes.
    dtype : str, QType or dtype
        A format of fewer than 8 bits: "int4", "uint4", "int2", "float4_e2m1fn", ...
    axis : int
        The axis along which neighbours share a byte.
    bitorder : {"little", "big"}
        For formats of one bit, whether the first of eight is in the lowest or the highest bit.

    Returns
    -------
    ndarray of uint8
        ``ceil(D * bits / 8)`` bytes along the axis; shape (1,) for an array of rank 0.

    Raises
    ------
    TypeError
        If the codes are not integers, or dtype is not a packed format.
    ValueError
        If a code is out of the format's range.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.pack(np.array([1, -1, 7], np.int8), "int4")
    array([241,   7], dtype=uint8)
    """
    result: NDArray[np.uint8] = run_operation(PACK, codes, options=(axis, dtype, bitorder), types=(type(axis),))
    return result


def unpack(
    packed: ArrayLike,
    dtype: str | QType | DTypeLike,
    *,
    shape: tuple[int, ...],
    axis: int = -1,
    bitorder: str = "little",
) -> NDArray[Any]:
    """Return packed codes with one code per element: the inverse of `pack`.

    Parameters
    ----------
    packed : array_like of uint8
        Bytes as `pack` returns them.
    dtype : str, QType or dtype
        As in `pack`.
    shape : tuple of int
        Shape of the codes.
    axis, bitorder
        As in `pack`.

    Returns
    -------
    ndarray of int8 or uint8
        Shape `shape`; for float formats an array of ml_dtypes.

    Raises
    ------
    TypeError
        If `packed` is not of dtype uint8, or dtype is not a packed format.
    ValueError
        If `packed` does not have the shape that codes of `shape` pack to.

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.unpack(np.array([241, 7], np.uint8), "int4", shape=(3,))
    array([ 1, -1,  7], dtype=int8)
    """
    if type(shape) is not tuple:
        shape = as_shape(shape)
    types = (type(axis), *map(type, shape))  # True == 1 == 1.0
    result: NDArray[Any] = run_operation(UNPACK, packed, options=(axis, dtype, bitorder), types=types, shape=shape)
    return result


def binarize(
    x: ArrayLike,
    *,
    axis: int = -1,
    threshold: float = 0.0,
    inclusive: bool = False,
    dtype: str | DTypeLike = "uint8",
    bitorder: str = "big",
    nan: str = "raise",
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Keep one bit of each element, whether it is positive, and pack eight bits into a byte.

    This is ``np.packbits(x > threshold, axis, bitorder)`` in one pass. The defaults give the "ubinary" bytes of
    sentence-transformers, ``dtype="int8"`` its "binary" bytes. Bits of the same vectors in another order, or of a
    comparison that includes the threshold, are other bytes: docs/howto/embeddings.md says which systems have which.
    Each row begins on a whole byte.

    Parameters
    ----------
    x : array_like
        Array of dtype float16, bfloat16, float32, float64 or an integer dtype, of any shape and memory layout.
    axis : int
        The axis along which neighbours share a byte.
    threshold : float
        The number above which elements have the bit 1. For arrays of integers it must be one of the numbers from the
        smallest to the largest integer of their dtype. To compare each column with a number of its own, subtract
        these: ``x - center > 0`` where and only where ``x > center``.
    inclusive : bool
        Whether elements that are equal to the threshold have the bit 1, too: ``x >= threshold``.
    dtype : {"uint8", "int8"} or dtype
        Dtype of the bytes; int8 bytes are smaller by 128.
    bitorder : {"big", "little"}
        Whether the first of eight elements is in the highest or the lowest bit.
    nan : {"raise", "zero"}
        What to do with NaN: "raise" refuses it, "zero" treats it as 0.0.
    out : ndarray, optional
        Array to write to, with the shape and dtype of the bytes.

    Returns
    -------
    ndarray
        ``ceil(D / 8)`` bytes along the axis, the last one padded with zero bits; shape (1,) for an array of rank 0.

    Raises
    ------
    TypeError, ValueError, AxisError
        If an argument is not as described, or x has NaN (unless ``nan="zero"``).

    Examples
    --------
    >>> import numpy as np, fastq
    >>> fastq.binarize(np.array([[0.5, -1.0, 2.0], [0.0, 0.0, 1e-9]], np.float32))
    array([[160],
           [ 32]], dtype=uint8)
    >>> fastq.binarize(np.array([0.5, -1.0, 0.0], np.float32), inclusive=True, bitorder="little")  # IndexLSH of faiss
    array([5], dtype=uint8)
    """
    options = (axis, threshold, inclusive, dtype, bitorder, nan)
    types = (type(axis), type(threshold), type(inclusive))
    result: NDArray[Any] = run_operation(BINARIZE, x, out, options=options, types=types)
    return result


# --- plan ---


def _resolve_pack(arguments: Call, codes: Array) -> BoundCall:
    """Resolve `fastq.pack`."""
    request = packing.pack_request(codes.dtype, codes.shape, arguments.options)
    qtype = request.qtype
    code_format = _storage(request)
    new = result_of(request.packed, request.dtype, None).new
    codes_alike = as_bits(codes).reshape(request.shape)
    packed_alike = np.empty(request.packed, request.dtype)
    is_of_ml_dtypes = codes.dtype.kind not in "iu" and not qtype.element  # int4 and its like: low bits of a byte each
    source = code_format.in_bytes if is_of_ml_dtypes else None
    execute = packer(codes_alike, packed_alike, code_format, request.axis, source)

    def launch(codes: Array, *_: object) -> Array:
        result = new()
        if execute(as_bits(codes), result) & OUT_OF_RANGE:
            packing.check_codes(codes.min(), codes.max(), qtype)
        return result

    return launch


PACK = Operation(
    name="PACK",
    function="pack",
    resolve=_resolve_pack,
    options=PackOptions,
    operands=("codes",),
)


def _resolve_unpack(arguments: Call, packed: Array) -> BoundCall:
    """Resolve `fastq.unpack`."""
    request = packing.unpack_request(packed.dtype, packed.shape, arguments.shape, arguments.options)
    shape = request.shape
    code_format = _storage(request)
    new = result_of(shape, request.qtype.storage, None).new
    execute = unpacker(packed, np.empty(shape or (1,), code_format.unpacked_dtype), code_format, request.axis)

    def launch(packed: Array, *_: object) -> Array:
        codes = new()
        execute(packed, codes)
        return codes

    return launch


UNPACK = Operation(
    name="UNPACK",
    function="unpack",
    resolve=_resolve_unpack,
    options=PackOptions,
    operands=("packed",),
)


def _resolve_binarize(arguments: Call, x: Array, out: Any) -> BoundCall:
    """Resolve `fastq.binarize`."""
    request = packing.binarize_request(x.dtype, x.shape, arguments.options)
    nan = arguments.options.nan
    new = result_of(request.packed, request.dtype, out).new
    like = np.empty(request.packed, request.dtype) if out is None else out
    is_smaller_by_128 = request.dtype == np.int8
    code_format = _storage(request)
    op = "from" if request.inclusive else "above" if request.threshold else "binarize"

    def execute_for(x: Array, out: Array) -> Callable[[Array, Array], int]:
        values = x.reshape(request.shape)
        return packer(values, out, code_format, request.axis, op=op, nan=nan, threshold=request.threshold)

    refuse = functools.partial(refuse_nan, nan=nan)
    execute = execute_for(x, like)
    run: Callable[..., int] = execute if out is None else refuse_all_operands  # packers do not look for shared memory
    settle = BoundLaunch(refuse, execute, execute_for=execute_for, strides=x.strides).settle

    def launch(x: Array, out: Any, *_: object) -> Array:
        result: Array = new() if out is None else out
        status = run(x, result)
        if status:
            settle(status, x, result)
        if is_smaller_by_128:
            # The bytes are written as uint8 ones. To take 128 from a byte of 0..255, and read it as int8, is to flip
            # its top bit: 0x80 is 128, then 0x00 is 0. A subclass of ndarray that is `out` may have a ufunc of its own,
            # so the bits are flipped in its memory.
            target = np.asarray(result)
            np.bitwise_xor(target, np.int8(-128), out=target)
        return result

    return launch


BINARIZE = Operation(
    name="BINARIZE",
    function="binarize",
    resolve=_resolve_binarize,
    options=BinarizeOptions,
    operands=("x", "out"),
)


def _storage(request: packing.PackRequest) -> StorageFormat:
    """Return how packed codes lie in memory; those of float formats are moved as the bits that they are."""
    qtype = request.qtype
    return StorageFormat(qtype.bits, qtype.signed and not qtype.element, highest_first=request.bitorder == "big")
