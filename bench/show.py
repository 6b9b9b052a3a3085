"""Tables of measurements, for a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .machine import WORTH_A_REMARK
from .peers import OURS
from .results import Measurement, Results, peer_of
from .worker import NOT_INSTALLED

NOT_THERE = "-"
LEFT = ("work", "size", "best peer", "contender")


def gelems(measurement: Measurement, seconds: float | None) -> str:
    """Elements a nanosecond."""
    return NOT_THERE if seconds is None else f"{measurement.of.elements / seconds / 1e9:.3g}"


def times(ratio: float | None) -> str:
    """A ratio to two places, or one where it is large."""
    return NOT_THERE if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def _of(rival: Any, key: str) -> Any:
    return getattr(rival, key, None)


# the figures of a case, as tables and pages show them
FIGURES: dict[str, Callable[[Measurement], str]] = {
    "size": lambda m: f"2^{m.of.log2}",
    "best": lambda m: gelems(m, _of(m.ours(), "best")),
    "median": lambda m: gelems(m, _of(m.ours(), "median")),
    "no out=": lambda m: gelems(m, _of(m.ours(allocating=True), "best")),
    "best peer": lambda m: _of(m.best_peer(), "name") or NOT_THERE,
    "its best": lambda m: gelems(m, _of(m.best_peer(), "best")),
    "x peer": lambda m: times(m.ratio(m.best_peer())),
    "x peer, medians": lambda m: times(rival.median / m.ours().median if (rival := m.best_peer()) else None),
    "x NumPy": lambda m: times(m.ratio(m.numpy())),
    "of roofline": lambda m: times(m.ratio(m.roofline())),
    "GB/s": lambda m: f"{m.of.bytes_moved / m.ours().best / 1e9:.1f}",
}
SHOWN = ("size", "best", "median", "no out=", "best peer", "its best", "x peer", "x NumPy", "of roofline")


def table(columns: Iterable[str], rows: Iterable[Iterable[str]], title: str = "") -> Table:
    """A table whose numbers are at the right."""
    made = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", title_style="bold")
    for column in columns:
        made.add_column(column, justify="left" if column in LEFT else "right", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    return made


def throughput(results: Results) -> Table:
    """One row a case."""
    shown = [m for m in results.measurements if m.ours() or m.best_peer()]
    rows = ([m.of.work.title, *(FIGURES[name](m) for name in SHOWN)] for m in shown)
    return table(("work", *SHOWN), rows, "float32, Gelem/s unless a ratio")


def every_contender(results: Results) -> Table:
    """One row a contender and case."""
    rows = (
        [m.of.work.title, f"2^{m.of.log2}", name, gelems(m, t.best), gelems(m, t.median), times(over)]
        for m in results.measurements
        for name, t in sorted(m.timings.items(), key=lambda item: item[1].best)
        for over in [m.over(name, OURS) if m.ours() else None]
    )
    return table(("work", "size", "contender", "best", "median", "ours x"), rows, "Every contender, Gelem/s")


def absences(results: Results) -> Iterator[str]:
    """Who was not measured and why, each reason said once."""
    why: dict[str, tuple[set[str], set[str]]] = {}
    for m in results.measurements:
        for name, reason in m.absent.items():
            peers, works = why.setdefault(reason, (set(), set()))
            peers.add(peer_of(name))
            works.add(m.of.work.name)
    for reason, (peers, works) in why.items():
        where = "" if reason == NOT_INSTALLED else f" ({', '.join(sorted(works))})"
        yield f"{', '.join(sorted(peers))}: {reason}{where}"


def remarks(results: Results) -> list[str]:
    """Who was absent, and when the machine was not ours alone."""
    said = [*results.remarks, *absences(results)]
    busy = [m for m in results.measurements if m.others > WORTH_A_REMARK]
    if busy:
        most = max(m.others for m in busy)
        count = f"{len(busy)} of {len(results.measurements)}"
        said.append(f"other processes used up to {most:.1f} cores during {count} cases: measure again")
    return said


def show(results: Results, console: Console, *, everyone: bool = False) -> None:
    """Print the tables and the remarks."""
    console.print(throughput(results))
    if everyone:
        console.print(every_contender(results))
    for line in remarks(results):
        console.print(f"- {line}", highlight=False, markup=False, soft_wrap=True)
