"""Fast equals reference, byte for byte: products of formats, dtypes, layouts and granularities.

Cases compile kernels of their own, so one of a kind is quick, and others, which differ from it in a dtype, a format or
a size, wait for --all.
"""

import itertools

import numpy as np
import pytest
from catalogue import CODES, FEW, INPUTS, LAYOUTS, PACKED, values
from comparing import (
    ALL,
    Work,
    choose_qparams,
    clipped,
    dequantize,
    fake_quantize,
    fake_quantize_given,
    measures,
    minmax,
    quantize,
    quantize_given,
    refuse_nan,
)
from format_cases import (
    ALONG,
    BLOCKS,
    FLOATS,
    GRANULARITIES,
    HALF_LAYOUTS,
    HALVES,
    KINDS,
    SHAPE,
    block_input,
    dtype_of,
    granularities,
    inputs,
)
from hard_rows import LENGTHS, UNEVEN, hard_values, parameters, ragged_rows, ragged_works, uneven, where_of

from fastq.formats.codebooks import CODEBOOKS
from fastq.formats.qtypes import QTYPES
from fastq.kernels.sizes import MOST_ROW

# --- every format, input, granularity, layout and number of threads ---------------------------------------------------

# every layout with every number of threads would repeat most of the work: contiguous input meets them all
TURNS = [("c", (1, 2, 4)), *((name, ((1, 2, 4)[k % 3],)) for k, name in enumerate(LAYOUTS) if name != "c")]


def shaped(dtype, *seeds, shape=SHAPE):
    return [inputs(dtype, int(np.prod(shape)), seed).reshape(shape) for seed in seeds]


@pytest.mark.slow("compiles kernels of its own", quick=lambda dtype, code: (dtype, code) == ("float32", "int8"))
@pytest.mark.parametrize(
    ("dtype", "code"),
    [  # integers of each sign with codes of the other, and of the same
        (dtype, code)
        for dtype in INPUTS
        for code in (CODES if dtype[0] == "f" else ("int8", "uint16") if dtype[0] == "u" else ("uint8", "int16"))
    ],
)
def test_every_layout_granularity_scheme_and_thread_count(dtype, code, compare):
    x, other = shaped(dtype, 0, 1)
    for options, (layout, n) in itertools.product(granularities(code), TURNS):
        compare(Work(LAYOUTS[layout](x), code, options, other, threads=n), *ALL)


@pytest.mark.slow("compiles kernels of its own", quick=lambda layout, dtype: dtype == "float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_with_every_thread_count(layout, dtype, compare):
    x, other = shaped(dtype, 2, 3)
    for options in GRANULARITIES:
        compare(Work(LAYOUTS[layout](x), "int8", options, other, threads=(1, 2, 4)), *ALL)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("code", PACKED)
def test_packed_formats(code, compare):
    x, other = shaped("float32", 4, 5)
    for options in granularities(code):
        compare(Work(x, code, options, other), *ALL)


@pytest.mark.slow("compiles kernels of its own", quick=lambda dtype, layout: dtype == "float32")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", INPUTS)
def test_minmax(dtype, layout, compare):
    (x,) = shaped(dtype, 6)
    for options in GRANULARITIES:
        compare(Work(LAYOUTS[layout](x), None, options, threads=(1, 4)), minmax)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        *itertools.product(["float32"], ["int8", *KINDS]),
        *itertools.product(HALVES, ["int8", "mxfp4"]),
        *itertools.product(["float64"], ["int3", "nvfp4"]),
        *(("int16", "uint4"), ("uint8", "float8_e5m2"), ("int32", "mxfp4"), ("uint64", "nvfp4")),
    ],
)
def test_every_input_format_and_granularity(dtype, code, compare):
    x, other = shaped(dtype, 0, 1)
    outputs = tuple(FLOATS) if dtype == "float32" and code in KINDS else ()
    for k, options in enumerate(granularities(code)):
        compare(Work(x, code, options, other, threads=((1, 2, 4)[k % 3],), outputs=outputs), *ALL)


