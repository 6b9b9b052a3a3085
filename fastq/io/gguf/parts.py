"""Models in several GGUF files: llama-gguf-split writes such, and tells in each which of how many it is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

KEYS = ("split.no", "split.count", "split.tensors.count")
MOST = 0xFFFF  # llama.cpp counts them in 16 bits


def parts_of(path: Path, count: Any) -> list[Path]:
    """Return where the parts of the model are that a file is one of `count` parts of, whether they are there or not.

    ValueError if the name of the file does not tell those of the others.
    """
    if type(count) is not int or not 0 < count <= MOST:
        raise ValueError(f"split.count must be a number from 1 to {MOST:,}, not {count!r}")
    found = re.fullmatch(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", path.name, re.DOTALL)
    if found is None or int(found[3]) != count or not 0 < int(found[2]) <= count:
        end = f"-00001-of-{count:05}.gguf"
        raise ValueError(f"it is one of {count} parts of a model, but its name does not end as in {end}")
    return [path.with_name(f"{found[1]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
