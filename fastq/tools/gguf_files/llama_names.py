"""llama.cpp's names of the weights of a model, by the names of their modules."""

from __future__ import annotations

import re

# llama.cpp's names of the modules of a layer, by the ends of their names; encoders next to decoders, images and sound
# have other names. Matrices with the same inputs may be one matrix there, so the first name in an importance matrix
# counts
_LAYER = re.compile(
    r"((model|language_model|text_model|transformer|gpt_neox|backbone|bert|roberta|encoder)\.)*"
    r"(layers?|h|blocks)\.(?P<layer>\d+)\.(?P<tail>.+)"
)
_ATTENTION = r"(self_attn|self_attention|attn|attention|attn\.attention)"
_MLP = r"(mlp|feed_forward|ffn)"
_EXPERTS = r"((mlp|feed_forward|block_sparse_moe)\.)?experts\.(?P<expert>\d+)"
_SHARED = rf"({_MLP}|block_sparse_moe)\.shared_(experts?|mlp)"
GGUF_NAMES = tuple(
    (re.compile(pattern), names.split())
    for pattern, names in (
        (rf"{_ATTENTION}\.(q_proj|wq|q_lin)|attention\.self\.query", "attn_q attn_qkv"),
        (rf"{_ATTENTION}\.(k_proj|wk|k_lin)|attention\.self\.key", "attn_k attn_qkv"),
        (rf"{_ATTENTION}\.(v_proj|wv|v_lin)|attention\.self\.value", "attn_v attn_qkv"),
        (rf"{_ATTENTION}\.(qkv_proj|query_key_value|c_attn|Wqkv)", "attn_qkv"),
        (rf"{_ATTENTION}\.(o_proj|wo|Wo|out_proj|out_lin|dense|c_proj)|attention\.output\.dense", "attn_output"),
        (r"self_attn\.q_a_proj", "attn_q_a"),
        (r"self_attn\.q_b_proj", "attn_q_b"),
        (r"self_attn\.kv_a_proj_with_mqa", "attn_kv_a_mqa"),
        (r"self_attn\.kv_b_proj", "attn_kv_b"),
        (
            rf"{_MLP}\.(up_proj|gate_up_proj|dense_h_to_4h|c_fc|fc1|fc_in|lin1|Wi)|feed_forward\.w3|intermediate\.dense",
            "ffn_up",
        ),
        (rf"{_MLP}\.gate_proj|feed_forward\.w1", "ffn_gate"),
        (rf"{_MLP}\.(down_proj|dense_4h_to_h|c_proj|fc2|fc_out|lin2|Wo)|feed_forward\.w2|output\.dense", "ffn_down"),
        (rf"{_EXPERTS}\.(gate_proj|w1)", "ffn_gate_exps ffn_gate_up_exps"),
        (rf"{_EXPERTS}\.(up_proj|w3)", "ffn_up_exps ffn_gate_up_exps"),
        (rf"{_EXPERTS}\.(down_proj|w2)", "ffn_down_exps"),
        (rf"{_SHARED}\.gate_proj", "ffn_gate_shexp"),
        (rf"{_SHARED}\.up_proj", "ffn_up_shexp"),
        (rf"{_SHARED}\.down_proj", "ffn_down_shexp"),
        (rf"({_MLP}|block_sparse_moe)\.(gate|router)", "ffn_gate_inp"),
        (rf"{_MLP}\.shared_expert_gate", "ffn_gate_inp_shexp"),
    )
)
GGUF_HEADS = {"lm_head": "output.weight"}


def imatrix_names(module: str, *others: tuple[str, int | None]) -> tuple[tuple[str, int | None], ...]:
    """Return the names of a module's weight in an importance matrix, each with the index of its matrix there.

    The index is None if the entry has no other matrix. The first name that the importance matrix has counts; `others`
    come after the module's own names.
    """
    return (f"{module}.weight", None), (module, None), *others, *gguf_names(module)


def gguf_names(module: str) -> list[tuple[str, int | None]]:
    """Return llama.cpp's names of a module's weight, each with the index of its matrix for an expert, else None.

    Those of "model.layers.3.self_attn.q_proj" are "blk.3.attn_q.weight" and "blk.3.attn_qkv.weight". Unknown modules
    have none.
    """
    if module in GGUF_HEADS:
        return [(GGUF_HEADS[module], None)]
    if not (in_layer := _LAYER.fullmatch(module)):
        return []
    for pattern, names in GGUF_NAMES:
        if match := pattern.fullmatch(in_layer["tail"]):
            expert = int(match["expert"]) if "expert" in pattern.groupindex else None
            return [(f"blk.{int(in_layer['layer'])}.{name}.weight", expert) for name in names]
    return []
