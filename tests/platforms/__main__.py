"""The laboratory: `python -m tests.platforms NAME ... --minutes N` runs tests on machines that are not this one.

Each machine is a row of `machines.py`: a newer or older Python with its own NumPy and Numba, another CPU by emulation
with kernels compiled on this one, or a smaller instruction set of this one. Pythons and QEMU are Debian's, of the
mirror that apt uses, where Debian lacks one that of PATH; packages are those of pip's registries; all is kept in a
folder. It needs Linux on x86-64, dpkg and a network. The last line of a machine has its counts; the exit code is 1 if
anything differs.

Cases and patterns are counted over all runs so far: a run goes on where the one before it stopped, with `--store` by
the files in docs/reliability, else by files in that folder.
"""

import argparse
import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import called_elsewhere

from tests.campaigns import figures
from tests.platforms.environments import DEFAULT, HERE, ROOT, environment
from tests.platforms.machines import MACHINES

RECORDS = ROOT / "docs" / "reliability"
KINDS = "suite", "fuzz", "patterns"
VERSIONS = """import platform
from importlib.metadata import version
print(f"Python {platform.python_version()}, NumPy {version('numpy')}, Numba {version('numba')}", end="")
"""


def versions(python):
    """Say which Python, NumPy and Numba a Python has."""
    return subprocess.run([python, "-c", VERSIONS], stdout=subprocess.PIPE, text=True, check=True).stdout


def commands(machine, done, seconds, jobs, variants=1, only=""):
    """The command of each kind of run; what was done is added up in files of a folder, but that of `only` a few."""
    fuzz = ["-m", "tests.campaigns.fuzz", "--covering", "--jobs", str(jobs), "--variants", str(variants)]
    fuzz += ["--only", only, "--first", "0"] if only else ["--state", str(done / f"{machine.name}-fuzz.json")]
    return {
        "suite": ["-m", "pytest", "-q", "-n", str(jobs)],
        "fuzz": [*fuzz, "--hours", str(seconds / 3600)],
        "patterns": ["-m", "tests.platforms.patterns", str(seconds), str(done / f"{machine.name}-patterns.json")],
    }


@contextlib.contextmanager
def processes(machine, python, folder, jobs):
    """Python and the environment of a machine's processes.

    What is of another architecture runs in two: calls of fastq are made by emulation, with kernels that others compile,
    all else on this CPU.
    """
    kernels = folder / "kernels" / machine.name
    kernels.mkdir(parents=True, exist_ok=True)
    shared = os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_NUM_THREADS": "4"}
    own = {"NUMBA_CACHE_DIR": str(kernels)}
    if machine.cpu:
        own |= {"NUMBA_CPU_NAME": machine.cpu, "NUMBA_CPU_FEATURES": machine.features}
    if not machine.triple:
        yield python, shared | own
        return
    compiler, _ = environment(machine.compiler, folder)
    with tempfile.TemporaryDirectory(prefix="fastq-") as asked:
        command = [compiler, "-m", "tests.platforms.cross_compiler", asked, machine.triple]
        paths = {"PYTHONPATH": f"{ROOT}:{HERE}"}
        compiling = [subprocess.Popen(command, cwd=ROOT, env=shared | own | paths) for _ in range(jobs)]
        settings = [f"{name}={value}" for name, value in {**own, "FASTQ_COMPILED_IN": asked}.items()]
        try:
            yield compiler, shared | {called_elsewhere.VARIABLE: shlex.join(["env", *settings, str(python)])}
        finally:
            for process in compiling:
                process.kill()
                process.wait()


def run(machine, kinds, folder, done, seconds, jobs, *chosen):
    """Run some kinds of runs on a machine; return whether all is right, the last line of each run, and versions."""
    python, missing = environment(machine, folder)
    if missing:
        print(f"{machine.name}: the registries have no wheel of {', '.join(missing)}", flush=True)
    right, lines = True, {}
    with processes(machine, python, folder, jobs) as (python, settings):
        for kind in kinds:
            command = [python, *commands(machine, done, seconds / len(kinds), jobs, *chosen)[kind]]
            process = subprocess.run(command, cwd=ROOT, env=settings, stdout=subprocess.PIPE, text=True, check=False)
            print(process.stdout)
            right &= process.returncode == 0
            lines[kind] = process.stdout.strip().rpartition("\n")[2].strip("= ")
    return right, lines, versions(python)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.platforms", description=__doc__)
    parser.add_argument("machines", nargs="*", metavar="NAME", help="machines, as --list names them")
    parser.add_argument("--run", choices=KINDS, help="of the tests of a machine only this")
    parser.add_argument("--minutes", type=float, default=10, help="how long a machine runs; a suite runs to its end")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes run tests at a time")
    parser.add_argument("--variants", type=int, default=1, help="how many cases of the fuzzer need the kernels of one")
    parser.add_argument("--only", default="", help="fuzz where this expression is found in 'OPERATION FORMAT'")
    parser.add_argument("--folder", type=Path, default=DEFAULT, help="where Pythons and packages are kept")
    parser.add_argument("--store", action="store_true", help="add the counts to those of docs/reliability.md")
    parser.add_argument("--list", action="store_true", help="print the machines")
    given = parser.parse_args()
    if given.list:
        for machine in MACHINES.values():
            print(f"{machine.name:12} {machine.described}")
        return 0
    if unknown := [name for name in given.machines if name not in MACHINES]:
        parser.error(f"NAME must be one of {', '.join(MACHINES)}, not {', '.join(unknown)}")
    failed = []
    for name in given.machines or MACHINES:
        began = time.monotonic()
        kinds = [given.run] if given.run else MACHINES[name].runs
        done = RECORDS if given.store else given.folder / "done"
        chosen = given.minutes * 60, given.jobs, given.variants, given.only
        try:
            right, lines, versions = run(MACHINES[name], kinds, given.folder, done, *chosen)
        except FileNotFoundError as error:
            print(f"{name}: {error}", flush=True)
            failed.append(name)
            continue
        failed += [] if right else [name]
        if given.store:
            command = f"python -m tests.platforms {name}" + f" --run fuzz --only '{given.only}'" * bool(given.only)
            rows = [
                {
                    "machine": name,
                    "what": kind + " of a few" * bool(given.only),
                    "result": line,
                    "with": versions,
                    "command": command,
                }
                for kind, line in lines.items()
            ]
            figures.store("platforms", rows, by=("machine", "what"))
        results = "; ".join(f"{kind}: {line}" for kind, line in lines.items())
        print(f"{name}, {(time.monotonic() - began) / 60:.0f} minutes: {results}", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
