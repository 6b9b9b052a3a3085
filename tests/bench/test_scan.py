"""The scan of the benchmark: its grid, its sample, its checks of results, what it finds, and a small run."""

import dataclasses
import functools
import importlib
import importlib.util
import itertools
import os
import subprocess
import sys
import types
from pathlib import Path

import numba
import numpy as np
import pytest
import scan_cells
from scan_cells import COVERING, PACKAGE, Cell, cells_of_loops, grid, part, sample, size_of_whole_blocks

import fastq
from fastq import config, reference

calls, command = map(part, ["scan.calls", "scan.command"])
judge, measure, page, plain = map(part, ["scan.judge", "scan.measure", "scan.page", "scan.plain"])
agreement, peers = map(part, ["scan.agreement", "scan.peers"])
run, show, store = map(part, ["scan.run", "scan.show", "scan.store"])
call_of, results_of = part("calls").call_of, part("calls").results_of
report, worker = map(part, ["report", "worker"])
Timings = store.Timings
CELL = Cell("quantize", "int8", "rows", "float32")
invoke = functools.partial(scan_cells.invoke, command.scan)


def made_up(timings=None, threads=2, **named):
    """A scan with these timings of cells: (ours, copy, ...) in nanoseconds of an element."""
    seconds = {
        cell: {log2: Timings(*(None if ns is None else ns * 1e-9 for ns in row)) for log2, row in each.items()}
        for cell, each in (timings or {}).items()
    }
    settings = {"seed": 0, "threads": threads}
    return store.Scan({"cpu": "A", "features": "b (c)"}, {}, settings, "2026-01-01 00:00:00", timings=seconds, **named)


def found_by(criterion, scan):
    return [(each.log2, pytest.approx(each.times)) for each in criterion(scan)]


# The grid


def test_axes_have_every_format_and_each_function():
    assert {work.function for work in grid.WORKS.values()} == {
        *("quantize", "quantize_linear", "dequantize", "dequantize_linear", "fake_quantize", "choose_qparams"),
        *("minmax", "compare", "binarize", "pack", "unpack", "bitround", "gguf.quantize", "gguf.dequantize"),
        *("requantize", "bit_information", "xarray.unpack_array"),
    }
    assert {*fastq.formats.qtypes.QTYPES, *grid.BLOCK_FORMATS} < set(grid.AXES["format"])
    assert set(judge.RIVALS.values()) == {*plain.BASELINES, *peers.PEERS, "best_peer"}
    assert set(store.COLUMNS) == {"ours", "copy", "c_order", *plain.BASELINES, *peers.PEERS}
    assert set(grid.AXES["convention"]) == set(fastq.CONVENTIONS)
    assert all(cell.valid for cell in grid.GATE)


def test_the_grid_names_only_valid_calls():
    for cell in COVERING:
        operands, wrong = calls.ready(cell, 10)
        assert operands.shape == cell.shape(10)
        assert wrong(call_of(reference, operands)()) == "", cell.name


@pytest.mark.parametrize(
    "changed",
    [
        {"format": "mxfp4"},  # whose blocks run along rows
        {"format": "none"},
        {"work": "pack"},
        {"work": "minmax"},
        {"dtype": "bfloat16", "layout": "swapped"},
        {"dtype": "float128"},
        {"convention": "torch"},  # which is of works of its own
        {"work": "quantize by convention"},
        {"work": "quantize by convention", "convention": "qdq-nbits"},  # which has 4 bits alone
        {"work": "quantize symmetric by convention", "convention": "faiss"},
        {"work": "quantize with NaN"},
        {"work": "quantize with NaN", "nan": "keep"},  # an integer is not NaN
    ],
)
def test_what_does_not_go_together_is_refused(changed):
    assert CELL.valid
    assert grid.cell_of(CELL.name) == CELL
    name = CELL._replace(**changed).name
    with pytest.raises(
        ValueError, match="cell must be a name such as 'quantize/int8/array/float32/c/c/all/onnx/raise/10,20', not "
    ):
        grid.cell_of(name)


@pytest.mark.parametrize("granularity", grid.GRANULARITIES)
def test_shapes(granularity):
    row = grid.GRANULARITIES[granularity]
    for log2 in range(10, 27):
        shape, small = row.shape(log2), row.shape(min(log2, grid.PIECE))
        assert 0.9 * 2**log2 < np.prod(shape) <= 2**log2
        assert shape[row.growing_axis] == row.times(log2) * small[row.growing_axis]
        if log2 >= grid.PIECE:
            assert [n for a, n in enumerate(shape) if a != row.growing_axis] == [n for n in row.lengths if n]
            assert not row.block_size or row.axis != row.growing_axis or small[row.growing_axis] % row.block_size == 0
        assert row.count(shape) == parameters_of(row, shape)


def parameters_of(row, shape):
    """How many parameters there are: those of an array that is not computed."""
    zeros = pytest.importorskip("dask.array", reason="no dask").zeros(shape, np.int8, chunks=-1)
    return fastq.choose_qparams(zeros, "int8", axis=row.axis, block_size=row.block_size).scale.size


MOVED = [
    CELL._replace(out="none"),
    Cell("dequantize", "int4", "blocks 32"),
    Cell("dequantize", "int16", "columns", "float64"),
    Cell("quantize given", "uint4", "axes 0 2", "float16"),
    Cell("fake_quantize given", "mxfp4", "blocks 32", "bfloat16"),
    Cell("pack", "int4", "rows", "codes", out="none"),
    Cell("unpack", "uint2", "rows", "codes", out="none"),
    Cell("gguf.quantize", "Q5_1", "array"),
    Cell("minmax", "none", "rows", "int64", out="none"),
    Cell("binarize", "uint8", "odd rows"),
    Cell("quantize by convention", "int8", "blocks 32", convention="torch-pt2e"),
    Cell("dequantize by convention", "uint8", "columns", convention="cf"),
]


