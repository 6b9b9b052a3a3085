"""Block formats of GGUF that the gguf package can't write, and the importance of columns: the bytes of ggml's C code.

What ggml makes of seeded rows is kept as digests in gguf_digests.json, by tests/conformance/record_gguf.py; where
llama-cpp-python is installed tests/conformance compares much more. The gguf package decodes all formats.
"""

import hashlib
import itertools
import json
from pathlib import Path

import gguf as gguf_package
import numpy as np
import pytest
from catalogue import LAYOUTS, same_bytes
from gguf_blocks import any_blocks, check_memory, oracle, same_values
from gguf_data import COLUMNS, KINDS, comparable, importance, rows_of, rows_of_all, split
from ml_dtypes import bfloat16

import fastq
from fastq import reference
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.reference.gguf_fields import pack, unpack

STORED = json.loads((Path(__file__).parent / "gguf_digests.json").read_text())
OLD = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
NEW = [name for name, row in BLOCK_FORMATS.items() if name not in OLD and not row.needs_importance]
OF_PACKAGE = [name for name in BLOCK_FORMATS if name not in (*OLD, "Q1_0", "Q2_0")]  # which gguf 0.19 decodes
QUICK = (*OLD, "Q4_K", "Q6_K weighted")
CASES = [*OLD, *STORED["digests"]]
slow_kernels = pytest.mark.slow("compiles a kernel for each case", quick=lambda case: case in QUICK)


def check_digests(module, case):
    """Compare all kinds of rows at once, and kind by kind only what differs."""
    name, weights = split(case)
    blocks = module.quantize(comparable(rows_of_all(STORED["rows"]), name), name, importance=weights)
    parts = np.split(blocks, len(KINDS))
    found = {kind: hashlib.sha256(part).hexdigest()[:16] for kind, part in zip(KINDS, parts, strict=True)}
    assert found == STORED["digests"][case], "different"


# --- bytes and values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", STORED["digests"])
def test_reference_has_the_bytes_of_ggml(case):
    # contract 20.1, 20.2, 20.3 and 20.4
    check_digests(reference.gguf, case)


@slow_kernels
@pytest.mark.parametrize("case", STORED["digests"])
def test_kernels_have_the_bytes_of_ggml(case):
    # contract 20.1
    check_digests(fastq.gguf, case)


def test_all_formats_are_recorded():
    weighted = {f"{name} weighted" for name, row in BLOCK_FORMATS.items() if row.weighted}
    assert {*NEW, *weighted} == STORED["digests"].keys()


@pytest.mark.parametrize("name", OF_PACKAGE)
def test_values_of_the_reference_are_those_of_the_package(name):
    # contract 20.7
    check_values(reference.gguf, name)


@pytest.mark.slow("compiles a kernel for each case", quick=lambda name: name in ("Q4_K", "IQ3_S", "IQ1_M"))
@pytest.mark.parametrize("name", OF_PACKAGE)
def test_values_of_kernels_are_those_of_the_package(name):
    check_values(fastq.gguf, name)


def check_values(module, name):
    blocks = any_blocks(name, 3000, 1)
    same_values(module.dequantize(blocks, name), oracle("dequantize", blocks, name))


def test_bits_of_scales_beyond_their_width_fall_into_others():
    """As in quantize_row_q2_K_ref and quantize_row_q4_K_ref, which cut off only what a byte does not hold."""
    s, m = np.random.default_rng(2).integers(0, 256, (2, 500, 16))
    packed = pack({"scales": s, "mins": m}, BLOCK_FORMATS["Q2_K"])[:, :16]
    same_bytes(packed, (s | m << 4).astype(np.uint8))
    s, m = s[:, :8], m[:, :8]
    first, second = (each[:, :4] | each[:, 4:] >> 4 << 6 for each in (s, m))
    expected = np.concatenate([first, second, s[:, 4:] & 15 | (m[:, 4:] & 15) << 4], axis=1).astype(np.uint8)
    for name in ("Q4_K", "Q5_K"):
        same_bytes(pack({"scales": s, "mins": m}, BLOCK_FORMATS[name])[:, 4:16], expected)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_every_bit_of_a_block_is_that_of_a_number(name):
    form = BLOCK_FORMATS[name]
    blocks = any_blocks(name, 500, 1)
    if name == "TQ1_0":  # bytes that are not among the 3**5 fractions
        blocks = pack(unpack(blocks, form), form)
    same_bytes(pack(unpack(blocks, form), form), blocks)


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0", "MXFP4"])
def test_reference_has_the_bytes_of_the_package(name):
    x = rows_of("normal", 40)
    same_bytes(
        reference.gguf.quantize(x, name), gguf_package.quants.quantize(x, gguf_package.GGMLQuantizationType[name])
    )


