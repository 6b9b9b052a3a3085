"""Throughput against size: a panel a work, a line a peer, with the roofline and the sizes of the caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib import color_sequences
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

from .peers import OURS, PEERS, ROOFLINES
from .results import Measurement, Results, peer_of

SHADES = color_sequences["tab20"]  # pairs of a strong one and a pale one
COLORS = dict(zip(PEERS, SHADES[::2] + SHADES[1::2], strict=False))
ROOFLINE = "#555555"
COLUMNS, PANEL = 3, (4.6, 3.4)


def save(results: Results, path: Path) -> None:
    """Draw the results into a file; ValueError if there is nothing to draw."""
    shown = [m for m in results.measurements if m.ours() or m.best_peer()]
    works = list(dict.fromkeys(m.of.work for m in shown))
    if not works:
        raise ValueError("results hold no case that was measured")
    columns = min(COLUMNS, len(works))
    rows = -(-len(works) // columns)
    size = columns * PANEL[0], rows * PANEL[1] + 1
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis, work in zip(axes.flat, works, strict=False):
        panel(axis, [m for m in shown if m.of.work == work], results.machine["caches"])
    for axis in axes.flat[len(works) :]:
        axis.set_visible(False)
    threads = results.settings["threads"]
    who = f"{results.machine['cpu']}, {threads} thread{'s' * (threads > 1)}"
    figure.suptitle(f"{who}: Gelem/s against elements, best of all rounds")
    handles = {line.get_label(): line for axis in axes.flat for line in axis.get_legend_handles_labels()[0]}
    order = [name for name in PEERS if name in handles]
    shown = [handles[name] for name in order]
    figure.legend(shown, order, loc="outside lower center", ncols=min(7, len(order)), frameon=False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def panel(axis: Any, measurements: list[Measurement], caches: dict[str, dict[str, int]]) -> None:
    """Draw one work."""
    measurements = sorted(measurements, key=lambda m: m.of.log2)
    for peer in PEERS:
        if peer not in ROOFLINES:
            line(axis, measurements, peer)
    roof = {m.of.log2: m.of.elements / r.best / 1e9 for m in measurements if (r := m.roofline())}
    axis.plot(list(roof), list(roof.values()), "--", color=ROOFLINE, linewidth=1.2, label="roofline", zorder=2)
    axis.set_title(measurements[0].of.work.title, fontsize=10)
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.set_ylim(low, max(high, 12 * low))  # a decade at least, so that there are numbers
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    sizes = [m.of.log2 for m in measurements]
    axis.xaxis.set_major_locator(FixedLocator(sizes))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"$2^{{{value:g}}}$"))
    axis.margins(x=0.05)
    axis.grid(alpha=0.25)
    draw_caches(axis, measurements, caches)


def line(axis: Any, measurements: list[Measurement], peer: str) -> None:
    """Draw the fastest way of one peer at each size."""
    points = {}
    for m in measurements:
        if rival := m.fastest(name for name in m.timings if peer_of(name) == peer):
            points[m.of.log2] = m.of.elements / rival.best / 1e9
    if points:
        style = {"linewidth": 2.4, "zorder": 4} if peer == OURS else {"linewidth": 1.2, "zorder": 3, "alpha": 0.85}
        axis.plot(list(points), list(points.values()), "o-", markersize=3, color=COLORS[peer], label=peer, **style)


def draw_caches(axis: Any, measurements: list[Measurement], caches: dict[str, dict[str, int]]) -> None:
    """Mark the sizes at which the bytes of the case fill each cache of one core."""
    first, last = measurements[0].of, measurements[-1].of
    for name, cache in caches.items():
        for log2 in range(first.log2, last.log2):
            low, high = (first._replace(log2=each).bytes_moved for each in (log2, log2 + 1))
            if low <= cache["bytes"] < high:
                where = log2 + (cache["bytes"] - low) / (high - low)
                axis.axvline(where, color="black", linewidth=0.8, alpha=0.3, zorder=1)
                style = {"fontsize": 7, "alpha": 0.7, "ha": "right", "rotation": 90}
                axis.annotate(name, (where, 0.02), xycoords=("data", "axes fraction"), **style)
