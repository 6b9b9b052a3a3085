"""llama.cpp, by the wheel xllamacpp, runs what fastq wrote, and computes what the source of it means."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import gguf
import gguf_models
import numpy as np
import pytest
from commands import run
from llama_models import in_parts, scaled_model

from fastq.formats.gguf import LEAST_ERROR
from fastq.tools.gguf_files.mixes import FLOAT_MIXES, MIXES

if importlib.util.find_spec("xllamacpp") is None:
    pytest.skip("xllamacpp is not installed", allow_module_level=True)
# In a process of its own: llama.cpp may abort where it does not like a file, and once xllamacpp is imported cftime,
# which xarray imports, can't be ("Shared Cython type ... has the wrong size")
RUN = """
import json, sys, xllamacpp
for path in sys.argv[1:]:
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.n_gpu_layers, params.warmup = path, 64, 1, 0, False
    params.cpuparams.n_threads = 1
    request = {"prompt": [1, 300, 270, 310], "n_predict": 1, "temperature": 0, "n_probs": 320, "top_k": 320}
    request["logit_bias"] = [[300, 1000]]  # a word: neither an end nor a byte that is part of a character has any
    (choice,) = xllamacpp.Server(params).handle_completions(request)["choices"]
    found = {each["id"]: each["logprob"] for each in choice["logprobs"]["content"][0]["top_logprobs"]}
    print("logprobs", json.dumps([found[k] for k in sorted(found)]))
"""


def logprobs(*paths):
    """What models think of each next token, less the mean."""
    command = [sys.executable, "-c", RUN, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line[8:]) for line in done.stdout.splitlines() if line.startswith("logprobs")]
    assert [len(each) for each in found] == [320] * len(paths)
    return [np.array(each) - np.mean(each) for each in found]


def cosine(a, b):
    return float((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("kind", ["NVFP4", "Q8_0", "Q4_K"])
def test_scales_are_multiplied_as_llama_cpp_does(here, kind):
    model = scaled_model(here / "scaled.gguf", kind)
    run("gguf", model, "floats.gguf", "--dequantize")
    run("gguf", model, "again.gguf", "Q6_K", "--allow-requantize", "--pure")
    ignored = Path("ignored.gguf")
    ignored.write_bytes(model.read_bytes())
    for each in gguf.GGUFReader(ignored, "r+").tensors:
        if each.name.endswith(".scale"):
            each.data[:] = 1
    expected, floats, again, wrong = logprobs(model, "floats.gguf", "again.gguf", ignored)
    assert cosine(expected, floats) > 0.999
    assert cosine(expected, again) > 0.99
    assert cosine(expected, wrong) < 0.9


def test_a_model_in_parts(here):
    source = gguf_models.write(here / "in.gguf", gguf_models.RUNS)
    parts = in_parts(source, 9)
    run("gguf", parts[2], "joined.gguf", "F16")
    before, after = logprobs(parts[0], "joined.gguf")
    assert np.array_equal(before, after)


def test_every_type_runs(here):
    source, paths = gguf_models.write(here / "in.gguf", gguf_models.RUNS), []
    for mix in [*FLOAT_MIXES, *(name for name, row in MIXES.items() if not row.needs_imatrix)]:
        paths.append(f"{mix}.gguf")
        run("gguf", source, paths[-1], mix, exit_code=4 if mix == "F16" else 0)  # the model is in F16
    for kind in ("MXFP4", "NVFP4"):
        paths.append(f"{kind}.gguf")
        run("gguf", source, paths[-1], "Q8_0", "--tensor-type", f".={kind}")
    for kind in LEAST_ERROR:
        paths.append(f"{kind} mse.gguf")
        run("gguf", source, paths[-1], "Q8_0", "--tensor-type", f".={kind}", "--range", "mse")
    plain, *found = logprobs(source, *paths)
    close = {path.removesuffix(".gguf"): cosine(plain, each) for path, each in zip(paths, found, strict=True)}
    assert min(close[name] for name in ("F32", "F16", "BF16", "Q8_0", "MXFP4_MOE", "Q6_K")) > 0.99
    coarse = ("Q1", "Q2", "TQ")  # one or two bits
    assert min(each for name, each in close.items() if not any(bits in name for bits in coarse)) > 0.8
    assert min(close.values()) > 0.3