@pytest.mark.slow(
    "compiles kernels of its own", quick=lambda dtype, layout, code: (dtype, code) == ("float32", "uint4")
)
@pytest.mark.parametrize(
    ("dtype", "layout", "code"),
    [
        *((*case, code) for case in HALF_LAYOUTS for code in ("int8", "int3", "mxfp4")),
        *(("float32", layout, code) for layout in LAYOUTS for code in (*KINDS, "uint1")),
    ],
)
def test_every_layout(dtype, layout, code, compare):
    x, other = shaped(dtype, 2, 3)
    for k, options in enumerate(granularities(code)):
        compare(Work(LAYOUTS[layout](x), code, options, other, threads=((1, 4)[k % 2],), outputs=("float32",)), *ALL)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("convention", ["cf", "faiss", "textbook", "sentence-transformers"])
def test_nan_as_zero_where_ranges_do_not_widen_to_zero(convention, compare):
    """All values are above 1, so a 0 that is left out of a range changes its scale."""
    x = np.abs(values("float32", 40 * 70, 17)).reshape(40, 70) + 1
    x[np.random.default_rng(17).random(x.shape) < 0.02] = np.nan
    x[1], x[:, 2] = np.nan, np.nan
    options = {"convention": convention, "nan": "zero"}
    for granularity in ({}, {"axis": 0}, {"axis": 1}, {"axis": 1, "block_size": 32}, {"axis": 0, "block_size": 16}):
        for layout, n in TURNS:
            compare(Work(LAYOUTS[layout](x), "uint8", granularity | options, threads=n), quantize, choose_qparams)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        *(("float32", code) for code in ("uint4", "float8_e4m3fn", "float6_e3m2fn", "mxfp4", "nvfp4")),
        *(("float16", "mxint8"), ("float64", "mxfp8_e5m2")),
    ],
)
def test_nan_by_every_policy(dtype, code, compare):
    x, qtype = shaped(dtype, 8)[0].copy(), QTYPES[code]
    x[np.random.default_rng(8).random(SHAPE) < 0.05] = np.nan
    x[0, 0, 1] = -np.nan
    compare(Work(x, code), refuse_nan)
    keeps = qtype.block_size or (qtype.float_format and qtype.float_format.nan)
    for nan, (k, options) in itertools.product(
        ("zero", "keep") if keeps else ("zero",), enumerate(granularities(code))
    ):
        compare(Work(x, code, options | {"nan": nan}, threads=((1, 4)[k % 2],)), quantize, dequantize, fake_quantize)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("code", QTYPES)
def test_nothing_and_rank_0(code, compare):
    if QTYPES[code].block_size:
        compare(Work(np.empty((3, 0), np.float32), code, outputs=("float32",)), *ALL)
    else:
        for name in FLOATS:
            compare(Work(np.array(0.7, dtype_of(name)), code, outputs=("float32",)), *ALL)


# --- every length, place and size -------------------------------------------------------------------------------------

AROUND = (*range(1, 36), 47, 48, 49, *range(62, 67), *range(126, 131))  # whole groups, registers and blocks


@pytest.mark.slow(
    "compiles kernels of its own", quick=lambda dtype, code: dtype == "float32" and code in ("int8", "uint4")
)
@pytest.mark.parametrize(
    ("dtype", "code"),
    [*itertools.product(["float32"], QTYPES), *itertools.product([*HALVES, "float64"], ["int8", *KINDS])],
)
def test_every_length_at_every_offset(dtype, code, compare):
    memory = inputs(dtype, 300, 4)
    for size, offset in [(n, n % 17) for n in AROUND] + [(257, k) for k in (0, 1, 4, 7, 8, 15)]:
        compare(Work(memory[offset : offset + size], code), quantize, dequantize, fake_quantize)


@pytest.mark.slow("compiles kernels of its own")
def test_every_size_at_every_offset(compare):
    memory = values("float32", 300, 7)
    for size, offset in itertools.product(range(1, 258), range(16)):
        compare(Work(memory[offset : offset + size], "int8"), quantize, dequantize)


