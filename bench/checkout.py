"""`python -m bench`: all that is done in a checkout, where the peers, the stored results and the pages are."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from . import compressed, machine, scaling, scaling_page, show
from .cases import GATE, WORKS, Case, cases
from .command import (
    DEFAULT_BUDGET,
    DEFAULT_SIZES,
    Wanted,
    measured,
    measuring,
    plot_option,
    run,
    sections,
    works_option,
)
from .options import FILE, console, count_option, keep_option, sizes_option, threads_option
from .peers import OURS, ROOFLINES
from .results import Results, read, stored
from .rounds import ROUNDS

NOTHING_STORED = "there are no stored results: python -m bench run --full --keep bench/results/NAME.json.gz"


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
results_argument = click.argument("results_file", metavar="[JSON]", required=False, type=FILE, callback=results_of)


@main.command()
def report() -> None:
    """Write docs/performance.md and the README's table, of the results that were measured last."""
    from . import report as pages

    found = stored()
    if not found:
        raise click.UsageError(NOTHING_STORED)
    for path in pages.write(found):
        click.echo(f"{path} written")


@main.command()
@results_argument
@plot_option(required=True)
def plot(results_file: Path, plot_file: Path) -> None:
    """Draw stored results."""
    from . import plot as drawing

    drawing.save(read(results_file), plot_file)


def measures_a_page(command: Any) -> Any:
    """Make a command that says what it lacks as click does."""

    @functools.wraps(command)
    def run_or_refuse(*arguments: Any, **named: Any) -> None:
        try:
            command(*arguments, **named)
        except ValueError as error:
            raise click.UsageError(str(error)) from error

    return main.command(name=command.__name__.replace("_", "-"))(run_or_refuse)


def rewrite(path: Path, page: Callable[[str], str], *others: Path) -> None:
    """Write a page again, and say which files were written."""
    path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
    click.echo(f"{' and '.join(map(str, (*others, path)))} written")


weights_argument = click.argument("weights_file", metavar="[SAFETENSORS]", required=False, type=FILE)


@measures_a_page
@weights_argument
def gguf_types(weights_file: Path | None) -> None:
    """Write the table and the picture of docs/howto/gguf.md: bits and noise of each type of GGUF on real weights."""
    from . import gguf_types as types

    title, matrices = types.weights(weights_file)
    found = types.qualities(matrices)
    types.draw(title, found)
    rewrite(types.PAGE, lambda text: types.page(text, title, found), types.PICTURE)


@measures_a_page
def gguf_importance() -> None:
    """Write the second table of docs/howto/gguf.md: outputs of a model by each type, with a real importance matrix."""
    from . import gguf_importance as compared

    found = compared.measured(lambda line: click.echo(line, err=True))
    compressed.write(compared.STORED, found, 2)
    rewrite(compared.PAGE, lambda text: compared.page(text, found), compared.STORED)


@measures_a_page
@weights_argument
def signal(weights_file: Path | None) -> None:
    """Write the tables of docs/choose.md: what each way to choose scales leaves of real weights and of outputs.

    llm-compressor takes part where it is installed. Of a file of your own the tables are printed, not written.
    """
    from . import signals

    found = signals.measured(weights_file, lambda line: click.echo(line, err=True))
    if weights_file:
        click.echo("\n".join(signals.lines(found)))
        return
    compressed.write(signals.STORED, found, 2)
    rewrite(signals.PAGE, lambda text: signals.page(text, found), signals.STORED)


@measures_a_page
def embeddings() -> None:
    """Write the table of docs/howto/models.md: embeddings of a model before and after `fastq convert`; minutes."""
    from . import embeddings as compared

    found = compared.measured(lambda line: click.echo(line, err=True))
    compressed.write(compared.STORED, found, 2)
    rewrite(compared.PAGE, lambda text: compared.page(text, found), compared.STORED)


