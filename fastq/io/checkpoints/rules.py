"""Which tensors of a model are quantized, by what scheme, and why the others are left alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastq.formats.compressed_tensors import LayerScheme
from fastq.io.checkpoints.folder import HALVES
from fastq.io.containers import TensorSpec

# Models whose experts are stored as (experts, inputs, outputs): a matrix of theirs is no row of outputs.
TRANSPOSED = {
    "aria",
    "aria_text",
    "gpt_oss",
    "llama4",
    "llama4_text",
    "openai_privacy_filter",
    "qwen3_vl_moe",
    "qwen3_vl_moe_text",
}
# Models with layers of transformers' Conv1D, whose weight is stored as (inputs, outputs).
CONV1D = {"clvp", "clvp_decoder", "decision_transformer", "gpt2", "imagegpt", "openai-gpt"}
STACKED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}  # what a tensor of experts holds
# modules of one parent that readers fuse, so that they have to share a global scale
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"), ("wq_a", "wkv_a_with_mqa"))

# names of modules that no tool quantizes by default, and what they are
LEFT_ALONE = (
    (re.compile(r"(.*\.)?(lm_head|embed_out)|output"), "output head"),
    (re.compile(r"(.*\.)?([^.]*embed[^.]*(\.\d+)?|wte|wpe|shared|relative_attention_bias)"), "embedding"),
    (re.compile(r".*norm\d*"), "normalization"),
    (re.compile(r"(.*\.)?(gate|[^.]*router[^.]*(\.(layer|classifier|proj))?|shared_expert_gate)"), "router"),
)


@dataclass(frozen=True)
class Rules:
    """What a user asked for."""

    scheme: LayerScheme  # of all weights without another one
    # names of modules to leave alone, or after "re:" a regular expression for the beginning of names
    ignore: tuple[str, ...] = ()
    schemes: tuple[tuple[str, LayerScheme], ...] = ()  # other schemes, by such patterns; the first that matches counts

    def scheme_of(self, module: str) -> LayerScheme:
        """Return the scheme of a module."""
        return next((scheme for pattern, scheme in self.schemes if matches(module, pattern)), self.scheme)


@dataclass(frozen=True)
class Matrix:
    """A matrix to quantize: a tensor of the model, or some rows of one of its matrices."""

    module: str  # name of the layer, to which those of stored tensors are added
    tensor: str  # name of the tensor that has it
    shape: tuple[int, int]
    scheme: LayerScheme
    expert: int | None = None  # which matrix of the tensor; None: the tensor is the matrix
    first: int = 0  # first row of that

    def of(self, array: Any) -> Any:
        """Return the matrix, given the tensor."""
        matrix = array if self.expert is None else array[self.expert]
        return matrix[self.first : self.first + self.shape[0]]

    @property
    def fused_with(self) -> str:
        """Name of what shares its global scale: the parent and the modules that readers fuse."""
        parent, _, name = self.module.rpartition(".")
        return next((f"{parent}.{'+'.join(names)}" for names in FUSED if name in names), self.module)


@dataclass
class Plan:
    """What becomes of each tensor."""

    quantized: dict[str, list[Matrix]] = field(default_factory=dict)  # by the tensor that has it
    left: dict[str, str] = field(default_factory=dict)  # why a tensor is copied

    @property
    def matrices(self) -> Iterator[Matrix]:
        """All matrices to quantize."""
        return (matrix for matrices in self.quantized.values() for matrix in matrices)

    def ignored(self, tensors: Mapping[str, TensorSpec]) -> list[str]:
        """Return the modules with matrices that are left alone, which readers have to know of."""
        found = {"lm_head"}
        for name in self.left:
            module, _, parameter = name.removesuffix(".weight").rpartition(".")
            if len(tensors[name].shape) == 2 and name.endswith(".weight"):
                found.add(name.removesuffix(".weight"))
            elif len(tensors[name].shape) == 3 and parameter in STACKED:
                found.add(module)
        return sorted(found)


def check_pattern(pattern: str) -> None:
    """Raise `re.error` if what follows "re:" is no regular expression."""
    if pattern.startswith("re:"):
        re.compile(pattern.removeprefix("re:"))


def matches(module: str, pattern: str) -> bool:
    """Whether a module has a name, or one that begins as the regular expression after "re:" says."""
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return module == pattern


def make_plan(tensors: Mapping[str, TensorSpec], config: Mapping[str, Any], rules: Rules) -> Plan:
    """Decide what becomes of each tensor.

    ValueError if a matrix can't have its scheme, none is left to quantize, or a pattern is for none.
    """
    if _model_types(config) & CONV1D:
        raise ValueError(
            f"models of type {min(_model_types(config) & CONV1D)} have Conv1D layers, whose weights are stored as "
            "(inputs, outputs): compressed-tensors has no format for them"
        )
    _check_ignored(tensors, config, rules)
    plan = Plan()
    for spec in tensors.values():
        found, reason = _weights(spec, config, rules)
        if found:
            plan.quantized[spec.name] = found
        else:
            plan.left[spec.name] = reason
    if not plan.quantized:
        raise ValueError(
            "it has no matrix to quantize: a two-dimensional weight that is not an embedding, norm or output head"
        )
    modules = [weight.module for weight in plan.matrices]
    _check_patterns([pattern for pattern, _ in rules.schemes], modules, "matrix that is quantized")
    _check_names(plan, tensors)
    _check_groups(plan.matrices)
    return plan


def _weights(spec: TensorSpec, config: Mapping[str, Any], rules: Rules) -> tuple[list[Matrix], str]:
    """Return the matrices of a tensor to quantize, or none and the reason."""
    if spec.dtype not in HALVES:
        return [], f"{spec.dtype}"
    stacked = _stacked(spec, config)
    if stacked:
        kept = [weight for weight in stacked if not any(matches(weight[0], pattern) for pattern in rules.ignore)]
        if len(kept) < len(stacked):
            return [], "ignored"
        return [Matrix(name, spec.name, shape, rules.scheme_of(name), e, row) for name, shape, e, row in stacked], ""
    if _is_stack(spec) and _not_split(spec, config):
        return [], _not_split(spec, config)
    module, _, parameter = spec.name.rpartition(".")
    if parameter != "weight":
        return [], parameter or "no weight"
    if len(spec.shape) != 2 or not spec.size:
        return [], f"{len(spec.shape)} dimension{'s' * (len(spec.shape) != 1)}" if spec.size else "no elements"
    if any(matches(module, pattern) for pattern in rules.ignore):
        return [], "ignored"
    known = next((kind for pattern, kind in LEFT_ALONE if pattern.fullmatch(module)), None)
    return ([], known) if known else ([Matrix(module, spec.name, spec.shape, rules.scheme_of(module))], "")


def _stacked(spec: TensorSpec, config: Mapping[str, Any]) -> list[tuple[str, tuple[int, int], int, int]]:
    """Return name, shape, expert and first row of each matrix in a tensor of experts; none for other tensors."""
    if not _is_stack(spec) or _not_split(spec, config):
        return []
    parent, name = _parent_and_name(spec)
    experts, rows, columns = spec.shape
    parts = STACKED[name]
    each = rows // len(parts)
    if each * len(parts) != rows:
        return []
    return [
        (f"{parent}.{expert}.{part}", (each, columns), expert, index * each)
        for expert in range(experts)
        for index, part in enumerate(parts)
    ]


def _parent_and_name(spec: TensorSpec) -> tuple[str, str]:
    """Return the module that has a tensor of experts, and what its matrices are."""
    parent, _, name = spec.name.removesuffix(".weight").rpartition(".")
    return parent, name


def _is_stack(spec: TensorSpec) -> bool:
    """Whether a tensor holds matrices of experts."""
    return len(spec.shape) == 3 and spec.size > 0 and _parent_and_name(spec)[1] in STACKED


def _not_split(spec: TensorSpec, config: Mapping[str, Any]) -> str:
    """Return why the matrices of a stack are no rows of outputs; empty if they are."""
    if _model_types(config) & TRANSPOSED:
        return "experts as (inputs, outputs)"
    axis = 1 if _parent_and_name(spec)[1] == "down_proj" else 2
    parts = [config, config.get("text_config")]
    sizes = [part["hidden_size"] for part in parts if isinstance(part, dict) and type(part.get("hidden_size")) is int]
    return f"experts with axis {axis} not of hidden_size" if sizes and spec.shape[axis] not in sizes else ""


def _parts(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return config.json and those of the models within the model: text_config, decoder, ..."""
    return [config, *(part for part in config.values() if isinstance(part, dict))]


