"""A code format as a convention uses it."""

from __future__ import annotations

import functools
from typing import NamedTuple

from fastq.formats.conventions import Convention
from fastq.formats.qtypes import QType


class Coding(NamedTuple):
    """A code format as a convention uses it in one scheme.

    Attributes
    ----------
    row : Convention
        Its fields as they are in that scheme.
    parameters : tuple of float
        The first and the last of the codes that parameters are made for.
    codes : tuple of float
        The first and the last code in use.
    """

    row: Convention
    parameters: tuple[float, float]
    codes: tuple[float, float]


@functools.lru_cache(1024)
def coding_of(convention: Convention, qtype: QType, symmetric: bool, kind: str) -> Coding:
    """Return a format under a convention, for parameters of an "array", of "channels" or of "blocks"."""
    row = convention.under(symmetric, kind)
    return Coding(row, row.parameter_range(qtype, symmetric), row.code_range(qtype, symmetric))
