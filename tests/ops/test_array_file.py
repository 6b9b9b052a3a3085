"""Quantized arrays and parameters in files: what is read is what was written, and nothing else is believed."""

import json
import os
import pickle
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from catalogue import same_bytes
from quantized_arrays import ARRAYS, INTEGERS, array
from safetensors.numpy import load_file, save_file

import fastq
from fastq.formats.qtypes import as_qtype
from fastq.ops.array_file import _as_elements, _as_tensor
from fastq.system.dtypes import ML_FLOATS
from fastq.tools.files.records import Record, to_metadata

WHAT = ("dtype", "axis", "block_size", "symmetric", "convention", "computed")


def same(a, b):
    assert all(getattr(a, name) == getattr(b, name) for name in WHAT)
    assert (a.tensor_scale is None) == (b.tensor_scale is None)
    for name in ("scale", "zero_point", "tensor_scale"):
        if getattr(a, name) is not None:
            same_bytes(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize("name", ARRAYS)
def test_what_is_read_is_what_was_written(name, tmp_path):
    # contract 28.2
    q, path = ARRAYS[name], tmp_path / "q.safetensors"
    q.save(path)
    back = fastq.load(path)
    same(back.qparams, q.qparams)
    same_bytes(back.codes, np.ascontiguousarray(q.codes).reshape(q.codes.shape))
    assert back.shape == q.shape
    back.save(tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    q.qparams.save(path)
    same(fastq.QParams.load(path), q.qparams)


def test_any_reader_of_safetensors_finds_the_tensors(tmp_path):
    # contract 28.1
    q = ARRAYS["packed"]
    q.save(tmp_path / "q")
    found = load_file(tmp_path / "q")
    assert found.keys() == {"codes", "scale", "zero_point"}
    for name, tensor in found.items():
        same_bytes(tensor, getattr(q, name))


@pytest.mark.parametrize("name", ML_FLOATS)
def test_floats_are_stored_by_their_names(name, tmp_path):
    dtype = np.dtype(getattr(ml_dtypes, ML_FLOATS[name]))
    array = np.arange(1, 4, dtype=np.uint16 if name == "BF16" else np.uint8).view(dtype)
    stored, elements = _as_tensor(array)
    assert stored == name
    same_bytes(_as_elements(stored, elements), array)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"])
def test_codes_of_float8_are_stored_by_their_names(name, tmp_path):
    dtype = np.dtype(getattr(ml_dtypes, name))
    array(INTEGERS.view(dtype), np.float32(1), np.zeros((), dtype), name).save(tmp_path / "q")
    header, _ = parts((tmp_path / "q").read_bytes())
    assert ML_FLOATS[header["codes"]["dtype"]] == name
    assert fastq.load(tmp_path / "q").codes.dtype == dtype


def test_a_file_of_many_tensors_is_no_array(tmp_path):
    arrays = {f"w{end}": array for end, array in [("", INTEGERS), ("_scale", np.ones(1, np.float32))]}
    records = to_metadata({"w": Record("int8", None, 0, True, "onnx", "F32", INTEGERS.shape)})
    save_file(arrays, tmp_path / "q", {"fastq": records})
    with pytest.raises(ValueError, match=r"^path is not a file of a QParams: .*") as caught:
        fastq.QParams.load(tmp_path / "q")
    assert str(caught.value).endswith(": fastq quantize wrote it, and fastq.load reads it")
    same_bytes(fastq.load(tmp_path / "q")["w"].codes, INTEGERS)


def test_parameters_are_no_array(tmp_path):
    q = ARRAYS["int8"]
    q.save(tmp_path / "q")
    q.qparams.save(tmp_path / "p")
    with pytest.raises(ValueError, match=r"path is not a file of a QParams: .* does not say fastq\.QParams"):
        fastq.QParams.load(tmp_path / "q")
    with pytest.raises(
        ValueError, match=r"path is not a file of a QuantizedArray: .* does not say fastq\.QuantizedArray"
    ):
        fastq.load(tmp_path / "p")


def test_what_does_not_fit_is_not_written(tmp_path):
    path = tmp_path / "q"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="codes have shape"):
        array(INTEGERS, np.float32(1), np.int8(0), "int8", (3, 3)).save(path)
    with pytest.raises(ValueError, match="codes must be from -4 to 3 for int8"):
        array(INTEGERS, np.float32(1), np.int8(0), as_qtype("int8").with_bits(3)).save(path)
    with pytest.raises(TypeError, match="path must be a string or a path"):
        ARRAYS["int8"].save(3)
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["q"]


def test_parameters_that_no_reader_takes_are_not_written(tmp_path):
    with pytest.raises(ValueError, match="scale must be positive"):
        fastq.QParams(-1.0, 0, "int8").save(tmp_path / "p")
    assert not list(tmp_path.iterdir())


def test_a_file_that_becomes_shorter_meanwhile_is_refused(tmp_path, monkeypatch):
    path, whole = tmp_path / "q", SimpleNamespace(st_size=0)
    ARRAYS["int8"].save(path)
    whole.st_size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setattr("fastq.ops.array_file.os.fstat", lambda _: whole)
    with pytest.raises(ValueError, match="it became shorter"):
        fastq.load(path)


def parts(content):
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def file_of(header, numbers):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + numbers


def without(fields, name):
    return {key: value for key, value in fields.items() if key != name}


def hostile(content):
    """Files that no array wrote, of one that did, and what their error says."""
    header, numbers = parts(content)
    meaning = json.loads(header["__metadata__"]["fastq"])

    def with_meaning(**fields):
        return file_of(header | {"__metadata__": {"fastq": json.dumps(meaning | fields)}}, numbers)

    def with_entry(name, **fields):
        return file_of(header | {name: header[name] | fields}, numbers)

    yield b"", "it has no safetensors header"
    yield (2**62).to_bytes(8, "little") + content[8:], "it has no safetensors header"
    yield (5000).to_bytes(8, "little") + b"[" * 5000, ""
    yield file_of([], b""), "its header is not a JSON object"
    yield file_of({}, b""), "it was not saved by fastq"
    yield file_of({"__metadata__": {"format": "pt"}}, b""), "it was not saved by fastq"
    yield pickle.dumps(print), "it has no safetensors header"
    yield from ((content[:k], "") for k in (1, 8, 60))
    yield content[:-1], f"it was cut off: tensor codes ends at byte {len(content)}, the file at {len(content) - 1}"
    yield content + b"\0", "1 bytes are left over"
    yield file_of({k: v for k, v in header.items() if k != "scale"}, numbers), "it has tensors"
    yield file_of(header | {"more": header["codes"]}, numbers), "it has tensors"
    yield with_entry("codes", shape=[2**50]), "the position of tensor codes does not follow"
    yield with_entry("codes", shape=[-4, -4]), ""
    yield with_entry("codes", shape=[1] * 70), ""
    yield with_entry("codes", shape=[2.0, 8]), ""
    yield with_entry("codes", shape=[4, 4]), "codes have shape"
    yield with_entry("codes", dtype="U8"), "codes have shape"
    yield with_entry("codes", dtype="C64"), "a tensor has dtype 'C64', which is not one of"
    yield with_entry("scale", data_offsets=[1, 5]), "the position of tensor scale does not follow"
    yield with_meaning(dtype="int4"), ""
    yield with_meaning(dtype="complex64"), "dtype must be one of"
    yield with_meaning(bits=3), "codes must be from -4 to 3"
    yield with_meaning(bits=99), "bits must be from 2 to 8"
    yield with_meaning(axis=7), "axis 7 is out of bounds"
    yield with_meaning(axis=[0, [1]]), "axis"
    yield with_meaning(block_size=-1), "block_size"
    yield with_meaning(symmetric=1), "symmetric"
    yield with_meaning(convention="none"), "convention must be one of"
    yield with_meaning(convention={"name": "own", "__class__": "os.system"}), ""
    yield with_meaning(computed="int8"), "computed must be float32 or float64"
    yield with_meaning(shape=[2, 9]), "codes have shape"
    yield with_meaning(version=2), "version 1"
    yield with_meaning(version=True), "version 1"
    yield with_meaning(extra=1), "unknown keys: extra"
    for name in meaning:
        yield file_of(header | {"__metadata__": {"fastq": json.dumps(without(meaning, name))}}, numbers), name
    twice = json.dumps(header).replace('{"__metadata__"', '{"__metadata__": {}, "__metadata__"', 1).encode()
    yield len(twice).to_bytes(8, "little") + twice + numbers, "'__metadata__' occurs twice"
    doubled = json.dumps(meaning)[:-1] + ', "symmetric": true}'
    yield file_of(header | {"__metadata__": {"fastq": doubled}}, numbers), "'symmetric' occurs twice"
    yield file_of(header, b"\0" * len(numbers)), "scale must be positive and finite"


def test_hostile_files_are_refused_in_one_line(tmp_path):
    # contract 28.3
    path = tmp_path / "q"
    ARRAYS["int8"].save(path)
    for k, (bad, message) in enumerate(hostile(path.read_bytes())):
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=r"path is not a file of a QuantizedArray: .*") as caught:
            fastq.load(path)
        assert message in str(caught.value), (k, str(caught.value))
        assert "\n" not in str(caught.value)


