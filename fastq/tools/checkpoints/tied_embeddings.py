"""Embeddings and output heads that are one matrix: readers hold them as floats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastq.tools.checkpoints.config_json import parts_of
from fastq.tools.checkpoints.skipped_modules import EMBEDDING, HEAD

# tensors that models create if no file has them: a head or an embedding that is tied to another one, tables of
# positions
TIED = re.compile(r"(.*\.)?(lm_head|embed_out|output|decoder|[^.]*embed[^.]*|wte|shared)\.(weight|bias)")


def is_tied(kind: str | None, config: Mapping[str, Any]) -> bool:
    """Whether a head or an embedding is, or may be, one matrix with another one: readers hold it as floats."""
    flags = [part.get("tie_word_embeddings") for part in parts_of(config)]
    named = config.get("architectures")
    bare = isinstance(named, list) and bool(named) and str(named[0]).endswith("Model")  # has no head
    perhaps = True in flags or (kind == EMBEDDING and False not in flags)
    return perhaps and not bare and kind in (HEAD, EMBEDDING)