# --- shapes, layouts, dtypes, threads ---------------------------------------------------------------------------------


@pytest.mark.slow("compiles a kernel for each case", quick=lambda case: case in ("Q4_1", "Q6_K weighted"))
@pytest.mark.parametrize("case", CASES)
def test_layouts_and_threads(case, threads):
    """Rows of two or more blocks."""
    name, weights = split(case)
    width = max(BLOCK_FORMATS[name].size, 64) * 2
    x, weights = rows_of("magnitudes", 6)[:, :width], None if weights is None else weights[:width]
    for y in (x, x.reshape(2, 3, -1), x[0]):
        check_memory(y, name, threads, importance=weights)


@pytest.mark.slow(
    "compiles a kernel for each case", quick=lambda dtype, name: dtype == "float32" and name in ("Q4_0", "Q4_1", "Q8_0")
)
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q3_K", "IQ4_NL", "MXFP4"])
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", bfloat16, "int8", "uint16", "int32", "int64"], ids=str
)
def test_input_dtypes(dtype, name, threads):
    rng, dtype, shape = np.random.default_rng(11), np.dtype(dtype), (9, 160 if name in OLD else 512)
    if dtype.kind in "iu":
        x = rng.integers(max(np.iinfo(dtype).min, -(2**15)), min(np.iinfo(dtype).max, 2**15), shape, dtype)
    else:
        x = (rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 9, (9, 1))).astype(dtype)
    expected = reference.gguf.quantize(x.astype(np.float32), name)
    if name in OLD:
        same_bytes(expected, oracle("quantize", x, name))
    for n, layout in itertools.product((1, 4), ("c", "strided")):
        threads(n)
        for module in (fastq, reference):
            same_bytes(module.gguf.quantize(LAYOUTS[layout](x), name), expected)


@pytest.mark.parametrize("name", [*OLD, "Q4_K"])
def test_every_number_of_blocks_and_nothing_beside(name, threads):
    row = BLOCK_FORMATS[name]
    x = np.random.default_rng(12).standard_normal((70, row.size)).astype(np.float32)
    expected = oracle("quantize", x, name) if name in OLD else reference.gguf.quantize(x, name)
    values = oracle("dequantize", expected, name)
    for n, rows in itertools.product((1, 4), range(1, 71) if name in OLD else (1, 2, 15, 16, 17, 31, 32, 33, 40)):
        threads(n)
        memory = np.full(72 * row.nbytes, 7, np.uint8)
        out = memory[row.nbytes : (rows + 1) * row.nbytes].reshape(rows, -1)
        same_bytes(fastq.gguf.quantize(x[:rows], name, out=out), expected[:rows])
        assert (memory[: row.nbytes] == 7).all()
        assert (memory[(rows + 1) * row.nbytes :] == 7).all()
        same_bytes(fastq.gguf.dequantize(out, name), values[:rows])


