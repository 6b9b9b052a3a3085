"""Files: containers, what is stored for a tensor, and conversion there and back."""

import dataclasses
import errno
import io
import json
import os
import signal
import subprocess
import sys
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from catalogue import FEW, same_bytes
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from source_models import rewrite_header

import fastq
from fastq import reference
from fastq.formats.qtypes import QTYPES
from fastq.system.atomic import replacing
from fastq.tools.files.containers import open_source
from fastq.tools.files.numpy_files import NpzWriter
from fastq.tools.files.records import KEY, Record, Scheme, decode, encode, from_metadata, stored_specs, to_metadata
from fastq.tools.files.safetensors_files import Header, SafetensorsWriter
from fastq.tools.files.tensor_specs import TensorSpec, spec_of
from fastq.tools.tensors.binarize_file import binarize_file
from fastq.tools.tensors.dequantize_file import dequantize_file
from fastq.tools.tensors.quantize_file import quantize_file
from fastq.tools.tensors.reading import tensors_of
from fastq.tools.tensors.selection import Selection

BF16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = [name for name, row in QTYPES.items() if not (row.element or row.block_size)]
FLOATS = [name for name, row in QTYPES.items() if row.element and not row.block_size]
BLOCKS = [name for name, row in QTYPES.items() if row.block_size]


@pytest.fixture
def rng():
    return np.random.default_rng(5)


@pytest.fixture
def tensors(rng):
    """A checkpoint with every kind of tensor that the safetensors library can write from NumPy."""
    return {
        "a.weight": rng.standard_normal((24, 40)).astype(np.float32),
        "a.bias": rng.standard_normal(24).astype(np.float32),
        "b.weight": rng.standard_normal((7, 33)),
        "c.weight": rng.standard_normal((5, 3, 2)).astype(np.float16),
        "d.weight": rng.standard_normal((6, 10)).astype(BF16),
        "scalar": np.array(-2.5, np.float32),
        "nothing": np.zeros((0, 4), np.float32),
        "ids": np.arange(12, dtype=np.int64).reshape(3, 4),
        "mask": np.array([True, False, True]),
        "bytes": np.arange(5, dtype=np.uint8),
        "f8": np.arange(8).astype(ml_dtypes.float8_e4m3fn),
    }


@pytest.fixture
def checkpoint(tmp_path, tensors):
    path = tmp_path / "in.safetensors"
    save_file(tensors, path, {"format": "pt", "note": "é"})
    return path


def expected_of(x, scheme):
    """What the reference makes of an array whose scales are rounded to half precision if it has that."""
    arguments = scheme.arguments()
    row = dataclasses.replace(fastq.CONVENTIONS[arguments["convention"]], stored_type="input")
    q = reference.quantize(x, **arguments | {"convention": row})
    if not q.dtype.block_size:
        exact = reference.quantize(x.astype(q.scale.dtype), **arguments).scale
        rounded = exact.astype(x.dtype)
        larger = np.nextafter(rounded, x.dtype.type(np.inf))  # where few digits are left: contract 5.4
        few_digits = rounded < ml_dtypes.finfo(x.dtype).smallest_normal
        assert np.all((q.scale == rounded) | few_digits & (q.scale == larger))
    return q


def ignore(nbytes, tensors):
    pass


def told(calls):
    """What keeps the arguments of each call."""
    return lambda *done: calls.append(done)


def quantize_to(path, out, scheme, choice=None, **options):
    return quantize_file(open_source(path), out, scheme, choice or Selection(), progress=ignore, **options)


def names(folder):
    return sorted(p.name for p in folder.iterdir())


PICKLED = io.BytesIO()  # objects, which are not unpickled
np.save(PICKLED, np.array([print, "x"], object), allow_pickle=True)


# Containers


def test_source_reads_what_the_library_wrote(checkpoint, tensors):
    source = open_source(checkpoint)
    assert source.metadata == {"format": "pt", "note": "é"}
    assert set(source.tensors) == set(tensors)
    for name, expected in tensors.items():
        assert source.raw(name).tobytes() == expected.tobytes()
        assert source.tensors[name].shape == expected.shape
    for name in ("a.weight", "b.weight", "c.weight", "d.weight", "scalar", "nothing", "ids", "bytes"):
        same_bytes(source.load(name), tensors[name])
    assert not source.load("a.weight").flags.writeable


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8", "<f2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_source(tmp_path, rng, dtype, order):
    x = np.asarray(rng.standard_normal((3, 5)), dtype, order=order)
    np.save(tmp_path / "w.npy", x)
    source = open_source(tmp_path / "w.npy")
    assert list(source.tensors) == ["w"]
    assert source.tensors["w"].dtype == f"F{8 * x.itemsize}"
    assert source.metadata == {}
    same_bytes(source.load("w"), x)
    assert source.raw("w").tobytes() == x.astype(x.dtype.newbyteorder("<")).tobytes()  # as .safetensors has it


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_of_all_versions(tmp_path, version):
    x = np.ones((2, 3), np.float32)
    with (tmp_path / "w.npy").open("wb") as file:
        np.lib.format.write_array(file, x, version)
    same_bytes(open_source(tmp_path / "w.npy").load("w"), x)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".gguf"])
