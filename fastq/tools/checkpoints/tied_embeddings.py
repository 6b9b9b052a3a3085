"""Embeddings and output heads that are one matrix: readers hold them as floats."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastq.tools.checkpoints.config_json import parts_of
from fastq.tools.checkpoints.skipped_modules import EMBEDDING, HEAD

# tensors that models create if no file has them: a head or an embedding that is tied to another one
TIED = re.compile(r"(.*\.)?(lm_head|embed_out|output|decoder|[^.]*embed[^.]*|wte|shared)\.(weight|bias)")


def is_tied(kind: str | None, config: Mapping[str, Any]) -> bool:
    """Return whether a head or an embedding is, or may be, one matrix with another one.

    `kind` is that of a module, and only HEAD and EMBEDDING can be tied. Where config.json does not say, an embedding
    may be; a head that is stored has a matrix of its own. Models without a head, as BertModel, have nothing to tie.
    """
    flags = [settings.get("tie_word_embeddings") for settings in parts_of(config)]
    names = config.get("architectures")
    has_no_head = isinstance(names, list) and bool(names) and str(names[0]).endswith("Model")
    may_be_tied = True in flags or (kind == EMBEDDING and False not in flags)
    return may_be_tied and not has_no_head and kind in (HEAD, EMBEDDING)