@pytest.mark.parametrize("cell", MOVED, ids=lambda cell: cell.name)
def test_bytes_moved_are_those_of_the_arrays(cell):
    o = calls.ready(cell, 12)[0]
    results = results_of(call_of(reference, o)())
    made = [each for name, each in results.items() if name not in calls.PARAMETERS or o.qparams is None]
    read = o.first.nbytes + (o.qparams.nbytes if o.qparams else 0)
    written = sum(np.asarray(each).nbytes for each in made) if cell.work != "minmax" else 0
    assert cell.moved(12) == pytest.approx((read, written), rel=0.02)
    assert cell.bytes_moved(12) == pytest.approx(read + written, rel=0.01)


def test_bytes_of_gaps_and_of_what_is_read_twice():
    x, codes = 4 * 2**12, 2**12
    assert Cell("quantize", granularity="array").bytes_moved(12) == 2 * x + codes + 5
    assert Cell("quantize_linear", layout="gaps").bytes_moved(12) == 2 * x + codes + 5
    assert Cell("quantize_linear", layout="broadcast").bytes_moved(12) == x + codes + 5
    assert Cell("compare values", "none", layout="gaps", out="none").bytes_moved(12) == 3 * x


# Operands and results


@pytest.mark.parametrize("layout", grid.LAYOUTS)
def test_layouts_keep_the_values(layout):
    x = np.arange(4 * 6 * 8, dtype=np.float32).reshape(4, 6, 8)
    laid = grid.LAYOUTS[layout].lay(x)
    assert (laid == (x[:1] if layout == "broadcast" else x)).all()
    assert laid.shape == x.shape
    looks = {
        "c": laid.flags.c_contiguous,
        "fortran": laid.flags.f_contiguous,
        "transposed": laid.strides[1] == 4 < laid.strides[2] < laid.strides[0],
        "permuted": laid.strides[0] == 4 < laid.strides[2] < laid.strides[1],
        "reversed": max(laid.strides) < 0,
        "gaps": laid.strides[2] == 8,
        "broadcast": laid.strides[0] == 0,
        "swapped": not laid.dtype.isnative,
        "unaligned": not laid.flags.aligned,
    }
    assert looks[layout]


REPEATED = [("quantize symmetric", "int8"), ("dequantize", "int4"), ("choose_qparams", "uint8"), ("compare", "uint8")]
LARGE = [Cell(*row, granularity) for granularity in grid.GRANULARITIES for row in REPEATED]
LARGE += [Cell("quantize", "nvfp4", name) for name in grid.IN_BLOCKS]
LARGE += [Cell("minmax", "none", "long rows", layout="broadcast"), Cell("gguf.quantize", "Q4_1", "blocks 32")]
LARGE += [Cell("quantize at random", name, "blocks 32") for name in ("int4", "float8_e4m3fn", "mxfp4")]
LARGE += [Cell("cast at random", "bfloat16", "odd rows"), Cell("requantize", "int8", "channels", "int32")]
LARGE += [Cell("bit_information", "none", "odd rows", layout="reversed"), Cell("unpack_array", "int16", "rows")]
LARGE += [Cell("pack", "int3", "short rows", "codes", "reversed"), Cell("unpack", "int3", "odd rows", "codes")]


@pytest.mark.parametrize("cell", LARGE, ids=lambda cell: f"{cell.work}, {cell.format}, {cell.granularity}")
def test_results_of_a_large_array_are_those_of_its_piece_repeated(cell):
    cell = cell._replace(out="c" if grid.WORKS[cell.work].out else "none")
    assert cell.valid
    operands, wrong = calls.ready(cell, grid.PIECE + 1)
    assert np.prod(operands.shape) > 1.9 * 2**grid.PIECE
    result = call_of(reference, operands)()
    assert wrong(result) == ""


def spoiled(array):
    array = array.copy()
    array.view(f"u{array.itemsize}").reshape(-1)[-1] ^= 1
    return array


@pytest.mark.parametrize("cell", [CELL, Cell("dequantize", "int4"), Cell("minmax", "none", "rows", out="none")])
@pytest.mark.parametrize("log2", [12, grid.PIECE + 1])
def test_a_result_that_is_wrong_at_its_end_is_found(cell, log2):
    operands, wrong = calls.ready(cell, log2)
    result = call_of(reference, operands)()
    if isinstance(result, fastq.QuantizedArray):
        scale = dataclasses.replace(result.qparams, scale=spoiled(result.scale))
        for codes, qparams in ((spoiled(result.codes), result.qparams), (result.codes, scale)):
            assert wrong(fastq.QuantizedArray(codes, qparams, result.shape)).endswith("not the reference's")
    elif isinstance(result, tuple):
        assert wrong((spoiled(result[0]), result[1])) == "lo: not the reference's"
    else:
        for bad in (spoiled(result), result.astype(np.float64), result[:-1]):
            assert wrong(bad) == "result: not the reference's"
    assert wrong(result) == ""


def test_measures_that_are_wrong_are_found():
    cell = Cell("compare", out="none")
    operands, wrong = calls.ready(cell, 12)
    result = call_of(reference, operands)()
    assert wrong(dataclasses.replace(result, mse=result.mse * 1.001)).startswith("measures: ")
    assert wrong(dataclasses.replace(result, clipped=result.clipped + 1)).startswith("clipped: ")