@pytest.mark.slow("compiles kernels of its own", quick=lambda block_size: block_size in (15, 32))
@pytest.mark.parametrize("block_size", [1, 2, 15, 16, 31, 32, 33, 64, 100, 128])
def test_blocks_of_one_row_with_every_remainder(block_size, compare):
    memory = values("float32", 33 * 128, 11)
    for size in (*range(1, 140), 511, 512, 513, *(block_size * blocks for blocks in (15, 16, 17, 33))):
        for symmetric in (False, True):
            compare(
                Work(memory[:size], "int8", {"axis": 0, "block_size": block_size, "symmetric": symmetric}), quantize
            )


@pytest.mark.slow("compiles kernels of its own", quick=lambda code: code in ("int8", "uint4"))
@pytest.mark.parametrize("code", QTYPES)
def test_rows_of_every_length(code, compare):
    """Rows that end in the middle of a byte, and of a block."""
    memory = inputs("float32", 5 * 140, 5)
    for length in (*range(1, 40), 63, 64, 65, 127, 129):
        compare(
            Work(memory[: 5 * length].reshape(5, length), code, {} if QTYPES[code].block_size else {"axis": 0}),
            quantize,
            dequantize,
        )


@pytest.mark.slow("compiles kernels of its own", quick=lambda dtype, code: (dtype, code) == ("float32", "uint4"))
@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        *itertools.product(["float32"], [*BLOCKS, "int8", "uint4", "float8_e4m3fn"]),
        *itertools.product(HALVES, ["mxfp4"]),
    ],
)
def test_blocks_that_are_computed_side_by_side(dtype, code, compare):
    for rows in (16, 17, 37):
        x, other = shaped(dtype, 13, 14, shape=(rows, 32))
        compare(
            Work(
                x, code, {} if QTYPES[code].block_size else {"axis": -1, "block_size": 32}, other, outputs=("float32",)
            ),
            *ALL,
        )


@pytest.mark.slow(
    "compiles kernels of its own",
    quick=lambda dtype, code, more: dtype == "float32" and code in FEW and more == (17, 32)[code in BLOCKS],
)
@pytest.mark.parametrize(
    ("dtype", "code", "more"),
    [
        *itertools.product(["float32"], QTYPES, [17]),
        *itertools.product(HALVES, ["int8", "mxfp4"], [17]),
        *itertools.product(["float32"], BLOCKS, [32]),
    ],
)
def test_large_arrays_in_parallel(dtype, code, more, compare):
    compare(Work(*shaped(dtype, 6, shape=(3, (1 << 16) + more)), code, threads=(1, 4)), quantize, dequantize)


@pytest.mark.slow("compiles kernels of its own", quick=lambda options, shape: shape == (70_000, 31))
@pytest.mark.parametrize("shape", [(2100, 1000), (3, 700_001), (1 << 21, 3), (70_000, 31)])
@pytest.mark.parametrize(
    "options", [{}, {"axis": -1}, {"axis": 0}, {"axis": 1, "block_size": 32}, {"axis": 0, "block_size": 300}]
)
def test_large_matrices(options, shape, compare):
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    compare(Work(x, "int8", options, threads=(4,)), quantize, dequantize)
    compare(Work(np.repeat(x, 2, axis=1)[:, ::2], "int8", options, threads=(4,)), quantize)


@pytest.mark.slow("compiles kernels of its own", quick=lambda shape, code: code == "int4" and len(shape) == 1)
@pytest.mark.parametrize("code", ["int4", "uint2", "uint1", "int3", "uint6", "float4_e2m1fn", "float6_e2m3fn", "mxfp4"])
@pytest.mark.parametrize("shape", [(77, 80), (9, 7 * 128), (9001 * 8,)])
def test_threads_part_packed_codes_at_whole_bytes(shape, code, compare, chunks):
    """Chunks of an odd number of codes would begin in the middle of a byte that another thread writes too."""
    chunks(1, 1 << 18)
    x = values("float32", np.prod(shape), 18).clip(-1000, 1000).reshape(shape)
    for options in [{}] if code == "mxfp4" else [{}, {"axis": 0}, {"axis": -1}, {"axis": -1, "block_size": 8}]:
        if len(shape) > 1 or "axis" not in options or "block_size" in options:
            compare(Work(x, code, options, threads=(2, 3, 4)), quantize, quantize_given, dequantize)


