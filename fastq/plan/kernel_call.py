"""Kernels as plans call them: their addresses, their arguments, and the tiles that memory goes through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastq.engine.code.shipped import Compile, shipped_or_compiled
from fastq.engine.runtime.driver import LaunchPlan
from fastq.engine.runtime.tiling import NO_DEMANDS, Demands, Elements, Operand, in_tiles
from fastq.kernels.args import ARG_NAMES, IN_SQUARES, IN_TILE, KERNEL_ARGS
from fastq.kernels.pointers import ElementOperands, NoisyOperands
from fastq.kernels.storage import ElementType, bits_of
from fastq.plan.arrange import Memory, StridedOperands, View
from fastq.plan.layout import Layout
from fastq.plan.spec import PLAIN, Arithmetic, CodeRange, OpSpec

Array = NDArray[Any]

_NO_NUMBERS = (0,) * len(ARG_NAMES)
_NAMES_OF_ARGS = frozenset(ARG_NAMES)

# --- kernels ----------------------------------------------------------------------------------------------------------

# Each of these imports a compiler, and Numba with it, when machine code is not there yet: see below.


def _import_compile_loop() -> Compile:
    from fastq.kernels.build import compile_loop

    return compile_loop


def _import_compile_cf_packing() -> Compile:
    from fastq.kernels.build import compile_cf_packing

    return compile_cf_packing


def _import_compile_cf_unpacking() -> Compile:
    from fastq.kernels.build import compile_cf_unpacking

    return compile_cf_unpacking


def _import_compile_requantization() -> Compile:
    from fastq.kernels.build import compile_requantization

    return compile_requantization


def _import_compile_block_loop() -> Compile:
    from fastq.kernels.build import compile_block_loop

    return compile_block_loop


# Each returns the address of machine code: from the package's library, else from disk, else the function of
# fastq/kernels/build.py compiles it, which takes a sixth of a second. Only then is that imported, and Numba with it.
_load_or_compile_loop = shipped_or_compiled(_import_compile_loop)
load_or_compile_cf_packing = shipped_or_compiled(_import_compile_cf_packing)
load_or_compile_cf_unpacking = shipped_or_compiled(_import_compile_cf_unpacking)
load_or_compile_requantization = shipped_or_compiled(_import_compile_requantization)
load_or_compile_block_loop = shipped_or_compiled(_import_compile_block_loop)


def load_or_compile_kernel(
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
    """Return the address of a loop's machine code, which is compiled if it is neither in the package nor on disk.

    The loop is named as below `fastq.kernels`. Operands say what its pointers point to, in the named tuple that it
    gets. All else is what `KernelSpec` says.
    """
    rule = arithmetic.rule
    code_format = arithmetic.code_format
    scale_format = arithmetic.scale_format
    return _load_or_compile_loop(
        loop, operands, op, rule, code_format, scale_format, nan, range_scheme, block, together, norm, lanes_each
    )


def kernel_args(layout: Layout, code_range: CodeRange = (0, 0), **numbers: float) -> Array:
    """Return the numeric arguments of a kernel, other `numbers` by their names in `KERNEL_ARGS`.

    Fields of a layout have the same names there. Numbers that nobody gives are 0, except factors, which are 1.
    """
    bounds = dict(zip(("lowest", "highest"), code_range, strict=True))
    fields = vars(layout) | bounds | {"tensor": 1.0, "merged": 1} | numbers
    assert _NAMES_OF_ARGS.issuperset(numbers), numbers
    return np.array([tuple(map(fields.get, ARG_NAMES, _NO_NUMBERS))], KERNEL_ARGS)


def element_types(
    spec: OpSpec, src: ElementType, dst: ElementType, scale: ElementType, zero_point: np.dtype[Any]
) -> ElementOperands | NoisyOperands:
    """Return what the pointers of an operation point to, from the dtypes of its arrays.

    Where a dtype does not say how codes and scales lie in memory, the spec does. Codes are the source of "dequantize",
    and the result of "quantize" or what "compare" compares with; "fake" has values on both sides.
    """
    op = spec.op
    code_format = spec.arithmetic.code_format
    scale_format = spec.arithmetic.scale_format
    src = code_format or src if op == "dequantize" else src
    dst = code_format or dst if op in ("quantize", "compare") else dst
    scale = scale_format or scale
    if spec.draws:
        return NoisyOperands(src, dst, scale, zero_point, np.dtype(np.int64))
    return ElementOperands(src, dst, scale, zero_point)


def with_tensor(plan: LaunchPlan, tensor: float) -> LaunchPlan:
    """Return a plan for scales in units of one for the whole array, which is known only now; 0: of none."""
    return plan.with_args(tensor=tensor) if tensor else plan


def operand_of(bits: int, memory: Memory | None) -> Operand:
    """Return an operand of a launch, with elements of some bits, that is strided or lies as kernels need it."""
    return Operand(bits) if memory is None else Operand(bits, strides=memory.strides, dtype=memory.dtype)


def tile_if_fits(
    plan: LaunchPlan,
    shape: tuple[int, ...],
    memory: StridedOperands,
    types_of_elements: Sequence[ElementType],
    *,
    writes: bool = True,
    copies_isnan: bool = False,
    demands: Demands = NO_DEMANDS,
) -> LaunchPlan | None:
    """Return a plan of one launch, in tiles where memory is strided; None where what has to be together is too large.

    There is a type for x and, unless the launch only reduces x, one for the second operand, which it `writes` or reads.
    With `copies_isnan` tiles get 1 for each NaN in x and 0 for others, in the place of x.
    """
    if not any(memory[: len(types_of_elements)]):
        return plan
    x, *others = (
        operand_of(bits_of(element), where) for element, where in zip(types_of_elements, memory, strict=False)
    )
    second = others[0]._replace(is_result=writes) if others else Operand(0)
    return plan_in_tiles(plan, Elements(shape, x._replace(copies_isnan=copies_isnan), second), demands)


def plan_in_tiles(plan: LaunchPlan, elements: Elements, demands: Demands) -> LaunchPlan | None:
    """Return a plan of one launch for strided elements; None where what has to be together is too large."""
    cut = in_tiles(elements, demands)
    if cut is None:
        return None
    return cut.plan(plan.with_args(**(IN_SQUARES if cut.sums_squares else IN_TILE)))


def tile(
    plan: LaunchPlan,
    view: View,
    types_of_elements: Sequence[ElementType],
    *,
    writes: bool = True,
    copies_isnan: bool = False,
    demands: Demands = NO_DEMANDS,
) -> LaunchPlan:
    """Return what `tile_if_fits` returns for a view, of launches that fit any tile: elements need no others beside."""
    cut_plan = tile_if_fits(
        plan, view.shape, view.memory, types_of_elements, writes=writes, copies_isnan=copies_isnan, demands=demands
    )
    assert cut_plan is not None
    return cut_plan
