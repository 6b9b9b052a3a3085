"""Pictures of pages that are generated: their bytes depend on the version of matplotlib, so they say what they show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

SOURCE = "Source"  # the entry of the PNG that names what it was made from
COLOURS = 64
WIDTH, DOTS = 8, 100  # inches and dots an inch: as wide as a page, on which they keep their size
SMALLEST = 7  # points of text, ten pixels


def is_of(path: Path, source: str) -> bool:
    """Return whether a file says that it was made from this."""
    return path.exists() and f"{SOURCE}\0{source}".encode() in path.read_bytes()


def write_texts(root: Path, texts: dict[Path, str]) -> Iterator[Path]:
    """Write pages by their path in the repository, and yield those that changed."""
    for path, text in texts.items():
        if not (root / path).exists() or (root / path).read_text(encoding="utf-8") != text:
            (root / path).write_text(text, encoding="utf-8")
            yield path


def write_pictures(root: Path, sources: dict[Path, str], draw: Callable[[Path], bytes]) -> Iterator[Path]:
    """Draw pictures that were made from something else, and yield them."""
    for path, source in sources.items():
        if not is_of(root / path, source):
            (root / path).write_bytes(draw(path))
            yield path


def png(figure: Any, source: str) -> bytes:
    """Return the figure in few colours, a third of the bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image, PngImagePlugin

    figure.set_dpi(DOTS)
    canvas, said, made = FigureCanvasAgg(figure), PngImagePlugin.PngInfo(), BytesIO()
    canvas.draw()
    said.add_text(SOURCE, source)
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB").quantize(COLOURS)
    image.save(made, "png", optimize=True, pnginfo=said)
    return made.getvalue()
