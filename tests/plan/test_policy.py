"""Which loop visits a layout, in one pass or two, and how results are stored: a choice for each shape.

Registers are taken to have 16 lanes of float32 (or 4, 8), as `register_elements` says of this CPU, so rows are given in
multiples of a register.
"""

import dataclasses

import numpy as np
import pytest

from fastq.formats.granularity import as_granularity
from fastq.kernels.sizes import STAGED, STRAIGHT, WHOLE_ROWS
from fastq.kernels.storage import register_elements
from fastq.plan import policy
from fastq.plan.layout import make_layout
from fastq.system import tuning

FLOAT, BYTE = np.dtype(np.float32), np.dtype(np.int8)
LANES = register_elements(FLOAT, BYTE)


def layout_of(shape, axis=None, block_size=0):
    return make_layout(shape, as_granularity(axis, block_size, len(shape)))


@pytest.fixture
def tuned(monkeypatch):
    """Numbers of the table below, whatever this CPU has."""
    row = dataclasses.replace(
        tuning.current(),
        stream_from=1 << 20,
        stream_codes=False,
        staged_run=1 << 17,
        stream_run=1 << 15,
        fused_block=1 << 17,
        batched_blocks=16,
        merged_partials=1 << 16,
    )
    monkeypatch.setattr(tuning, "current", lambda: row)


@pytest.mark.parametrize(
    ("shape", "axis", "block_size", "operation", "loop"),
    [
        ((4096,), None, 0, "quantize", "traversal.runs.runs"),  # one scale for the array
        ((64, 4096), 0, 0, "quantize", "traversal.runs.runs"),  # one for each row
        ((64, 4096), 1, 0, "quantize", "traversal.columns.columns"),  # one for each column
        ((64, 4096), 0, 64, "quantize", "traversal.columns.columns"),  # blocks along the first axis
        ((4096, 3), 0, 0, "quantize", "traversal.short_runs.short_runs"),  # rows that fill no register
        ((4096, 3), 0, 0, "dequantize", "traversal.short_runs.short_runs"),
        ((4096, 3), 0, 0, "minmax", "traversal.runs.runs"),  # whose body takes short runs itself
        ((4096, 8), 0, 0, "compare", "traversal.runs.runs"),  # sums take 8 elements at a time
        ((4096, 5), 0, 0, "compare", "traversal.short_runs.short_runs"),
        ((4096, 16), 0, 0, "quantize", "traversal.runs.runs"),  # longer than a short run
        ((2, 4096, 3), 1, 0, "quantize", "traversal.runs.runs"),  # short runs whose parameters come again
    ],
)
def test_the_loop_of_a_layout(shape, axis, block_size, operation, loop):
    assert policy.loop_of(layout_of(shape, axis, block_size), operation, FLOAT, BYTE).function == loop


@pytest.mark.parametrize(
    ("shape", "operation", "rows"),
    [
        ((4096, 3), "quantize", 192),  # in steps of 32 rows, 96 elements, until there are 512
        ((4096, 4), "quantize", 128),  # as many as fill 512 elements
        ((20, 3), "quantize", 11),  # no more than 32 elements where a row of 64 would be a large part of all
        ((4096, 512), "quantize", 1),  # long enough alone
        ((4096, 1024), "minmax", 1),
    ],
)
def test_rows_that_are_merged(shape, operation, rows):
    assert policy.rows_as_one(layout_of(shape, 1), operation, 16) == rows


@pytest.mark.parametrize(
    ("shape", "axis", "block_size", "threads", "fits"),
    [
        ((64, 1 << 17), 0, 0, 2, True),  # a row is in the cache when it is visited again
        ((64, (1 << 17) + 1), 0, 0, 2, False),
        ((7, 4096), 0, 0, 2, False),  # too few rows for two threads
        ((7, 4096), 0, 0, 1, True),
        ((8, 4096), 0, 0, 2, True),
        ((1 << 20,), None, 0, 1, False),  # the whole array is more than the cache
        ((1 << 16,), None, 0, 1, True),
        ((4096, 4096), -1, 32, 2, True),
    ],
)
def test_whether_one_pass_is_enough(tuned, shape, axis, block_size, threads, fits):
    layout = layout_of(shape, axis, block_size)
    columns = policy.columns_together(layout, FLOAT.itemsize)
    assert columns == 1
    assert policy.fits_one_pass(layout, columns, threads) == fits


def test_rows_of_columns_that_fill_no_register_are_merged_in_two_passes(tuned):
    layout = layout_of((4096, 3), 1)
    columns = policy.columns_together(layout, FLOAT.itemsize)
    assert columns == 4 * LANES
    assert not policy.fits_one_pass(layout, columns, 1)
    assert policy.fits_one_pass(layout_of((4096, columns), 1), 1, 1)


@pytest.mark.parametrize(
    ("shape", "block_size", "expected"),
    [((64, 64), 32, True), ((64, 48), 32, False), ((64, 40), 20, False), ((2, 64), 32, False)],
)
def test_whether_there_is_a_loop_over_blocks(tuned, shape, block_size, expected):
    assert policy.has_loop_over_blocks(layout_of(shape, -1, block_size)) == expected


@pytest.mark.parametrize(
    ("shape", "axis", "row", "mode"),
    [
        ((64, 64), None, 0, 0),  # in the cache
        ((1 << 20,), None, 0, STRAIGHT),  # one run
        ((64, 1 << 14), 0, 0, STAGED),  # runs of 64 KiB share lines with their neighbours
        ((8, 1 << 17), 0, 0, STRAIGHT),  # runs of 512 KiB
        ((1 << 14, 64), 1, 64, WHOLE_ROWS),  # rows of columns of 256 bytes
        ((64, 1 << 14), 1, 1 << 14, STRAIGHT),  # of 64 KiB
    ],
)
def test_how_values_are_stored(tuned, shape, axis, row, mode):
    layout = layout_of(shape, axis)
    size = int(np.prod(shape))
    assert policy.store_mode(size, BYTE, FLOAT, layout, row=row, codes=False) == mode
    assert policy.store_mode(size, BYTE, FLOAT, layout, row=row, codes=True) == 0  # as `stream_codes` says


@pytest.mark.parametrize(
    ("shape", "axis", "threads", "slots"),
    [
        ((1 << 20,), None, 2, 2),  # a minimum for each thread, merged afterwards
        ((64, 1 << 14), 0, 2, 1),  # each thread has rows of its own
        ((64, 1 << 14), 1, 2, 2),  # a minimum of each column for each thread
        ((64, 1 << 16), 1, 2, 1),  # more than are kept side by side
    ],
)
def test_partial_results(tuned, shape, axis, threads, slots):
    divided = policy.divided_reduction(layout_of(shape, axis), int(np.prod(shape)), threads, merged=1, is_strided=False)
    assert divided.partials == slots


# --- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elements", "available", "threads"),
    [
        (0, 4, 1),
        ((1 << 15) - 1, 4, 1),
        (1 << 15, 4, 2),  # from here on a second thread works
        (1 << 15, 1, 1),
        (3 << 14, 4, 3),  # one thread for each half of that
        (1 << 30, 4, 4),
    ],
)
def test_threads(elements, available, threads, monkeypatch):
    monkeypatch.setattr(policy, "PARALLEL_FROM", 1 << 15)
    monkeypatch.setattr(policy.threadpool, "get_num_threads", lambda: available)
    assert policy.threads_for(elements) == threads