@pytest.mark.parametrize("work", ["quantize_linear at random", "bit_information"])
def test_codes_at_random_and_counts_that_are_wrong_are_found(work):
    cell = Cell(work, "none" if work == "bit_information" else "int8", "rows", out="none")
    operands, wrong = calls.ready(cell, grid.PIECE + 1)
    result = call_of(reference, operands)()
    assert wrong(result) == ""
    if isinstance(result, np.ndarray):
        assert wrong(result ^ np.int8(64)) == "result: not next to the reference's"
        assert wrong(result[:-1]) == "result: not next to the reference's"
    else:
        assert wrong(result + result) == "counts: not the reference's"


def test_what_is_wrong_is_not_timed(monkeypatch):
    def off(api, operands):
        call = call_of(api, operands)
        return lambda: spoiled(call())

    cell = Cell("dequantize").name
    assert measure.compiled(cell) == ""
    monkeypatch.setattr(measure, "call_of", off)
    assert measure.compiled(cell) == "result: not the reference's"
    assert measure.timed(cell, 12, 0.01) == {"wrong": "2^12: result: not the reference's"}


RIVALLED = [
    Cell("quantize", "int8", "array"),
    Cell("quantize symmetric", "uint8", "blocks 32"),
    Cell("quantize given", "int16", "columns", "float64", "fortran"),
    Cell("quantize_linear", "int8", "rows", "float32"),
    Cell("dequantize", "uint8", "blocks 64"),
    Cell("dequantize_linear", "int8", "short rows", layout="reversed"),
    Cell("fake_quantize given", "int8", "axes 0 1"),
    Cell("fake_quantize", "uint8", "inner blocks", "float16"),
    Cell("minmax", "none", "channels", "int32", "gaps", "none"),
    Cell("pack", "int4", "rows", "codes", out="none"),
    Cell("unpack", "uint4", "short rows", "codes", out="none"),
    Cell("cast", "float16", "odd rows", "float64"),
    Cell("requantize", "int8", "channels", "int32", "fortran"),
    Cell("unpack_array", "uint16", "rows", "float64", "swapped", "none"),
    Cell("binarize", "int8", "odd rows", "int16"),
    Cell("binarize", "uint8", "rows", nan="zero"),
]


@pytest.mark.parametrize("cell", RIVALLED, ids=lambda cell: cell.name)
def test_the_plain_expression_does_the_same_work(cell):
    """It may round at the last bit of a scale otherwise: codes are within one, values within a step."""
    operands = calls.ready(cell, 12)[0]
    right = results_of(call_of(reference, operands)())
    got = plain.numpy_expression(operands)()
    if cell.work == "minmax":
        assert all((np.ravel(a) == np.ravel(b)).all() for a, b in zip(got, right.values(), strict=True))
        return
    array = right.get("codes", right.get("result"))
    step = 0.2 if "fake" in cell.work else 1e-6 if "dequantize" in cell.work else "quant" in cell.work
    got, wanted = np.asarray(got, np.float64).reshape(array.shape), array.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    far = np.abs(got - wanted)[~np.isnan(wanted)]
    assert far.max() <= step
    assert np.mean(far > 1e-6) < 0.02 + 0.03 * (cell.work == "requantize") or cell.dtype == "float16"


