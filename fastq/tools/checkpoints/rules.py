"""The plan of a conversion: the scheme of each tensor by the rules of a user, and why others are left alone."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fastq.tools.checkpoints import rules as rules_module
from fastq.tools.checkpoints.config_json import HALVES, LANGUAGE, model_types, parts_of
from fastq.tools.checkpoints.experts import EXPERT, EXPERTS, ONE_TENSOR, STACKED, TRANSPOSED, Stack, is_stack
from fastq.tools.checkpoints.fused_modules import read_as_one
from fastq.tools.checkpoints.module_names import tail_of
from fastq.tools.checkpoints.own_code import Classes, is_embedding, taken_for_linear
from fastq.tools.checkpoints.skipped_modules import EMBEDDING, ignored, kind_by_shape, kind_of
from fastq.tools.checkpoints.tied_embeddings import is_tied
from fastq.tools.files.patterns import check_patterns, fits, is_for
from fastq.tools.files.tensor_specs import TensorSpec
from fastq.tools.layouts.schemes import LayerScheme

# Models of layers that are not nn.Linear, and what they are
OTHER_LAYERS = {
    **dict.fromkeys(
        ("clvp", "clvp_decoder", "decision_transformer", "gpt2", "imagegpt", "openai-gpt"),
        "Conv1D layers, whose weights are stored as (inputs, outputs)",
    ),
    "ibert": "layers with their own integer arithmetic",
}
NO_CLASSES: Classes = MappingProxyType({})
IGNORED = "ignored"  # why a matrix stays that an option names


@dataclass(frozen=True)
class Rules:
    """The options of a user."""

    scheme: LayerScheme  # scheme of all weights without another scheme
    # patterns of modules to leave alone: see `fits` of fastq/tools/files/patterns.py
    ignore: tuple[str, ...] = ()
    schemes: tuple[tuple[str, LayerScheme], ...] = ()  # other schemes by pattern; the first pattern that matches counts
    include: tuple[str, ...] = ()  # patterns of modules to quantize that are left alone by default: heads, embeddings
    unequal: bool = False  # whether matrices that readers fuse may have different schemes

    def scheme_of(self, module: str, stack: str = "") -> LayerScheme:
        """Return the scheme of a module; `stack` is the tensor of experts that has its weight, if there is one."""
        return next((scheme for pattern, scheme in self.schemes if _names(pattern, module, stack)), self.scheme)

    def includes(self, module: str, stack: str = "") -> bool:
        """Return whether a module of any kind is quantized: it is included, or has a scheme by its name."""
        named = any(pattern == module for pattern, _ in self.schemes)
        return named or any(_names(pattern, module, stack) for pattern in self.include)

    def ignores(self, module: str, stack: str = "") -> bool:
        """Return whether a module is left alone by an option."""
        return any(_names(pattern, module, stack) for pattern in self.ignore)


def _names(pattern: str, module: str, stack: str) -> bool:
    """Return whether a pattern is for a module, or for the tensor of experts that has its weight."""
    return is_for(module, pattern) or (bool(stack) and fits(stack, pattern))


@dataclass(frozen=True)
class Matrix:
    """A matrix to quantize: a tensor of the model, or some rows of one of its matrices."""

    module: str  # name of the layer, the start of the names of stored tensors
    tensor: str  # name of its tensor
    shape: tuple[int, int]
    scheme: LayerScheme
    kind: str | None = None  # "output head", "embedding" or another kind that is left alone by default
    expert: int | None = None  # index of the matrix in the tensor; None: the tensor is the matrix
    first: int = 0  # first row in that matrix

    def of(self, array: Any) -> Any:
        """Return the matrix, given the tensor."""
        matrix = array if self.expert is None else array[self.expert]
        return matrix[self.first : self.first + self.shape[0]]


@dataclass
class Plan:
    """The treatment of each tensor."""

    quantized: dict[str, list[Matrix]] = field(default_factory=dict)  # matrices by tensor
    left: dict[str, str] = field(default_factory=dict)  # why a tensor is copied
    notes: list[str] = field(default_factory=list)  # warnings about readers
    assumed: list[str] = field(default_factory=list)  # modules that nothing but their shape tells to be Linear

    @property
    def matrices(self) -> Iterator[Matrix]:
        """All matrices to quantize."""
        return (matrix for matrices in self.quantized.values() for matrix in matrices)

    def ignored(self, tensors: Mapping[str, TensorSpec]) -> list[str]:
        """Return the names or patterns of modules with matrices that are left alone, which readers must know."""
        found = set()
        for name in self.left:
            module, _, parameter = name.removesuffix(".weight").rpartition(".")
            if len(tensors[name].shape) == 2 and name.endswith(".weight"):
                found.add(name.removesuffix(".weight"))
            elif len(tensors[name].shape) == 3 and parameter in STACKED:
                found.add(module)
        return ignored(found, [matrix.module for matrix in self.matrices])


def make_plan(
    tensors: Mapping[str, TensorSpec], config: Mapping[str, Any], rules: Rules, classes: Classes = NO_CLASSES
) -> Plan:
    """Decide the treatment of each tensor; raise ValueError if a matrix can't have its scheme, or a rule fits none.

    `classes` has the classes of modules by their own names, as the code of the model says: see `classes_in_code`.
    """
    for kind in sorted(model_types(config) & set(rules_module.OTHER_LAYERS)):
        what = rules_module.OTHER_LAYERS[kind]
        raise ValueError(f"models of type {kind} have {what}: compressed-tensors has no format for them")
    if "_diffusers_version" in config:
        raise ValueError("it is a model of diffusers, which does not read compressed-tensors")
    stacks = {name: [each.module for each in _stacked(spec, config, rules)[0]] for name, spec in tensors.items()}
    modules = [module for name in stacks for module in stacks[name] or [name.rpartition(".")[0]]]
    # names of the tensors of experts, too; a head may be the embedding
    whole = [name.removesuffix(".weight") for name, spec in tensors.items() if is_stack(spec.name, spec.shape)]
    check_patterns("--ignore", rules.ignore, ["lm_head", *modules, *whole], "module", is_for)
    matrices = [name.removesuffix(".weight") for name, spec in tensors.items() if is_matrix(spec)]
    matrices += [*whole, *(module for stacked in stacks.values() for module in stacked)]
    check_patterns("--include", rules.include, matrices, "matrix", is_for)
    plan = Plan()
    for spec in tensors.values():
        found, reason = _weights(spec, config, rules, classes)
        if found:
            plan.quantized[spec.name] = found
        else:
            plan.left[spec.name] = reason
    if not plan.quantized:
        wanted = "a two-dimensional weight that is not an embedding, norm or output head"
        has_floats = any(spec.dtype in HALVES and len(spec.shape) > 1 and spec.size for spec in tensors.values())
        way = "; fastq quantize takes its file, with tensors of any name" if has_floats else ""
        raise ValueError(f"it has no matrix to quantize: {wanted}{way}")
    _check_schemes(plan, rules)
    modules = [matrix.module for matrix in plan.matrices]
    for name in (f"{module}.{end}" for module in modules for end in ("weight_scale", "weight_packed")):
        if name in tensors:
            module, _, end = name.rpartition(".")
            raise ValueError(f"{module} has a {end}, but config.json has no quantization_config that describes it")
    if twice := [module for module, count in Counter(modules).items() if count > 1]:
        raise ValueError(f"two tensors would become the weight of {twice[0]}")
    _check_tied(plan.matrices, config)
    _check_groups(list(plan.matrices))
    _check_fused(plan, tensors, rules)
    plan.assumed += taken_for_linear([each.module for each in plan.matrices if not each.kind], config, classes)
    return plan


def _weights(spec: TensorSpec, config: Mapping[str, Any], rules: Rules, classes: Classes) -> tuple[list[Matrix], str]:
    """Return the matrices of a tensor to quantize, or an empty list and the reason."""
    if spec.dtype not in HALVES:
        return [], f"{spec.dtype}"
    stacked, reason = _stacked(spec, config, rules)
    if any(rules.ignores(matrix.module, spec.name) for matrix in stacked):
        return [], IGNORED
    if stacked or reason:
        return stacked, reason
    module, _, parameter = spec.name.rpartition(".")
    if parameter != "weight":
        return [], parameter or "no weight"
    if len(spec.shape) != 2 or not spec.size:
        return [], f"{len(spec.shape)} dimension{'s' * (len(spec.shape) != 1)}" if spec.size else "no elements"
    if rules.ignores(module):
        return [], IGNORED
    table = EMBEDDING if is_embedding(module, classes) else None
    kind = table or kind_of(module) or kind_by_shape(module, spec.shape, config)
    if kind and not rules.includes(module):
        return [], kind
    return [Matrix(module, spec.name, spec.shape, rules.scheme_of(module), kind)], ""


def _stacked(spec: TensorSpec, config: Mapping[str, Any], rules: Rules) -> tuple[list[Matrix], str]:
    """Return the matrices in a tensor of experts, or why they can't be quantized one by one; of others neither."""
    parent, _, name = spec.name.removesuffix(".weight").rpartition(".")
    if not is_stack(spec.name, spec.shape):
        return [], ""
    if not EXPERTS.fullmatch(parent):
        return [], "experts that readers have in one tensor only"
    experts, rows, columns = spec.shape
    stack = Stack(spec.name, (experts, rows, columns))
    types = model_types(config)
    if types & TRANSPOSED:
        return [], "experts as (inputs, outputs)"
    if types & ONE_TENSOR and not rules.includes(f"{parent}.0.{stack.parts[0]}", spec.name):
        return [], "experts that are read from one tensor"
    if not stack.is_even:
        return [], f"experts with {rows} rows, which are not {len(stack.parts)} matrices"
    axis = 1 if name == "down_proj" else 2
    sizes = [size for part in parts_of(config, LANGUAGE) if type(size := part.get("hidden_size")) is int]
    if sizes and spec.shape[axis] not in sizes:
        return [], f"experts with axis {axis} not of hidden_size"
    return [
        Matrix(module, spec.name, (stack.rows, columns), rules.scheme_of(module, spec.name), None, expert, first)
        for module, expert, first in stack.modules()
    ], ""


