"""Parts, blocks again, floats and odd files, compared with llama.cpp: the same bytes, and what it reads of them."""

import ctypes
from pathlib import Path

import ggml
import gguf_lies
import gguf_models
import gguf_oracle
import pytest
from commands import run
from llama_models import in_parts

from fastq.tools.gguf_files.mixes import FLOAT_MIXES

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python, which is built from source, is not installed")


@pytest.fixture(scope="module", autouse=True)
def quiet():
    callback = gguf_oracle.quiet()
    yield
    del callback


@pytest.mark.parametrize("mix", ["Q4_K_M", "Q8_0", "MXFP4_MOE", *FLOAT_MIXES])
def test_models_in_parts(here, mix):
    model = gguf_models.MODELS["many"]
    source = gguf_models.write(here / "in.gguf", model)
    parts = in_parts(source, 9)
    run("gguf", parts[-1], "ours.gguf", mix)
    numbers = gguf_oracle.FILE_TYPES | gguf_oracle.FLOATS
    assert gguf_oracle.quantize(parts[0], here / "theirs.gguf", numbers[mix])
    assert Path("ours.gguf").read_bytes() == Path("theirs.gguf").read_bytes()


@pytest.mark.parametrize("source_type", ["Q8_0", "Q4_0", "Q4_K_M"])
@pytest.mark.parametrize("mix", ["Q8_0", "Q4_K_M", "IQ4_XS", *FLOAT_MIXES])
def test_blocks_are_quantized_again(here, source_type, mix):
    plain = gguf_models.write(here / "in.gguf", gguf_models.MODELS["grouped"])
    run("gguf", plain, "q.gguf", source_type)
    run("gguf", "q.gguf", "ours.gguf", mix, "--allow-requantize", exit_code=4 if mix == source_type else 0)
    numbers = gguf_oracle.FILE_TYPES | gguf_oracle.FLOATS
    assert gguf_oracle.quantize(here / "q.gguf", here / "theirs.gguf", numbers[mix], allow_requantize=True)
    assert Path("ours.gguf").read_bytes() == Path("theirs.gguf").read_bytes()


@pytest.mark.parametrize("mix", list(FLOAT_MIXES))
@pytest.mark.parametrize("name", ["llama", "odd", "many"])
def test_floats(here, name, mix):
    source = gguf_models.write(here / "in.gguf", gguf_models.MODELS[name])
    run("gguf", source, "ours.gguf", mix, exit_code=4 if mix == "F16" else 0)  # the models are in F16
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
        for options, exit_code in (
            (["Q8_0"], 4 if name in gguf_lies.NOT_QUANTIZED else 0),
            (["--dequantize"], 4),
        ):
            run("gguf", "in.gguf", "out.gguf", "--force", *options, exit_code=exit_code)
            assert is_read(here / "out.gguf") == (name not in NOT_READ), name
