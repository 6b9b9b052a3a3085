"""Notes on the weights of a model that a plan leaves as floats."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fastq.tools.checkpoints.config_json import CONFIG, HALVES
from fastq.tools.checkpoints.experts import is_stack
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.module_names import tail_of
from fastq.tools.checkpoints.own_code import has_own_code
from fastq.tools.checkpoints.rules import IGNORED, Plan, Rules, is_matrix
from fastq.tools.checkpoints.skipped_modules import EMBEDDING, HEAD, NORM, ROUTER
from fastq.tools.checkpoints.tied_embeddings import is_tied
from fastq.tools.files.texts import some_of

NOTABLE = 0.1  # share of the bytes of a model from which tensors of other shapes are told of
MOST_NAMED = 3  # modules that a line names one by one


def left_as_floats(plan: Plan, source: ModelFolder, rules: Rules) -> list[str]:
    """Return lines on weights that stay as they are, and on the options that quantize them.

    These are embeddings and heads, experts, and tensors of other shapes or names if they are a large part of the model.
    """
    found: dict[bool, dict[str, int]] = {False: {}, True: {}}  # bytes by names of those that are tied and not
    for name, why in plan.left.items():
        module = name.removesuffix(".weight")
        spec = source.tensors[name]
        group = rules.scheme_of(module).weights.group_size
        if why in (HEAD, EMBEDDING) and is_matrix(spec) and not (group and spec.shape[1] % group):
            found[is_tied(why, source.config)][module] = spec.nbytes
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


def assumptions(plan: Plan, source: ModelFolder) -> Iterator[str]:
    """Yield a line on matrices outside the layers of which no name and no code tells that they are Linear."""
    if plan.assumed:
        why = "the model has code of its own" if has_own_code(source.config) else f"{CONFIG} has no model_type"
        yield f"{why}: {some_of(plan.assumed)} are taken for Linear layers; --ignore leaves others"
