"""Mutation testing of all that computes, chooses and refuses: `python -m tests.campaigns.mutants --hours 1`.

A mutant is the package with one small change: an operator, constant, condition, argument or statement (see
`mutating.operators`, which also says what is left out). It is killed where a probe fails: a case of the fuzzer, whose
bytes are compared with the reference, or an ordinary quick test. A mutant that no probe notices survives; tests/
mutants.toml has the reason where nothing could notice it. One that survives for no such reason fails the command: a
test is missing, or the code is not needed.

A first run records what each probe reaches, for many minutes; then a mutant is judged by the probes that reach it, in a
separate process in which the changed module is imported, and only kernels that depend on the change are compiled again.
Mutants are drawn from all modules, and a run goes on where the one before it stopped.

`--only kernels.noise` draws mutants of one module and records a minute or two: the files of tests that name it or
import a module of that name, or those of `--tests`. `--again` judges those that survived again, `--wide` by all probes.

Not changed: warm-up, documentation of conventions, measuring and tuning, which decide speed only; the thread pool, the
memory of results and what reads CPython's objects, where a wrong word is an abort or a hang, which
`tests.campaigns.stress` is for; the type inference of calls from users' compiled functions.
"""

import argparse
import functools
import pickle
import random
import re
import sys
import time
import tomllib
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

from kept import Kept, write
from mutating.reach import FOLDER, ROOMS, ROOT, file_of

STATE = FOLDER / "state.json"
REASONS = Path(__file__).with_name("mutants.toml")
COMBINATIONS, KERNELS = 240, 180  # of the fuzzer, from which cases are drawn that need this many kernels

_LEFT_OUT = {
    "kernels/__init__.py",
    "kernels/embedded.py",
    "kernels/inspection.py",
    "engine/simd/__init__.py",
    "engine/simd/atomics.py",
    "dispatch/compiled.py",
    "formats/describe.py",
}
KILLED = "result", "error", "crash", "hang"


def files():
    """Files that are changed."""
    for room in ROOMS:
        path = ROOT / room
        for file in [path] if path.suffix else sorted(path.rglob("*.py")):
            if file_of(file) not in _LEFT_OUT:
                yield file


def sample(seed):
    """All mutants, in an order of which any beginning is spread over all modules; by module, how many there are."""
    from mutating.operators import mutants

    order, counts = [], {}
    for file in files():
        found = mutants(file, ROOT)
        random.Random(f"{seed} {file.name}").shuffle(found)
        counts[file_of(file)] = len(found)
        order += [(k / len(found) ** 0.75, mutant) for k, mutant in enumerate(found)]
    return [mutant for _, mutant in sorted(order, key=lambda each: (each[0], each[1].name))], counts


def reasons():
    """Why mutants survive, by their names."""
    return {name: row["reason"] for name, row in tomllib.loads(REASONS.read_text(encoding="utf-8")).items()}


class State(Kept):
    """What became of each mutant so far."""

    def __init__(self, path):
        super().__init__(path, verdicts={}, seconds=0.0)


def rows(state, order, counts):
    """Figures: a line for each module."""
    explained, tables = reasons(), {file: Counter() for file in counts}
    for mutant in order:
        if (verdict := state.verdicts.get(mutant.name)) is not None:
            outcome = verdict["outcome"]
            if outcome not in KILLED:
                outcome = "equivalent" if mutant.name in explained else "survived"
            tables[file_of(mutant.path)][outcome] += 1
    tables["all"] = sum(tables.values(), Counter())
    counts = counts | {"all": sum(counts.values())}
    return [_row(name, counts[name], table) for name, table in tables.items()]


def _row(name, mutants, table):
    tried, killed = table.total(), sum(table[outcome] for outcome in KILLED)
    able = tried - table["equivalent"]
    return {
        "module": name,
        "mutants": mutants,
        "tried": tried,
        "other results": table["result"],
        "errors": table["error"],
        "crash or hang": table["crash"] + table["hang"],
        "equivalent": table["equivalent"],
        "survived": table["survived"],
        "killed of those not equivalent": f"{100 * killed / able:.1f} %" if able else "",
    }


# --- what probes reach ------------------------------------------------------------------------------------------------


def reach_of(progress, jobs, names=()):
    """What each probe reaches, a file of tests at a time, recorded again if the package or the file has changed.

    With names these files of tests alone are probes, else all and cases of the fuzzer.
    """
    from mutating import probes, reach

    folder = FOLDER / ("narrow" if names else "reach")

    def record(name):
        return reach.record_tests(probes.file_of_tests(name)) if names else reach.record_probes(name)

    with ThreadPoolExecutor(jobs) as pool:
        recorded = names or probes.FILES
        parts = [pool.submit(_kept, folder, name, functools.partial(record, name), name) for name in recorded]
        if not names:
            chosen = _kept(folder, "seeds", lambda: reach.choose_cases(COMBINATIONS, KERNELS))
            parts.append(pool.submit(_kept, folder, "cases", lambda: reach.record_cases(chosen, progress)))
        for done, part in enumerate(parts):
            progress("files of tests", done, len(parts))
            part.result()
    return reach.joined([part.result() for part in parts])


