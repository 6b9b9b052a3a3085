"""How transformers and sentence-transformers load a converted model, and what they do not load."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from fastq.tools.checkpoints import readers
from fastq.tools.checkpoints.config_json import HALVES, model_types
from fastq.tools.checkpoints.copied_files import modules_of
from fastq.tools.checkpoints.experts import EXPERT
from fastq.tools.checkpoints.folder import ModelFolder
from fastq.tools.checkpoints.own_code import has_own_code
from fastq.tools.checkpoints.rules import Matrix
from fastq.tools.checkpoints.skipped_modules import EMBEDDING
from fastq.tools.layouts.schemes import E4M3, E8M0, WORDS

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
AS_FLOATS = "CompressedTensorsConfig(dequantize=True)"
CAUSAL = "AutoModelForCausalLM"
# formats whose codes replace the weight: all models load them
INT8 = "int-quantized"
FP8 = "float-quantized"


def loading(out: Path, source: ModelFolder, quantized: Iterable[Matrix], assumed: Collection[str] = ()) -> list[str]:
    """Return lines with the call that loads a directory, given its source and the matrices that are quantized.

    transformers decodes all weights by one scheme if it is asked for floats; otherwise each when it is first used.
    Models that look at a weight before that, embeddings, and sentence-transformers need floats, which are the same
    numbers; so may `assumed` modules, which code of the model's own could use as tables.
    """
    matrices = list(quantized)
    schemes = {matrix.scheme for matrix in matrices}
    way = f"fastq convert {shlex.quote(str(out))} FLOATS --dequantize writes floats for any reader"
    lines = [*_not_loaded(matrices, source, way)]
    if lines:
        return lines
    direct = all(scheme.format in (INT8, FP8) for scheme in schemes) and not _has_embeddings(matrices)
    direct = direct and not (assumed and has_own_code(source.config))
    floats = len(schemes) == 1 and not direct and not model_types(source.config) & readers.NOT_AS_FLOATS
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
    for kind in sorted(model_types(source.config) & (readers.NOT_BY_ROWS if by_rows else readers.SPLIT_BY_READERS)):
        advice = "" if kind in readers.NOT_BY_ROWS else "; it does so with FP8_DYNAMIC or W8A8"
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
