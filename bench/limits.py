"""Which limit holds where a target was not reached, as far as measurements say it."""

from __future__ import annotations

from .cases import Work
from .results import Measurement, Results

LARGE, SMALL = 26, 18  # log2 of elements: out of every cache, and in the second one
ROOFLINE_SHARE = 0.85  # of the speed of memory: from this share on, memory is the limit
IN_CACHE = 20  # log2 of elements
CALL = 10e-6  # seconds below which most of a call is not the kernel: see the table of small calls


def speeds_in_cache(results: Results) -> dict[Work, float]:
    """Elements a second of each work, the most of any size up to `IN_CACHE`."""
    speeds: dict[Work, float] = {}
    for m in results.measurements:
        ours = m.ours()
        if m.of.log2 <= IN_CACHE and ours:
            speeds[m.of.work] = max(m.of.elements / ours.best, speeds.get(m.of.work, 0.0))
    return speeds


def kept(m: Measurement, speeds: dict[Work, float]) -> float | None:
    """The share of the speed in cache that we have."""
    ours = m.ours()
    return m.of.elements / ours.best / speeds[m.of.work] if ours and m.of.work in speeds else None


def limit(m: Measurement, speeds: dict[Work, float]) -> str:
    """Memory, where we move the bytes as fast as the machine does; the call, where the array takes less than it.

    Instructions where the array is in cache, or we keep the speed that we have there. Else stores that read a line
    before they change it, if we are as fast as these; else instructions and memory, which do not overlap.
    """
    share, into_cache, ours = m.ratio(m.roofline()), m.ratio(m.roofline(past_cache=False)), m.ours()
    kept_share = kept(m, speeds)
    if share is not None and share >= ROOFLINE_SHARE:
        return "memory"
    if ours and ours.best < CALL:
        return "the cost of a call"
    if m.of.log2 <= IN_CACHE or (kept_share is not None and kept_share >= ROOFLINE_SHARE):
        return "instructions"
    if into_cache is not None and into_cache >= ROOFLINE_SHARE:
        return "stores into the cache"
    return "memory and instructions"


def of_threads(results: Results) -> dict[str, float]:
    """How many times two threads are as fast as one, by case."""
    rows = {(row["case"], row["threads"]): row["best"] for row in results.sections.get("scaling", []) if "best" in row}
    return {case: one / rows[case, 2] for (case, threads), one in rows.items() if threads == 1 and (case, 2) in rows}