def test_pointers_of_git_lfs(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n")
    with pytest.raises(ValueError, match=rf"w{suffix} is a pointer of Git LFS; git lfs pull fetches the file$"):
        fastq.load(path)


def test_npy_source_with_a_name_that_is_not_utf8(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/w\xff.npy")
    np.save(path, np.ones((2, 2), np.float32))
    quantize_to(type(tmp_path)(path), tmp_path / "q.safetensors", Scheme("int8"))
    assert set(load_file(tmp_path / "q.safetensors")) == {"w?", "w?_scale", "w?_zero_point"}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.safetensors", b""),
        ("a.safetensors", b"\xff" * 100),
        ("a.safetensors", b"\x02\0\0\0\0\0\0\0[]"),
        ("a.npy", b""),
        ("a.npy", b"not an array"),
        ("a.npy", b"PK\x03\x04"),
        ("a.npy", PICKLED.getvalue()),
    ],
)
def test_damaged_source(tmp_path, name, content):
    # contract 28.12
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"^a\.(npy|safetensors) is not a readable \.(npy|safetensors) file: "):
        open_source(tmp_path / name)


@pytest.fixture
def writer(tmp_path):
    """What makes a writer of ours.safetensors by a header."""
    with (tmp_path / "ours.safetensors").open("wb", buffering=0) as file:
        yield lambda specs, metadata=None: SafetensorsWriter(file, Header(specs, metadata or {}))


def test_written_file_is_read_by_the_library(tmp_path, rng, writer):
    arrays = {
        "I8": rng.integers(-128, 128, (3, 5)).astype(np.int8),
        "U16": rng.integers(0, 1 << 16, 7).astype(np.uint16),
        "F64": rng.standard_normal((2, 2)),
        "BF16": np.array(1.5, BF16),
        "F32": np.zeros((3, 0), np.float32),
    }
    specs = [spec_of(name, name, a.shape) for name, a in arrays.items()]
    made = writer(specs, {"k": "v"})
    for name in reversed(arrays):
        made.write(name, arrays[name])
    read = load_file(tmp_path / "ours.safetensors")
    for name, a in arrays.items():
        same_bytes(read[name], a)
    with safe_open(tmp_path / "ours.safetensors", "numpy") as file:
        assert file.metadata() == {"k": "v"}
    assert all(start % arrays[name].itemsize == 0 for name, start in Header(specs, {}).starts.items())


def test_written_bytes_are_those_of_the_library(tmp_path, rng, writer):
    arrays = {"b": rng.standard_normal((2, 3)), "c": np.arange(4, dtype=np.uint8), "a": np.ones(3, np.float64)}
    save_file(arrays, tmp_path / "theirs.safetensors")
    made = writer([spec_of(n, "U8" if n == "c" else "F64", a.shape) for n, a in arrays.items()])
    for name, array in arrays.items():
        made.write(name, array)
    assert (tmp_path / "ours.safetensors").read_bytes() == (tmp_path / "theirs.safetensors").read_bytes()


def test_writer_refuses_what_the_header_does_not_promise(writer):
    made = writer([spec_of("x", "F32", (2,))])
    for wrong in (np.zeros(3, np.float32), np.zeros(2, np.float64)):
        with pytest.raises(ValueError, match=r"^'x' is float\d\d of shape \(\d,\), not F32 of \(2,\)$"):
            made.write("x", wrong)
    made.append("x", np.zeros(1, np.float32))
    with pytest.raises(ValueError, match=r"^'x' has 4 bytes, not 8$"):
        made.finish()


# Atomic replacement


def test_replacing_appears_whole(tmp_path):
    # contract 28.5
    (tmp_path / "plain").write_bytes(b"")
    with replacing(tmp_path / "out") as file:
        file.write(b"new")
        assert "out" not in names(tmp_path)
    assert (tmp_path / "out").read_bytes() == b"new"
    assert names(tmp_path) == ["out", "plain"]
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt, SystemExit])
def test_replacing_leaves_nothing_after_an_error(tmp_path, error):
    (tmp_path / "out").write_bytes(b"old")
    with pytest.raises(error), replacing(tmp_path / "out") as file:  # noqa: PT012
        file.write(b"new")
        raise error
    assert (tmp_path / "out").read_bytes() == b"old"
    assert names(tmp_path) == ["out"]


# What is stored for a tensor

