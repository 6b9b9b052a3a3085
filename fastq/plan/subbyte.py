"""Resolve `fastq.pack`, `fastq.unpack` and `fastq.binarize`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime.driver import never_fits
from fastq.kernels.status import OUT_OF_RANGE
from fastq.kernels.storage import StorageFormat
from fastq.plan.arrange import result_of
from fastq.plan.cache import BoundCall, Call
from fastq.plan.copies import packer, unpacker
from fastq.plan.launch import BoundLaunch, as_bits
from fastq.plan.refusal import refuse_nan
from fastq.requests import packing

Array = NDArray[Any]


def pack(call: Call, codes: Array) -> BoundCall:
    """Resolve `fastq.pack`."""
    asked = packing.pack(codes.dtype, codes.shape, call.options)
    qtype, code_format = asked.qtype, _storage(asked)
    is_small_integer = codes.dtype.kind not in "iu" and not qtype.element  # int4 and its like of ml_dtypes
    new = result_of(asked.packed, asked.dtype, None).new
    like, source = as_bits(codes).reshape(asked.shape), code_format.in_bytes if is_small_integer else None
    execute = packer(like, np.empty(asked.packed, asked.dtype), code_format, asked.axis, source)

    def launch(codes: Array, *_: object) -> Array:
        result = new()
        if execute(as_bits(codes), result) & OUT_OF_RANGE:
            packing.check_codes(codes.min(), codes.max(), qtype)
        return result

    return launch


def unpack(call: Call, packed: Array) -> BoundCall:
    """Resolve `fastq.unpack`."""
    asked = packing.unpack(packed.dtype, packed.shape, call.shape, call.options)
    shape, code_format = asked.shape, _storage(asked)
    new = result_of(shape, asked.qtype.storage, None).new
    execute = unpacker(packed, np.empty(shape or (1,), code_format.unpacked_dtype), code_format, asked.axis)

    def launch(packed: Array, *_: object) -> Array:
        codes = new()
        execute(packed, codes)
        return codes

    return launch


def binarize(call: Call, x: Array, out: Any) -> BoundCall:
    """Resolve `fastq.binarize`."""
    asked, nan = packing.binarize(x.dtype, x.shape, call.options), call.options.nan
    new = result_of(asked.packed, asked.dtype, out).new
    like = np.empty(asked.packed, asked.dtype) if out is None else out
    signed, code_format = asked.dtype == np.int8, _storage(asked)

    def execute_for(x: Array, out: Array) -> Callable[[Array, Array], int]:
        return packer(x.reshape(asked.shape), out, code_format, asked.axis, op="binarize", nan=nan)

    refuse, execute = functools.partial(refuse_nan, nan=nan), execute_for(x, like)
    run: Callable[..., int] = execute if out is None else never_fits  # packers do not look for shared memory
    settle = BoundLaunch(refuse, execute, execute_for=execute_for, strides=x.strides).settle

    def launch(x: Array, out: Any, *_: object) -> Array:
        result: Array = new() if out is None else out
        status = run(x, result)
        if status:
            settle(status, x, result)
        if signed:
            target = np.asarray(result)
            np.bitwise_xor(target, np.int8(-128), out=target)
        return result

    return launch


def _storage(asked: packing.Packing) -> StorageFormat:
    qtype = asked.qtype
    return StorageFormat(qtype.bits, qtype.signed and not qtype.element, highest_first=asked.bitorder == "big")
