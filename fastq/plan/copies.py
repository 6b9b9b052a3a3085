"""Copy arrays between contiguous and other memory, tile by tile on all threads; pack and unpack codes of few bits.

An x that shares memory with the output is copied by `_copy_if_overlapping` of launch.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.engine.runtime import result_pool
from fastq.engine.runtime.driver import UNFIT, LaunchPlan, bind, plan_launch
from fastq.engine.runtime.tiling import Demands
from fastq.formats.floats import FLOAT_FORMATS
from fastq.kernels.pointers import CopyOperands
from fastq.kernels.storage import ElementType, StorageFormat, bits_of
from fastq.plan import policy
from fastq.plan.arrange import NOT_STRIDED, StridedOperands, memory_of, with_last
from fastq.plan.kernel_call import kernel_args, load_or_compile_kernel, tile_if_fits
from fastq.plan.layout import Layout
from fastq.plan.policy import store_mode
from fastq.plan.slots import COPY
from fastq.system.arguments import native

Array = NDArray[Any]

# chunks of copied codes are multiples of this many elements: whole cache lines in any format
REPACKED = 1 << 14


def copy_from(x: Array) -> Callable[[Array], Array] | None:
    """Return what copies arrays like this one to contiguous memory; None where kernels can work on them as they are."""
    memory = memory_of(x)
    shape = x.shape
    dtype = native(x.dtype)
    if memory is None:
        return None
    copy = _copy(plan_copy(shape, dtype, StridedOperands(x=memory)))

    def gather(x: Array) -> Array:
        result = result_pool.empty(shape, dtype)
        copy(x, result)
        return result

    return gather


def copy_to(target: Array) -> Callable[[Array, Array], int] | None:
    """Return what copies contiguous memory to arrays like this one; None where kernels can work on them as they are."""
    memory = memory_of(target, writes=True)
    if memory is None:
        return None
    return _copy(plan_copy(target.shape, native(target.dtype), StridedOperands(out=memory)))


def with_copy_to(execute: Callable[..., int], target: Array | None) -> Callable[..., int]:
    """Return a function that executes with a contiguous result and, if needed, copies that to arrays like a target."""
    spread = None if target is None else copy_to(target)
    if spread is None:
        return execute

    def execute_and_spread(x: Array, out: Array, *others: Any) -> int:
        result = result_pool.empty(out.shape, out.dtype)
        status = execute(x, result, *others)
        spread(result, out)
        return status

    return execute_and_spread


def _copy(plan: LaunchPlan) -> Callable[[Array, Array], int]:
    """Return what launches a plan again and again, on arrays that fit it."""
    launch = bind(plan)

    def copy(source: Array, target: Array) -> int:
        status = launch(source, target)
        assert status != UNFIT
        return status

    return copy


def plan_repack(
    shape: tuple[int, ...],
    code_format: StorageFormat,
    src: ElementType,
    dst: ElementType,
    memory: StridedOperands = NOT_STRIDED,
    op: str = "repack",
    nan: str = "raise",
    threshold: float = 0.0,
) -> LaunchPlan | None:
    """Plan to repack codes or to binarize; None for strided rows that end within a byte, too long for a buffer.

    To binarize, `op` is "binarize", whose threshold is 0, or "above" or "from", which compare with one.
    """
    size = math.prod(shape)
    length = shape[-1] if shape else 1
    operands = CopyOperands(_as_integers(src) if op == "repack" else src, _as_integers(dst))
    threads = policy.threads_for(size)
    writes_codes = op == "repack" and isinstance(dst, StorageFormat)
    no_row_parts_a_byte = length % code_format.group == 0 or size == length  # after a single row nothing follows
    args = kernel_args(
        Layout(outer=1, length=length, inner=1, block=length, blocks=1, cycle=1, kept_outer=1, parameter_shape=()),
        threshold=threshold,
        streaming=store_mode(size, src, dst, codes=writes_codes) if memory == NOT_STRIDED else 0,
    )
    if no_row_parts_a_byte:
        kernel = load_or_compile_kernel("body.repack.repack_elements", operands, op, nan=nan)
        plan = plan_launch(kernel, COPY, args, size, threads, chunk_multiple=REPACKED)
        return tile_if_fits(plan, shape, memory, operands)
    kernel = load_or_compile_kernel("body.repack.repack", operands, op, nan=nan)
    plan = plan_launch(kernel, COPY, args, size // length, threads, size=length)
    # rows are whole bytes: one of 5 codes of 3 bits takes 16 bits
    bits_x, bits_y = (-(-length * bits_of(element) // 8) * 8 for element in operands)
    demands = Demands(unit=length, whole=length, unit_bits=(bits_x, bits_y))
    return tile_if_fits(plan, shape, memory, operands, demands=demands)


def plan_copy(shape: tuple[int, ...], dtype: np.dtype[Any], memory: StridedOperands) -> LaunchPlan:
    """Plan to copy elements in C order between contiguous and other memory."""
    bits = np.dtype(f"u{dtype.itemsize}")
    plan = plan_repack(shape, StorageFormat(8, signed=False), bits, bits, memory)
    assert plan is not None  # elements are whole bytes
    return plan


def _as_integers(element: ElementType) -> ElementType:
    """Return a type that copies of an element need not decode: for floats of a byte or less integers of their bits."""
    if isinstance(element, StorageFormat):
        return StorageFormat(element.bits, signed=False) if element.element else element
    return np.dtype(np.uint8) if element.name in FLOAT_FORMATS else element


# --- codes of few bits, along an axis ---------------------------------------------------------------------------------


def packer(
    codes: Array,
    packed: Array | None,
    code_format: StorageFormat,
    axis: int = -1,
    source: StorageFormat | None = None,
    op: str = "repack",
    nan: str = "raise",
    threshold: float = 0.0,
) -> Callable[[Array, Array], int]:
    """Return what packs codes, or values of which one bit is kept, along an axis, and returns the status.

    It takes arrays of the same dtype, shape and strides as these; without `packed` one in C order. Codes lie in memory
    as `source` says, None: as their dtype does.
    """
    if not codes.size:
        return lambda codes, packed: 0
    order = with_last(axis, codes.ndim)
    source_type = source or native(codes.dtype)
    rows = codes.transpose(order)
    packed_rows = None if packed is None else packed.transpose(order)

    def plan(piece: Array) -> LaunchPlan | None:
        memory = StridedOperands(x=memory_of(piece))
        return plan_repack(piece.shape, code_format, source_type, code_format, memory, op, nan, threshold)

    launch, by_rows = _bind_rows(rows, plan)
    execute = with_copy_to(launch, packed_rows)
    if execute is launch and not by_rows:
        return launch
    return lambda codes, packed: execute(codes.transpose(order) if by_rows else codes, packed.transpose(order))


def unpacker(
    packed: Array, codes: Array, code_format: StorageFormat, axis: int = -1
) -> Callable[[Array, Array], object]:
    """Return what writes packed codes along an axis one in a byte, for arrays of the same dtype, shape and strides."""
    if not codes.size:
        return lambda packed, codes: None
    order = with_last(axis, codes.ndim)
    target = native(codes.dtype)
    packed_rows = packed.transpose(order)
    rows = codes.transpose(order)

    def plan(piece: Array) -> LaunchPlan | None:
        memory = StridedOperands(out=memory_of(piece, writes=True))
        return plan_repack(piece.shape, code_format, code_format, target, memory)

    launch, by_rows = _bind_rows(rows, plan)
    gather = copy_from(packed_rows)
    if gather is None and not by_rows:
        return launch

    def unpack_rows(packed: Array, codes: Array) -> None:
        packed_rows = packed.transpose(order)
        launch(packed_rows if gather is None else gather(packed_rows), codes.transpose(order) if by_rows else codes)

    return unpack_rows


def _bind_rows(rows: Array, plan: Callable[[Array], LaunchPlan | None]) -> tuple[Callable[[Array, Array], int], bool]:
    """Return a function that launches on operands like these rows, and whether it takes them one by one.

    If it does, which is where a plan can't have all of them, it indexes its operands, which then need the axes of rows.
    Else they may have their axes in any order: the plan knows the strides, and only reads the address of an operand.
    """
    whole = plan(rows)
    if whole is not None:
        return bind(whole), False
    of_row = plan(rows[(0,) * (rows.ndim - 1)])
    assert of_row is not None  # one row alone ends where the array does
    launch = bind(of_row)
    indices = list(np.ndindex(rows.shape[:-1]))

    def launch_rows(x: Array, y: Array) -> int:
        status = 0
        for index in indices:
            status |= launch(x[index], y[index])
        return status

    return launch_rows, True