GRANULARITIES = [
    (None, 0, (1,)),
    (0, 0, (6, 1)),
    (1, 0, (1, 9)),
    (-1, 0, (1, 9)),
    ((0, 1), 0, (6, 9)),
    ((1,), 0, (1, 9)),
    (1, 4, (6, 3)),
    (0, 4, (2, 9)),
]


STORED = [
    (name, symmetric, *each)
    for name, row in QTYPES.items()
    for symmetric in ((False, True) if name in INTEGERS and row.bits > 1 else (name not in INTEGERS,))
    for each in ([(-1, row.block_size, None), (0, row.block_size, None)] if name in BLOCKS else GRANULARITIES)
]


@pytest.mark.slow(
    "compiles kernels for each format and granularity",
    quick=lambda dtype, axis, wide, **_: dtype in FEW and not wide and (dtype in INTEGERS or axis == 0),
)
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("dtype", "symmetric", "axis", "block_size", "scale_shape"), STORED)
def test_stored_tensors(rng, dtype, symmetric, axis, block_size, scale_shape, wide):
    qtype, x = QTYPES[dtype], rng.standard_normal((6, 9)).astype(np.float64 if wide else np.float32)
    given = {"symmetric": symmetric} if dtype in INTEGERS else {}
    q = reference.quantize(x, dtype, axis=axis, block_size=block_size, **given)
    kind, tensor_scale = "F64" if wide else "F32", None if q.tensor_scale is None else float(q.tensor_scale)
    record = Record(dtype, axis, block_size, symmetric, "onnx", kind, x.shape, tensor_scale)
    arrays = encode("m", q, record)
    names = {"m_packed" if q.dtype.packed else "m", "m_scale"} | ({"m_global_scale"} if dtype == "nvfp4" else set())
    names |= {"m_shape"} if dtype in INTEGERS and q.dtype.packed else set()
    assert set(arrays) == names | (set() if symmetric else {"m_zero_point"})
    assert arrays["m_scale"].shape == (scale_shape or q.scale.shape)
    specs = {spec.name: (spec.dtype, spec.shape, spec.nbytes) for spec in stored_specs("m", record)}
    assert {name: each[1:] for name, each in specs.items()} == {name: (a.shape, a.nbytes) for name, a in arrays.items()}
    assert specs["m_scale"][0] == {"float8_e8m0fnu": "U8", "float8_e4m3fn": "F8_E4M3", "": kind}[qtype.scale_element]
    back = decode("m", record, arrays.__getitem__)
    for name in ("codes", "scale", "zero_point"):
        same_bytes(getattr(back, name), getattr(q, name))
    assert reference.dequantize(back).tobytes() == reference.dequantize(q).tobytes()
    assert (back.shape, back.dtype, back.symmetric) == (q.shape, q.dtype, q.symmetric)


FOURS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


