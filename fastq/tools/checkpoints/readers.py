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
    is_sentence_model = bool(modules_of(out))
    uses_sentence_transformers = is_sentence_model and len(schemes) == 1  # it needs floats, and floats need one scheme
    if is_sentence_model and not uses_sentence_transformers:
        lines.append(f"sentence-transformers reads one scheme only, {READER} several; {way_out}")
    as_floats = _is_read_as_floats(matrices, source, assumed)
    options = []
    if source.dtype != "BF16" and any(scheme.weights.scale_dtype in (E4M3, E8M0) for scheme in schemes):
        names = ", ".join(sorted({scheme.name for scheme in schemes}))
        lines.append(f"readers have the values of {names} in bfloat16, and the model is {HALVES[source.dtype]}")
        if not as_floats:
            options.append("dtype=torch.bfloat16")
    if as_floats or uses_sentence_transformers:
        options.append(f"quantization_config={AS_FLOATS}")
    if uses_sentence_transformers:
        call = _call_of_sentence_transformers(out, source, options)
    else:
        call = _call_of_transformers(out, source, options)
    return [*lines, f"to import: {'; '.join(_imports_for(call))}", f"to load it: {call}"]


def _is_read_as_floats(matrices: list[Matrix], source: ModelFolder, assumed: Collection[str]) -> bool:
    """Return whether to ask transformers for floats: if it can decode all weights, and some model needs that."""
    schemes = {matrix.scheme for matrix in matrices}
    can_be_floats = len(schemes) == 1 and not model_types(source.config) & NOT_AS_FLOATS
    # any model loads codes that replace the weight, unless a matrix has no layer that decodes it, as may have those
    # that were taken for Linear in code of the model's own
    is_decoded_by_layers = not _not_decoded(matrices) and not (assumed and has_own_code(source.config))
    loads_codes = all(scheme.format in (INTEGERS, FLOATS) for scheme in schemes) and is_decoded_by_layers
    return can_be_floats and not loads_codes


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


def _call_of_sentence_transformers(out: Path, source: ModelFolder, options: list[str]) -> str:
    """Return the call of sentence-transformers that loads a directory, as a line of Python.

    It hands options on to transformers in a dict: dtype=X becomes model_kwargs={"dtype": X}.
    """
    arguments = [repr(str(out))]
    if options:
        pairs = (option.partition("=") for option in options)
        entries = ", ".join(f'"{key}": {value}' for key, _, value in pairs)
        arguments.append(f"model_kwargs={{{entries}}}")
    if isinstance(source.config.get("auto_map"), dict):  # the model has code of its own
        arguments.append("trust_remote_code=True")
    return f"SentenceTransformer({', '.join(arguments)})"


def _call_of_transformers(out: Path, source: ModelFolder, options: list[str]) -> str:
    """Return the call of transformers that loads a directory, as a line of Python."""
    architectures = source.config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    # config.json can say anything, and the line will be pasted into code
    architecture = name if isinstance(name, str) and name.isidentifier() else "AutoModel"
    arguments = [repr(str(out)), *options]
    finder = _class_that_finds_own_code(source.config, architecture)
    if finder:
        arguments.append("trust_remote_code=True")
    return f"{finder or architecture}.from_pretrained({', '.join(arguments)})"


def _class_that_finds_own_code(config: Mapping[str, Any], architecture: str) -> str:
    """Return the class of transformers that finds the model's class in code of its own; empty without such code.

    auto_map names the model's class for each class that finds models: {"AutoModelForCausalLM": "modeling.MyModel"}. The
    one that finds the architecture counts, else one for models with a head.
    """
    auto_map = config.get("auto_map")
    found_by: dict[str, str] = {}
    for finder, reference in auto_map.items() if isinstance(auto_map, dict) else ():
        if finder.startswith("AutoModel") and finder.isidentifier():
            found_by[finder] = str(reference).rpartition(".")[2]
    of_architecture = [finder for finder, found in found_by.items() if found == architecture]
    headless = "AutoModel"
    with_head = sorted((finder for finder in found_by if finder != headless), key=lambda name: (name != CAUSAL, name))
    return next(iter([*of_architecture, *with_head, *found_by]), "")
