"""How transformers and sentence-transformers load a converted model, and what they do not load."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastq.tools.checkpoints.config_json import HALVES, model_types
from fastq.tools.checkpoints.copied_files import modules_of
from fastq.tools.checkpoints.experts import EXPERT
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.own_code import has_own_code
from fastq.tools.checkpoints.rules import Matrix
from fastq.tools.checkpoints.skipped_modules import EMBEDDING, OTHER_LAYER
from fastq.tools.layouts.schemes import E4M3, E8M0, FLOATS, INTEGERS, MXFP4, WORDS, LayerScheme

# Models whose matrices transformers 5.24 splits or joins while it reads them: floats and, except for these models,
# codes with a scale for each row.
NOT_BY_ROWS = {
    *("inkling2", "inkling2_loop", "inkling_mm_model", "nemotron_h_omni", "radio", "step3p7", "unlimited_ocr"),
}
SPLIT_BY_READERS = NOT_BY_ROWS | {
    *("bailing_hybrid", "gte", "hrm_text", "inkling2_loop_text", "inkling2_text", "jina_embeddings_v3", "kimi_k25"),
    *("kimi_linear", "lara_mini", "minimax_m3_vl", "molmo2_text", "nomic_bert", "olmo_hybrid", "qianfan_ocr"),
    "sarvam_moe",
}
NOT_AS_FLOATS = {"qwen4_exp_text"}  # its modules have names that end in weight

READER = "transformers 5.24"
# kinds of layers that do not decode their matrices when they are used, and what several of them are called
NOT_DECODED = {EMBEDDING: "embeddings", OTHER_LAYER: "layers that are not Linear"}
AS_FLOATS = "CompressedTensorsConfig(dequantize=True)"
CAUSAL = "AutoModelForCausalLM"
# formats and strategies in which transformers reads experts
EXPERT_FORMATS = (WORDS, FLOATS, MXFP4)
EXPERT_STRATEGIES = ("group", "channel")


def loading_lines(
    out: Path, source: ModelFolder, quantized: Iterable[Matrix], assumed: Collection[str] = ()
) -> list[str]:
    """Return lines with the call that loads a directory, given its source and the matrices that are quantized.

    transformers decodes all weights by one scheme if it is asked for floats; otherwise each when it is first used.
    Models that look at a weight before that, embeddings and other layers that are not Linear, and sentence-transformers
    need floats, which are the same numbers; so may `assumed` modules, which the model's own code could use as tables.
    """
    matrices = list(quantized)
    schemes = {matrix.scheme for matrix in matrices}
    way_out = f"fastq convert {shlex.quote(str(out))} FLOATS --dequantize writes floats for any reader"
    lines = [*_reasons_against_loading(matrices, source, way_out)]
    if lines:
        return lines
    # all models load codes that replace the weight
    replaces_weights = all(scheme.format in (INTEGERS, FLOATS) for scheme in schemes) and not _not_decoded(matrices)
    # what was taken for Linear may have no layer that decodes it
    replaces_weights = replaces_weights and not (assumed and has_own_code(source.config))
    can_be_floats = len(schemes) == 1 and not model_types(source.config) & NOT_AS_FLOATS
    as_floats = can_be_floats and not replaces_weights
    is_sentence_model = bool(modules_of(out))
    if is_sentence_model and len(schemes) > 1:  # its models need floats, and floats need one scheme
        lines.append(f"sentence-transformers reads one scheme only, {READER} several; {way_out}")
        is_sentence_model = False
    options = []
    if source.dtype != "BF16" and any(scheme.weights.scale_dtype in (E4M3, E8M0) for scheme in schemes):
        names = ", ".join(sorted({scheme.name for scheme in schemes}))
        lines.append(f"readers have the values of {names} in bfloat16, and the model is {HALVES[source.dtype]}")
        if not as_floats:
            options.append("dtype=torch.bfloat16")
    if as_floats or is_sentence_model:
        options.append(f"quantization_config={AS_FLOATS}")
    call = _sentence_model_call(out, source, options) if is_sentence_model else _call(out, source, options)
    return [*lines, f"to import: {'; '.join(_imports_for(call))}", f"to load it: {call}"]


def _imports_for(call: str) -> list[str]:
    """Return the import statements for the names in a call."""
    reader = call.partition("(")[0].partition(".")[0]
    statements = []
    from_transformers = []
    if reader == "SentenceTransformer":
        statements.append("from sentence_transformers import SentenceTransformer")
    else:
        from_transformers.append(reader)
    if AS_FLOATS in call:
        from_transformers.append("CompressedTensorsConfig")
    if from_transformers:
        statements.append(f"from transformers import {', '.join(sorted(from_transformers))}")
    if "torch.bfloat16" in call:
        statements.append("import torch")
    return statements


def _not_decoded(matrices: Iterable[Matrix]) -> list[str]:
    """Return the kinds of matrices of layers that do not decode them."""
    kinds = {matrix.kind for matrix in matrices}
    return [noun for kind, noun in NOT_DECODED.items() if kind in kinds]


def _reasons_against_loading(matrices: list[Matrix], source: ModelFolder, way_out: str) -> Iterator[str]:
    """Yield a line for each reason why transformers can't load the model; `way_out` says what works instead."""
    schemes = {matrix.scheme for matrix in matrices}
    needs_floats = []
    if not all(scheme.weights.symmetric for scheme in schemes):
        needs_floats.append("zero points")
    needs_floats += _not_decoded(matrices)
    if needs_floats and len(schemes) > 1:
        only = f"with {AS_FLOATS} only, and several schemes without it only"
        yield f"{READER} reads {' and '.join(needs_floats)} {only}; {way_out}"
    expert_schemes = {matrix.scheme for matrix in matrices if EXPERT.fullmatch(matrix.module)}
    if len(expert_schemes) > 1 or not all(map(_is_read_for_experts, expert_schemes)):
        yield f"{READER} does not load experts in {', '.join(sorted(scheme.name for scheme in expert_schemes))}"
    by_rows = all(scheme.weights.strategy == "channel" for scheme in schemes)
    for model_type in sorted(model_types(source.config) & (NOT_BY_ROWS if by_rows else SPLIT_BY_READERS)):
        advice = "" if model_type in NOT_BY_ROWS else "; it does so with FP8_DYNAMIC or W8A8"
        yield f"{READER} does not load such a model of type {model_type}, whose matrices it splits or joins{advice}"


