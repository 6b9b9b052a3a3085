"""Patterns of bits on a machine: `python -m tests.platforms.patterns SECONDS [WHAT]`; the last line has the counts.

WHAT is "halves", every pattern of 16 bits in every format, or "floats", every float32 around those at which codes
change. What a wheel lacks machine code of is not counted, where nothing may be compiled.
"""

import functools
import itertools
import sys
import time

import numpy as np
from fuzzing.check import LACKS

from tests.campaigns import exhaustive


def halves():
    for name, format in itertools.product(exhaustive.HALVES, exhaustive.QTYPES):
        yield functools.partial(exhaustive.every_half, name, format)


def floats():
    for setting in exhaustive.settings():
        yield functools.partial(near_steps, setting)


def near_steps(setting):
    """Quantize all floats of the chunks in which a code changes; return how many there were."""
    zeros = np.zeros(exhaustive.CHUNK, np.float32)
    setting.codes(zeros, np.empty(zeros.shape, exhaustive.QTYPES[setting.format].storage))
    every = exhaustive.EveryFloat(setting)
    chunks = every.chunks_with_steps()
    for first in chunks:
        every.check(first)
    return len(chunks) * exhaustive.CHUNK


WHAT = {"halves": halves, "floats": floats}


def main():
    until, values, settings, wrong = time.monotonic() + float(sys.argv[1]), 0, 0, 0
    everything = list(WHAT[sys.argv[2] if sys.argv[2:] else "halves"]())
    for proof in everything:
        if time.monotonic() > until:
            break
        try:
            values += proof()
        except exhaustive.Wrong as error:
            wrong += 1
            print(error)
        except AssertionError as error:
            if LACKS not in str(error):
                raise
            continue
        settings += 1
    print(f"{values:,} values in {settings} of {len(everything)} settings, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
