"""Long runs against threads, processes, memory and files: `python -m tests.campaigns.stress NAME|all [--scale F]`.

Each prints what went wrong, and stores how often it did what (see figures.py).
"""

import argparse
import sys

import figures
import stress_calls
import stress_files
import stress_interrupts
import stress_memory
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

KINDS = {
    "threads": stress_calls.threads,
    "forks": stress_calls.forks,
    "processes": stress_calls.processes,
    "exits": stress_calls.exits,
    "interrupts": stress_interrupts.interrupts,
    "memory": stress_memory.memory,
    "files": stress_files.files,
    "cache": stress_files.cold,
}


def silent(what, total):
    """Show no progress."""
    return lambda count: None


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns.stress", description=__doc__.partition(":")[0])
    parser.add_argument("name", choices=[*KINDS, "all"])
    parser.add_argument("--scale", type=float, default=1.0, help="how often, times the numbers of a full run")
    arguments = parser.parse_args()
    failures = 0
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bars:

        def progress(what, total):
            task = bars.add_task(what, total=total)
            return lambda count: bars.advance(task, count)

        for name in KINDS if arguments.name == "all" else [arguments.name]:
            rows = KINDS[name](arguments.scale, progress)
            figures.store("stress", rows, by=("kind",))
            failures += sum(each["failures"] for each in rows)
    for each in (row for run in figures.runs("stress") for row in run["rows"]):
        print("{kind:11} {times:>11,}  {failures} failures  {what}".format_map(each))
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
