"""Scales, parts and odd files, beside llama.cpp: what it computes with and what it reads of what fastq wrote."""

import ctypes
from pathlib import Path

import ggml
import gguf
import gguf_lies
import gguf_models
import gguf_oracle
import numpy as np
import pytest
from click.testing import CliRunner
from gguf_files import encoded

from fastq.cli.app import cli
from fastq.io.gguf.mixes import FLOAT_MIXES

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python, which is built from source, is not installed")
TOKENS = [1, 300, 270, 310, 290]


@pytest.fixture(scope="module", autouse=True)
def quiet():
    callback = gguf_oracle.quiet()
    yield
    del callback


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments):
    result = CliRunner().invoke(cli, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result


def logits(path):
    """What a model makes of some tokens."""
    model = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, verbose=False, logits_all=True)
    model.eval(TOKENS)
    return np.array(model.scores[: len(TOKENS)])


def cosine(a, b):
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_gate", "ffn_down")


def finish(writer, plain):
    """Write the fields of another file and what the writer has."""
    for field in plain.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            sub = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], sub)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def scaled_model(path, kind):
    """A model whose matrices are in a type and have scales, some below 1 and some above, by llama.cpp's names."""
    r, scales = gguf_models.RUNS, np.random.default_rng(0)
    plain = gguf.GGUFReader(gguf_models.write(path.with_name("plain.gguf"), r))
    writer = gguf.GGUFWriter(path, "llama")
    for each in plain.tensors:
        module, x = each.name.removesuffix(".weight"), np.float32(each.data)
        if module.rpartition(".")[2] not in MATRICES:
            writer.add_tensor(each.name, x)
            continue
        scale = np.float32(scales.choice([0.3, 0.7, 1.5, 3]))
        stored = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(each.name, encoded(x / scale / np.abs(x).max() * 4, kind), raw_dtype=stored)
        writer.add_tensor(f"{module}.scale", np.array([scale * np.abs(x).max() / 4], np.float32))
        writer.add_tensor(f"{module}.input_scale", np.ones(1, np.float32))
    finish(writer, plain)
    return path


@pytest.mark.parametrize("kind", ["NVFP4", "Q8_0", "Q4_K"])
def test_scales_are_multiplied_as_llama_cpp_does(here, kind):
    model = scaled_model(here / "scaled.gguf", kind)
    expected = logits(model)
    for options in (["--dequantize"], ["--dequantize", "BF16"], ["Q8_0", "--allow-requantize"]):
        if kind != "Q8_0" or "Q8_0" not in options:
            run("gguf", model, "out.gguf", "--force", *options)
            assert cosine(expected, logits(here / "out.gguf")) > 0.999, options
    assert cosine(expected, logits(here / "plain.gguf")) > 0.9  # the model that it was made of: scales count


@pytest.mark.parametrize("mix", ["Q4_K_M", "Q8_0", "MXFP4_MOE", *FLOAT_MIXES])
def test_models_in_parts(here, mix):
    model = gguf_models.MODELS["many"]
    source = gguf_models.write(here / "in.gguf", model)
    parts = in_parts(source, 9)
    run("gguf", parts[-1], "ours.gguf", mix)
    numbers = gguf_oracle.FILE_TYPES | gguf_oracle.FLOATS
    assert gguf_oracle.quantize(parts[0], here / "theirs.gguf", numbers[mix])
    assert Path("ours.gguf").read_bytes() == Path("theirs.gguf").read_bytes()


def in_parts(source, tensors):
    """Parts of a file, of a number of tensors each, as the gguf package writes them."""
    plain = gguf.GGUFReader(source)
    architecture = plain.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(source.with_name("part.gguf"), architecture, split_max_tensors=tensors)
    for each in plain.tensors:
        writer.add_tensor(each.name, np.array(each.data))
    finish(writer, plain)
    return sorted(source.parent.glob("part-*-of-*.gguf"))


@pytest.mark.parametrize("source_type", ["Q8_0", "Q4_0", "Q4_K_M"])
@pytest.mark.parametrize("mix", ["Q8_0", "Q4_K_M", "IQ4_XS", *FLOAT_MIXES])
def test_blocks_are_quantized_again(here, source_type, mix):
    plain = gguf_models.write(here / "in.gguf", gguf_models.MODELS["grouped"])
    run("gguf", plain, "q.gguf", source_type)
    run("gguf", "q.gguf", "ours.gguf", mix, "--allow-requantize")
    numbers = gguf_oracle.FILE_TYPES | gguf_oracle.FLOATS
    assert gguf_oracle.quantize(here / "q.gguf", here / "theirs.gguf", numbers[mix], allow_requantize=True)
    assert Path("ours.gguf").read_bytes() == Path("theirs.gguf").read_bytes()


@pytest.mark.parametrize("mix", list(FLOAT_MIXES))
@pytest.mark.parametrize("name", ["llama", "odd", "many"])
def test_floats(here, name, mix):
    source = gguf_models.write(here / "in.gguf", gguf_models.MODELS[name])
    run("gguf", source, "ours.gguf", mix)
    assert gguf_oracle.quantize(source, here / "theirs.gguf", gguf_oracle.FLOATS[mix])
    assert Path("ours.gguf").read_bytes() == Path("theirs.gguf").read_bytes()


class _Params(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


def is_read(path):
    """Whether ggml reads the header of a file."""
    library = ggml.library()
    library.gguf_init_from_file.argtypes = [ctypes.c_char_p, _Params]
    library.gguf_init_from_file.restype = ctypes.c_void_p
    return bool(library.gguf_init_from_file(str(path).encode(), _Params(True, None)))


NOT_READ = ("a name of 64 bytes", "a name of 1000 bytes", "array of arrays")  # by ggml, whoever wrote them


def test_what_is_written_of_odd_files_is_read_by_ggml(here):
    for name, content in gguf_lies.truths():
        Path("in.gguf").write_bytes(content)
        for options in (["Q8_0"], ["--dequantize"]):
            run("gguf", "in.gguf", "out.gguf", "--force", *options)
            assert is_read(here / "out.gguf") == (name not in NOT_READ), name
