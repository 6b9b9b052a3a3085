"""What was measured, as data that is kept in a JSON file; every table, plot and page is made from it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from . import compressed
from .cases import EVERY_WORK, Case, case_of
from .peers import CONTENDERS, NUMPY, OURS, ROOFLINES

FORMAT = 2
STORED = Path(__file__).parent / "results"
DIGITS = 5  # of a stored figure, where pages print three
LINES_DOWN_TO = 4  # levels of a file, which are the cases
FIGURES = ["best us", "median us", "samples", "exact", "over fastq"]  # of a contender, as a file holds them


class Timing(NamedTuple):
    """Seconds of a call of one contender: the least and the median of a number of samples."""

    best: float
    median: float
    samples: int


class Rival(NamedTuple):
    """The fastest of some contenders; its median is the least median of any, so that no rival's luck helps us."""

    name: str
    best: float
    median: float


@dataclass(frozen=True)
class Measurement:
    """One case in one run."""

    case: str
    threads: int  # of every contender
    timings: dict[str, Timing] = field(default_factory=dict)  # by the contender's name
    absent: dict[str, str] = field(default_factory=dict)  # why a contender was not measured
    exact: list[str] = field(default_factory=list)  # whose results were the reference's, bit for bit
    others: float = 0.0  # cores that processes outside the benchmark used meanwhile
    # how many times as long as the second contender the first one took: the median over rounds
    ratios: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def of(self) -> Case:
        """The case itself."""
        return case_of(self.case)

    def ours(self, *, allocating: bool = False) -> Timing | None:
        """Time of fastq, with out= or without."""
        return self.timings.get(_ours(allocating))

    def over(self, name: str, other: str) -> float:
        """How many times as long as the other a contender took; by the best times where no rounds were compared."""
        known = self.ratios.get((name, other))
        return self.timings[name].best / self.timings[other].best if known is None else known

    def with_ratios(self, rounds: dict[str, Sequence[float]]) -> Measurement:
        """Add the ratios that pages print, given the best time of each contender in each round.

        Memory of a shared machine may be twice as fast for some seconds. The best of all rounds is then from such
        seconds for one contender and not for the other; in a round both had their turns.
        """
        ratios = _compared(rounds, [(name, OURS) for name in rounds if name != OURS])
        made = replace(self, ratios=ratios)  # by which the fastest are found
        peer, roof, allocates = made.best_peer(), made.roofline(), made.best_peer(allocating=True)
        pairs = [(a.name, b) for a, b in ((allocates, _ours(True)), (roof, peer and peer.name)) if a and b]
        return replace(made, ratios=ratios | _compared(rounds, pairs))

    def fastest(self, names: Any) -> Rival | None:
        """The fastest contender among these names, with ours if that was measured; None if no contender was."""
        there = {name: self.timings[name] for name in names if name in self.timings}
        if not there:
            return None
        first = min(there, key=lambda name: self.over(name, OURS) if self.ours() else there[name].best)
        return Rival(first, there[first].best, min(timing.median for timing in there.values()))

    def peers(self, *, allocating: bool = False) -> list[str]:
        """Names of those measured that are not fastq and not a roofline; of those that allocate only, if wanted."""
        allocate = {row.name for row in CONTENDERS if row.allocates}
        return [
            name
            for name in self.timings
            if peer_of(name) not in (OURS, *ROOFLINES) and (name in allocate or not allocating)
        ]

    def best_peer(self, *, allocating: bool = False) -> Rival | None:
        """The fastest peer."""
        return self.fastest(self.peers(allocating=allocating))

    def numpy(self) -> Rival | None:
        """NumPy."""
        return self.fastest([NUMPY])

    def roofline(self, *, past_cache: bool = True) -> Rival | None:
        """The fastest that moves the bytes of the case, perhaps only of those whose stores go into the cache."""
        names = (name for name in self.timings if peer_of(name) in ROOFLINES)
        return self.fastest(name for name in names if past_cache or "stream" not in name)

    def ratio(self, rival: Rival | None, *, allocating: bool = False) -> float | None:
        """How many times as fast as the rival ours is; None where one of them was not measured."""
        return self.over(rival.name, _ours(allocating)) if rival and self.ours(allocating=allocating) else None


def _ours(allocating: bool) -> str:
    return f"{OURS} allocating" if allocating else OURS


