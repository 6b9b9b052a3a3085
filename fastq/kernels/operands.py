"""The input of a kernel: typed operands, numeric arguments in registers, and the units that one call visits."""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

from numba import from_dtype, types

from fastq.engine import simd as v
from fastq.engine.jit import traced
from fastq.kernels.args import ARG_NAMES, KERNEL_ARGS
from fastq.kernels.load_store import group_size
from fastq.kernels.sizes import STAGED, STRAIGHT, WHOLE_ROWS
from fastq.kernels.storage import widest_bits

KERNEL_ARGS_TYPE = from_dtype(KERNEL_ARGS)  # passed to a kernel as its address


class Units(NamedTuple):
    """Units `start` to `stop` of the work, by the thread of a slot; src and dst begin with element `origin`."""

    origin: Any
    start: Any
    stop: Any
    slot: Any


# `KERNEL_ARGS` in registers: from memory they would be read again after each store, which might have changed it.
# `streaming` is one of three modes in memory; here each has a flag
Args = namedtuple("Args", (*ARG_NAMES, "staging", "whole_rows"))  # type: ignore[misc]


@traced
def load_args(args, compute):
    """Load numeric arguments: floats in the type to compute in, the mode of stores as a flag for each mode."""
    fields = {name: getattr(args, name) for name in ARG_NAMES}
    mode = fields["streaming"]  # 0 if results stay in the cache
    fields |= {name: v.convert(fields[name], compute) for name in ("lowest", "highest", "tensor")}
    fields |= {"streaming": mode == STRAIGHT, "staging": mode == STAGED, "whole_rows": mode == WHOLE_ROWS}
    return Args(**fields | {"outgrows_cache": fields["outgrows_cache"] != 0})


@traced
def without_streaming(args):
    """Return the same arguments for results that stay in the cache."""
    return args._replace(streaming=False, staging=False, whole_rows=False)


@traced
def with_results(operands, dst):
    """Return operands whose results are elsewhere."""
    return operands._replace(dst=dst)


@traced
def parameter_bits(operands):
    """Return pointers to the bits of scales and of zero points: copies need not know their formats."""
    return _as_bits(operands.scale), _as_bits(operands.zero_point)


@traced
def _as_bits(pointer):
    return v.cast_pointer(pointer, types.Integer.from_bitwidth(pointer.dtype.bitwidth, False))


def pointer_types(operands: types.NamedTuple) -> dict[str, types.CPointer]:
    """Return the types of the pointers by their names."""
    return dict(zip(operands.fields, operands.types, strict=True))


@traced
def register_lanes(operands):
    """Vec type of elements of the first operand: the widest of elements, results and scales fills a register."""
    dtypes = {name: pointer.dtype for name, pointer in pointer_types(operands).items()}
    elements = [dtypes[name].bitwidth for name in ("src", "dst", "lo") if name in dtypes]
    scale = dtypes.get("scale")
    widest = widest_bits(elements, None if scale is None else scale.bitwidth)
    return v.Vec(operands[0].dtype, v.REGISTER_BITS // widest)


def _fewest(operands):
    """Return as few elements as fill whole bytes in all operands with elements."""
    pointers = pointer_types(operands)
    # groups have 1, 2, 4 or 8 elements: the largest is a multiple of all
    return max(group_size(pointers[name]) for name in ("src", "dst", "lo", "hi") if name in pointers)


@traced
def fewest_lanes(operands):
    """Vec type of as few elements of the first operand as fill whole bytes in all operands with elements."""
    return v.Vec(operands[0].dtype, _fewest(operands))


@traced
def quarter_lanes(operands, vec):
    """Vec type of a quarter of the lanes of a Vec type, or of as many as fill whole bytes, if that is more."""
    return v.Vec(operands[0].dtype, max(vec.n // 4, _fewest(operands)))
