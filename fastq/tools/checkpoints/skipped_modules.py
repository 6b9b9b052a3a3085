"""Modules that stay as floats by default: output heads, embeddings, routers and norms, by name or by shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastq.tools.checkpoints.config_json import parts_of
from fastq.tools.checkpoints.module_names import matches_target, tail_of

# kinds of modules that stay as floats
HEAD = "output head"
EMBEDDING = "embedding"
ROUTER = "router"
NORM = "normalization"
OTHER_LAYER = "not Linear in the code of the model"

# Heads are not part of a layer with a number. They may have modules of their own: cls.predictions.transform.dense
_WORDS = (
    r"(?!shared_)([^.]*_)?heads?|head_[^.]*|[^.]*classif[^.]*|[^.]*predictions?|[^.]+_predictor|[^.]*logits?[^.]*|"
    r"([^.]*_)?score|qa_outputs|splinter_qass|cls|embed_out|proj_out|output_projection[^.]*|output_layer|"
    r"vocab_[^.]*|lm_loss|pred_layer|ctc_proj|sequence_summary|log_softmax|objective|(bbox|class)_embed"
)
HEADS = rf"([^.]*[^.\d][^.]*\.)*({_WORDS})(\..*)?|(model\.)?(output|fc|decoder)|encoder\.out"
HEADS += r"|(.*\.)?(lm_head|shared_head\.head)"
_EMBEDDINGS = (
    r"(.*\.)?([^.]*embed[^.]*(\.\d+)?|wte|wpe|shared|relative_attention_bias|[^.]*_tokens?|([^.]*_)?emb|codebook|pe_k|"
    r"bias_values|query_feat|queries_features|reference_points)|((model|transformer)\.)?(query|w)"
)
ROUTERS = r"(.*\.)?(gate|[^.]*router[^.]*(\.(layer|classifier|proj))?|shared_expert_gate)"
# names of modules that no tool quantizes by default, and what they are
LEFT_ALONE = (
    (re.compile(HEADS), HEAD),
    (re.compile(_EMBEDDINGS, re.IGNORECASE), EMBEDDING),
    (re.compile(r".*norm\d*(\.(scale|shift))?"), NORM),
    (re.compile(ROUTERS), ROUTER),
)


def kind_of(module: str) -> str | None:
    """Return the kind of a module that no tool quantizes by default, else None."""
    return next((kind for pattern, kind in LEFT_ALONE if pattern.fullmatch(module)), None)


def ignore_list(left: Iterable[str], quantized: Sequence[str]) -> list[str]:
    """Return the names of modules that are left alone, and patterns that match them but no quantized module.

    Readers have heads that are tied to the embedding and are in no file, and put modules into other modules, so that
    names begin differently: patterns find these modules, too. `left` are the names of modules that are left alone.
    """
    names = sorted({"lm_head", *left} - set(quantized))
    patterns = [f"re:({HEADS})$"]
    if any(kind_of(name) == ROUTER for name in names):
        patterns.append(f"re:{ROUTERS}$")
    # the end of lm_head is part of the pattern of heads
    patterns += sorted({f"re:.*{re.escape(tail_of(name))}$" for name in names} - {"re:.*lm_head$"})
    return [*names, *(pattern for pattern in patterns if not any(matches_target(name, pattern) for name in quantized))]


EXPERT_COUNT = re.compile(r"(num|n|number_of)_(\w+_)?experts$")  # keys of config.json with the number of experts
OTHER_SIZE = re.compile(r"size|dim|hidden|width|inner|length|position")  # keys with lengths of axes, but of words
GATE = re.compile(r"gat(e(?!_proj)|ing)|rout(e|ing)|switch|select|^wg$", re.IGNORECASE)  # in the names of routers
# modules next to experts, other than the matrices of a feed-forward network of their own
OF_EXPERTS = re.compile(r"(.*\.)?([^.]*moe[^.]*|mlp|ffn|feed_forward)\.(?!(.*_proj|w\d|fc\d*|linear\d*)$)[^.]*")
NUMBERED = re.compile(r"(^|\.)\d+\.")  # names of modules within layers


def kind_by_shape(module: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> str | None:
    """Return the kind of a matrix whose name is not known, by the sizes in config.json: embedding, router or None.

    A matrix outside the layers with a row for each word, of which there are more than columns, is an embedding, or a
    head, which stays as well. A module of a gate or of a router with a row for each expert is a router; so is any other
    one next to the experts if no other size in config.json is their number.
    """
    words: set[int] = set()
    experts: set[int] = set()
    other_sizes: set[int] = set()
    for settings in parts_of(config):
        for key, size in settings.items():
            if type(size) is not int:
                continue
            if key.endswith("vocab_size"):
                words.add(size)
            elif EXPERT_COUNT.search(key):
                experts.add(size)
            elif OTHER_SIZE.search(key):
                other_sizes.add(size)
    rows, columns = shape
    has_row_for_each_word = rows in words - other_sizes and rows > columns
    if has_row_for_each_word and not NUMBERED.search(module):
        return EMBEDDING
    is_gate = any(GATE.search(name) for name in module.split(".")[-2:])
    is_beside_experts = OF_EXPERTS.fullmatch(module) is not None and rows not in other_sizes
    return ROUTER if (is_gate or is_beside_experts) and rows in experts else None