@pytest.mark.slow("compiles kernels for each format", quick=lambda dtype: dtype == "nvfp4")
@pytest.mark.parametrize("dtype", ["mxfp4", "nvfp4", "mxfp8_e4m3", "float8_e4m3fn"])
def test_stored_floats_mean_what_they_mean_in_compressed_tensors(rng, dtype):
    """`code * scale / global_scale`, of two codes in a byte the first one low, and 2**(scale - 127) for bytes."""
    x, block = rng.standard_normal((8, 64)).astype(np.float32), QTYPES[dtype].block_size
    q = reference.quantize(x, dtype, **({"axis": -1, "block_size": block} if block else {"axis": 0}))
    axis, tensor_scale = (-1, q.tensor_scale) if block else (0, None)
    record = Record(dtype, axis, block, True, "onnx", "F32", x.shape, tensor_scale and float(tensor_scale))
    arrays = encode("w", q, record)
    scale = arrays["w_scale"]
    scale = np.exp2(scale.astype(np.float32) - 127) if scale.dtype == np.uint8 else scale.astype(np.float32)
    scale = np.repeat(scale, 64 // scale.shape[1], axis=1) / arrays.get("w_global_scale", np.float32(1))
    if QTYPES[dtype].packed:
        bytes_ = arrays["w_packed"]
        codes = FOURS[np.stack([bytes_ & 15, bytes_ >> 4], axis=-1).reshape(x.shape)]
    else:
        codes = arrays["w"].astype(np.float32)
    np.testing.assert_allclose(codes * scale, reference.dequantize(q), rtol=3e-7)


def packed_words(codes, bits):
    """Rows of non-negative codes as compressed-tensors packs them: one long little-endian number per row."""
    rows = []
    for row in codes.tolist():
        number = sum(code << (bits * i) for i, code in enumerate(row))
        length = -(-len(row) * bits // 32)
        rows.append(np.frombuffer(number.to_bytes(4 * length, "little"), "<i4"))
    return np.stack(rows)


@pytest.mark.slow("compiles kernels for each format", quick=lambda dtype, shape: dtype in ("int4", "uint2"))
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize("shape", [(6, 64), (3, 9), (9, 1), (2, 33)])
def test_packing_is_that_of_compressed_tensors(rng, dtype, shape):
    q = reference.quantize(rng.standard_normal(shape).astype(np.float32), dtype, axis=0)
    arrays = encode("w", q, Record(dtype, 0, 0, False, "onnx", "F32", shape))
    qmin, bits = QTYPES[dtype].qmin, QTYPES[dtype].bits
    codes, zero_point = q.unpacked().astype(int) - qmin, q.zero_point.astype(int).reshape(-1, 1) - qmin
    same_bytes(arrays["w_packed"], packed_words(codes, bits))
    same_bytes(arrays["w_zero_point"], packed_words(zero_point.T, bits).T)
    assert arrays["w_shape"].tolist() == list(shape)


def test_records_survive_metadata():
    records = {
        "a": Record("int8", None, 0, True, "onnx", "F16", (3, 4)),
        "b": Record("uint4", -1, 32, False, "onnx", "F64", ()),
        "c": Record("int16", (0, 2), 0, False, "onnx", "BF16", (1, 2, 3)),
    }
    assert from_metadata({KEY: to_metadata(records), "other": "x"}) == records


ENTRY = json.loads(to_metadata({"a": Record("int8", 0, 0, True, "onnx", "F32", (3, 4))}))["tensors"]["a"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"version": 2, "tensors": {}}', "version 2 is not 1, the one that fastq reads"),
        ('{"version": 1}', "cannot be read: 'tensors'"),
        ('{"version": 1, "tensors": {"a": {}}}', "cannot be read: 'axis'"),
        (json.dumps({"version": 1, "tensors": {"a": ENTRY | {"more": 1}}}), "unexpected keyword argument"),
        (json.dumps({"version": 1, "tensors": {"a": ENTRY | {"convention": "x"}}}), "convention must be one of"),
        (json.dumps({"version": 1, "tensors": {"a": ENTRY | {"original_dtype": "I8"}}}), "'I8' is not one of F64"),
        (json.dumps({"version": 1, "tensors": {"a": ENTRY | {"tensor_scale": 2}}}), "tensor_scale 2 does not fit int8"),
        (json.dumps({"version": 1, "tensors": {"a": ENTRY | {"dtype": "nvfp4"}}}), "None does not fit nvfp4"),
        ('{"version": 1, "format": []}', "cannot be read: "),
        ('{"version": 1, "format": "other"}', "cannot be read: 'tensors'"),
        ('{"version": 1, "format": "fastq.QuantizedArray"}', "^QuantizedArray.save wrote it, and"),
    ],
)
def test_damaged_metadata(text, message):
    with pytest.raises(ValueError, match=message):
        from_metadata({KEY: text})


# Files of tensors

SCHEMES = [
    Scheme("int8", axis=0, symmetric=True),
    Scheme("int8"),
    Scheme("uint8", axis=-1),
    Scheme("int16", axis=-1, block_size=8, symmetric=True),
    Scheme("uint4", axis=-1, block_size=16),
    Scheme("int2", axis=0, symmetric=True),
    Scheme("float8_e4m3fn", axis=0, symmetric=True),
    Scheme("float6_e2m3fn", axis=-1, block_size=16, symmetric=True),
    Scheme("float8_e5m2fnuz", symmetric=True),
    *(Scheme(name, axis=-1, block_size=QTYPES[name].block_size, symmetric=True) for name in BLOCKS),
]


@pytest.mark.slow("compiles kernels for each format", quick=lambda scheme: scheme.dtype == "uint4")
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_there_and_back_equals_the_reference(tmp_path, checkpoint, tensors, scheme):
    # contract 28.13
    middle, out = tmp_path / "q.safetensors", tmp_path / "out.safetensors"
    rows = quantize_to(checkpoint, middle, scheme)
    stored, blocks = open_source(middle), scheme.dtype in BLOCKS
    assert [row.name for row in rows] == list(open_source(checkpoint).tensors)
    count = dequantize_file(open_source(middle), out, progress=ignore)
    read = open_source(out)
    assert read.metadata == {"format": "pt", "note": "é"}
    assert set(read.tensors) == set(tensors)
    assert count == 6 - blocks
    for name, x in tensors.items():
        if x.dtype in (np.float32, np.float64, np.float16, BF16) and x.size and (x.shape or not blocks):
            q = expected_of(x, scheme.for_dimensions(x.ndim))
            scale = q.scale if q.dtype.block_size else q.scale.astype(x.dtype)
            assert stored.raw(f"{name}_scale").tobytes() == scale.tobytes()
            assert q.dtype.packed or stored.load(name).tobytes() == q.codes.tobytes()
            same_bytes(read.load(name), reference.dequantize(q).astype(x.dtype))
        else:
            assert read.raw(name).tobytes() == x.tobytes()


