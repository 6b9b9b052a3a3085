"""fastq itself: the public calls, into out= wherever they take it, on memory as NumPy hands it out."""

from __future__ import annotations

from dataclasses import replace

import fastq

from .. import data
from ..calls import call_of
from ..cases import Case
from ..verify import EXACT, named
from . import Runner

WITHOUT_OUT = ("pack", "unpack")


def of_case(case: Case, variant: str) -> Runner:
    """A call into out=, or one that returns memory of its own."""
    o = data.operands(case, aligned=False)
    call = call_of(fastq, replace(o, out=None) if variant or case.work.operation in WITHOUT_OUT else o)
    return Runner(call, lambda: named(call(), case), EXACT)
