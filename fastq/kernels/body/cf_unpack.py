"""Unpack integers of 8 to 32 bits as the CF conventions have it: scaled, shifted, and NaN where they are gaps.

Up to two integers that are gaps are found here; `_bind_unpack` of fastq/ops/cf_packing.py writes NaN for others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fastq.engine import simd as v
from fastq.engine.jit import Constants, traced
from fastq.kernels.body import BODIES, Body
from fastq.kernels.load_store import load_elements
from fastq.kernels.pointers import UnpackOperands


@dataclass(eq=False, repr=False)
class UnpackSpec(Constants):
    """Type of an argument that chooses the code of unpacking."""

    gaps: bool  # whether `args.first_gap` and `args.second_gap` become NaN
    scale_kind: ClassVar[str] = ""
    streams: ClassVar[bool] = True


@traced
def _unpack(spec, operands, args, shared, i, kind):
    """Return the values of the codes from src[i] on, and that nothing is reported."""
    scale, offset = shared
    codes = load_elements(operands.src, i, kind)
    values = v.convert(v.convert(codes, operands.scale.dtype) * scale + offset, operands.dst.dtype)
    if spec.gaps:
        first = v.convert(args.first_gap, operands.src.dtype)
        second = v.convert(args.second_gap, operands.src.dtype)
        gap = (codes == first) | (codes == second)
        values = v.select(gap, v.constant(float("nan"), values), values)
    return values, 0


BODIES[UnpackOperands] = Body(compute=_unpack)