@pytest.fixture(scope="module")
def interpreted():
    """The loops in plain Python, so that nothing is compiled."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "DISABLE_JIT", True)
        for name in ("peers.loops", "peers.naive_numba"):  # which calls the loops of the first one
            spec = importlib.util.find_spec(f"{PACKAGE}.{name}")
            module = importlib.util.module_from_spec(spec)
            patch.setitem(sys.modules, spec.name, module)
            patch.setattr(sys.modules[spec.parent], name.rpartition(".")[2], module, raising=False)
            spec.loader.exec_module(module)
    return module


def check_loop(loops, cell, log2=10):
    """Compare what a loop makes with the reference; whether there is one."""
    o, right = calls.with_results(cell, log2)
    loop = loops.numba_loop(o) if cell.is_plain else None
    if loop is None:
        return False
    got = loop()
    if cell.work in ("choose_qparams", "minmax"):
        got = in_the_order_of_the_reference(loops, o, got)
    elif cell.work.startswith("compare"):
        got = [np.array(got)]
    else:
        check_order(o, got)
        got = [got]
    assert agreement.disagreement(cell, right, log2, got) == "", cell.name
    return True


def in_the_order_of_the_reference(loops, o, got):
    """Parameters that a loop has in the order of memory."""
    count = np.arange(np.prod(o.shape_of_parameters)).reshape(o.shape_of_parameters)
    places = loops.loop_view([o.grouped(o.first)], o.shared).parameters(count).ravel()
    return [each.ravel()[np.argsort(places)] for each in got]


def check_order(o, got):
    """Compare the memory order of a result with that of `out`."""
    out = got if o.out is None else o.out
    assert all(a == b for a, b, n in zip(got.strides, out.strides, got.shape, strict=True) if n > 1)


LOOP_WORKS = [name for name, row in grid.WORKS.items() if "raise" in row.nans and "onnx" in row.conventions]
LOOP_WORKS = [name for name in LOOP_WORKS if not (name.startswith(("gguf", "cast", "bit_i")) or "random" in name)]


@pytest.mark.parametrize("work", LOOP_WORKS)
def test_plain_loops_do_the_same_work(work, interpreted):
    for cell in cells_of_loops(work):
        assert cell.valid
        log2 = size_of_whole_blocks(cell, 10)
        assert check_loop(interpreted, cell, log2 or 10) is (log2 > 0), cell.name
        assert log2 > 0 or cell.granularity == "ragged blocks"


def test_plain_loops_of_the_sample_do_the_same_work(interpreted):
    """Those of which a loop does the work: of each work some are in the test before this one."""
    have = [cell for cell in COVERING if check_loop(interpreted, cell)]
    assert len(have) > 0.05 * len(COVERING)


COMPILED_LOOPS = [
    Cell("quantize given", "int8", "blocks 32"),
    Cell("dequantize", "uint8", "columns"),
    Cell("quantize", "uint8", "short rows", "int16"),
    Cell("fake_quantize symmetric", "int4", "axes 0 2"),
    Cell("quantize symmetric", "int16", "array", "float64", "reversed"),
    Cell("choose_qparams", "int8", "rows", out="none"),
    Cell("choose_qparams", "int8", "inner blocks", layout="gaps", out="none"),
    Cell("minmax", "none", "blocks 64", "int32", out="none"),
    Cell("minmax", "none", "inner blocks", out="none"),
    Cell("minmax", "none", "channels", "uint8", "broadcast", "none"),
    Cell("compare", "int8", "few columns", layout="fortran", out="none"),
    Cell("compare values", "none", "rows", out="none"),
    Cell("pack", "int4", "odd rows", "codes", out="none"),
    Cell("unpack", "int4", "odd rows", "codes", out="none"),
    Cell("binarize", "int8", "odd rows"),
    Cell("requantize", "uint8", "channels", "int32"),
    Cell("unpack_array", "int16", "odd rows", "float64", out="none"),
]


@pytest.mark.slow("compiles plain loops of Numba, a second or two each")
@pytest.mark.parametrize("cell", COMPILED_LOOPS, ids=lambda cell: f"{cell.work}, {cell.granularity}")
def test_compiled_loops_do_the_same_work(cell):
    assert check_loop(part("peers.naive_numba"), cell, 12)


def test_plain_ways_are_left_out_where_they_are_not_simple():
    odd = [
        Cell("quantize", "int4"),
        Cell("quantize", "int8", "ragged blocks"),
        Cell("dequantize", "mxint8", "blocks 32"),
    ]
    for cell in (*odd, Cell("gguf.quantize", "Q8_0"), CELL._replace(dtype="bfloat16")):
        operands = calls.ready(cell, 12)[0]
        assert [way(cell, operands) for way in plain.BASELINES.values()] == [None] * 3
    assert plain.copyto(CELL._replace(layout="gaps"), calls.ready(CELL._replace(layout="gaps"), 12)[0])


# The sample


@functools.cache
def is_taken(work, format_, convention, nan):
    """Whether the reference takes these, or the function has no parameters."""
    row = grid.WORKS[work]
    if row.parameters == "none" or format_ in grid.BLOCK_FORMATS:
        return True
    named = {"symmetric": row.parameters == "symmetric", "convention": convention, "nan": nan}
    try:
        reference.choose_qparams(np.ones((4, 32), np.float32), format_, **named)
    except ValueError:
        return False
    return True


def possible_pairs():
    """The pairs that calls can have, from the tables of works and the rules by name."""
    pairs, done = set(), set()
    for name, work in grid.WORKS.items():
        for format_, dtype in itertools.product(work.formats, work.dtypes):
            operand = format_ if name in grid.OF_CODES_WORKS else dtype
            swappable = operand[-2:] in ("16", "32", "64") and operand != "bfloat16"
            prescribed = format_.startswith(("mx", "nv"))
            values = {
                "work": (name,),
                "format": (format_,),
                "granularity": tuple(g for g in work.granularities if not prescribed or g in grid.IN_BLOCKS),
                "dtype": (dtype,),
                "layout": tuple(layout for layout in grid.LAYOUTS if layout != "swapped" or swappable),
                "out": tuple(grid.AXES["out"]) if work.out else ("none",),
                "threads": tuple(grid.AXES["threads"]),
                "convention": tuple(each for each in work.conventions if is_taken(name, format_, each, "raise")),
                "nan": tuple(each for each in work.nans if is_taken(name, format_, "onnx", each)),
                "sizes": tuple(grid.AXES["sizes"]),
            }
            for two in itertools.combinations(values.items(), 2):
                if two not in done:
                    (a, of_a), (b, of_b) = two
                    pairs.update(((a, x), (b, y)) for x in of_a for y in of_b)
                    done.add(two)
    return pairs


def test_the_sample_covers_all_pairs():
    cells = [*grid.GATE, *COVERING]
    assert all(cell.valid for cell in COVERING)
    have = set().union(*map(sample.pairs_of, cells))
    assert have == possible_pairs()
    assert sample.possible() == have
    assert show.covered(cells) == (len(have), len(have))
    assert show.covered(cells[:3])[0] < show.covered(cells[:3])[1] == len(have)
    assert len(COVERING) < 0.3 * len(have)


def test_the_sample_follows_from_the_seed_alone():
    code = f"from {PACKAGE}.scan.sample import *; from itertools import islice; "
    code += "print([cell.name for cell in islice(sample(7), 900)])"
    environment = worker.child_environment(1)
    environment |= {"PYTHONHASHSEED": "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"}
    other = subprocess.run([*worker.PYTHON, "-c", code], env=environment, capture_output=True, text=True)
    names = [cell.name for cell in itertools.islice(sample.sample(7), 900)]
    assert other.stdout == f"{names}\n"
    assert len(set(names)) == 900
    other = [cell.name for cell in itertools.islice(sample.sample(8), 900)]
    gates = [cell.name for cell in grid.GATE]
    assert names[: len(gates)] == other[: len(gates)] == gates
    assert len(set(names) & set(other)) < 200


def test_patterns_choose_cells():
    found = list(itertools.islice(sample.chosen(0, ["minmax", "*/mxfp4/*"]), 30))
    assert len(found) == 30
    assert all(cell.work == "minmax" or cell.format == "mxfp4" for cell in found)
    assert {cell.work for cell in found} > {"minmax"}


# What is found


PERMUTED = CELL._replace(layout="permuted")
OVER_LOOP = {  # columns: ours, copy, copyto, NumPy, the loop; at 2^10 the cost of a call, at 2^12 memory is the limit
    10: (3, 1, None, None, 3),
    12: (2, 1, None, None, 1),
    18: (3, 1, None, None, 4.4),
    20: (3, 1, None, None, 4.5),
    22: (3, 1, None, None, None),
}
IN_C_ORDER = {12: (3, 1, *[None] * 3, 1), 18: (3, 1, *[None] * 3, 1.5), 22: (3, 1, *[None] * 3, 1.4), 25: (3, 1)}


@pytest.mark.parametrize(
    ("criterion", "cell", "timings", "found", "suspicious"),
    [
        (judge.cliffs, CELL, {18: (0.1, 0.01), 22: (0.39, 0.05)}, [], None),  # less than four times as slow
        (judge.cliffs, CELL, {18: (0.1, 0.01), 22: (0.5, 0.05)}, [(22, 5.0)], None),
        (judge.cliffs, CELL, {18: (0.1, 0.01), 22: (0.5, 0.2)}, [], None),  # the copy is slow too
        (judge.cliffs, CELL, {18: (0.1, 0.01), 22: (1.0, 0.2)}, [(22, 5.0)], None),  # but not so slow
        (judge.cliffs, CELL, {18: (0.1, 0.01), 22: (0.5, 0.05), 25: (0.5, 0.05)}, [(22, 5.0)], None),  # not a plain
        (judge.cliffs, CELL, {12: (0.1, 0.01), 18: (0.3, 0.01), 22: (0.9, 0.01)}, [], None),  # a slope
        (judge.cliffs, CELL, {10: (9.0, 0.01), 12: (0.5, 0.01), 25: (6.0, 0.3)}, [(25, 12.0)], None),
        (judge.behind_loop, CELL, OVER_LOOP, [(18, 4.5 / 4.4)], {10, 12, 18}),  # at 2^12 the loop is faster
        (judge.behind_c_order, PERMUTED, IN_C_ORDER, [(12, 1.5), (22, 1.5 / 1.4)], {12, 22}),
    ],
)
def test_what_is_found_of_a_cell(criterion, cell, timings, found, suspicious):
    scan = made_up({cell: timings})
    assert found_by(criterion, scan) == found
    assert {log2 for log2, _ in found} <= judge.suspicious(cell, scan.timings[cell])
    assert suspicious in (None, judge.suspicious(cell, scan.timings[cell]))


def test_what_was_not_measured_is_told():
    rows = {row[0]: row[1] for row in show.summary(made_up({PERMUTED: IN_C_ORDER}))[1]}
    assert (rows["less than 0.5 x C order"], rows["slower than NumPy"]) == ("1", "not measured")


def family(slow, members=8, **changed):
    """Cells of one work whose bytes take a nanosecond each, except for one that is `factor` times as slow."""
    layouts = ["c", "fortran", "transposed", "permuted", "reversed", "unaligned", "swapped"]
    cells = [CELL._replace(dtype=dtype, layout=each) for dtype in ("float32", "float64") for each in layouts][:members]
    times = {cell: cell.bytes_moved(20) / cell.elements(20) * (slow if cell == cells[-1] else 1) for cell in cells}
    of = {cell._replace(**changed) if cell == cells[-1] else cell: {20: (ns, 0.1)} for cell, ns in times.items()}
    return made_up(of)


def test_outliers():
    assert found_by(judge.outliers, family(5.0)) == [(20, 5.0)]
    assert judge.outliers(family(3.9)) == []
    assert judge.outliers(family(5.0, members=judge.FAMILY_AT_LEAST - 1)) == []  # too few to know what is usual
    assert judge.outliers(family(5.0, threads="one")) == []  # other threads are another family
    assert judge.outliers(family(5.0, work="quantize given")) == []
    wide, cell = family(1.0, members=7), CELL._replace(layout="gaps", dtype="float64")  # 3.6 times the bytes
    wide.timings[cell] = {20: Timings(cell.bytes_moved(20) / cell.elements(20) * 1e-9, 1e-10)}
    assert judge.outliers(wide) == []


def test_what_is_slower_than_a_plain_way():
    others = (None, None, 1, 8, 5, 0.5)  # C order, torch, jax, ONNX Runtime, ggml: from the loop on
    timings = {10: (9, 1, 1, 1, 1), 12: (2, 1, 3, 1.5, *others), 18: (2, 1, 1, 4, 0.5)}
    scan = made_up({CELL: timings, CELL._replace(layout="gaps"): {18: (2, 1, 1)}})
    found = {name: found_by(lambda scan, name=name: judge.slower(scan, name), scan) for name in judge.RIVALS}
    assert found == {
        "NumPy": [(12, 4 / 3)],
        "a plain parallel loop": [(18, 4.0)],
        "numpy.copyto": [(18, 2.0), (18, 2.0)],
        "torch.compile": [(12, 2.0)],
        "jax.jit": [],
        "ONNX Runtime": [],
        "ggml": [(12, 4.0)],
        "the best peer": [(12, 4.0), (18, 4.0)],  # no copy is a peer
    }
    assert {name: len(each.find(scan)) for name, each in judge.CRITERIA.items()} == {
        "cliffs": 0,
        "outliers": 0,
        **{f"slower than {name}": len(each) for name, each in found.items()},
        "less than 1.5 x a plain parallel loop": 0,
        "less than 0.5 x C order": 0,
    }
    means = {"NumPy": 1.5**0.5, "a plain parallel loop": 0.25, "numpy.copyto": (1.5 * 0.5 * 0.5) ** (1 / 3)}
    means |= {"torch.compile": 0.5, "jax.jit": 4.0, "ONNX Runtime": 2.5, "ggml": 0.25, "the best peer": 0.25}
    assert {name: judge.mean_over(scan, name) for name in judge.RIVALS} == pytest.approx(means)
    assert judge.mean_over(made_up({CELL: {18: (1, 1)}}), "NumPy") is None
    assert judge.suspicious(CELL, scan.timings[CELL]) == {10, 12, 18}


@pytest.mark.parametrize(
    ("rows", "each", "mean"),
    [
        ([(1, 1, None, 6.1), (1, 1, None, 6.1)], "yes", "yes"),
        ([(1, 1, None, 1.1), (1, 1, None, 40)], "yes", "yes"),
        ([(1, 1, None, 0.9), (1, 1, None, 41)], "**no**", "yes"),
        ([(1, 1, None, 2), (1, 1, None, 17)], "yes", "**no**"),
        ([(1, 1, None, 50, 1), (1, 1, None, None, 2)], "yes", "**no**"),  # the loop is the best there
    ],
)
def test_targets_over_the_best_peer(rows, each, mean):
    scan = made_up({CELL: dict(zip((18, 22), rows, strict=True)), CELL._replace(layout="gaps"): {18: (5, 1, 1)}})
    found = show.verdicts(scan)[1]
    assert [row[-1] for row in found] == [each, mean]
    assert found[0][0] == f"every cell and size; {int(each != 'yes')} of 1 cells are below"
    assert judge.verdicts(made_up({CELL: {18: (1, 1, 1)}})) == []


def test_means_by_size_beside_those_of_a_copy():
    """Of cells twice and eight times as fast as NumPy the mean is four times."""
    scan = made_up(
        {CELL: {12: (3, 1, None, 6), 18: (1, 0.5, None, 2)}, CELL._replace(layout="gaps"): {18: (1, 1, 1, 8)}}
    )
    found = judge.means_by_size(scan, judge.NUMPY)
    assert found == {12: pytest.approx((2.0, 6.0)), 18: pytest.approx((4.0, (4 * 8) ** 0.5))}
    table, rows = show.means(scan)
    assert table == ["times as fast as", "2^12", "2^18"]
    assert rows[:2] == [["NumPy", "2", "4"], ["NumPy: a copy of the same bytes", "6", "5.7"]]
    assert show.means(made_up({CELL: {18: (1, 1)}}))[1] == []


@pytest.mark.parametrize(
    ("log2", "row", "threads", "limit"),
    [
        (22, (1.0, 0.86, 3.0), "all", "memory"),
        (22, (1.0, 0.84), "all", "instructions"),
        (12, (1.0, 0.84, 3.0), "all", "the cost of a call"),  # 4 us
        (22, (1.0, 0.84, 2.1), "all", "the order of memory"),
        (22, (1.0, 0.84, 1.9), "all", "instructions"),
        (22, (1.0, 0.84, 1.1), "one", "the order of memory"),
    ],
)
def test_limits_of_what_is_slow(log2, row, threads, limit):
    cell = CELL._replace(layout="fortran", threads=threads)
    scan = made_up({cell: {log2: (*row, *[None] * (5 - len(row)), 0.4)}})
    (found,) = judge.behind_c_order(scan)
    assert found.limit(scan.settings["threads"]) == limit
    header, rows = show.limits(scan)
    assert ["less than 0.5 x C order", "1"] in rows
    assert header[1:] == [limit]
    assert judge.slower(scan, "numpy.copyto") == []  # which is not a rival of another order


def test_calls_in_c_order_are_timed_beside_those_in_another():
    for layout, there in (("c", False), ("gaps", False), ("reversed", True), ("permuted", True)):
        assert bool(measure._in_c_order(CELL._replace(layout=layout), 12)) is there


def test_what_fell_since_an_earlier_scan():
    before, now = made_up({CELL: {18: (1, 1), 22: (1, 0.5)}}), made_up({CELL: {18: (3, 1), 22: (3, 1.5)}})
    assert found_by(lambda now: judge.fallen(before, now, 0.5), now) == [(18, 3.0)]  # at 2^22 the copy became as slow
    assert judge.fallen(made_up(), now, 0.5) == []


# Going on, and what is kept


def test_what_is_stored_is_read_again(tmp_path):
    scan = made_up({CELL: {12: (1.2345, 0.5), 18: (0.01, 0.02, None, 3.0, None)}}, seconds=61.0)
    scan.failed[CELL._replace(format="int4")] = "codes: not the reference's"
    scan.refused[f"jax, {CELL.name}"] = "not the reference's"
    for name in ("scan.json", "scan.json.gz"):
        scan.write(tmp_path / name)
        again = store.read(tmp_path / name)
        assert again.timings[CELL] == {
            12: pytest.approx((1.23e-9, 5e-10, *[None] * 8)),  # three digits are kept
            18: pytest.approx((1e-11, 2e-11, None, 3e-9, *[None] * 6)),
        }
        assert dataclasses.replace(again, timings={}) == dataclasses.replace(scan, timings={})
    assert (tmp_path / "scan.json.gz").stat().st_size < (tmp_path / "scan.json").stat().st_size
    text = (tmp_path / "scan.json").read_text()
    text = text.replace(',"onnxruntime","ggml"]', "]")  # before there were these columns
    (tmp_path / "earlier.json").write_text(text)
    assert store.read(tmp_path / "earlier.json").timings == again.timings


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format":1}', b'{"format":2,"columns":[]}'])
@pytest.mark.parametrize("name", ["other.json", "other.json.gz"])
def test_other_files_are_refused(tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"^other\.json(\.gz)? holds no results of a scan: "):
        store.read(tmp_path / name)
    assert "holds no results of a scan" in invoke("--keep", tmp_path / name, exit_code=2)


REQUESTS = []  # of all pools that were asked


class Asked(run.Pool):
    """A pool that answers at once, and knows what it was asked."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def ask(self, name, threads, part, process="fastq", *, cell, peer="", log2=0, seconds=0):
        n = grid.cell_of(cell).elements(log2 or 12)
        if process != "fastq":
            assert process == peers.PEERS[peer].process
            assert peers.PEERS[peer].accepts(grid.cell_of(cell))
            return self.of_peers.get(peer, {}) if part == "timed_by_peer" else None
        REQUESTS.append((part, cell, log2))
        if part == "compiled":
            return "wrong" if grid.cell_of(cell) in self.wrong else ""
        return {"ours": 1e-9 * n, "copy": 1e-9 * n, "numpy": 2e-9 * n}

    wrong = ()
    of_peers = types.MappingProxyType({"torch": {"seconds": 3e-9 * 2**12}, "jax": {"wrong": "not the reference's"}})


