"""A code format as a convention uses it."""

from __future__ import annotations

import functools
from dataclasses import replace
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

    @property
    def signed(self) -> Coding:
        """The same with symmetric scales of either sign."""
        return self._replace(row=replace(self.row, symmetric_extreme="signed"))


@functools.lru_cache(1024)
def coding_of(convention: Convention, qtype: QType, symmetric: bool, kind: str) -> Coding:
    """Return a format under a convention, for parameters of an "array", of "channels" or of "blocks"."""
    row = convention.under(symmetric, kind)
    parameters = row.parameter_range(qtype, symmetric)
    return Coding(row, parameters, (qtype.qmin, qtype.qmax) if row.clamp == "format" else parameters)


def checked_coding(convention: Convention, qtype: QType, symmetric: bool, kind: str) -> Coding:
    """Return the same if the system has the format and the scheme, and uses two codes or more of it."""
    if (scheme := "symmetric" if symmetric else "asymmetric") not in convention.schemes:
        raise ValueError(f"symmetric must be {not symmetric}: convention {convention.name!r} has no {scheme} scheme")
    convention.check_format(qtype)
    coding = coding_of(convention, qtype, symmetric, kind)
    if not coding.parameters[0] < coding.parameters[1]:
        raise ValueError(f"dtype must have two codes or more: convention {convention.name!r} leaves too few of {qtype}")
    return coding
