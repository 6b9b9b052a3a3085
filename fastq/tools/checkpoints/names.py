"""Meanings of the names of modules and models: the modules that stay as floats, and those that readers fuse."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# Models whose experts are stored as (experts, inputs, outputs): their matrices do not have outputs as rows.
TRANSPOSED = {
    *("aria", "aria_text", "gpt_oss", "llama4", "llama4_text", "openai_privacy_filter", "qwen3_vl_moe"),
    "qwen3_vl_moe_text",
}
# Models whose experts transformers 5.24 reads from one tensor only: it has no names for the matrix of each expert.
ONE_TENSOR = {
    *("glm4v_moe_text", "granitemoe_swa", "hy_v4", "hy_v4_vl", "hy_v4_vl_text", "inkling_text", "lara_mini"),
    *("minimax_m3_vl_text", "mistral4", "muse_spark", "muse_spark_text", "zaya"),
}
# Models whose matrices transformers 5.24 splits or joins while it reads them: floats and, except for these models,
# codes with a scale for each row.
NOT_BY_ROWS = {
    *("inkling2", "inkling2_loop", "inkling_mm_model", "nemotron_h_omni", "radio", "step3p7", "unlimited_ocr"),
}
SPLIT_BY_READERS = NOT_BY_ROWS | {
    *("bailing_hybrid", "gte", "hrm_text", "inkling2_loop_text", "inkling2_text", "jina_embeddings_v3", "kimi_k25"),
    *("kimi_linear", "lara_mini", "minimax_m3_vl", "molmo2_text", "nomic_bert", "olmo_hybrid", "qianfan_ocr"),
    "sarvam_moe",
}
NOT_AS_FLOATS = {"qwen4_exp_text"}  # its modules have names that end in weight
# Models of layers that are not nn.Linear, and what they are
OTHER_LAYERS = {
    **dict.fromkeys(
        ("clvp", "clvp_decoder", "decision_transformer", "gpt2", "imagegpt", "openai-gpt"),
        "Conv1D layers, whose weights are stored as (inputs, outputs)",
    ),
    "ibert": "layers with their own integer arithmetic",
}
# the matrices of each expert in a tensor of experts: gate and up one below the other, or each in a tensor of its own
STACKED = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "gate_proj": ("gate_proj",),
    "up_proj": ("up_proj",),
    "down_proj": ("down_proj",),
}
# modules of one parent that vLLM and SGLang read as one matrix: they share a scheme, and a global scale
FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("to_q", "to_k", "to_v"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
    ("wq_a", "wkv_a_with_mqa"),
    ("in_proj_qkv", "in_proj_z"),
    ("in_proj_b", "in_proj_a"),
    ("key_proj", "value_proj"),
)
EXPERT = re.compile(r"(.*(?:^|\.)experts)\.\d+\..+")  # all matrices of these share a scheme
EXPERTS = re.compile(r"(.*\.)?experts")  # modules whose tensors readers find as matrices of each expert, too

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
    (re.compile(HEADS), "output head"),
    (re.compile(_EMBEDDINGS, re.IGNORECASE), "embedding"),
    (re.compile(r".*norm\d*(\.(scale|shift))?"), "normalization"),
    (re.compile(ROUTERS), "router"),
)


def kind_of(module: str) -> str | None:
    """Return the kind of a module that no tool quantizes by default, else None."""
    return next((kind for pattern, kind in LEFT_ALONE if pattern.fullmatch(module)), None)


def fused_with(module: str) -> str:
    """Return the name of the fused matrix of a module: its parent and the modules; without one its own name."""
    parent, _, name = module.rpartition(".")
    return next((f"{parent}.{'+'.join(names)}" for names in FUSED if name in names), module)


def tail_of(module: str) -> str:
    """Return the end of a name that tells the kind of module: the parts after the last number, or the last two."""
    parts = module.split(".")
    numbers = [k for k, part in enumerate(parts[:-1]) if part.isdecimal()]
    return ".".join(parts[numbers[-1] + 1 :] if numbers else parts[-2:])


def ignored(left: Iterable[str], quantized: Sequence[str]) -> list[str]:
    """Return the names of modules that are left alone, and patterns that match them but no quantized module.

    Readers have heads that are tied to the embedding and are in no file, and put modules into other modules, so that
    names begin differently.
    """
    names = sorted({"lm_head", *left} - set(quantized))
    patterns = [f"re:({HEADS})$", *[f"re:{ROUTERS}$"] * any(kind_of(name) == "router" for name in names)]
    patterns += sorted({f"re:.*{re.escape(tail_of(name))}$" for name in names} - {"re:.*lm_head$"})
    return [*names, *(each for each in patterns if not any(matches(name, each) for name in quantized))]


def matches(module: str, pattern: str) -> bool:
    """Whether a target of compressed-tensors is for a module: its name, or a regular expression after "re:"."""
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return module == pattern