def test_rows_of_the_table(tmp_path, checkpoint, tensors):
    scheme = Scheme("uint4", axis=-1, block_size=16)
    rows = {row.name: row for row in quantize_to(checkpoint, tmp_path / "q.safetensors", scheme)}
    row = rows["a.weight"]
    x = tensors["a.weight"]
    expected = reference.compare(x, reference.quantize(x, "uint4", axis=-1, block_size=16))
    after = 480 + 72 * 4 + 36 + 16  # codes, scales, zero points, the shape
    assert (row.shape, row.target, row.before, row.after) == ((24, 40), str(scheme), 3840, after)
    assert row.sqnr_db == pytest.approx(expected.sqnr_db)
    assert row.max_abs_error == pytest.approx(expected.max_abs_error)
    assert rows["a.bias"].target == str(scheme)
    assert rows["scalar"].shape == ()
    reasons = ["no elements", "I64", "BOOL", "F8_E4M3"]
    assert [rows[name].target for name in ("nothing", "ids", "mask", "f8")] == [f"copied: {why}" for why in reasons]


@pytest.mark.parametrize(
    ("choice", "quantized"),
    [
        (Selection(include=("*.weight",)), {"a.weight", "b.weight", "c.weight", "d.weight"}),
        (Selection(include=("a.*", "scalar")), {"a.weight", "a.bias", "scalar"}),
        (Selection(exclude=("*.weight", "scal?r")), {"a.bias"}),
        (Selection(include=("[ab].*",), exclude=("*.bias",)), {"a.weight", "b.weight"}),
    ],
)
def test_choice_of_tensors(tmp_path, checkpoint, tensors, choice, quantized):
    out = tmp_path / "q.safetensors"
    quantize_to(checkpoint, out, Scheme("uint4", axis=-1, block_size=16), choice)
    source = open_source(out)
    assert set(from_metadata(source.metadata)) == quantized
    for name in set(tensors) - quantized:
        assert source.raw(name).tobytes() == tensors[name].tobytes()


def test_halves_saturate_where_rounding_steps_beyond_them(tmp_path):
    halves = np.array([[-65504.0, 65504.0, 12345.0]], np.float16)
    save_file({"h": halves, "b": halves.astype(BF16)}, tmp_path / "h.safetensors")
    quantize_to(tmp_path / "h.safetensors", tmp_path / "q.safetensors", Scheme("int8"))
    dequantize_file(open_source(tmp_path / "q.safetensors"), tmp_path / "out.safetensors", progress=ignore)
    read = load_file(tmp_path / "out.safetensors")
    assert np.isfinite(read["h"]).all()
    assert read["h"].dtype == np.float16


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BF16], ids=str)
def test_rows_of_the_smallest_numbers_come_back_as_they_were(tmp_path, dtype):
    numbers = np.random.default_rng(8).integers(-17, 18, (32, 8)) * float(ml_dtypes.finfo(dtype).smallest_subnormal)
    numbers *= np.repeat([[1], [0], [1], [2.0**20]], 8, axis=0)
    save_file({"h": numbers.astype(dtype)}, tmp_path / "h.safetensors")
    quantize_to(tmp_path / "h.safetensors", tmp_path / "q.safetensors", Scheme("int8", axis=0, symmetric=True))
    dequantize_file(open_source(tmp_path / "q.safetensors"), tmp_path / "out.safetensors", progress=ignore)
    same_values = load_file(tmp_path / "out.safetensors")["h"].astype(np.float64) == numbers
    assert same_values[:24].all()
    assert load_file(tmp_path / "q.safetensors")["h_scale"].dtype == dtype


def test_progress_adds_up(tmp_path, checkpoint):
    quantizing, dequantizing, middle = [], [], tmp_path / "q.safetensors"
    scheme = Scheme("uint4", axis=0)
    quantize_file(open_source(checkpoint), middle, scheme, Selection(), progress=told(quantizing))
    dequantize_file(open_source(middle), tmp_path / "out.safetensors", progress=told(dequantizing))
    for path, done in ((checkpoint, quantizing), (middle, dequantizing)):
        nbytes = sum(spec.nbytes for spec in open_source(path).tensors.values())
        assert [sum(each) for each in zip(*done, strict=True)] == [nbytes, 11]


@pytest.mark.slow("compiles kernels for each dtype", quick=lambda dtype, order: dtype in ("<f4", ">f4"))
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2"])
def test_npy_there_and_back(tmp_path, rng, dtype, order):
    x = np.asarray(rng.standard_normal((20, 30)), dtype, order=order)
    np.save(tmp_path / "w.npy", x)
    quantize_to(tmp_path / "w.npy", tmp_path / "q.safetensors", SCHEMES[0])
    assert set(load_file(tmp_path / "q.safetensors")) == {"w", "w_scale"}
    dequantize_file(open_source(tmp_path / "q.safetensors"), tmp_path / "out.npy", progress=ignore)
    native = x.astype(x.dtype.newbyteorder("="))
    expected = reference.dequantize(expected_of(native, SCHEMES[0]))
    same_bytes(np.load(tmp_path / "out.npy"), expected.astype(native.dtype))


