"""Sentence embeddings of a model before and after `fastq convert`: the table of docs/howto/models.md.

The texts are paragraphs of Python's own reference, which every Python has (`pydoc_data`); importance is measured on
texts of these pages. Recall is the share of the ten nearest paragraphs that are still among the ten nearest.
"""

from __future__ import annotations

import importlib
import math
import re
import tempfile
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
import fastq.io

from . import gguf_types
from .markdown import Cell, Row, listed, number, with_part
from .signals import ROOT, rounded

Array = NDArray[Any]

STORED = ROOT / "bench" / "results" / "signal" / "embeddings.json"
PAGE = ROOT / "docs" / "howto" / "models.md"
BEGIN, END = "<!-- begin: python -m bench embeddings -->", "<!-- end: embeddings -->"
SHORTEST, LONGEST = 40, 600  # characters of a text
TEXTS, QUERIES, CALIBRATION, NEAREST = 2000, 300, 200, 10
SCHEMES = (("W4A16", 128), ("W4A16", 32), ("NVFP4A16", 16), ("MXFP4A16", 32))
METHODS = {"minmax": (), "mse": ("--range", "mse"), "mse, importance": ("--imatrix",)}


def texts() -> list[str]:
    """Paragraphs of Python's reference, in an order of their own."""
    topics = importlib.import_module("pydoc_data.topics").topics
    return _some(_paragraphs(text for _, text in sorted(topics.items())), TEXTS)


def calibration() -> list[str]:
    """Paragraphs of the pages of fastq."""
    pages = [path for path in sorted((ROOT / "docs").rglob("*.md")) if path not in (PAGE, ROOT / "docs" / "choose.md")]
    return _some(_paragraphs(path.read_text(encoding="utf-8") for path in pages), CALIBRATION)


def _paragraphs(pages: Any) -> list[str]:
    found = (" ".join(part.split()) for page in pages for part in re.split(r"\n\s*\n", page))
    return list(dict.fromkeys(text for text in found if SHORTEST <= len(text) <= LONGEST and text[0].isupper()))


def _some(found: list[str], most: int) -> list[str]:
    return [found[k] for k in np.random.default_rng(0).permutation(len(found))[:most]]


def measured(say: Callable[[str], None]) -> Row:
    """A row for each scheme and method."""
    from sentence_transformers import SentenceTransformer

    source, rows = gguf_types.model_folder(), []
    model, sentences = SentenceTransformer(str(source), device="cpu"), texts()
    linear = {name: each for name, each in model[0].auto_model.named_modules() if hasattr(each, "in_features")}
    weights = {name: np.array(each.weight.detach().numpy()) for name, each in linear.items()}
    before = model.encode(sentences, batch_size=32)
    with tempfile.TemporaryDirectory() as temporary:
        imatrix = Path(temporary) / "imatrix.npz"
        np.savez(imatrix, **importance_of(model, linear))
        for scheme, group in SCHEMES:
            for method, options in METHODS.items():
                given = [*options, str(imatrix)] if options == ("--imatrix",) else list(options)
                given += ["--group-size", str(group)] if scheme == "W4A16" else []
                quantized = Path(temporary) / f"{scheme}-{group}-{len(rows)}"
                convert(source, quantized, ["--scheme", scheme, *given])
                decibels = put(linear, weights, fastq.io.open_checkpoint(quantized))
                rows.append({"scheme": scheme, "group": group, "method": method, "sqnr_db": decibels})
                rows[-1] = rounded(rows[-1] | likeness(before, model.encode(sentences, batch_size=32)))
                say(", ".join(f"{key} {value}" for key, value in rows[-1].items()))
    return {"texts": len(sentences), "queries": QUERIES, "calibration": len(calibration()), "rows": rows}


def importance_of(model: Any, linear: dict[str, Any]) -> dict[str, Array]:
    """The importance of the columns of each Linear layer, measured while the model reads the texts of these pages."""
    seen: dict[str, fastq.Calibrator] = {}

    def watch(name: str) -> Callable[[Any, Any], None]:
        def update(_: Any, inputs: Any) -> None:
            seen.setdefault(name, fastq.Calibrator("int8", axis=-1, bins=256)).update(inputs[0].detach().numpy())

        return update

    hooks = [module.register_forward_pre_hook(watch(name)) for name, module in linear.items()]
    model.encode(calibration(), batch_size=1)
    for hook in hooks:
        hook.remove()
    return {name: calibrator.importance() for name, calibrator in seen.items()}


def convert(source: Path, out: Path, options: list[str]) -> None:
    """Run `fastq convert`."""
    from click.testing import CliRunner

    from fastq.tools.cli.app import cli

    result = CliRunner().invoke(cli, ["convert", str(source), str(out), *options])
    if result.exit_code:
        raise ValueError(result.output)


def put(linear: dict[str, Any], weights: dict[str, Array], quantized: Any) -> float:
    """Give Linear layers the values of quantized weights; the SQNR of all that were quantized together."""
    import torch

    signal = noise = 0.0
    for name in quantized.keys() & linear.keys():
        values = np.array(quantized[name].dequantize(), np.float32)
        linear[name].weight.data = torch.from_numpy(values)
        signal += float(np.square(weights[name], dtype=np.float64).sum())
        noise += float(np.square(np.float64(values) - weights[name]).sum())
    return 10 * math.log10(signal / noise)


def likeness(before: Array, after: Array) -> dict[str, float]:
    """How alike embeddings are: cosines, and the share of the nearest ones of the first texts that stay so."""
    a, b = (np.float64(each) / np.linalg.norm(np.float64(each), axis=1, keepdims=True) for each in (before, after))
    cosines = (a * b).sum(axis=1)
    near, still = (_nearest(each[:QUERIES], each) for each in (a, b))
    kept = [len({*one} & {*other}) for one, other in zip(near.tolist(), still.tolist(), strict=True)]
    return {"cosine": float(cosines.mean()), "least": float(cosines.min()), "recall": float(np.mean(kept) / NEAREST)}


def _nearest(queries: Array, all_of: Array) -> Array:
    scores = queries @ all_of.T
    scores[np.arange(len(queries)), np.arange(len(queries))] = -np.inf  # itself
    return np.argsort(-scores, axis=1)[:, :NEAREST]


COLUMNS: dict[str, Cell] = {
    "scheme": itemgetter("scheme"),
    "columns that share a scale": number("group", 0),
    "ranges": itemgetter("method"),
    "SQNR dB": number("sqnr_db"),
    "cosine, mean": number("cosine", 3),
    "least": number("least", 3),
    "recall@10": number("recall", 3),
}


def page(text: str, found: Row) -> str:
    """The page with the table replaced."""
    said = f"{found['texts']:,} paragraphs of Python's reference, {found['queries']} of them as queries; importance"
    said += f" from\n{found['calibration']} paragraphs of these pages:"
    return with_part(text, BEGIN, f"{said}\n\n{listed(COLUMNS, found['rows'])}", END)
