"""The plan of a conversion: the scheme of each tensor by the rules of a user, and why others are left alone."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastq.tools.checkpoints.config_json import HALVES, LANGUAGE, model_types, parts_of
from fastq.tools.checkpoints.experts import EXPERT, EXPERTS, ONE_TENSOR, STACKED, TRANSPOSED, Stack, is_stack
from fastq.tools.checkpoints.fused_modules import read_as_one
from fastq.tools.checkpoints.module_names import tail_of
from fastq.tools.checkpoints.own_code import NO_CODE, OwnCode, kind_in_code, taken_for_linear
from fastq.tools.checkpoints.skipped_modules import EMBEDDING, OTHER_LAYER, ignore_list, kind_by_shape, kind_of
from fastq.tools.checkpoints.tied_embeddings import is_tied
from fastq.tools.files.patterns import check_patterns, matches_module, matches_tensor
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
IGNORED = "ignored"  # the reason for a matrix that an option leaves alone
MOST_OF_GROUP = 6  # modules of a group of fused ones that a line names


@dataclass(frozen=True)
class Rules:
    """The options of `fastq convert` that say what is quantized, and how."""

    scheme: LayerScheme  # scheme of all weights without another scheme
    # patterns of modules to leave alone: see `matches_tensor` of fastq/tools/files/patterns.py
    ignore: tuple[str, ...] = ()
    schemes: tuple[tuple[str, LayerScheme], ...] = ()  # other schemes by pattern; the first pattern that matches counts
    include: tuple[str, ...] = ()  # patterns of modules to quantize that are left alone by default: heads, embeddings
    unequal: bool = False  # whether matrices that readers fuse may have different schemes

    def scheme_of(self, module: str, stack: str = "") -> LayerScheme:
        """Return the scheme of a module; `stack` is the tensor of experts that has its weight, if there is one."""
        matching = (scheme for pattern, scheme in self.schemes if _matches(pattern, module, stack))
        return next(matching, self.scheme)

    def includes(self, module: str, stack: str = "") -> bool:
        """Return whether a module is quantized whatever its kind: by --include, or by a scheme for its name."""
        has_own_scheme = any(pattern == module for pattern, _ in self.schemes)
        return has_own_scheme or any(_matches(pattern, module, stack) for pattern in self.include)

    def ignores(self, module: str, stack: str = "") -> bool:
        """Return whether a module is left alone by an option."""
        return any(_matches(pattern, module, stack) for pattern in self.ignore)


def _matches(pattern: str, module: str, stack: str) -> bool:
    """Return whether a pattern matches a module, or the tensor of experts that has its weight."""
    return matches_module(module, pattern) or (bool(stack) and matches_tensor(stack, pattern))


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """A matrix to quantize: a tensor of the model, or some rows of one of its matrices."""

    module: str  # name of the layer, the start of the names of stored tensors
    tensor: str  # name of its tensor
    shape: tuple[int, int]
    scheme: LayerScheme
    kind: str | None = None  # "output head", "embedding" or another kind that is left alone by default
    expert: int | None = None  # index of the matrix in the tensor; None: the tensor is the matrix
    first: int = 0  # first row in that matrix

    def in_tensor(self, tensor: Any) -> Any:
        """Return the values of the matrix, given those of its tensor."""
        matrix = tensor if self.expert is None else tensor[self.expert]
        return matrix[self.first : self.first + self.shape[0]]


@dataclass
class Plan:
    """What becomes of each tensor."""

    quantized: dict[str, list[Matrix]] = field(default_factory=dict)  # matrices by tensor
    copied: dict[str, str] = field(default_factory=dict)  # for each other tensor the reason why it is copied
    notes: list[str] = field(default_factory=list)  # warnings about readers
    assumed: list[str] = field(default_factory=list)  # modules that nothing but their shape tells to be Linear
    unread_code: Mapping[str, str] = field(default_factory=dict)  # files of the model's code, with the reasons

    @property
    def matrices(self) -> Iterator[Matrix]:
        """All matrices to quantize."""
        return (matrix for matrices in self.quantized.values() for matrix in matrices)

    def modules_to_ignore(self, tensors: Mapping[str, TensorSpec]) -> list[str]:
        """Return the names and patterns of modules that stay as floats, which readers need to know."""
        modules = set()
        for name in self.copied:
            parent, _, parameter = name.removesuffix(".weight").rpartition(".")
            if len(tensors[name].shape) == 2 and name.endswith(".weight"):
                modules.add(name.removesuffix(".weight"))
            elif len(tensors[name].shape) == 3 and parameter in STACKED:
                modules.add(parent)
        return ignore_list(modules, [matrix.module for matrix in self.matrices])


def make_plan(
    tensors: Mapping[str, TensorSpec], config: Mapping[str, Any], rules: Rules, code: OwnCode = NO_CODE
) -> Plan:
    """Decide what becomes of each tensor. Raise ValueError if a scheme can't be used, or a rule matches nothing."""
    _check_model(config)
    _check_patterns(tensors, config, rules)
    plan = Plan()
    for spec in tensors.values():
        matrices, reason = _matrices_to_quantize(spec, config, rules, code)
        if matrices:
            plan.quantized[spec.name] = matrices
        else:
            plan.copied[spec.name] = reason
    if not plan.quantized:
        needed = "a two-dimensional weight that is not an embedding, norm or output head"
        raise ValueError(f"it has no matrix to quantize: {needed}{_advice_for_no_matrix(plan, tensors)}")
    _check_schemes(plan, rules)
    _check_names(plan, tensors)
    _check_tied(plan.matrices, config)
    _check_groups(list(plan.matrices))
    _check_fused(plan, tensors, rules)
    modules_of_no_kind = [matrix.module for matrix in plan.matrices if not matrix.kind]
    plan.assumed += taken_for_linear(modules_of_no_kind, config, code)
    plan.unread_code = code.unread
    return plan


