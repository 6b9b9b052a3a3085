"""Every pattern of 16 bits on a machine: `python -m tests.platforms.patterns SECONDS STATE`; what is done is in a file.

A run goes on where the one before it stopped, and tries again what was wrong. The last line has the counts of all.
"""

import sys
import time
from pathlib import Path

from tests.campaigns import exhaustive

KIND = "every 16-bit pattern, by the reference"


def main():
    seconds, path = sys.argv[1:]
    state, pairs = exhaustive.State(Path(path)), [job for job in exhaustive.jobs() if job[0] == KIND]
    state.wrong.clear()
    exhaustive.run(state, time.monotonic() + float(seconds), pairs)
    done, wrong = state.done.get(KIND, {}), state.wrong.get(KIND, {})
    print(
        f"{sum(done.values()):,} values in {len(done) + len(wrong)} of {len(pairs)} pairs of dtypes, {len(wrong)} wrong"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
