"""Block formats of GGUF that the gguf package can't write, and the importance of columns: the bytes of ggml's C code.

What ggml makes of seeded rows is kept as digests in gguf_digests.json, by tests/conformance/record_gguf.py; where
llama-cpp-python is installed tests/conformance compares much more. The gguf package decodes all formats.
"""

import hashlib
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import gguf as gguf_package
import numpy as np
import pytest
from catalogue import LAYOUTS, same_bytes
from gguf_blocks import same_values
from gguf_data import COLUMNS, KINDS, importance, rows_of, rows_of_all
from ml_dtypes import bfloat16

import fastq
from fastq import reference
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.reference.gguf_fields import pack, unpack

STORED = json.loads((Path(__file__).parent / "gguf_digests.json").read_text())
OLD = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
NEW = [name for name in BLOCK_FORMATS if name not in OLD]
QUICK = ("Q4_K", "Q6_K weighted")
slow_kernels = pytest.mark.slow("compiles a kernel for each case", quick=lambda case: case in QUICK)


def split(case):
    """Name of the format of a case, and the importance of columns."""
    name, *weighted = case.split()
    return name, importance() if weighted else None


def check_digests(module, case):
    """Compare all kinds of rows at once, and kind by kind only what differs."""
    name, weights = split(case)
    blocks = module.quantize(rows_of_all(STORED["rows"]), name, imatrix=weights)
    parts = np.split(blocks, len(KINDS))
    found = {kind: hashlib.sha256(part).hexdigest()[:16] for kind, part in zip(KINDS, parts, strict=True)}
    assert found == STORED["digests"][case], "different"


def decoded(blocks, name):
    with np.errstate(all="ignore"):
        return gguf_package.quants.dequantize(blocks, gguf_package.GGMLQuantizationType[name])


# --- bytes and values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", STORED["digests"])
def test_reference_has_the_bytes_of_ggml(case):
    check_digests(reference.gguf, case)


@slow_kernels
@pytest.mark.parametrize("case", STORED["digests"])
def test_kernels_have_the_bytes_of_ggml(case):
    check_digests(fastq.gguf, case)


def test_all_formats_are_recorded():
    weighted = {f"{name} weighted" for name, row in BLOCK_FORMATS.items() if row.weighted}
    assert {*NEW, *weighted} == STORED["digests"].keys()


@pytest.mark.parametrize("name", NEW)
def test_values_of_the_reference_are_those_of_the_package(name):
    check_values(reference.gguf, name)


@pytest.mark.slow("compiles a kernel for each case", quick=lambda name: name == "Q4_K")
@pytest.mark.parametrize("name", NEW)
def test_values_of_kernels_are_those_of_the_package(name):
    check_values(fastq.gguf, name)


def check_values(module, name):
    blocks = np.random.default_rng(1).integers(0, 256, (3000, BLOCK_FORMATS[name].nbytes), np.uint8)
    same_values(module.dequantize(blocks, name), decoded(blocks, name))


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
    blocks = np.random.default_rng(3).integers(0, 256, (500, form.nbytes), np.uint8)
    if name == "TQ1_0":  # bytes that are none of 3**5 fractions
        blocks = pack(unpack(blocks, form), form)
    same_bytes(pack(unpack(blocks, form), form), blocks)


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0", "MXFP4"])
def test_reference_has_the_bytes_of_the_package(name):
    x = rows_of("normal", 40)
    same_bytes(
        reference.gguf.quantize(x, name), gguf_package.quants.quantize(x, gguf_package.GGMLQuantizationType[name])
    )


# --- shapes, layouts, dtypes, threads ---------------------------------------------------------------------------------


def small(name, weights=None, rows=3):
    """Rows of two or more blocks, with what the reference makes of them."""
    width = max(BLOCK_FORMATS[name].size, 64) * 2
    x = rows_of("magnitudes", rows)[:, :width]
    weights = None if weights is None else weights[:width]
    return x, weights, reference.gguf.quantize(x, name, imatrix=weights)


@slow_kernels
@pytest.mark.parametrize("case", STORED["digests"])
def test_layouts_and_threads(case, threads):
    name, weights = split(case)
    x, weights, expected = small(name, weights, rows=5)
    for n, layout in itertools.product((1, 4), LAYOUTS):
        threads(n)
        y = LAYOUTS[layout](x)
        wanted = (
            expected if layout not in ("negative", "broadcast") else reference.gguf.quantize(y, name, imatrix=weights)
        )
        same_bytes(fastq.gguf.quantize(y, name, imatrix=weights), wanted)
        memory = np.full((wanted.size + 40,), 7, np.uint8)
        out = memory[20:-20].reshape(wanted.shape)
        assert fastq.gguf.quantize(y, name, imatrix=weights, out=out) is out
        same_bytes(out, wanted)
        assert (memory[:20] == 7).all()
        assert (memory[-20:] == 7).all()
        apart = LAYOUTS["strided"](np.zeros_like(wanted))
        same_bytes(fastq.gguf.quantize(y, name, imatrix=weights, out=apart), wanted)