@pytest.fixture
def scanned(monkeypatch):
    """What scans cells with such pools, and returns those that were done."""
    monkeypatch.setattr(run, "Pool", Asked)

    def scanned(scan, cells, seconds=100.0):
        done = []
        REQUESTS.clear()
        run.scanned(scan, cells, seconds, done.append, lambda what: None, (12, 14))
        return done

    return scanned


def test_a_scan_goes_on_where_it_was(tmp_path, scanned):
    scan, cells = made_up(), [*COVERING[:7], CELL]
    assert scanned(scan, cells[:5]) == cells[:5]
    assert scan.seconds > 0
    scan.seconds = 60.0
    scan.write(tmp_path / "scan.json")
    again = store.read(tmp_path / "scan.json")
    assert scanned(again, cells) == cells[5:]
    assert {cell for _, cell, _ in REQUESTS} == {cell.name for cell in cells[5:]}
    assert list(again.timings) == cells
    nothing = [None] * 3  # of peers that do not do the work, or do it wrong
    assert again.timings[CELL] == {12: pytest.approx((1e-9, 1e-9, None, 2e-9, None, None, 3e-9, *nothing))} | {
        14: again.timings[CELL][14]
    }
    assert again.refused[f"jax, {CELL.name}, 2^12"] == "not the reference's"
    assert again.seconds > 60
    assert scanned(again, cells) == []


