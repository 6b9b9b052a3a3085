"""The peers of the scan: what they are asked for, and that they do the same work as the reference."""

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest
import subprocesses
from scan_cells import COVERING, Cell, cells_of_loops, grid, part, size_of_whole_blocks

agreement, calls, peers = map(part, ["scan.agreement", "scan.calls", "scan.peers"])
MODULES = {"torch": "torch", "jax": "jax", "onnxruntime": "onnxruntime", "ggml": "llama_cpp"}


def test_each_peer_has_a_library_and_takes_values_of_the_axes():
    assert set(MODULES) == set(peers.PEERS)
    for name, peer in peers.PEERS.items():
        assert part("peers").PEERS[peer.process].module == MODULES[name]
        assert all(set(values) <= set(grid.AXES[axis]) for axis, values in peer.takes.items())


ASKED = {
    Cell("quantize", "int8", "rows"): {"torch", "jax", "onnxruntime"},
    Cell("quantize", "int8", "rows", threads="one"): {"torch", "onnxruntime"},
    Cell("quantize", "int8", "rows", layout="fortran"): {"torch"},
    Cell("quantize", "int8", "rows", layout="reversed"): set(),
    Cell("quantize given", "float8_e5m2", "rows", "float16"): {"jax", "onnxruntime"},
    Cell("quantize given", "uint2", "rows"): {"onnxruntime"},
    Cell("quantize given", "int3", "rows"): set(),
    Cell("minmax", "none", "rows", "uint64", out="none"): {"jax"},
    Cell("gguf.dequantize", "Q5_1", "blocks 32"): {"ggml"},
    Cell("binarize", "int8", "rows", nan="zero"): {"jax"},
    Cell("minmax with NaN", "none", "rows", out="none", nan="zero"): set(),
    Cell("quantize by convention", "int8", "rows", convention="torch"): set(),
}


@pytest.mark.parametrize("cell", ASKED, ids=lambda cell: cell.name)
def test_who_is_asked_for_a_cell(cell):
    assert cell.valid
    assert {name for name, peer in peers.PEERS.items() if peer.accepts(cell)} == ASKED[cell]


