"""docs/performance-scan.md and its heat maps, made from the stored scans."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from .. import pictures
from ..machine import cpu_name
from ..markdown import folded, markdown
from . import show
from .grid import AXES
from .judge import CRITERIA
from .store import Scan

PAGE = Path("docs/performance-scan.md")
TEMPLATE = Path(__file__).parent / "page.md"
MAPPED = ("work", "granularity", "layout", "dtype", "format", "out", "threads", "convention", "nan")
LEAST, MOST = 0.01, 1.0  # of the copy's speed: the ends of the colours
NOTHING = "None."


def text(scans: dict[Path, Scan]) -> str:
    """Return the page: what is said of all scans, and a section for each."""
    sections = "\n\n".join(section(scan, path) for path, scan in scans.items())
    return TEMPLATE.read_text(encoding="utf-8").format(sections=sections)


def section(scan: Scan, path: Path) -> str:
    """Return the part of one machine."""
    settings = ", ".join(f"{name} {value}" for name, value in scan.settings.items() if value)
    have, there = show.covered(scan.timings)
    took = f"begun {scan.started}, {scan.seconds / 60:.0f} minutes"
    parts = [
        f"## {cpu_name(scan.machine)}",
        f"Made from `bench/scan/results/{path.name}`: {settings}; {took}. {have} of {there} pairs of values are in it.",
        markdown(*show.summary(scan)),
        *(markdown(*table) for table in (show.verdicts(scan), show.means(scan), show.limits(scan)) if table[1]),
        f"![Share of the speed of a copy]({picture_of(path).name})",
        folded("Gelem/s of the works", markdown(*show.families(scan))),
    ]
    for name, criterion in CRITERIA.items():
        if criterion.cells(scan):
            rows = show.findings(criterion.find(scan), scan.settings["threads"])
            parts.append(folded(f"The worst: {name}", markdown(show.FINDING, rows) if rows else NOTHING))
    failed = show.failures(scan)
    parts.append(folded("Failed", markdown(["cell", "why"], failed) if failed else NOTHING))
    if scan.refused:
        table = markdown(["peer, cell, elements", "why"], scan.refused.items())
        parts.append(folded("Peers that were wrong or failed", table))
    return "\n\n".join(parts)


def picture_of(path: Path) -> Path:
    """Return where the heat maps of a stored scan are."""
    return PAGE.with_name(f"{PAGE.stem}-{path.name.partition('.')[0]}.png")


def source(scan: Scan) -> str:
    """Return what a picture says that it was made from."""
    return f"{scan.started}, {len(scan.timings)} cells, {scan.seconds:.0f} s"


def picture(scan: Scan) -> bytes:
    """Return the heat maps as a PNG: for each value of each axis and each size the share of the speed of a copy."""
    from matplotlib.figure import Figure

    heights = [len(AXES[axis]) for axis in MAPPED]
    height = 0.17 * sum(heights) + 0.5 * len(MAPPED)
    figure = Figure(figsize=(pictures.WIDTH, height))
    figure.subplots_adjust(0.27, 0.3 / height, 0.9, 1 - 0.3 / height, wspace=0.04, hspace=0.3)
    grid = figure.subplots(len(MAPPED), 2, height_ratios=heights)
    for row, axis in zip(grid, MAPPED, strict=True):
        shares = show.by(scan, axis, lambda timings: timings.copy / timings.ours)
        for place, name, reduce in zip(row, ("median", "slowest"), (median, min), strict=True):
            image = _map(place, shares, reduce, f"{axis}, {name}")
        row[1].set_yticks([])  # the values are those of the first map
    bar = figure.add_axes((0.915, 0.4, 0.015, 0.2))
    figure.colorbar(image, bar)
    bar.set_title("of the\nspeed of\na copy", fontsize=pictures.SMALLEST)
    bar.tick_params(labelsize=pictures.SMALLEST)
    return pictures.png(figure, source(scan))


def _map(place: Any, shares: dict[str, dict[int, list[float]]], reduce: Any, title: str) -> Any:
    """Draw one map; what was not measured is left white."""
    from matplotlib.colors import LogNorm

    values, sizes = sorted(shares), sorted({log2 for each in shares.values() for log2 in each})
    cells = [[reduce(shares[value][k]) if k in shares[value] else float("nan") for k in sizes] for value in values]
    image = place.imshow(cells, aspect="auto", cmap="RdYlGn", norm=LogNorm(LEAST, MOST, clip=True))
    place.set_title(title, fontsize=8, loc="left")
    place.set_xticks(range(0, len(sizes), 2), [f"2^{log2}" for log2 in sizes[::2]], fontsize=pictures.SMALLEST)
    place.set_yticks(range(len(values)), values, fontsize=pictures.SMALLEST)
    return image