def _advice_for_no_matrix(plan: Plan, tensors: Mapping[str, TensorSpec]) -> str:
    """Return the end of the error about a model without a matrix to quantize: what else quantizes its tensors."""
    if OTHER_LAYER in plan.copied.values():
        return f"; --include '*' quantizes those that are {OTHER_LAYER}, for readers of floats"
    has_floats = any(spec.dtype in HALVES and len(spec.shape) > 1 and spec.size for spec in tensors.values())
    return "; fastq quantize takes its file, with tensors of any name" if has_floats else ""


def _check_model(config: Mapping[str, Any]) -> None:
    """Refuse models that readers of compressed-tensors can't have."""
    for model_type in sorted(model_types(config) & set(OTHER_LAYERS)):
        layers = OTHER_LAYERS[model_type]
        raise ValueError(f"models of type {model_type} have {layers}: compressed-tensors has no format for them")
    if "_diffusers_version" in config:
        raise ValueError("it is a model of diffusers, which does not read compressed-tensors")


def _check_patterns(tensors: Mapping[str, TensorSpec], config: Mapping[str, Any], rules: Rules) -> None:
    """Refuse patterns of modules to leave alone, or to quantize, that match nothing: the user meant something else."""
    modules: list[str] = []
    modules_of_experts: list[str] = []
    for name, spec in tensors.items():
        expert_matrices, _ = _expert_matrices(spec, config, rules)
        experts_in_tensor = [matrix.module for matrix in expert_matrices]
        modules += experts_in_tensor or [name.rpartition(".")[0]]
        modules_of_experts += experts_in_tensor
    # names of tensors, too, such as those of stacked experts; a head that is the embedding is in no file
    names_of_tensors = [name.removesuffix(".weight") for name, spec in tensors.items() if len(spec.shape) > 1]
    check_patterns("--ignore", rules.ignore, ["lm_head", *modules, *names_of_tensors], "module", matches_module)
    matrices = [name.removesuffix(".weight") for name, spec in tensors.items() if is_matrix(spec)]
    stacks = [name.removesuffix(".weight") for name, spec in tensors.items() if is_stack(spec.name, spec.shape)]
    check_patterns("--include", rules.include, [*matrices, *stacks, *modules_of_experts], "matrix", matches_module)


def _matrices_to_quantize(
    spec: TensorSpec, config: Mapping[str, Any], rules: Rules, code: OwnCode
) -> tuple[list[Matrix], str]:
    """Return the matrices of a tensor to quantize, or an empty list and the reason why it is copied.

    An option that leaves one matrix of a tensor of experts alone leaves all of them: readers need one scheme.
    """
    if spec.dtype not in HALVES:
        return [], f"{spec.dtype}"
    matrices, reason = _expert_matrices(spec, config, rules)
    if any(rules.ignores(matrix.module, spec.name) for matrix in matrices):
        return [], IGNORED
    if matrices or reason:
        return matrices, reason
    module, _, parameter = spec.name.rpartition(".")
    if parameter != "weight":
        return [], parameter or "no weight"
    if not spec.size:
        return [], "no elements"
    if len(spec.shape) != 2:
        return [], f"{len(spec.shape)} dimension{'s' * (len(spec.shape) != 1)}"
    if rules.ignores(module):
        return [], IGNORED
    kind = _kind_of_matrix(module, spec, config, code)
    if kind and not rules.includes(module):
        return [], kind
    rows, columns = spec.shape
    scheme = rules.scheme_of(module)
    return [Matrix(module=module, tensor=spec.name, shape=(rows, columns), scheme=scheme, kind=kind)], ""


