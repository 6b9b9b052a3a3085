"""Fast equals reference, byte for byte: rows of the table that are about one thing each, and other cases."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
from catalogue import ANYWHERE, LAYOUTS, same_bytes, same_quantized, specials, ties, values
from comparing import Work, dequantize, dequantize_linear, fake_quantize, measures, minmax, quantize, quantize_linear
from format_cases import GRANULARITIES

import fastq
from fastq import reference
from fastq.formats.qtypes import QTYPES
from fastq.results import QParams
from fastq.system import tuning

SHAPE = (4, 6, 35)


def shaped(dtype, seed, shape=SHAPE):
    return values(dtype, math.prod(shape), seed).reshape(shape)


@pytest.mark.parametrize("axis", [(0, 2), (1, 3), (1, 4), (0, 2, 4)])
def test_parameters_of_alternate_axes(axis, compare):
    """Kept and reduced axes in turn: the same parameters come again."""
    x = shaped("float32", 1, (3, 4, 2, 5, 70))
    kept = [x.shape[k] for k in axis]
    scale = np.linspace(0.1, 2, math.prod(kept), dtype=np.float32).reshape(kept)
    compare(
        Work(x, options={"axis": axis}, qparams=QParams(scale, np.zeros(kept, np.int8), "int8", axis=axis)),
        minmax,
        quantize_linear,
    )


@pytest.mark.slow("compiles kernels of its own", quick=lambda dtype, code: (dtype, code) == ("float32", "int8"))
@pytest.mark.parametrize("code", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ties_specials_and_extreme_scales(dtype, code, compare):
    """By one scale, and by as many as there are elements, which is the loop of the lanes."""
    info, qtype, kind = np.finfo(dtype), QTYPES[code], np.dtype(dtype).type
    scales = [1.0, 0.1, 1 / 3, 2.0**-7, 1e-30, 1e30, info.tiny, info.smallest_subnormal, info.max]
    for scale, zero in itertools.product(scales, (qtype.qmin, 0, 3, qtype.qmax)):
        with np.errstate(over="ignore", under="ignore"):
            x = np.concatenate([ties(kind, scale), specials(kind), specials(kind) * kind(scale)])
        one = QParams(kind(scale), np.array(zero, code), code)
        each = QParams(np.full(x.shape, scale, dtype), np.full(x.shape, zero, code), code, axis=0)
        compare(Work(x, qparams=one), quantize_linear, dequantize_linear)
        compare(Work(x, qparams=each), quantize_linear)


@pytest.mark.parametrize("size", [1 << 16, (1 << 18) + 17, (1 << 21) + 5])
def test_large_arrays_in_parallel(size, compare):
    compare(Work(values("float32", size, 8), "int8", threads=(1, 2, 4)), quantize, dequantize, fake_quantize, measures)


@pytest.mark.slow("compiles kernels of its own", quick=lambda dtype, code: (dtype, code) == ("float32", "int8"))
@pytest.mark.parametrize("code", ["int8", "uint16", "uint4"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_errors_of_an_approximation(dtype, code, compare):
    x = (shaped(dtype, 9) / 8).astype(dtype)
    for options in GRANULARITIES:
        q = reference.quantize(x, code, **options)
        for layout in LAYOUTS.values():
            compare(Work(layout(x), q=q, threads=(1, 2)), measures)


@pytest.mark.slow("compiles kernels of its own", quick=lambda dtype: dtype == "float32")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_rows_side_by_side(dtype, compare):
    """Four rows at a time and those that are left, of the whole array and of blocks; all of a vector and the rest."""
    for shape in ((4, 512), (9, 601), (23, 1000), (2, 7, 640)):
        x = shaped(dtype, 15, shape).copy()
        if x.dtype.kind == "f":
            x[1:, ::9] = np.nan
        for options in ({"axis": -1}, {"axis": -2, "block_size": 6}, {"axis": (0, -1)}):
            compare(Work(x, "int8", options | {"nan": "zero"}, threads=(1, 4)), minmax, quantize, dequantize)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("convention", ["sentence-transformers", "cf", "faiss"])
def test_zero_points_that_are_minima_do_not_depend_on_the_signs_of_zeros(convention, compare):
    x = np.abs(shaped("float32", 16, (64, 96)))
    x[:, ::8], x[:, 3::8] = 0.0, -0.0
    for where, array in itertools.product([(-1, 32), (0, 16), (-1, 24), (0, 0)], (x, -x)):
        compare(Work(array, "uint8", {"convention": convention, "axis": where[0], "block_size": where[1]}), quantize)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("symmetric", [False, True])
def test_nan_as_zero_in_both_loops_and_both_passes(symmetric, compare):
    x = shaped("float32", 10).copy()
    x[np.random.default_rng(1).random(SHAPE) < 0.1] = np.nan
    x[0, 0] = np.nan
    for options in GRANULARITIES:
        options = options | {"nan": "zero", "symmetric": symmetric}
        compare(Work(x, "int8", options, threads=(1, 4)), quantize, minmax)
        compare(Work(x, "uint8", options, threads=(1, 4)), fake_quantize)


def test_one_parameter_of_any_memory_order(compare):
    compare(
        Work(np.asfortranarray(shaped("float32", 13, (1, 1, 4, 5))), "int8", {"axis": (0, 1)}), quantize, dequantize
    )


def test_one_scale_of_any_rank_for_any_memory_order():
    x = np.asfortranarray(values("float32", 24, 12).reshape(4, 6))
    codes = fastq.quantize_linear(x, np.full((1, 1), 0.1, np.float32), np.full((1, 1), 3, np.int8), "int8")
    same_bytes(codes, reference.quantize_linear(x, np.float32(0.1), 3, "int8"))


@pytest.mark.slow("compiles kernels for each dtype", quick=lambda dtype: dtype == "float32")
@pytest.mark.parametrize("dtype", ["float32", "int16"])
def test_minmax_of_wide_rows_by_columns(dtype, threads, monkeypatch):
    from fastq.plan import reduction

    row = dataclasses.replace(tuning.current(), merged_partials=1000, range_columns=50)
    monkeypatch.setattr(tuning, "current", lambda: row)
    loops = set()
    kernel = reduction.load_or_compile_kernel
    monkeypatch.setattr(
        reduction, "load_or_compile_kernel", lambda loop, *which, **how: loops.add(loop) or kernel(loop, *which, **how)
    )
    for shape, axis in [((3, 701), 1), ((2, 3, 5, 600), (1, 3)), ((70, 300), 1), ((9, 7), 1), ((3, 5, 333), (0, 2))]:
        x = values(dtype, np.prod(shape), 7).reshape(shape)
        for n in (1, 2, 4):
            threads(n)
            for actual, expected in zip(fastq.minmax(x, axis=axis), reference.minmax(x, axis=axis), strict=True):
                same_bytes(actual, expected)
    assert "traversal.columns.column_ranges" in loops


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (("48K", "1024K", "16384K\n"), 16),
        (("48K", "2048K", "491520K"), 32),
        (("32K", "2048K"), 8),
        (("16M",), 8),
        ((), 8),
    ],
)
def test_size_of_the_largest_cache_in_mebibytes(tmp_path, monkeypatch, sizes, expected):
    for k, size in enumerate(sizes):
        (tmp_path / f"index{k}").mkdir()
        (tmp_path / f"index{k}" / "size").write_text(size)
    monkeypatch.setattr(tuning, "_CACHES", tmp_path)
    assert tuning._cache_size() == expected << 20


@pytest.mark.parametrize("size", [1, 7, 64, 150])
def test_a_code_out_of_range_is_found_wherever_it_is(size):
    codes = np.zeros(size, np.int8)
    for at, code in itertools.product(range(size), (8, -9, 127, -128)):
        codes[at] = code
        with pytest.raises(ValueError, match="codes must be from -8 to 7"):
            fastq.pack(codes, "int4")
        codes[at] = 0


ALIASED = tuning.current().aliased_rows


@pytest.mark.parametrize(
    ("rows", "columns", "passes"), [(ALIASED, 4096, 1), (ALIASED + 1, 4096, 2), (ALIASED + 1, 4000, 1)]
)
def test_columns_in_two_passes_where_rows_are_far_apart(rows, columns, passes, monkeypatch):
    from fastq.plan import by_range, cache

    fused, seen = by_range._plan_fused, []
    monkeypatch.setattr(by_range, "_plan_fused", lambda *given: seen.append(fused(*given)) or seen[-1])
    cache.plans.clear()
    x = values("float32", rows * columns, 13).reshape(rows, columns)
    same_quantized(fastq.quantize(x, "int8", axis=1), reference.quantize(x, "int8", axis=1))
    assert [1 if program else 2 for program in seen] == [passes]


@pytest.mark.slow("compiles 4 kernels a case", quick=lambda convention: convention == "onnx")
@pytest.mark.parametrize("convention", ANYWHERE)
def test_values_at_the_ends_of_the_codes_are_clipped_or_not(convention):
    """Within and beyond a step of both ends, ties and the floats next to them; ranges tiny, huge and far from 0."""
    compared = 0
    symmetric = "asymmetric" not in fastq.CONVENTIONS[convention].schemes
    ranges = [(spread, 0) for spread in (1e-41, 1e-30, 0.37, 1e30, 3e38 / 8)] + [(1.0, 1e6), (1.0, -3e9), (1e30, 3e38)]
    for code, (spread, middle) in itertools.product(("int8", "uint8", "uint4", "uint16", "float8_e4m3fn"), ranges):
        x = (np.clip(values("float32", 40, 14), -8, 8) * np.float64(spread) + middle).astype(np.float32)
        try:
            p = reference.choose_qparams(x, code, symmetric=symmetric, convention=convention)
        except (TypeError, ValueError):
            continue  # the convention has no such codes
        qtype = QTYPES[code]
        zero, offset = (0, p.zero_point) if p.zero_point.dtype.kind == "f" else (float(p.zero_point), 0)
        ends = [-448.0, 448.0] if qtype.element else [qtype.qmin - zero, qtype.qmax - zero]
        beside = np.linspace(-40, 40, 161) if qtype.element else np.linspace(-1.5, 1.5, 97)
        near = np.add.outer(ends, beside).reshape(-1) * np.float64(p.scale) + offset
        most = np.float64(np.finfo(np.float32).max)
        near = np.append(near, [-most, most]).clip(-most, most).astype(np.float32)
        near = np.concatenate([near, np.nextafter(near, np.float32(0)), x])
        near = np.append(np.pad(near[:, None], ((0, 0), (0, 15)), constant_values=x[0]), near)  # alone in a register
        q = reference.quantize(near, qparams=p)
        assert fastq.compare(near, q).clipped == reference.compare(near, q).clipped, (code, spread, middle)
        compared += 1
    assert compared


@pytest.mark.parametrize("codes", [np.zeros(5, np.int8), np.zeros((2, 5), np.int8), np.zeros(9, np.uint8)])
def test_codes_that_do_not_fit_their_shape_or_format(codes):
    q = fastq.quantize(np.ones(9, np.float32), "int8")
    with pytest.raises(ValueError, match="codes have shape"):
        fastq.QuantizedArray(codes, q.qparams, q.shape)
    vars(q)["codes"] = codes  # as of an array whose codes NumPy has resized in place
    for use in (fastq.dequantize, reference.dequantize, functools.partial(fastq.compare, np.ones(9, np.float32))):
        with pytest.raises(ValueError, match="codes have shape"):
            use(q)


@pytest.mark.parametrize("shape", [(4097, 100), (5, 7, 33), (3, 50, 4)])
@pytest.mark.parametrize("block_size", [7, 32])
def test_no_block_is_in_two_chunks(shape, block_size, threads):
    """Two threads that widened the same range would lose one of the two."""
    from fastq.formats.granularity import Granularity
    from fastq.plan.layout import make_layout

    for axis in range(len(shape)):
        layout = make_layout(shape, Granularity((axis,), block_size))
        row = layout.length * layout.inner
        starts = {o * row + b * layout.block * layout.inner for o in range(layout.outer) for b in range(layout.blocks)}
        assert all(chunk in starts for chunk in range(0, layout.outer * row, layout.chunk_unit))
