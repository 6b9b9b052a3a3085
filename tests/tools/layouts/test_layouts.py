"""Tensors of GPTQ, AWQ, MatMulNBits and bitsandbytes, compared with their published definitions, bit by bit."""

import numpy as np
import pytest
from catalogue import same_bytes

import fastq
import fastq.io
from fastq import reference
from fastq.layouts import LAYOUTS, from_tensors, to_tensors
from fastq.tools.files.containers import open_source
from fastq.tools.layouts.compressed_tensors import form_of
from fastq.tools.layouts.schemes import as_scheme

OUTPUTS, INPUTS, BLOCK = 32, 96, 32
INTEGER = "gptq", "gptq_v2", "awq", "matmul_nbits"


def weight(dtype="uint4", shape=(OUTPUTS, INPUTS), block=BLOCK, seed=0, least_zero=1):
    """A weight of random codes, scales that float16 holds, and zero points."""
    rng, qtype = np.random.default_rng(seed), fastq.QType(dtype, int(dtype[-1]), dtype[0] != "u")
    codes = rng.integers(qtype.qmin, qtype.qmax + 1, shape, qtype.storage)
    places = shape[0], -(-shape[1] // block)
    scale = rng.integers(1, 2000, places).astype(np.float32) / np.float32(1024)
    zeros = rng.integers(qtype.qmin + least_zero, qtype.qmax + 1, places, qtype.storage)
    return with_codes(codes, fastq.QParams(scale, zeros, dtype, 1, block))


def with_codes(codes, params):
    packed = reference.pack(codes, params.dtype) if params.dtype.packed else codes
    return fastq.QuantizedArray(packed, params, codes.shape)


def unsigned(q):
    """Codes and zero points as they are stored: from 0 on."""
    return q.unpacked().astype(np.int64) - q.dtype.qmin, q.zero_point.astype(np.int64) - q.dtype.qmin


def in_words(rows, bits, order=None):
    """Rows of integers in words of 32 bits, each integer's bits one by one; `order` of the integers of one word."""
    words = np.zeros((len(rows), rows.shape[1] * bits // 32), np.uint32)
    for k in range(rows.shape[1]):
        per_word = 32 // bits
        source = k if order is None else k // per_word * per_word + order[k % per_word]
        for bit in range(bits):
            place = k * bits + bit
            words[:, place // 32] |= ((rows[:, source] >> bit & 1) << (place % 32)).astype(np.uint32)
    return words.view(np.int32)


def by_definition(q, layout, order=(0, 2, 4, 6, 1, 3, 5, 7), less=1):
    """The tensors of a weight, from the definitions of AutoGPTQ, AutoAWQ and ONNX Runtime."""
    codes, zeros = unsigned(q)
    bits, scales = q.dtype.bits, np.ascontiguousarray(q.scale.T.astype(np.float16))
    if layout in ("gptq", "gptq_v2"):
        stored = zeros - less if layout == "gptq" else zeros
        g_idx = np.array([k // q.block_size for k in range(q.shape[1])], np.int32)
        qweight, qzeros = np.ascontiguousarray(in_words(codes, bits).T), in_words(stored.T, bits)
        return {"qweight": qweight, "qzeros": qzeros, "scales": scales, "g_idx": g_idx}
    if layout == "awq":
        return {"qweight": in_words(codes.T, 4, order), "qzeros": in_words(zeros.T, 4, order), "scales": scales}
    blocks = codes.reshape(len(codes), -1, q.block_size)
    per_byte = 8 // bits
    packed = sum(blocks[..., k::per_byte] << (bits * k) for k in range(per_byte)).astype(np.uint8)
    padded = np.pad(zeros, ((0, 0), (0, -zeros.shape[1] % per_byte)), constant_values=1 << (bits - 1))
    zero_points = sum(padded[:, k::per_byte] << (bits * k) for k in range(per_byte)).astype(np.uint8)
    return {"B": packed, "scales": q.scale, "zero_points": zero_points}


def same_tensors(actual, expected):
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        same_bytes(actual[name], tensor)


CASES = [(layout, dtype) for layout in INTEGER for dtype in LAYOUTS[layout].formats]


@pytest.mark.parametrize(("layout", "dtype"), CASES)
def test_tensors_are_those_of_the_definition(layout, dtype):
    # contract 11.1
    q = weight(dtype)
    same_tensors(to_tensors(q, layout), by_definition(q, layout))


@pytest.mark.parametrize(("layout", "dtype"), CASES)
def test_what_is_written_is_read(layout, dtype):
    q = weight(dtype)
    back = from_tensors(to_tensors(q, layout), layout, dtype=dtype)
    same_bytes(back.codes, q.codes)
    same_bytes(back.scale, q.scale)
    same_bytes(back.zero_point, q.zero_point)
    assert (back.axis, back.block_size, back.shape) == (1, BLOCK, q.shape)


@pytest.mark.parametrize("layout", INTEGER)
def test_signed_codes_are_stored_as_unsigned_ones(layout):
    # contract 11.1
    q = weight("int4")
    same_tensors(to_tensors(q, layout), by_definition(q, layout))
    same_bytes(reference.dequantize(from_tensors(to_tensors(q, layout), layout)), reference.dequantize(q))


def test_a_wrong_order_is_seen():
    q = weight()
    right = to_tensors(q, "awq")
    wrong = by_definition(q, "awq", order=range(8))
    assert (right["qweight"] != wrong["qweight"]).any()
    assert (right["qzeros"] != wrong["qzeros"]).any()
    gptq, v2 = to_tensors(q, "gptq"), to_tensors(q, "gptq_v2")
    assert (gptq["qzeros"] != v2["qzeros"]).any()
    assert (reference.dequantize(from_tensors(gptq, "gptq_v2")) != reference.dequantize(q)).any()
    assert (gptq["qweight"] != in_words(unsigned(q)[0].T, 4).reshape(gptq["qweight"].shape)).any()


def test_one_scale_for_each_row_is_one_block():
    codes = np.random.default_rng(1).integers(-8, 8, (OUTPUTS, 64), np.int8)
    params = fastq.QParams(np.full(OUTPUTS, 0.5, np.float32), np.zeros(OUTPUTS, np.int8), "int4", 0, symmetric=True)
    q = with_codes(codes, params)
    tensors = to_tensors(q, "awq")
    assert tensors["scales"].shape == (1, OUTPUTS)
    same_bytes(reference.dequantize(from_tensors(tensors, "awq")), reference.dequantize(q))
    assert "zero_points" not in to_tensors(q, "matmul_nbits")
    same_bytes(
        reference.dequantize(from_tensors(to_tensors(q, "matmul_nbits"), "matmul_nbits")), reference.dequantize(q)
    )


def test_a_last_block_that_is_shorter():
    # contract 11.3
    q = weight(shape=(8, 80))
    tensors = to_tensors(q, "matmul_nbits")
    assert tensors["B"].shape == (8, 3, 16)
    assert not tensors["B"][:, 2, 8:].any()
    same_bytes(reference.dequantize(from_tensors(tensors, "matmul_nbits", shape=(8, 80))), reference.dequantize(q))
    same_bytes(
        reference.dequantize(from_tensors(to_tensors(q, "gptq"), "gptq", block_size=32)), reference.dequantize(q)
    )
    with pytest.raises(ValueError, match=r"shape \(8, 97\) does not fit B"):
        from_tensors(tensors, "matmul_nbits", shape=(8, 97))
    with pytest.raises(ValueError, match="block_size 80 does not cut 80 inputs into 3 blocks"):
        from_tensors(to_tensors(q, "gptq"), "gptq", block_size=80)


def test_inputs_ordered_by_activation():
    q, g_idx = weight(), np.random.default_rng(2).permutation(np.arange(INPUTS) // BLOCK).astype(np.int32)
    tensors = to_tensors(q, "gptq", g_idx=g_idx)
    same_bytes(tensors["g_idx"], g_idx)
    order = np.argsort(g_idx, kind="stable")
    values = reference.dequantize(q)
    placed = np.empty_like(values)
    placed[:, order] = values
    codes = np.stack([tensors["qweight"] >> (4 * k) & 15 for k in range(8)], axis=1).reshape(INPUTS, OUTPUTS)
    zeros = np.stack([(tensors["qzeros"] >> (4 * k) & 15) + 1 for k in range(8)], axis=2).reshape(-1, OUTPUTS)
    read = (codes - zeros[g_idx]).astype(np.float32) * tensors["scales"].astype(np.float32)[g_idx]
    same_bytes(read.T, placed)
    same_bytes(reference.dequantize(from_tensors(tensors, "gptq", sort_inputs=True)), values)
    with pytest.raises(ValueError, match="g_idx orders inputs by activation"):
        from_tensors(tensors, "gptq")
    with pytest.raises(ValueError, match="g_idx must name every block as often"):
        from_tensors(tensors | {"g_idx": np.zeros(INPUTS, np.int32)}, "gptq")


def test_zero_points_that_the_first_version_has_no_place_for():
    # contract 11.2
    q = weight(least_zero=0, seed=3)
    assert not q.zero_point.all()
    tensors = to_tensors(q, "gptq_v2")
    same_bytes(from_tensors(tensors, "gptq_v2").zero_point, q.zero_point)
    with pytest.raises(ValueError, match="readers of 'gptq' read them as 0 or as 16"):
        from_tensors(tensors | {"qzeros": np.full_like(tensors["qzeros"], -1)}, "gptq")


# --- bitsandbytes -----------------------------------------------------------------------------------------------------


def table_weight(shape, block=64, dtype="nf4"):
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 16, shape, np.uint8)
    places = (*shape[:-1], -(-shape[-1] // block))
    scale = rng.uniform(0.1, 3, places).astype(np.float32)
    return with_codes(codes, fastq.QParams(scale, np.zeros(places, np.uint8), dtype, len(shape) - 1, block))


@pytest.mark.slow("compiles a kernel a table", quick=lambda shape, dtype: dtype == "nf4")
@pytest.mark.parametrize(("shape", "dtype"), [((4, 128), "nf4"), ((129,), "nf4"), ((129,), "fp4")])
def test_bitsandbytes(shape, dtype):
    q = table_weight(shape, dtype=dtype)
    tensors, codes = to_tensors(q, "bitsandbytes"), q.unpacked().reshape(-1)
    zero = {"nf4": 7, "fp4": 0}[dtype]
    pairs = [(*codes[k : k + 2], zero)[:2] for k in range(0, codes.size, 2)]
    same_bytes(tensors["weight"], np.array([[16 * first + second] for first, second in pairs], np.uint8))
    same_bytes(tensors["absmax"], q.scale.reshape(-1))
    back = from_tensors(tensors, "bitsandbytes", dtype=dtype, shape=shape)
    same_bytes(back.codes, q.codes)
    same_bytes(reference.dequantize(back), reference.dequantize(q))
    swapped = np.array([[16 * second + first] for first, second in pairs], np.uint8)
    assert (
        from_tensors(tensors | {"weight": swapped}, "bitsandbytes", dtype=dtype, shape=shape).codes != q.codes
    ).any()


def nested(scale, **options):
    """Nested scales by the reference: this module is imported by two workers, each of which would compile a kernel."""
    return fastq.NestedScale(*reference.nest_scale(scale, **options)[:2], scale.shape)


def test_bitsandbytes_with_nested_scales():
    q = table_weight((64, 1024))
    made = fastq.nest_scale(q.scale)
    tensors = to_tensors(q, "bitsandbytes", nested=made)
    back = from_tensors(tensors, "bitsandbytes", shape=q.shape)
    same_bytes(back.scale, made.dequantize())
    with pytest.raises(ValueError, match="absmax must be uint8 in blocks of 256"):
        from_tensors(tensors | {"nested_absmax": np.ones(9, np.float32)}, "bitsandbytes", shape=q.shape)

    with pytest.raises(ValueError, match="nested_quant_map is not the table of dynamic8"):
        from_tensors(tensors | {"nested_quant_map": np.zeros(256, np.float32)}, "bitsandbytes", shape=q.shape)


# --- compressed-tensors -----------------------------------------------------------------------------------------------

STORED = [
    ("int4", {"axis": 1, "block_size": 32, "symmetric": True}),
    ("int4", {"axis": 1, "block_size": 32}),
    ("int8", {"axis": 0, "symmetric": True}),
    ("int8", {"axis": 1, "block_size": 48}),
    ("float8_e4m3fn", {"axis": 0}),
    ("mxfp4", {}),
    ("mxfp8_e4m3", {}),
    ("nvfp4", {}),
]


COMPRESSED = "compressed_tensors"
EYE = reference.quantize(np.eye(OUTPUTS, INPUTS, dtype=np.float32), "int4", axis=1, block_size=32, symmetric=True)
OF_EYE = to_tensors(EYE, COMPRESSED, scale_dtype="float16")


@pytest.mark.parametrize(("dtype", "options"), STORED)
def test_compressed_tensors_are_those_of_a_directory(tmp_path, dtype, options):
    # contract 11.4
    x = np.random.default_rng(5).standard_normal((OUTPUTS, INPUTS), np.float32)
    q = reference.quantize(x, dtype, **options)
    tensors = to_tensors(q, "compressed_tensors")
    fastq.io.save_checkpoint(tmp_path / "model", {"layer": q})
    source = open_source(tmp_path / "model" / "model.safetensors")
    assert set(source.tensors) == {f"layer.{name}" for name in tensors}
    for name, tensor in tensors.items():
        same_bytes(np.ascontiguousarray(source.load(f"layer.{name}")), tensor)
    back = from_tensors(tensors, "compressed_tensors", dtype=dtype)
    ours, theirs = reference.dequantize(back), reference.dequantize(q)
    np.testing.assert_allclose(ours, theirs, rtol=2**-22 if dtype == "nvfp4" else 0)


# each layout and format, the tensor of scales, and whether its first axis is that of blocks
SCALED = [(layout, dtype, "scales", layout != "matmul_nbits") for layout, dtype in CASES]
SCALED += [("compressed_tensors", dtype, "weight_scale", False) for dtype in ("int4", "int8 rows", "float8_e4m3fn")]
SCALED += [
    ("compressed_tensors", "int4 asymmetric", "weight_scale", False),
    ("compressed_tensors", "nvfp4", "weight_scale", False),
]
SCALED += [("bitsandbytes", "nf4", "absmax", False)]


@pytest.mark.slow(
    "compiles kernels for each format",
    quick=lambda layout, dtype, **_: dtype in ("int4", "nf4") or (layout in INTEGER and dtype != "uint2"),
)
@pytest.mark.parametrize(("layout", "dtype", "name", "transposed"), SCALED)
def test_groups_whose_scale_is_0_are_zeros(layout, dtype, name, transposed):
    """Readers compute (code - zero point) * 0: of groups of zeros, and of experts that calibration never met."""
    rng, (kind, *more) = np.random.default_rng(1), dtype.split()
    options = {"axis": -1, "block_size": BLOCK, "symmetric": layout != "awq"} if kind != "nvfp4" else {"axis": -1}
    if "asymmetric" in more:
        options["symmetric"] = False
    if "rows" in more or kind == "float8_e4m3fn":
        options = {"axis": 0, "symmetric": True}
    q = (
        weight(dtype)
        if (layout, dtype) in CASES
        else reference.quantize(rng.standard_normal((8, 64)).astype("f4"), kind, **options)
    )
    tensors = to_tensors(q, layout)
    given = {"dtype": kind} | ({"shape": q.shape, "block_size": BLOCK} if layout == "bitsandbytes" else {})
    want = reference.dequantize(from_tensors(tensors, layout, **given)).copy()
    scales = tensors[name].copy()
    empty = np.zeros(scales.shape, bool)
    empty.reshape(-1)[rng.permutation(scales.size)[: scales.size // 3]] = True
    scales[empty] = 0
    for every in (False, True):
        groups = np.ones_like(empty) if every else empty
        of_rows = (groups.T if transposed else groups).reshape(len(want), -1)
        want[np.repeat(of_rows, -(-want.shape[1] // of_rows.shape[1]), axis=1)[:, : want.shape[1]]] = 0
        stored = scales * 0 if every else scales
        read = from_tensors(tensors | {name: stored.astype(scales.dtype)}, layout, **given)
        np.testing.assert_array_equal(read.dequantize(), want)
        np.testing.assert_array_equal(reference.dequantize(read), want)


# --- refusals ---------------------------------------------------------------------------------------------------------


WHERE = {"axis": 1, "block_size": BLOCK}


def with_values(scale, zero_point, **where):
    """The codes of a weight with other parameters."""
    q = weight()
    return fastq.QuantizedArray(q.codes, fastq.QParams(scale, zero_point, "uint4", **where), q.shape)


Q, NINES = weight(), np.full((OUTPUTS, INPUTS // BLOCK), 99, np.uint8)
NESTED = table_weight((64, 1024))
REFUSED = [
    (Q.codes, "gptq", {}, TypeError, "q must be a QuantizedArray"),
    (Q, "ggml", {}, ValueError, "layout must be"),
    (weight("uint3"), "awq", {}, ValueError, "the dtype of q must be one of uint4 for layout 'awq', not"),
    (weight("uint3"), "compressed_tensors", {}, ValueError, "the dtype of q must be one of int4, int8"),
    (weight(shape=(12, 64)), "awq", {}, ValueError, "qweight needs whole words: a multiple of 8 outputs"),
    (weight(shape=(12, 64)), "gptq", {}, ValueError, "qzeros needs whole words: a multiple of 8, not 12"),
    (weight(block=48), "matmul_nbits", {}, ValueError, "block_size must be a power of two from 16 on"),
    (table_weight((4, 96)), "bitsandbytes", {}, ValueError, "blocks along its last axis that fill its rows"),
    (
        fastq.QuantizedArray(Q.codes[0], fastq.QParams(1.0, 0, "uint4"), (INPUTS,)),
        *("awq", {}, ValueError, "q must have 2 dimensions"),
    ),
    (with_values(1.0, 0), "awq", {}, ValueError, "q must have blocks along axis 1, or a scale for each row"),
    (
        with_values(Q.scale, Q.scale, **WHERE, convention="faiss"),
        *("awq", {}, ValueError, "convention 'faiss' does not decode as"),
    ),
    (Q, "awq", {"g_idx": [0]}, ValueError, "g_idx must be None for layout 'awq'"),
    (Q, "awq", {"nested": 1}, ValueError, "nested must be None for layout 'awq'"),
    (Q, "gptq_v2", {"g_idx": np.zeros(INPUTS)}, TypeError, "g_idx must be integers, not float64"),
    (Q, "gptq", {"g_idx": np.zeros(INPUTS, "i4")}, ValueError, "g_idx must name each block of q as often"),
    (weight(least_zero=0, seed=3), "gptq", {}, ValueError, "stores zero_point - 1 and cannot hold zero_point 0"),
    (NESTED, "bitsandbytes", {"nested": 1}, TypeError, r"nested must be a NestedScale, .*nest_scale returns, not 1"),
    (
        NESTED, "bitsandbytes", {"nested": nested(NESTED.scale, block_size=64)},
        ValueError, "nested must have blocks of 256, as bitsandbytes reads them, not 64",
    ),
    (
        table_weight((4, 128)), "bitsandbytes", {"nested": nested(NESTED.scale)},
        ValueError, r"nested has shape \(64, 16\), but q has scales of shape \(4, 2\)",
    ),
    *(
        (with_values(*values, **WHERE), layout, {}, ValueError, message)
        for layout in INTEGER
        for values, message in (
            ((Q.scale[:, :1], Q.zero_point[:, :1]), r"qparams\.scale has shape \(32, 1\)"),
            ((Q.scale, NINES), "zero_point must be from 0 to 15"),
            ((-Q.scale, Q.zero_point), "scale must be positive"),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("q", "layout", "options", "error", "message"), REFUSED)
def test_what_a_layout_has_no_place_for_is_refused(q, layout, options, error, message):
    with pytest.raises(error, match=message):
        to_tensors(q, layout, **options)


@pytest.mark.parametrize("layout", INTEGER)
def test_one_scale_serves_for_all_blocks(layout):
    q, one = weight(), fastq.QParams(np.float32(0.25), np.uint8(7), "uint4", 1, BLOCK)
    full = np.full(q.scale.shape, 0.25, np.float32), np.full(q.scale.shape, 7, np.uint8)
    alike = fastq.QuantizedArray(q.codes, q.qparams.with_values(*full), q.shape)
    for name, tensor in to_tensors(fastq.QuantizedArray(q.codes, one, q.shape), layout).items():
        same_bytes(tensor, to_tensors(alike, layout)[name])


@pytest.mark.parametrize("layout", INTEGER)
def test_byte_order_does_not_matter(layout):
    tensors = to_tensors(weight(), layout)
    swapped = {name: each.astype(each.dtype.newbyteorder("S")) for name, each in tensors.items()}
    read, plain = from_tensors(swapped, layout), from_tensors(tensors, layout)
    fastq.testing.assert_same_codes(read, plain)


@pytest.mark.parametrize("layout", ["matmul_nbits", "gptq", "gptq_v2", "awq"])
def test_scales_of_either_sign_are_those_of_matmul_nbits(layout):
    w = np.random.default_rng(0).standard_normal((8, 64), np.float32).astype(np.float16)
    q = reference.quantize(w, "uint4", axis=1, block_size=32, symmetric=True, convention="matmul-nbits")
    scale = q.scale.astype(np.float16).astype(np.float32)  # as some layouts have them
    q = fastq.QuantizedArray(q.codes, q.qparams.with_values(scale, q.zero_point), q.shape)
    assert (q.scale < 0).any()
    read = from_tensors(to_tensors(q, layout), layout)
    assert read.convention == "matmul-nbits"
    same_bytes(reference.dequantize(read), reference.dequantize(q))


def test_scales_of_either_sign_of_compressed_tensors():
    q = from_tensors(OF_EYE | {"weight_scale": -OF_EYE["weight_scale"]}, COMPRESSED)
    same_bytes(reference.dequantize(q), -reference.dequantize(from_tensors(OF_EYE, COMPRESSED)))
    assert (to_tensors(q, COMPRESSED)["weight_scale"] < 0).all()


@pytest.mark.parametrize("layout", ["awq", "gptq_v2"])
def test_scales_that_lose_bits_are_told_of(layout):
    """Those below the least normal number of float16; powers of two keep all of their bits."""
    q = weight()

    def times(factor):
        parameters = q.qparams.with_values(q.scale * np.float32(factor), q.zero_point)
        return fastq.QuantizedArray(q.codes, parameters, q.shape)

    small = times(2.0**-14 / float(q.scale.max()))
    with pytest.warns(
        UserWarning, match=r"scales are subnormal in float16, for example .*; pass scale_dtype=\"float32\""
    ) as caught:
        tensors = to_tensors(small, layout)
    assert [each.filename for each in caught] == [__file__]
    assert (tensors["scales"] < np.finfo(np.float16).tiny).any()
    same_bytes(to_tensors(small, layout, scale_dtype=np.float32)["scales"], np.ascontiguousarray(small.scale.T))
    ones = q.qparams.with_values(np.full_like(q.scale, 2.0**-20), q.zero_point)
    assert (to_tensors(fastq.QuantizedArray(q.codes, ones, q.shape), layout)["scales"] == 2.0**-20).all()


def test_scales_that_a_dtype_has_no_place_for_are_refused():
    q = weight()
    large = fastq.QuantizedArray(q.codes, q.qparams.with_values(q.scale * np.float32(1e6), q.zero_point), q.shape)
    with pytest.raises(ValueError, match="scales overflow or underflow in float16, for example"):
        to_tensors(large, "awq")
    same_bytes(to_tensors(large, "awq", scale_dtype=np.float32)["scales"], np.ascontiguousarray(large.scale.T))
    assert OF_EYE["weight_scale"].dtype == np.float16
    with pytest.raises(TypeError, match="scale_dtype must be float16, bfloat16, float32 or float64, not int8"):
        to_tensors(q, "awq", scale_dtype="int8")


@pytest.mark.parametrize(
    ("change", "layout", "options", "error", "message"),
    [
        (
            {"weight_scale": OF_EYE["weight_scale"] * np.nan},
            COMPRESSED,
            {},
            ValueError,
            "has numbers that are not finite",
        ),
        (
            {"weight_shape": np.array([OUTPUTS, 8])},
            COMPRESSED,
            {},
            ValueError,
            r"weight_packed has shape \(32, 12\), but",
        ),
        ({"weight_packed": OF_EYE["weight_packed"][0]}, COMPRESSED, {}, ValueError, "weight_packed must be a matrix"),
        ({"absmax": np.full(8, 200, np.uint8)}, "bitsandbytes", {}, TypeError, "absmax must be floats, not uint8"),
        ({"scales": None}, "gptq", {}, ValueError, "tensors must have 'scales' for layout 'gptq'"),
        ({"qweight": np.ones((2, 2))}, "gptq", {}, TypeError, "qweight must be int32, not float64"),
        ({"qweight": np.ones(2, np.int32)}, "gptq", {}, ValueError, "qweight must be a matrix with elements"),
        ({"qzeros": np.ones((2, 2), np.int32)}, "gptq", {}, ValueError, r"qzeros has shape \(2, 2\), but the other"),
        ({"scales": np.ones((2, 2))}, "awq", {}, ValueError, r"scales has shape \(2, 2\), but the other tensors"),
        ({"B": np.ones(2, np.uint8)}, "matmul_nbits", {}, ValueError, "B must have 3 dimensions"),
        ({"scales": np.ones(2)}, "matmul_nbits", {}, ValueError, r"scales has shape \(2,\), but B needs"),
        ({"scales": np.full((3, 32), np.nan)}, "awq", {}, ValueError, "scales has numbers that are not finite"),
        ({"scales": np.full((3, 32), 1e300)}, "gptq_v2", {}, ValueError, "scales has numbers that are not finite"),
        ({"scales": np.ones((3, 32), bool)}, "awq", {}, TypeError, "scales must be floats, not bool"),
        ({"scales": np.full((32, 3), "x")}, "matmul_nbits", {}, TypeError, "scales must be floats, not <U1"),
        ({}, "awq", {"sort_inputs": True}, ValueError, "sort_inputs must be False for layout 'awq'"),
        ({}, "awq", {"block_size": -1}, ValueError, "block_size must be 0 or more, not -1"),
        ({}, "bitsandbytes", {"shape": None}, TypeError, "from_tensors needs the shape"),
        ({}, "bitsandbytes", {"shape": (4, 96)}, ValueError, "has rows that blocks of 64 don't fill: read it as"),
        ({}, "bitsandbytes", {"shape": (8, 128)}, ValueError, "weight has 256 bytes, but shape"),
        ({"absmax": np.ones(3)}, "bitsandbytes", {}, ValueError, "absmax has 3 scales, but shape"),
        ({"quant_map": np.ones(16)}, "bitsandbytes", {}, ValueError, "quant_map is not the table of nf4"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change, layout, options, error, message):
    q, given = (table_weight((4, 128)), {"shape": (4, 128)}) if layout == "bitsandbytes" else (weight(), {})
    q = EYE if layout == COMPRESSED else q
    tensors = {k: v for k, v in (to_tensors(q, layout) | change).items() if v is not None}
    with pytest.raises(error, match=message):
        from_tensors(tensors, layout, **(given | options))


@pytest.mark.parametrize("bad", [None, "nonsense", weight(), [1]])
def test_what_are_no_tensors(bad):
    with pytest.raises(TypeError, match="tensors must be a mapping of arrays by their names"):
        from_tensors(bad, "awq")


def test_a_shorter_last_block_is_found_in_g_idx():
    q = weight(shape=(OUTPUTS, 96), block=64)
    read = from_tensors(to_tensors(q, "gptq_v2"), "gptq_v2")
    assert read.block_size == 64
    same_bytes(reference.dequantize(read), reference.dequantize(q))


def test_the_names_of_signed_formats_mean_the_same_codes():
    q = weight()
    read = from_tensors(to_tensors(q, "matmul_nbits"), "matmul_nbits", dtype="int4")
    same_bytes(reference.dequantize(read), reference.dequantize(q))


def test_zero_points_of_a_dtype_that_none_has():
    form = form_of(as_scheme("W4A16_ASYM"), (8, 128), "F32")
    with pytest.raises(ValueError, match="weight_zero_point is complex64, which is not a dtype of zero points"):
        form.zero_points(np.zeros((8, 1), np.complex64))
