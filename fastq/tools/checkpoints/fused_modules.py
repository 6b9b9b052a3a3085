"""Modules that vLLM and SGLang read as one matrix: they share a scheme."""

from __future__ import annotations

from fastq.tools.checkpoints.experts import EXPERT, STACKED

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


def fused_with(module: str) -> str:
    """Return a name for the fused matrix that a module is part of; the name of the module if it is not fused.

    It is "mlp.gate_proj+up_proj" for "mlp.gate_proj" and for "mlp.up_proj".
    """
    parent, _, name = module.rpartition(".")
    return next((f"{parent}.{'+'.join(names)}" for names in FUSED if name in names), module)


def read_as_one(module: str, columns: int) -> tuple[str, int]:
    """Return the key of a group of matrices that are read as one: experts of one layer, or modules of the same inputs.

    It has the number of columns, since only rows of one length can be put one below the other; 0 for experts, all of
    which share a scheme whatever their columns.
    """
    expert = EXPERT.fullmatch(module)
    if expert:
        return expert[1], 0
    parent, _, name = module.rpartition(".")
    return (parent, 0) if name in STACKED and parent.endswith("experts") else (fused_with(module), columns)
