"""docs/performance.md, the README's table and the site's pages of figures, made from stored results.

No figure is typed by hand.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable, Container
from operator import itemgetter
from pathlib import Path
from typing import Any

from . import scaling_page, systems
from .cases import HEADLINES, WORKS, Case
from .limits import CALL, LARGE, ROOFLINE_SHARE, SMALL, kept, limit, of_threads, speeds_in_cache
from .machine import cpu_name
from .markdown import Cell, Row, folded, listed, markdown, number, with_part
from .peers import PEERS, ROOFLINES
from .pictures import write_texts
from .results import Measurement, Results, Rival, geometric_mean, peer_of
from .show import FIGURES, NOT_THERE, gelems, remarks, times

ROOT = Path(__file__).parents[1]
PAGE, README = Path("docs/performance.md"), Path("README.md")
TEMPLATE, FIGURES_TEMPLATE = (Path(__file__).parent / name for name in ("performance.md", "figures.md"))
BEGIN, END = "<!-- begin: python -m bench report -->", "<!-- end -->"
MIB = 1 << 20
NOT_MEASURED = "Not measured in these results."
UNITS = ((1 << 30, "GiB"), (MIB, "MiB"), (1 << 10, "KiB"))


def texts(stored: dict[Path, Results], root: Path = ROOT) -> dict[Path, str]:
    """What the files that are generated must hold, by their path in the repository; they are of the first results."""
    file, first = next(iter(stored.items()))
    readme = (root / README).read_text(encoding="utf-8")
    return {PAGE: filled(TEMPLATE, first, file), README: with_part(readme, BEGIN, speed_table(first, HEADLINES), END)}


def write(stored: dict[Path, Results], root: Path = ROOT) -> list[Path]:
    """Write the files; those that changed."""
    return [*write_texts(root, texts(stored, root))]


def filled(template: Path, results: Results, file: Path) -> str:
    """A template with every part of it filled in."""
    text = template.read_text(encoding="utf-8")
    parts = {part: make(results) for part, make in PARTS.items() if f"{{{part}}}" in text}
    return text.format(results=file.name, named=cpu_name(results.machine), **parts)


# --- pages of the site ------------------------------------------------------------------------------------------------


def figures(stored: dict[Path, Results]) -> dict[Path, str]:
    """Pages with all figures of each machine, by their path; the site has them, the repository has not."""
    return {_figures_of(file): filled(FIGURES_TEMPLATE, results, file) for file, results in stored.items()}


def links(stored: dict[Path, Results]) -> str:
    """A section for the site's page of `PAGE`, which leads to all others."""
    lines = [f"- [{cpu_name(results.machine)}]({_figures_of(file).name})" for file, results in stored.items()]
    return "\n## All figures\n\n" + "\n".join(lines) + "\n" + scaling_page.link()


def _figures_of(file: Path) -> Path:
    return PAGE.with_stem(f"{PAGE.stem}-{file.name.partition('.')[0]}")


# --- parts ------------------------------------------------------------------------------------------------------------


def nbytes(count: int) -> str:
    """Bytes in the largest unit that is not larger."""
    size, unit = next(((s, u) for s, u in UNITS if count >= s), (1, "bytes"))
    return f"{count / size:.3g} {unit}"


def machine(results: Results) -> str:
    """A list of facts about the machine."""
    m = results.machine
    caches = ", ".join(
        f"{name} {nbytes(c['bytes'])} for {c['cores']} core{'s' * (c['cores'] > 1)}" for name, c in m["caches"].items()
    )
    lines = [
        f"CPU: {m['cpu']}; {m['features']}",
        f"cores: {m['cores']}; threads of every contender: {results.settings['threads']}",
        f"caches: {caches or 'not known'}",
        f"memory: {nbytes(m['memory'])}",
        f"system: {m['system']}, Python {m['python']}",
        f"versions: {', '.join(f'{name} {version}' for name, version in versions(results).items())}",
        f"measured: {results.started}",
    ]
    return "\n".join(f"- {line}" for line in lines)


def versions(results: Results) -> dict[str, str]:
    """Versions by distribution."""
    there = {PEERS[peer].distribution or peer: version for peer, version in results.versions.items() if version}
    return dict(sorted(there.items()))


def speed_table(
    results: Results, titles: Container[str] = frozenset(work.title for work in WORKS), *, share: bool = False
) -> str:
    """Our throughput at two sizes and the best peer's, of works with such titles.

    Between them is what the memory allowed in the same minute, or the share of it that we reach.
    """
    allows = "of the roofline" if share else "memory allows"
    sizes = (f"2^{LARGE} elements", allows, "best peer"), (f"2^{SMALL} elements", "best peer")
    columns = ["Gelem/s", *sizes[0], *sizes[1]]
    rows = []
    for work in WORKS:
        there = [results.get(Case(work, log2).name) for log2 in (LARGE, SMALL)]
        if work.title in titles and any(m and m.ours() for m in there):
            roof = there[0].roofline() if there[0] else None
            reached = times(there[0].ratio(roof)) if roof else NOT_THERE
            allowed = reached if share else gelems(there[0], roof.best) if roof else NOT_THERE
            (large, rival), small = map(_compared, there)
            rows.append([work.title, large, allowed, rival, *small])
    return markdown(columns, rows)


