"""KernelSpec: what a loop does with the elements that it visits, known when it is compiled."""

from __future__ import annotations

from dataclasses import dataclass

from fastq.engine import simd as v
from fastq.engine.jit import Constants, traced
from fastq.kernels.formulas import computes_in
from fastq.kernels.minifloat import Minifloat
from fastq.kernels.rule import ONNX, Rule
from fastq.kernels.status import HAS_INFINITE_RANGE, HAS_NAN


@dataclass(eq=False, repr=False)
class KernelSpec(Constants):
    """Type of an argument that chooses the code of a loop."""

    # "minmax", "histogram", "quantize", "dequantize", "fake" (both), "compare", "repack", "binarize", "above", "from",
    # "bitround", "granular_bitround", or "bit_pairs"
    op: str
    # "raise": report NaN; "zero": treat it as 0.0; "keep": give it the code of NaN, or its block a scale of NaN (see
    # `keeps_nan_in_scale`); "omit": count it in no histogram
    nan: str = "raise"
    # "": parameters are given; "asymmetric", "symmetric", "microscaling" or "nvfp4": computed from the range of the
    # elements that share them
    range_scheme: str = ""
    block: int = 0  # elements in every block, for the loop over blocks that fill registers; 0: known only at run time
    rule: Rule = ONNX  # the arithmetic
    code: Minifloat | None = None  # the float format of the codes; None where they are integers
    # "power" where the format prescribes scales that are powers of two; "tensor" where they are in units of one scale
    # for the whole array, and there are no zero points; else ""
    scale_kind: str = ""
    streams: bool = False  # whether large results go past the cache
    together: bool = True  # whether runs may be short enough to be visited together
    norm: float = 2.0  # which power of errors is summed where ranges are searched for
    lanes_each: int = 1  # lanes of each of the ranges that are tried, which get elements that follow each other

    @property
    def nan_widens_range(self) -> bool:
        """Whether a range in which NaN was found is widened to contain 0.0, as minima and maxima pass NaN over.

        With ``nan="zero"`` NaN counts as 0.0. Most conventions widen every range to 0.0 anyway, so only the others need
        to know where NaN was. A block that keeps NaN in its scale is widened so that a range of nothing but NaN, which
        would be infinite, is not reported as such.
        """
        if self.keeps_nan_in_scale:
            return True
        range_rule = self.rule.range
        if self.nan != "zero" or range_rule is None or self.range_scheme not in ("asymmetric", "symmetric"):
            return False
        if not range_rule.includes_zero or range_rule.degenerate == "value":
            return True
        return range_rule.symmetric_extreme == "signed_low"

    @property
    def refuses_nan(self) -> bool:
        """Whether NaN is reported by a status bit, for which the caller raises an error."""
        return self.nan == "raise"

    @property
    def omits_nan(self) -> bool:
        """Whether NaN does not count as an element."""
        return self.nan == "omit"

    @property
    def keeps_nan_in_scale(self) -> bool:
        """Whether NaN in a block is kept as a scale of NaN."""
        return self.nan == "keep" and bool(self.scale_kind)


# --- status -----------------------------------------------------------------------------------------------------------


@traced
def status_of(nan=False, infinite=False):
    """Combine what a kernel has to report into status bits: NaN was met, or a range is infinite."""
    return HAS_NAN * nan | HAS_INFINITE_RANGE * infinite


# --- types ------------------------------------------------------------------------------------------------------------


@traced
def compute_lanes(spec, scale, registers):
    """Vec type of the compute type that fills `registers`, a literal."""
    compute = computes_in(spec, scale)
    return v.Vec(compute, registers * v.REGISTER_BITS // compute.bitwidth)


@traced
def parameter_type(spec, scale):
    """Type of scales and zero points in registers: that in memory, or the type to compute in of prescribed scales."""
    return computes_in(spec, scale) if spec.scale_kind else scale.dtype
