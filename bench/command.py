"""The command line: `fastq bench` is `run`; `python -m bench` has the rest."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from . import contention, machine, memory, scaling, show, startup, tune
from .cases import WORKS, Case, cases, chosen
from .options import FILE, Sizes, console, threads_option, words
from .peers import OURS, PEERS
from .results import Results, read, stored
from .rounds import Bench, Settings, measure_all
from .scan import command as scan_command
from .scan import store as scan_results
from .worker import Workers

DEFAULT_SIZES = (24, 18, 12)
# in this order, so that the sizes of the targets are measured if time runs out
FULL_SIZES, LARGEST, LARGEST_WORKS = (26, 18, 24, 12, 22, 20, 16, 14, 10), 28, WORKS[:3]
DEFAULT_BUDGET, FULL_BUDGET = 160.0, 1500.0
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
        raise click.UsageError("--plot needs matplotlib: pip install 'fastq-kernels[plot]'")
    return path


def works_of(ctx: Any, param: Any, patterns: tuple[str, ...]) -> list[Any]:
    """Return the works that fit."""
    wanted = [pattern for text in patterns for pattern in text.split(",")]
    if not (found := chosen(wanted)):
        raise click.BadParameter(f"no work fits {', '.join(wanted)}; --list prints them")
    return found


def listed(ctx: Any, param: Any, value: bool) -> None:
    """Print the table of cases and who takes part, and leave."""
    if value:
        for work in WORKS:
            click.echo(f"{work.name:42} {work.title}")
        for peer in PEERS.values():
            click.echo(f"{peer.name:42} {peer.convention}")
        ctx.exit()


plot_option = functools.partial(
    click.option,
    "--plot",
    "plot_file",
    type=FILE,
    callback=drawable,
    help=f"Draw throughput against size ({', '.join(PLOTS)}).",
)
sizes_option = click.option("--sizes", type=Sizes(), show_default=words(DEFAULT_SIZES), help="Elements, as log2.")
works_option = click.option(
    "-o", "--operations", "works", multiple=True, callback=works_of, metavar="PATTERN", help="What; default all."
)
peers_option = click.option(
    "-c", "--contenders", "peers", multiple=True, callback=peers_of, metavar="NAMES", help="Who; default all."
)
rounds_option = click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="At most.")
budget_option = click.option(
    "--seconds", "budget", type=float, show_default=f"{DEFAULT_BUDGET:g}", help="Time for all cases together."
)


options = (sizes_option, works_option, threads_option, peers_option, rounds_option, budget_option)


def measuring(command: Any) -> Any:
    """Give a command the options of a measurement."""
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@measuring
@click.option("--json", "json_file", type=FILE, help="Keep the results; written after every case.")
@plot_option()
@click.option("--every", is_flag=True, help="Print a row for each contender too.")
@click.option("--full", is_flag=True, help="All sizes in about half an hour, and the sections beside throughput.")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=listed, help="Print what there is.")
def run(
    sizes: tuple[int, ...] | None,
    works: list[Any],
    threads: int,
    peers: tuple[str, ...],
    rounds: int,
    budget: float | None,
    json_file: Path | None,
    plot_file: Path | None,
    every: bool,
    full: bool,
) -> None:
    """Measure every operation beside the peers and beside what the memory allows.

    Each peer runs in a process of its own and all take turns. Every result is compared with the reference before it is
    timed. LOG2 is like 18, or 12,18, or 10-26:2; PATTERN fits an operation or a name that --list prints; several may
    be given, or one with commas.
    """
    default_sizes, default_budget = (FULL_SIZES, FULL_BUDGET) if full else (DEFAULT_SIZES, DEFAULT_BUDGET)
    settings = Settings(threads, peers, rounds, budget=default_budget if budget is None else budget)
    wanted = [*cases(works, sizes or default_sizes)]
    if full and not sizes:
        wanted += [Case(work, LARGEST) for work in works if work in LARGEST_WORKS]
    results = measured(settings, wanted, json_file)
    if full:
        add_sections(results, threads, json_file)
    show.show(results, console(), everyone=every)
    if plot_file:
        from . import plot

        plot.save(results, plot_file)


def add_sections(results: Results, threads: int, json_file: Path | None) -> None:
    """Measure what is beside throughput; a part that fails is remarked upon and left out."""
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
    """The parts beside throughput, by name."""
    small = (startup.small_calls(), startup.imports(), *map(startup.first_calls, startup.FIRST_CALL_ELEMENTS))
    return {
        "scaling": scaling.rows(threads),
        "startup": itertools.chain(*small),
        "contention": contention.rows(threads),
        "memory": memory.rows(),
    }


def measured(settings: Settings, wanted: list[Case], json_file: Path | None) -> Results:
    """Measure cases with a progress bar, and keep the results after each."""
    started = time.strftime("%Y-%m-%d %H:%M:%S")
    chosen_settings = {"rounds": settings.rounds, "turn": settings.turn, "budget": settings.budget}
    results = Results(machine.describe(), {}, chosen_settings | {"threads": settings.threads}, started)
    bar = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Workers(settings.threads) as workers, Progress(*columns, console=bar, disable=not bar.is_terminal) as progress:
        task = progress.add_task("starting the peers", total=len(wanted))
        bench = Bench(settings, workers)
        bench.start()
        results.versions = bench.versions

        def done(measurement: Any) -> None:
            results.measurements.append(measurement)
            results.sort()
            progress.advance(task)
            if json_file:
                results.write(json_file)

        measure_all(bench, wanted, done, lambda case: progress.update(task, description=case.name))
    return results


NOTHING_STORED = "there are no stored results: python -m bench run --full --json bench/results/NAME.json.gz"


def results_of(ctx: Any, param: Any, path: Path | None) -> Path:
    """Return the file that is named, or else the results of such a CPU, or else those that were measured last."""
    if path is None:
        found, mine = stored(), machine.cpu_name(machine.cpu())
        path = min(found, key=lambda each: machine.cpu_name(found[each].machine) != mine, default=None)
    if path is None:
        raise click.UsageError(NOTHING_STORED)
    if not path.is_file():
        raise click.BadParameter(f"there is no file {str(path)!r}")
    return path


@click.group()
def main() -> None:
    """Measure fastq."""


main.add_command(run)
main.add_command(scan_command.scan)
results_argument = click.argument("results_file", metavar="[JSON]", required=False, type=FILE, callback=results_of)


@main.command()
def report() -> None:
    """Write docs/performance.md, a page for each other machine and the README's table, and the page of stored scans."""
    from . import report as pages

    found = stored()
    if not found:
        raise click.UsageError(NOTHING_STORED)
    scans = scan_results.stored()
    for path in pages.write(found, scans):
        click.echo(f"{path} written")
    for path in pages.outdated(found, scans):
        click.echo(f"{path} is of no stored results: remove it")


