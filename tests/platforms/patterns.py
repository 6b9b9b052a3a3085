"""Patterns of bits on a machine: `python -m tests.platforms.patterns SECONDS STATE [steps]`; what is done is in a file.

A run goes on where the one before it stopped, and tries again what was wrong. It is every pattern of 16 bits, or with
`steps` every float32 around those at which codes change. What a wheel lacks, where nothing may be compiled, is left
out. The last line has the counts of all.
"""

import functools
import sys
import time
from pathlib import Path

import numpy as np
from fuzzing.check import LACKS

from tests.campaigns import exhaustive

HALVES = "every 16-bit pattern, by the reference"
STEPS = "every float32 around steps"


def steps():
    """What is proven of floats: kind, name and a function that does it."""
    for setting in exhaustive.settings():
        yield STEPS, setting.name, functools.partial(around_steps, setting)


def around_steps(setting):
    """Quantize all floats of the chunks in which a code changes, unless a wheel lacks what that needs."""
    x = np.zeros(exhaustive.CHUNK, np.float32)
    try:
        setting.codes(x, np.empty(x.shape, exhaustive.as_qtype(setting.format).storage))
    except AssertionError as error:
        if LACKS not in str(error):
            raise
        return
    every = exhaustive.EveryFloat(setting)
    for first in every.chunks_with_steps():
        every.check(first)
        yield exhaustive.CHUNK


def main():
    seconds, path, *kinds = sys.argv[1:]
    kind = STEPS if kinds else HALVES
    state, pairs = exhaustive.State(Path(path)), [job for job in (*exhaustive.jobs(), *steps()) if job[0] == kind]
    state.wrong.clear()
    exhaustive.run(state, time.monotonic() + float(seconds), pairs)
    done, wrong = state.done.get(kind, {}), state.wrong.get(kind, {})
    tried = sum(map(bool, done.values())) + len(wrong)
    print(f"{sum(done.values()):,} values in {tried} of {len(pairs)} pairs of dtypes, {len(wrong)} wrong")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
