"""In which order of axes kernels see an array, and in how many passes: what decides speed, never results."""

import numpy as np
import pytest
from catalogue import same_bytes, same_quantized

import fastq
from fastq import reference
from fastq.formats.granularity import Granularity
from fastq.kernels.sizes import MOST_ROW
from fastq.plan import by_range
from fastq.plan.arrange import arrange, order_without_gaps
from fastq.plan.spec import spec_of
from fastq.requests.quantization import RangeOptions
from fastq.requests.quantization import request_by_range as request_of


def in_order(shape, order):
    """Return numbers whose axes lie in some order in memory, the last the fastest."""
    x = np.random.default_rng(0).standard_normal([shape[axis] for axis in order]).astype(np.float32)
    return x.transpose(np.argsort(order))


BLOCKS = Granularity((2,), 32)
INNER_BLOCKS = Granularity((1,), 32)
SMALL_BLOCKS = Granularity((1,), 8)
PLANES = Granularity((1,))
# shape, order in memory, granularity, out in C order: the order that kernels see, and whether in place
SEEN = {
    "C order": ((64, 128, 64), (0, 1, 2), BLOCKS, False, None, True),
    "blocks of neighbours in place": ((64, 128, 64), (1, 0, 2), BLOCKS, False, (1, 0, 2), True),
    "blocks across long rows in place": ((64, 128, 64), (2, 0, 1), BLOCKS, False, (2, 0, 1), True),
    "blocks across short rows in place": ((64, 8, 64), (0, 2, 1), BLOCKS, False, (0, 2, 1), True),
    "blocks across the shortest rows in C order": ((64, 4, 64), (0, 2, 1), BLOCKS, False, None, False),
    "many short rows alike in place": ((4, 256, 256), (2, 1, 0), INNER_BLOCKS, False, (2, 1, 0), True),
    "few short rows alike in C order": ((4, 256, 256), (2, 1, 0), SMALL_BLOCKS, False, None, False),
    "rows long enough in place": ((16, 256, 256), (2, 1, 0), INNER_BLOCKS, False, (2, 1, 0), True),
    "long rows of channels": ((16, 256, 256), (2, 1, 0), PLANES, False, (2, 1, 0), True),
    "to C order": ((64, 8, 64), (2, 1, 0), BLOCKS, True, None, False),
}


@pytest.mark.parametrize("name", SEEN)
def test_the_order_that_kernels_see(name):
    shape, order, where, to_c_order, seen, direct = SEEN[name]
    x = in_order(shape, order)
    out = np.empty(shape, np.int8) if to_c_order else None
    arrangement = arrange(x, out, where)
    assert (arrangement.order, arrangement.is_direct) == (seen, direct)
    options = {"axis": where.axes[0], "block_size": where.block_size}
    expected, own = reference.quantize(x, "int8", **options), fastq.quantize(x, "int8", **options, out=out)
    same_quantized(own, expected)
    for found, wanted in zip(fastq.minmax(x, **options), reference.minmax(x, **options), strict=True):
        same_bytes(found, wanted)
    for q in (own, expected):
        same_bytes(fastq.quantize(x, qparams=q.qparams, out=out).codes.copy(), expected.codes.copy())
        same_bytes(fastq.dequantize(q).copy(), reference.dequantize(expected).copy())
        assert fastq.compare(x, q).max_abs_error == reference.compare(x, expected).max_abs_error


@pytest.mark.parametrize(
    ("scale_order", "seen"), [(None, None), ((0, 1, 2), None), ((2, 0, 1), None), ((1, 0, 2), (1, 0, 2))]
)
def test_blocks_whose_scales_lie_as_they_do_are_seen_in_place(scale_order, seen):
    """Others would have to be transposed, as those of a result in C order are."""
    x = in_order((64, 128, 64), (1, 0, 2))
    arrangement = arrange(x, None, BLOCKS, has_given_parameters=True, scale_order=scale_order)
    assert (arrangement.order, arrangement.is_direct) == (seen, seen is not None)
    assert order_without_gaps(fastq.quantize(x, "int8", axis=2, block_size=32).scale) == (1, 0, 2)


@pytest.mark.parametrize(("columns", "passes"), [(3, 2), (16, 1), (64, 1)])
def test_rows_that_fill_no_register_take_two_passes(columns, passes):
    """Several are taken as one in both."""
    assert MOST_ROW > 64
    x = np.zeros((4096 // columns, columns), np.float32)
    request = request_of(x.dtype, x.ndim, RangeOptions(1, dtype="int8"))
    view = arrange(x, None, request.granularity, np.dtype(np.int8))
    plan = by_range.plan_ranged(spec_of("quantize", request, by_range=True), view, x.dtype, np.dtype(np.int8))
    assert 1 + (plan.begin is not tuple) == passes
