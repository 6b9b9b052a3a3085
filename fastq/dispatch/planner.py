"""What the shapes and dtypes of a call decide: the kernel and its plan."""

from __future__ import annotations

import contextlib
import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba import from_dtype, types
from numpy.typing import NDArray

from fastq import jit
from fastq.dispatch.granularity import Layout, make_layout
from fastq.dispatch.spec import Bounds, Call, Form, How, Kind, Parameters
from fastq.formats.floats import FLOAT_FORMATS
from fastq.kernels.bitpack import Bits
from fastq.kernels.loops import columns, runs
from fastq.kernels.minifloat import Minifloat, PowerOfTwo
from fastq.kernels.spec import Action
from fastq.runtime.driver import EVERYTHING, VALUES, Program, program
from fastq.runtime.plan import CODES_PAST_CACHE, PLAN, Plan

Array = NDArray[Any]
Kinds = tuple[Kind, Kind, Kind, Kind]  # what src, dst, scale and zero point point to

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


@functools.cache
def element(kind: Kind) -> types.Type:
    """Return the type of what a kernel's pointer points to."""
    if isinstance(kind, Form) and not kind.element:
        return Bits(kind.bits, kind.signed, kind.highest_first)
    name = kind.element if isinstance(kind, Form) else kind.name
    if name not in FLOAT_FORMATS:
        return from_dtype(kind)
    row = FLOAT_FORMATS[name]
    if not row.sign:
        return PowerOfTwo(row.bias + (kind.units if isinstance(kind, Form) else 0))
    return Minifloat(row, kind.saturate, kind.dense) if isinstance(kind, Form) else Minifloat(row)


@functools.cache
def kernel_address(loop: Any, does: str, nan: str, scheme: str, block: int, how: How, *kinds: Kind) -> int:
    """Address of a loop compiled for an action and kinds of src, dst, scale and zero point."""
    pointers = [types.CPointer(element(kind)) for kind in (*kinds, np.dtype(np.float64))]
    code = element(how.code) if how.code is not None and how.code.element else None
    rule, own = how.rule, ""
    if how.steps is not None:
        own = "tensor" if FLOAT_FORMATS[how.steps.element].sign else "power"
        rule = rule._replace(compute="float64" if does != "dequantize" and is_wide(kinds[0]) else "float32")
    codes = does == "quantize" or (does == "repack" and isinstance(kinds[1], Form))
    streams = does not in ("minmax", "compare") and (CODES_PAST_CACHE or not codes)
    action = Action(does, nan, scheme, block, rule, code, own, streams)
    return jit.kernel(loop, types.int64, action, *pointers, Plan, *[types.int64] * 4)


def is_wide(kind: Kind) -> bool:
    """Whether input of this dtype is computed with in float64."""
    return isinstance(kind, np.dtype) and kind.itemsize > (4 if kind.kind == "f" else 2)


def past_cache(shape: tuple[int, ...], *kinds: Kind) -> bool:
    """Whether so many elements of each of the kinds outgrow the cache: then stores past it are better, if any are."""
    return bool(math.prod(shape) * sum(element(kind).bitwidth for kind in kinds) >= 8 * STREAMING)


def plan_of(layout: Layout, bounds: Bounds = (0, 0), streaming: bool = False, parameters: int = 0) -> Array:
    """Return a plan as kernels read it."""
    plan = np.zeros(1, PLAN)
    view = (layout.outer, layout.length, layout.inner, layout.block, layout.blocks, layout.cycle, layout.kept)
    plan[0] = (*view, parameters, *bounds, 1.0, streaming, ERRORS_CHUNK)
    return plan


def loop_of(layout: Layout) -> Any:
    """Return the loop for a view."""
    return runs.spans if layout.inner == 1 else columns.lanes


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
    kernel = kernel_address(loop_of(layout), call.does, call.nan, "", 0, call.how, *kinds)
    plan, size = plan_of(layout, call.bounds, streaming), math.prod(shape)
    heeded = EVERYTHING if call.does != "dequantize" else 0  # codes may be NaN
    whole = program(kernel, VALUES, plan, size, threads, grain=GRAIN, backward=backward, heeded=heeded)
    return Prepared(whole, repeat)


def kinds_of(call: Call, src: np.dtype[Any], dst: np.dtype[Any], scale: np.dtype[Any], zero: np.dtype[Any]) -> Kinds:
    """Return what the pointers of a call point to, from the dtypes of its arrays."""
    does, code, steps = call.does, call.how.code, call.how.steps
    return (
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
