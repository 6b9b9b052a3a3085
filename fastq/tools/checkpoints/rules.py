"""The rules of a conversion: the scheme of each tensor, why others are left alone, and how to load the result."""

from __future__ import annotations

import math
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastq.tools.checkpoints import names as tables
from fastq.tools.checkpoints.folder import HALVES, LANGUAGE, ModelFolder, modules_of, parts_of
from fastq.tools.checkpoints.names import EXPERT, STACKED, fused_with, ignored, kind_of, tail_of
from fastq.tools.files.containers import TensorSpec
from fastq.tools.files.patterns import check_patterns, is_for
from fastq.tools.layouts.schemes import E4M3, E8M0, WORDS, LayerScheme

READER = "transformers 5.24"
AS_FLOATS = "CompressedTensorsConfig(dequantize=True)"
HEAD, EMBEDDING = "output head", "embedding"  # as `kind_of` calls them
MOST_NAMED = 3  # modules that a line names one by one
INT8, FP8 = "int-quantized", "float-quantized"  # formats whose codes replace the weight: all models load them


@dataclass(frozen=True)
class Rules:
    """The options of a user."""

    scheme: LayerScheme  # scheme of all weights without another scheme
    # patterns of modules to leave alone: see `fits` of fastq/tools/files/patterns.py
    ignore: tuple[str, ...] = ()
    schemes: tuple[tuple[str, LayerScheme], ...] = ()  # other schemes by pattern; the first pattern that matches counts
    include: tuple[str, ...] = ()  # patterns of modules to quantize that are left alone by default: heads, embeddings
    unequal: bool = False  # whether matrices that readers fuse may have different schemes

    def scheme_of(self, module: str) -> LayerScheme:
        """Return the scheme of a module."""
        return next((scheme for pattern, scheme in self.schemes if is_for(module, pattern)), self.scheme)

    def includes(self, module: str) -> bool:
        """Return whether a module of any kind is quantized: it is included, or has a scheme by its name."""
        named = any(pattern == module for pattern, _ in self.schemes)
        return named or any(is_for(module, pattern) for pattern in self.include)


@dataclass(frozen=True)
class Matrix:
    """A matrix to quantize: a tensor of the model, or some rows of one of its matrices."""

    module: str  # name of the layer, the start of the names of stored tensors
    tensor: str  # name of its tensor
    shape: tuple[int, int]
    scheme: LayerScheme
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


def make_plan(tensors: Mapping[str, TensorSpec], config: Mapping[str, Any], rules: Rules) -> Plan:
    """Decide the treatment of each tensor; raise ValueError if a matrix can't have its scheme, or a rule fits none."""
    for kind in sorted(model_types(config) & set(tables.OTHER_LAYERS)):
        what = tables.OTHER_LAYERS[kind]
        raise ValueError(f"models of type {kind} have {what}: compressed-tensors has no format for them")
    if "_diffusers_version" in config:
        raise ValueError("it is a model of diffusers, which does not read compressed-tensors")
    stacks = {name: [each.module for each in _stacked(spec, config, rules)[0]] for name, spec in tensors.items()}
    modules = [module for name in stacks for module in stacks[name] or [name.rpartition(".")[0]]]
    check_patterns("--ignore", rules.ignore, ["lm_head", *modules], "module", is_for)  # a head may be the embedding
    matrices = [name.removesuffix(".weight") for name, spec in tensors.items() if _is_matrix(spec)]
    matrices += [module for stacked in stacks.values() for module in stacked]
    check_patterns("--include", rules.include, matrices, "matrix", is_for)
    plan = Plan()
    for spec in tensors.values():
        found, reason = _weights(spec, config, rules)
        if found:
            plan.quantized[spec.name] = found
        else:
            plan.left[spec.name] = reason
    if not plan.quantized:
        wanted = "a two-dimensional weight that is not an embedding, norm or output head"
        raise ValueError(f"it has no matrix to quantize: {wanted}")
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
    return plan


