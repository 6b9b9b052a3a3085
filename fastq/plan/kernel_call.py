"""Kernels as plans call them: their addresses, their arguments, and the tiles that memory goes through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.engine.code import shipped_or_compiled
from fastq.engine.runtime import threadpool
from fastq.engine.runtime.driver import LaunchPlan
from fastq.engine.runtime.tiling import NO_DEMANDS, Demands, Elements, Operand, in_tiles
from fastq.kernels.args import ARG_NAMES, IN_SQUARES, IN_TILE, KERNEL_ARGS
from fastq.kernels.pointers import ElementOperands, NoisyOperands
from fastq.kernels.storage import ElementType, bits_of
from fastq.plan.arrange import View
from fastq.plan.cache import plans
from fastq.plan.layout import Layout
from fastq.plan.memory import StridedOperands
from fastq.plan.spec import PLAIN, Arithmetic, CodeRange, OpSpec

Array = NDArray[Any]

# elements over which errors are added up before sums are added, so that the order does not depend on threads; results
# depend on this number, so it is not a tuning constant
ERRORS_CHUNK = 1 << 16

_NO_NUMBERS = (0,) * len(ARG_NAMES)

threadpool.when_changed(plans.clear)


# --- kernels ----------------------------------------------------------------------------------------------------------


# These are functions of fastq/kernels/build.py: `_kernel` is its `kernel_address`. They are named, not imported: where
# machine code came with the package or is on disk, nothing of Numba is imported.
_kernel = shipped_or_compiled("fastq.kernels.build", "kernel_address")
pack_address = shipped_or_compiled("fastq.kernels.build", "pack_address")
unpack_address = shipped_or_compiled("fastq.kernels.build", "unpack_address")
requantize_address = shipped_or_compiled("fastq.kernels.build", "requantize_address")
block_address = shipped_or_compiled("fastq.kernels.build", "block_address")


def kernel_address(
    loop: str,
    operands: Any,
    op: str,
    arithmetic: Arithmetic = PLAIN,
    *,
    nan: str = "raise",
    range_scheme: str = "",
    block: int = 0,
    together: bool = True,
    norm: float = 2.0,
    lanes_each: int = 1,
) -> int:
    """Return the address of a loop, by its name below `fastq.kernels`, for operands and what `KernelSpec` says.

    Operands say what the pointers point to, in the named tuple that the loop gets.
    """
    return _kernel(loop, operands, op, *arithmetic, nan, range_scheme, block, together, norm, lanes_each)


def kernel_args(layout: Layout, code_range: CodeRange = (0, 0), **numbers: float) -> Array:
    """Return the numeric arguments of a kernel, other `numbers` by their names in `KERNEL_ARGS`."""
    bounds = dict(zip(("lowest", "highest"), code_range, strict=True))
    fields = vars(layout) | bounds | {"tensor": 1.0, "merged": 1, "chunk": ERRORS_CHUNK} | numbers
    return np.array([tuple(map(fields.get, ARG_NAMES, _NO_NUMBERS))], KERNEL_ARGS)


def element_types(
    spec: OpSpec, src: ElementType, dst: ElementType, scale: ElementType, zero_point: np.dtype[Any]
) -> ElementOperands | NoisyOperands:
    """Return what the pointers of an operation point to, from the dtypes of its arrays."""
    op = spec.op
    code_format = spec.arithmetic.code_format
    scale_format = spec.arithmetic.scale_format
    src = code_format or src if op == "dequantize" else src
    dst = code_format or dst if op in ("quantize", "compare") else dst
    kinds = src, dst, scale_format or scale, zero_point
    return NoisyOperands(*kinds, np.dtype(np.int64)) if spec.draws else ElementOperands(*kinds)


def with_tensor(plan: LaunchPlan, tensor: float) -> LaunchPlan:
    """Return a plan for scales in units of one for the whole array, which is known only now; 0: of none."""
    return plan.with_args(tensor=tensor) if tensor else plan


def tile_if_fits(
    plan: LaunchPlan,
    shape: tuple[int, ...],
    memory: StridedOperands,
    kinds: Sequence[ElementType],
    *,
    writes: bool = True,
    copies_isnan: bool = False,
    demands: Demands = NO_DEMANDS,
) -> LaunchPlan | None:
    """Return a plan of one launch on elements of these `kinds`; None where what has to be together is too large."""
    if not any(memory[: len(kinds)]):
        return plan
    x, *others = (Operand(bits_of(kind), *(where or ())) for kind, where in zip(kinds, memory, strict=False))
    other = others[0]._replace(is_result=writes) if others else Operand(0)
    return plan_in_tiles(plan, Elements(shape, x._replace(copies_isnan=copies_isnan), other), demands)


def plan_in_tiles(plan: LaunchPlan, elements: Elements, demands: Demands) -> LaunchPlan | None:
    """Return a plan of one launch for strided elements; None where what has to be together is too large."""
    cut = in_tiles(elements, demands)
    if cut is None:
        return None
    return cut.plan(plan.with_args(**(IN_SQUARES if cut.sums_squares else IN_TILE)))


def tile(
    plan: LaunchPlan,
    view: View,
    kinds: Sequence[ElementType],
    *,
    writes: bool = True,
    copies_isnan: bool = False,
    demands: Demands = NO_DEMANDS,
) -> LaunchPlan:
    """Return a plan of one launch for arrays in the memory of a view, where elements alone are together."""
    cut_plan = tile_if_fits(
        plan, view.shape, view.memory, kinds, writes=writes, copies_isnan=copies_isnan, demands=demands
    )
    assert cut_plan is not None
    return cut_plan
