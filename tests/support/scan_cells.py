"""Cells of the benchmark's scan, and modules of the benchmark."""

import importlib

from click.testing import CliRunner

PACKAGE = "bench"  # of the checkout; that of a wheel has fewer modules


def part(name):
    """A module of the benchmark."""
    return importlib.import_module(f"{PACKAGE}.{name}")


def invoke(run, *arguments, exit_code=0):
    """What a command of the benchmark prints."""
    outcome = CliRunner().invoke(run, [str(a) for a in arguments])
    assert outcome.exit_code == exit_code, outcome.output
    return outcome.output


grid, sample = part("scan.grid"), part("scan.sample")
Cell = grid.Cell
COVERING = list(sample.covering(sample.Random(0), list(grid.GATE)))


LOOP_DTYPES = [dtype for dtype in grid.AXES["dtype"] if dtype not in ("float16", "bfloat16", "codes")]
LOOP_LAYOUTS = [layout for layout in grid.LAYOUTS if layout not in ("swapped", "unaligned")]
INTEGERS = ("int8", "uint8", "int16", "uint16")
FORMATS = {"minmax": ("none",), "compare values": ("none",), "pack": ("int4",), "unpack": ("uint4",)}
FORMATS |= {"binarize": ("uint8", "int8"), "bitround": ("none",), "requantize": ("int8", "uint8", "int16")}


def cells_of_loops(work):
    """Each granularity of a work, with dtypes, layouts and kinds of out= that take turns."""
    row = grid.WORKS[work]
    dtypes = [dtype for dtype in LOOP_DTYPES if dtype in row.dtypes] or ["codes"]
    for k, granularity in enumerate(row.granularities):
        for layout in (LOOP_LAYOUTS[k % len(LOOP_LAYOUTS)], LOOP_LAYOUTS[(3 * k + 2) % len(LOOP_LAYOUTS)]):
            out = grid.AXES["out"][k % 3] if row.out else "none"
            formats = FORMATS.get(work, INTEGERS)
            format_ = formats[k % len(formats)]
            yield Cell(work, format_, granularity, dtypes[k % len(dtypes)], layout, out)


def size_of_whole_blocks(cell, least=12):
    """The log2 of the first size, of `least` to 12 or of a piece, at which all blocks are whole, 0 where none is."""
    row = grid.GRANULARITIES[cell.granularity]
    sizes = (*range(least, 13), grid.PIECE)
    return next((k for k in sizes if not row.block_size or cell.shape(k)[row.axis] % row.block_size == 0), 0)