def _weights(spec: TensorSpec, config: Mapping[str, Any], rules: Rules) -> tuple[list[Matrix], str]:
    """Return the matrices of a tensor to quantize, or an empty list and the reason."""
    if spec.dtype not in HALVES:
        return [], f"{spec.dtype}"
    stacked, reason = _stacked(spec, config, rules)
    if any(is_for(matrix.module, pattern) for matrix in stacked for pattern in rules.ignore):
        return [], "ignored"
    if stacked or reason:
        return stacked, reason
    module, _, parameter = spec.name.rpartition(".")
    if parameter != "weight":
        return [], parameter or "no weight"
    if len(spec.shape) != 2 or not spec.size:
        return [], f"{len(spec.shape)} dimension{'s' * (len(spec.shape) != 1)}" if spec.size else "no elements"
    if any(is_for(module, pattern) for pattern in rules.ignore):
        return [], "ignored"
    known = None if rules.includes(module) else kind_of(module)
    return ([], known) if known else ([Matrix(module, spec.name, spec.shape, rules.scheme_of(module))], "")


def _stacked(spec: TensorSpec, config: Mapping[str, Any], rules: Rules) -> tuple[list[Matrix], str]:
    """Return the matrices in a tensor of experts, or why they can't be quantized one by one; of others neither."""
    parent, _, name = spec.name.removesuffix(".weight").rpartition(".")
    if not _is_stack(spec):
        return [], ""
    (experts, rows, columns), parts, types = spec.shape, STACKED[name], model_types(config)
    if types & tables.TRANSPOSED:
        return [], "experts as (inputs, outputs)"
    if types & tables.ONE_TENSOR and not rules.includes(f"{parent}.0.{parts[0]}"):
        return [], "experts that are read from one tensor"
    axis = 1 if name == "down_proj" else 2
    sizes = [size for part in parts_of(config, LANGUAGE) if type(size := part.get("hidden_size")) is int]
    if sizes and spec.shape[axis] not in sizes:
        return [], f"experts with axis {axis} not of hidden_size"
    each, found = rows // len(parts), []
    for expert in range(experts if each * len(parts) == rows else 0):
        for index, part in enumerate(parts):
            module = f"{parent}.{expert}.{part}"
            scheme = rules.scheme_of(module)
            found.append(Matrix(module, spec.name, (each, columns), scheme, expert, index * each))
    return found, ""


def _is_stack(spec: TensorSpec) -> bool:
    name = spec.name.removesuffix(".weight").rpartition(".")[2]
    return len(spec.shape) == 3 and spec.size > 0 and name in STACKED


def model_types(config: Mapping[str, Any]) -> set[str]:
    """Return the types of a model and of the models within it."""
    return {part["model_type"] for part in parts_of(config) if isinstance(part.get("model_type"), str)}


def _is_matrix(spec: TensorSpec) -> bool:
    return len(spec.shape) == 2 and spec.size > 0 and spec.name.endswith(".weight") and spec.dtype in HALVES


def _check_schemes(plan: Plan, rules: Rules) -> None:
    modules = [matrix.module for matrix in plan.matrices]
    for pattern, scheme in rules.schemes:
        stay = [name.removesuffix(".weight") for name in plan.left if is_for(name.removesuffix(".weight"), pattern)]
        if stay and not any(is_for(module, pattern) for module in modules):
            reason = plan.left.get(f"{stay[0]}.weight") or plan.left[stay[0]]
            way = "" if reason == "ignored" else f"; --include '{pattern}' quantizes matrices left alone by name"
            raise ValueError(f"{pattern} matches {stay[0]}, which is not quantized ({reason}) as {scheme.name}{way}")
    check_patterns(
        "--scheme-for", [pattern for pattern, _ in rules.schemes], modules, "matrix that is quantized", is_for
    )


