"""The types of GGUF with a real importance matrix: what each leaves of the outputs of a model's layers.

The layers are the Linear ones of the encoder of all-MiniLM-L6-v2. The importance of a column is the mean square of the
inputs that it is multiplied by, measured while the model reads texts of these pages. The outputs are those for other
texts, paragraphs of Python's reference: a choice of scales that fits the calibration alone gains nothing there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.formats.gguf import BLOCK_FORMATS
from fastq.tools.gguf_files.tensor_types import TENSOR_TYPES

from . import embeddings, gguf_types
from .markdown import Cell, Row, listed, number, with_part
from .signals import ROOT, rounded

Array = NDArray[Any]

PAGE = gguf_types.PAGE
STORED = ROOT / "bench" / "results" / "signal" / "gguf-importance.json"
BEGIN, END = "<!-- begin: python -m bench gguf-importance -->", "<!-- end: gguf-importance -->"
TEXTS = 300  # whose outputs are compared


def measured(say: Callable[[str], None]) -> Row:
    """A row for each type: decibels of outputs without an importance matrix, and with one."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(gguf_types.model_folder()), device="cpu")
    modules = model[0].auto_model.named_modules()
    linear = {name: each for name, each in modules if hasattr(each, "in_features") and "encoder" in name}
    weights = {name: np.array(each.weight.detach().numpy()) for name, each in linear.items()}
    importance = embeddings.importance_of(model, linear)
    products = products_of_inputs(model, linear, embeddings.texts()[:TEXTS])
    rows = []
    for name, form in BLOCK_FORMATS.items():
        found = {"type": name, "bits": TENSOR_TYPES[name].bits}
        for key, given in (("alike", None), ("weighted", importance)):
            if given is None or form.weighted:
                left = [decibels(w, stored(w, name, given and given[of]), products[of]) for of, w in weights.items()]
                found[key] = float(np.mean(left))
        rows.append(rounded(found))
        say(", ".join(f"{key} {value}" for key, value in rows[-1].items()))
    rows.sort(key=itemgetter("bits", "alike"))
    calibration = len(embeddings.calibration())
    return {"matrices": len(weights), "texts": TEXTS, "calibration": calibration, "rows": rows}


def products_of_inputs(model: Any, linear: dict[str, Any], texts: list[str]) -> dict[str, Array]:
    """The sums of products of each two columns of the inputs of layers, while the model reads texts."""
    sums = {name: np.zeros((module.in_features,) * 2) for name, module in linear.items()}

    def watch(total: Array) -> Callable[[Any, Any], None]:
        def add(_: Any, inputs: Any) -> None:
            x = inputs[0].detach().numpy().reshape(-1, len(total))
            total[...] += x.T @ x

        return add

    hooks = [module.register_forward_pre_hook(watch(sums[name])) for name, module in linear.items()]
    model.encode(texts, batch_size=1)  # a text at a time has no padding
    for hook in hooks:
        hook.remove()
    return sums


def stored(weights: Array, name: str, importance: Array | None) -> Array:
    """Weights after a type of GGUF, in rows of 256 one after the other, whatever the length of theirs."""
    x = weights.reshape(-1, gguf_types.ROW)
    if importance is not None:
        of_each = np.broadcast_to(np.float32(importance), weights.shape).reshape(x.shape)
    elif BLOCK_FORMATS[name].needs_importance:
        of_each = np.ones_like(x)  # all columns alike
    else:
        of_each = None
    blocks = fastq.gguf.quantize(x, name, importance=of_each)
    return fastq.gguf.dequantize(blocks, name).reshape(weights.shape)


def decibels(weights: Array, values: Array, products: Array) -> float:
    """Outputs compared with their errors, where weights have become other values."""

    def energy(matrix: Array) -> float:  # the sum of squares of its outputs for all inputs
        return float(np.sum(matrix @ products * matrix))

    return 10 * math.log10(energy(np.float64(weights)) / energy(np.float64(values) - weights))


COLUMNS: dict[str, Cell] = {
    "type": itemgetter("type"),
    "bits per weight": lambda row: f"{row['bits']:.4g}",
    "outputs, dB": number("alike"),
    "with importance, dB": lambda row: number("weighted")(row) if row.get("weighted") else "",
    "gain, dB": lambda row: f"{row['weighted'] - row['alike']:.2f}" if row.get("weighted") else "",
}


def page(text: str, found: Row) -> str:
    """The page with the table replaced."""
    said = f"Means over the {found['matrices']} Linear layers of all-MiniLM-L6-v2, outputs for {found['texts']}"
    said += f" paragraphs of Python's reference,\nimportance from {found['calibration']} paragraphs of these pages:"
    return with_part(text, BEGIN, f"{said}\n\n{listed(COLUMNS, found['rows'])}", END)
