"""Every pattern of 16 bits on a machine: `python -m tests.platforms.patterns SECONDS`; the last line has the counts."""

import itertools
import sys
import time

from tests.campaigns import exhaustive


def main():
    until, values, settings, wrong = time.monotonic() + float(sys.argv[1]), 0, 0, 0
    everything = list(itertools.product(exhaustive.HALVES, exhaustive.QTYPES))
    for name, format in everything:
        if time.monotonic() > until:
            break
        try:
            values += exhaustive.every_half(name, format)
        except exhaustive.Wrong as error:
            wrong += 1
            print(error)
        settings += 1
    print(f"{values:,} values in {settings} of {len(everything)} pairs of dtypes, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
