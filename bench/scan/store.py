"""What a scan has found, kept in a file from which it goes on: cells, and by size what each call takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from .. import compressed
from .grid import AXES, Cell
from .peers import PEERS

FORMAT = 2
STORED = Path(__file__).parent / "results"
DIGITS = 3
LINES_DOWN_TO = 2  # levels of a file, which are the cells
PICO = 1e12
SAME_WORK = ("numpy", "loop", *PEERS)  # columns of the ways to do the work of a cell


class Timings(NamedTuple):
    """Seconds of one element at a size: of our call, of a copy of the same bytes, and of other ways to do the work.

    Other ways: a copy of the operand by NumPy, an expression of NumPy, a loop, our call on memory in C order, and the
    libraries of `peers.PEERS`.
    """

    ours: float
    copy: float
    copyto: float | None = None
    numpy: float | None = None
    loop: float | None = None
    c_order: float | None = None
    torch: float | None = None
    jax: float | None = None
    onnxruntime: float | None = None
    ggml: float | None = None

    @property
    def best_peer(self) -> float | None:
        """The least time of all that does the same work, None where nothing else does."""
        return min(filter(None, (getattr(self, name) for name in SAME_WORK)), default=None)

    def least(self, other: Timings) -> Timings:
        """Return the lesser time of two measurements, one by one."""
        both = zip(self, other, strict=True)
        return Timings(*(min(filter(None, pair), default=None) for pair in both))  # type: ignore[arg-type,type-var]


COLUMNS = Timings._fields


@dataclass
class Scan:
    """A scan: the machine, how it was made, what was measured and what failed; machine and versions as in `Results`."""

    machine: dict[str, Any]
    versions: dict[str, str]
    # what decides about cells and sizes: `seed`, `threads`, `sizes` (empty: `LADDER` and two more) and `only` (shell
    # patterns; empty: all cells)
    settings: dict[str, Any]
    started: str
    seconds: float = 0.0  # of all sittings together
    timings: dict[Cell, dict[int, Timings]] = field(default_factory=dict)  # by log2 of the elements
    failed: dict[Cell, str] = field(default_factory=dict)  # wrong results, an exception, a process that ended
    # how the results of a peer differ from the reference's, or how it failed, by its name, the cell's and the size,
    # where it has no time but that of a second measurement
    refused: dict[str, str] = field(default_factory=dict)

    def __contains__(self, cell: Cell) -> bool:
        """Return whether the cell is finished."""
        return cell in self.timings or cell in self.failed

    def __len__(self) -> int:
        """Return the number of finished cells."""
        return len(self.timings) + len(self.failed)

    def write(self, path: Path) -> None:
        """Write to a temporary name in the same folder, and rename; a line for each cell, compressed for .json.gz."""
        whole = {"format": FORMAT, "axes": AXES, "columns": COLUMNS}
        whole |= {key: getattr(self, key) for key in ("machine", "versions", "settings", "started", "refused")}
        whole |= {"seconds": round(self.seconds), "failed": {cell.name: why for cell, why in self.failed.items()}}
        cells = [[_places(cell), *_stored(timings)] for cell, timings in self.timings.items()]
        compressed.write(path, whole | {"cells": cells}, LINES_DOWN_TO)


def read(path: Path) -> Scan:
    """Read what `Scan.write` wrote; ValueError if the file is something else."""
    try:
        content = compressed.read(path)
        columns = content.pop("columns")  # fewer in files that were written before there were more
        if content.pop("format") != FORMAT or columns != list(COLUMNS[: len(columns)]):
            raise ValueError(f"its format is not {FORMAT}")
        axes = list(content.pop("axes").values())
        timings = {}
        for places, *rows in content.pop("cells"):
            cell = Cell(*(values[k] for values, k in zip(axes, places, strict=True)))
            timings[cell] = {log2: Timings(*(None if ps is None else ps / PICO for ps in row)) for log2, *row in rows}
        failed = {Cell(*name.split("/")): why for name, why in content.pop("failed").items()}
        return Scan(timings=timings, failed=failed, **content)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError) as error:
        raise ValueError(f"{path.name} holds no results of a scan: {error}") from error


def _places(cell: Cell) -> list[int]:
    """Return the cell as the places of its values in the axes, which a file lists: names would be half of the file."""
    return [values.index(value) for values, value in zip(AXES.values(), cell, strict=True)]


def _stored(timings: dict[int, Timings]) -> list[list[float | None]]:
    """Return for each size its log2 and picoseconds of an element, without what is missing at the end."""
    rows: list[list[float | None]] = [[log2, *map(_picoseconds, timings)] for log2, timings in sorted(timings.items())]
    for row in rows:
        while row[-1] is None:
            row.pop()
    return rows


def _picoseconds(seconds: float | None) -> float | None:
    return None if seconds is None else compressed.rounded(seconds * PICO, DIGITS)


def stored() -> dict[Path, Scan]:
    """Return the scans next to this file, those that were begun last first."""
    return compressed.stored(STORED, read)