def test_one_tensor_in_memory_at_a_time(tmp_path, rng):
    def peak(count):
        path = tmp_path / f"{count}.safetensors"
        save_file({f"t{i}": rng.standard_normal((64, 4096)).astype(np.float32) for i in range(count)}, path)
        tracemalloc.start()
        quantize_to(path, tmp_path / f"q{count}.safetensors", Scheme("int8", axis=0))
        dequantize_file(open_source(tmp_path / f"q{count}.safetensors"), tmp_path / "o.safetensors", progress=ignore)
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    peak(1)
    assert peak(12) < peak(2) + (1 << 20)


# Errors


@pytest.mark.parametrize("name", ["a.weight", "c.weight", "d.weight"])
def test_nan_as_zero(tmp_path, checkpoint, tensors, name):
    expected = tensors[name].copy()
    expected[0] = 0
    tensors[name][0] = np.nan
    save_file(tensors, checkpoint)
    quantize_to(checkpoint, tmp_path / "q.safetensors", Scheme("int8"), nan="zero")
    codes = open_source(tmp_path / "q.safetensors").load(name)
    same_bytes(codes, expected_of(expected, Scheme("int8")).codes)


class Failing(SafetensorsWriter):
    """A writer whose disk is full after a few tensors."""

    writes = 0

    def write_raw(self, data, start):
        Failing.writes += 1
        if Failing.writes > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().write_raw(data, start)


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_full_disk(tmp_path, checkpoint, monkeypatch, existing, back):
    source, out = checkpoint, tmp_path / "out.safetensors"
    if back:
        quantize_to(checkpoint, tmp_path / "q.safetensors", Scheme("int8"))
        source = tmp_path / "q.safetensors"
    monkeypatch.setattr(Failing, "writes", 0)
    monkeypatch.setattr("fastq.tools.files.containers.SafetensorsWriter", Failing)
    if existing:
        out.write_bytes(b"old")
    before = names(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        dequantize_file(open_source(source), out, progress=ignore) if back else quantize_to(source, out, Scheme("int8"))
    assert names(tmp_path) == before
    assert not existing or out.read_bytes() == b"old"


@pytest.mark.parametrize("existing", [False, True])
def test_full_disk_of_an_archive(tmp_path, checkpoint, monkeypatch, existing):
    def full(writer, name, rows, append=NpzWriter.append):
        if name == "b":
            raise OSError(errno.ENOSPC, "No space left on device")
        return append(writer, name, rows)

    monkeypatch.setattr(NpzWriter, "append", full)
    np.savez(tmp_path / "in.npz", a=np.ones((4, 4), np.float32), b=np.ones((4, 4), np.float32))
    if existing:
        (tmp_path / "out.npz").write_bytes(b"old")
    before = names(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        quantize_to(tmp_path / "in.npz", tmp_path / "out.npz", Scheme("int8"))
    assert names(tmp_path) == before
    assert not existing or (tmp_path / "out.npz").read_bytes() == b"old"


@pytest.mark.parametrize("quantized", ["q.npz", "q.safetensors"])
@pytest.mark.parametrize("restored", ["r.npz", "r.safetensors"])
def test_arrays_of_any_dtype_come_back_from_an_archive(tmp_path, quantized, restored):
    copied = [np.arange(6).astype(code) for code in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "c8")]
    arrays = {array.dtype.name: array for array in copied} | {"w": np.ones((3, 4), np.float32), "s": np.float64(2)}
    np.savez(tmp_path / "in.npz", **arrays)
    quantize_to(tmp_path / "in.npz", tmp_path / quantized, Scheme("int8"))
    dequantize_file(open_source(tmp_path / quantized), tmp_path / restored, progress=ignore)
    load = np.load if restored.endswith(".npz") else load_file
    found = dict(load(tmp_path / restored))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(found[name], array)


def test_names_that_archives_cut_are_refused(tmp_path):
    save_file({"a": np.ones((2, 8), np.float32), "a\0b": np.ones((2, 8), np.float32)}, tmp_path / "in.safetensors")
    with pytest.raises(ValueError, match=r"\.npz files hold no name like 'a\\x00b"):
        quantize_to(tmp_path / "in.safetensors", tmp_path / "out.npz", Scheme("int8"))
    assert names(tmp_path) == ["in.safetensors"]


BITS = [((3000, 500), "<f4"), ((3, 5, 9), ">f2"), ((17,), "i4"), ((), "f8"), ((0, 9), "f4"), ((4, 0), "f4")]


@pytest.mark.slow(
    "a kernel for each dtype", quick=lambda dtype, bytes_are, **_: dtype.endswith("f4") or bytes_are == "uint8"
)
@pytest.mark.parametrize(("shape", "dtype"), BITS)
@pytest.mark.parametrize(("bytes_are", "order"), [("uint8", "big"), ("int8", "little")])
def test_bits_of_a_file_are_those_that_numpy_packs(tmp_path, shape, dtype, bytes_are, order):
    x = np.random.default_rng(5).integers(-3, 4, shape).astype(dtype)
    np.save(tmp_path / "x.npy", np.asfortranarray(x))
    told = []
    options = {"dtype": bytes_are, "bitorder": order, "nan": "raise"}
    source = open_source(tmp_path / "x.npy")
    row = binarize_file(source, tmp_path / "b.npy", progress=lambda *done: told.append(done), **options)
    expected = np.packbits(np.atleast_1d(x) > 0, axis=-1, bitorder=order)
    expected = (expected.astype(np.int16) - 128).astype(np.int8) if bytes_are == "int8" else expected
    same_bytes(np.load(tmp_path / "b.npy"), expected)
    assert (row.before, row.after) == (x.nbytes, expected.nbytes)
    assert tuple(map(sum, zip(*told, strict=True))) == (x.nbytes, 1)


def test_what_has_no_bits_leaves_no_file(tmp_path):
    np.save(tmp_path / "x.npy", np.array([[1, np.nan]], np.float32))
    options = {"dtype": "uint8", "bitorder": "big", "progress": ignore}
    with pytest.raises(ValueError, match=r"^tensor 'x' has 1 NaN; --nan zero treats them as 0$"):
        binarize_file(open_source(tmp_path / "x.npy"), tmp_path / "b.npy", nan="raise", **options)
    assert names(tmp_path) == ["x.npy"]
    binarize_file(open_source(tmp_path / "x.npy"), tmp_path / "b.npy", nan="zero", **options)
    assert np.load(tmp_path / "b.npy").tolist() == [[128]]


TERMINATED = """
import os, signal, sys
import fastq.tools.cli.command
from fastq.tools.files import containers

def killed(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)

containers.SafetensorsWriter.append = killed
sys.argv[1:] = ["quantize", "in.safetensors", "q.safetensors"]
fastq.tools.cli.command.main()
"""


@pytest.mark.slow("a process that is killed")
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_terminated_in_the_middle(tmp_path, checkpoint):
    # contract 28.5
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", TERMINATED]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert names(tmp_path) == ["in.safetensors"]


# Errors of dequantizing


def rewritten(path, change):
    """Write the .safetensors file at `path` again, with `change` applied to its tensors and its metadata."""
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(arrays, metadata)
    save_file(arrays, path, metadata)


@pytest.fixture
def quantized(tmp_path, rng):
    save_file({"w": rng.standard_normal((4, 6)).astype(np.float32), "n": np.arange(3)}, tmp_path / "w.safetensors")
    quantize_to(tmp_path / "w.safetensors", tmp_path / "q.safetensors", Scheme("int8", axis=0))
    (tmp_path / "w.safetensors").unlink()
    return tmp_path / "q.safetensors"


def with_entry(**changes):
    def change(arrays, metadata):
        content = json.loads(metadata[KEY])
        content["tensors"]["w"] |= changes
        metadata[KEY] = json.dumps(content)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, metadata: metadata.pop(KEY), "holds nothing that fastq quantized"),
        (lambda arrays, metadata: arrays.pop("w"), r"^'w' should be I8 of shape \(4, 6\), by its 'fastq' metadata$"),
        (lambda arrays, metadata: arrays.pop("w_scale"), r"^'w_scale' should be F32 of shape \(4, 1\)"),
        (lambda arrays, metadata: arrays.update(w=np.zeros((4, 6), np.uint8)), "^'w' should be I8"),
        (lambda arrays, _: arrays.update(w_scale=-np.ones((4, 1), np.float32)), "^tensor 'w' can't be deq.*scale"),
        (lambda arrays, _: arrays.update(w_scale=arrays["w_scale"] * np.float32(np.nan)), "its scale is not pos"),
        (with_entry(shape=[4, 5]), "^'w' should be I8 of shape"),
        (with_entry(axis=7), "is invalid"),
        (with_entry(axis="0"), "axis '0' and block_size 0 are not all integers"),
        (with_entry(dtype="int9"), "cannot be read: dtype must be one of"),
        (with_entry(dtype="int4"), "'w_packed' should be I32"),
        (with_entry(block_size=-2), r"'w_scale' should be|is invalid"),
    ],
)
def test_file_that_fastq_did_not_write_so(tmp_path, quantized, change, message):
    rewritten(quantized, change)
    with pytest.raises(ValueError, match=message):
        dequantize_file(open_source(quantized), tmp_path / "out.safetensors", progress=ignore)
    assert names(tmp_path) == ["q.safetensors"]