def is_matrix(spec: TensorSpec) -> bool:
    """Return whether a tensor is a matrix of floats, the weight of a module."""
    return len(spec.shape) == 2 and spec.size > 0 and spec.name.endswith(".weight") and spec.dtype in HALVES


def _check_schemes(plan: Plan, rules: Rules) -> None:
    modules = [matrix.module for matrix in plan.matrices]
    whole = [name.removesuffix(".weight") for name in plan.quantized]
    for pattern, scheme in rules.schemes:
        stay = [name.removesuffix(".weight") for name in plan.left if is_for(name.removesuffix(".weight"), pattern)]
        if stay and not any(is_for(module, pattern) for module in (*modules, *whole)):
            reason = plan.left.get(f"{stay[0]}.weight") or plan.left[stay[0]]
            way = "" if reason == "ignored" else f"; --include '{pattern}' quantizes matrices left alone by name"
            raise ValueError(f"{pattern} matches {stay[0]}, which is not quantized ({reason}) as {scheme.name}{way}")
    patterns = [pattern for pattern, _ in rules.schemes]
    check_patterns("--scheme-for", patterns, [*modules, *whole], "matrix that is quantized", is_for)


def _check_tied(matrices: Iterable[Matrix], config: Mapping[str, Any]) -> None:
    for matrix in matrices:
        if is_tied(matrix.kind, config):
            why = "embedding and output head are one matrix (tie_word_embeddings), which readers hold as floats"
            raise ValueError(f"{matrix.module} stays as it is: {why}")


