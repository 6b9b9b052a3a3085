"""`fastq gguf` compared with llama_model_quantize of llama.cpp: equal files, and the same text from them."""

import gguf_models
import gguf_oracle
import pytest
from commands import run

from fastq.tools.gguf_files.mixes import FLOAT_MIXES, MIXES
from fastq.tools.gguf_files.tensor_types import TENSOR_TYPES

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python, which is built from source, is not installed")
PROMPT, LENGTH = "1 2 3", 24


@pytest.fixture(scope="module", autouse=True)
def quiet():
    callback = gguf_oracle.quiet()
    yield
    del callback


def theirs(source, out, mix, **options):
    numbers = gguf_oracle.FILE_TYPES | gguf_oracle.FLOATS
    assert gguf_oracle.quantize(source, out, numbers[mix], **options)


def same_files(a, b):
    assert a.read_bytes() == b.read_bytes()


@pytest.mark.parametrize("mix", [name for name, row in MIXES.items() if not row.needs_imatrix])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_model_that_runs(here, mix, dtype):
    r = gguf_models.RUNS
    model = gguf_models.Model(r.architecture, r.layers, r.heads, r.tensors, r.numbers, dtype, r.forward)
    source = gguf_models.write(here / "in.gguf", model)
    run("gguf", source, here / "ours.gguf", "--type", mix)
    theirs(source, here / "theirs.gguf", mix)
    same_files(here / "ours.gguf", here / "theirs.gguf")
    if dtype == "float16":
        assert text(here / "ours.gguf") == text(here / "theirs.gguf")


def text(path):
    """What a model makes of a prompt, always taking the likeliest token."""
    model = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, verbose=False, seed=0)
    tokens = model.tokenize(PROMPT.encode())
    generated = []
    for token in model.generate(tokens, temp=0.0, top_k=1):
        generated.append(token)
        if len(generated) == LENGTH:
            return generated
    raise AssertionError(f"it ended after {generated}")


@pytest.mark.parametrize(("name", "mix", "weighted"), gguf_oracle.cases())
def test_every_rule(here, name, mix, weighted):
    model = gguf_models.MODELS[name]
    source, options, weights = gguf_models.write(here / "in.gguf", model), [], None
    if weighted:
        options = ["--imatrix", str(gguf_models.write_imatrix(here / "imatrix.gguf", model))]
        weights = gguf_models.means(model)
    run("gguf", source, here / "ours.gguf", "--type", mix, *options)
    theirs(source, here / "theirs.gguf", mix, weights=weights)
    assert gguf_oracle.types_of(here / "ours.gguf") == gguf_oracle.types_of(here / "theirs.gguf")
    assert list(gguf_oracle.content(here / "ours.gguf")) == list(gguf_oracle.content(here / "theirs.gguf"))
    if not weighted:
        same_files(here / "ours.gguf", here / "theirs.gguf")


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_K", "Q6_K"])
def test_options(here, name):
    number = TENSOR_TYPES[name].number
    for model in ("llama", "grouped"):
        source = gguf_models.write(here / f"{model}.gguf", gguf_models.MODELS[model])
        for options, wanted in (
            (["--pure"], {"pure": True}),
            (["--output-tensor-type", name], {"output_tensor_type": number}),
            (["--token-embedding-type", name], {"token_embedding_type": number}),
        ):
            run("gguf", source, here / "ours.gguf", "--type", "Q5_0", "--force", *options)
            theirs(source, here / "theirs.gguf", "Q5_0", **wanted)
            same_files(here / "ours.gguf", here / "theirs.gguf")


@pytest.mark.parametrize("kind", list(FLOAT_MIXES))
@pytest.mark.parametrize("mix", ["Q4_0", "Q8_0", "Q4_K_M", "IQ4_XS"])
def test_back(here, mix, kind):
    source = gguf_models.write(here / "in.gguf", gguf_models.MODELS["grouped"])
    theirs(source, here / "q.gguf", mix)
    run("gguf", here / "q.gguf", here / "ours.gguf", "--dequantize", "--type", kind)
    theirs(here / "q.gguf", here / "theirs.gguf", kind, allow_requantize=True)
    same_files(here / "ours.gguf", here / "theirs.gguf")
