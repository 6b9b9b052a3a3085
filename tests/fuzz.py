"""Differential fuzzing over the product of all that a call can be: `python -m tests.fuzz --hours 2`.

A seed is a case: `python -m tests.fuzz --seed 123` does it alone and tells what differs. A run goes on where the one
before it stopped, whose state is in a file. Cases run in a process of their own; what kills it is a failure of the case
that it was at, and the next process goes on after it.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))
os.environ.setdefault("NUMBA_CACHE_DIR", str(TESTS.parent / ".pytest_cache" / "d" / "kernels"))
os.environ.setdefault("NUMBA_NUM_THREADS", "4")

STATE = TESTS.parent / ".pytest_cache" / "fuzz.json"
KERNELS = 300  # machine code of so many kernels, 4 MB each, and a process is replaced
SILENCE = 900  # seconds without a word, after which a process hangs
BATCH = 50  # cases between two reports of what was counted


# --- one process ------------------------------------------------------------------------------------------------------


def failure_of(error):
    """One line of what went wrong, and where."""
    from fuzzing.check import Different

    text = str(error) if isinstance(error, Different) else "".join(traceback.format_exception(error)[-3:])
    return text[-1500:]


def run_cases(seeds, report):
    """Run cases; report(kind, ...) is told each seed before it is run, failures, and counts from time to time."""
    from fuzzing.check import Settings, check, settings

    counts, now = Counter(), Settings()
    with settings():
        for done, seed in enumerate(seeds, 1):
            report("seed", seed)
            try:
                case, outcome = check(seed, now)
            except Exception as error:
                report("failure", seed, failure_of(error))
                counts["outcome", "different"] += 1
            else:
                counts["outcome", outcome] += 1
                counts[f"outcome of {case.of.operation}", outcome] += 1
                counts.update(case.axes.items())
            if done % BATCH == 0:
                report("counts", [[*key, n] for key, n in counts.items()])
                counts.clear()
        report("counts", [[*key, n] for key, n in counts.items()])


def serve(chosen):
    """Run cases as lines of JSON tell the parent: of seeds, until there is too much machine code."""
    from fastq.jit.compile import c_function

    def report(*what):
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    def seeds():
        for seed in chosen:
            if c_function.cache_info().currsize >= KERNELS:
                return
            yield seed

    run_cases(seeds(), report)


# --- the parent -------------------------------------------------------------------------------------------------------


class State:
    """What was done so far, kept in a file."""

    def __init__(self, path):
        self.path = path
        kept = json.loads(path.read_text()) if path.exists() else {}
        self.next, self.seconds = kept.get("next", 0), kept.get("seconds", 0.0)
        self.failing, self.counts = kept.get("failing", {}), kept.get("counts", {})

    @property
    def cases(self):
        return sum(self.counts.get("outcome", {}).values())

    def add(self, counts):
        for axis, value, n in counts:
            of = self.counts.setdefault(axis, {})
            of[value] = of.get(value, 0) + n

    def save(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".new")
        temporary.write_text(
            json.dumps({name: getattr(self, name) for name in ("next", "seconds", "failing", "counts")}, indent=1)
        )
        temporary.replace(self.path)

    def rows(self):
        """Figures: a line for each operation, and one for each axis of the product."""
        names = {"values": "same bytes", "exact": "same bytes, by fractions too", "refused": "refused alike"}
        lines = []
        for operation, cases in sorted(self.counts.get("operation", {}).items()):
            found = self.counts.get(f"outcome of {operation}", {})
            lines.append({"operation": operation, "cases": cases} | {n: found.get(k, 0) for k, n in names.items()})
        total = self.counts.get("outcome", {})
        whole = {"operation": "all", "cases": self.cases} | {n: total.get(k, 0) for k, n in names.items()}
        axes = [
            {"axis": axis, "values": len(found), "cases of the rarest": min(found.values())}
            for axis, found in sorted(self.counts.items())
            if not axis.startswith("outcome") and axis != "operation"
        ]
        return [*lines, whole | {"failures": len(self.failing), "hours": round(self.seconds / 3600, 2)}], axes


def command(*seeds):
    """The command that runs cases of seeds, or of all seeds from one on."""
    return [sys.executable, "-m", "tests.fuzz", "--serve", *map(str, seeds)]


class Worker:
    """A process that runs cases from a seed on, replaced when it has ended."""

    def __init__(self, state):
        self.state, self.process = state, None

    def messages(self, until):
        """What the process reports, until a time; that it died is a failure of the case that it was at."""
        import selectors

        while time.monotonic() < until:
            self.process = subprocess.Popen(
                command(self.state.next), cwd=TESTS.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            waiting = selectors.DefaultSelector()
            waiting.register(self.process.stdout, selectors.EVENT_READ)
            yield from self._read(waiting, until)
            if time.monotonic() >= until:
                self.process.kill()
            errors = self.process.communicate()[1].decode()
            if self.process.returncode and time.monotonic() < until:
                yield ["failure", self.state.next, f"exit code {self.process.returncode}\n{errors[-1500:]}"]
                self.state.next += 1

    def _read(self, waiting, until):
        pending = b""
        while time.monotonic() < until:
            if not waiting.select(timeout=min(SILENCE, max(until - time.monotonic(), 0.1))):
                if time.monotonic() < until:
                    self.process.kill()
                return
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                yield json.loads(line)


def try_again(state):
    """Run the cases again that failed before, and forget those that no longer do."""
    process = subprocess.run(command(*state.failing, "."), cwd=TESTS.parent, stdout=subprocess.PIPE, check=False)
    reports = [json.loads(line) for line in process.stdout.splitlines()]
    passed = {str(seed) for kind, seed, *_ in reports if kind == "seed"}
    passed -= {str(seed) for kind, seed, *_ in reports if kind == "failure"}
    if process.returncode:  # by the last one
        passed -= {str(seed) for kind, seed, *_ in reports[-1:] if kind == "seed"}
    for seed in passed:
        del state.failing[seed]


def run_for(hours, state):
    """Run cases for some hours, show how it goes, and keep the state."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    began, saved, before = time.monotonic(), time.monotonic(), state.seconds
    first = state.cases
    with Progress(*columns) as progress:
        task = progress.add_task("", total=hours * 3600)
        for kind, *what in Worker(state).messages(began + hours * 3600):
            now = time.monotonic()
            if kind == "seed":
                state.next = what[0]
            elif kind == "counts":
                state.add(what[0])
                state.next += 1
            else:
                seed, text = what
                state.failing[str(seed)] = text
                progress.console.print(f"python -m tests.fuzz --seed {seed}\n  {text}", markup=False, highlight=False)
            state.seconds = before + now - began
            rate = (state.cases - first) / max(now - began, 1e-9)
            text = f"{state.cases:,} cases, {rate:.0f}/s, {len(state.failing)} failures"
            progress.update(task, completed=now - began, description=text)
            if now - saved > 10:
                state.save()
                saved = now
    state.save()


def run_one(seed):
    """Run the case of one seed, and show it."""
    from fuzzing.cases import Case
    from fuzzing.check import Settings, check, settings

    case = Case(seed)
    call = case.call()
    print(case.of)
    print(case.axes)
    for array in call.args:
        print(repr(array)[:1500], getattr(array, "shape", ""), getattr(array, "strides", ""))
    print(call.options)
    with settings():
        try:
            print(check(seed, Settings())[1])
        except Exception as error:
            print(failure_of(error))
            return 1
    return 0


def main():
    import figures

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=0.1, help="how long to run")
    parser.add_argument("--state", type=Path, default=STATE, help="file that a run goes on from")
    parser.add_argument("--seed", type=int, help="run this case alone")
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        *chosen, last = given.serve
        return serve([*map(int, chosen)] if last == "." else itertools.count(int(last)))
    if given.seed is not None:
        return run_one(given.seed)
    state = State(given.state)
    try_again(state)
    run_for(given.hours, state)
    operations, axes = state.rows()
    figures.store("fuzz", operations)
    figures.store("fuzz-product", axes)
    return int(bool(state.failing))


if __name__ == "__main__":
    sys.exit(main())