def _is_read_for_experts(scheme: LayerScheme) -> bool:
    """Return whether transformers reads experts in a scheme."""
    weights = scheme.weights
    return scheme.format in EXPERT_FORMATS and weights.strategy in EXPERT_STRATEGIES and weights.symmetric


def _sentence_model_call(out: Path, source: ModelFolder, options: list[str]) -> str:
    """Return the call of sentence-transformers that loads a directory."""
    arguments = [repr(str(out))]
    if options:
        pairs = (option.partition("=") for option in options)
        entries = ", ".join(f'"{key}": {value}' for key, _, value in pairs)
        arguments.append(f"model_kwargs={{{entries}}}")
    if isinstance(source.config.get("auto_map"), dict):
        arguments.append("trust_remote_code=True")
    return f"SentenceTransformer({', '.join(arguments)})"


def _call(out: Path, source: ModelFolder, options: list[str]) -> str:
    """Return the call of transformers that loads a directory."""
    architectures = source.config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    reader = name if isinstance(name, str) and name.isidentifier() else "AutoModel"  # the line will be pasted into code
    if reader_of_own_code := _class_of_own_code(source.config, reader):
        reader = reader_of_own_code
        options = [*options, "trust_remote_code=True"]
    return f"{reader}.from_pretrained({', '.join([repr(str(out)), *options])})"


def _class_of_own_code(config: Mapping[str, Any], architecture: str) -> str:
    """Return the class of transformers that finds the model's class in code of its own; empty without such code.

    auto_map names code for each class that finds models; that of the model's architecture counts, else one with a head.
    """
    entries = config.get("auto_map")
    model_of: dict[str, str] = {}
    for name, reference in entries.items() if isinstance(entries, dict) else ():
        if name.startswith("AutoModel") and name.isidentifier():
            model_of[name] = str(reference).rpartition(".")[2]
    of_architecture = [name for name, model in model_of.items() if model == architecture]
    headless = "AutoModel"
    with_head = sorted((name for name in model_of if name != headless), key=lambda name: (name != CAUSAL, name))
    return next(iter([*of_architecture, *with_head, *model_of]), "")
