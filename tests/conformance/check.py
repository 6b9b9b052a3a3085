"""Comparisons of fastq with a system: how much of each part differs."""

from collections import Counter
from typing import NamedTuple

import numpy as np
from hard import SPECIAL, special, uniform, with_ties
from oracle import by_fastq, by_parameters, by_system, differences

import fastq

VALUES = 10_000_000


class Report(NamedTuple):
    """What a comparison found: values compared, how many of them say much, and a line for each difference."""

    values: int
    telling: int
    differences: list[str]


def _hard(system, case, seed):
    rng = np.random.default_rng(seed)
    return with_ties(uniform(case, rng), case, system, rng)


def _differences(system, case, x, convention):
    ours = by_fastq(x, case, convention)
    given = ours if convention == system.convention else by_fastq(x, case, system.convention)
    theirs = by_system(system, x, case, given)
    ours = by_parameters(x, case, convention, theirs) if system.leads else ours
    return differences(ours, theirs)


def compare(system, values=VALUES):
    """Compare fastq under a system's convention with the system, on `values` hard values and the special arrays.

    Values on ties say much.
    """
    compared = on_ties = 0
    found = Counter()
    for number, case in enumerate(system.cases, 1):
        seed = 0
        while compared < values * number / len(system.cases):
            x, ties = _hard(system, case, seed)
            found.update(_named(case, "ties", _differences(system, case, x, system.convention)))
            compared, on_ties, seed = compared + x.size, on_ties + ties, seed + 1
        for name in SPECIAL.keys() - set(system.except_for):
            x = special(name, case, np.random.default_rng(0))
            found.update(_named(case, name, _differences(system, case, x, system.convention)))
    return Report(compared, on_ties, [f"{where}: {count} differ" for where, count in found.items() if count])


def _named(case, data, counts):
    return {f"{case}, {data}, {part}": count for part, count in counts.items()}


def differs(system, convention):
    """Return whether the codes or values of another convention differ from the system's in any case that it has."""
    cases = (case for case in system.cases if not case.changes and _has(convention, case))
    found = (_differences(system, case, _hard(system, case, 0)[0], convention) for case in cases)
    return any(counts.get("codes", 0) + counts.get("values", 0) for counts in found)


def _has(convention, case):
    row = fastq.CONVENTIONS[convention]
    scheme = "symmetric" if case.symmetric else "asymmetric"
    return scheme in row.schemes and (not row.formats or case.dtype in row.formats)
