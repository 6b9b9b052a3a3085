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
from fastq.tools.checkpoints.names import EXPERT, EXPERTS, STACKED, fused_with, ignored, kind_of, tail_of
from fastq.tools.checkpoints.stacks import Stack, is_stack
from fastq.tools.files.patterns import check_patterns, fits, is_for
from fastq.tools.files.tensor_specs import TensorSpec
from fastq.tools.files.texts import some_of
from fastq.tools.layouts.schemes import E4M3, E8M0, WORDS, LayerScheme

READER = "transformers 5.24"
AS_FLOATS = "CompressedTensorsConfig(dequantize=True)"
# as `kind_of` calls them
HEAD = "output head"
EMBEDDING = "embedding"
ROUTER = "router"
NORM = "normalization"
EXPERT_COUNT = re.compile(r"(num|n|number_of)_(\w+_)?experts$")  # keys of config.json
OTHER_SIZE = re.compile(r"size|dim|hidden|width|inner|length|position")  # and those of axes that are not words
IGNORED = "ignored"  # why a matrix stays that an option names
GATE = re.compile(r"gate(?!_proj)|router|switch|^wg$", re.IGNORECASE)  # parts of the names of routers
NUMBERED = re.compile(r"(^|\.)\d+\.")  # names of modules within layers
NOTABLE = 0.1  # share of the bytes of a model from which tensors of other shapes are told of
CAUSAL = "AutoModelForCausalLM"
MOST_NAMED = 3  # modules that a line names one by one
# formats whose codes replace the weight: all models load them
INT8 = "int-quantized"
FP8 = "float-quantized"


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
    # names of the tensors of experts, too; a head may be the embedding
    whole = [name.removesuffix(".weight") for name, spec in tensors.items() if is_stack(spec.name, spec.shape)]
    check_patterns("--ignore", rules.ignore, ["lm_head", *modules, *whole], "module", is_for)
    matrices = [name.removesuffix(".weight") for name, spec in tensors.items() if _is_matrix(spec)]
    matrices += [*whole, *(module for stacked in stacks.values() for module in stacked)]
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
    return plan


def _weights(spec: TensorSpec, config: Mapping[str, Any], rules: Rules) -> tuple[list[Matrix], str]:
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
    kind = kind_of(module) or _kind_by_shape(module, spec.shape, config)
    if kind and not rules.includes(module):
        return [], kind
    return [Matrix(module, spec.name, spec.shape, rules.scheme_of(module), kind)], ""


