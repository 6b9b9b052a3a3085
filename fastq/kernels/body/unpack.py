"""Unpack integers of 8 to 32 bits as the CF conventions have it: scaled, shifted, and NaN where they are gaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from fastq.engine import simd as v
from fastq.engine.jit import Constants, njit, traced
from fastq.kernels.body import rebase
from fastq.kernels.load_store import load_elements, prefetch_distance, prefetch_lanes
from fastq.kernels.operands import register_lanes
from fastq.kernels.traversal.stores import stream_by_lines


@dataclass(eq=False, repr=False)
class UnpackSpec(Constants):
    """Type of an argument that chooses the code of unpacking."""

    gaps: bool  # whether the codes `args.size` and `args.partials` are gaps, which may be one
    scale_kind: ClassVar[str] = ""
    streams: ClassVar[bool] = True


class _Numbers(NamedTuple):
    """Numbers that are the same for all elements."""

    scale: Any
    offset: Any
    first: Any  # gaps
    second: Any


@traced
def _numbers(operands, args):
    gaps = v.convert(args.size, operands.src.dtype), v.convert(args.partials, operands.src.dtype)
    return _Numbers(operands.scale[0], operands.zero_point[0], *gaps)


@traced
def _unpacked(spec, operands, numbers, i, kind):
    """Return the values of the codes of a Vec or scalar type from src[i] on."""
    codes = load_elements(operands.src, i, kind)
    values = v.convert(codes, operands.scale.dtype) * numbers.scale + numbers.offset
    values = v.convert(values, operands.dst.dtype)
    if spec.gaps:
        gap = (codes == numbers.first) | (codes == numbers.second)
        values = v.select(gap, v.constant(float("nan"), values), values)
    return values


@traced
def _unpack_lanes(context, i, vec):
    """Return the values of the codes of a Vec type from src[i] on, and that none is to be reported."""
    src = context[1].src
    prefetch_lanes(src, i + prefetch_distance(src), vec)
    return _unpacked(*context, i, vec), False


_stream_lines = stream_by_lines(_unpack_lanes)


@njit
def unpack(spec, operands, args, units):
    """Unpack elements start..stop; src and dst hold those from `origin` on."""
    operands = rebase(operands, args, units)
    src, dst, vec, i, stop = operands.src, operands.dst, register_lanes(operands), units.start, units.stop
    numbers = _numbers(operands, args)
    context = spec, operands, numbers
    if args.streaming:
        i, _ = _stream_lines(spec, context, src, dst, i, stop, vec)
    while i <= stop - v.count(vec):
        values, _ = _unpack_lanes(context, i, vec)
        v.store(dst, i, values)
        i += v.count(vec)
    while i < stop:
        v.store(dst, i, _unpacked(spec, operands, numbers, i, v.dtype_of(src)))
        i += 1
    return 0