def test_zero_point_out_of_range(tmp_path):
    save_file({"w": np.arange(6, dtype=np.float32)}, tmp_path / "w.safetensors")
    quantize_to(tmp_path / "w.safetensors", tmp_path / "q.safetensors", Scheme("int4"))
    rewritten(tmp_path / "q.safetensors", lambda arrays, metadata: arrays.update(w_zero_point=np.array([8], np.int8)))
    message = "^tensor 'w' can't be dequantized: weight_zero_point has numbers that are not codes of int4$"
    with pytest.raises(ValueError, match=message):
        dequantize_file(open_source(tmp_path / "q.safetensors"), tmp_path / "out.safetensors", progress=ignore)
    assert names(tmp_path) == ["q.safetensors", "w.safetensors"]


@pytest.fixture
def fours(tmp_path, rng):
    """A file of codes in blocks with scales in units of one for the tensor."""
    save_file({"w": rng.standard_normal((4, 32)).astype(np.float32)}, tmp_path / "w.safetensors")
    quantize_to(tmp_path / "w.safetensors", tmp_path / "q.safetensors", Scheme("nvfp4", -1, 16, True))
    return tmp_path / "q.safetensors"


@pytest.mark.parametrize("byte", [0x7F, 0x00, 0x80, 0xFF])
def test_scale_of_a_block_that_is_none(tmp_path, fours, byte):
    content = bytearray(fours.read_bytes())
    start = open_source(fours)._starts["w_scale"]
    content[start + 3] = byte
    fours.write_bytes(content)
    with pytest.raises(ValueError, match=r"^tensor 'w' can't be dequantized: its scale is not positive and finite$"):
        dequantize_file(open_source(fours), tmp_path / "out.safetensors", progress=ignore)
    assert names(tmp_path) == ["q.safetensors", "w.safetensors"]