def _kind_of_matrix(module: str, spec: TensorSpec, config: Mapping[str, Any], code: OwnCode) -> str | None:
    """Return the kind of a matrix that is left alone by default, else None.

    Its name or its shape tells more than the code of the model, which knows embeddings for certain.
    """
    kind = kind_of(module) or kind_by_shape(module, spec.shape, config)
    kind_by_code = kind_in_code(module, code.classes)
    return kind_by_code if kind is None or kind_by_code == EMBEDDING else kind


def _expert_matrices(spec: TensorSpec, config: Mapping[str, Any], rules: Rules) -> tuple[list[Matrix], str]:
    """Return the matrices in a tensor of experts, or why they can't be quantized one by one.

    Of any other tensor, return no matrices and no reason.
    """
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
    # the first matrix stands for all: an option includes a tensor as a whole
    if types & ONE_TENSOR and not rules.includes(f"{parent}.0.{stack.parts[0]}", spec.name):
        return [], "experts that are read from one tensor"
    if not stack.is_even:
        return [], f"experts with {rows} rows, which are not {len(stack.parts)} matrices"
    # the inputs of gate and up, and the outputs of down, are hidden_size: another length tells transposed matrices
    axis = 1 if name == "down_proj" else 2
    sizes = [size for part in parts_of(config, LANGUAGE) if type(size := part.get("hidden_size")) is int]
    if sizes and spec.shape[axis] not in sizes:
        return [], f"experts with axis {axis} not of hidden_size"
    matrices = [
        Matrix(
            module=module,
            tensor=spec.name,
            shape=(stack.rows, columns),
            scheme=rules.scheme_of(module, spec.name),
            expert=expert,
            first=first,
        )
        for module, expert, first in stack.modules()
    ]
    return matrices, ""


def is_matrix(spec: TensorSpec) -> bool:
    """Return whether a tensor is a matrix of floats, the weight of a module."""
    return len(spec.shape) == 2 and spec.size > 0 and spec.name.endswith(".weight") and spec.dtype in HALVES


def _check_schemes(plan: Plan, rules: Rules) -> None:
    """Refuse schemes for patterns that match no matrix that is quantized, and say why the matching ones are not."""
    quantized = [matrix.module for matrix in plan.matrices]
    quantized += [name.removesuffix(".weight") for name in plan.quantized]
    for pattern, scheme in rules.schemes:
        if any(matches_module(module, pattern) for module in quantized):
            continue
        for name, reason in plan.copied.items():
            module = name.removesuffix(".weight")
            if matches_module(module, pattern):
                advice = "" if reason == IGNORED else f"; --include '{pattern}' quantizes matrices left alone by name"
                raise ValueError(
                    f"{pattern} matches {module}, which is not quantized ({reason}) as {scheme.name}{advice}"
                )
    patterns = [pattern for pattern, _ in rules.schemes]
    check_patterns("--scheme-for", patterns, quantized, "matrix that is quantized", matches_module)


def _check_names(plan: Plan, tensors: Mapping[str, TensorSpec]) -> None:
    """Refuse matrices whose stored tensors would have the names of others."""
    modules = [matrix.module for matrix in plan.matrices]
    for module in modules:
        for end in ("weight_scale", "weight_packed"):
            if f"{module}.{end}" in tensors:
                raise ValueError(f"{module} has a {end}, but config.json has no quantization_config that describes it")
    duplicates = [module for module, count in Counter(modules).items() if count > 1]
    if duplicates:
        raise ValueError(f"two tensors would become the weight of {duplicates[0]}")


def _check_tied(matrices: Iterable[Matrix], config: Mapping[str, Any]) -> None:
    """Refuse to quantize an embedding and an output head that are one matrix."""
    for matrix in matrices:
        if is_tied(matrix.kind, config):
            reason = "embedding and output head are one matrix (tie_word_embeddings), which readers hold as floats"
            raise ValueError(f"{matrix.module} stays as it is: {reason}")


