"""Steps over the blocks of consecutive rows: whole blocks, then a shorter tail.

A run is a block or a tail. `row_end` is where the row of a run ends, `left` how many blocks that row has from the run
on, its tail among them.

A row of 10 elements in blocks of 4 has two blocks and a tail of 2. From element 4 on it has 2 blocks left.
"""

from __future__ import annotations

from fastq.engine.jit import traced


@traced
def next_row_end(args, i, row_end):
    """Return where the row of element i ends: i lies in a row of which the end is given, or is that end."""
    return row_end + args.length if i == row_end else row_end


@traced
def blocks_left(args, i, row_end):
    """Return how many blocks a row has from i on, where one begins."""
    return (row_end - i + args.block - 1) // args.block


@traced
def row_end_of(args, i, left):
    """Return the end of the row that has `left` blocks from i on."""
    return i + (left - 1) * args.block + tail_size(args)


@traced
def tail_size(args):
    """Return how many elements the last block of each row has."""
    return args.length - (args.blocks - 1) * args.block


@traced
def size_of_run(args, left):
    """Return how many elements a run has."""
    return args.block if left > 1 else tail_size(args)


@traced
def left_after_run(args, left):
    """Return how many blocks the row of the next run has left from there on."""
    return left - 1 if left > 1 else args.blocks


@traced
def runs_until(args, i, left, limit):
    """Return how many runs, from the one that begins at i on, end at `limit` or before.

    In rows of 10, in blocks of 4, there are 3 from element 4 to 14: a block, a tail, and the first block of the next
    row.
    """
    row_end = row_end_of(args, i, left)
    rows = (limit - row_end) // args.length  # -1 if it lies within this one
    return left + rows * args.blocks + (limit - row_end - rows * args.length) // args.block


@traced
def batch_length(args, left, runs, most):
    """Return the batch size, at most `runs`: `most`, or `most - 1` if the next run would be a lone tail.

    A tail may be written by a register that begins in the block before: both have to be in one batch.
    """
    if runs <= most:
        return runs
    return most - 1 if tail_size(args) < args.block and (left - most) % args.blocks == 1 else most
