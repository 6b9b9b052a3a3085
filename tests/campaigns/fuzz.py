"""Differential fuzzing over the product of all that a call can be: `python -m tests.campaigns.fuzz --hours 2`.

A seed is a case: `python -m tests.campaigns.fuzz --seed 123` does it alone and tells what differs. With `--variants N`
each case is followed by N - 1 others of its kind, which mostly need its kernels: other sizes, strides and values, same
options, dtypes and layouts. A run goes on where the one before it stopped, whose state is in a file, and stores what
was counted for docs/reliability.md, which it leaves alone if the file is a `--state` of one's own; with `--first` it
begins at a seed, and neither reads nor writes either. Cases run in processes of their own, `--jobs` of them at a time,
each with its share of the combinations; what kills one is a failure of the case that it was at, and the next process
goes on after it.
"""

import argparse
import functools
import itertools
import json
import queue
import re
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

from kept import Kept, reports_of

ROOT = Path(__file__).parents[2]
STATE = ROOT / ".pytest_cache" / "fuzz.json"
KERNELS = 150  # machine code of this many kernels, 3 MiB each if they were compiled, and a process is replaced
SILENCE = 900  # seconds without a word, after which a process hangs
BATCH = 50  # cases between two reports of the counts
TURN = 25  # cases of a combination, until it is the next one's turn


# --- one process ------------------------------------------------------------------------------------------------------


def failure_of(error):
    """One line on an error, and its place."""
    from fuzzing.check import Different

    text = str(error) if isinstance(error, Different) else "".join(traceback.format_exception(error)[-3:])
    return text[-1500:]


def counted(case, outcome):
    """Return what is counted of a case: nothing where it needs what a wheel lacks."""
    from fuzzing.combinations import VARIANT

    if outcome == "lacking":
        return ()
    values = ((axis, value) for axis, values in case.axes.items() for value in values)
    kind = "kind", "first" if case.number < VARIANT else "again"
    return kind, ("outcome", outcome), (f"outcome of {case.of.operation}", outcome), *values


def run_cases(numbers, report):
    """Run cases; report(kind, ...) is told each number before it is run, failures, and counts from time to time."""
    from fuzzing.check import Settings, check, settings

    counts, now = Counter(), Settings()
    with settings():
        for done, number in enumerate(numbers, 1):
            report("case", number)
            try:
                case, outcome = check(number, now)
            except Exception as error:
                report("failure", number, failure_of(error))
                counts["outcome", "different"] += 1
            else:
                counts.update(counted(case, outcome))
            if done % BATCH == 0:
                report("counts", [[*key, n] for key, n in counts.items()])
                counts.clear()
        report("counts", [[*key, n] for key, n in counts.items()])


