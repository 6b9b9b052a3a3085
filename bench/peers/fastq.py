"""fastq itself: the public calls, into out= wherever they take it, on memory as NumPy hands it out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import fastq

from .. import data
from ..calls import call_of
from ..cases import OPERATIONS, Case
from ..verify import EXACT, named
from . import Builders, Runner

WITHOUT_OUT = ("pack", "unpack")


def runner(allocates: bool, case: Case) -> Runner:
    """A call into out=, or one that returns memory of its own."""
    o = data.operands(case, aligned=False)
    call = call_of(fastq, replace(o, out=None) if allocates else o)
    return Runner(call, lambda: named(call(), case), EXACT)


OF_CASES = True
BUILDERS: Builders = {
    (operation, variant): partial(runner, bool(variant) or operation in WITHOUT_OUT)
    for operation in OPERATIONS
    for variant in ("", "allocating")
}