def _is_tied(module: str, config: Mapping[str, Any]) -> bool:
    """Whether a head or an embedding is, or may be, one matrix with another one: readers hold it as floats."""
    flags, kind = [part.get("tie_word_embeddings") for part in parts_of(config)], kind_of(module)
    named = config.get("architectures")
    bare = isinstance(named, list) and bool(named) and str(named[0]).endswith("Model")  # has no head
    perhaps = True in flags or (kind == EMBEDDING and False not in flags)
    return perhaps and not bare and kind in (HEAD, EMBEDDING)


def _check_tied(matrices: Iterable[Matrix], config: Mapping[str, Any]) -> None:
    for matrix in matrices:
        if _is_tied(matrix.module, config):
            why = "embedding and output head are one matrix (tie_word_embeddings), which readers hold as floats"
            raise ValueError(f"{matrix.module} stays as it is: {why}")


def left_as_floats(plan: Plan, source: ModelFolder, rules: Rules) -> list[str]:
    """Return lines on embeddings and heads that stay as they are, and on the options that quantize them."""
    found: dict[bool, dict[str, int]] = {False: {}, True: {}}  # bytes by names of those that are tied and not
    for name, why in plan.left.items():
        module, spec = name.removesuffix(".weight"), source.tensors[name]
        group = rules.scheme_of(module).weights.group_size
        if why in (HEAD, EMBEDDING) and _is_matrix(spec) and not (group and spec.shape[1] % group):
            found[_is_tied(module, source.config)][module] = spec.nbytes
    lines = []
    for tied, sizes in found.items():
        names = [f"--include {module}" for module in sizes]
        if len(names) > MOST_NAMED:
            tails = "|".join(dict.fromkeys(re.escape(tail_of(module)) for module in sizes))
            names = [f"--include 're:.*({tails})$'"]
        way = "embedding and output head are, or may be, one matrix" if tied else f"{' '.join(names)} quantizes them"
        told = f"left as floats: embeddings and output heads, {sum(sizes.values()):,} bytes; {way}"
        lines += [told] * bool(sizes)
    return lines


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
        raise ValueError(
            f"{first.module} has {first.shape[1]} columns, not a multiple of the group size {sizes[first.module]}"
            f"{f', and so have {len(others)} others' if others else ''}: "
            f"{f'a --group-size that divides {most}, ' if helps else ''}--ignore {shlex.quote(name)}, "
            f"or --scheme-for {shlex.quote(name + '=W8A8')}"
        )


def _check_fused(plan: Plan, tensors: Mapping[str, TensorSpec], rules: Rules) -> None:
    """Refuse or note unequal schemes of matrices that vLLM and SGLang read as one."""
    groups: dict[tuple[str, int], dict[str, str]] = {}
    for matrix in plan.matrices:
        groups.setdefault(read_as_one(matrix.module, matrix.shape[1]), {})[matrix.module] = repr(matrix.scheme)
    for name in plan.left:
        if _is_matrix(tensors[name]) or _is_stack(tensors[name]):
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
        raise ValueError(
            f"{note}. Give all of them one scheme, as with --ignore 're:.*({tails})$', or pass --allow-unequal for "
            "transformers, which loads them except experts"
        )
    plan.notes.append(note)


def read_as_one(module: str, columns: int) -> tuple[str, int]:
    """Return the name of the group in which a matrix is read: experts of one layer, or modules with the same inputs."""
    expert = EXPERT.fullmatch(module)
    if expert:
        return expert[1], 0
    parent, _, name = module.rpartition(".")
    return (parent, 0) if name in STACKED and parent.endswith("experts") else (fused_with(module), columns)


