"""Experts: the names of their matrices, and tensors of all experts, which are split into a matrix for each.

Readers of quantized models find experts by the names of their matrices: `experts.3.up_proj.weight_packed`. The metadata
of a shard name the tensors that were there before, so that `--dequantize` restores them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fastq.system.arguments import without_duplicates
from fastq.tools.files.patterns import WEIGHT

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
# the matrices of each expert in a tensor of experts: gate and up one below the other, or each in a tensor of its own
STACKED = {
    "gate_up_proj": ("gate_proj", "up_proj"),
    "gate_proj": ("gate_proj",),
    "up_proj": ("up_proj",),
    "down_proj": ("down_proj",),
}
EXPERT = re.compile(r"(.*(?:^|\.)experts)\.\d+\..+")  # all matrices of these share a scheme
EXPERTS = re.compile(r"(.*\.)?experts")  # modules whose tensors readers find as matrices of each expert, too

SPLIT = "fastq.split_experts"  # key of the metadata of a .safetensors file: a JSON object of shapes by names
# errors of metadata that another program wrote under that key
UNREADABLE = ValueError, TypeError, OverflowError, RecursionError, AttributeError


@dataclass(frozen=True)
class Stack:
    """A tensor of experts."""

    name: str
    shape: tuple[int, int, int]  # experts, rows, columns

    @property
    def parent(self) -> str:
        """The module of the experts."""
        return self.name.removesuffix(WEIGHT).rpartition(".")[0]

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the matrices of an expert, one below the other in the tensor."""
        return STACKED[self.name.removesuffix(WEIGHT).rpartition(".")[2]]

    @property
    def is_even(self) -> bool:
        """Whether the matrices of an expert have the same number of rows."""
        return self.shape[1] % len(self.parts) == 0

    @property
    def rows(self) -> int:
        """The number of rows of a matrix, if the stack is even."""
        return self.shape[1] // len(self.parts)

    def modules(self) -> Iterator[tuple[str, int, int]]:
        """Yield for each matrix the name of its module, its expert, and its first row in the matrix of the expert.

        "experts.gate_up_proj" of shape (2, 8, 4) has "experts.0.gate_proj" for expert 0 from row 0 on,
        "experts.0.up_proj" for expert 0 from row 4 on, and the same for expert 1.
        """
        for expert in range(self.shape[0]):
            for index, part in enumerate(self.parts):
                yield f"{self.parent}.{expert}.{part}", expert, index * self.rows


def is_stack(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor has the name and the three axes of a tensor of experts."""
    return len(shape) == 3 and math.prod(shape) > 0 and name.removesuffix(WEIGHT).rpartition(".")[2] in STACKED


def metadata_of_stacks(stacks: Iterable[Stack]) -> dict[str, str]:
    """Return metadata that list the tensors of experts that were split; empty without such tensors."""
    shapes = {stack.name: stack.shape for stack in stacks}
    return {SPLIT: json.dumps(shapes)} if shapes else {}


def stacks_in_metadata(metadata: Mapping[str, str]) -> list[Stack]:
    """Return the tensors of experts that metadata list; empty if another program wrote something else there."""
    try:
        shapes = json.loads(metadata.get(SPLIT, "{}"), object_pairs_hook=without_duplicates)
        pairs = [(str(name), tuple(map(int, shape))) for name, shape in shapes.items()]
    except UNREADABLE:
        return []
    stacks = [Stack(name, (shape[0], shape[1], shape[2])) for name, shape in pairs if is_stack(name, shape)]
    return [stack for stack in stacks if stack.is_even]
