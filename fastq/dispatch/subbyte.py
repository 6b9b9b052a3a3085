"""Pack and unpack codes of fewer than 8 bits, and values of which one bit is kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch import validation
from fastq.dispatch.cache import Plan
from fastq.dispatch.parameters import result_of
from fastq.dispatch.planner import InMemory, plan_repack
from fastq.dispatch.refusal import refuse_nan
from fastq.dispatch.spec import as_bits
from fastq.dispatch.strides import is_plain, memory_of
from fastq.formats.qtypes import QTYPES, QType, as_qtype
from fastq.kernels.status import OUT_OF_RANGE
from fastq.kernels.storage import StorageFormat
from fastq.results.storage import packed_shape
from fastq.runtime.driver import LaunchPlan, bind, run
from fastq.system.arguments import as_choice, as_dtype, as_int, as_shape, native, within_array

Array = NDArray[Any]


def pack(
    codes: Array, _out: None, _scale: None, _zero: None, _tensor: None, axis: int, dtype: Any, bitorder: str, *_: None
) -> Plan:
    """Resolve `fastq.pack`."""
    qtype, shape = _packed_qtype(dtype, bitorder), codes.shape or (1,)
    own = qtype.storage.name if qtype.element else qtype.name
    if (codes.dtype.kind not in "iu" or qtype.element) and codes.dtype.name != own:
        raise TypeError(f"codes must be {own if qtype.element else 'integers'} for dtype {qtype}, not {codes.dtype}")
    axis, code = _axis(axis, len(shape), "codes"), _storage(qtype, bitorder)
    is_small_integer = codes.dtype.kind not in "iu" and not qtype.element  # int4 and its like of ml_dtypes
    new = result_of(packed_shape(shape, qtype, axis), np.dtype(np.uint8), None).new
    execute: Callable[..., int] = functools.partial(_pack_along, shape, axis, code)
    if is_plain(codes) and axis == len(shape) - 1 and codes.size:
        source = qtype.storage if is_small_integer else as_bits(codes).dtype
        execute = bind(_planned(plan_repack(shape, code, source, code)))

    def launch(codes: Array, *_: object) -> Array:
        if is_small_integer:
            codes = codes.astype(qtype.storage)
        result = new()
        if execute(codes, result) & OUT_OF_RANGE:
            extremes = f"{codes.min()}..{codes.max()}"
            raise ValueError(f"codes must be from {qtype.qmin} to {qtype.qmax} for {qtype}, not {extremes}")
        return result

    return launch


def unpack(
    packed: Array,
    _out: None,
    _scale: None,
    _zero: None,
    _tensor: None,
    axis: int,
    dtype: Any,
    bitorder: str,
    shape: Any,
) -> Plan:
    """Resolve `fastq.unpack`."""
    qtype, shape = _packed_qtype(dtype, bitorder), as_shape(shape)
    if packed.dtype != np.uint8:
        raise TypeError(f"packed must be uint8, not {packed.dtype}")
    axis, code = _axis(axis, max(len(shape), 1), "the codes"), _storage(qtype, bitorder)
    wanted = packed_shape(shape, qtype, axis)
    if packed.shape != wanted:
        raise ValueError(
            f"packed has shape {packed.shape}, but {qtype} codes of shape {shape} pack to {wanted} along axis {axis}"
        )

    whole: tuple[int, ...] = shape or (1,)
    new = result_of(shape, qtype.storage, None).new
    execute: Callable[..., Any] = functools.partial(_unpack_along, whole, axis, code)
    if is_plain(packed) and axis == len(whole) - 1 and 0 not in whole:
        execute = bind(_planned(plan_repack(whole, code, code, code.unpacked_dtype)))

    def launch(packed: Array, *_: object) -> Array:
        codes = new()
        execute(packed, codes)
        return codes

    return launch


def binarize(
    x: Array,
    out: Any,
    _scale: None,
    _zero: None,
    _tensor: None,
    axis: int,
    dtype: Any,
    bitorder: str,
    nan: str,
    *_: None,
) -> Plan:
    """Resolve `fastq.binarize`."""
    validation.as_input(x)
    validation.check_nan(nan)
    shape, bit = x.shape or (1,), QTYPES["uint1"]
    axis, code = _axis(axis, len(shape), "x"), _storage(bit, as_choice(bitorder, "bitorder", ("little", "big")))
    stored = _dtype_of_bytes(dtype)
    new = result_of(packed_shape(shape, bit, axis), stored, out).new
    execute: Callable[..., int] = functools.partial(_binarize_along, shape, axis, code, nan)
    if is_plain(x) and is_plain(out) and axis == len(shape) - 1 and x.size:
        execute = bind(_planned(plan_repack(shape, code, x.dtype, code, op="binarize", nan=nan)))

    def launch(x: Array, out: Any, *_: object) -> Array:
        result: Array = new() if out is None else out
        target = np.asarray(result)  # the driver takes no subclass, as of mapped files
        (source,) = validation.copy_if_overlapping(target, x)
        refuse_nan(execute(source, target), nan, source)
        if stored == np.int8:
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


def _pack_along(shape: tuple[int, ...], axis: int, code: StorageFormat, codes: Array, packed: Array) -> int:
    return pack_codes(np.moveaxis(as_bits(codes).reshape(shape), axis, -1), np.moveaxis(packed, axis, -1), code)


def _binarize_along(shape: tuple[int, ...], axis: int, code: StorageFormat, nan: str, x: Array, packed: Array) -> int:
    rows, packed = np.moveaxis(x.reshape(shape), axis, -1), np.moveaxis(packed, axis, -1)
    return pack_codes(rows, packed.view(np.uint8), code, op="binarize", nan=nan)


def _unpack_along(shape: tuple[int, ...], axis: int, code: StorageFormat, packed: Array, codes: Array) -> None:
    codes = codes.reshape(shape).view(code.unpacked_dtype)
    unpack_codes(np.moveaxis(packed, axis, -1), np.moveaxis(codes, axis, -1), code)


# --- along the last axis ----------------------------------------------------------------------------------------------


def pack_codes(codes: Array, packed: Array, code: StorageFormat, op: str = "repack", nan: str = "raise") -> int:
    """Pack codes, or values of which one bit is kept, along their last axis; return the status."""
    if not codes.size:
        return 0
    result = packed if is_plain(packed) else np.empty(packed.shape, np.uint8)
    source = native(codes.dtype)
    plan = plan_repack(codes.shape, code, source, code, InMemory(x=memory_of(codes)), op, nan)
    if plan is None:
        codes = np.ascontiguousarray(codes, source)
        plan = plan_repack(codes.shape, code, source, code, op=op, nan=nan)
    status = run(_planned(plan), codes, result)
    if result is not packed:
        packed[...] = result
    return status


def unpack_codes(packed: Array, codes: Array, code: StorageFormat) -> None:
    """Write codes packed along the last axis one in a byte."""
    if not codes.size:
        return
    packed, result, target = np.ascontiguousarray(packed), codes, native(codes.dtype)
    plan = plan_repack(codes.shape, code, code, target, InMemory(out=memory_of(codes)))
    if plan is None:
        result = np.empty(codes.shape, target)
        plan = plan_repack(codes.shape, code, code, target)
    run(_planned(plan), packed, result)
    if result is not codes:
        codes[...] = result


def packed_index(index: tuple[Any, ...], shape: tuple[int, ...], code: StorageFormat) -> tuple[Any, ...]:
    """Return where the bytes of a tile are: tiles that part the last axis do so at whole bytes."""
    if len(index) < len(shape) or not shape:
        return index
    *others, last = index
    return (*others, slice(last.start * code.bits // 8, -(-last.stop * code.bits // 8)))


def _planned(plan: LaunchPlan | None) -> LaunchPlan:
    assert plan is not None  # for memory without gaps there always is one
    return plan