@pytest.mark.slow("compiles kernels of its own", quick=lambda code, dtype: (code, dtype) == ("int8", "float32"))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("code", QTYPES)
def test_rows_of_every_magnitude(code, dtype, compare):
    """From ranges whose scale underflows to those that overflow; values far larger and smaller than the range."""
    info, own = np.finfo(dtype), QTYPES[code].block_size
    exponents = np.arange(info.minexp - info.nmant, info.maxexp)
    x = np.ldexp(np.random.default_rng(0).uniform(-1, 1, (exponents.size, 40)), exponents[:, None]).astype(dtype)
    compare(Work(x, code, {"axis": 1, "block_size": own or 20}), quantize, fake_quantize)
    if own:
        compare(Work(x, code, {"axis": 1}), quantize, fake_quantize)
    else:
        compare(Work(x, code, {"axis": 0}, np.roll(x, 3, axis=0)), quantize, fake_quantize, quantize_given)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        ("mxfp4", "float32"),
        ("mxint8", "float32"),
        ("nvfp4", "float32"),
        ("mxfp6_e2m3", "float64"),
        ("nvfp4", "float64"),
    ],
)
def test_blocks_of_all_magnitudes(code, dtype, compare):
    x = block_input(np.dtype(dtype).type, (40, 75))
    for options in ALONG:
        compare(Work(x, code, options, x[::-1], threads=(1, 4), outputs=("float32",)), *ALL)
    for name in HALVES if code == "mxfp4" else ():
        with np.errstate(over="ignore"):
            half = x.astype(dtype_of(name))
        half[~np.isfinite(half)] = 1
        compare(Work(half, code, outputs=tuple(HALVES)), *ALL)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize(
    ("dtype", "code", "size"),
    [
        *(("float32", "float8_e4m3fn", size) for size in (16, 32, 64, 128)),
        ("float16", "float8_e5m2", 64),
        ("float64", "float8_e5m2fnuz", 16),
        ("float32", "uint8", 32),
        *((name, code, 0) for name, code in (("float32", "mxfp4"), ("float32", "nvfp4"), ("float64", "mxint8"))),
    ],
)
def test_nan_in_blocks_that_fill_registers(dtype, code, size, compare):
    """Groups of blocks with NaN, without, and with nothing else, one after the other."""
    x = inputs(dtype, 37 * 256, 9).reshape(37, -1).copy()
    x[::5, 1::7] = np.nan
    x[12, :128] = np.nan
    x[30:, :] = inputs(dtype, 7 * 256, 10).reshape(7, -1)
    options = {"axis": -1, "block_size": size} if size else {}
    compare(Work(x, code, options | {"nan": "zero" if code == "uint8" else "keep"}), quantize)
    compare(Work(x, code, options), refuse_nan)


# --- runs of one or two registers, narrow rows of which several are taken as one --------------------------------------


