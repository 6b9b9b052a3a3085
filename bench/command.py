"""`fastq bench`: measure the operations; `python -m bench` of a checkout has this as `run`, and more (checkout.py)."""

from __future__ import annotations

import functools
import importlib.util
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import MofNCompleteColumn, TimeElapsedColumn

from . import contention, machine, memory, scaling, show, startup
from .cases import WORKS, Case, cases, chosen
from .options import FILE, chosen_option, console, count_option, keep_option, progress, sizes_option, threads_option
from .peers import OURS, PEERS
from .results import Results
from .rounds import ROUNDS, Bench, Settings, measure_all
from .worker import NOT_INSTALLED, Workers

DEFAULT_SIZES = (24, 18, 12)
# in this order, so that the sizes of most interest are measured if time runs out
FULL_SIZES, LARGEST, LARGEST_WORKS = (26, 18, 24, 12, 22, 20, 16, 14, 10), 28, WORKS[:3]
DEFAULT_BUDGET, FULL_BUDGET = 160.0, 1500.0
IN_PART = 4  # exit code where a contender that was named was not measured
PLOTS = (".png", ".svg", ".pdf")


def peers_of(ctx: Any, param: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the peers that are named, ours always among them; all where none is named."""
    wanted = [name for text in names for name in text.split(",")]
    if unknown := [name for name in wanted if name not in PEERS]:
        raise click.BadParameter(f"{', '.join(unknown)}: choose from {', '.join(PEERS)}")
    return tuple(name for name in PEERS if not wanted or name in (OURS, *wanted))


def drawable(ctx: Any, param: Any, path: Path | None) -> Path | None:
    """Refuse a plot before anything is measured, where it could not be drawn."""
    if path and path.suffix not in PLOTS:
        raise click.BadParameter(f"{path.name!r} does not end in {', '.join(PLOTS)}")
    if path and not importlib.util.find_spec("matplotlib"):
        raise click.UsageError("--plot needs matplotlib: pip install matplotlib")
    return path


def works_of(ctx: Any, param: Any, patterns: tuple[str, ...]) -> list[Any]:
    """Return the works that fit; each pattern has to be for one."""
    wanted = [pattern for text in patterns for pattern in text.split(",")]
    if unknown := [pattern for pattern in wanted if not chosen([pattern])]:
        raise click.BadParameter(f"no work fits {', '.join(unknown)}; --list prints them")
    return chosen(wanted)


def print_list(works: list[Any], peers: tuple[str, ...]) -> None:
    """Print the cases and who takes part."""
    for work in works:
        click.echo(f"{work.name:42} {work.title}")
    for name in peers:
        click.echo(f"{name:42} {PEERS[name].convention}")


plot_option = functools.partial(
    click.option,
    "--plot",
    "plot_file",
    type=FILE,
    callback=drawable,
    help=f"Draw throughput against size ({', '.join(PLOTS)}).",
)
works_option = chosen_option(
    "-o", "--operations", "works", "PATTERN", "Operations to measure; by default all.", works_of
)
peers_option = chosen_option("-c", "--contenders", "peers", "NAMES", "Contenders to measure; by default all.", peers_of)
options = (
    sizes_option(DEFAULT_SIZES),
    works_option,
    threads_option,
    peers_option,
    count_option("--rounds", ROUNDS, "Most rounds of each case."),
    click.option(
        "--seconds", "budget", type=float, show_default=f"{DEFAULT_BUDGET:g}", help="Seconds for all cases together."
    ),
)


class Wanted(NamedTuple):
    """What the options of a measurement say."""

    sizes: tuple[int, ...] | None
    works: list[Any]
    threads: int
    peers: tuple[str, ...]
    rounds: int
    budget: float | None

    def settings(self, budget: float) -> Settings:
        """How it is measured, in these seconds where none are given."""
        return Settings(self.threads, self.peers, self.rounds, budget=budget if self.budget is None else self.budget)


def measuring(command: Any) -> Any:
    """Give a command the options of a measurement, which are the fields of `Wanted`."""
    return functools.reduce(lambda made, option: option(made), reversed(options), command)


@click.command()
@measuring
@keep_option
@plot_option()
@click.option("--every", is_flag=True, help="Also print a row for each contender.")
@click.option("--full", is_flag=True, help="Measure all sizes in about half an hour, and the other sections.")
@click.option("--list", "listing", is_flag=True, help="Print the chosen cases and contenders, and measure nothing.")
def run(json_file: Path | None, plot_file: Path | None, every: bool, full: bool, listing: bool, **named: Any) -> None:
    """Measure every operation, the peers, and the limit of the memory.

    Each peer runs in its own process, and all take turns. Every result is compared with the reference before it is
    timed. LOG2 is, for example, 18, or 12,18, or 10-26:2. PATTERN matches an operation or a name that --list prints;
    give several, or one with commas.
    """
    wanted = Wanted(**named)
    if listing:
        print_list(wanted.works, wanted.peers)
        return
    default_sizes, default_budget = (FULL_SIZES, FULL_BUDGET) if full else (DEFAULT_SIZES, DEFAULT_BUDGET)
    every_case = [*cases(wanted.works, wanted.sizes or default_sizes)]
    if full and not wanted.sizes:
        every_case += [Case(work, LARGEST) for work in wanted.works if work in LARGEST_WORKS]
    results = measured(wanted.settings(default_budget), every_case, json_file)
    if full:
        add_sections(results, wanted.threads, json_file)
    show.show(results, console(), everyone=every)
    if plot_file:
        from . import plot

        plot.save(results, plot_file)
    ctx = click.get_current_context()
    absent = [line for line in show.absences(results) if line.endswith(NOT_INSTALLED)]
    if absent and ctx.get_parameter_source("peers") is ParameterSource.COMMANDLINE:
        click.echo("\n".join(absent), err=True)
        ctx.exit(IN_PART)


def add_sections(results: Results, threads: int, json_file: Path | None) -> None:
    """Measure the other sections; a section that fails is reported and left out."""
    for name, rows in sections(threads).items():
        Console(stderr=True).print(f"measuring {name} ...", style="dim")
        results.sections[name] = []
        try:
            for row in rows:
                results.sections[name].append(row)
        except Exception as error:  # whatever it is, what was measured so far is kept
            results.remarks.append(f"{name} was not finished: {type(error).__name__}: {error}")
        if json_file:
            results.write(json_file)


def sections(threads: int) -> dict[str, Iterator[dict[str, Any]]]:
    """The sections other than throughput, by name."""
    small = (startup.small_calls(), startup.imports(), *map(startup.first_calls, startup.FIRST_CALL_ELEMENTS))
    return {
        "scaling": iter(scaling.rows(threads)),
        "startup": itertools.chain(*small),
        "contention": contention.rows(threads),
        "memory": memory.rows(),
    }


def measured(settings: Settings, wanted: list[Case], json_file: Path | None) -> Results:
    """Measure cases with a progress bar, and keep the results after each."""
    chosen_settings = {name: getattr(settings, name) for name in ("rounds", "turn", "budget", "threads")}
    results = Results(machine.describe(), {}, chosen_settings, machine.now())
    with Workers(settings.threads) as workers, progress(MofNCompleteColumn(), TimeElapsedColumn()) as bar:
        task = bar.add_task("starting the peers", total=len(wanted))
        bench = Bench(settings, workers)
        bench.start()
        results.versions = bench.versions

        def done(measurement: Any) -> None:
            results.measurements.append(measurement)
            results.sort()
            bar.advance(task)
            if json_file:
                results.write(json_file)

        measure_all(bench, wanted, done, lambda case: bar.update(task, description=case.name))
    return results
