"""Steps over the runs of lines that follow each other: whole blocks, then what is left of a line, if anything.

`line` is where the line of a run ends, `left` how many runs that line has from the run on.
"""

from __future__ import annotations

from fastq.jit import njit


@njit
def line_behind(args, i, line):
    """Return where the line of element i ends: i lies in a line of which the end is given, or is that end."""
    return line + args.length if i == line else line


@njit
def runs_left(args, i, line):
    """Return how many runs a line has from i on, where one begins."""
    return (line - i + args.block - 1) // args.block


@njit
def end_of_line(args, i, left):
    """Return where the line ends that has so many runs from i on."""
    return i + (left - 1) * args.block + rest_of_line(args)


@njit
def rest_of_line(args):
    """Return how many elements the last run of each line has."""
    return args.length - (args.blocks - 1) * args.block


@njit
def size_of_run(args, left):
    """Return how many elements a run has."""
    return args.block if left > 1 else rest_of_line(args)


@njit
def left_after_run(args, left):
    """Return how many runs the line of the next run has left from there on."""
    return left - 1 if left > 1 else args.blocks


@njit
def runs_until(args, i, left, limit):
    """Return how many runs, from the one that begins at i on, end at `limit` or before."""
    line = end_of_line(args, i, left)
    lines = (limit - line) // args.length  # -1 if it lies within this one
    return left + lines * args.blocks + (limit - line - lines * args.length) // args.block


@njit
def runs_together(args, left, runs, most):
    """Return how many of so many runs to convert together: `most`, or one fewer where a shorter one would come next."""
    if runs <= most:
        return runs
    return most - 1 if rest_of_line(args) < args.block and (left - most) % args.blocks == 1 else most
