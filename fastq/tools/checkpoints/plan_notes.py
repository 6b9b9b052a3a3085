"""Notes on the weights of a model that a plan leaves as floats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fastq.tools.checkpoints.config_json import CONFIG, HALVES
from fastq.tools.checkpoints.experts import is_stack
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.module_names import tail_of
from fastq.tools.checkpoints.own_code import has_own_code
from fastq.tools.checkpoints.rules import IGNORED, Plan, Rules, is_matrix
from fastq.tools.checkpoints.skipped_modules import EMBEDDING, HEAD, NORM, OTHER_LAYER, ROUTER
from fastq.tools.checkpoints.tied_embeddings import is_tied
from fastq.tools.files.quantized_elsewhere import line_on_narrow
from fastq.tools.files.texts import some_of

NOTABLE = 0.1  # share of the bytes of a model from which on a line names tensors of other shapes
MOST_OPTIONS = 3  # options of which a line has one for each module


def lines_on_floats(plan: Plan, source: ModelFolder, rules: Rules) -> list[str]:
    """Return lines on weights that stay as they are, and on the options that quantize them.

    These are embeddings and heads, layers that the code of the model says are not Linear, experts, and tensors of other
    shapes or names if they are a large part of the model.
    """
    lines = [*_lines_on_heads(plan, source, rules)]
    if not_linear := [name for name, reason in plan.copied.items() if reason == OTHER_LAYER]:
        line = _line_on_tensors("layers", not_linear, plan, source)
        lines.append(f"{line}; --include quantizes them, for readers of floats")
    return [*lines, *_lines_on_experts_and_others(plan, source)]


def _lines_on_heads(plan: Plan, source: ModelFolder, rules: Rules) -> Iterator[str]:
    """Yield lines on embeddings and output heads: on those that an option quantizes, and on those that must stay."""
    tied: dict[str, int] = {}  # bytes by module
    untied: dict[str, int] = {}
    for name, reason in plan.copied.items():
        module = name.removesuffix(".weight")
        spec = source.tensors[name]
        group_size = rules.scheme_of(module).weights.group_size
        # groups that do not fill rows would be refused, so no line advises them
        if reason in (HEAD, EMBEDDING) and is_matrix(spec) and not (group_size and spec.shape[1] % group_size):
            sizes = tied if is_tied(reason, source.config) else untied
            sizes[module] = spec.nbytes
    if untied:
        yield _line_on_heads(untied, f"{_options_to_include(list(untied))} quantizes them")
    if tied:
        yield _line_on_heads(tied, "embedding and output head are, or may be, one matrix")


def _options_to_include(modules: list[str]) -> str:
    """Return the options that quantize some modules: one for each, or one for the ends of their names."""
    if len(modules) <= MOST_OPTIONS:
        return " ".join(f"--include {module}" for module in modules)
    tails = "|".join(dict.fromkeys(re.escape(tail_of(module)) for module in modules))
    return f"--include 're:.*({tails})$'"


def _line_on_heads(sizes: Mapping[str, int], reason: str) -> str:
    """Return a line on embeddings and output heads, given their bytes."""
    return f"left as floats: embeddings and output heads, {sum(sizes.values()):,} bytes; {reason}"


def _lines_on_experts_and_others(plan: Plan, source: ModelFolder) -> Iterator[str]:
    """Yield lines on experts that stay as they are, and on other tensors of two or more axes."""
    reasons_of_other_lines = (HEAD, EMBEDDING, ROUTER, NORM, OTHER_LAYER, IGNORED)  # and of those that need no line
    experts: list[str] = []
    others: list[str] = []
    for name, reason in plan.copied.items():
        spec = source.tensors[name]
        if spec.dtype in HALVES and len(spec.shape) > 1 and reason not in reasons_of_other_lines:
            is_of_experts = is_stack(name, spec.shape) or ".experts." in f".{name}"
            (experts if is_of_experts else others).append(name)
    if experts:
        yield _line_on_tensors("experts", experts, plan, source)
    if line := line_on_narrow(map(source.tensors.__getitem__, plan.copied), HALVES):
        yield line
    total = sum(spec.nbytes for spec in source.tensors.values())
    if sum(source.tensors[name].nbytes for name in others) > NOTABLE * total:
        yield _line_on_tensors("other tensors of two or more axes", others, plan, source)


def _line_on_tensors(noun: str, names: list[str], plan: Plan, source: ModelFolder) -> str:
    """Return a line on tensors that stay as floats, with the reasons."""
    nbytes = sum(source.tensors[name].nbytes for name in names)
    reasons = ", ".join(dict.fromkeys(_reason_text(plan.copied[name]) for name in names))
    return f"left as floats: {noun}, {nbytes:,} bytes ({reasons}): {some_of(names)}"


def _reason_text(reason: str) -> str:
    """Return the text for a reason. For a parameter that is not a weight, a plan has only its name as the reason.

    Of the other reasons of one word, such as "router", these lines have none.
    """
    return reason if " " in reason else f"named {reason}"


def lines_on_assumptions(plan: Plan, source: ModelFolder) -> Iterator[str]:
    """Yield a line on matrices of which no name and no code tells that they are Linear, and on unread code."""
    why = "; ".join(f"{file} could not be read as Python ({reason})" for file, reason in plan.unread_code.items())
    if why and not plan.assumed:
        yield f"{why}: other code of the model says that all matrices are of Linear layers"
    elif plan.assumed:
        why = why or ("the model has code of its own" if has_own_code(source.config) else f"{CONFIG} has no model_type")
        predicate = "is taken for a Linear layer" if len(plan.assumed) == 1 else "are taken for Linear layers"
        yield f"{why}: {some_of(plan.assumed)} {predicate}; --ignore leaves others"