def test_a_scan_ends_when_the_time_is_up(scanned):
    scan = made_up()
    assert scanned(scan, sample.sample(0), seconds=-1.0) == []
    assert (len(scan), REQUESTS) == (0, [])


def test_what_fails_is_kept_with_its_reason(scanned, monkeypatch):
    monkeypatch.setattr(Asked, "wrong", (COVERING[1],))
    scan = made_up()
    assert scanned(scan, COVERING[:3]) == COVERING[:3]
    assert scan.failed == {COVERING[1]: "wrong"}
    assert set(scan.timings) == {COVERING[0], COVERING[2]}
    assert COVERING[1].name not in [cell for part_, cell, _ in REQUESTS if part_ == "timed"]


def test_what_looks_slow_is_measured_a_second_time(monkeypatch):
    times = iter([1.0, 9.0, 1.5])  # nanoseconds at 2^12, at 2^18, and at both again, the higher of which is a stall

    class Stalled(Asked):
        def ask(self, name, threads, part, process="fastq", *, cell, peer="", log2=0, seconds=0):
            if process != "fastq":
                raise worker.Absent("not installed")
            REQUESTS.append(log2)
            ours = next(times, 1.2) * 1e-9 * CELL.elements(log2 or 12)
            return "" if part == "compiled" else {"ours": ours, "copy": ours / 10}

    REQUESTS.clear()
    run._measure(Stalled(2), scan := made_up(), CELL, (12, 18))
    assert REQUESTS == [12, 18, 12, 18]
    assert scan.timings[CELL].keys() == {12, 18}
    assert scan.timings[CELL][12] == pytest.approx((1e-9, 1e-10, *[None] * 8))
    assert scan.timings[CELL][18].ours == pytest.approx(1.2e-9)


