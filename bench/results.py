"""What was measured, as data that is kept in a JSON file; every table, plot and page is made from it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from fastq.system.atomic import replacing

from .cases import WORKS, Case, case_of
from .peers import CONTENDERS, NUMPY, OURS, ROOFLINES

FORMAT = 1
STORED = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Timing:
    """Seconds of a call of one contender: the least and the median of so many samples, and the least of each round."""

    best: float
    median: float
    samples: int
    rounds: tuple[float, ...] = ()

    def over(self, other: Timing) -> float:
        """How many times as long as the other: the median over rounds, in which both had their turns.

        Memory of a shared machine may be twice as fast for some seconds. The best of all rounds is then from such
        seconds for one and not for the other.
        """
        pairs = [mine / theirs for mine, theirs in zip(self.rounds, other.rounds, strict=False)]
        return median(pairs) if pairs else self.best / other.best


class Rival(NamedTuple):
    """The fastest of some contenders; its median is the least median of any, so that no rival's luck helps us."""

    name: str
    best: float
    median: float


@dataclass(frozen=True)
class Measurement:
    """One case in one run.

    Attributes
    ----------
    case : str
        Name of the case.
    threads : int
        What every contender was given.
    timings : dict of str to Timing
        By the contender's name.
    absent : dict of str to str
        Why a contender was not measured.
    exact : list of str
        The contenders whose results were the reference's, bit for bit.
    others : float
        Cores that processes outside the benchmark used meanwhile.
    """

    case: str
    threads: int
    timings: dict[str, Timing] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    exact: list[str] = field(default_factory=list)
    others: float = 0.0

    @property
    def of(self) -> Case:
        """The case itself."""
        return case_of(self.case)

    def ours(self, *, allocating: bool = False) -> Timing | None:
        """Time of fastq, with out= or without."""
        return self.timings.get(f"{OURS} allocating" if allocating else OURS)

    def fastest(self, names: Any) -> Rival | None:
        """The fastest contender among these names, beside ours if that is there; None where none was measured."""
        there, ours = {name: self.timings[name] for name in names if name in self.timings}, self.ours()
        if not there:
            return None
        first = min(there, key=lambda name: there[name].over(ours) if ours else there[name].best)
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
        ours = self.ours(allocating=allocating)
        return self.timings[rival.name].over(ours) if rival and ours else None


@dataclass
class Results:
    """A run: the machine, the versions, what was measured.

    `sections` are the parts beside throughput, by name: lists of rows, each a dict.
    """

    machine: dict[str, Any]
    versions: dict[str, str]
    settings: dict[str, Any]
    started: str
    measurements: list[Measurement] = field(default_factory=list)
    sections: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def __getitem__(self, case: str) -> Measurement:
        return next(m for m in self.measurements if m.case == case)

    def sort(self) -> None:
        """Order the measurements as the table of cases does."""
        self.measurements.sort(key=lambda m: (WORKS.index(m.of.work), m.of.log2))

    def get(self, case: str) -> Measurement | None:
        """The measurement of a case, None where it was not measured."""
        return next((m for m in self.measurements if m.case == case), None)

    def write(self, path: Path) -> None:
        """Write to a temporary name in the same folder, and rename."""
        content = json.dumps({"format": FORMAT} | asdict(self), indent=1) + "\n"
        with replacing(path.resolve()) as file:
            file.write(content.encode())


def read(path: Path) -> Results:
    """Read what `Results.write` wrote.

    Raises
    ------
    ValueError
        If the file is something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        measurements = [
            Measurement(**{**row, "timings": {name: _timing(t) for name, t in row["timings"].items()}})
            for row in content.pop("measurements")
        ]
        return Results(measurements=measurements, **content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path.name} holds no results of this benchmark: {error}") from error


def _timing(stored: dict[str, Any]) -> Timing:
    return Timing(**stored | {"rounds": tuple(stored.get("rounds", ()))})


def stored() -> dict[Path, Results]:
    """The results kept beside this file, those that were begun last first."""
    found = {path: read(path) for path in STORED.glob("*.json")}
    return dict(sorted(found.items(), key=lambda item: item[1].started, reverse=True))


def peer_of(name: str) -> str:
    """The peer of a contender's name."""
    return name.partition(" ")[0]


def geometric_mean(ratios: list[float]) -> float | None:
    """Geometric mean, None of nothing."""
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else None
