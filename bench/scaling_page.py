"""The site's page on scaling and its pictures, made from stored results of `python -m bench scaling`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import compressed, pictures, results
from .cases import Case, case_of
from .machine import cpu_name
from .markdown import markdown
from .results import Results
from .show import NOT_THERE, times

ROOT = Path(__file__).parents[1]
STORED = results.STORED / "scaling"
PAGE = Path("docs/performance-scaling.md")
TEXT = """# Performance: threads

Made from `bench/results/scaling` when these pages are built; no figure here is typed by hand.

`python -m bench scaling` measures each case with 1, 2, 4, ... threads in one process, and in another one the roofline,
which moves as many bytes and computes nothing. Shown is how many times as fast as our one thread ours and the roofline
are, and how many times as fast as with one thread the roofline is: what a copy gains by threads. Where ours gains less
than it, the cause is ours. Both are the best of all sweeps. Pictures have a line for each work and dots for the copies.

{sections}
"""
COLUMNS, HEIGHT = 2, 3.4  # panels in a row, and inches
COLORS = 10  # that lines take in turns
MUCH_LESS = 0.6


def stored() -> dict[Path, Results]:
    """Return the results that are kept, those that were begun last first."""
    return compressed.stored(STORED, results.read)


def texts() -> dict[Path, str]:
    """Return the page by its path in the repository, with a section for each machine; nothing where none is stored."""
    sections = [_section(found, path) for path, found in stored().items()]
    return {PAGE: TEXT.format(sections="\n\n".join(sections))} if sections else {}


def link() -> str:
    """Return a line of a list for the pages that there are."""
    return f"- many threads: [time against threads]({PAGE.name})\n" if texts() else ""


def write(root: Path = ROOT) -> list[Path]:
    """Write the page and its pictures; those that changed."""
    found = drawn()
    sources = {path: source(each) for path, each in found.items()}
    written = pictures.write_pictures(root, sources, lambda path: picture(found[path]))
    return [*pictures.write_texts(root, texts()), *written]


def _section(found: Results, path: Path) -> str:
    cores = f"{found.machine['cores']} cores, Python {found.machine['python']}, begun {found.started}"
    picture = f"![How many times as fast as one thread]({picture_of(path).name})"
    return f"## {cpu_name(found.machine)}\n\n{cores}. {_behind(found)}\n\n{picture}\n\n{table(found)}"


def _behind(found: Results) -> str:
    """Return a sentence on the cases that gain much less by all threads than their copies do."""
    by_case = _by_case(found)
    most = max((threads for each in by_case.values() for threads in each), default=1)
    gains = {case: (each[1], each[most]) for case, each in by_case.items() if {1, most} <= each.keys()}
    names = [
        f"`{case.name}`"
        for case, (one, all_) in gains.items()
        if "roofline" in one and one["best"] / all_["best"] < MUCH_LESS * one["roofline"] / all_["roofline"]
    ]
    return f"With {most} threads these gain less than {MUCH_LESS} of the speed of a copy: {', '.join(names) or 'none'}."


def table(found: Results) -> str:
    """Return how many times as fast each case is with more threads; the same of the roofline over ours and its own."""
    by_case = _by_case(found)
    counts = sorted({threads for each in by_case.values() for threads in each if threads > 1})
    columns = [("case", [case.name for case in by_case])]
    columns.append(("us with 1 thread", [_microseconds(each.get(1, {}).get("best")) for each in by_case.values()]))
    for n in counts:
        for title, one, more in (
            (f"x with {n}", "best", "best"),
            (f"roofline, x with {n}", "best", "roofline"),
            (f"its own x with {n}", "roofline", "roofline"),
        ):
            cells = [_times(each.get(1, {}).get(one), each.get(n, {}).get(more)) for each in by_case.values()]
            columns += [(title, cells)] if one == "best" or any(cell != NOT_THERE for cell in cells) else []
    titles, cells = zip(*columns, strict=True)
    return markdown(titles, zip(*cells, strict=True))


def _by_case(found: Results) -> dict[Case, dict[int, dict[str, float]]]:
    made: dict[Case, dict[int, dict[str, float]]] = {}
    for row in found.sections.get("scaling", []):
        made.setdefault(case_of(row["case"]), {})[row["threads"]] = row
    return made


def _microseconds(seconds: float | None) -> str:
    return NOT_THERE if seconds is None else f"{seconds * 1e6:,.4g}"


def _times(one: float | None, more: float | None) -> str:
    return times(one / more if one and more else None)


# --- pictures ---------------------------------------------------------------------------------------------------------


def picture_of(path: Path) -> Path:
    """Return where the picture of stored results is."""
    return PAGE.with_name(f"{PAGE.stem}-{path.name.partition('.')[0]}.png")


def drawn() -> dict[Path, Results]:
    """Return the pictures by their path in the repository, with their data."""
    return {picture_of(path): found for path, found in stored().items()}


def source(found: Results) -> str:
    """Return what a picture says that it was made from."""
    return f"{found.started}, {len(found.sections['scaling'])} rows"


def picture(found: Results) -> bytes:
    """Return a PNG: for each size a panel, times as fast against threads, a line for each work."""
    from matplotlib.figure import Figure

    by_case = _by_case(found)
    sizes = sorted({case.log2 for case in by_case})
    rows = -(-len(sizes) // COLUMNS)
    figure = Figure(figsize=(pictures.WIDTH, rows * HEIGHT + 1.5), layout="constrained")
    places = figure.subplots(rows, COLUMNS, squeeze=False).flat
    for place in places[len(sizes) :]:
        place.set_visible(False)
    for place, log2 in zip(places, sizes, strict=False):
        _panel(place, {case: each for case, each in by_case.items() if case.log2 == log2 and 1 in each})
        place.set_title(f"$2^{{{log2}}}$ elements", fontsize=10)
    handles, labels = places[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=pictures.SMALLEST, frameon=False)
    return pictures.png(figure, source(found))


def _panel(place: Any, by_case: dict[Case, dict[int, dict[str, float]]]) -> None:
    counts = sorted({threads for each in by_case.values() for threads in each})
    place.plot(counts, counts, color="#999999", linewidth=0.8, linestyle=":")
    for k, (case, each) in enumerate(by_case.items()):
        gained = [each[1]["best"] / row["best"] for row in each.values()]
        style = "-" if k < COLORS else "--"
        (line,) = place.plot(list(each), gained, style, label=case.work.title)
        own = {n: each[1]["roofline"] / row["roofline"] for n, row in each.items() if "roofline" in each[1] | row}
        place.plot(list(own), list(own.values()), ".", color=line.get_color())
    place.set_xscale("log", base=2)
    place.set_yscale("log", base=2)
    place.set_xticks(counts, map(str, counts))
    place.set_yticks(counts, map(str, counts))
    place.grid(alpha=0.25)
