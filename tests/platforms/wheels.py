"""Try the machine code of a wheel: `python -m tests.platforms.wheels WHEEL NAME ... --minutes 5`.

NAME is a level of instructions, whose machine code runs on this CPU, or an emulated machine of the laboratory. Usual
calls are made with nothing but the wheel, and nothing is compiled; the same calls are made of this checkout. With a
level calls are also fuzzed and compared with the reference, and every float32 is quantized, each for some minutes;
calls that need code that the wheel lacks do not count. The last line of a name has the counts: calls with the same
bytes, others, and calls that could not be made.
"""

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from fastq.system import cpu
from tests.campaigns import figures
from tests.platforms.__main__ import versions
from tests.platforms.environments import DEFAULT, ROOT, environment
from tests.platforms.machines import MACHINES

CALLS = ROOT / "tests" / "support" / "usual_calls.py"
COMPILES = ROOT / "tests" / "support" / "compiles"
LEVELS = {each.name: each for each in cpu.LEVELS}


def unpacked(wheel, level, folder):
    """Unpack a wheel, with the machine code of a level alone where there is one of that name."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        others = [each for each in names if Path(each).parent.name == "machine_code"]
        kept = [each for each in others if Path(each).name.removesuffix(".json") == level]
        archive.extractall(folder, set(names) - set(others if kept else ()) | set(kept))


def variables(*path, **others):
    """Variables of a process that finds modules in these folders, and none in the current one."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONSAFEPATH": "1"} | others


def results(python, calls, variables):
    """Digests of the results of usual calls in a process, by call; of all where none is given."""
    command = [python, CALLS, "results", *calls]
    done = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True)
    return {call: digest for digest, call in (line.split(" ", 1) for line in done.stdout.splitlines())}


def usual_calls(python, wheel):
    """Compare results of usual calls, of a process with these variables, with this checkout's; say how many agree."""
    there = results(python, (), wheel)
    made = {call: digest for call, digest in there.items() if digest != "-"}
    here = results(sys.executable, made, variables(ROOT))
    wrong = [call for call, digest in made.items() if digest != here[call]]
    for call in wrong:
        print(f"not the bytes of this CPU: {call}")
    return f"{len(made) - len(wrong)} calls the same, {len(wrong)} not, {len(there) - len(made)} could not be made"


def program(wheel, *command):
    """Run a program of the tests in a process with these variables; return its last line."""
    command = [sys.executable, "-m", *map(str, command)]
    done = subprocess.run(command, cwd=ROOT, env=wheel, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip().rpartition("\n")[2]


def tried(wheel, name, given):
    """Yield each run of a wheel on a machine or by the code of a level, its Python and its last line."""
    python = sys.executable if name in LEVELS else environment(MACHINES[name], given.folder)[0]
    with tempfile.TemporaryDirectory() as home:
        unpacked(wheel, name, home)
        by_wheel = functools.partial(variables, home, COMPILES, HOME=home, FASTQ_COMPILED="-")
        yield "usual calls", python, usual_calls(python, by_wheel())
        if name in LEVELS:
            fuzz = "tests.campaigns.fuzz", "--covering", "--first", given.first, "--hours", given.minutes / 60
            yield "fuzz", python, program(by_wheel(ROOT), *fuzz)
            steps = "tests.platforms.patterns", 60 * given.minutes, Path(home, "done.json"), "steps"
            yield "steps", python, program(by_wheel(ROOT), *steps)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.platforms.wheels", description=__doc__)
    parser.add_argument("wheel", type=Path, metavar="WHEEL")
    parser.add_argument("names", nargs="+", metavar="NAME", choices=[*LEVELS, *MACHINES], help="levels or machines")
    parser.add_argument("--minutes", type=float, default=5, help="how long calls are fuzzed, and floats quantized")
    parser.add_argument("--first", type=int, default=0, help="the seed at which fuzzing begins")
    parser.add_argument("--folder", type=Path, default=DEFAULT, help="where Pythons and packages are kept")
    parser.add_argument("--store", action="store_true", help="keep the counts for the table of docs/reliability.md")
    given = parser.parse_args()
    wrong = False
    for name in given.names:
        for what, python, line in tried(given.wheel, name, given):
            print(f"{name}, {what}: {line}", flush=True)
            wrong |= not any(good in line for good in (", 0 not,", ", 0 failures", ", 0 wrong"))
            if given.store:
                row = {"machine": f"wheel, {name}", "what": what, "result": line, "with": versions(python)}
                command = f"python -m tests.platforms.wheels WHEEL {name}"
                figures.store("platforms", [row | {"command": command}], by=("machine", "what"))
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