@pytest.mark.slow("compiles kernels of its own", quick=lambda nan, code: code == "int8")
@pytest.mark.parametrize("code", UNEVEN)
@pytest.mark.parametrize("nan", ["zero", "raise"])
def test_runs_of_a_few_registers(nan, code, compare, chunks):
    chunks(320, 320)
    for length in [each for each in LENGTHS if each % UNEVEN[code] == 0]:
        x = values("float32", 80 * length, length).reshape(80, length)
        if nan == "zero":
            x[::7, 0] = x[::5, -1] = x[3, length // 2] = np.nan
        rows = parameters(code, 80, length, axis=0)
        blocks = parameters(code, 160, length, axis=1, block_size=length)
        blocks = blocks.with_values(blocks.scale.reshape(40, 4), blocks.zero_point.reshape(40, 4))
        for data, p in ((x, rows), (np.resize(x, (40, 4 * length)), blocks)):
            compare(Work(data, options={"nan": nan}, qparams=p, threads=(1, 3)), quantize, dequantize, fake_quantize)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("code", UNEVEN)
@pytest.mark.parametrize("nan", ["zero", "raise"])
def test_runs_of_a_few_registers_by_their_ranges(nan, code, compare, chunks):
    chunks(320, 320)
    for length in (*LENGTHS, 63, 65, 96, 127, 128, 129, 136):
        if length % UNEVEN[code] == 0:
            x = uneven(length, nan == "zero")
            ragged = np.resize(x, (7, 8 * length + 16))
            for data, where in ((x, {"axis": 0}), (ragged, {"axis": 1, "block_size": length})):
                compare(Work(data, code, where | {"nan": nan}, threads=(1, 3)), quantize, fake_quantize)


@pytest.mark.slow("compiles kernels of its own", quick=lambda columns, dtype: dtype == "float32")
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
@pytest.mark.parametrize("columns", [1, 2, 3, 5, 16, 40])
def test_rows_that_are_taken_as_one(columns, dtype, compare):
    """Few rows, as many as are taken as one at most, one less and one more, and rows with some that are left over."""
    joined = -(-MOST_ROW // columns)
    for rows in (2, 16, 33, joined - 1, joined + 1, 20 * joined + 7):
        x, other = shaped(dtype, 21, 22, shape=(rows, columns))
        compare(
            Work(x, "int8", {"axis": 1}, other, threads=(1, 2)), quantize, dequantize, quantize_given, minmax, measures
        )


@pytest.mark.slow("compiles kernels of its own", quick=lambda dtype, code: (dtype, code) == ("float32", "int8"))
@pytest.mark.parametrize("code", UNEVEN)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int16"])
def test_blocks_of_few_columns(dtype, code, compare, chunks):
    """Of every width that is taken in another number of lanes, whole blocks and the rest of one."""
    chunks(1000, 1000)
    for columns in (1, 2, 3, 4, 5, 8, 12, 16, 17, 24, 40, 48, 63, 64, 72):
        if columns % UNEVEN[code] == 0:
            x = values(dtype, 5 * 37 * columns, columns).reshape(5, 37, columns)
            compare(
                Work(x, code, {"axis": 1, "block_size": 16}, threads=(1, 2)),
                quantize,
                fake_quantize,
                quantize_given,
                dequantize,
                minmax,
                clipped,
            )


@pytest.mark.slow("compiles kernels of its own", quick=lambda dtype, code: (dtype, code) == ("float32", "nf4"))
@pytest.mark.parametrize("code", ["mxfp4", "mxfp8_e4m3", "nvfp4", *CODEBOOKS])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_short_runs_of_formats_with_scales_of_their_own(dtype, code, compare):
    """Ragged rows, so that no loop over whole blocks takes them; blocks of zeros, and rows of fewer than 16 blocks."""
    for columns in (40, 500, 1000):
        x = values(dtype, 23 * columns, 5).reshape(23, columns)
        x[::5, :200] = 0
        x[2, 64:96] *= 2.0**-100
        compare(
            Work(x, code, {} if QTYPES[code].block_size else {"axis": 1, "block_size": 32}, threads=(1, 2)),
            quantize,
            fake_quantize,
            quantize_given,
            dequantize,
        )
        if QTYPES[code].block_size:
            (holey := x.copy())[1::7, 33] = np.nan
            compare(Work(holey, code, {"nan": "keep"}, threads=(1, 2)), quantize)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("convention", ["torch-pt2e", "tflite"])
def test_short_runs_that_compute_in_float64(convention, compare):
    for length in (16, 24, 32):
        options = {"axis": 0, "symmetric": True, "convention": convention}
        compare(Work(uneven(length, False), "int8", options, threads=(1, 2)), quantize, quantize_given, dequantize)


# --- rows of some whole blocks and the rest of one, of which several are prepared together across rows ----------------

RAGGED = ["int8", "uint16", "float8_e4m3fn", "nf4", "int4", "uint4", "uint3", "mxfp4", "nvfp4"]
EVERY = quantize, quantize_given, dequantize, fake_quantize, fake_quantize_given, minmax, measures


@pytest.mark.slow(
    "compiles kernels of its own", quick=lambda dtype, code: dtype == "float32" and code in ("int8", "uint4")
)
@pytest.mark.parametrize("code", RAGGED)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int16"])
def test_every_operation_on_ragged_rows(dtype, code, compare, chunks):
    chunks(320, 320)
    compare_every_operation_on_ragged_rows(compare, dtype, code)


def compare_every_operation_on_ragged_rows(compare, dtype, code):
    for length, block in ragged_works(code):
        compare(Work(ragged_rows(dtype, 53, length, block), code, where_of(code, block), threads=(1, 3)), *EVERY)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize(("dtype", "code"), [("float32", "int8"), ("float64", "int8"), ("float32", "int4")])
def test_ragged_rows_that_go_past_the_cache(dtype, code, compare, chunks, small_cache):
    """By way of the stack, where pieces of results end within rows and runs."""
    chunks(320, 320)
    small_cache(stream_from=1, stream_codes=True)
    compare_every_operation_on_ragged_rows(compare, dtype, code)


@pytest.mark.slow("compiles kernels of its own", quick=lambda code: code in ("int8", "uint4"))
@pytest.mark.parametrize("code", ["int8", "nf4", "int4", "uint4", "uint3"])
def test_a_line_that_ends_within_a_byte(code, compare, chunks):
    chunks(320, 320)
    for size in (1001, 1009, 1015, 1023):
        x = ragged_rows("float32", 1, size, 16)[0]
        compare(Work(x, code, {"axis": 0, "block_size": 32}, threads=(1, 3)), quantize, quantize_given, dequantize)


@pytest.mark.parametrize("length", [16, 24, 40, 100])
def test_channels_in_the_middle(length, compare, chunks):
    """Parameters follow each other up to the last channel, then come again; threads begin and end between."""
    chunks(320, 320)
    for channels in (3, 20, 50):
        x = ragged_rows("float32", 7 * channels, length, 16).reshape(7, channels, length)
        compare(Work(x, "int8", {"axis": 1}, threads=(1, 3)), quantize, dequantize, measures)


@pytest.mark.slow("compiles kernels of its own", quick=lambda code, nan: code == "int8")
@pytest.mark.parametrize(
    ("code", "nan"),
    [(code, "zero") for code in RAGGED] + [(code, "keep") for code in ("float8_e4m3fn", "mxfp4", "nvfp4")],
)
def test_nan_in_blocks_and_rests(code, nan, compare, chunks):
    chunks(320, 320)
    marked = nan == "keep" and QTYPES[code].block_size  # scales that are given are not
    for length, block in ragged_works(code):
        x = ragged_rows("float32", 53, length, block)
        x[3::13, length // 2] = x[40, 0] = x[41, -1] = x[42, block - 1] = x[43, block] = np.nan
        operations = [quantize] if marked else [quantize, quantize_given, fake_quantize_given]
        compare(Work(x, code, where_of(code, block) | {"nan": nan}, threads=(1, 3)), *operations)


# --- tables of numbers ------------------------------------------------------------------------------------------------


@pytest.mark.slow("compiles kernels of its own", quick=lambda code: code == "nf4")
@pytest.mark.parametrize("code", CODEBOOKS)
def test_codes_values_and_errors_of_codebooks(code, compare):
    compare(Work(hard_values(code), code, {"axis": -1, "block_size": 64}), quantize, dequantize, clipped)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("code", CODEBOOKS)
@pytest.mark.parametrize("dtype", ["float16", "float64", "int16"])
def test_other_inputs_of_codebooks(dtype, code, compare):
    with np.errstate(over="ignore", under="ignore"):
        x = (hard_values(code).clip(-100, 100) * (100 if dtype == "int16" else 1)).astype(dtype)
    for options in ({"axis": -1, "block_size": 32}, {"axis": 0, "block_size": 7}, {"axis": 1}, {}):
        compare(Work(x, code, options), quantize, dequantize, fake_quantize)


@pytest.mark.slow("compiles kernels of its own")
@pytest.mark.parametrize("code", CODEBOOKS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_ranges_of_least_error_of_codebooks(dtype, code, compare):
    x = hard_values(code, rows=12, columns=130).astype(dtype)
    for options in ({"axis": -1, "block_size": 64}, {"axis": 0}, {}):
        compare(Work(x, code, options | {"range": "mse"}), quantize)