@main.command()
@results_argument
@plot_option(required=True)
def plot(results_file: Path, plot_file: Path) -> None:
    """Draw stored results."""
    from . import plot as drawing

    drawing.save(read(results_file), plot_file)


@main.command(name="gguf-types")
@click.argument("weights_file", metavar="[SAFETENSORS]", required=False, type=FILE)
def gguf_types(weights_file: Path | None) -> None:
    """Write the table and the picture of docs/howto/gguf.md: bits and noise of each type of GGUF on real weights."""
    from . import gguf_types as types

    try:
        title, matrices = types.weights(weights_file)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    found = types.qualities(matrices)
    types.PAGE.write_text(types.page(types.PAGE.read_text(encoding="utf-8"), title, found), encoding="utf-8")
    types.draw(title, found)
    click.echo(f"{types.PAGE} and {types.PICTURE} written")


@main.command(name="show")
@results_argument
def show_stored(results_file: Path) -> None:
    """Print the tables of stored results."""
    show.show(read(results_file), console(), everyone=True)


@main.command()
@measuring
@click.option(
    "--against",
    "results_file",
    type=FILE,
    callback=results_of,
    help="Default: those of such a CPU, or else those measured last.",
)
@click.option("--scan/--no-scan", "with_scan", default=True, help="Whether a fixed part of the scan is measured too.")
def gate(
    results_file: Path,
    with_scan: bool,
    sizes: tuple[int, ...] | None,
    works: list[Any],
    threads: int,
    peers: tuple[str, ...],
    rounds: int,
    budget: float | None,
) -> None:
    """Measure again, and report ratios that fell by more than 15 % against the stored ones; then exit with 1.

    Of the scan the cells of `GATE` in bench/scan/grid.py are measured: a cliff, a wrong result, or a share of the
    copy's speed that fell to less than half of that in the stored scan of such a CPU is reported.
    """
    from . import gate as gates

    before = read(results_file)
    if (stored_threads := before.settings["threads"]) != threads:
        raise click.UsageError(f"{results_file.name} was measured with --threads {stored_threads}, not {threads}")
    wanted = [case for case in cases(works, sizes or DEFAULT_SIZES) if before.get(case.name)]
    settings = Settings(threads, peers, rounds, budget=DEFAULT_BUDGET if budget is None else budget)
    now = measured(settings, wanted, None)
    falls = list(gates.fallen(before, now))
    for fall in falls:
        click.echo(fall)
    click.echo(f"{len(gates.compared(before, now))} cases compared with {results_file.name}, {len(falls)} fell")
    sys.exit(bool(falls) | (with_scan and not scan_command.gate(threads)))


