"""Pack floats as integers of 8 to 32 bits as the CF conventions have it: in units of a scale, from an offset on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fastq.engine import simd as v
from fastq.engine.jit import Constants, traced
from fastq.kernels.body import BODIES, Body
from fastq.kernels.load_store import load_elements
from fastq.kernels.pointers import PackOperands


@dataclass(eq=False, repr=False)
class PackSpec(Constants):
    """Type of an argument that says that floats are packed."""

    scale_kind: ClassVar[str] = ""
    streams: ClassVar[bool] = False


@traced
def _pack(spec, operands, args, shared, i, kind):
    """Return the codes of the elements from src[i] on, `args.nan_code` for NaN, and that nothing is reported."""
    scale, offset = shared
    integer = operands.dst.dtype
    x = load_elements(operands.src, i, kind)
    whole = v.rint((v.convert(x, operands.scale.dtype) - offset) / scale)
    codes = v.bounded_to_integer(v.minimum(v.maximum(whole, args.lowest), args.highest), integer)
    return v.select(v.is_nan(x), v.convert(args.nan_code, integer), codes), 0


BODIES[PackOperands] = Body(compute=_pack)