def numbers_from(first, place, jobs, covering=False, variants=1, only=""):
    """Numbers of cases from one on, of every n-th combination; if covering, in turns of `covering_combinations`.

    `only` is a pattern that "OPERATION FORMAT CONVENTION" of each combination has.
    """
    from fuzzing.combinations import CASES, VARIANT, combination, covering_combinations

    order = {number: k for k, number in enumerate(covering_combinations() if covering else ())}
    after, turn = max(order, default=-1) + 1, max(1, TURN // variants)
    variant, seed = divmod(first, VARIANT)

    @functools.cache
    def is_own(number):
        named = not only or re.search(only, "{0.operation} {0.format} {0.row.name}".format(combination(number)))
        return order.get(number, number) % jobs == place and named

    def seeds():
        for k, number in itertools.product(range(0, CASES, turn), order if seed // CASES < after else ()):
            yield from range(number * CASES + k, number * CASES + min(k + turn, CASES))
        yield from itertools.count(max(seed // CASES, after) * CASES)

    found = (each + k * VARIANT for each in seeds() for k in range(variants))
    if seed // CASES in order or seed // CASES >= after:
        begin = seed + min(variant, variants - 1) * VARIANT
        found = itertools.dropwhile(lambda number: number != begin, found)
    return (number for number in found if is_own(number % VARIANT // CASES))


def serve(chosen):
    """Run cases as lines of JSON tell the parent: of numbers, until there is too much machine code."""
    from fastq.engine.jit import functions_in_memory

    def report(*what):
        print(json.dumps(what), flush=True)

    def numbers():
        for number in chosen:
            if functions_in_memory() >= KERNELS:
                report("case", number)  # which the next process begins with
                return
            yield number

    run_cases(numbers(), report)


# --- the parent -------------------------------------------------------------------------------------------------------


class State(Kept):
    """What was done so far."""

    def __init__(self, path=None):
        super().__init__(path, next=0, seconds=0.0, failing={}, counts={})

    @property
    def cases(self):
        return sum(self.counts.get("outcome", {}).values())

    def add(self, counts):
        for axis, value, n in counts:
            of = self.counts.setdefault(axis, {})
            of[value] = of.get(value, 0) + n

    @property
    def summary(self):
        """Counts in a line."""
        there = [f"{self.counts.get('kind', {}).get('first', 0):,} kinds"]
        there += [f"{len(self.counts.get(axis, ()))} {axis}s" for axis in ("operation", "format")]
        left = self.counts.get("outcome", {}).get("left to the CPU", 0)
        there += [f"{left} left to the CPU"] * bool(left)
        return f"{self.cases:,} cases of {', '.join(there)}, {len(self.failing)} failures"

    def rows(self):
        """Figures: a line for each operation, and one for each axis of the product; hours are those of all workers."""
        from fuzzing.product import met

        names = {"values": "same bytes", "exact": "same bytes, by fractions too", "refused": "refused alike"}
        lines = []
        for operation, cases in sorted(self.counts.get("operation", {}).items()):
            found = self.counts.get(f"outcome of {operation}", {})
            lines.append({"operation": operation, "cases": cases} | {n: found.get(k, 0) for k, n in names.items()})
        total = self.counts.get("outcome", {})
        whole = {"operation": "all", "cases": self.cases} | {n: total.get(k, 0) for k, n in names.items()}
        whole |= {"failures": len(self.failing), "hours of workers": round(self.seconds / 3600, 2)}
        return [*lines, whole], met(self.counts)


def command(kind, *numbers):
    """The command that runs cases: "again" those of some seeds, "serve" a worker's share of all from one on."""
    return [sys.executable, "-m", "tests.campaigns.fuzz", f"--{kind}", *map(str, numbers)]


class Worker:
    """A process that runs cases from a number on, one of several in parallel, replaced when it has ended."""

    def __init__(self, first, place=0, jobs=1, covering=False, variants=1, only=""):
        self.next, self.share, self.only = first, (place, jobs, int(covering), variants), only
        self.process, self.cases, self.dead = None, 0, False

    def messages(self, until):
        """What the process reports, until a time; that it died is a failure of the case that it was at."""

        def waiting():
            return min(SILENCE, max(until - time.monotonic(), 0.1))

        while time.monotonic() < until:
            self.process = subprocess.Popen(
                [*command("serve", self.next, int(self.dead), *self.share), "--only", self.only],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for message in reports_of(self.process.stdout.fileno(), waiting):
                if message is None or time.monotonic() >= until:
                    self.process.kill()
                    break
                if message[0] == "case":
                    self.next, self.cases = message[1], self.cases + 1
                yield message
            errors = self.process.communicate()[1].decode()
            self.dead = self.process.returncode != 0 and time.monotonic() < until
            if self.dead:
                yield ["failure", self.next, f"exit code {self.process.returncode}\n{errors[-1500:]}"]


def messages_of(workers, until):
    """What several workers report, as it comes."""
    waiting = queue.SimpleQueue()

    def listen(worker):
        try:
            for message in worker.messages(until):
                waiting.put(message)
        finally:
            waiting.put(None)

    for worker in workers:
        threading.Thread(target=listen, args=(worker,)).start()
    left = len(workers)
    while left:
        message = waiting.get()
        if message is None:
            left -= 1
        else:
            yield message


def try_again(state):
    """Run the cases again that failed before, and forget those that no longer do."""
    if not state.failing:
        return
    process = subprocess.run(command("again", *state.failing), cwd=ROOT, stdout=subprocess.PIPE, check=False)
    reports = [json.loads(line) for line in process.stdout.splitlines()]
    passed = {str(seed) for kind, seed, *_ in reports if kind == "case"}
    passed -= {str(seed) for kind, seed, *_ in reports if kind == "failure"}
    if process.returncode:  # by the last one
        passed -= {str(seed) for kind, seed, *_ in reports[-1:] if kind == "case"}
    for seed in passed:
        del state.failing[seed]


def run_for(hours, state, jobs=1, **chosen):
    """Run cases for some hours by some workers, show how it goes, and keep the state."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    began, saved, before = time.monotonic(), time.monotonic(), state.seconds
    first = state.cases
    workers = [Worker(state.next, place, jobs, **chosen) for place in range(jobs)]
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=hours * 3600)
        for kind, *what in messages_of(workers, began + hours * 3600):
            now = time.monotonic()
            if kind == "counts":
                state.add(what[0])
            elif kind == "failure":
                seed, text = what
                state.failing[str(seed)] = text
                again = f"python -m tests.campaigns.fuzz --seed {seed}"
                progress.console.print(f"{again}\n  {text}", markup=False, highlight=False)
            state.next = max(workers, key=lambda worker: worker.cases).next
            state.seconds = before + (now - began) * jobs
            rate = (state.cases - first) / max(now - began, 1e-9)
            text = f"{state.cases:,} cases, {rate:.0f}/s, {len(state.failing)} failures"
            progress.update(task, completed=now - began, description=text)
            if now - saved > 10:
                state.save()
                saved = now
    state.save()


def run_one(number):
    """Run the case of one number, and show it."""
    from fuzzing.cases import Case
    from fuzzing.check import Settings, check, settings

    case = Case(number)
    call = case.call()
    print(case.of)
    print(case.axes)
    for array in call.args:
        print(repr(array)[:1500], getattr(array, "shape", ""), getattr(array, "strides", ""))
    print(call.options)
    with settings():
        try:
            print(check(number, Settings())[1])
        except Exception as error:
            print(failure_of(error))
            return 1
    return 0


def main():
    import figures

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=0.1, help="how long to run")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes run cases at a time")
    parser.add_argument("--state", type=Path, default=STATE, help="file that a run goes on from")
    parser.add_argument("--first", type=int, help="begin at this seed, without a state and without storing figures")
    parser.add_argument("--covering", action="store_true", help="every operation and format first, each a few times")
    parser.add_argument("--only", default="", help="a regular expression found in OPERATION FORMAT CONVENTION")
    parser.add_argument("--seed", type=int, help="run this case alone")
    parser.add_argument("--variants", type=int, default=1, help="how many cases need the kernels of one")
    parser.add_argument("--serve", nargs=6, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--again", nargs="+", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        first, dead, *share = given.serve
        return serve(itertools.islice(numbers_from(first, *share, given.only), dead, None))
    if given.again:
        return serve(given.again)
    if given.seed is not None:
        return run_one(given.seed)
    state = State(given.state if given.first is None else None)
    state.next = state.next if given.first is None else given.first
    try_again(state)
    run_for(given.hours, state, given.jobs, covering=given.covering, variants=given.variants, only=given.only)
    print(state.summary)
    if given.first is None and given.state == STATE:
        operations, axes = state.rows()
        figures.store("fuzz", operations)
        figures.store("fuzz-product", axes)
    return int(bool(state.failing))


if __name__ == "__main__":
    sys.exit(main())