def loading(out: Path, source: ModelFolder, quantized: Iterable[Matrix]) -> list[str]:
    """Return lines with the call that loads a directory, given its source and the matrices that are quantized.

    transformers decodes all weights by one scheme if it is asked for floats; otherwise each when it is first used.
    Models that look at a weight before that, embeddings, and sentence-transformers need floats, which are the same
    numbers.
    """
    matrices = list(quantized)
    schemes = {matrix.scheme for matrix in matrices}
    way = f"fastq convert {shlex.quote(str(out))} FLOATS --dequantize writes floats for any reader"
    lines = [*_not_loaded(matrices, source, way)]
    if lines:
        return lines
    direct = all(scheme.format in (INT8, FP8) for scheme in schemes) and not _has_embeddings(matrices)
    floats = len(schemes) == 1 and not direct and not model_types(source.config) & tables.NOT_AS_FLOATS
    sentences = bool(modules_of(out))
    if sentences and len(schemes) > 1:  # its models need floats, and floats need one scheme
        lines.append(f"sentence-transformers reads one scheme only, {READER} several; {way}")
        sentences = False
    options = []
    if source.dtype != "BF16" and any(scheme.weights.scale_dtype in (E4M3, E8M0) for scheme in schemes):
        told = ", ".join(sorted({scheme.name for scheme in schemes}))
        lines.append(f"readers have the values of {told} in bfloat16, and the model is {HALVES[source.dtype]}")
        options += ["dtype=torch.bfloat16"] * (not floats)
    if floats or sentences:
        options.append(f"quantization_config={AS_FLOATS}")
    call = _call(out, source, options, sentences)
    reader = call.partition("(")[0].partition(".")[0]
    of_sentences = reader == "SentenceTransformer"
    statements = ["from sentence_transformers import SentenceTransformer"] * of_sentences
    names = [reader] * (not of_sentences) + ["CompressedTensorsConfig"] * (AS_FLOATS in call)
    statements += [f"from transformers import {', '.join(sorted(names))}"] * bool(names)
    statements += ["import torch"] * ("torch.bfloat16" in call)
    return [*lines, f"to import: {'; '.join(statements)}", f"to load it: {call}"]


def _has_embeddings(matrices: Iterable[Matrix]) -> bool:
    return any(kind_of(matrix.module) == EMBEDDING for matrix in matrices)


def _not_loaded(matrices: list[Matrix], source: ModelFolder, way: str) -> Iterable[str]:
    """Yield why transformers does not load some matrices; several schemes as floats have a way out."""
    schemes = {matrix.scheme for matrix in matrices}
    experts = {matrix.scheme for matrix in matrices if EXPERT.fullmatch(matrix.module)}
    needed = ["zero points"] * (not all(scheme.weights.symmetric for scheme in schemes))
    needed += ["embeddings"] * _has_embeddings(matrices)
    if needed and len(schemes) > 1:
        yield f"{READER} reads {' and '.join(needed)} with {AS_FLOATS} only, and several schemes without it only; {way}"
    ways, formats = ("group", "channel"), (WORDS, FP8, "mxfp4-pack-quantized")  # schemes in which it reads experts
    read = [each for each in experts if each.format in formats and each.weights.strategy in ways]
    if len(experts) > 1 or len(read) < len(experts) or not all(each.weights.symmetric for each in read):
        yield f"{READER} does not load experts in {', '.join(sorted(scheme.name for scheme in experts))}"
    by_rows = all(scheme.weights.strategy == "channel" for scheme in schemes)
    for kind in sorted(model_types(source.config) & (tables.NOT_BY_ROWS if by_rows else tables.SPLIT_BY_READERS)):
        advice = "" if kind in tables.NOT_BY_ROWS else "; it does so with FP8_DYNAMIC or W8A8"
        yield f"{READER} does not load such a model of type {kind}, whose matrices it splits or joins{advice}"


def _call(out: Path, source: ModelFolder, options: list[str], sentences: bool) -> str:
    if sentences:
        inner = ", ".join(f'"{key}": {value}' for key, _, value in (option.partition("=") for option in options))
        return f"SentenceTransformer({str(out)!r}" + (f", model_kwargs={{{inner}}})" if inner else ")")
    names = source.config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    reader = name if isinstance(name, str) and name.isidentifier() else "AutoModel"  # the line will be pasted into code
    if isinstance(source.config.get("auto_map"), dict):
        reader, options = "AutoModel", [*options, "trust_remote_code=True"]
    return f"{reader}.from_pretrained({', '.join([repr(str(out)), *options])})"