def _kept(folder, name, make, *tests):
    """The contents of a file, made in a separate process if there is no file for the current package and tests."""
    from mutating import reach

    path = folder / f"{name}.{reach.sources_digest(*tests)}.pickle"
    if not path.exists():
        for old in folder.glob(f"{name}.*"):
            old.unlink()
        reach.in_child(lambda: write(path, pickle.dumps(make())))
    return pickle.loads(path.read_bytes())


# --- the command ------------------------------------------------------------------------------------------------------


def run_for(hours, state, order, reach, patience, jobs, again):
    """Judge mutants for some hours, or all of them; those that survived before without a reason first, if `again`."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    explained, began, before = reasons(), time.monotonic(), state.seconds
    verdicts, counts = state.verdicts, Counter(each["outcome"] in KILLED for each in state.verdicts.values())
    again = [each for each in order if again and _survives(verdicts.get(each.name)) and each.name not in explained]
    fresh = [each for each in order if each.name not in verdicts]
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=len(again) + len(fresh))
        until = began + hours * 3600
        for done, (mutant, verdict) in enumerate(_judged(again + fresh, reach, patience, jobs, until)):
            if mutant.name in verdicts:
                counts[verdicts[mutant.name]["outcome"] in KILLED] -= 1
            verdicts[mutant.name] = vars(verdict)
            counts[verdict.outcome in KILLED] += 1
            if verdict.outcome not in KILLED and mutant.name not in explained:
                progress.console.print(f"{verdict.outcome}: {described(mutant)}", markup=False, highlight=False)
            state.seconds = before + time.monotonic() - began
            state.save()
            text = f"{counts[True]:,} of {counts.total():,} killed"
            progress.update(task, completed=done + 1, description=text)


def _judged(order, reach, patience, jobs, until):
    """Yield mutants with their verdicts, several judged at once, until a time."""
    with ThreadPoolExecutor(jobs) as pool:
        running, left = {}, iter(order)
        while True:
            while len(running) < jobs and time.monotonic() < until and (mutant := next(left, None)) is not None:
                running[pool.submit(_judge, mutant, reach, patience)] = mutant
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def _judge(mutant, reach, patience):
    """Judge a mutant by a few probes, and if it survives by more: a quarter of all mutants need those."""
    from mutating import judge

    verdict = judge.judge(mutant, judge.plan_for(mutant, reach))
    if verdict.outcome in KILLED or patience == 1:
        return verdict
    return judge.judge(mutant, judge.plan_for(mutant, reach, patience))


def _survives(verdict):
    return verdict is not None and verdict["outcome"] not in KILLED


def described(mutant):
    """One line of a mutant."""
    place = f"{mutant.path.relative_to(ROOT.parent)}:{mutant.lines.start}"
    return f"{mutant.name}  {place}  {mutant.change}"


def main():
    from mutating import judge, probes

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hours", type=float, default=0.5, help="how long to run")
    parser.add_argument("--state", type=Path, default=STATE, help="file that a run goes on from")
    parser.add_argument("--seed", type=int, default=0, help="another sample")
    parser.add_argument("--only", help="judge those alone whose name matches, by the tests that name their modules")
    parser.add_argument("--tests", nargs="+", metavar="NAME", help="with --only: by tests/**/test_NAME.py instead")
    parser.add_argument("--wide", action="store_true", help="with --only: by all probes")
    parser.add_argument(
        "--patience", type=int, default=16, help="factor of the probes for mutants that survive at first"
    )
    parser.add_argument("--again", action="store_true", help="judge those first that survived before, with no reason")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    given = parser.parse_args()
    judge.prepare()
    from rich.console import Console

    console = Console()

    def progress(what, done, of):
        if done % 25 == 0 or of < 25:
            console.print(f"{what}: {done:,}" + (f" of {of:,}" if of else ""), highlight=False)

    order, counts = sample(given.seed)
    chosen = [each for each in order if re.search(given.only or "", each.name)]
    modules = {each.module for each in chosen}
    names = given.tests or sorted({name for module in modules for name in probes.files_about(module)})
    if given.only and not given.wide and not names:
        parser.error(f"no file of tests names {', '.join(sorted(modules))}: give some with --tests, or --wide")
    reach = reach_of(progress, given.jobs, names if given.only and not given.wide else ())
    for dropped in reach.dropped:
        console.print(f"fails as things are: {dropped}", markup=False, highlight=False)
    state = State(given.state)
    run_for(given.hours, state, chosen, reach, given.patience, given.jobs, given.again)
    if given.only:
        for row in rows(state, chosen, counts)[:-1]:
            if row["tried"]:
                print(", ".join(f"{key}: {value}" for key, value in row.items()))
    else:
        kept = {mutant.name for mutant in order}
        state.verdicts = {name: verdict for name, verdict in state.verdicts.items() if name in kept}
        import figures  # which imports the package

        figures.store("mutants", rows(state, order, counts))
    explained = reasons()
    left = [each for each in chosen if _survives(state.verdicts.get(each.name)) and each.name not in explained]
    for mutant in left:
        print(f"{state.verdicts[mutant.name]['outcome']}: {described(mutant)}")
    return int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
