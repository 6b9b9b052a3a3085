"""Try a wheel with machine code on a machine: `python -m tests.platforms.wheels WHEEL MACHINE [FOLDER]`.

Usual calls are made there with nothing but the wheel, and nothing is compiled; here the same calls are made of this
checkout. The last line counts the calls: results that have the same bytes, others, and calls for which the wheel has no
machine code.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests.platforms.environments import DEFAULT, ROOT, environment
from tests.platforms.machines import MACHINES

CALLS = ROOT / "tests" / "operations" / "usual_calls.py"
COMPILES = ROOT / "tests" / "support" / "compiles"


def results(python, *path, **settings):
    """Digests of the results of usual calls in a process, by call."""
    given = {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONSAFEPATH": "1"}
    command = [python, CALLS, "results"]
    done = subprocess.run(command, env=os.environ | given | settings, stdout=subprocess.PIPE, text=True, check=True)
    return {call: digest for digest, call in (line.split(" ", 1) for line in done.stdout.splitlines())}


def main():
    wheel, name, *folder = sys.argv[1:]
    python, _ = environment(MACHINES[name], Path(*folder or [DEFAULT]))
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(wheel).extractall(folder)
        there = results(python, folder, COMPILES, HOME=folder, FASTQ_COMPILED="-")
    here = results(sys.executable, ROOT)
    lacking = [call for call, digest in there.items() if digest == "-"]
    wrong = [call for call, digest in there.items() if digest not in ("-", here[call])]
    for call in wrong:
        print(f"not the bytes of this CPU: {call}")
    print(
        f"{len(there) - len(lacking) - len(wrong)} calls the same, {len(wrong)} not, {len(lacking)} lack machine code"
    )
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