def cells_of(name):
    """Cells of each work, granularity, format, dtype and layout that a peer takes, one with most of the others."""
    peer = peers.PEERS[name]
    for work in peer.takes["work"]:
        row = grid.WORKS[work]
        formats = [each for each in peer.takes["format"] if each in row.formats]
        dtypes = [each for each in peer.takes["dtype"] if each in row.dtypes]
        for k, granularity in enumerate(row.granularities):
            layout = peer.takes["layout"][k % len(peer.takes["layout"])]
            for n in (k, k + len(formats) // 2):
                format_, dtype = formats[n % len(formats)], dtypes[n % len(dtypes)]
                yield Cell(work, format_, granularity, dtype, layout, "c" if row.out else "none")
    yield from COVERING
    if name == "torch":
        yield from itertools.chain.from_iterable(map(cells_of_loops, peer.takes["work"]))


def prepared(name, o):
    """The work made ready by a peer, torch's uncompiled: that takes a second, and is the compiler's affair."""
    if name == "torch":
        return part("peers.torch_compile").prepared(o, lambda function: function)
    return peers.PEERS[name].prepared(o)


def check(name, every):
    """Compare the results of a peer for some cells with the reference; return their number, and the different ones."""
    found, wrong, ties = dict.fromkeys(peers.PEERS[name].takes["work"], 0), [], peers.PEERS[name].ties
    cells = [cell for cell in dict.fromkeys(cells_of(name)) if cell.valid and peers.PEERS[name].accepts(cell)]
    for cell in cells[::every]:
        log2 = size_of_whole_blocks(cell) or 12
        o, right = calls.with_results(cell, log2)
        made = prepared(name, o)
        if made is not None:
            made.call()
            found[cell.work] += 1
            why = agreement.disagreement(cell, right, log2, [*made.results().values()], ties)
            wrong += [(cell.name, why)] if why else []
    return found, wrong


def timed(name):
    """The cells of which a peer was timed at 2^18, where arrays that nobody holds are given back to the system."""
    of = {"ggml": [Cell("gguf.quantize", "Q8_0", "blocks 32"), Cell("gguf.dequantize", "Q4_1", "array")]}
    cells = of.get(name, [Cell("dequantize", "int8", "columns"), Cell("quantize given", "uint8", "blocks 32")])
    return [
        cell for cell in cells if part("scan.measure").timed_by_peer(name, cell.name, 18, 0.01).keys() == {"seconds"}
    ]


# torch and XLA may take more than few of the next codes, of integers that have many ties
@pytest.mark.parametrize(
    ("name", "every"),
    [
        pytest.param("torch", 1, marks=pytest.mark.slow("half a minute")),
        pytest.param("jax", 3, marks=pytest.mark.slow("half a minute")),
        pytest.param("onnxruntime", 1, marks=pytest.mark.slow("half a minute")),
        ("torch", 11),
        ("jax", 41),
        ("onnxruntime", 3),
        ("ggml", 1),
    ],
)
def test_peers_do_the_same_work(name, every):
    """In a process of its own, where a library may be set as the benchmark sets it."""
    if importlib.util.find_spec(MODULES[name]) is None:
        pytest.skip(f"no {MODULES[name]}, which the extra bench or conformance installs")
    program = f"""
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import test_scan_peers
        found, wrong = test_scan_peers.check({name!r}, {every})
        timed = [] if {name!r} == "torch" else test_scan_peers.timed({name!r})  # which compiles for seconds
        print(len(timed), sum(found.values()), sum(n > 0 for n in found.values()), len(wrong), *wrong)
    """
    timed_, count, works, wrong, *cells = subprocesses.run(program, NUMBA_NUM_THREADS=2, JAX_PLATFORMS="cpu").split()
    assert int(timed_) == (0 if name == "torch" else 2)
    assert int(count) >= 8
    assert int(works) >= min(4, len(peers.PEERS[name].takes["work"]))
    assert int(wrong) <= (0.02 * int(count) if name in ("torch", "jax") else 0), cells


# What is refused

WRONG = [
    (Cell("quantize", "int8", "rows"), "codes"),
    (Cell("quantize", "uint4", "blocks 32"), "codes"),
    (Cell("quantize given", "float8_e4m3fn", "columns"), "codes"),
    (Cell("fake_quantize", "uint8", "channels"), "result"),
    (Cell("dequantize", "int16", "few columns"), "result"),
    (Cell("gguf.quantize", "Q8_0", "blocks 32"), "result"),
    (Cell("binarize", "uint8", "rows"), "result"),
]


@pytest.mark.parametrize(("cell", "name"), WRONG, ids=lambda each: each.name if isinstance(each, Cell) else each)
@pytest.mark.parametrize("log2", [12, grid.PIECE + 1])
def test_a_wrong_peer_is_refused(cell, name, log2):
    right = calls.with_results(cell, log2)[1]
    axis, times = grid.GRANULARITIES[cell.granularity].growing_axis, grid.GRANULARITIES[cell.granularity].times(log2)
    made = part("calls").repeated(right[name], times, axis)
    assert agreement.disagreement(cell, right, log2, [made]) == ""
    spoiled = made.copy()
    last = np.moveaxis(spoiled, axis, 0)[-right[name].shape[axis] :]  # the last piece
    last[...] = np.roll(last, 1, -1)
    assert agreement.disagreement(cell, right, log2, [spoiled]) == "not the reference's"
    if made.dtype.kind == "f":
        assert agreement.disagreement(cell, right, log2, [np.full_like(made, np.nan)]) == "not the reference's"
    assert "of shape" in agreement.disagreement(cell, right, log2, [made[..., :-1]])
    assert "of shape" in agreement.disagreement(cell, right, log2, [made.astype(np.complex64)])


def test_codes_at_few_ties_may_be_the_next_ones():
    cell = Cell("quantize", "int8", "rows")
    codes = calls.with_results(cell, 12)[1]["codes"]
    right, few, many, far = ({"codes": codes}, *(codes.copy() for _ in range(3)))
    few.reshape(-1)[:4] ^= 1
    many.reshape(-1)[:5] ^= 1  # of 4096
    far.reshape(-1)[0] ^= 2
    found = [agreement.disagreement(cell, right, 12, [each]) for each in (few, many, far)]
    assert found == ["", "not the reference's", "not the reference's"]
    assert agreement.disagreement(cell, right, 12, [many], ties=0.05) == ""


def test_wrong_parameters_and_measures_are_refused():
    cell = Cell("choose_qparams", "uint8", "columns", out="none")
    right = calls.with_results(cell, 12)[1]
    scale, zero = right["scale"].astype(np.float32), right["zero_point"]
    assert agreement.disagreement(cell, right, 12, [scale, zero]) == ""
    assert agreement.disagreement(cell, right, 12, [scale * np.float32(1.001), zero]) == "scale: not the reference's"
    assert agreement.disagreement(cell, right, 12, [scale, zero + 1]) == "zero_point: not the reference's"
    assert agreement.disagreement(cell, right, 12, [scale[1:], zero]).startswith("scale: ")
    cell = Cell("compare values", "none", "rows", out="none")
    o, right = calls.with_results(cell, 12)
    x, error = o.first.astype(np.float64), np.abs(o.first.astype(np.float64) - o.approximation)
    relative = error / np.abs(x)
    sums = [(error**2).sum(), error.sum(), relative.sum(), (x**2).sum(), error.max(), relative.max(), x.size, 0]
    assert agreement.disagreement(cell, right, 12, [np.array(sums)]) == ""
    sums[-1] = 8
    assert agreement.disagreement(cell, right, 12, [np.array(sums)]).startswith("clipped: 8")
    sums[0] *= 1.001
    assert agreement.disagreement(cell, right, 12, [np.array(sums)]).startswith("measures: ")


def test_a_peer_that_is_wrong_is_not_timed(monkeypatch):
    """As one that multiplies by a scale that is a thousandth too large."""
    measure, cell = part("scan.measure"), Cell("dequantize", "int8", "rows")

    def made(self, o):
        if o.ragged:
            return None
        values = part("scan.plain").numpy_expression(o)() * np.float32(self.process == "right" or 1.001)
        return peers.Runner(lambda: None, lambda: {"values": values.reshape(o.shape)})

    monkeypatch.setattr(peers.Peer, "prepared", made)
    assert measure.timed_by_peer("ggml", cell.name, 12, 0.01) == {"wrong": "not the reference's"}
    right = peers.PEERS["ggml"]._replace(process="right")
    monkeypatch.setattr(measure, "PEERS", {"right": right})
    assert measure.timed_by_peer("right", cell.name, 12, 0.01).keys() == {"seconds"}
    ragged = cell._replace(granularity="ragged blocks")
    assert measure.timed_by_peer("right", ragged.name, 12, 0.01) == {}


# NaN


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_values_have_nan_where_it_is_taken(dtype):
    cell = Cell("minmax with NaN", "none", "rows", dtype, out="none", nan="zero")
    x = calls.with_results(cell, 12)[0].first.astype(np.float64)
    assert np.isnan(x).any() == (dtype != "int8")
    assert np.isnan(x).mean() < 0.01
    plain = calls.with_results(cell._replace(work="minmax", nan="raise"), 12)[0].first.astype(np.float64)
    assert not np.isnan(plain).any()


def test_calls_say_convention_and_nan():
    cell = Cell("quantize by convention", "int8", "rows", convention="torch", nan="zero")
    o = calls.with_results(cell, 12)[0]
    assert part("calls").call_of(calls.reference, o).keywords.items() >= {("convention", "torch"), ("nan", "zero")}
    given = calls.with_results(cell._replace(work="quantize given by convention"), 12)[0]
    assert "torch" in str(given.qparams.convention)