@pytest.mark.slow("compiles a kernel for each case")
@pytest.mark.parametrize("name", ["Q4_K", "Q3_K", "IQ4_NL", "MXFP4"])
@pytest.mark.parametrize("dtype", ["float64", "float16", bfloat16, "int8", "uint16"], ids=str)
def test_input_dtypes(dtype, name):
    x = (rows_of("normal", 5)[:, :512] * 40).astype(np.dtype(dtype))
    same_bytes(fastq.gguf.quantize(x, name), reference.gguf.quantize(x.astype(np.float32), name))


def test_every_number_of_blocks(threads):
    x = rows_of("normal", 40)[:, :256]
    expected = reference.gguf.quantize(x, "Q4_K")
    for n, rows in itertools.product((1, 4), (1, 2, 15, 16, 17, 31, 32, 33, 40)):
        threads(n)
        same_bytes(fastq.gguf.quantize(x[:rows], "Q4_K"), expected[:rows])
        values = fastq.gguf.dequantize(expected[:rows], "Q4_K")
        same_bytes(values, decoded(expected[:rows], "Q4_K"))


def test_many_threads_and_tiles(threads):
    x = np.tile(rows_of_all(16), (4, 1))
    expected = np.tile(fastq.gguf.quantize(x[: len(x) // 4], "Q4_K"), (4, 1))
    for n in (1, 2, 4):
        threads(n)
        same_bytes(fastq.gguf.quantize(x, "Q4_K"), expected)
        same_bytes(fastq.gguf.quantize(LAYOUTS["strided"](x), "Q4_K"), expected)
        same_bytes(fastq.gguf.dequantize(expected, "Q4_K"), decoded(expected, "Q4_K"))
        same_bytes(fastq.gguf.dequantize(LAYOUTS["strided"](expected), "Q4_K"), decoded(expected, "Q4_K"))


def test_out_may_share_memory():
    x, _, expected = small("Q4_K")
    memory = x.copy()
    out = memory.reshape(-1).view(np.uint8)[: expected.size].reshape(expected.shape)
    same_bytes(fastq.gguf.quantize(memory, "Q4_K", out=out), expected)
    weights = np.ones(x.shape[1], np.float32)
    expected = reference.gguf.quantize(x[:1], "Q6_K", imatrix=weights)
    out = weights.view(np.uint8)[: expected.size].reshape(expected.shape)
    same_bytes(fastq.gguf.quantize(x[:1], "Q6_K", imatrix=weights, out=out), expected)


# --- importance of columns --------------------------------------------------------------------------------------------


@pytest.mark.slow("compiles a kernel for each case", quick=lambda name: name == "Q6_K")
@pytest.mark.parametrize("name", ["Q6_K", "Q4_K", "Q4_0", "Q5_1"])
def test_a_row_for_each_row_or_each_index(name, threads):
    x = rows_of("normal", 12)[:, :512].reshape(3, 4, 512)
    weights = np.stack([importance(seed)[:512] for seed in range(12)]).reshape(3, 4, 512)
    for each in (weights, weights[:, :1], weights[:1, :1], weights[0, 0]):
        whole = np.broadcast_to(each, x.shape)
        expected = np.stack(
            [
                reference.gguf.quantize(row, name, imatrix=w)
                for row, w in zip(x.reshape(12, -1), whole.reshape(12, -1), strict=True)
            ]
        ).reshape(3, 4, -1)
        same_bytes(reference.gguf.quantize(x, name, imatrix=each), expected)
        for n, layout in itertools.product((1, 4), ("c", "strided", "fortran")):
            threads(n)
            same_bytes(fastq.gguf.quantize(LAYOUTS[layout](x), name, imatrix=LAYOUTS[layout](each)), expected)


@pytest.mark.parametrize("api", [fastq, reference])
def test_weights_in_any_memory_and_numbers_of_python(api):
    x, weights = rows_of("normal", 2), importance()
    expected = reference.gguf.quantize(x, "Q6_K", imatrix=weights)
    for layout in ("strided", "unaligned", "swapped"):
        same_bytes(api.gguf.quantize(x, "Q6_K", imatrix=LAYOUTS[layout](weights)), expected)
    same_bytes(api.gguf.quantize(x, "Q6_K", imatrix=weights.tolist()), expected)
    with pytest.raises(ValueError, match="imatrix must be finite"):
        api.gguf.quantize(x, "Q6_K", imatrix=[1e300] * x.shape[1])


def test_formats_without_weights_take_any():
    x = rows_of("normal", 2)
    for name in (name for name, row in BLOCK_FORMATS.items() if not row.weighted):
        same_bytes(reference.gguf.quantize(x, name, imatrix=importance()), reference.gguf.quantize(x, name))
    same_bytes(fastq.gguf.quantize(x, "Q8_0", imatrix=importance()), reference.gguf.quantize(x, "Q8_0"))


def test_the_same_plan_looks_at_weights_again():
    x, good = rows_of("normal", 2), importance()
    fastq.gguf.quantize(x, "Q6_K", imatrix=good)
    for bad in (np.nan, np.inf, -1):
        with pytest.raises(ValueError, match="imatrix must be finite"):
            fastq.gguf.quantize(x, "Q6_K", imatrix=np.where(np.arange(COLUMNS) == 7, np.float32(bad), good))
    same_bytes(fastq.gguf.quantize(x, "Q6_K", imatrix=good), reference.gguf.quantize(x, "Q6_K", imatrix=good))


# --- errors -----------------------------------------------------------------------------------------------------------

X, W = np.ones((2, 3, 512), np.float32), np.ones(512, np.float32)
ERRORS = [
    ((X[..., :128], "Q4_K"), {}, ValueError, re.escape("multiple of 256, the values of a block")),
    ((X[..., :96], "NVFP4"), {}, ValueError, "multiple of 64"),
    ((X, "Q4_K"), {"imatrix": W[:256]}, ValueError, re.escape("imatrix has shape (256,)")),
    ((X, "Q4_K"), {"imatrix": np.ones((3, 512), np.float32)}, ValueError, "imatrix has shape"),
    ((X, "Q4_K"), {"imatrix": np.ones((1, 3, 512), np.float32)}, ValueError, "imatrix has shape"),
    ((X, "Q8_0"), {"imatrix": W[:256]}, ValueError, "imatrix has shape"),
    ((X, "Q4_K"), {"imatrix": W.astype(np.float64)}, TypeError, "imatrix must be float32, not float64"),
    ((X, "Q4_K"), {"imatrix": "weights"}, TypeError, "imatrix must be float32"),
    ((X, "Q4_K"), {"imatrix": -W}, ValueError, "imatrix must be finite and nowhere negative"),
    ((X, "Q4_K"), {"imatrix": W * np.float32(np.nan)}, ValueError, "imatrix must be finite"),
    ((X, "Q4_K"), {"out": np.empty((2, 3, 280), np.uint8)}, ValueError, re.escape("shape (2, 3, 288)")),
    ((X, "Q7_K"), {}, ValueError, "qtype must be one of"),
    ((X, "Q4_k"), {}, ValueError, r"not 'Q4_k': did you mean Q4_K\?"),
    ((X, "Q4_K_M"), {}, ValueError, r"not 'Q4_K_M': did you mean Q4_K\?"),
]


@pytest.mark.parametrize(("arguments", "options", "kind", "message"), ERRORS)
@pytest.mark.parametrize("module", [fastq.gguf, reference.gguf], ids=lambda module: module.__name__)
def test_errors(module, arguments, options, kind, message):
    if module is reference.gguf:
        message = message.replace(re.escape(", the values of a block"), "")
    with pytest.raises(kind, match=message):
        module.quantize(*arguments, **options)


@slow_kernels
@pytest.mark.parametrize("case", STORED["digests"])
def test_what_is_not_finite_is_refused_by_row_and_block(case, threads):
    name, weights = split(case)
    size = BLOCK_FORMATS[name].size
    for n, bad in itertools.product((1, 4), (np.nan, np.inf, -np.inf)):
        threads(n)
        for row, block in ((0, 0), (4, 1), (37, 0), (39, 1)):
            x = rows_of("normal", 40)[:, : 2 * size]
            x[row, block * size + size // 3] = bad
            x[39, 2 * size - 1] = bad
            message = f"^row {row} of data has NaN or infinity in elements {block * size}..{(block + 1) * size - 1}$"
            part = None if weights is None else weights[: 2 * size]
            for layout in ("c", "strided"):
                with pytest.raises(ValueError, match=message):
                    fastq.gguf.quantize(LAYOUTS[layout](x), name, imatrix=part)
            with pytest.raises(ValueError, match="NaN, infinity"):
                reference.gguf.quantize(x, name, imatrix=part)


@slow_kernels
@pytest.mark.parametrize("case", [case for case in STORED["digests"] if case not in ("MXFP4", "NVFP4")])
def test_what_float16_does_not_reach_is_refused(case):
    name, weights = split(case)
    size = BLOCK_FORMATS[name].size
    part = None if weights is None else weights[: 2 * size]
    for large in (2.0**34, 2.0**36, 1e30, 3e38):
        x = rows_of("normal", 20)[:, : 2 * size]
        x[13] = np.where(x[13] < 0, -np.float32(large), np.float32(large))
        with pytest.raises(
            ValueError, match=f"^row 13 of data has values too large for the float16 parameters of {name}"
        ):
            fastq.gguf.quantize(x, name, imatrix=part)
        with pytest.raises(ValueError, match="too large for"):
            reference.gguf.quantize(x, name, imatrix=part)


def test_reaching_it_imports_no_numba():
    code = "import sys, fastq; fastq.gguf.quantize; print({'numba', 'gguf'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
