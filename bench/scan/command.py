"""The command line of the scan, and its part of the gate."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
from rich.progress import TextColumn, TimeRemainingColumn

from fastq import config

from .. import machine
from ..options import FILE, chosen_option, console, progress, sizes_option, threads_option
from ..show import table
from . import judge, run, sample, show, store
from .grid import GATE, LADDER, Cell
from .peers import PEERS
from .store import Scan

FELL = 0.5  # of the share of the copy's speed: less would be noise


def new_scan(settings: dict[str, Any]) -> Scan:
    """Return a scan of this machine in which nothing was measured yet."""
    versions = {name: number for name, number in config.versions().items() if name != "cache"}  # a folder of ours
    for peer in PEERS.values():
        with suppress(PackageNotFoundError):
            versions[peer.distribution] = version(peer.distribution)
    return Scan(machine.describe(), versions, settings, machine.now())


def scan_of(path: Path, settings: dict[str, Any]) -> Scan:
    """Return the scan of the file, a new one without a file; UsageError if it has another machine or other settings."""
    new = new_scan(settings)
    if not path.exists():
        return new
    try:
        before = store.read(path)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    for what, mine, theirs in (
        ("settings", settings, before.settings),
        ("CPU", *(machine.cpu_name(each.machine) for each in (new, before))),
    ):
        if mine != theirs:
            raise click.UsageError(f"{path} was begun with {what} {theirs}, not {mine}: name another file")
    return before


def measure_scan(
    scan: Scan, cells: Iterable[Cell], seconds: float, most: float, path: Path | None, sizes: tuple[int, ...]
) -> None:
    """Measure cells with a progress bar, until the time is up or enough are finished, and keep them after each."""
    begun, first = time.perf_counter(), len(scan)
    with progress(TextColumn("{task.fields[cells]} cells"), TimeRemainingColumn()) as bar:
        task = bar.add_task("starting", total=1.0, cells=first)

        def done(cell: Cell) -> None:
            share = max((time.perf_counter() - begun) / seconds, (len(scan) - first) / most)
            bar.update(task, completed=share, cells=len(scan))
            if path:
                scan.write(path)

        run.scanned(scan, cells, seconds, done, lambda what: bar.update(task, description=what), sizes)


@click.command(name="scan")
@click.option(
    "--minutes", type=click.FloatRange(0), default=60.0, show_default=True, help="Minutes to measure in this run."
)
@click.option("--cells", "most", type=click.IntRange(0), help="Finish when the file has this number of cells.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the sample of cells.")
@sizes_option(LADDER, " and two more", default=())
@chosen_option(
    "-o", "--only", "patterns", "PATTERN", "Measure only cells whose work or name PATTERN matches; by default all."
)
@threads_option
@click.option(
    "--keep",
    "json_file",
    type=FILE,
    default="scan.json",
    show_default=True,
    help="Keep measurements in this file, and continue from it; .json.gz is compressed.",
)
def scan(
    minutes: float,
    most: int | None,
    seed: int,
    sizes: tuple[int, ...],
    patterns: tuple[str, ...],
    threads: int,
    json_file: Path,
) -> None:
    """Measure a sample of all that the API offers, and report cliffs, outliers and what is slower than a plain way.

    The sample has each pair of values of two axes (work, format, granularity, dtype, layout, out=, threads, convention,
    nan=, sizes) and goes on at random until the time is up. Each result is compared with the reference. PATTERN is like
    "dequantize*" or "*/blocks 32/*". Started again with the same settings, it goes on where it was.
    """
    settings = {"seed": seed, "threads": threads, "sizes": list(sizes), "only": list(patterns)}
    kept = scan_of(json_file, settings)
    cells = itertools.islice(sample.chosen(seed, patterns), most)
    if not any(True for _ in sample.chosen(seed, patterns)):
        raise click.BadParameter(f"no cell fits {', '.join(patterns)}")
    measure_scan(kept, cells, 60 * minutes, math.inf if most is None else max(1, most - len(kept)), json_file, sizes)
    print_scan(kept)


def print_scan(kept: Scan) -> None:
    """Print the tables of a scan."""
    out = console()
    out.print(table(*show.summary(kept), "Scan: more than 4 times as slow, or slower at all"))
    if (verdicts := show.verdicts(kept))[1]:
        out.print(table(*verdicts, "Targets over the whole grid"))
    out.print(table(*show.families(kept), "Gelem/s of an operation: median and slowest cell"))
    for name, criterion in judge.CRITERIA.items():
        if rows := show.findings(criterion.find(kept), kept.settings["threads"]):
            out.print(table(show.FINDING, rows, f"The worst: {name}"))
    for cell, why in (*show.failures(kept), *kept.refused.items()):
        out.print(f"- {cell}: {why}", highlight=False, markup=False, soft_wrap=True)
    have, there = show.covered(kept.timings)
    out.print(f"{have} of {there} pairs of values are measured", highlight=False)


def gate(threads: int) -> bool:
    """Measure the cells of the gate, print what is wrong with them, and say whether nothing is."""
    now = new_scan({"threads": threads})
    measure_scan(now, GATE, math.inf, len(GATE), None, ())
    mine = (scan for scan in store.stored().values() if machine.cpu_name(scan.machine) == machine.cpu_name(now.machine))
    before = next((scan for scan in mine if scan.settings["threads"] == threads), None)
    found = [*judge.cliffs(now), *(judge.fallen(before, now, FELL) if before else [])]
    for each in found:
        click.echo(f"{each.cell.name}/2^{each.log2}: {each.kind}, {each.times:.1f} times as slow")
    for name, why in show.failures(now):
        click.echo(f"{name}: {why}")
    against = "no scan of such a CPU is stored" if before is None else f"compared with that of {before.started}"
    click.echo(f"{len(now.timings)} cells of the scan ({against}), {len(found)} are slow, {len(now.failed)} failed")
    return not (found or now.failed)