def _check_groups(matrices: list[Matrix]) -> None:
    """Refuse groups that do not fill rows, as readers do."""
    sizes = {matrix.module: matrix.scheme.weights.group_size for matrix in matrices}
    bad = [matrix for matrix in matrices if sizes[matrix.module] and matrix.shape[1] % sizes[matrix.module]]
    if bad:
        first, *others = bad
        tails = sorted({re.escape(tail_of(each.module)) for each in bad})
        name = f"re:.*({'|'.join(tails)})$" if others else first.module
        # the option is for all integers in groups, so it must suit those that are right as they are, too
        most = math.gcd(*(matrix.shape[1] for matrix in matrices if matrix.scheme.in_groups))
        helps = most > 1 and all(matrix.scheme.in_groups for matrix in bad)
        ways = [f"a --group-size that divides {most}"] * helps
        ways += [f"--ignore {shlex.quote(name)}"] * (len(bad) < len(matrices))  # else nothing would be quantized
        ways += [f"--scheme-for {shlex.quote(name + '=W8A8')}"]
        raise ValueError(
            f"{first.module} has {first.shape[1]} columns, not a multiple of the group size {sizes[first.module]}"
            f"{f', and so have {len(others)} others' if others else ''}: {', or '.join(ways)}"
        )


def _check_fused(plan: Plan, tensors: Mapping[str, TensorSpec], rules: Rules) -> None:
    """Refuse or note unequal schemes of matrices that vLLM and SGLang read as one."""
    groups: dict[tuple[str, int], dict[str, str]] = {}
    for matrix in plan.matrices:
        groups.setdefault(read_as_one(matrix.module, matrix.shape[1]), {})[matrix.module] = repr(matrix.scheme)
    for name in plan.left:
        if is_matrix(tensors[name]) or is_stack(name, tensors[name].shape):
            module = name.removesuffix(".weight")
            groups.setdefault(read_as_one(module, tensors[name].shape[-1]), {})[module] = ""
    names = {repr(matrix.scheme): matrix.scheme.name for matrix in plan.matrices} | {"": "as it is"}
    unequal = [group for group in groups.values() if len(set(group.values())) > 1]
    if not unequal:
        return
    told = ", ".join(f"{module} {names[scheme]}" for module, scheme in list(unequal[0].items())[:6])
    note = f"matrices that vLLM and SGLang read as one have unequal schemes, which they refuse: {told}"
    note += f"; and {len(unequal) - 1} more such groups" if len(unequal) > 1 else ""
    if not rules.unequal or any(map(EXPERT.fullmatch, unequal[0])):
        tails = "|".join(dict.fromkeys(re.escape(module.rpartition(".")[2]) for module in unequal[0]))
        pattern = r"re:(.*\.)?experts\." if any(map(EXPERT.fullmatch, unequal[0])) else f"re:.*({tails})$"
        asked = next((names[each] for each in unequal[0].values() if each not in ("", repr(rules.scheme))), "")
        is_left = "" in unequal[0].values() or not asked
        way = f"--ignore '{pattern}'" if is_left else f"--scheme-for '{pattern}={asked}' as the first"
        raise ValueError(
            f"{note}. Give all of them one scheme, as with {way}, or pass --allow-unequal for transformers, which "
            "loads them except experts"
        )
    plan.notes.append(note)
