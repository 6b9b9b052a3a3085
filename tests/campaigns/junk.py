"""All bad values of tests/campaigns/junk_calls.py for all parameters, each function in a process of its own; minutes.

    python -m tests.campaigns.junk

Prints what is wrong, ends with exit code 1 if anything is, and else stores how often which outcome was.
"""

import json
import sys
from collections import Counter

import figures
import subprocesses
from junk_calls import CALLS
from rich.console import Console
from rich.progress import track
from test_junk import alone


def tried(call):
    """What is wrong with a call, and how many had which outcome; an abort or a hang is wrong."""
    try:
        ((_, lines, counts),) = map(json.loads, subprocesses.finish(alone([call]), timeout=1800).splitlines())
    except AssertionError as error:
        return [f"{call}: {error}"], {}
    return lines, counts


def main():
    """Try them all."""
    totals, wrong = Counter(), []
    for call in track(CALLS, "functions", console=Console(stderr=True)):
        lines, counts = tried(call)
        print(*lines, sep="\n", end="\n" if lines else "", flush=True)
        wrong += lines
        totals.update(counts)
    if wrong:
        sys.exit(1)
    figures.store("junk", [{"outcome": outcome, "calls": count} for outcome, count in totals.most_common()])


if __name__ == "__main__":
    main()
