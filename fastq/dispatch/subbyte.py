"""Pack and unpack codes of fewer than 8 bits, and values of which one bit is kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch import validation
from fastq.dispatch.cache import BoundCall, Call
from fastq.dispatch.copies import copy_from, copy_to
from fastq.dispatch.parameters import result_of
from fastq.dispatch.planner import StridedOperands, plan_repack
from fastq.dispatch.refusal import refuse_nan
from fastq.dispatch.spec import as_bits
from fastq.dispatch.strides import memory_of, memory_of_out, with_last
from fastq.engine.runtime.driver import LaunchPlan, bind
from fastq.formats.qtypes import QTYPES, QType, as_qtype
from fastq.kernels.status import OUT_OF_RANGE
from fastq.kernels.storage import StorageFormat
from fastq.results.storage import packed_shape
from fastq.system.arguments import as_choice, as_dtype, as_int, as_shape, native, within_array

Array = NDArray[Any]


def pack(call: Call) -> BoundCall:
    """Resolve `fastq.pack`."""
    codes, (axis, dtype, bitorder) = call.x, call.options
    qtype, shape = _packed_qtype(dtype, bitorder), codes.shape or (1,)
    own = qtype.storage.name if qtype.element else qtype.name
    if (codes.dtype.kind not in "iu" or qtype.element) and codes.dtype.name != own:
        raise TypeError(f"codes must be {own if qtype.element else 'integers'} for dtype {qtype}, not {codes.dtype}")
    axis, code_format = _axis(axis, len(shape), "codes"), _storage(qtype, bitorder)
    is_small_integer = codes.dtype.kind not in "iu" and not qtype.element  # int4 and its like of ml_dtypes
    new = result_of(packed_shape(shape, qtype, axis), np.dtype(np.uint8), None).new
    like, source = as_bits(codes).reshape(shape), code_format.in_bytes if is_small_integer else None
    execute = packer(like, np.empty(packed_shape(shape, qtype, axis), np.uint8), code_format, axis, source)

    def launch(codes: Array, *_: object) -> Array:
        result = new()
        if execute(as_bits(codes), result) & OUT_OF_RANGE:
            extremes = f"{codes.min()}..{codes.max()}"
            raise ValueError(f"codes must be from {qtype.qmin} to {qtype.qmax} for {qtype}, not {extremes}")
        return result

    return launch


def unpack(call: Call) -> BoundCall:
    """Resolve `fastq.unpack`."""
    packed, (axis, dtype, bitorder) = call.x, call.options
    qtype, shape = _packed_qtype(dtype, bitorder), as_shape(call.shape)
    if packed.dtype != np.uint8:
        raise TypeError(f"packed must be uint8, not {packed.dtype}")
    axis, code_format = _axis(axis, max(len(shape), 1), "the codes"), _storage(qtype, bitorder)
    wanted = packed_shape(shape, qtype, axis)
    if packed.shape != wanted:
        raise ValueError(
            f"packed has shape {packed.shape}, but {qtype} codes of shape {shape} pack to {wanted} along axis {axis}"
        )

    whole: tuple[int, ...] = shape or (1,)
    new = result_of(shape, qtype.storage, None).new
    execute = unpacker(packed, np.empty(whole, code_format.unpacked_dtype), code_format, axis)

    def launch(packed: Array, *_: object) -> Array:
        codes = new()
        execute(packed, codes)
        return codes

    return launch


def binarize(call: Call) -> BoundCall:
    """Resolve `fastq.binarize`."""
    x, out, (axis, dtype, bitorder, nan) = call.x, call.out, call.options
    validation.as_input(x)
    validation.check_nan(nan)
    shape, bit = x.shape or (1,), QTYPES["uint1"]
    axis, code_format = _axis(axis, len(shape), "x"), _storage(bit, as_choice(bitorder, "bitorder", ("little", "big")))
    stored = _dtype_of_bytes(dtype)
    new = result_of(packed_shape(shape, bit, axis), stored, out).new
    like = np.empty(packed_shape(shape, bit, axis), stored) if out is None else out
    execute, offset = packer(x.reshape(shape), like, code_format, axis, op="binarize", nan=nan), stored == np.int8

    def launch(x: Array, out: Any, *_: object) -> Array:
        result: Array = new() if out is None else out
        target = np.asarray(result)  # the driver takes no subclass, as of mapped files
        (source,) = validation.copy_if_overlapping(target, x)
        run = execute
        if source is not x:
            run = packer(source.reshape(shape), target, code_format, axis, op="binarize", nan=nan)
        refuse_nan(run(source, target), nan, source)
        if offset:
            np.bitwise_xor(target, np.int8(-128), out=target)
        return result

    return launch


def _dtype_of_bytes(dtype: object) -> np.dtype[Any]:
    wanted = "uint8 or int8"
    stored = as_dtype(dtype, "dtype", wanted)
    if stored not in (np.uint8, np.int8):
        raise TypeError(f"dtype must be {wanted}, not {stored}")
    return stored


def _packed_qtype(dtype: object, bitorder: str) -> QType:
    qtype = as_qtype(dtype)
    if not qtype.packed:
        raise TypeError(f"dtype must be a format of fewer than 8 bits, not {qtype}")
    if as_choice(bitorder, "bitorder", ("little", "big")) == "big" and qtype.bits > 1:
        raise ValueError(f"bitorder='big' is defined for formats of one bit, not for {qtype}")
    return qtype


def _axis(axis: int, ndim: int, array: str) -> int:
    return within_array((as_int(axis, "axis"),), ndim, array)[0]


def _storage(qtype: QType, bitorder: str) -> StorageFormat:
    return StorageFormat(qtype.bits, qtype.signed and not qtype.element, highest_first=bitorder == "big")


# --- along an axis ----------------------------------------------------------------------------------------------------


def packer(
    codes: Array,
    packed: Array | None,
    code_format: StorageFormat,
    axis: int = -1,
    source: StorageFormat | None = None,
    op: str = "repack",
    nan: str = "raise",
) -> Callable[[Array, Array], int]:
    """Return what packs codes, or values of which one bit is kept, along an axis, and returns the status.

    It takes arrays of the same dtype, shape and strides as these; without `packed` one in C order. Codes lie in memory
    as `source` says, None: as their dtype does.
    """
    if not codes.size:
        return lambda codes, packed: 0
    order, kind = with_last(axis, codes.ndim), source or native(codes.dtype)
    rows, where = codes.transpose(order), None if packed is None else packed.transpose(order)

    def plan(part: Array) -> LaunchPlan | None:
        return plan_repack(part.shape, code_format, kind, code_format, StridedOperands(x=memory_of(part)), op, nan)

    launch, by_rows = _launcher(rows, plan)
    spread = None if where is None else copy_to(where)
    if spread is None and not by_rows:
        return launch

    def pack_rows(codes: Array, packed: Array) -> int:
        rows, where = codes.transpose(order) if by_rows else codes, packed.transpose(order)
        if spread is None:
            return launch(rows, where)
        result = np.empty(where.shape, np.uint8)
        status = launch(rows, result)
        spread(result, where)
        return status

    return pack_rows


def unpacker(
    packed: Array, codes: Array, code_format: StorageFormat, axis: int = -1
) -> Callable[[Array, Array], object]:
    """Return what writes packed codes along an axis one in a byte, for arrays of the same dtype, shape and strides."""
    if not codes.size:
        return lambda packed, codes: None
    order, target = with_last(axis, codes.ndim), native(codes.dtype)
    where, rows = packed.transpose(order), codes.transpose(order)

    def plan(part: Array) -> LaunchPlan | None:
        return plan_repack(part.shape, code_format, code_format, target, StridedOperands(out=memory_of_out(part)))

    launch, by_rows = _launcher(rows, plan)
    gather = copy_from(where)
    if gather is None and not by_rows:
        return launch

    def unpack_rows(packed: Array, codes: Array) -> None:
        where = packed.transpose(order)
        launch(where if gather is None else gather(where), codes.transpose(order) if by_rows else codes)

    return unpack_rows


def _launcher(rows: Array, plan: Callable[[Array], LaunchPlan | None]) -> tuple[Callable[[Array, Array], int], bool]:
    """Return what takes operands like these rows and returns the status, and whether it takes them row by row.

    So it does where rows are too long for a plan of all.
    """
    whole = plan(rows)
    if whole is not None:
        return bind(whole), False
    of_row = plan(rows[(0,) * (rows.ndim - 1)])
    assert of_row is not None  # one row alone ends where the array does
    launch, indices = bind(of_row), list(np.ndindex(rows.shape[:-1]))

    def launch_rows(x: Array, y: Array) -> int:
        status = 0
        for index in indices:
            status |= launch(x[index], y[index])
        return status

    return launch_rows, True