def _compared(m: Measurement | None) -> tuple[str, str]:
    if m is None or m.ours() is None:
        return "-", "-"
    rival = m.best_peer()
    return gelems(m, m.ours().best), f"{gelems(m, rival.best)} {rival.name}" if rival else "-"


def words(results: Results) -> str:
    """Three sentences: what limits large arrays, what the mean over all cases is, what a small call takes."""
    made = _of_large(results), _of_all(results), _of_calls(results)
    return textwrap.fill(" ".join(filter(None, made)), 120, break_on_hyphens=False)


def _of_large(results: Results) -> str:
    there = [m for work in WORKS if work.title in HEADLINES and (m := results.get(Case(work, LARGE).name))]
    shares = [share for m in there if (share := m.ratio(m.roofline())) is not None]
    if not shares:
        return ""
    return (
        f"At 2^{LARGE} elements, out of every cache, these works reach {min(shares):.2f} to {max(shares):.2f} of the"
        " *roofline*: the speed of a program that moves the same bytes in the same minute and computes nothing."
    )


def _of_all(results: Results) -> str:
    rivals = [(m, ratio) for m in _counted(results) if (ratio := m.ratio(m.best_peer())) is not None]
    numpy = [ratio for m in _counted(results) if (ratio := m.ratio(m.numpy())) is not None]
    if not (rivals and numpy):
        return ""
    speeds = speeds_in_cache(results)
    slower = [limit(m, speeds) for m, ratio in rivals if ratio < 1]
    calls = slower.count("the cost of a call")
    return (
        f"Over all {len(rivals)} cases of 2^12 elements and more the geometric mean is"
        f" {times(geometric_mean([ratio for _, ratio in rivals]))} times the speed of the best peer and"
        f" {times(geometric_mean(numpy))} times that of NumPy; {len(slower)} cases are slower than a peer, {calls} of"
        f" them calls of less than {CALL * 1e6:.0f} us."
    )


def _of_calls(results: Results) -> str:
    found = {row["what"]: row["best"] for row in results.sections.get("startup", [])}
    if not found.keys() >= set(_CALLS):
        return ""
    small, cold, on_disk = (found[name] for name in _CALLS)
    return (
        f"A call on 1,000 elements takes {small * 1e6:.2g} us; the first one of a process takes {cold:.2g} s where its"
        f" kernels have to be compiled, and {on_disk:.2g} s where they are on disk."
    )


_CALLS = (
    "quantize_linear, out=, 1,000 elements",
    "first call, 1,000 elements, cold",
    "first call, 1,000 elements, from the cache",
)


def throughput(results: Results) -> str:
    """A table for each work, all its sizes."""
    parts = []
    for work in WORKS:
        rows = [[cell(m) for cell in FIGURES.values()] for m in results.measurements if m.of.work == work and m.ours()]
        if rows:
            parts.append(folded(work.title, f"{_formula(work)}\n\n{markdown(_COLUMNS, rows)}"))
    return "\n\n".join(parts)


_TITLES = {"size": "elements", "best": "Gelem/s", "its best": "its Gelem/s", "of roofline": "of the roofline"}
_COLUMNS = [_TITLES.get(name, name) for name in FIGURES]


def _formula(work: Any) -> str:
    case = Case(work, LARGE)
    parts = [f"reads {nbytes(p.read)}" + (f" and writes {nbytes(p.written)}" if p.written else "") for p in case.passes]
    return f"`{work.name}`: at 2^{LARGE} {', then '.join(parts)}."


def _counted(results: Results) -> list[Measurement]:
    return [m for m in results.measurements if m.ours() and m.of.log2 >= 12]


def summary(results: Results) -> str:
    """Geometric means over all cases, and how many are below the best peer."""
    there = _counted(results)
    rivals: tuple[tuple[str, Callable[[Measurement], Rival | None]], ...] = (
        ("the best peer", Measurement.best_peer),
        ("NumPy", Measurement.numpy),
        ("the roofline", Measurement.roofline),
    )
    rows = []
    for name, rival in rivals:
        ratios = [ratio for m in there if (ratio := m.ratio(rival(m))) is not None]
        mean = geometric_mean(ratios)
        below = sum(ratio < 1 for ratio in ratios)
        rows.append([name, str(len(ratios)), times(mean), times(min(ratios, default=None)), str(below)])
    return markdown(("fastq, times", "cases", "geometric mean", "lowest", "below 1"), rows)


def allocation(results: Results) -> str:
    """What a fresh result costs, at the largest size that was measured."""
    both = [m for m in results.measurements if m.ours() and m.ours(allocating=True)]
    largest = max((m.of.log2 for m in both), default=0)
    rows = [
        [m.of.work.title, *(f"{seconds * 1e3:.3g}" for seconds in pair), times(pair[1] / pair[0])]
        for m in both
        if m.of.log2 == largest
        for pair in [(m.ours().best, m.ours(allocating=True).best)]
    ]
    return markdown((f"ms for 2^{largest} elements", "out=", "no out=", "times"), rows) if rows else NOT_MEASURED