def test_workers_are_reused_and_started_again(monkeypatch):
    class Fake:
        made = 0

        def __init__(self, process, threads):
            Fake.made += 1
            self.alive, self.threads, self.asked = True, threads, 0

        def ask(self, **request):
            self.asked += 1

        def close(self):
            self.alive = False

    monkeypatch.setattr(worker, "Worker", Fake)
    monkeypatch.setattr(run, "RESTART_AFTER", {"timed": 3})
    with run.Pool(2) as pool:
        for _ in range(7):
            pool.ask("all", 2, part="timed", log2=12)
        assert Fake.made == 3
        pool.of["all"].alive = False
        pool.ask("all", 2, part="timed", log2=12)
        assert Fake.made == 4
        pool.ask("one", 1, part="timed", log2=12)
        last = list(pool.of.values())
    assert [each.threads for each in last] == [2, 1]
    assert not any(each.alive for each in last)


def test_a_file_of_other_settings_is_not_gone_on_with(tmp_path, scanned, monkeypatch):
    path = tmp_path / "results" / "scan.json"  # in a folder that is made
    invoke("--keep", path, "-t", "1", "--cells", "2", "--sizes", "10")
    assert len(store.read(path)) == 2
    invoke("--keep", path, "-t", "1", "--cells", "3", "--sizes", "10")
    assert len(store.read(path)) == 3
    output = invoke("--keep", path, "-t", "1", "--seed", "5", "--sizes", "10", exit_code=2)
    assert "was begun with settings {'seed': 0" in " ".join(output.split())
    monkeypatch.setattr(part("machine"), "cpu", lambda: {"cpu": "Another", "features": "x"})
    output = invoke("--keep", path, "-t", "1", "--cells", "3", "--sizes", "10", exit_code=2)
    assert "not Another, x: name another file" in " ".join(output.split())