@main.command()
@click.option("--from", "results_file", type=FILE, help="Judge these results instead of measuring.")
@threads_option
@rounds_option
@click.option("--seconds", "budget", type=float, default=300.0, show_default=True, help="Time for all cases together.")
@click.option("--json", "json_file", type=FILE, help="Keep the results.")
def targets(results_file: Path | None, threads: int, rounds: int, budget: float, json_file: Path | None) -> None:
    """Print what fastq must reach beside what it reaches, measured in one run."""
    from . import targets as wanted

    if results_file:
        results = read(results_file)
    else:
        results = measured(Settings(threads, rounds=rounds, budget=budget), wanted.needed(), json_file)
        add_sections(results, threads, json_file)
    words = {True: "[green]yes[/]", False: "[red]NO[/]", None: ""}
    rows = ([v.what, v.rival, v.wanted, v.reached, words[v.met], v.limit] for v in wanted.verdicts(results))
    console().print(show.table(("work", "contender", "wanted", "reached", "met", "limit"), rows))
    for line in show.remarks(results):
        console().print(f"- {line}", highlight=False, markup=False, soft_wrap=True)


@main.command(name="tune")
@threads_option
@click.argument("names", nargs=-1)
def tune_(names: tuple[str, ...], threads: int) -> None:
    r"""Measure the numbers of fastq/system/tuning.py on this machine, all or the NAMES, and print its row.

    \b
    Each line has the seconds of a value beside those of the value that holds now.
    """
    if unknown := set(names) - {trial.name for trial in tune.TRIALS}:
        known = ", ".join(trial.name for trial in tune.TRIALS)
        raise click.BadParameter(f"{', '.join(sorted(unknown))}: choose from {known}")
    results = []
    for tried in tune.tried(names, threads):
        results.append(tried)
        ratios = "  ".join(f"{value}: {ratio:.2f}" for value, ratio in tried.ratios.items())
        click.echo(f"{tried.trial.name}: {tried.best}  ({ratios})")
    click.echo(tune.row(results))


def printed(name: str, threads: int) -> None:
    """Measure one section and print its rows."""
    for row in sections(threads)[name]:
        click.echo("  ".join(f"{key} {_number(value)}" for key, value in row.items()))


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


for _name in ("scaling", "startup", "contention", "memory"):
    main.command(name=_name, help=f"Measure {_name} alone.")(threads_option(functools.partial(printed, _name)))
