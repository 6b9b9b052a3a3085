"""Coding: a code format as a convention uses it in one scheme."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from fastq.formats.conventions.convention import Convention
from fastq.formats.conventions.table import CONVENTIONS, DEFAULT
from fastq.formats.granularity import Axis, kind_of
from fastq.formats.qtypes import QType


class Coding(NamedTuple):
    """A code format as a convention uses it in one scheme."""

    row: Convention  # its fields as they are in that scheme
    parameters: tuple[float, float]  # the first and the last of the codes that parameters are made for
    codes: tuple[float, float]  # the first and the last code in use
    compute: np.dtype[Any]  # the type to compute in
    scale: np.dtype[Any]  # the types of scales and zero points
    zero_point: np.dtype[Any]


_under = functools.lru_cache(256)(Convention.under)


def coding_of(
    convention: Convention, qtype: QType, symmetric: bool, axis: Axis, block_size: int, compute: np.dtype[Any]
) -> Coding:
    """Return a format under a convention, for parameters along an axis of values of a compute type."""
    row = _under(convention, symmetric, kind_of(axis, block_size), qtype.format) if convention.variants else convention
    compute = row.computes_in(compute)
    parameters = row.parameter_range(qtype, symmetric)
    codes = (qtype.qmin, qtype.qmax) if row.clamp == "format" else parameters
    return Coding(row, parameters, codes, compute, *row.dtypes(qtype, compute))


def check_coding(convention: Convention, qtype: QType, symmetric: bool, *others: Any) -> Coding:
    """Return the same if the system has the format and the scheme, and uses two codes or more of it."""
    if (scheme := "symmetric" if symmetric else "asymmetric") not in convention.schemes:
        raise ValueError(f"symmetric must be {not symmetric}: convention {convention.name!r} has no {scheme} scheme")
    check_format(convention, qtype)
    coding = coding_of(convention, qtype, symmetric, *others)
    if not coding.parameters[0] < coding.parameters[1]:
        raise ValueError(f"dtype must have two codes or more: convention {convention.name!r} leaves too few of {qtype}")
    return coding


def check_written(convention: Convention, qtype: QType) -> None:
    """Raise ValueError for int32 unless the system of a convention has it."""
    if qtype.bits > 16 and qtype.name not in convention.formats:
        known = " or ".join(repr(row.name) for row in CONVENTIONS.values() if qtype.name in row.formats)
        raise ValueError(f"convention must be {known} for dtype {qtype}, not {convention.name!r}")


def check_format(convention: Convention, qtype: QType) -> None:
    """Raise ValueError unless the system of a convention supports the format."""
    formats = convention.formats
    if (qtype.element or qtype.block_size) and qtype.name not in formats and convention.name != DEFAULT:
        known = [DEFAULT, *(row.name for row in CONVENTIONS.values() if qtype.name in row.formats)]
        wanted = " or ".join(map(repr, known))
        raise ValueError(f"convention must be {wanted} for dtype {qtype}, not {convention.name!r}")
    if qtype.element and convention.zero_point != "integer":
        raise ValueError(
            f"convention {convention.name!r} has zero points that are not codes, which dtype {qtype} requires"
        )
    if formats and qtype.format not in formats:
        raise ValueError(f"dtype must be one of {', '.join(formats)} for convention {convention.name!r}, not {qtype}")
