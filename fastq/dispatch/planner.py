"""What the shapes and dtypes of a call decide: the kernel and its plan."""

from __future__ import annotations

import contextlib
import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastq.dispatch.granularity import Layout, make_layout
from fastq.dispatch.spec import Bounds, Call, How, Parameters
from fastq.kernels.build import element_type, kernel_address
from fastq.kernels.loops.columns import columns
from fastq.kernels.loops.runs import runs
from fastq.kernels.operands import ElementOperands
from fastq.kernels.storage import ElementType
from fastq.runtime.driver import EVERYTHING, VALUES, Program, program
from fastq.runtime.kernel_args import KERNEL_ARGS

Array = NDArray[Any]

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def _cache_size() -> int:
    """Bytes of the largest cache, from 8 MiB to 32: a larger one is for many cores or guests."""
    sizes = [8 << 10]
    with contextlib.suppress(OSError, ValueError):
        sizes += [int(path.read_text().strip().removesuffix("K")) for path in _CACHES.glob("index*/size")]
    return min(max(sizes), 32 << 10) << 10


# Bytes that a call moves, from which on stores go past the cache. Dequantize on two cores is 1.1 to 2.1 times as fast
# with it from 80 MiB on; of 40 MiB 0.8 times where the cache has 32, of 20 MiB 0.3 times there, 0.98 where it has 480.
STREAMING = _cache_size() * 3 // 2
# elements over which errors are added up before sums are added, so that the order does not depend on threads
ERRORS_CHUNK = 1 << 16
# Chunks are multiples of so many elements: codes of any width begin on whole bytes there, as kernels assume, and no two
# threads write to the same byte
GRAIN = 64
NARROW = 512  # rows of fewer elements than this are widened where they can be


def past_cache(shape: tuple[int, ...], *kinds: ElementType) -> bool:
    """Whether so many elements of each of the kinds outgrow the cache: then stores past it are better, if any are."""
    return bool(math.prod(shape) * sum(element_type(kind).bitwidth for kind in kinds) >= 8 * STREAMING)


def args_of(layout: Layout, bounds: Bounds = (0, 0), **others: int) -> Array:
    """Return the numeric arguments of a kernel; `others` are `streaming`, `size`, `partials` and `partial_stride`."""
    args = np.zeros(1, KERNEL_ARGS)
    for name in ("outer", "length", "inner", "block", "blocks", "cycle", "kept"):
        args[name] = getattr(layout, name)
    args["lowest"], args["highest"] = bounds
    args["tensor"], args["chunk"] = 1, ERRORS_CHUNK
    for name, value in others.items():
        args[name] = value
    return args


def kernel_of(loop: Any, operands: Any, op: str, how: How, **options: Any) -> int:
    """Return the address of a loop compiled for the arithmetic of a call and options of `kernel_address`."""
    return kernel_address(loop, operands, op, rule=how.rule, code=how.code, scale_format=how.steps, **options)


def loop_of(layout: Layout) -> Any:
    """Return the loop for a view."""
    return runs if layout.inner == 1 else columns


class Prepared(NamedTuple):
    """All of a call with given parameters that its shapes and dtypes decide."""

    program: Program
    repeat: int


@functools.lru_cache(4096)
def prepare(
    call: Call, shape: tuple[int, ...], threads: int, backward: bool, *dtypes: np.dtype[Any], direct: bool = True
) -> Prepared:
    """Return what the shapes and dtypes of a call with given parameters decide; direct: not into a buffer."""
    kinds = kinds_of(call, *dtypes)
    layout = make_layout(shape, call.axes, call.block_size)
    assert layout is not None
    layout, repeat = layout.widened(NARROW)
    streaming = direct and past_cache(shape, *kinds[:2])
    kernel = kernel_of(loop_of(layout), kinds, call.does, call.how, nan=call.nan)
    args, size = args_of(layout, call.bounds, streaming=streaming), math.prod(shape)
    heeded = EVERYTHING if call.does != "dequantize" else 0  # codes may be NaN
    whole = program(kernel, VALUES, args, size, threads, grain=GRAIN, backward=backward, heeded=heeded)
    return Prepared(whole, repeat)


def kinds_of(
    call: Call, src: np.dtype[Any], dst: np.dtype[Any], scale: np.dtype[Any], zero: np.dtype[Any]
) -> ElementOperands:
    """Return what the pointers of a call point to, from the dtypes of its arrays."""
    does, code, steps = call.does, call.how.code, call.how.steps
    return ElementOperands(
        (code or src if does == "dequantize" else src),
        (code or dst if does in ("quantize", "compare") else dst),
        steps or scale,
        zero,
    )


def repeated(given: Parameters, repeat: int) -> Parameters:
    """Return parameters side by side as often as a widened layout has rows in one."""
    if repeat == 1:
        return given
    return given._replace(scale=np.tile(given.scale.reshape(-1), repeat), zero=np.tile(given.zero.reshape(-1), repeat))
