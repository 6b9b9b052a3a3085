"""The plan of one call as kernels read it: numbers only."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import binding
from numba import from_dtype, types
from numba.core import config

from fastq.simd.vec import by_type, convert, inline

# Memory is (outer, length, inner), C order. Along `length` run blocks of `block` rows, the last one of each outer index
# perhaps shorter. Outer index o, block b, column i use parameter
# ((o // cycle * kept + o % kept) * blocks + b) * inner + i. `streaming` says that the call outgrows the cache, so that
# its results had better go past it.
PLAN = np.dtype(
    [(name, np.int64) for name in ("outer", "length", "inner", "block", "blocks", "cycle", "kept", "parameters")]
    + [(name, np.float64) for name in ("lowest", "highest", "tensor")]
    + [(name, np.int64) for name in ("streaming", "chunk")]
)

Plan = from_dtype(PLAN)  # passed to a kernel as its address


# How far ahead loops prefetch, in elements. 2**25 float32 on one core, without and with: minimum and maximum 3.6 and
# 5.4 Gelem/s, quantize 2.7 and 4.2, blocks of 32 1.5 and 2.9; in cache no difference. 128 to 512 are alike on two
# cores, 2048 is a tenth slower. On Zen 5, two cores, 2048 is 1.2 times as fast as 256 (quantize, rows, blocks of 32),
# 1.1 times (minimum and maximum), 1.4 times (columns); 1024 and 4096 are a little slower, and so is 256 than nothing.
# On Zen 4 1.1 times (quantize, minimum and maximum), 1.2 (columns), 1.26 (blocks of 32).
_ZEN = (config.CPU_NAME or binding.get_host_cpu_name()) in ("znver4", "znver5")
AHEAD = 2048 if _ZEN else 256
# The same for codes that become values. 2**22 of int8 on two cores of a Zen 4, beside 2048: 64 to 512 are 1.11 to 1.23
# times as fast, 1024 0.94, nothing 0.90; out of cache all are alike.
AHEAD_OF_CODES = 256
# Whether large results go past the cache where they are codes too; values always do. 2**26 float32 to int8 on two cores
# of a Zen 5: 1.13 to 1.19 times as fast, from float16 1.3, rows 1.1, blocks of 32 1.02 to 1.2; of a Zen 4: 1.17, 1.2,
# 0.93 to 1.03, 1.0. On a Xeon 0.86 times.
CODES_PAST_CACHE = _ZEN


class Local(NamedTuple):
    """A plan in registers: the compiler must read memory anew after each store, as it might have been overwritten."""

    outer: Any
    length: Any
    inner: Any
    block: Any
    blocks: Any
    cycle: Any
    kept: Any
    parameters: Any
    lowest: Any
    highest: Any
    tensor: Any
    streaming: Any
    chunk: Any


@by_type
def in_type(value, compute):
    """A float field in the type `compute`; as it is where that is an integer, in which nothing is computed."""
    if isinstance(compute.dtype, types.Float):
        return lambda value, compute: convert(value, compute)
    return lambda value, compute: value


@by_type
def ahead(src):
    """How far ahead to prefetch from a pointer, in elements, where results are stored."""
    elements = AHEAD if src.dtype.bitwidth > 8 else AHEAD_OF_CODES
    return lambda src: elements


@inline
def in_cache(plan):
    """The same plan, but for results that stay in the cache."""
    view = (plan.outer, plan.length, plan.inner, plan.block, plan.blocks, plan.cycle, plan.kept)
    return Local(*view, plan.parameters, plan.lowest, plan.highest, plan.tensor, False, plan.chunk)


@inline
def localize(plan, compute):
    """Read a plan; its float fields in the type `compute`."""
    lowest, highest = in_type(plan.lowest, compute), in_type(plan.highest, compute)
    view = (plan.outer, plan.length, plan.inner, plan.block, plan.blocks, plan.cycle, plan.kept)
    tensor = in_type(plan.tensor, compute)
    return Local(*view, plan.parameters, lowest, highest, tensor, plan.streaming != 0, plan.chunk)
