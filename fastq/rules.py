"""From a Convention to the Rule that kernels are compiled with."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from fastq.conventions import Convention
from fastq.kernels.rule import RangeRule, Rule
from fastq.qtypes import QType


def rule_of(
    convention: Convention, qtype: QType, symmetric: bool, compute: np.dtype[Any], *, ranges: bool = False
) -> Rule:
    """Return the arithmetic of a convention, with that of its parameters where they are taken from ranges."""
    return _rule(convention, symmetric, qtype.format in convention.exact_product, compute, ranges)


@functools.lru_cache(1024)
def _rule(convention: Convention, symmetric: bool, exact: bool, compute: np.dtype[Any], ranges: bool) -> Rule:
    row = convention.under(symmetric)
    zero = {"offset": "offset"}.get(row.zero_point, "inside" if row.zero_point_inside else "code")
    return Rule(
        quotient=row.quotient,
        rounding=row.rounding,
        zero=zero,
        lowest=row.offset_code == "lowest" and zero == "offset",
        middle=row.decode == "middle",
        exact=exact and row.quotient == "range",
        signed=row.signed_scale,
        compute="" if row.scale_dtype(compute) == compute else compute.name,
        range=_range_rule(row, symmetric) if ranges else None,
    )


def _range_rule(row: Convention, symmetric: bool) -> RangeRule:
    return RangeRule(
        widened=row.includes_zero or symmetric,
        double=row.parameter_type == "float64",
        divisor=int(row.divisor == "codes"),
        floor=row.scale_floor,
        degenerate=row.degenerate,
        signed=row.symmetric_extreme == "signed" and symmetric,
        fits=symmetric and row.narrow == "all" and row.divisor == "steps",
        from_highest=row.zero_point_end == "highest",
        rounding="" if row.zero_point == "float" else row.zero_point_rounding,
        rounds_quotient=row.zero_point_rounded == "quotient",
        zero_when_degenerate=row.degenerate_zero_point,
    )