def _check_groups(matrices: list[Matrix]) -> None:
    """Refuse groups that do not fill whole rows; readers refuse them too. The error names options that help."""
    cut_off = []  # the matrices in whose rows the last group would be cut off
    for matrix in matrices:
        group_size = matrix.scheme.weights.group_size
        if group_size and matrix.shape[1] % group_size:
            cut_off.append(matrix)
    if not cut_off:
        return
    first_matrix, *other_matrices = cut_off
    tails = sorted({re.escape(tail_of(matrix.module)) for matrix in cut_off})
    pattern = f"re:.*({'|'.join(tails)})$" if other_matrices else first_matrix.module
    # the option is for all integers in groups, so it must suit those that are right as they are, too
    divisor = math.gcd(*(matrix.shape[1] for matrix in matrices if matrix.scheme.in_groups))
    is_option_enough = divisor > 1 and all(matrix.scheme.in_groups for matrix in cut_off)
    advice = [f"a --group-size that divides {divisor}"] if is_option_enough else []
    if len(cut_off) < len(matrices):  # else nothing would be quantized
        advice.append(f"--ignore {shlex.quote(pattern)}")
    advice.append(f"--scheme-for {shlex.quote(pattern + '=W8A8')}")
    group_size = first_matrix.scheme.weights.group_size
    raise ValueError(
        f"{first_matrix.module} has {first_matrix.shape[1]} columns, not a multiple of the group size {group_size}"
        f"{f', and so have {len(other_matrices)} others' if other_matrices else ''}: {', or '.join(advice)}"
    )


# the matrices that readers fuse with each other, by module: the scheme of each, None for one that is not quantized
FusedSchemes = dict[str, LayerScheme | None]


def _check_fused(plan: Plan, tensors: Mapping[str, TensorSpec], rules: Rules) -> None:
    """Refuse unequal schemes of matrices that vLLM and SGLang fuse; note them if they are allowed."""
    unequal = [fused for fused in _fused_matrices(plan, tensors) if len(set(fused.values())) > 1]
    if not unequal:
        return
    first_group = unequal[0]
    listed = list(first_group.items())[:MOST_OF_GROUP]
    schemes = ", ".join(f"{module} {'as it is' if scheme is None else scheme.name}" for module, scheme in listed)
    note = f"matrices that vLLM and SGLang read as one have unequal schemes, which they refuse: {schemes}"
    note += f"; and {len(unequal) - 1} more such groups" if len(unequal) > 1 else ""
    if not rules.unequal or any(map(EXPERT.fullmatch, first_group)):
        raise ValueError(
            f"{note}. Give all of them one scheme, as with {_option_for_one_scheme(first_group, rules)}, or pass "
            "--allow-unequal for transformers, which loads them except experts"
        )
    plan.notes.append(note)


def _fused_matrices(plan: Plan, tensors: Mapping[str, TensorSpec]) -> Iterable[FusedSchemes]:
    """Return the groups of matrices that readers fuse, also those that are not quantized."""
    groups: dict[tuple[str, int], FusedSchemes] = {}
    for matrix in plan.matrices:
        groups.setdefault(read_as_one(matrix.module, matrix.shape[1]), {})[matrix.module] = matrix.scheme
    for name in plan.copied:
        if is_matrix(tensors[name]) or is_stack(name, tensors[name].shape):
            module = name.removesuffix(".weight")
            groups.setdefault(read_as_one(module, tensors[name].shape[-1]), {})[module] = None
    return groups.values()


def _option_for_one_scheme(fused: FusedSchemes, rules: Rules) -> str:
    """Return the option by which fused matrices have one scheme: no scheme at all, if one of them is not quantized.

    The first --scheme-for whose pattern matches counts, so it must come before those that made them unequal.
    """
    if any(map(EXPERT.fullmatch, fused)):
        pattern = r"re:(.*\.)?experts\."
    else:
        tails = "|".join(dict.fromkeys(re.escape(module.rpartition(".")[2]) for module in fused))
        pattern = f"re:.*({tails})$"
    other_schemes = (scheme for scheme in fused.values() if scheme not in (None, rules.scheme))
    other_scheme = next(other_schemes, None)
    if other_scheme is None or None in fused.values():
        return f"--ignore '{pattern}'"
    return f"--scheme-for '{pattern}={other_scheme.name}' as the first"
