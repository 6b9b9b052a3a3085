"""Plan launches by metadata alone: from shapes and dtypes to the loop, its kernel, threads, chunks and tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.engine.code import shipped_or_compiled
from fastq.engine.runtime import threadpool
from fastq.engine.runtime.driver import ALL_STATUS, NONE, OUT, SCALE, SUMS, VALUES, ZERO, LaunchPlan, X, plan_launch
from fastq.engine.runtime.tiling import WHOLE_BYTES, Operand, in_tiles
from fastq.kernels.args import (
    ARG_NAMES,
    AT_A_TIME,
    BATCHED_REGISTERS,
    IN_TILE,
    KERNEL_ARGS,
    LONGEST,
    MOST_ROW,
    PIECE_BYTES,
    RUNS_TOGETHER,
    STAGED,
    STRAIGHT,
    WHOLE_ROWS,
    ElementOperands,
    NoisyOperands,
)
from fastq.kernels.storage import ElementType, bits_of, register_elements
from fastq.plan.arrange import Layout, StridedOperands, View
from fastq.plan.cache import plans
from fastq.plan.spec import PLAIN, Arithmetic, CodeRange, OpSpec
from fastq.system import tuning

Array = NDArray[Any]
COPY = X, OUT, NONE, NONE, NONE  # operands of kernels without parameters
# operands of kernels with parameters, by whether they round at random: the keys of random numbers replace sums
PARAMETERS = {False: VALUES, True: (X, OUT, SCALE, ZERO, SUMS)}

# elements over which errors are added up before sums are added, so that the order does not depend on threads; results
# depend on this number, so it is not a tuning constant
ERRORS_CHUNK = 1 << 16

_NO_NUMBERS = (0,) * len(ARG_NAMES)

threadpool.when_changed(plans.clear)


# --- kernels ----------------------------------------------------------------------------------------------------------


_kernel = shipped_or_compiled("fastq.kernels.build", "kernel_address")
cast_address = shipped_or_compiled("fastq.kernels.build", "cast_address")
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
    fields = vars(layout) | bounds | {"tensor": 1.0, "repeat": 1, "chunk": ERRORS_CHUNK} | numbers
    return np.array([tuple(map(fields.get, ARG_NAMES, _NO_NUMBERS))], KERNEL_ARGS)


def element_types(
    spec: OpSpec, src: ElementType, dst: ElementType, scale: ElementType, zero_point: np.dtype[Any]
) -> ElementOperands | NoisyOperands:
    """Return what the pointers of an operation point to, from the dtypes of its arrays."""
    op, code_format, scale_format = spec.op, spec.arithmetic.code_format, spec.arithmetic.scale_format
    src = code_format or src if op == "dequantize" else src
    dst = code_format or dst if op in ("quantize", "compare") else dst
    kinds = src, dst, scale_format or scale, zero_point
    return NoisyOperands(*kinds, np.dtype(np.int64)) if spec.draws else ElementOperands(*kinds)


def with_tensor(plan: LaunchPlan, tensor: float) -> LaunchPlan:
    """Return a plan for scales in units of one for the whole array, which is known only now; 0: of none."""
    return plan.with_args(tensor=tensor) if tensor else plan


def enough_for_all(parts: int, threads: int) -> bool:
    """Return whether each of the threads can have parts of its own, in about equal shares."""
    return parts >= 4 * threads


def tiled_if_fits(
    plan: LaunchPlan,
    shape: tuple[int, ...],
    memory: StridedOperands,
    kinds: Sequence[ElementType],
    *,
    writes: bool = True,
    copies_isnan: bool = False,
    **options: Any,
) -> LaunchPlan | None:
    """Return a plan of one launch on elements of these `kinds`; None where what has to be together is too large."""
    if not any(memory[: len(kinds)]):
        return plan
    x, *others = (Operand(bits_of(kind), *(where or ())) for kind, where in zip(kinds, memory, strict=False))
    other = others[0]._replace(is_result=writes) if others else Operand(0)
    return in_tiles(plan, shape, x._replace(copies_isnan=copies_isnan), other, args=IN_TILE, **options)


def tiled(plan: LaunchPlan, view: View, kinds: Sequence[ElementType], **options: Any) -> LaunchPlan:
    """Return a plan of one launch for arrays in the memory of a view, where elements alone are together."""
    found = tiled_if_fits(plan, view.shape, view.memory, kinds, **options)
    assert found is not None
    return found


def plan_elementwise(spec: OpSpec, view: View, *dtypes: np.dtype[Any], backward: bool = False) -> LaunchPlan:
    """Plan an operation with given parameters on arrays of these dtypes, in place or in tiles."""
    kinds, size, layout = element_types(spec, *dtypes), math.prod(view.shape), view.layout
    loop = loop_of(layout, spec.op, *kinds[:3])
    kernel = kernel_address(loop.function, kinds, spec.op, spec.arithmetic, nan=spec.nan, together=loop.together)
    large, codes = outgrows_cache(size, *kinds[:2]), spec.op == "quantize"
    streaming = store_mode(size, *kinds[:2], layout, row=loop.row, codes=codes) if large else 0
    args = kernel_args(layout, spec.code_range, streaming=streaming, outgrows_cache=large, repeat=loop.repeat)
    status_mask = ALL_STATUS if spec.op != "dequantize" else 0  # codes may be NaN
    how: dict[str, Any] = {"chunk_multiple": WHOLE_BYTES, "backward": backward, "status_mask": status_mask}
    plan = plan_launch(kernel, PARAMETERS[spec.draws], args, size, threadpool.threads_for(size), **how)
    return tiled(plan, view, kinds[:2])


# --- the loop ---------------------------------------------------------------------------------------------------------

FEWEST = 32  # elements of rows that are taken as one


class RowLimits(NamedTuple):
    """When the rows of an operation are taken as one."""

    too_wide: int  # from this number of registers in a row on, rows are not joined
    many: int  # least number of rows with the same parameters if a row fills a register


_ROWS = {
    "minmax": RowLimits(too_wide=2, many=32),
    "dequantize": RowLimits(too_wide=1, many=16),
    "quantize": RowLimits(too_wide=8, many=16),
    "fake": RowLimits(too_wide=8, many=16),
    "compare": RowLimits(too_wide=8, many=16),
    "requantize": RowLimits(too_wide=8, many=16),
}


RUNS = "traversal.runs.runs"


class Loop(NamedTuple):
    """A loop over a view."""

    function: str  # its name
    repeat: int = 1  # rows or short runs that it takes as one
    row: int = 0  # elements of such a row; 0 if it visits runs one by one, or some short ones `together`
    together: bool = True


def loop_of(layout: Layout, op: str, *kinds: ElementType) -> Loop:
    """Return the loop for a view and what its pointers are to."""
    lanes = register_elements(*kinds)
    if layout.inner > 1:
        rows = rows_as_one(layout, op, lanes)
        return Loop("traversal.columns.columns", rows, rows * layout.inner)
    if has_short_runs(layout, op, lanes):
        return Loop("traversal.short_runs.short_runs", RUNS_TOGETHER, RUNS_TOGETHER * layout.block)
    return Loop(RUNS, together=runs_together(layout, lanes))


def runs_together(layout: Layout, lanes: int) -> bool:
    """Whether runs may be visited together, by their sizes: a kernel without is compiled sooner, decision D73."""
    return layout.parameters > 1 and layout.block <= BATCHED_REGISTERS * lanes


def has_short_runs(layout: Layout, op: str, lanes: int) -> bool:
    """Whether neighbours have parameters of their own in runs of a few elements, all of one length.

    Runs that fill a register are faster one by one; `compare` takes blocks of 8 elements as they are, and minima are
    taken by the body: decisions D27 and D28.
    """
    if not (layout.inner == 1 == layout.outer and 1 < layout.block <= LONGEST and layout.parameters > 1):
        return False
    if op == "compare":
        return layout.block != AT_A_TIME
    return op in ("quantize", "dequantize", "fake") and layout.block < lanes


def rows_as_one(layout: Layout, op: str, lanes: int) -> int:
    """Return how many short rows with the same parameters a loop should take as one, for the elements of a register.

    Over rows of three elements it would spend its time between rows. As many as fill whole registers, if possible, and
    few compared with all: parameters are repeated for each of them, minima and maxima merged. Decisions D34 and D35
    have the figures.
    """
    rows, alike = layout.block, layout.block * layout.inner
    limits = _ROWS[op]
    width = min(MOST_ROW, max(FEWEST, min(64, alike // 4), alike // 16))
    if layout.inner == 1 or 2 * layout.inner > width or layout.inner >= limits.too_wide * lanes:
        return 1
    if layout.inner >= lanes and rows < limits.many:
        return 1
    step = math.lcm(layout.inner, FEWEST) // layout.inner
    step = step if step * layout.inner <= width else 1
    return min(-(-width // (step * layout.inner)) * step, rows)


# --- stores past the cache --------------------------------------------------------------------------------------------
#
# The one place for all loops. `can_stream` in fastq/kernels/traversal/stores.py has the formats that a kernel can store
# like this. The numbers are those of fastq/system/tuning.py, each with its measurement.


def outgrows_cache(size: int, *kinds: ElementType) -> bool:
    """Return whether `size` elements of each type together outgrow the cache."""
    return size * sum(map(bits_of, kinds)) // 8 >= tuning.current().stream_from


def stores_past_cache(codes: bool) -> bool:
    """Return whether results that outgrow the cache are stored past it: values are, codes where that is faster."""
    return tuning.current().stream_codes or not codes


def store_mode(
    size: int,
    src: ElementType,
    dst: ElementType,
    layout: Layout | None = None,
    unit: int = WHOLE_BYTES,
    row: int = 0,
    *,
    codes: bool,
) -> int:
    """Return how results of `size` elements are stored: 0 into the cache, past it `STRAIGHT`, `STAGED`, `WHOLE_ROWS`.

    The first and the last line of a run, which neighbours store in the ordinary way, cost a stall each. So runs go
    straight from registers if they are long, else by way of the stack. Rows of columns can't be staged: short ones go
    straight where they share no line, which the kernel sees. Nor can elements be that a kernel needs together and are
    more than a piece, `unit`: of these fewer are long enough to go straight. `row` is how many elements the kernel
    visits as a row of columns, 0: it visits runs. `codes` says whether results are codes.

    Without a layout loops see to it themselves that no line is shared: `repack` has one run, `blocks` stages as many
    blocks as it computes side by side, `block_columns` asks for each unit whether rows begin on lines.
    """
    if not (outgrows_cache(size, src, dst) and stores_past_cache(codes)):
        return 0
    if layout is None:
        return STRAIGHT
    bits, tuned = bits_of(dst), tuning.current()
    run = row or (layout.block if layout.parameters > 1 else size)
    can_stage = not row and unit * bits <= 8 * PIECE_BYTES
    if run * bits >= 8 * (tuned.staged_run if can_stage else tuned.stream_run):
        return STRAIGHT
    return STAGED if can_stage else WHOLE_ROWS if row else 0
