"""Tensors of HQQ and optimum-quanto, whose words have codes of distant groups, written out bit by bit."""

import numpy as np
import pytest
from catalogue import same_bytes

import fastq
from fastq import reference
from fastq.layouts import from_tensors, to_tensors

PARTS_OF_HQQ = {8: 1, 6: 1, 5: 1, 4: 2, 3: 10, 2: 4, 1: 8}
GROUP = 8
SHAPE = 16, 24  # 48 groups, which ten parts do not divide


def in_words(groups, bits, parts, is_first_highest, dtype):
    """Words with a code of each part, which has the same number of rows; zeros fill the last one."""
    height = -(-len(groups) // parts)
    words = np.zeros((height, groups.shape[1]), np.int64)
    for row, codes in enumerate(groups):
        part = row // height
        words[row % height] |= codes << bits * (parts - 1 - part if is_first_highest else part)
    return words.astype(np.uint32).view(np.int32) if dtype == "int32" else words.astype(dtype)


def parameters(groups, seed=1):
    rng = np.random.default_rng(seed)
    return (rng.integers(1, 99, (groups, 1)) / 64).astype(np.float32), rng.normal(3, 9, (groups, 1)).astype(np.float32)


def of_hqq(bits, seed=0):
    """Tensors of HQQ and their values."""
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (SHAPE[0] * SHAPE[1] // GROUP, GROUP))
    scale, zero = parameters(len(codes))
    width = bits if bits < 5 else 8
    words = in_words(codes, width, PARTS_OF_HQQ[bits], True, "int32" if bits == 3 else "uint8")
    meta = {"nbits": np.array(bits, np.int32), "shape": np.array(SHAPE), "group_size": np.array(GROUP, np.int32)}
    values = (codes.astype(np.float32) - zero) * scale
    return {"W_q": words, "scale": scale, "zero": zero, **meta}, values.reshape(SHAPE)


def of_quanto(bits, groups=None, shape=SHAPE):
    """Tensors of optimum-quanto for fewer than 8 bits, and their values."""
    groups = shape[0] * shape[1] // GROUP if groups is None else groups
    codes = np.random.default_rng(2).integers(0, 1 << bits, (groups, shape[0] * shape[1] // groups))
    scale, shift = parameters(groups)
    words = in_words(codes, bits, 8 // bits, False, "uint8")
    values = codes.astype(np.float32) * scale - shift
    return {"_data._data": words, "_scale": scale, "_shift": shift}, values.reshape(shape)


@pytest.mark.slow("compiles a kernel a width", quick=lambda bits, api: api is reference or bits == 4)
@pytest.mark.parametrize("api", [fastq, reference], ids=["fastq", "reference"])
@pytest.mark.parametrize("bits", PARTS_OF_HQQ)
def test_hqq(bits, api):
    # contract 11.5
    tensors, values = of_hqq(bits)
    q = from_tensors(tensors, "hqq", dtype=f"uint{bits}")
    assert (q.dtype.name, q.block_size, q.shape) == (f"uint{bits}", GROUP, SHAPE)
    same_bytes(api.dequantize(q), values)
    written = to_tensors(q, "hqq")
    for name, array in tensors.items():
        same_bytes(written[name], array)
    assert bytes(written["packing"]).decode() == ("3bit_32" if bits == 3 else f"{8 if bits > 4 else bits}bit_u8")


@pytest.mark.parametrize("bits", [4, 3])
def test_groups_of_hqq_across_rows(bits):
    # contract 11.5
    codes = np.random.default_rng(0).integers(0, 1 << bits, (GROUP, 48))
    scale, zero = (array.T for array in parameters(48))
    words = in_words(codes, bits, PARTS_OF_HQQ[bits], True, "int32" if bits == 3 else "uint8")
    tensors = {"W_q": words, "scale": scale, "zero": zero, "shape": np.array(SHAPE), "group_size": np.array([GROUP])}
    q = from_tensors(tensors, "hqq", dtype=f"uint{bits}", shape=(GROUP, 48))
    same_bytes(reference.dequantize(q), (codes.astype(np.float32) - zero) * scale)
    with pytest.raises(ValueError, match=r"axis 0.*read it with shape=\(8, 48\), and reshape its values to \(16, 24\)"):
        from_tensors(tensors, "hqq", dtype=f"uint{bits}")


@pytest.mark.parametrize("dtype", ["uint4", "int4"])
def test_zero_points_of_integers_are_zeros_of_hqq(dtype):
    w = np.random.default_rng(3).standard_normal(SHAPE, np.float32)
    for where in ({"axis": 1, "block_size": GROUP}, {"axis": 0}):
        q = reference.quantize(w, dtype, **where)
        read = from_tensors(to_tensors(q, "hqq"), "hqq")
        same_bytes(reference.dequantize(read), reference.dequantize(q))


def test_groups_of_hqq_that_cross_rows():
    tensors, values = of_hqq(4)
    tensors["shape"] = np.array((32, 12))
    with pytest.raises(
        ValueError, match=r"groups of 8 do not fill the rows of shape \(32, 12\): read it with shape=\("
    ):
        from_tensors(tensors, "hqq")
    same_bytes(reference.dequantize(from_tensors(tensors, "hqq", shape=(384,))), values.reshape(-1))


@pytest.mark.parametrize("groups", [None, SHAPE[0]])  # a group for each row
@pytest.mark.parametrize("bits", [4, 2])
def test_quanto(bits, groups):
    # contract 11.6
    tensors, values = of_quanto(bits, groups)
    q = from_tensors(tensors, "quanto", dtype=f"uint{bits}", shape=SHAPE)
    assert (q.block_size, q.shape) == (0 if groups else GROUP, SHAPE)
    same_bytes(reference.dequantize(q), values)
    same_bytes(q.dequantize(), values)
    written = to_tensors(q, "quanto")
    assert written.keys() == tensors.keys()
    for name, array in tensors.items():
        same_bytes(written[name], array)


def test_groups_of_quanto_that_parts_do_not_divide():
    # contract 11.6
    tensors, values = of_quanto(4, shape=(5, 8))
    assert len(tensors["_data._data"]) == 3
    same_bytes(reference.dequantize(from_tensors(tensors, "quanto", shape=(5, 8))), values)


def test_groups_of_quanto_that_cross_the_last_axis():
    """As those of convolutions do."""
    tensors, values = of_quanto(4)
    with pytest.raises(ValueError, match=r"groups of 8 do not fill the rows of shape \(16, 6, 4\): .*shape=\(16, 24\)"):
        from_tensors(tensors, "quanto", shape=(16, 6, 4))
    same_bytes(reference.dequantize(from_tensors(tensors, "quanto", shape=SHAPE)), values)


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz"])
def test_quanto_of_eight_bits(dtype):
    # contract 11.6
    w = np.random.default_rng(3).standard_normal(SHAPE, np.float32)
    q = reference.quantize(w, dtype, axis=0, symmetric=True, convention="quanto")
    tensors = to_tensors(q, "quanto")
    same_bytes(tensors["_data"], q.codes)
    same_bytes(tensors["_scale"], q.scale.reshape(-1, 1))
    read = from_tensors(tensors, "quanto", dtype=dtype)
    same_bytes(reference.dequantize(read), q.codes.astype(np.float32) * q.scale.reshape(-1, 1))
    tensors["_scale"] = np.where(
        np.arange(16)[:, None] == 2, np.float32(0), tensors["_scale"]
    )  # a row of zeros, whose codes of floats are NaN
    assert not reference.dequantize(from_tensors(tensors, "quanto", dtype=dtype))[2].any()


HQQ_TENSORS, QUANTO_TENSORS = of_hqq(4)[0], of_quanto(4)[0]
OF_EIGHT_BITS = {"_data": np.ones(SHAPE, np.int8), "_scale": np.ones((16, 1), np.float32)}


@pytest.mark.parametrize(
    ("layout", "changes", "options", "error", "message"),
    [
        ("hqq", {}, {"dtype": "uint3"}, ValueError, "nbits is 4: pass dtype='uint4'"),
        ("hqq", {"W_q": np.ones((24, 2), np.float32)}, {}, TypeError, "W_q must be uint8, not float32"),
        ("hqq", {"scale": None}, {}, ValueError, "tensors must have 'scale' for layout 'hqq'"),
        ("hqq", {"shape": None}, {}, TypeError, "from_tensors needs the shape of the weight for layout 'hqq'"),
        ("hqq", {"zero": np.ones(48, np.float32)}, {}, ValueError, r"have shapes \(48, 1\) and \(48,\), which must be"),
        ("hqq", {"scale": np.zeros((48, 1), np.float32)}, {}, ValueError, "scale has 0.0, which must be positive"),
        ("hqq", {}, {"shape": (16, 32)}, ValueError, r"does not have 48 groups of a weight of shape \(16, 32\)"),
        ("quanto", {}, {"shape": None}, TypeError, "needs the shape of the weight for layout 'quanto'"),
        ("quanto", {}, {"dtype": "int8"}, ValueError, "pass dtype='uint4' or 'uint2'"),
        ("quanto", {}, {"dtype": "uint2"}, ValueError, r"of shape \(24, 8\) does not have 48 groups"),
        ("quanto", {"_shift": np.ones((48, 1), np.int8)}, {}, TypeError, "_shift must be floats, not int8"),
        ("quanto", {"_scale": np.ones((1, 48), np.float32)}, {}, ValueError, r"groups of columns \(axis -1\) are not"),
        ("quanto", OF_EIGHT_BITS, {}, ValueError, "_data is int8: pass dtype='int8'"),
        ("quanto", OF_EIGHT_BITS | {"_scale": np.ones(16)}, {"dtype": "int8"}, ValueError, "one number for each row"),
        ("quanto", OF_EIGHT_BITS, {"dtype": "int8", "shape": (24, 16)}, ValueError, "is not that of _data"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(layout, changes, options, error, message):
    given = HQQ_TENSORS if layout == "hqq" else QUANTO_TENSORS
    given = {} if "_data" in changes else given
    tensors = {name: array for name, array in (given | changes).items() if array is not None}
    with pytest.raises(error, match=message):
        from_tensors(
            tensors, layout, **({"shape": SHAPE} if layout == "quanto" and "_data" not in tensors else {}) | options
        )


W = np.random.default_rng(3).standard_normal(SHAPE, np.float32)


@pytest.mark.parametrize(
    ("layout", "dtype", "options", "message"),
    [
        ("hqq", "uint4", {"axis": 1}, "q must be a matrix in blocks that fill its rows, or with a scale for each row"),
        ("hqq", "uint4", {"axis": 1, "block_size": 16}, "q must be a matrix in blocks that fill its rows"),
        (
            "hqq",
            "uint4",
            {"axis": 0, "convention": "quanto-bits"},
            r"does not decode as \(code - zero_point\) \* scale",
        ),
        ("quanto", "int8", {"axis": 1, "symmetric": True}, "q must have a scale for each row for layout 'quanto'"),
        ("quanto", "int8", {"axis": 0}, "q must be symmetric for layout 'quanto' and int8"),
        ("quanto", "uint4", {"axis": 0}, r"'onnx' does not decode as code \* scale \+ offset"),
        ("quanto", "uint4", {"axis": 1, "convention": "quanto-bits"}, "blocks along its last axis that fill it"),
    ],
)
def test_arrays_that_a_layout_lacks(layout, dtype, options, message):
    q = reference.quantize(W, dtype, **options)
    with pytest.raises(ValueError, match=message):
        to_tensors(q, layout)


def test_rows_that_bytes_of_hqq_do_not_take():
    q = reference.quantize(W[:15], "uint4", axis=0)
    with pytest.raises(ValueError, match="q has 15 groups, which must be a multiple of 2 for 4bit_u8"):
        to_tensors(q, "hqq")


def test_a_convention_of_fastq_is_read_back():
    q = fastq.quantize(W, "uint4", axis=1, block_size=GROUP, convention="quanto-bits")
    read = from_tensors(to_tensors(q, "quanto"), "quanto", shape=SHAPE)
    same_bytes(read.codes, q.codes)
    same_bytes(read.zero_point, q.zero_point)