def limits(results: Results) -> str:
    """Which limit holds where the best peer, or the wanted share of the roofline, was not reached."""
    threads, speeds, rows = of_threads(results), speeds_in_cache(results), []
    for m in results.measurements:
        rival, roof = m.best_peer(), m.roofline()
        lost, share = m.ratio(rival), m.ratio(roof)
        slower = lost is not None and lost < 1 and m.of.log2 >= 12
        if slower or (share is not None and share < ROOFLINE_SHARE and m.of.log2 == LARGE):
            theirs = m.over(roof.name, rival.name) if roof and rival else None
            name = rival.name if rival else "-"
            shown = [times(lost), name, times(share), times(theirs), times(kept(m, speeds)), times(threads.get(m.case))]
            rows.append([m.of.work.title, f"2^{m.of.log2}", *shown, limit(m, speeds)])
    columns = (
        "work",
        "elements",
        "x peer",
        "peer",
        "our share of the roofline",
        "the peer's",
        "of the speed in cache",
        "x with 2 threads",
        "limit",
    )
    return markdown(columns, rows) if rows else "None."


def slower(results: Results) -> str:
    """The works in which a peer is faster, with the sizes and how many times as fast as it ours is there."""
    speeds = speeds_in_cache(results)
    sizes: dict[tuple[str, str, str], list[str]] = {}
    for m in _counted(results):
        rival = m.best_peer()
        ratio = m.ratio(rival)
        if rival and ratio is not None and ratio < 1:
            key = m.of.work.title, rival.name, limit(m, speeds)
            sizes.setdefault(key, []).append(f"2^{m.of.log2}: {times(ratio)}")
    rows = [(work, peer, ", ".join(lines), held_by) for (work, peer, held_by), lines in sizes.items()]
    return markdown(("work", "peer", "elements: fastq, times", "limit"), rows) if rows else "Nowhere."


def section(name: str, columns: dict[str, Cell], is_shown: Callable[[Row], bool] = bool) -> Callable[[Results], str]:
    """A part of the page that lists rows of a section."""

    def part(results: Results) -> str:
        rows = list(filter(is_shown, results.sections.get(name, [])))
        return listed(columns, rows) if rows else NOT_MEASURED

    return part


WHAT: Cell = itemgetter("what")
_WAITING = {"ms, best": "best", "median": "median", "of which import numba": "numba"}
_OF_CALLS = {"best": "best", "median": "median", "Python": "python", "dispatch": "dispatch", "kernel": "kernel"}
_CONTENTION = {
    "one thread, alone": "serial",
    "all, alone": "free",
    "all, next to it": "median",
    "99th percentile": "p99",
    "longest": "longest",
    "99th of one thread": "serial_p99",
}
SECTIONS: dict[str, Callable[[Results], str]] = {
    "small_calls": section(
        "startup",
        {"us": WHAT} | {title: number(key, units=1e6) for title, key in _OF_CALLS.items()},
        lambda row: "kernel" in row,
    ),
    "waiting": section(
        "startup",
        {"what": WHAT} | {title: number(key, 0, 1e3) for title, key in _WAITING.items()},
        lambda row: "kernel" not in row,
    ),
    "contention": section(
        "contention",
        {"ms": itemgetter("case")}
        | {title: number(key, units=1e3) for title, key in _CONTENTION.items()}
        | {"all over one": lambda row: times(row["p99"] / row["serial_p99"])},
    ),
    "memory": section("memory", {"call on 2^26 elements": WHAT, "MiB beyond input and output": number("mib")}),
}


def peers(results: Results) -> str:
    """Who is measured, in how many cases the results were the reference's, and what is known of the arithmetic."""
    rows = []
    for row in PEERS.values():
        checked = [name for m in results.measurements for name in m.timings if peer_of(name) == row.name]
        same = [name for m in results.measurements for name in m.exact if peer_of(name) == row.name]
        equal = "-" if row.name in ROOFLINES else f"{len(same)} of {len(checked)}"
        rows.append([f"`{row.name}`", results.versions.get(row.name, "absent") or "-", equal, row.convention or "-"])
    return markdown(("contender", "version", "bit for bit the reference's", "arithmetic"), rows)


PARTS: dict[str, Callable[[Results], str]] = SECTIONS | {
    "machine": machine,
    "headlines": functools.partial(speed_table, titles=HEADLINES, share=True),  # ten works
    "words": words,
    "threads": lambda results: "one thread" if (count := results.settings["threads"]) == 1 else f"{count} threads",
    "summary": summary,
    "speed": speed_table,
    "slower": slower,
    "limits": limits,
    "allocation": allocation,
    "throughput": throughput,
    "scaling": lambda results: scaling_page.table(results) if results.sections.get("scaling") else NOT_MEASURED,
    "peers": peers,
    "systems": lambda results: systems.table(),
    "absent": lambda results: "\n".join(f"- {line}" for line in remarks(results)) or "Nobody.",
}