@pytest.mark.parametrize(
    "change",
    [
        *({"tensor_scale": value} for value in ({}, "1", 1e300, float("nan"), 0.0)),
        {"shape": [4.0, 32.0]},
        {"block_size": 16.0},
        {"axis": [1]},
        {"axis": False},
        {"convention": "faiss"},
        {"symmetric": None},
        {"dtype": "nf4"},
    ],
    ids=str,
)
def test_metadata_that_makes_no_sense(tmp_path, fours, change):
    rewrite_header(fours, lambda header: with_entry(**change)({}, header["__metadata__"]))
    with pytest.raises(ValueError, match=r"metadata|can.t be dequantized"):
        dequantize_file(open_source(fours), tmp_path / "out.safetensors", progress=ignore)
    assert names(tmp_path) == ["q.safetensors", "w.safetensors"]
    with pytest.raises(ValueError, match=r"metadata|can.t be dequantized|is missing"):
        tensors_of(fours)["w"].values()


def test_npy_holds_one_array(tmp_path, quantized):
    with pytest.raises(ValueError, match=r"^a \.npy file holds one array, not 2; write \.safetensors$"):
        dequantize_file(open_source(quantized), tmp_path / "out.npy", progress=ignore)
    assert names(tmp_path) == ["q.safetensors"]


def test_npy_holds_no_bfloat16(tmp_path):
    save_file({"w": np.ones((2, 2), BF16)}, tmp_path / "w.safetensors")
    quantize_to(tmp_path / "w.safetensors", tmp_path / "q.safetensors", Scheme("int8"))
    with pytest.raises(ValueError, match=r"^a \.npy file can't hold bfloat16; write \.safetensors$"):
        dequantize_file(open_source(tmp_path / "q.safetensors"), tmp_path / "out.npy", progress=ignore)
    assert names(tmp_path) == ["q.safetensors", "w.safetensors"]


# Schemes


@pytest.mark.parametrize(
    ("scheme", "ndim", "fitted"),
    [
        (Scheme("int8", axis=0), 2, Scheme("int8", axis=0)),
        (Scheme("int8", axis=0), 1, Scheme("int8")),
        (Scheme("int8", axis=3, symmetric=True), 0, Scheme("int8", symmetric=True)),
        (Scheme("int8", axis=-1, block_size=4), 1, Scheme("int8", axis=-1, block_size=4)),
        (Scheme("int8", axis=-1, block_size=4), 0, Scheme("int8")),
        (Scheme("int8"), 3, Scheme("int8")),
    ],
)
def test_scheme_fitted_to_a_tensor(scheme, ndim, fitted):
    assert scheme.for_dimensions(ndim) == fitted


def test_scheme_that_does_not_fit():
    with pytest.raises(ValueError, match="axis 1 is out of bounds for 1 dimensions"):
        Scheme("int8", axis=1, block_size=4).for_dimensions(1)


def test_sizes():
    assert TensorSpec("x", "F4", (3, 4), 6).size == 12
    assert spec_of("x", "BF16", (3, 4)).nbytes == 24