# The gate


@pytest.mark.parametrize(
    ("stored", "wrong", "fine"),
    [(None, (), True), ("same", (), True), ("faster", (), False), (None, (grid.GATE[3],), False)],
)
def test_gate(scanned, monkeypatch, capsys, stored, wrong, fine):
    monkeypatch.setattr(Asked, "wrong", wrong)
    ours = {"same": 1.0, "faster": 0.3, None: 1.0}[stored]
    before = made_up({cell: {18: (ours, 1.0)} for cell in grid.GATE})
    before.machine = command.new_scan({}).machine
    monkeypatch.setattr(store, "stored", lambda: {Path("a.json"): before} if stored else {})
    assert command.gate(2) is fine
    output = capsys.readouterr().out
    fell = len(grid.GATE) if stored == "faster" else 0
    assert output.count("fallen, 3.3 times as slow") == fell
    assert f"{fell} are slow, {len(wrong)} failed" in output
    assert all(f"{cell.name}: wrong" in output for cell in wrong)
    assert ("compared with that of 2026" if stored else "no scan of such a CPU is stored") in output


# The page


@pytest.fixture
def some():
    timings = {cell: {12: (1.0, 0.1), 18: (0.2, 0.1), 25: (0.3, 0.15)} for cell in COVERING[:40]}
    scan = made_up(timings | {CELL: {18: (0.1, 0.05), 25: (2.0, 0.1)}}, seconds=3600.0)
    scan.failed[COVERING[50]] = "its process ended with code -11"
    return scan


def test_texts_of_pictures_are_legible(some, monkeypatch):
    matplotlib_text = pytest.importorskip("matplotlib.text", reason="no matplotlib")
    monkeypatch.setattr(page.pictures, "png", lambda figure, source: figure)
    figure = page.picture(some)
    sizes = [text.get_fontsize() for text in figure.findobj(matplotlib_text.Text) if text.get_text()]
    assert min(sizes) >= page.pictures.SMALLEST
    assert page.pictures.SMALLEST * page.pictures.DOTS / 72 >= 9
    assert figure.get_figwidth() == page.pictures.WIDTH


def test_page_holds_what_was_found(some, tmp_path):
    text = page.text({Path("zen.json.gz"): some})
    assert "## A, b" in text
    assert "| cliffs | 1 | 41 | 1 | 20.0 | - |" in text
    cells = " | ".join([*CELL[:-1], "2^25", "0.5", "20.0"])
    assert f"| {cells} |" in text.split("<summary>The worst: cliffs</summary>")[1].split("</details>")[0]
    assert f"| {COVERING[50].name} | its process ended with code -11 |" in text
    assert "(performance-scan-zen.png)" in text
    (row,) = [line for line in text.split("<summary>The worst")[0].splitlines() if line.startswith("| quantize | ")]
    assert row.endswith("/ 0.5 |")


@pytest.mark.slow("five seconds")
def test_pages_and_pictures_are_written(some, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="no matplotlib")
    scans, (stored, first) = {Path("zen.json.gz"): some}, next(iter(part("results").stored().items()))
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"{report.BEGIN}\n{report.END}\n")
    picture = Path("docs/performance-scan-zen.png")
    made = {stored: first}
    assert report.write(made, scans, tmp_path) == [picture, report.PAGE, page.PAGE, report.README]
    assert report.write(made, scans, tmp_path) == []
    assert "[a sample](performance-scan.md)" in (tmp_path / report.PAGE).read_text()
    image = (tmp_path / picture).read_bytes()
    assert image.startswith(b"\x89PNG")
    assert len(image) < 100_000
    assert report.outdated(made, scans, tmp_path) == []
    some.seconds += 60
    assert report.write(made, scans, tmp_path) == [picture, page.PAGE]
    assert report.outdated(made, {}, tmp_path) == [page.PAGE]


def test_no_page_without_scans():
    texts = report.texts(part("results").stored(), {}, Path(__file__).parents[2])
    assert page.PAGE not in texts
    assert "performance-scan" not in texts[report.PAGE]


# A run


@pytest.mark.slow("starts workers, which compile the kernels of two cells and loops of Numba")
def test_a_small_scan(tmp_path):
    path = tmp_path / "scan.json"
    output = invoke("--keep", path, "--cells", "2", "--sizes", "10,17", "-o", "dequantize/int8/blocks*", "-t", "2")
    scan = store.read(path)
    assert scan.failed == {}
    assert list(scan.timings) == [grid.GATE[0], grid.GATE[2]]
    for timings in scan.timings.values():
        assert list(timings) == [10, 17]
        for row in timings.values():
            assert row.copyto is None
            assert all(seconds > 0 for seconds in (row.ours, row.copy, row.numpy, row.loop))
    for word in ("cliffs", "slower than NumPy", "dequantize", "2^17", "pairs of values are measured"):
        assert word in output


def test_results_name_no_folder_of_the_machine():
    assert "cache" in config.versions()
    assert "cache" not in command.new_scan({}).versions


def test_a_pattern_that_fits_nothing_is_refused(tmp_path):
    assert "no cell fits nothing" in invoke("-o", "nothing", "--keep", tmp_path / "scan.json", exit_code=2)
