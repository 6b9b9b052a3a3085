"""From a Convention to the Rule that kernels are compiled with."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from fastq.conventions import Convention
from fastq.kernels.rule import RangeRule, Rule
from fastq.qtypes import QType


def rule_of(
    convention: Convention, qtype: QType, symmetric: bool, part: str, compute: np.dtype[Any], *, ranges: bool = False
) -> Rule:
    """Return the arithmetic of a convention, with that of its parameters where they are taken from ranges."""
    rule = _rule(convention, symmetric, part, compute)
    return rule._replace(range=_range_rule(convention, qtype, symmetric, part)) if ranges else rule


@functools.lru_cache(1024)
def _rule(convention: Convention, symmetric: bool, part: str, compute: np.dtype[Any]) -> Rule:
    row = convention.under(symmetric, part)
    zero = "offset" if row.zero_point == "offset" else "inside" if row.zero_point_inside else "code"
    return Rule(
        quotient=row.quotient,
        rounding=row.rounding,
        zero=zero,
        fused=row.fused and zero == "inside",
        lowest=row.offset_code == "lowest" and zero == "offset",
        middle=row.decode == "middle",
        signed=row.signed_scale,
        compute="" if row.scale_dtype(compute) == compute else compute.name,
    )


@functools.lru_cache(1024)
def _range_rule(convention: Convention, qtype: QType, symmetric: bool, part: str) -> RangeRule:
    row = convention.under(symmetric, part)
    codes, clamped = row.parameter_range(qtype, symmetric), row.code_range(qtype, symmetric)
    return RangeRule(
        codes=None if codes == clamped else codes,
        widened=row.includes_zero or symmetric,
        double=row.parameter_type == "float64",
        span_in_compute=row.span_type == "compute",
        rounds_scale=row.scale_rounded,
        divisor=int(row.divisor == "codes"),
        floor=row.scale_floor,
        degenerate=row.degenerate,
        signed=row.symmetric_extreme == "signed" and symmetric,
        fits=symmetric and row.divisor == "steps" and codes == qtype.code_range(True),
        from_highest=row.zero_point_end == "highest",
        rounding="" if row.zero_point == "float" else row.zero_point_rounding,
        rounds_quotient=row.zero_point_rounded == "quotient",
        zero_when_degenerate=row.degenerate_zero_point,
    )
