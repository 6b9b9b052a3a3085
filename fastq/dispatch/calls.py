"""From a code format and a convention to the Call that execute.py runs; each is kept, for the sake of small calls."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from fastq.dispatch.spec import GIVEN, Call, How, Ranging
from fastq.formats.conventions import Convention
from fastq.formats.floats import FLOAT_FORMATS
from fastq.formats.qtypes import QType
from fastq.kernels.rule import RangeRule, Rule
from fastq.kernels.storage import StorageFormat

Axes = tuple[int, ...] | None

# how the scales of a block are taken from its range, by the format of the scales that a code format prescribes
_SCHEMES = {"float8_e8m0fnu": "microscaling", "float8_e4m3fn": "nvfp4"}


@functools.lru_cache(4096)
def call_of(
    does: str,
    convention: Convention,
    qtype: QType,
    symmetric: bool,
    part: str,
    compute: np.dtype[Any],
    axes: Axes,
    block_size: int,
    nan: str = "raise",
    saturate: bool = True,
    ranges: bool = False,
) -> Call:
    """Return a call with given parameters, or with those that it takes from ranges.

    `part` is what one parameter belongs to, as the convention's variants say.
    """
    rule, ranging = rule_of(convention, symmetric, part, compute), GIVEN
    if ranges:
        rule = rule._replace(range=range_rule_of(convention, qtype, symmetric, part))
        ranging = _ranging(convention, qtype, symmetric, compute)
    how = How(rule, _form(qtype, saturate), _own(qtype))
    return Call(does, how, convention.code_range(qtype, symmetric), axes, block_size, nan, ranging)


def _ranging(convention: Convention, qtype: QType, symmetric: bool, compute: np.dtype[Any]) -> Ranging:
    scheme = _SCHEMES.get(qtype.scale_element) or ("symmetric" if symmetric else "asymmetric")
    byte = np.dtype(np.uint8)
    steps = byte if qtype.scale_element else convention.scale_dtype(compute)
    return Ranging(scheme, steps, byte if qtype.element else convention.zero_point_dtype(qtype, compute))


def _form(qtype: QType, saturate: bool) -> StorageFormat | None:
    """Return how codes lie in memory where their dtype does not say it, else None."""
    if not (qtype.packed or qtype.element):
        return None
    form = qtype.float_format
    may_overflow = form is not None and form.nan is not None and not qtype.block_size
    return StorageFormat(qtype.bits, qtype.signed and not qtype.element, qtype.element, saturate or not may_overflow)


def _own(qtype: QType) -> StorageFormat | None:
    """Return the form of scales where the code format prescribes it, else None."""
    if not qtype.scale_element:
        return None
    form = FLOAT_FORMATS[qtype.scale_element]
    units = 0 if qtype.element or form.sign else qtype.bits - 2
    return StorageFormat(8, False, form.name, units=units)


def rule_of(convention: Convention, symmetric: bool, part: str, compute: np.dtype[Any]) -> Rule:
    """Return the arithmetic of a convention with given parameters."""
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


def range_rule_of(convention: Convention, qtype: QType, symmetric: bool, part: str) -> RangeRule:
    """Return the arithmetic with which a convention takes parameters from a range."""
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
