"""Decide whether results are stored past the cache, and how, by what the runs of a call look like in memory.

The one place for all loops. Formats that a kernel can store so are those of `can_stream` in
fastq/kernels/traversal/stores.py; whether codes go past it at all says `stores_past_cache` in fastq/kernels/build.py.
The numbers are those of fastq/system/tuning.py, each with its measurement.
"""

from __future__ import annotations

from fastq.dispatch.granularity import Layout
from fastq.engine.runtime.tiling import WHOLE_BYTES
from fastq.kernels.args import STAGED, STRAIGHT, WHOLE_ROWS
from fastq.kernels.build import element_type
from fastq.kernels.storage import ElementType
from fastq.kernels.traversal.runs import PIECE_BYTES
from fastq.system import tuning


def outgrows_cache(nbytes: int) -> bool:
    """Return whether operands of so many bytes in all outgrow the cache."""
    return nbytes >= tuning.current().stream_from


def bytes_of(size: int, *kinds: ElementType) -> int:
    """Return the bytes of so many elements of each type, whole ones."""
    return size * sum(int(element_type(kind).bitwidth) for kind in kinds) // 8


def store_mode(
    size: int, src: ElementType, dst: ElementType, layout: Layout | None = None, unit: int = WHOLE_BYTES, row: int = 0
) -> int:
    """Return how results of so many elements are stored: 0 into the cache, past it `STRAIGHT`, `STAGED`, `WHOLE_ROWS`.

    The first and the last line of a run, which neighbours store in the ordinary way, cost a stall each. So runs go
    straight from registers if they are long, else by way of the stack. Rows of columns can't be staged: short ones go
    straight where they share no line, which the kernel sees. Nor can elements be that a kernel needs together and are
    more than a piece: of these fewer are long enough to go straight.

    Parameters
    ----------
    size : int
        Elements of the call.
    src, dst : ElementType
        What is read and written.
    layout : Layout, optional
        Of the runs. None for loops that see to it themselves that no line is shared: `repack` has one run, `blocks`
        stages as many blocks as it computes side by side, `block_columns` asks for each unit whether rows begin on
        lines.
    unit : int
        Elements that the kernel needs together.
    row : int
        Elements that the kernel visits as a row of columns, 0: it visits runs.
    """
    if not outgrows_cache(bytes_of(size, src, dst)):
        return 0
    if layout is None:
        return STRAIGHT
    bits, tuned = element_type(dst).bitwidth, tuning.current()
    run = row or (layout.block if layout.parameters > 1 else size)
    can_stage = not row and unit * bits <= 8 * PIECE_BYTES
    if run * bits >= 8 * (tuned.staged_run if can_stage else tuned.stream_run):
        return STRAIGHT
    return STAGED if can_stage else WHOLE_ROWS if row else 0