def test_many_threads_and_tiles(threads):
    x = np.tile(rows_of_all(16), (4, 1))
    expected = np.tile(fastq.gguf.quantize(x[: len(x) // 4], "Q4_K"), (4, 1))
    for n in (1, 2, 4):
        threads(n)
        same_bytes(fastq.gguf.quantize(x, "Q4_K"), expected)
        same_bytes(fastq.gguf.quantize(LAYOUTS["strided"](x), "Q4_K"), expected)
        same_bytes(fastq.gguf.dequantize(expected, "Q4_K"), oracle("dequantize", expected, "Q4_K"))
        same_bytes(fastq.gguf.dequantize(LAYOUTS["strided"](expected), "Q4_K"), oracle("dequantize", expected, "Q4_K"))


# --- importance of columns --------------------------------------------------------------------------------------------


@pytest.mark.slow("compiles a kernel for each case", quick=lambda name: name == "Q6_K")
@pytest.mark.parametrize("name", ["Q6_K", "Q4_K", "Q4_0", "Q5_1"])
def test_a_row_for_each_row_or_each_index(name, threads):
    # contract 20.5
    x = rows_of("normal", 12)[:, :512].reshape(3, 4, 512)
    weights = np.stack([importance(seed)[:512] for seed in range(12)]).reshape(3, 4, 512)
    for each in (weights, weights[:, :1], weights[:1, :1], weights[0, 0]):
        whole = np.broadcast_to(each, x.shape)
        expected = np.stack(
            [
                reference.gguf.quantize(row, name, importance=w)
                for row, w in zip(x.reshape(12, -1), whole.reshape(12, -1), strict=True)
            ]
        ).reshape(3, 4, -1)
        same_bytes(reference.gguf.quantize(x, name, importance=each), expected)
        for n, layout in itertools.product((1, 4), ("c", "strided", "fortran")):
            threads(n)
            same_bytes(fastq.gguf.quantize(LAYOUTS[layout](x), name, importance=LAYOUTS[layout](each)), expected)


@pytest.mark.parametrize("api", [fastq, reference])
def test_weights_in_any_memory_and_numbers_of_python(api):
    x, weights = rows_of("normal", 2), importance()
    expected = reference.gguf.quantize(x, "Q6_K", importance=weights)
    for layout in ("strided", "unaligned", "swapped"):
        same_bytes(api.gguf.quantize(x, "Q6_K", importance=LAYOUTS[layout](weights)), expected)
    same_bytes(api.gguf.quantize(x, "Q6_K", importance=weights.tolist()), expected)
    with pytest.raises(ValueError, match="importance must be finite"):
        api.gguf.quantize(x, "Q6_K", importance=[1e300] * x.shape[1])


def test_formats_without_weights_take_any():
    x = rows_of("normal", 2)
    for name in (name for name, row in BLOCK_FORMATS.items() if not row.weighted):
        same_bytes(reference.gguf.quantize(x, name, importance=importance()), reference.gguf.quantize(x, name))
    same_bytes(fastq.gguf.quantize(x, "Q8_0", importance=importance()), reference.gguf.quantize(x, "Q8_0"))


def test_the_same_plan_looks_at_weights_again():
    x, good = rows_of("normal", 2), importance()
    fastq.gguf.quantize(x, "Q6_K", importance=good)
    for bad in (np.nan, np.inf, -1):
        with pytest.raises(ValueError, match="importance must be finite"):
            fastq.gguf.quantize(x, "Q6_K", importance=np.where(np.arange(COLUMNS) == 7, np.float32(bad), good))
    same_bytes(fastq.gguf.quantize(x, "Q6_K", importance=good), reference.gguf.quantize(x, "Q6_K", importance=good))


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow("compiles a kernel for each case", quick=lambda case: case in ("Q4_1", "Q6_K weighted"))
@pytest.mark.parametrize("case", CASES)
def test_what_is_not_finite_is_refused_by_row_and_block(case, threads):
    # contract 20.6
    name, weights = split(case)
    size = BLOCK_FORMATS[name].size
    part = None if weights is None else weights[: 2 * size]
    for rows, bad in itertools.product((1, 16, 50), (np.nan, np.inf, -np.inf)):
        last, finite = 2 * size - 1, rows_of("normal", rows)[:, : 2 * size]
        places = (0, 0), (rows // 3, size), (rows // 2, size - 1), (rows // 2, size * 4 // 3), (rows - 1, last)
        for row, column in places:
            x = finite.copy()
            x[row, column] = x[-1, -1] = bad
            first = column // size * size
            message = f"^row {row} of data has NaN or infinity in elements {first}..{first + size - 1}$"
            for n, layout in itertools.product((1, 4), ("c", "strided")):
                threads(n)
                with pytest.raises(ValueError, match=message):
                    fastq.gguf.quantize(LAYOUTS[layout](x), name, importance=part)
            with pytest.raises(ValueError, match="NaN, infinity"):
                reference.gguf.quantize(x, name, importance=part)


@slow_kernels
@pytest.mark.parametrize("case", [case for case in STORED["digests"] if case not in ("MXFP4", "NVFP4")])
def test_what_float16_does_not_reach_is_refused(case):
    # contract 20.6
    name, weights = split(case)
    size = BLOCK_FORMATS[name].size
    part = None if weights is None else weights[: 2 * size]
    for large in (2.0**34, 2.0**36, 1e30, 3e38):
        x = rows_of("normal", 20)[:, : 2 * size]
        x[13] = np.where(x[13] < 0, -np.float32(large), np.float32(large))
        with pytest.raises(
            ValueError, match=f"^row 13 of data has values too large for the float16 parameters of {name}"
        ):
            fastq.gguf.quantize(x, name, importance=part)
        with pytest.raises(ValueError, match="too large for"):
            reference.gguf.quantize(x, name, importance=part)


def check_tiny_numbers(module, name):
    """A sub-block of which no candidate counts, as sums of squares are 0 in float32: a block of ggml_quantize_chunk."""
    x = np.zeros(256, np.float32)
    x[:32] = (np.arange(32) % 7 + 1) * 2.0**-44
    found = module.quantize(x, name, importance=np.ones(256, np.float32)).tobytes().hex()
    assert found == "00007c455450000000f0".ljust(132, "0"), "different"


@pytest.mark.parametrize("module", [fastq.gguf, reference.gguf], ids=["kernels", "reference"])
def test_numbers_of_which_no_candidate_counts(module):
    # contract 21.3
    check_tiny_numbers(module, "IQ2_XXS")


WEIGHTED = [case for case in CASES if case.endswith("weighted")]


def check_large_importance(module, case):
    """Rows of a mean square of 1, and of 3, by the least importance that is refused, and by the number below it."""
    name = case.split()[0]
    x = np.where(rows_of("normal", 2)[:, : 2 * BLOCK_FORMATS[name].size] < 0, np.float32(-1), np.float32(1))
    x[1, ::4] *= 3
    for row, least in zip(x, np.float32([2.0**89, 2.0**88]), strict=True):
        for large in (np.nextafter(least, np.float32(0)), least, np.finfo(np.float32).max):
            weights = np.abs(row) * np.float32(2.0**86)
            weights[1] = large
            refused = False
            try:
                module.quantize(row, name, importance=weights)
            except ValueError as error:
                refused = "too large for" in str(error)
            assert refused == (large >= least), "different"


@pytest.mark.parametrize("case", WEIGHTED)
def test_importance_that_sums_could_not_hold_is_refused_by_the_reference(case):
    # contract 20.9
    check_large_importance(reference.gguf, case)


@slow_kernels
@pytest.mark.parametrize("case", WEIGHTED)
def test_importance_that_sums_could_not_hold_is_refused_by_kernels(case):
    # contract 20.9
    check_large_importance(fastq.gguf, case)


@slow_kernels
@pytest.mark.parametrize("case", WEIGHTED)
def test_importance_that_sums_just_hold(case):
    # contract 20.9
    name = case.split()[0]
    x, weights = rows_of("normal", 20), importance(1) * np.float32(2.0**80)
    same_bytes(fastq.gguf.quantize(x, name, importance=weights), reference.gguf.quantize(x, name, importance=weights))
    weights[40] = 3e38
    with pytest.raises(
        ValueError,
        match=r"^row 0 of data has values too large .*, or an importance of columns too large for its search",
    ):
        fastq.gguf.quantize(x, name, importance=weights)