def _compared(rounds: dict[str, Sequence[float]], pairs: list[tuple[str, str]]) -> dict[tuple[str, str], float]:
    """The median over rounds of the ratio of each pair, where there were several rounds of both."""
    ratios = {(a, b): [x / y for x, y in zip(rounds.get(a, ()), rounds.get(b, ()), strict=False)] for a, b in pairs}
    return {pair: statistics.median(each) for pair, each in ratios.items() if len(each) > 1}


@dataclass
class Results:
    """A run: the machine, the versions, what was measured.

    `sections` are the parts other than throughput, by name: lists of rows, each a dict.
    """

    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    started: str
    measurements: list[Measurement] = field(default_factory=list)
    sections: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def sort(self) -> None:
        """Order the measurements as the table of cases does."""
        self.measurements.sort(key=lambda m: (EVERY_WORK.index(m.of.work), m.of.log2))

    def get(self, case: str) -> Measurement | None:
        """The measurement of a case, None where it was not measured."""
        return next((m for m in self.measurements if m.case == case), None)

    def write(self, path: Path) -> None:
        """Write to a temporary name in the same folder, and rename."""
        compressed.write(path, _stored(self), LINES_DOWN_TO)


def read(path: Path) -> Results:
    """Read what `Results.write` wrote; ValueError if the file is something else."""
    try:
        content = compressed.read(path)
        if content.pop("format") != FORMAT or content.pop("figures") != FIGURES:
            raise ValueError(f"its format is not {FORMAT}")
        works = content.pop("measurements").items()
        measurements = [
            _measurement(f"{work}/{size}", row, names) for work, (names, rows) in works for size, row in rows.items()
        ]
        return Results(measurements=measurements, **content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path.name} holds no results of this benchmark: {error}") from error


def _stored(results: Results) -> dict[str, Any]:
    """Return what a file holds: for each work its contenders, and by size their figures in that order."""
    works: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for m in results.measurements:
        names, rows = works.setdefault(m.of.work.name, ([], {}))
        names += [name for name in m.timings if name not in names]
        rows[m.case.rpartition("/")[2]] = _row(m, names)
    whole = {each.name: getattr(results, each.name) for each in fields(results)}
    sections = {name: [_rounded(row) for row in rows] for name, rows in results.sections.items()}
    return {"format": FORMAT, "figures": FIGURES} | whole | {"measurements": works, "sections": sections}


def _row(m: Measurement, names: list[str]) -> dict[str, Any]:
    """Return a case with the figures of these contenders, and the ratios that are not over ours by their positions."""
    figures = [_figures(m, name) if name in m.timings else None for name in names]
    pairs = [[names.index(a), names.index(b), _round(x)] for (a, b), x in m.ratios.items() if b != OURS]
    row = {"threads": m.threads, "absent": m.absent, "others": m.others, "of": figures, "pairs": pairs}
    return {key: value for key, value in row.items() if value}


def _figures(m: Measurement, name: str) -> list[float]:
    timing, ratio = m.timings[name], m.ratios.get((name, OURS))
    figures = [_round(timing.best * 1e6), _round(timing.median * 1e6), timing.samples, int(name in m.exact)]
    return figures if ratio is None else [*figures, _round(ratio)]


def _measurement(case: str, row: dict[str, Any], names: list[str]) -> Measurement:
    """Return the case that `_row` made a row of."""
    there = {name: figures for name, figures in zip(names, row.get("of", ()), strict=False) if figures}
    timings = {name: Timing(best * 1e-6, mid * 1e-6, count) for name, (best, mid, count, *_) in there.items()}
    exact = [name for name, (_, _, _, same, *_) in there.items() if same]
    ratios = {(name, OURS): ratio for name, (_, _, _, _, *over) in there.items() for ratio in over}
    ratios |= {(names[a], names[b]): ratio for a, b, ratio in row.get("pairs", ())}
    return Measurement(case, row["threads"], timings, row.get("absent", {}), exact, row.get("others", 0.0), ratios)


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {key: _round(value) if isinstance(value, float) else value for key, value in row.items()}


def _round(value: float) -> float:
    return compressed.rounded(value, DIGITS)


def stored() -> dict[Path, Results]:
    """The results next to this file, those that were begun last first."""
    return compressed.stored(STORED, read)


def peer_of(name: str) -> str:
    """The peer of a contender's name."""
    return name.partition(" ")[0]


def geometric_mean(ratios: list[float]) -> float | None:
    """Geometric mean, None of nothing."""
    return statistics.geometric_mean(ratios) if ratios else None