def test_hostile_parameters_are_refused(tmp_path):
    path = tmp_path / "p"
    ARRAYS["int8"].qparams.save(path)
    header, numbers = parts(path.read_bytes())
    path.write_bytes(file_of(header, b"\0" * len(numbers)))
    with pytest.raises(ValueError, match=r"path is not a file of a QParams: .* scale must be positive and finite"):
        fastq.QParams.load(path)


@pytest.mark.parametrize("name", ["int2", "int4", "uint2", "uint4"])
def test_zero_points_of_small_integers_keep_their_numbers(name, tmp_path):
    # contract 28.2
    zero_point = np.array([-1 if name[0] == "i" else 2, 0, 1], getattr(ml_dtypes, name))
    fastq.QParams(np.ones(3, np.float32), zero_point, name, axis=0).save(tmp_path / "p")
    read = fastq.QParams.load(tmp_path / "p").zero_point
    assert (read.dtype.name, read.tolist()) == (f"{name.rstrip('24')}8", zero_point.astype(int).tolist())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_folders_and_pipes_are_neither_read_nor_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    before = os.stat(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        for call in (fastq.QParams.load, fastq.Calibrator.load, ARRAYS["int8"].save, *[fastq.load] * path.is_fifo()):
            with pytest.raises(
                ValueError, match="path must be the name of a file, not of a folder, a pipe or a device"
            ):
                call(path)
    assert os.path.samestat(before, os.stat(tmp_path / "pipe"))


@pytest.mark.parametrize("suffix", [".npy", ".NPZ", ".gguf", ".txt", ".CSV", ".json", ".pkl", ".Pt", ".nc", ".h5"])
def test_suffixes_of_other_formats_are_refused(tmp_path, suffix):
    q, calibrator = ARRAYS["int8"], fastq.Calibrator("int8")
    for each, usual in ((q, "safetensors"), (q.qparams, "safetensors"), (calibrator, "calibrator")):
        told = rf"must not end with {suffix.lower()}: the file .* has another format, that of \.{usual}, not"
        with pytest.raises(ValueError, match=told):
            each.save(tmp_path / f"a{suffix}")
    assert not any(tmp_path.iterdir())


def test_a_file_that_is_not_there_is_an_error_of_the_system(tmp_path):
    with pytest.raises(FileNotFoundError):
        fastq.load(tmp_path / "none")