def _kind_by_shape(module: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> str | None:
    """Return the kind of a matrix whose name is not known, by the sizes in config.json: embedding, router or None.

    A matrix outside the layers with a row for each word, of which there are more than columns, is an embedding, or a
    head, which stays as well. A module of a gate or of a router with a row for each expert is a router.
    """
    words, experts, others = (set[int]() for _ in range(3))
    for part in parts_of(config):
        for key, size in part.items():
            if type(size) is not int:
                continue
            if key.endswith("vocab_size"):
                words.add(size)
            elif EXPERT_COUNT.search(key):
                experts.add(size)
            elif OTHER_SIZE.search(key):
                others.add(size)
    if shape[0] in words - others and shape[0] > shape[1] and not NUMBERED.search(module):
        return EMBEDDING
    is_gate = any(GATE.search(name) for name in module.split(".")[-2:])
    return ROUTER if is_gate and shape[0] in experts else None


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
    if types & tables.TRANSPOSED:
        return [], "experts as (inputs, outputs)"
    if types & tables.ONE_TENSOR and not rules.includes(f"{parent}.0.{stack.parts[0]}", spec.name):
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


def model_types(config: Mapping[str, Any]) -> set[str]:
    """Return the types of a model and of the models within it."""
    return {part["model_type"] for part in parts_of(config) if isinstance(part.get("model_type"), str)}


def _is_matrix(spec: TensorSpec) -> bool:
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


def _is_tied(kind: str | None, config: Mapping[str, Any]) -> bool:
    """Whether a head or an embedding is, or may be, one matrix with another one: readers hold it as floats."""
    flags = [part.get("tie_word_embeddings") for part in parts_of(config)]
    named = config.get("architectures")
    bare = isinstance(named, list) and bool(named) and str(named[0]).endswith("Model")  # has no head
    perhaps = True in flags or (kind == EMBEDDING and False not in flags)
    return perhaps and not bare and kind in (HEAD, EMBEDDING)


def _check_tied(matrices: Iterable[Matrix], config: Mapping[str, Any]) -> None:
    for matrix in matrices:
        if _is_tied(matrix.kind, config):
            why = "embedding and output head are one matrix (tie_word_embeddings), which readers hold as floats"
            raise ValueError(f"{matrix.module} stays as it is: {why}")


def left_as_floats(plan: Plan, source: ModelFolder, rules: Rules) -> list[str]:
    """Return lines on weights that stay as they are, and on the options that quantize them.

    These are embeddings and heads, experts, and tensors of other shapes or names if they are a large part of the model.
    """
    found: dict[bool, dict[str, int]] = {False: {}, True: {}}  # bytes by names of those that are tied and not
    for name, why in plan.left.items():
        module = name.removesuffix(".weight")
        spec = source.tensors[name]
        group = rules.scheme_of(module).weights.group_size
        if why in (HEAD, EMBEDDING) and _is_matrix(spec) and not (group and spec.shape[1] % group):
            found[_is_tied(why, source.config)][module] = spec.nbytes
    lines = []
    for tied, sizes in found.items():
        names = [f"--include {module}" for module in sizes]
        if len(names) > MOST_NAMED:
            tails = "|".join(dict.fromkeys(re.escape(tail_of(module)) for module in sizes))
            names = [f"--include 're:.*({tails})$'"]
        way = "embedding and output head are, or may be, one matrix" if tied else f"{' '.join(names)} quantizes them"
        told = f"left as floats: embeddings and output heads, {sum(sizes.values()):,} bytes; {way}"
        lines += [told] * bool(sizes)
    return [*lines, *_other_floats(plan, source)]


def _other_floats(plan: Plan, source: ModelFolder) -> Iterator[str]:
    """Yield lines on experts that stay as they are, and on other tensors of two or more axes."""
    told: dict[str, list[str]] = {"experts": [], "other tensors of two or more axes": []}
    experts, others = told.values()
    for name, why in plan.left.items():
        spec = source.tensors[name]
        if spec.dtype in HALVES and len(spec.shape) > 1 and why not in (HEAD, EMBEDDING, ROUTER, NORM, IGNORED):
            (experts if is_stack(name, spec.shape) or ".experts." in f".{name}" else others).append(name)
    total = sum(spec.nbytes for spec in source.tensors.values())
    for what, names in told.items():
        nbytes = sum(source.tensors[name].nbytes for name in names)
        if names and (names is experts or nbytes > NOTABLE * total):
            reasons = ", ".join(dict.fromkeys(_reason_text(plan.left[name]) for name in names))
            yield f"left as floats: {what}, {nbytes:,} bytes ({reasons}): {some_of(names)}"


def _reason_text(reason: str) -> str:
    """Return a reason for the table as one for a line: that of a parameter is its name, which is not weight."""
    return reason if " " in reason else f"named {reason}"


def code_of_its_own(plan: Plan, source: ModelFolder) -> Iterator[str]:
    """Yield a line on matrices outside the layers, if the model has code that may use them as other than Linear."""
    names = [matrix.module for matrix in plan.matrices if not (matrix.kind or NUMBERED.search(matrix.module))]
    if names and isinstance(source.config.get("auto_map"), dict):
        yield f"the model has code of its own: {some_of(names)} are taken for Linear layers; --ignore leaves others"


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
        if _is_matrix(tensors[name]) or is_stack(name, tensors[name].shape):
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
    return any(matrix.kind == EMBEDDING for matrix in matrices)


def _not_loaded(matrices: list[Matrix], source: ModelFolder, way: str) -> Iterable[str]:
    """Yield why transformers does not load some matrices; several schemes as floats have a way out."""
    schemes = {matrix.scheme for matrix in matrices}
    experts = {matrix.scheme for matrix in matrices if EXPERT.fullmatch(matrix.module)}
    needed = ["zero points"] * (not all(scheme.weights.symmetric for scheme in schemes))
    needed += ["embeddings"] * _has_embeddings(matrices)
    if needed and len(schemes) > 1:
        yield f"{READER} reads {' and '.join(needed)} with {AS_FLOATS} only, and several schemes without it only; {way}"
    # schemes in which it reads experts
    ways = ("group", "channel")
    formats = (WORDS, FP8, "mxfp4-pack-quantized")
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
        arguments = [repr(str(out)), *[f"model_kwargs={{{inner}}}"] * bool(inner)]
        arguments += ["trust_remote_code=True"] * isinstance(source.config.get("auto_map"), dict)
        return f"SentenceTransformer({', '.join(arguments)})"
    names = source.config.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    reader = name if isinstance(name, str) and name.isidentifier() else "AutoModel"  # the line will be pasted into code
    if own := _class_of_own_code(source.config, reader):
        reader = own
        options = [*options, "trust_remote_code=True"]
    return f"{reader}.from_pretrained({', '.join([repr(str(out)), *options])})"


def _class_of_own_code(config: Mapping[str, Any], architecture: str) -> str:
    """Return the class of transformers that finds the model's class in code of its own; empty without such code.

    auto_map names code for each class that finds models; that of the model's architecture counts, else one with a head.
    """
    entries = config.get("auto_map")
    found = {}
    for name, reference in entries.items() if isinstance(entries, dict) else ():
        if name.startswith("AutoModel") and name.isidentifier():
            found[name] = str(reference).rpartition(".")[2]
    of_architecture = [name for name, model in found.items() if model == architecture]
    headless = "AutoModel"
    with_head = sorted((name for name in found if name != headless), key=lambda name: (name != CAUSAL, name))
    return next(iter([*of_architecture, *with_head, *found]), "")