@measures_a_page
@threads_option
def systems(threads: int) -> None:
    """Write the table of systems in docs/performance.md: their encoders and fastq's, whose results are the same.

    Systems that are not installed are named and left out.
    """
    from . import report as pages
    from . import systems as compared

    found = compared.measured(threads, lambda line: click.echo(line, err=True))
    compressed.write(compared.STORED, found, 2)
    click.echo(f"{compared.STORED} written")
    for path in pages.write(stored()):
        click.echo(f"{path} written")


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
    help="Results to compare with; by default those of such a CPU, or else the latest.",
)
@click.option(
    "--cliffs/--no-cliffs", default=True, help="Also measure the works that were slow once, or leave them out."
)
def gate(results_file: Path, cliffs: bool, **named: Any) -> None:
    """Measure again, and report ratios that fell by more than 15 % against the stored ones; then exit with 1.

    The works of `GATE` in bench/cases.py are measured, too: a cliff, a wrong result, or less than half of the share of
    the roofline's speed that the table has is reported.
    """
    from . import gate as gates

    before, wanted = read(results_file), Wanted(**named)
    if (threads := before.settings["threads"]) != wanted.threads:
        raise click.UsageError(f"{results_file.name} was measured with --threads {threads}, not {wanted.threads}")
    again = [case for case in cases(wanted.works, wanted.sizes or DEFAULT_SIZES) if before.get(case.name)]
    now = measured(wanted.settings(DEFAULT_BUDGET), again, None)
    falls = list(gates.fallen(before, now))
    for fall in falls:
        click.echo(fall)
    click.echo(f"{len(gates.compared(before, now))} cases compared with {results_file.name}, {len(falls)} fell")
    slow = slow_works(wanted) if cliffs else []
    sys.exit(bool(falls or slow))


def slow_works(wanted: Wanted) -> list[str]:
    """Measure the works of `GATE`, and print and return what is wrong with them."""
    from . import gate as gates

    guarded = wanted._replace(peers=(OURS, *ROOFLINES))
    sizes = wanted.sizes or gates.SIZES
    now = measured(guarded.settings(gates.BUDGET), [*cases(GATE, sizes)], None)
    slow = list(gates.slow(now))
    for line in slow:
        click.echo(line)
    click.echo(f"{len(now.measurements)} cases of works that were slow once, {len(slow)} are slow or failed")
    return slow


@main.command()
@click.argument("python", type=FILE)
@sizes_option(DEFAULT_SIZES)
@works_option
@threads_option
@count_option("--rounds", ROUNDS, "Number of rounds of each case.")
@click.option("--mean", type=float, default=0.0, help="Exit with 1 if the geometric mean of the ratios is lower.")
@click.option("--least", type=float, default=0.0, help="Exit with 1 if any ratio is lower.")
def turns(
    python: Path, sizes: tuple[int, ...] | None, works: list[Any], threads: int, rounds: int, mean: float, least: float
) -> None:
    """Measure this checkout and the fastq that is installed for another PYTHON in turns, two processes.

    A ratio is how many times as fast the other one is: of the medians of all rounds.
    """
    from . import turns as two

    found = []
    for each in two.measured(str(python), cases(works, sizes or DEFAULT_SIZES), threads, rounds):
        click.echo(f"{each.absent or format(each.ratio, '.3f')}  {each.case}")
        found += [] if each.absent else [each]
    if not found:
        sys.exit(1)
    lowest = min(found, key=lambda each: each.ratio)
    click.echo(f"geometric mean of {len(found)}: {two.mean_ratio(found):.3f}; least: {lowest.ratio:.3f} {lowest.case}")
    sys.exit(two.mean_ratio(found) < mean or lowest.ratio < least)


def printed(name: str, threads: int) -> None:
    """Measure one section and print its rows."""
    for row in sections(threads)[name]():
        words = (f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items())
        click.echo("  ".join(words))


@main.command(name="scaling")
@threads_option
@works_option
@sizes_option(scaling.SIZES, default=scaling.SIZES)
@count_option("--sweeps", scaling.SWEEPS, "Most sweeps over all cases.")
@click.option(
    "--seconds", type=float, default=scaling.SECONDS, show_default=True, help="Seconds for all sweeps together."
)
@keep_option
def scaling_by_threads(
    threads: int, works: list[Any], sizes: tuple[int, ...], sweeps: int, seconds: float, json_file: Path | None
) -> None:
    """Measure time for 1, 2, 4, ... threads, and that of copies of the same bytes with the same threads.

    Without -o: the works of the README's table, and three more. The sizes are measured one after the other, all of
    them in each sweep; those for which the first sweep has no time are left out.
    """
    settings = {"threads": threads, "sweeps": sweeps, "seconds": seconds}
    results = Results(machine.describe(), {}, settings, machine.now())

    def keep(case: Case, rows: list[dict[str, Any]]) -> None:
        results.sections["scaling"] = rows
        if json_file:
            results.write(json_file)
        click.echo(case.name, err=True)

    chosen = scaling.SCALED if len(works) == len(WORKS) else works
    scaling.rows(threads, chosen, sizes, seconds=seconds, sweeps=sweeps, so_far=keep)
    click.echo(scaling_page.table(results))


for _name in ("startup", "contention", "memory"):
    main.command(name=_name, help=f"Measure {_name} alone.")(threads_option(functools.partial(printed, _name)))