def _model_types(config: Mapping[str, Any]) -> set[str]:
    return {part["model_type"] for part in _parts(config) if isinstance(part.get("model_type"), str)}


def _check_ignored(tensors: Mapping[str, TensorSpec], config: Mapping[str, Any], rules: Rules) -> None:
    """Refuse patterns of modules to leave alone that are for none; a head may be that of the embedding."""
    stacks = {spec.name: [name for name, *_ in _stacked(spec, config)] for spec in tensors.values()}
    modules = ["lm_head", *(module for name in stacks for module in stacks[name] or [name.rpartition(".")[0]])]
    _check_patterns(rules.ignore, modules, "module")


def _check_patterns(patterns: Iterable[str], modules: Iterable[str], what: str) -> None:
    unused = [pattern for pattern in patterns if not any(matches(module, pattern) for module in modules)]
    if unused:
        raise ValueError(f"no {what} has a name that matches {', '.join(unused)}")


def _check_names(plan: Plan, tensors: Mapping[str, TensorSpec]) -> None:
    """Refuse a model that is quantized already, or names what is about to be written."""
    modules = [weight.module for weight in plan.matrices]
    for module in modules:
        for end in ("weight_scale", "weight_packed"):
            if f"{module}.{end}" in tensors:
                raise ValueError(f"{module} is quantized already; fastq convert --dequantize turns it back")
    if len(set(modules)) < len(modules):
        twice = next(module for module in modules if modules.count(module) > 1)
        raise ValueError(f"two tensors would become the weight of {twice}")


def _check_groups(weights: Iterable[Matrix]) -> None:
    """Refuse groups that do not fill rows: readers do."""
    for weight in weights:
        size = weight.scheme.weights.group_size
        if size and weight.shape[1] % size:
            raise ValueError(
                f"{weight.module} has {weight.shape[1]} columns, not a multiple of the group size {size}: "
                f"--group-size of a divisor, --ignore {weight.module}, or --scheme-for {weight.module}=W8A8"
            )
